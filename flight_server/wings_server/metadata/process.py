"""The services of nodes as processes of their own: metadata, and replicas of holds.

The replica of nodes without data directories is served by one of them at a time to the others.
"""

from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import structlog

from wings_core.data_directory import DataDirectory
from wings_core.errors import InvalidArgument
from wings_core.metadata.interfaces import Metadata
from wings_core.metadata.open import has_metadata, open_metadata, open_postgres
from wings_core.metadata.sqlite import SqliteMetadata
from wings_core.model import ShareGroup
from wings_core.share.open import (
    OpenReplicas,
    SharedHolds,
    all_groups,
    open_postgres_store,
    open_replica,
    open_standby,
)
from wings_core.share.replica.copies import HoldsCopies, Rebuilt, rebuild_holds
from wings_core.share.replica.replica import Replica
from wings_core.share.replica.sqlite_store import SqliteHoldStore
from wings_core.share.replica.store import HoldStore
from wings_core.storage.disk import DiskGuard
from wings_server.holds.handlers import hold_service
from wings_server.metadata.service import GrpcService, MetadataService
from wings_server.settings import Address, HoldSettings, MetadataSettings, Settings
from wings_server.tls import (
    TLS_MISSING,
    PeerSecurity,
    Tls,
    check_exposure,
    peer_access,
    service_security,
)

_logger = structlog.get_logger("wings.metadata")


class _NodesService:
    """A service of nodes, with its address and certificate from `start` on."""

    address: Address
    tls: Tls | None = None
    _stop: ExitStack

    def reload(self) -> None:
        """Reload the certificate, if there is one."""
        if self.tls is not None:
            self.tls.reload()

    def stop(self) -> None:
        """Drain and stop; a request whose response was lost can be retried elsewhere."""
        self._stop.close()


class MetadataServer(_NodesService):
    """A metadata service, over a data directory or PostgreSQL; `start`, then `stop`, once each.

    Args:
        settings: Settings of the service.
        nodes_here: Whether all of its nodes have its data directory open for its pages.

    Attributes:
        settings: The settings given.
        service: The gRPC service, from `start` on.
        address: Where it is served, with the real port, from `start` on.
    """

    service: MetadataService

    def __init__(self, settings: MetadataSettings, *, nodes_here: bool = False) -> None:
        self.settings = settings
        self._nodes_here = nodes_here
        self._stop = ExitStack()

    def start(self) -> None:
        """Open the metadata and serve it; where a part fails, those before it are stopped again.

        Raises:
            Unavailable: The data directory or the port is in use, or cannot be used; or PostgreSQL
                cannot be reached.
            InvalidArgument: The directory is something else, or PostgreSQL's metadata is of an
                embedded server.
            Internal: The metadata cannot be opened.
        """
        settings = self.settings
        with ExitStack() as started:
            security = service_security(settings)
            metadata, store_id, holds, disk = _open(settings, started, self._nodes_here)
            if security.token is None and not (security.tls and security.tls.is_mutual):
                _warn_of_tokens(metadata)
            waiting_max = settings.limits.calls_waiting_max
            self.service = MetadataService(
                metadata,
                store_id,
                settings.listen,
                waiting_max,
                holds,
                security,
                lambda: None if disk is None else disk.refusal,
            )
            self.service.start()
            self.tls = security.tls
            started.callback(self.service.stop, settings.drain_seconds)
            self.address = self.service.address
            self._stop = started.pop_all()

    @property
    def ready_line(self) -> str:
        """The line on standard output when it serves."""
        return f"wings metadata ready grpc={self.address}"


def _warn_of_tokens(metadata: Metadata) -> None:
    if metadata.tokens.changes():
        _logger.warning(
            "this log has tokens, but any process that reaches this service can change them: set "
            "WINGS_CLUSTER_TOKEN, or mutual TLS"
        )


