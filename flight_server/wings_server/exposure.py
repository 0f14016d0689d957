"""Exposure: listeners beyond loopback need tokens and TLS, or --insecure."""

import ipaddress
import socket
from collections.abc import Iterable

import structlog

from wings_core.errors import InvalidArgument
from wings_server.settings import Address, HoldSettings, MetadataSettings, Settings
from wings_server.tls import PeerSecurity, Tls

_logger = structlog.get_logger("wings.server")

TLS_MISSING = "TLS (--tls-cert and --tls-key)"
TOKENS_MISSING = (
    "tokens (set WINGS_ROOT_TOKEN, or create one while the server listens on loopback alone)"
)
PEERS_MISSING = "mutual TLS (--tls-client-ca) or the cluster's token (WINGS_CLUSTER_TOKEN)"


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
    _logger.warning("open to every machine that can connect", opened=opened, without=needed)


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
