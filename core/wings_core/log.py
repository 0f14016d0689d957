"""The log: metadata, storage, ingest and fetch put together over one data directory."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self

from wings_core import tracing
from wings_core.backup.backups import Backups
from wings_core.data_directory import DataDirectory
from wings_core.fetch.fetcher import Fetcher
from wings_core.fetch.many import ManyReader
from wings_core.ingest.group_commit import FlushReport, GroupCommit
from wings_core.latest import Latest
from wings_core.limits import Limits
from wings_core.maintain import Maintainer, Tiering
from wings_core.maintain.drain import FLUSH_BYTES_MAX, LINGERING_FLUSH_BYTES_MAX, Drain
from wings_core.memory import MemoryBudget
from wings_core.metadata.grouping import current_group
from wings_core.metadata.interfaces import (
    Admin,
    Groups,
    Metadata,
    Nodes,
    OffsetRegistry,
    Shards,
    Stages,
    Tokens,
)
from wings_core.metadata.maintenance import Maintenance
from wings_core.metadata.open import open_metadata
from wings_core.model import Aborted, Node, Topic
from wings_core.names import TopicName
from wings_core.partitions import Partition
from wings_core.reclaim import Reclaimer
from wings_core.schema_versions import SchemaVersions
from wings_core.share.acceptance import finished_by_all
from wings_core.share.dead_letters.redrive import Redriver
from wings_core.share.dead_letters.writer import DeadLetterWriter
from wings_core.share.delivery.record_fetcher import LogSource, RecordFetcher
from wings_core.share.delivery.times import LogTimes
from wings_core.share.open import (
    EmbeddedCoordinator,
    OpenCoordinator,
    all_groups,
    no_coordinator,
    open_remote,
)
from wings_core.share.replica.copies import FileCopies, HoldsCopies, ReplicaCopies
from wings_core.share.shares import Shares
from wings_core.sql import Sql
from wings_core.storage.disk import DiskGuard
from wings_core.storage.inline_folios import InlineFolios
from wings_core.storage.interfaces import FolioStore
from wings_core.storage.open import Storage, open_shared_storage, open_storage
from wings_core.tables import Catalog, Tables, open_catalog
from wings_core.traffic import Traffic

if TYPE_CHECKING:
    from wings_core.metadata.postgres import PostgresMetadata
    from wings_core.metadata.remote import RemoteMetadata
    from wings_core.security.peers import PeerAccess

JOIN_SECONDS_MAX = 30.0
"""How long a node waits at its start for the metadata service."""

SHARED_GRACE_SECONDS = 300.0
"""How old a segment is at least before nodes that share a directory delete it, so that the commit
of a node that has ended is not refused in vain. A later one is: see `OffsetRegistry.retire`."""


TIER_AFTER_MS = 3_600_000
"""The age at which messages move to a remote store, where their topic does not say, in ms."""


class Log:
    """All parts of an embedded log, opened and closed together.

    Attributes:
        admin: Namespaces and topics.
        registry: The index of offsets.
        stages: What is durable and not visible yet.
        shards: What is read into the log once, such as files.
        nodes: The Flight nodes that are there, where several share the metadata.
        tokens: What principals present.
        maintenance: Moves and drops old pages, when the maintainer says so.
        store: The pages.
        storage: Where they are, for metrics.
        disk: Watches the data directory's disk; None: nothing does.
        drain: Moves what small flushes left in metadata to the store; None: nothing is left there.
        memory: The budget of what comes in.
        group_commit: The way in.
        versions: Finds versions of schemas that came after a reader or writer.
        latest: What was pushed here last.
        fetcher: The way out.
        many: The way out of many partitions as one stream.
        shares: Share groups.
        sql: Runs SQL over the topics.
        backups: Those that are being taken at this process.
        table_states: What metadata keeps of tables.
        tables: Commits segments to the tables of topics; None: topics cannot be tables here.
        limits: The bounds in force.
        maintainer: Moves what is old, and drops what is kept no longer.
        reclaimer: Frees the disk space of what nothing refers to any more.
    """

    def __init__(
        self,
        metadata: Metadata,
        storage: Storage,
        limits: Limits,
        on_flush: Callable[[FlushReport], None] | None = None,
        open_coordinator: OpenCoordinator | None = None,
        drain_holder: str | None = None,
        disk: DiskGuard | None = None,
        open_tables: Callable[[str], Catalog | None] | None = None,
        holds: HoldsCopies | None = None,
        scratch: Path | None = None,
    ) -> None:
        store = storage.store
        self.disk = disk
        self.admin: Admin = metadata.admin
        self.registry: OffsetRegistry = metadata.registry
        self.stages: Stages = metadata.stages
        self.shards: Shards = metadata.shards
        self.nodes: Nodes = metadata.nodes
        self.tokens: Tokens = metadata.tokens
        self.maintenance: Maintenance = metadata.maintenance
        self.storage = storage
        self.store: FolioStore = store
        self.limits = limits
        self.traffic = Traffic()
        self.drain: Drain | None = None
        if storage.inline is not None:
            self.drain = Drain(
                metadata,
                storage.inline,
                store,
                limits.inline_bytes_max,
                LINGERING_FLUSH_BYTES_MAX if storage.lingers else FLUSH_BYTES_MAX,
                drain_holder,
            )
        self.memory = MemoryBudget(limits.memory_bytes_max, limits.batch_bytes_max)
        self.latest = latest = Latest()
        self.group_commit = GroupCommit(
            store,
            self.registry,
            limits,
            on_flush,
            lingers=storage.lingers,
            inline=self.drain,
            check_room=None if disk is None else disk.check,
            on_room=self.memory.came_free,
            latest=latest,
        )
        self.memory.count(lambda: self.group_commit.pending_bytes)
        self.versions = SchemaVersions(self.admin)
        self.fetcher = Fetcher(store, self.registry, limits, self.versions, latest)
        self.many = ManyReader(store, self.registry, limits, self.fetcher.waits, self.versions)
        self._metadata = metadata
        self.alone: Node | None = None
        """Where the only process of the log is reached; None: it is one of the nodes."""
        self.reclaimer = Reclaimer(
            self.registry, self.stages, storage.stores, limits.stage_seconds_max
        )
        tiering = Tiering(
            self.registry,
            self.maintenance,
            store,
            storage.remote,
            TIER_AFTER_MS if "remote" in storage.objects else None,
            has_room=lambda: bool(storage.objects) or disk is None or disk.refusal is None,
            versions=self.versions,
        )
        self.sql = Sql(self)
        self.tables: Tables | None = None
        catalog = None if open_tables is None else open_tables(storage.remote.objects.url)
        self.table_states = metadata.tables
        if catalog is not None:
            self.tables = Tables(metadata, metadata.tables, catalog, storage.remote.objects)
        try:
            self.shares = _open_shares(metadata.groups, self, open_coordinator)
        except BaseException:
            self._close_parts()
            raise
        groups = partial(all_groups, metadata.admin, metadata.groups)
        holds = holds or ReplicaCopies(groups, self.shares.stored)
        self.backups = Backups(metadata, holds, storage.places, self.reclaimer.wake, scratch)
        self.maintainer = Maintainer(
            metadata,
            limits.maintenance_seconds,
            self.reclaimer.wake,
            tiering,
            drain=None if self.drain is None else self.drain.run,
            finished=partial(finished_by_all, metadata.groups, self.shares.describe),
            tables=self.tables,
        )

    def pushed_in(
        self, topic: Topic, partition: Partition, first: int, last: int
    ) -> Sequence[Mapping[str, str]]:
        """Return the headers of the spans in which messages were pushed, as far as known.

        Of pushes to this process, lately and while traces are on; see `tracing.RecentPushes`.
        """
        if not tracing.is_on():
            return ()
        return self.group_commit.recent.find(topic.uuid, partition, first, last)

    @classmethod
    def open(
        cls,
        directory: DataDirectory,
        limits: Limits | None = None,
        on_flush: Callable[[FlushReport], None] | None = None,
        metadata_url: str | None = None,
        hot_url: str | None = None,
        hold_replicas: Sequence[str] = (),
        remote_url: str | None = None,
        access: "PeerAccess | None" = None,
        *,
        with_tables: bool = False,
        iceberg_catalog: str | None = None,
    ) -> Self:
        """Open the log of a data directory that the caller has locked.

        Args:
            directory: Where it lies.
            limits: The bounds in force.
            on_flush: Called after each group commit, on the thread that ran it.
            metadata_url: Where PostgreSQL is, if metadata is there.
            hot_url: The object store that new pages go to, if not to segments; see `open_storage`.
            hold_replicas: `HOST:PORT` of the replicas of share groups' holds; none: the only one is
                in the data directory.
            remote_url: The one that old pages go to.
            access: What is presented to replicas of holds.
            with_tables: Whether topics may be tables; else those that are wait.
            iceberg_catalog: The URL of a REST catalog of the tables of topics; None: the metadata's
                PostgreSQL, or `iceberg.sqlite` in the directory.

        Raises:
            Internal: Its metadata cannot be opened.
            Unavailable: PostgreSQL or the object store cannot be reached.
            PermissionDenied: The object store does not take the credentials.
            InvalidArgument: The directory's metadata is somewhere else; see `open_metadata`. Or its
                pages are; see `open_storage`.
        """
        limits = limits or Limits()
        # First: on a full disk its reserve is what the others open with.
        disk = DiskGuard(directory.path, limits.disk_free_bytes_min, directory.reserve)
        with ExitStack() as opened:
            opened.callback(disk.close)
            log = cls._open(
                directory,
                limits,
                on_flush,
                metadata_url,
                hot_url,
                hold_replicas,
                remote_url,
                access,
                disk,
                with_tables=with_tables,
                iceberg_catalog=iceberg_catalog,
            )
            opened.pop_all()
        return log

    @classmethod
    def _open(
        cls,
        directory: DataDirectory,
        limits: Limits,
        on_flush: Callable[[FlushReport], None] | None,
        metadata_url: str | None,
        hot_url: str | None,
        hold_replicas: Sequence[str],
        remote_url: str | None,
        access: "PeerAccess | None",
        disk: DiskGuard,
        *,
        with_tables: bool,
        iceberg_catalog: str | None,
    ) -> Self:
        metadata = open_metadata(directory, metadata_url)
        try:
            # It is this directory's: in it, or bound to it; so are its pages.
            directory.bind(metadata.store_id, own=True)
            storage = open_storage(
                directory,
                limits,
                hot_url=hot_url,
                remote_url=remote_url,
                inline=InlineFolios(metadata.registry.read_inline),
                store_id=lambda: metadata.store_id,
            )
        except BaseException:
            metadata.close()
            raise
        groups = partial(all_groups, metadata.admin, metadata.groups)
        open_coordinator = partial(EmbeddedCoordinator.open, directory.holds, groups)
        if hold_replicas:
            open_coordinator = partial(open_remote, hold_replicas, access)
        # The only process of this metadata: after a crash it drains at once.
        tables = partial(
            open_catalog,
            sqlite=_sqlite_catalog(directory),
            postgres=metadata_url,
            rest=iceberg_catalog,
        )
        return cls(
            metadata,
            storage,
            limits,
            on_flush,
            open_coordinator,
            "embedded",
            disk,
            tables if with_tables else None,
            None if hold_replicas else FileCopies(directory.holds),
            directory.path,
        )

    @classmethod
    def join(
        cls,
        directory: DataDirectory,
        metadata: "RemoteMetadata",
        limits: Limits | None = None,
        on_flush: Callable[[FlushReport], None] | None = None,
        hot_url: str | None = None,
        hold_replicas: Sequence[str] = (),
        remote_url: str | None = None,
        access: "PeerAccess | None" = None,
        *,
        iceberg_catalog: str | None = None,
    ) -> Self:
        """Open the log of a node: metadata at a service, pages in a directory shared with others.

        Waits up to `JOIN_SECONDS_MAX` for the service.

        Args:
            directory: Opened for its pages.
            metadata: Closed with the log.
            limits: The bounds in force.
            on_flush: Called after each group commit, on the thread that ran it.
            hot_url: The object store that new pages go to, if not to segments; the same for all
                nodes.
            hold_replicas: `HOST:PORT` of the replicas of share groups' holds; the same for all
                nodes. None: share groups are refused.
            remote_url: The one that old pages go to; the same for all nodes.
            access: What is presented to replicas of holds.
            iceberg_catalog: The URL of a REST catalog of the tables of topics, the same for all
                nodes. None: it is `iceberg.sqlite` in the directory; with an object store for new
                pages the directory may be each node's own, and topics cannot be tables.

        Raises:
            Unavailable: The service or the object store cannot be reached.
            Internal: What answers is no metadata service.
            PermissionDenied: The object store does not take the credentials.
            InvalidArgument: The directory's pages belong to other metadata; see `open_storage`.
        """
        limits = limits or Limits()
        store_id = metadata.store_id(JOIN_SECONDS_MAX)
        directory.bind(store_id)
        storage = open_storage(
            directory,
            limits,
            hot_url=hot_url,
            remote_url=remote_url,
            inline=InlineFolios(metadata.registry.read_inline),
            store_id=lambda: store_id,
            grace_seconds=SHARED_GRACE_SECONDS,
        )
        open_coordinator = partial(open_remote, hold_replicas, access) if hold_replicas else None
        # The reserve is not for several nodes to share: deletes are the metadata service's.
        disk = DiskGuard(
            directory.path,
            limits.disk_free_bytes_min,
            None,
            elsewhere=lambda: metadata.nodes.refusal,
        )
        try:
            return cls(
                metadata,
                storage,
                limits,
                on_flush,
                open_coordinator,
                disk=disk,
                open_tables=(
                    partial(open_catalog, sqlite=_sqlite_catalog(directory), rest=iceberg_catalog)
                    if iceberg_catalog is not None or "hot" not in storage.objects
                    else None
                ),
            )
        except BaseException:
            disk.close()
            raise

    @classmethod
    def share(
        cls,
        metadata: "PostgresMetadata",
        store_id: str,
        limits: Limits | None = None,
        on_flush: Callable[[FlushReport], None] | None = None,
        hot_url: str | None = None,
        open_coordinator: OpenCoordinator | None = None,
        remote_url: str | None = None,
        open_tables: Callable[[str], Catalog | None] | None = None,
        holds: HoldsCopies | None = None,
    ) -> Self:
        """Open the log of a node without a data directory: PostgreSQL and an object store hold all.

        Args:
            metadata: Closed with the log.
            store_id: What `claim_for_nodes` returned.
            limits: The bounds in force.
            on_flush: Called after each group commit, on the thread that ran it.
            hot_url: The object store that new pages go to; None for that of the other nodes.
            open_coordinator: Opens what leases the messages of share groups; None: they are
                refused.
            remote_url: The object store that old pages go to; None for that of the other nodes, at
                first that of new ones.
            open_tables: Opens the catalog of tables, given the URL of the store of old pages; None:
                topics cannot be tables.
            holds: What share groups have finished, for backups; None: it is at the coordinator's
                replicas.

        Raises:
            Unavailable: PostgreSQL or the object store cannot be reached.
            PermissionDenied: The object store does not take the credentials.
            InvalidArgument: See `open_shared_storage`.
        """
        limits = limits or Limits()
        storage = open_shared_storage(
            metadata,
            limits,
            hot_url=hot_url,
            remote_url=remote_url,
            inline=InlineFolios(metadata.registry.read_inline),
            store_id=lambda: store_id,
        )
        return cls(
            metadata,
            storage,
            limits,
            on_flush,
            open_coordinator,
            open_tables=open_tables,
            holds=holds,
        )

    def live_nodes(self) -> list[Node]:
        """Return the processes that serve this log, by address."""
        return self.nodes.live() if self.alone is None else [self.alone]

    def delete_topic(self, name: TopicName) -> Topic:
        """Delete a topic; its disk space is freed in the background.

        Raises:
            TopicNotFound: There is none of this name.
        """
        groups = self.shares.of_topic(name)
        topic = self.admin.delete_topic(name)
        self.reclaimer.wake()
        self.shares.forget_topic(groups)
        return topic

    def abort_stages(
        self,
        writer: str,
        stages: Sequence[str],
        batch: int | None = None,
        prefix: str | None = None,
    ) -> Aborted:
        """Delete stages; their disk space is freed in the background.

        See `Stages.abort`.

        Raises:
            InvalidArgument: A writer or batch that cannot be.
        """
        aborted = self.stages.abort(writer, stages, batch, prefix)
        if aborted.stages:
            self.reclaimer.wake()
        return aborted

    def close(self) -> None:
        """Commit what was received, then close every part; readers must have ended."""
        self.backups.close()
        self.shares.close()
        self.maintainer.close()
        self._close_parts()

    def _close_parts(self) -> None:
        self.sql.close()
        if self.tables is not None:
            self.tables.close()
        self.group_commit.close()
        if self.drain is not None:
            self.drain.close()
        self.reclaimer.close()
        self.store.close()
        self._metadata.close()
        if self.disk is not None:
            self.disk.close()


def _sqlite_catalog(directory: DataDirectory) -> str:
    return str(directory.path.absolute() / "iceberg.sqlite")


def _open_shares(groups: Groups, log: Log, open_coordinator: OpenCoordinator | None) -> Shares:
    source = LogSource(log.fetcher, log.registry, store=log.store, latest=log.latest)
    records = RecordFetcher(source)
    letters = DeadLetterWriter(log.admin, log.group_commit, log.limits, records)
    coordinator = (
        no_coordinator()
        if open_coordinator is None
        else open_coordinator(
            log.registry,
            letters,
            log.fetcher.offsets_for_timestamps,
            partial(current_group, groups),
        )
    )
    redriver = Redriver(log.admin, log.registry, log.fetcher, log.group_commit, log.limits)
    times = LogTimes(log.fetcher, log.registry)
    return Shares(log.admin, groups, coordinator, records, redriver, log.limits, times)
