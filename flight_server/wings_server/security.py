"""What settings ask of the callers of a gRPC service of the cluster."""

from wings_server.exposure import PEERS_MISSING, TLS_MISSING, check_exposure
from wings_server.metadata.peers import PeerSecurity
from wings_server.settings import HoldSettings, MetadataSettings
from wings_server.tls import Tls


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
