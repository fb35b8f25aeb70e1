"""Where the edge server is reached, and whether it may be open there. Standard library only."""

import ipaddress
from pathlib import Path
from typing import Any, NamedTuple


class Address(NamedTuple):
    """Where the SuperLink is reached."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def loopback(self) -> bool:
        """Whether it can be reached from this machine only."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


def address(text: str) -> Address:
    """HOST:PORT as an address.

    >>> address("192.168.1.10:9092"), address("localhost:9092").loopback
    (Address(host='192.168.1.10', port=9092), True)
    """
    host, _, port = text.rpartition(":")
    host = host.strip("[]")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"address must be HOST:PORT, such as 192.168.1.10:9092, got {text!r}")
    return Address(host, int(port))


class Site(NamedTuple):
    """Where the machines of a deployment are, and what starts them."""

    where: Address
    authentication: bool
    insist: bool  # on being open without authentication
    place: Path  # of the folder on the machines
    program: str  # the fedfilt command there

    def table(self) -> dict[str, Any]:
        """As it stands in deployment.toml."""
        return {**self._asdict(), "where": str(self.where), "place": str(self.place)}

    @classmethod
    def read(cls, table: dict[str, Any]) -> "Site":
        """From the table of a deployment.toml."""
        site = table["site"]
        return cls(**{**site, "where": address(site["where"]), "place": Path(site["place"])})


def check_open(where: Address, authentication: bool, insist: bool) -> None:
    """Refuse to be open to a network without authentication, unless that is insisted on."""
    if not authentication and not where.loopback and not insist:
        raise ValueError(
            f"without authentication anybody who reaches {where} can take part and read models; use 127.0.0.1, "
            "leave out --no-authentication, or insist with --insist"
        )
