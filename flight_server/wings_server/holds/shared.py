"""The replica of nodes without data directories, served by one of them at a time to the others."""

from contextlib import ExitStack
from dataclasses import replace

from wings_core.errors import InvalidArgument
from wings_core.share.open import OpenReplicas, SharedHolds
from wings_core.share.replica.copies import HoldsCopies
from wings_server.exposure import TLS_MISSING, check_exposure
from wings_server.holds.handlers import hold_service
from wings_server.metadata.service import GrpcService
from wings_server.settings import Address, Settings
from wings_server.tls import PeerSecurity, Tls, peer_access


def serve_holds(
    settings: Settings, started: ExitStack, url: str, node_token: str, tls: Tls | None
) -> tuple[OpenReplicas, HoldsCopies]:
    """Serve the replica to the other nodes while this node owns it.

    Args:
        settings: Settings of the node.
        started: Stack that stops the service.
        url: URL of PostgreSQL.
        node_token: Token that nodes present to each other without a cluster token.
        tls: The node's certificate.

    Returns:
        The replicas of the node's coordinator, and a copier of the replica's state.

    Raises:
        InvalidArgument: The service would listen beyond loopback without TLS.
        Unavailable: The port cannot be bound.
    """
    token = settings.cluster_token
    secret = node_token if token is None else token.get_secret_value()
    access = replace(peer_access(settings), token=secret)
    if settings.cluster_ca is None:
        tls = None  # The other nodes could not verify the certificate.
    elif tls is None:
        raise InvalidArgument("--cluster-ca needs a certificate too: --tls-cert and --tls-key")
    listen = settings.holds or Address(settings.flight.host, 0)
    missing = [] if tls is not None else [f"{TLS_MISSING} with --cluster-ca"]
    check_exposure(settings, [("holds", listen)], missing)
    holds = SharedHolds(url, access)
    service = GrpcService([hold_service(holds.replica)], listen, PeerSecurity(tls, secret))
    try:
        service.start()
    except BaseException:
        holds.close()
        raise
    started.callback(service.stop, settings.drain_seconds)
    # Closed first: requests of other nodes are then rejected, and retried at the next owner.
    started.callback(holds.close)
    host = listen.host
    if settings.holds is None or listen.is_wildcard:
        host = (settings.advertise or settings.flight).host
    replicas = holds.open_link(str(Address(host, service.address.port)))
    return lambda: replicas, holds.copies