def _open(
    settings: MetadataSettings, started: ExitStack, nodes_here: bool
) -> tuple[Metadata, str, Replica, DiskGuard | None]:
    """Open what is served, closed with `started`: metadata, its id, and a replica of holds.

    And what watches the disk, where they are on one.
    """
    if settings.metadata_url is not None:
        url = settings.metadata_url.get_secret_value()
        metadata = started.enter_context(closing(open_postgres(url)))
        store_id = metadata.claim_for_service()
        # Beside the metadata; where several services share that, one of them has it at a time.
        return metadata, store_id, started.enter_context(closing(open_standby(url))), None
    directory = started.enter_context(DataDirectory.open(settings.data_dir, "metadata"))
    # First: on a full disk its reserve is what the others open with.
    disk = DiskGuard(directory.path, settings.limits.disk_free_bytes_min, directory.reserve)
    started.callback(disk.close)
    metadata = started.enter_context(SqliteMetadata(directory.metadata))
    if nodes_here and directory.is_unused():
        metadata.maintenance.drop_leases()  # Of nodes that have all ended.
    # Nodes may be given this directory too, which may have been an embedded server's.
    directory.bind(metadata.store_id, own=True)
    groups = partial(all_groups, metadata.admin, metadata.groups)
    replica = started.enter_context(closing(open_replica(directory.holds, groups)))
    return metadata, metadata.store_id, replica, disk


class HoldServer(_NodesService):
    """A replica of holds over a data directory or PostgreSQL; `start`, then `stop`, once each.

    Attributes:
        settings: The settings.
        replica: The replica, after `start`.
        address: Address with the actual port, after `start`.
    """

    replica: Replica

    def __init__(self, settings: HoldSettings) -> None:
        self.settings = settings
        self._stop = ExitStack()

    def start(self) -> None:
        """Open the replica and serve it; on a failure, the parts already started are stopped.

        Raises:
            Unavailable: The data directory or the port is in use or unusable, PostgreSQL cannot be
                reached, or another process serves its replica.
            InvalidArgument: The path is not a data directory, or PostgreSQL is unsuitable.
            Internal: The holds cannot be opened.
        """
        settings = self.settings
        with ExitStack() as started:
            security = service_security(settings)
            replica = self.replica = Replica(_store_of(settings, started))
            started.enter_context(closing(replica))
            replica.open()
            service = GrpcService([hold_service(self.replica)], settings.listen, security)
            self.tls = security.tls
            service.start()
            started.callback(service.stop, settings.drain_seconds)
            self.address = service.address
            self._stop = started.pop_all()

    @property
    def ready_line(self) -> str:
        """Line printed on standard output when ready."""
        return f"wings holds ready grpc={self.address}"


def _store_of(settings: HoldSettings, started: ExitStack) -> Callable[[], HoldStore]:
    if settings.holds_url is not None:
        url = settings.holds_url.get_secret_value()
        return lambda: open_postgres_store(url, settings.holds_schema)
    directory = started.enter_context(DataDirectory.open(settings.data_dir, "metadata"))
    # For its reserve, so that acknowledgements work on a full disk.
    disk = DiskGuard(directory.path, settings.limits.disk_free_bytes_min, directory.reserve)
    started.callback(disk.close)
    return lambda: SqliteHoldStore(directory.holds)


def rebuild_directory(path: Path, metadata_url: str | None) -> Rebuilt:
    """Rebuild the holds of a data directory; see `rebuild_holds`.

    Raises:
        Unavailable: A server has the directory open.
        InvalidArgument: The path is not a data directory, or its metadata is elsewhere.
        AlreadyExists: The holds are sound.
        Internal: The metadata cannot be read.
    """
    DataDirectory.open_read_only(path).close()  # Raises instead of creating a directory.
    with DataDirectory.open(path, "metadata") as directory:
        groups: list[ShareGroup] = []
        if has_metadata(directory):
            with closing(open_metadata(directory, metadata_url, read_only=True)) as metadata:
                groups = all_groups(metadata.admin, metadata.groups)
        return rebuild_holds(directory.holds, groups)


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
