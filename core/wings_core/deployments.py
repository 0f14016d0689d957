"""The two deployments of a log, which build the parts that differ between them.

OneDirectory           pages in a data directory; metadata in it, in PostgreSQL, or at a service
PostgresAndObjects     metadata in PostgreSQL, pages in an object store, nothing on disk
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Protocol

from wings_core.data_directory import DataDirectory
from wings_core.limits import Limits
from wings_core.metadata.interfaces import Metadata
from wings_core.metadata.open import open_metadata
from wings_core.share.open import EmbeddedCoordinator, OpenCoordinator, all_groups
from wings_core.storage.disk import DiskGuard
from wings_core.storage.inline_folios import InlineFolios
from wings_core.storage.open import Storage, open_shared_storage, open_storage

if TYPE_CHECKING:
    from wings_core.metadata.postgres import PostgresMetadata
    from wings_core.metadata.remote import RemoteMetadata

JOIN_SECONDS_MAX = 30.0
"""How long a node waits at its start for the metadata service."""

SHARED_GRACE_SECONDS = 300.0
"""Age that a segment reaches before nodes that share a directory delete it, so that the commit of a
node that has ended is not refused in vain. A later one is; see `OffsetRegistry.retire`."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a log that depend on its deployment; the log closes them."""

    metadata: Metadata
    storage: Storage
    open_coordinator: OpenCoordinator | None = None
    """Opens the coordinator of share groups; None: share groups are refused."""
    disk: DiskGuard | None = None
    """Watches the data directory's disk; None: no disk is watched."""
    drain_holder: str | None = None
    """The name by which this process takes the drain's lease again after a crash, at once. None:
    the process is one of several, and waits until the lease of the crashed one expires."""

    def close(self) -> None:
        """Close storage, metadata and the watch of the disk.

        Raises:
            Internal: The disk failed. All are closed, and what was acknowledged is durable.
        """
        with ExitStack() as closed:
            if self.disk is not None:
                closed.callback(self.disk.close)
            closed.callback(self.metadata.close)
            closed.callback(self.storage.store.close)


class Deployment(Protocol):
    """A place that a log is opened at."""

    def open(self, limits: Limits) -> Parts:
        """Open the parts of a log.

        Raises:
            Internal: The metadata cannot be opened.
            Unavailable: PostgreSQL, the metadata service or the object store cannot be reached.
            PermissionDenied: The object store does not take the credentials.
            InvalidArgument: The metadata or the pages belong to another log; see `open_metadata`,
                `open_storage` and `open_shared_storage`.
        """
        ...


@dataclass(frozen=True, slots=True)
class OneDirectory:
    """A data directory."""

    directory: DataDirectory
    """Locked by the caller; of a node, opened for its pages."""
    metadata: "RemoteMetadata | str | None" = field(default=None, repr=False)
    """A metadata service, whose node this process is then, or the URL of PostgreSQL; None: the
    directory's own file. The log closes the service's connection."""
    hot: str | None = None
    """The URL of the object store that new pages go to, the same for all nodes; None: that of
    before, at first segments in the directory."""
    remote: str | None = None
    """The URL of the object store that old pages go to; None: that of before, at first that of new
    pages."""
    open_coordinator: OpenCoordinator | None = None
    """Opens the coordinator of share groups. None: its only replica is in the directory, and a node
    refuses share groups."""

    def open(self, limits: Limits) -> Parts:
        """See `Deployment.open`; a node waits up to `JOIN_SECONDS_MAX` for its service."""
        if self.metadata is None or isinstance(self.metadata, str):
            return self._open_alone(limits, self.metadata)
        return self._open_as_node(limits, self.metadata)

    def _open_alone(self, limits: Limits, url: str | None) -> Parts:
        directory = self.directory
        with ExitStack() as opened:
            # First: on a full disk its reserve is what the others open with.
            disk = DiskGuard(directory.path, limits.disk_free_bytes_min, directory.reserve)
            opened.callback(disk.close)
            metadata = open_metadata(directory, url)
            opened.callback(metadata.close)
            # The metadata is in this directory or bound to it, and so are the pages.
            directory.bind(metadata.store_id, own=True)
            storage = self._storage(limits, metadata, lambda: metadata.store_id, grace_seconds=0.0)
            opened.pop_all()
        groups = partial(all_groups, metadata.admin, metadata.groups)
        own = partial(EmbeddedCoordinator.open, directory.holds, groups)
        return Parts(metadata, storage, self.open_coordinator or own, disk, "embedded")

    def _open_as_node(self, limits: Limits, metadata: "RemoteMetadata") -> Parts:
        store_id = metadata.store_id(JOIN_SECONDS_MAX)
        self.directory.bind(store_id)
        storage = self._storage(limits, metadata, lambda: store_id, SHARED_GRACE_SECONDS)
        # Without the reserve, which nodes do not share: deletes are the metadata service's.
        disk = DiskGuard(
            self.directory.path,
            limits.disk_free_bytes_min,
            None,
            elsewhere=lambda: metadata.nodes.refusal,
        )
        return Parts(metadata, storage, self.open_coordinator, disk)

    def _storage(
        self,
        limits: Limits,
        metadata: Metadata,
        store_id: Callable[[], str],
        grace_seconds: float,
    ) -> Storage:
        return open_storage(
            self.directory,
            limits,
            hot_url=self.hot,
            remote_url=self.remote,
            inline=InlineFolios(metadata.registry.read_inline),
            store_id=store_id,
            grace_seconds=grace_seconds,
        )


@dataclass(frozen=True, slots=True)
class PostgresAndObjects:
    """PostgreSQL and an object store, which any number of nodes share."""

    metadata: "PostgresMetadata"
    """Closed with the log."""
    store_id: str
    """The id that `claim_for_nodes` returned."""
    hot: str | None = None
    """The URL of the object store that new pages go to; None: that of the other nodes."""
    remote: str | None = None
    """The URL of the object store that old pages go to; None: that of the other nodes, at first
    that of new pages."""
    open_coordinator: OpenCoordinator | None = None
    """Opens the coordinator of share groups; None: share groups are refused."""

    def open(self, limits: Limits) -> Parts:
        """See `Deployment.open`."""
        storage = open_shared_storage(
            self.metadata,
            limits,
            hot_url=self.hot,
            remote_url=self.remote,
            inline=InlineFolios(self.metadata.registry.read_inline),
            store_id=lambda: self.store_id,
        )
        return Parts(self.metadata, storage, self.open_coordinator)
