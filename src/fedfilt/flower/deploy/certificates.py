"""A certificate authority, the edge server's certificate, and a key pair for each device."""

import datetime
import ipaddress
import os
import secrets
from collections.abc import Iterable
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedfilt._files import write_atomically
from fedfilt.flower.deploy.address import Address
from fedfilt.system.blind import KEY

DAYS = 365  # that a certificate lasts
AUTHORITY_DAYS = 3650  # likewise; devices trust it, so it should rarely change
AUTHORITY = "fedfilt building authority"


def certificates(folder: Path, where: Address) -> bytes:
    """Make a certificate authority and a certificate for the SuperLink; returns the authority's certificate."""
    folder.mkdir()
    key = ec.generate_private_key(ec.SECP384R1())
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    authority = (
        _begun(AUTHORITY, key, AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(identifier, critical=False)
        .sign(key, hashes.SHA384())
    )
    _write_key(folder / "ca.key", key)
    content = _pem(authority)
    (folder / "ca.crt").write_bytes(content)
    renew_server(folder, where)
    return content


def renew_server(folder: Path, where: Address, out: Path | None = None) -> None:
    """Make a key and certificate for the SuperLink, or for a broker in `out`, signed by the authority in the folder."""
    try:
        own: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(where.host))
    except ValueError:
        own = x509.DNSName(where.host)
    here = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    names = x509.SubjectAlternativeName([own, *(n for n in here if n != own)])
    _sign(folder, (out or folder) / "server", "fedfilt edge server", ExtendedKeyUsageOID.SERVER_AUTH, names)


def client(authority: Path, folder: Path, name: str, file: str = "client") -> int:
    """Make a key and certificate for a client of that name, next to the certificate of the authority.

    Returns the serial number of the certificate, which is needed to revoke it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "ca.crt").write_bytes((authority / "ca.crt").read_bytes())
    return _sign(authority, folder / file, name, ExtendedKeyUsageOID.CLIENT_AUTH)


def revocations(authority: Path, serials: Iterable[int]) -> bytes:
    """A list of revoked certificates, signed by the authority."""
    key, issuer = _authority(authority)
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(issuer.subject)
        .last_update(now - datetime.timedelta(days=1))
        .next_update(now + datetime.timedelta(days=AUTHORITY_DAYS))  # with an expired list, a broker lets nobody in
        .add_extension(x509.CRLNumber(int(now.timestamp() * 1000)), critical=False)
        .add_extension(_issued_by(issuer), critical=False)
    )
    for serial in serials:
        one = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now)
        builder = builder.add_revoked_certificate(one.build())
    return builder.sign(key, hashes.SHA384()).public_bytes(Encoding.PEM)


def _sign(
    folder: Path,
    files: Path,
    name: str,
    purpose: x509.ObjectIdentifier,
    names: x509.SubjectAlternativeName | None = None,
) -> int:
    """Write a new key and its certificate, FILES.key and FILES.crt, signed by the authority in a folder; its serial."""
    authority_key, authority = _authority(folder)
    key = ec.generate_private_key(ec.SECP384R1())
    builder = (
        _begun(name, key, DAYS)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        .add_extension(_issued_by(authority), critical=False)
    )
    if names is not None:
        builder = builder.add_extension(names, critical=False)
    private, public = (files.with_name(files.name + ending) for ending in (".key", ".crt"))
    private.unlink(missing_ok=True)
    _write_key(private, key)
    signed = builder.sign(authority_key, hashes.SHA384())
    write_atomically(public, _pem(signed))  # last: whoever sees it finds its key
    return signed.serial_number


def _authority(folder: Path) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    """(key, certificate) of the authority in a folder."""
    try:
        key = load_pem_private_key((folder / "ca.key").read_bytes(), None)
        certificate = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    except (OSError, ValueError) as error:
        raise ValueError(f"{folder} must hold ca.key, which may be kept elsewhere, and ca.crt: {error}") from None
    assert isinstance(key, ec.EllipticCurvePrivateKey), "as `certificates` makes it"
    return key, certificate


def _issued_by(authority: x509.Certificate) -> x509.AuthorityKeyIdentifier:
    identifier = authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier)


def days_left(path: Path, now: datetime.datetime | None = None) -> float:
    """Days until a certificate expires, counted from now or another time."""
    end = x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc
    return (end - (now or datetime.datetime.now(datetime.UTC))) / datetime.timedelta(days=1)


def _called(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _begun(subject: str, key: ec.EllipticCurvePrivateKey, days: int) -> x509.CertificateBuilder:
    begin = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)  # clocks of devices may be behind
    end = begin + datetime.timedelta(days=days + 1)
    builder = x509.CertificateBuilder().subject_name(_called(subject)).issuer_name(_called(AUTHORITY))
    builder = builder.public_key(key.public_key()).serial_number(x509.random_serial_number())
    return builder.not_valid_before(begin).not_valid_after(end)


def _usage(signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(Encoding.PEM)


def new_key(folder: Path) -> str:
    """Write a new key pair for a device, in the formats Flower reads; returns the public key as text."""
    key = ec.generate_private_key(ec.SECP384R1())
    _write_key(folder / "key", key, ssh=True)
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    (folder / "key.pub").write_text(public + "\n")
    return public


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey, ssh: bool = False) -> None:
    kind = PrivateFormat.OpenSSH if ssh else PrivateFormat.PKCS8
    write_secret(path, key.private_bytes(Encoding.PEM, kind, NoEncryption()))


def new_group_key() -> str:
    """A key that all devices share but the edge server does not have, as text; see `fedfilt.system.blind`."""
    return secrets.token_hex(KEY) + "\n"


def write_secret(path: Path, content: bytes) -> None:
    """Write a new file that only its owner can read."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
