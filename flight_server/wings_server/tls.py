"""Security of listeners: their certificates, and what those beyond loopback need.

HTTP, Kafka and gRPC use reloaded files for new connections. Flight keeps its first certificate,
since pyarrow cannot replace it; renewing it needs a restart.
"""

import ipaddress
import socket
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from wings_core.errors import InvalidArgument, WingsError
from wings_core.security.tokens import PeerAccess
from wings_server.settings import Address, HoldSettings, MetadataSettings, Settings

if TYPE_CHECKING:
    import grpc

_logger = structlog.get_logger("wings.tls")

_exposure_logger = structlog.get_logger("wings.server")

TLS_MISSING = "TLS (--tls-cert and --tls-key)"

TOKENS_MISSING = (
    "tokens (set WINGS_ROOT_TOKEN, or create one while the server listens on loopback alone)"
)

PEERS_MISSING = "mutual TLS (--tls-client-ca) or the cluster's token (WINGS_CLUSTER_TOKEN)"


@dataclass(frozen=True, slots=True, repr=False)
class _Pem:
    """Contents of the files when last read."""

    cert: bytes
    key: bytes
    client_ca: bytes | None
    ends_at: datetime


class Tls:
    """The certificate of a process's listeners.

    Args:
        cert: File of the certificate chain, in PEM.
        key: File of its private key.
        client_ca: File of the certificate authorities of clients, for mutual TLS; None if clients
            need no certificate.

    Raises:
        InvalidArgument: A file cannot be read, or is invalid.
    """

    def __init__(self, cert: Path, key: Path, client_ca: Path | None) -> None:
        self._files = (cert, key, client_ca)
        self._pem = self._read()
        self._first_ends_at = self._pem.ends_at
        self.context = self._renewed = self._load()
        """Context of HTTP; each connection switches to the context loaded last."""
        self.context.sni_callback = self._take_renewed
        self._version = 0
        self._warn_if_ended()

    @classmethod
    def of(cls, settings: Settings) -> "Tls | None":
        """Return the certificate of the settings; None without one.

        Raises:
            InvalidArgument: Only one of certificate and key is given, or a file is unusable.
        """
        cert, key = settings.tls_cert, settings.tls_key
        if cert is None and key is None and settings.tls_client_ca is None:
            return None
        if cert is None or key is None:
            raise InvalidArgument("TLS needs both --tls-cert and --tls-key")
        return cls(cert, key, settings.tls_client_ca)

    @property
    def ends_at(self) -> datetime:
        """The end of the certificate: of the first one while Flight's ends before a renewed one."""
        return min(self._first_ends_at, self._pem.ends_at)

    @property
    def is_mutual(self) -> bool:
        """Whether clients need a certificate."""
        return self._pem.client_ca is not None

    def reload(self) -> None:
        """Reload the files; if they are unusable, the previous ones stay in use."""
        try:
            pem = self._read()
            self._renewed = self._load()
        except WingsError as error:
            _logger.error("certificates are not renewed", reason=error.message)
            return
        self._pem = pem
        self._version += 1
        _logger.info("certificates renewed for HTTP, Kafka and gRPC; Flight's needs a restart")
        self._warn_if_ended()

    def flight_options(self) -> dict[str, Any]:
        """Return the arguments of `pyarrow.flight.FlightServerBase`."""
        options: dict[str, Any] = {"tls_certificates": [(self._pem.cert, self._pem.key)]}
        if self._pem.client_ca is not None:
            options |= {"verify_client": True, "root_certificates": self._pem.client_ca}
        return options

    def grpc_credentials(self) -> "grpc.ServerCredentials":
        """Return the credentials of a gRPC server, which follow reloads."""
        import grpc  # A server without gRPC does not import it.

        given = self._version

        def fetch() -> Any:
            """Return a configuration new since the last call; called for each connection."""
            nonlocal given
            if given == self._version:
                return None
            given = self._version
            return self._configuration()

        return grpc.dynamic_ssl_server_credentials(
            self._configuration(), fetch, require_client_authentication=self.is_mutual
        )

    def _warn_if_ended(self) -> None:
        ends_at = self._pem.ends_at
        if ends_at <= datetime.now(UTC):
            _logger.warning("the certificate has ended: clients refuse it", ended=str(ends_at))

    def _configuration(self) -> Any:
        import grpc

        pem = self._pem
        return grpc.ssl_server_certificate_configuration([(pem.key, pem.cert)], pem.client_ca)

    def _read(self) -> _Pem:
        cert, key, client_ca = self._files
        chain = read_file(cert)
        try:
            ends_at = _end_of(chain)
        except ValueError:
            raise InvalidArgument(f"{cert} has no certificate in PEM") from None
        return _Pem(chain, read_file(key), client_ca and read_file(client_ca), ends_at)

    def _take_renewed(self, connection: ssl.SSLObject, _name: str | None, _: object) -> None:
        # Called for each handshake, even without a server name. A context in use is never reloaded
        # in place: a handshake could see the new certificate with the old key, and removed
        # authorities would still be trusted.
        connection.context = self._renewed

    def _load(self) -> ssl.SSLContext:
        cert, key, client_ca = self._files
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            # A key with a pass phrase is refused: OpenSSL would ask the terminal for it.
            context.load_cert_chain(cert, key, password=lambda: "")
        except (OSError, ssl.SSLError) as error:
            raise InvalidArgument(
                f"{cert} and {key} are not a certificate and its key: {error}"
            ) from None
        try:
            if client_ca is not None:
                context.load_verify_locations(client_ca)
                context.verify_mode = ssl.CERT_REQUIRED
                # A resumed session presents no certificate, whatever has changed since.
                context.num_tickets = 0
                context.options |= ssl.OP_NO_TICKET
        except (OSError, ssl.SSLError) as error:
            raise InvalidArgument(f"{client_ca} has no certificates in PEM: {error}") from None
        return context


