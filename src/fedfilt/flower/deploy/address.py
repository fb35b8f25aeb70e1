"""The edge server's address, and whether it may be open there. Standard library only."""

import ipaddress
from pathlib import Path
from typing import Any, NamedTuple


class Address(NamedTuple):
    """The address of the SuperLink."""

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
    """Parse HOST:PORT.

    >>> address("192.168.1.10:9092"), address("localhost:9092").loopback
    (Address(host='192.168.1.10', port=9092), True)
    """
    host, _, port = text.rpartition(":")
    host = host.strip("[]")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"address must be HOST:PORT, such as 192.168.1.10:9092, got {text!r}")
    return Address(host, int(port))


class Site(NamedTuple):
    """Where the parts of a deployment will be, and the command that starts them."""

    where: Address
    authentication: bool
    insist: bool  # be open without authentication
    place: Path  # path of the folder on the machines
    program: str  # the fedfilt command there

    def table(self) -> dict[str, Any]:
        """The table for deployment.toml."""
        return {**self._asdict(), "where": str(self.where), "place": str(self.place)}

    @classmethod
    def read(cls, table: dict[str, Any]) -> "Site":
        """From the table of a deployment.toml."""
        site = table["site"]
        return cls(**{**site, "where": address(site["where"]), "place": Path(site["place"])})


def check_open(where: Address, authentication: bool, insist: bool) -> None:
    """Refuse to be open to a network without authentication unless `insist` is set."""
    if not authentication and not where.loopback and not insist:
        raise ValueError(
            f"without authentication, anybody who can reach {where} can take part and read models; use 127.0.0.1, "
            "leave out --no-authentication, or allow it with --insist"
        )
