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
from wings_core.share.coordinator.coordinator import Replicas
from wings_core.share.open import OpenReplicas, all_groups, open_replica
from wings_core.storage.disk import DiskGuard
from wings_core.storage.inline_folios import InlineFolios
from wings_core.storage.open import Storage, open_shared_storage, open_storage

if TYPE_CHECKING:
    from wings_core.metadata.postgres import PostgresMetadata
    from wings_core.metadata.remote import RemoteMetadata

JOIN_SECONDS_MAX = 30.0
"""Longest time that a starting node waits for the metadata service."""

SHARED_GRACE_SECONDS = 300.0
"""Least age of a segment before nodes that share a directory delete it, so that the commit of a
node that has ended can finish. A later commit is rejected; see `OffsetRegistry.retire`."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a log that depend on its deployment; the log closes them."""

    metadata: Metadata
    storage: Storage
    open_replicas: OpenReplicas | None = None
    """Opens the replicas of share groups; None if they are not supported."""
    disk: DiskGuard | None = None
    """Watches the data directory's disk; None without one."""
    drain_holder: str | None = None
    """Holder of the drain's lease, the same after a restart, which regains it at once. None for
    one of several processes, which waits until the lease of a crashed one expires."""

    def close(self) -> None:
        """Close storage, metadata and the disk guard.

        Raises:
            Internal: The disk failed. Everything is closed, and acknowledged messages are durable.
        """
        with ExitStack() as closed:
            if self.disk is not None:
                closed.callback(self.disk.close)
            closed.callback(self.metadata.close)
            closed.callback(self.storage.store.close)


class Deployment(Protocol):
    """A way of deploying a log."""

    def open(self, limits: Limits) -> Parts:
        """Open the parts of a log.

        Raises:
            Internal: The metadata cannot be opened.
            Unavailable: PostgreSQL, the metadata service or the object store cannot be reached.
            PermissionDenied: The object store rejects the credentials.
            InvalidArgument: The metadata or the pages belong to another log; see `open_metadata`,
                `open_storage` and `open_shared_storage`.
        """
        ...


@dataclass(frozen=True, slots=True)
class OneDirectory:
    """A data directory."""

    directory: DataDirectory
    """The directory, opened by the caller; by a node, for its pages."""
    metadata: "RemoteMetadata | str | None" = field(default=None, repr=False)
    """A metadata service, if this process is a node of it, or the URL of PostgreSQL; None for the
    directory's own file. The log closes the connection."""
    hot: str | None = None
    """URL of the object store for new pages, the same for all nodes; None for the recorded one,
    initially segments in the directory."""
    remote: str | None = None
    """URL of the object store for old pages; None for the recorded one, initially that of new
    pages."""
    open_replicas: OpenReplicas | None = None
    """Opens the replicas of share groups. None for one in the directory, or, on a node, for no
    share groups."""

    def open(self, limits: Limits) -> Parts:
        """See `Deployment.open`; a node waits up to `JOIN_SECONDS_MAX` for its service."""
        if self.metadata is None or isinstance(self.metadata, str):
            return self._open_alone(limits, self.metadata)
        return self._open_as_node(limits, self.metadata)

    def _open_alone(self, limits: Limits, url: str | None) -> Parts:
        directory = self.directory
        with ExitStack() as opened:
            # First: on a full disk, the other parts need its reserve to open.
            disk = DiskGuard(directory.path, limits.disk_free_bytes_min, directory.reserve)
            opened.callback(disk.close)
            metadata = open_metadata(directory, url)
            opened.callback(metadata.close)
            # The metadata is in this directory or bound to it, as are the pages.
            directory.bind(metadata.store_id, own=True)
            storage = self._storage(limits, metadata, lambda: metadata.store_id, grace_seconds=0.0)
            opened.pop_all()
        groups = partial(all_groups, metadata.admin, metadata.groups)
        own = self.open_replicas or (lambda: Replicas(own=open_replica(directory.holds, groups)))
        return Parts(metadata, storage, own, disk, "embedded")

    def _open_as_node(self, limits: Limits, metadata: "RemoteMetadata") -> Parts:
        store_id = metadata.store_id(JOIN_SECONDS_MAX)
        self.directory.bind(store_id)
        storage = self._storage(limits, metadata, lambda: store_id, SHARED_GRACE_SECONDS)
        # Without a reserve, which nodes do not share: the metadata service runs deletes.
        disk = DiskGuard(
            self.directory.path,
            limits.disk_free_bytes_min,
            None,
            elsewhere=lambda: metadata.nodes.refusal,
        )
        return Parts(metadata, storage, self.open_replicas, disk)

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
    """PostgreSQL and an object store, shared by any number of nodes."""

    metadata: "PostgresMetadata"
    """The metadata, closed with the log."""
    store_id: str
    """The id that `claim_for_nodes` returned."""
    hot: str | None = None
    """URL of the object store for new pages; None for that of the other nodes."""
    remote: str | None = None
    """URL of the object store for old pages; None for that of the other nodes, initially that of
    new pages."""
    open_replicas: OpenReplicas | None = None
    """Opens the replicas of share groups; None if they are not supported."""

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
        return Parts(self.metadata, storage, self.open_replicas)