def _end_of(chain: bytes) -> datetime:
    """Return the end of the first certificate of a chain in PEM."""
    from cryptography import x509  # Most servers of one machine have no TLS.

    return x509.load_pem_x509_certificate(chain).not_valid_after_utc


@dataclass(frozen=True, slots=True, repr=False)
class PeerSecurity:
    """How a service is kept to the nodes of its cluster."""

    tls: Tls | None = None
    token: str | None = None


def peer_access(settings: Settings) -> PeerAccess:
    """Return the credentials of a node for the services of its cluster.

    Raises:
        InvalidArgument: A file cannot be read.
    """
    token = settings.cluster_token
    ca = settings.cluster_ca
    is_mutual = ca is not None and settings.tls_cert is not None and settings.tls_key is not None
    return PeerAccess(
        None if token is None else token.get_secret_value(),
        ca and read_file(ca),
        read_file(settings.tls_cert) if is_mutual and settings.tls_cert else None,
        read_file(settings.tls_key) if is_mutual and settings.tls_key else None,
    )


def read_file(path: Path) -> bytes:
    """Return the contents of a file.

    Raises:
        InvalidArgument: The file cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be read: {error.strerror or error}") from None


def is_loopback(address: Address) -> bool:
    """Return whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(address.host.partition("%")[0]).is_loopback
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(address.host, None, type=socket.SOCK_STREAM)
    except OSError:
        return False
    hosts = [str(entry[4][0]).partition("%")[0] for entry in found]
    return all(ipaddress.ip_address(host).is_loopback for host in hosts)


def check_exposure(
    settings: Settings, listeners: Iterable[tuple[str, Address]], missing: Iterable[str]
) -> None:
    """Check that listeners may be opened.

    Args:
        settings: Settings, with --insecure.
        listeners: Purpose and address of each listener.
        missing: Security measures that they lack.

    Raises:
        InvalidArgument: A listener is beyond loopback and lacks something, without --insecure.
    """
    lacking = list(missing)
    exposed = [f"{what} on {address}" for what, address in listeners if not is_loopback(address)]
    if not exposed or not lacking:
        return
    opened, needed = " and ".join(exposed), " and ".join(lacking)
    if not settings.insecure:
        raise InvalidArgument(
            f"{opened}: beyond loopback, this needs {needed}; or, for a network whose members are "
            "all trusted, --insecure"
        )
    _exposure_logger.warning(
        "open to every machine that can connect", opened=opened, without=needed
    )


def service_security(settings: MetadataSettings | HoldSettings) -> PeerSecurity:
    """Return the access control of a metadata service or replica to the nodes of its cluster.

    Raises:
        InvalidArgument: The TLS files are unusable, or the service would listen beyond loopback
            without TLS and authentication of callers, and without --insecure.
    """
    tls = Tls.of(settings)
    token = settings.cluster_token
    missing = [TLS_MISSING] if tls is None else []
    if token is None and (tls is None or not tls.is_mutual):
        missing.append(PEERS_MISSING)
    check_exposure(settings, [("gRPC", settings.listen)], missing)
    return PeerSecurity(tls, None if token is None else token.get_secret_value())
