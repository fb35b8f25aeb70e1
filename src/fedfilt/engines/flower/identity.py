"""A device's identity: its name and public key, as registered on the edge server."""

from typing import Any, NamedTuple


class Registered(NamedTuple):
    """A device as it was registered: its row in the graph is its place in the list."""

    name: str
    public_key: bytes  # PEM, as Flower keeps it; empty for a device that was removed


def registered(table: dict[str, Any]) -> list[Registered] | None:
    """The registered devices of a deployment file, by row; None if it has no authentication."""
    if not table["site"]["authentication"]:
        return None
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization

    found = []
    for device in table["device"]:
        if device.get("gone"):
            found.append(Registered(device["name"], b""))
            continue
        try:
            key = serialization.load_ssh_public_key(device["public_key"].encode())
        except UnsupportedAlgorithm as error:
            raise ValueError(f"the public key of {device['name']} cannot be read: {error}") from None
        pem = serialization.PublicFormat.SubjectPublicKeyInfo
        found.append(Registered(device["name"], key.public_bytes(serialization.Encoding.PEM, pem)))
    return found
