"""A certificate authority, the edge server's certificate, and a key pair per device."""

import datetime
import ipaddress
import os
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedfilt.flower.deploy.address import Address

YEARS = 10


def certificates(folder: Path, where: Address) -> bytes:
    """A certificate authority and a certificate for the SuperLink; the authority's certificate."""
    folder.mkdir()
    begin = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)  # clocks of devices may be behind
    end = begin + datetime.timedelta(days=365 * YEARS)

    def called(name: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])

    authority_key, server_key = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    issuer = called("fedfilt building authority")
    identifier = x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key())

    def begun(subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
        return builder.serial_number(x509.random_serial_number()).not_valid_before(begin).not_valid_after(end)

    def usage(signs: bool) -> x509.KeyUsage:
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

    authority = (
        begun(issuer, authority_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage(signs=True), critical=True)
        .add_extension(identifier, critical=False)
        .sign(authority_key, hashes.SHA384())
    )
    try:
        own: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(where.host))
    except ValueError:
        own = x509.DNSName(where.host)
    here = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    server = (
        begun(called("fedfilt edge server"), server_key)
        .add_extension(x509.SubjectAlternativeName([own, *(n for n in here if n != own)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False)
        .sign(authority_key, hashes.SHA384())
    )
    _write_key(folder / "ca.key", authority_key)
    _write_key(folder / "server.key", server_key)
    content = _pem(authority)
    (folder / "ca.crt").write_bytes(content)
    (folder / "server.crt").write_bytes(_pem(server))
    return content


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(Encoding.PEM)


def new_key(folder: Path) -> str:
    """A new key pair of a device, in the formats Flower reads; the public key as text."""
    key = ec.generate_private_key(ec.SECP384R1())
    _write_key(folder / "key", key, ssh=True)
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    (folder / "key.pub").write_text(public + "\n")
    return public


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey, ssh: bool = False) -> None:
    kind = PrivateFormat.OpenSSH if ssh else PrivateFormat.PKCS8
    content = key.private_bytes(Encoding.PEM, kind, NoEncryption())
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
