"""The metadata service as a process of its own."""

from contextlib import ExitStack, closing
from functools import partial

import structlog

from wings_core.data_directory import DataDirectory
from wings_core.metadata.interfaces import Metadata
from wings_core.metadata.open import open_postgres
from wings_core.metadata.sqlite import SqliteMetadata
from wings_core.share.open import all_groups, open_replica, open_standby
from wings_core.share.replica.requests import HoldReplica
from wings_core.storage.disk import DiskGuard
from wings_server.exposure import service_security
from wings_server.metadata.service import MetadataService
from wings_server.settings import Address, MetadataSettings
from wings_server.tls import Tls

_logger = structlog.get_logger("wings.metadata")


class MetadataServer:
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
    address: Address
    tls: Tls | None = None

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

    def reload(self) -> None:
        """Read the certificate again, where there is one."""
        if self.tls is not None:
            self.tls.reload()

    def stop(self) -> None:
        """Drain and stop; a commit whose response was lost can be retried elsewhere."""
        self._stop.close()


def _warn_of_tokens(metadata: Metadata) -> None:
    if metadata.tokens.changes():
        _logger.warning(
            "this log has tokens, but any process that reaches this service can change them: set "
            "WINGS_CLUSTER_TOKEN, or mutual TLS"
        )


def _open(
    settings: MetadataSettings, started: ExitStack, nodes_here: bool
) -> tuple[Metadata, str, HoldReplica, DiskGuard | None]:
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
