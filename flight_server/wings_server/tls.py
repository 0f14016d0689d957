"""TLS: the certificates of listeners, read from files, and again on SIGHUP where that can be.

HTTP and gRPC take renewed files for new connections. Flight keeps those that it was started with:
pyarrow has no way to replace them, so its certificate needs a restart.
"""

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import structlog

from wings_core.errors import InvalidArgument, WingsError
from wings_core.security.peers import PeerAccess
from wings_server.settings import Settings

_logger = structlog.get_logger("wings.tls")


@dataclass(frozen=True, slots=True, repr=False)
class _Pem:
    """The contents of the files when they were last read."""

    cert: bytes
    key: bytes
    client_ca: bytes | None


class Tls:
    """The certificate of a process's listeners.

    Args:
        cert: The file of the certificate chain, in PEM.
        key: The file of its private key.
        client_ca: The file of the authorities that clients are checked against, for mutual TLS;
            None: clients need no certificate.

    Raises:
        InvalidArgument: A file cannot be read, or is not what it should be.
    """

    def __init__(self, cert: Path, key: Path, client_ca: Path | None) -> None:
        self._files = (cert, key, client_ca)
        self._pem = self._read()
        self.context = self._renewed = self._load()
        """The one of HTTP; each of its connections takes over the one that was loaded last."""
        self.context.sni_callback = self._take_renewed
        self._version = 0

    @classmethod
    def of(cls, settings: Settings) -> "Tls | None":
        """Return the certificate that settings name; None where they name none.

        Raises:
            InvalidArgument: A certificate is without its key, or the reverse; or as above.
        """
        cert, key = settings.tls_cert, settings.tls_key
        if cert is None and key is None and settings.tls_client_ca is None:
            return None
        if cert is None or key is None:
            raise InvalidArgument("TLS needs both --tls-cert and --tls-key")
        return cls(cert, key, settings.tls_client_ca)

    @property
    def is_mutual(self) -> bool:
        """Whether clients need a certificate."""
        return self._pem.client_ca is not None

    def reload(self) -> None:
        """Read the files again; where they cannot be used, those of before stay."""
        try:
            pem = self._read()
            self._renewed = self._load()
        except WingsError as error:
            _logger.error("certificates are not renewed", reason=error.message)
            return
        self._pem = pem
        self._version += 1
        _logger.info("certificates renewed for HTTP and gRPC; Flight's needs a restart")

    def flight_options(self) -> dict[str, Any]:
        """Return the arguments of `pyarrow.flight.FlightServerBase`."""
        options: dict[str, Any] = {"tls_certificates": [(self._pem.cert, self._pem.key)]}
        if self._pem.client_ca is not None:
            options |= {"verify_client": True, "root_certificates": self._pem.client_ca}
        return options

    def grpc_credentials(self) -> grpc.ServerCredentials:
        """Return the credentials of a gRPC server, which renew themselves."""
        given = self._version

        def fetch() -> Any:
            """Return what is new since the last call, which each connection makes."""
            nonlocal given
            if given == self._version:
                return None
            given = self._version
            return self._configuration()

        return grpc.dynamic_ssl_server_credentials(
            self._configuration(), fetch, require_client_authentication=self.is_mutual
        )

    def _configuration(self) -> Any:
        pem = self._pem
        return grpc.ssl_server_certificate_configuration([(pem.key, pem.cert)], pem.client_ca)

    def _read(self) -> _Pem:
        cert, key, client_ca = self._files
        return _Pem(read_file(cert), read_file(key), client_ca and read_file(client_ca))

    def _take_renewed(self, connection: ssl.SSLObject, _name: str | None, _: object) -> None:
        # Called for each handshake, also of clients that send no name. What is in use is never
        # loaded again in place: a handshake would meet the new certificate with the old key, and
        # authorities that were removed would still be trusted.
        connection.context = self._renewed

    def _load(self) -> ssl.SSLContext:
        cert, key, client_ca = self._files
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(cert, key)
            if client_ca is not None:
                context.load_verify_locations(client_ca)
                context.verify_mode = ssl.CERT_REQUIRED
                # A session that is resumed shows no certificate, whatever has changed since.
                context.num_tickets = 0
                context.options |= ssl.OP_NO_TICKET
        except (OSError, ssl.SSLError) as error:
            raise InvalidArgument(
                f"{cert} and {key} are no certificate and its key: {error}"
            ) from None
        return context


def peer_access(settings: Settings) -> PeerAccess:
    """Return what a node presents to the services of its cluster.

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
    """Return what a file holds.

    Raises:
        InvalidArgument: It cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be read: {error.strerror or error}") from None
