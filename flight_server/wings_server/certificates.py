"""`wings cert`: an authority and certificates for trying TLS, on one machine or in tests."""

import ipaddress
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wings_core.errors import InvalidArgument

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import Certificate, GeneralName, ObjectIdentifier

DAYS_MAX = 397
"""Longest validity of a certificate; clients with the system's TLS reject longer ones."""

DAYS = 90
"""Validity unless told: three times that of which `wings status` warns."""

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    help="Certificates for trying TLS.",
)


@app.callback()
def root() -> None:
    """Keep `dev` a named command, although it is the only one."""


@app.command()
def dev(
    directory: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Directory to write; created if missing.")
    ] = Path("wings-certs"),
    host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A name or an address of the server, in addition to localhost, 127.0.0.1 and ::1; "
            "repeatable.",
        ),
    ] = None,
    days: Annotated[int, typer.Option(min=1, max=DAYS_MAX, help="Validity in days.")] = DAYS,
) -> None:
    """Create an authority, and certificates of a server, a client and a node, for testing.

    Writes ca.pem, and server.pem, client.pem and node.pem, each with its key (server-key.pem, …). A
    server's certificate is not valid for a client, nor the reverse; that of a node, for clusters
    with mutual TLS, is valid for both. The authority's key is not kept: create all of them again
    for another name. In production, use the certificates of your organisation.
    """
    for file in make_certificates(directory, host or [], days):
        typer.echo(str(file))


def make_certificates(directory: Path, hosts: list[str], days: int = DAYS) -> list[Path]:
    """Write an authority, and certificates of a server, a client and a node; returns the files.

    Args:
        directory: Directory, created if missing. Keys are readable only by their owner.
        hosts: Hosts of the server and the node, in addition to loopback.
        days: Validity in days.

    Raises:
        InvalidArgument: A file exists already.
    """
    from cryptography import x509
    from cryptography.x509.oid import ExtendedKeyUsageOID as Usage

    directory.mkdir(parents=True, exist_ok=True)
    ca_key, ca = _issue("Wings development authority", [], [], days, None)
    names: list[GeneralName] = [_name(host) for host in ["localhost", "127.0.0.1", "::1", *hosts]]
    files = [_write(directory / "ca.pem", _pem(ca))]
    of_client: list[GeneralName] = [x509.DNSName("client")]
    for name, alternatives, usages in (
        ("server", names, [Usage.SERVER_AUTH]),
        ("client", of_client, [Usage.CLIENT_AUTH]),
        ("node", names, [Usage.SERVER_AUTH, Usage.CLIENT_AUTH]),
    ):
        key, certificate = _issue(f"Wings {name}", alternatives, usages, days, (ca_key, ca))
        files.append(_write(directory / f"{name}.pem", _pem(certificate)))
        files.append(_write(directory / f"{name}-key.pem", _key_pem(key)))
    return files


def _name(host: str) -> "GeneralName":
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _issue(
    common_name: str,
    alternatives: "list[GeneralName]",
    usages: "list[ObjectIdentifier]",
    days: int,
    issuer: "tuple[EllipticCurvePrivateKey, Certificate] | None",
) -> "tuple[EllipticCurvePrivateKey, Certificate]":
    """Return a key and its certificate; without an issuer, those of an authority."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
    issuer_key, issuer_name = (key, subject) if issuer is None else (issuer[0], issuer[1].subject)
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer_name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()),
            critical=False,
        )
        .add_extension(
            x509.KeyUsage(
                digital_signature=True,
                content_commitment=False,
                key_encipherment=False,
                data_encipherment=False,
                key_agreement=False,
                key_cert_sign=issuer is None,
                crl_sign=issuer is None,
                encipher_only=False,
                decipher_only=False,
            ),
            critical=True,
        )
    )
    if usages:
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
    if alternatives:
        builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
    return key, builder.sign(issuer_key, hashes.SHA256())


def _pem(certificate: "Certificate") -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM)


def _key_pem(key: "EllipticCurvePrivateKey") -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _write(path: Path, data: bytes) -> Path:
    try:
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise InvalidArgument(f"{path} exists already: choose another directory") from None
    with os.fdopen(opened, "wb") as file:
        file.write(data)
    return path
