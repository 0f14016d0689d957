"""Exposure: a listener beyond loopback starts only with what makes it safe, or by --insecure."""

import ipaddress
import socket
from collections.abc import Iterable

import structlog

from wings_core.errors import InvalidArgument
from wings_server.metadata.peers import PeerSecurity
from wings_server.settings import Address, HoldSettings, MetadataSettings, Settings
from wings_server.tls import Tls

_logger = structlog.get_logger("wings.server")

TLS_MISSING = "TLS (--tls-cert and --tls-key)"
TOKENS_MISSING = (
    "tokens (set WINGS_ROOT_TOKEN, or create one while the server listens on loopback alone)"
)
PEERS_MISSING = "mutual TLS (--tls-client-ca) or the cluster's token (WINGS_CLUSTER_TOKEN)"


def is_loopback(address: Address) -> bool:
    """Whether only this machine can reach an address."""
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
    """Make sure that listeners may be opened.

    Args:
        settings: Whether --insecure was given.
        listeners: What each is for, and where it listens.
        missing: What they lack.

    Raises:
        InvalidArgument: One is beyond loopback, lacks something, and --insecure was not given.
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
    """Return how a metadata service, or a replica of holds, is kept to the nodes of its cluster.

    Raises:
        InvalidArgument: The files of TLS cannot be used; or it is to listen beyond loopback without
            both TLS and a way to know its callers, and not --insecure.
    """
    tls = Tls.of(settings)
    token = settings.cluster_token
    missing = [TLS_MISSING] if tls is None else []
    if token is None and (tls is None or not tls.is_mutual):
        missing.append(PEERS_MISSING)
    check_exposure(settings, [("gRPC", settings.listen)], missing)
    return PeerSecurity(tls, None if token is None else token.get_secret_value())
