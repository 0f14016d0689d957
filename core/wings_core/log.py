"""The log: combines metadata, storage, ingest, fetch, maintenance and share groups."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Self

from wings_core import tracing
from wings_core.deployments import Deployment, Parts
from wings_core.fetch.fetcher import Fetcher
from wings_core.ingest.group_commit import FlushReport, GroupCommit
from wings_core.limits import Limits
from wings_core.maintain import Maintainer, TableCommits, Tiering
from wings_core.maintain.drain import FLUSH_BYTES_MAX, LINGERING_FLUSH_BYTES_MAX, Drain
from wings_core.memory import MemoryBudget
from wings_core.metadata.checks import current_group
from wings_core.metadata.interfaces import Admin, Nodes, OffsetRegistry, Shards, Stages, Tokens
from wings_core.metadata.maintenance import Maintenance
from wings_core.model import AbortResult, Node, Topic
from wings_core.names import TopicName
from wings_core.partitions import Partition
from wings_core.reclaim import Reclaimer
from wings_core.schema_versions import SchemaVersions
from wings_core.share.coordinator.coordinator import Coordinator, Replicas, ShareSource
from wings_core.share.dead_letters.redrive import Redriver
from wings_core.share.dead_letters.writer import DeadLetterWriter
from wings_core.share.delivery.record_fetcher import LogSource, LogTimes, RecordFetcher
from wings_core.share.open import OpenReplicas
from wings_core.share.progress import finished_by_all
from wings_core.share.shares import Shares, blame_topic
from wings_core.storage.interfaces import FolioStore
from wings_core.traffic import Traffic

TIER_AFTER_MS = 3_600_000
"""Default age in milliseconds at which messages move to a remote store of its own."""


class Log:
    """All parts of a log, opened and closed together.

    Args:
        parts: The parts that depend on the deployment; closed with the log, also if the constructor
            raises.
        limits: The bounds in force.
        on_flush: Called after each group commit, on the thread that ran it.
        tables: Commits segments to the tables of topics, closed with the log; with None, tables are
            not committed to.

    Attributes:
        metadata: The metadata; its parts are attributes as well.
        admin: Namespaces and topics.
        registry: The index of offsets.
        stages: Durable rows that are not visible yet.
        shards: The progress of exactly-once ingestion from files and other sources.
        nodes: The Flight nodes that share the metadata.
        tokens: The tokens of principals.
        maintenance: The operations of maintenance on metadata.
        store: The store of pages.
        storage: All stores of pages, for metrics.
        disk: Watches the data directory's disk; None without one.
        drain: Moves inline pages from metadata to the store; None if there are none.
        memory: The memory budget of pushes.
        group_commit: The queue that commits pushes.
        versions: Finds schema versions newer than a reader's or writer's topic.
        fetcher: Reads partitions, one or many.
        shares: Share groups.
        limits: The bounds in force.
        maintainer: Moves old messages, and deletes expired ones.
        reclaimer: Frees the disk space of unreferenced folios.
        alone: Address of the log's only process; None for one of several nodes.
    """

    def __init__(
        self,
        parts: Parts,
        limits: Limits | None = None,
        on_flush: Callable[[FlushReport], None] | None = None,
        tables: TableCommits | None = None,
    ) -> None:
        self._parts = parts
        self.limits = limits = limits or Limits()
        self.metadata = metadata = parts.metadata
        self.admin: Admin = metadata.admin
        self.registry: OffsetRegistry = metadata.registry
        self.stages: Stages = metadata.stages
        self.shards: Shards = metadata.shards
        self.nodes: Nodes = metadata.nodes
        self.tokens: Tokens = metadata.tokens
        self.maintenance: Maintenance = metadata.maintenance
        self.storage = storage = parts.storage
        self.store: FolioStore = storage.store
        self.disk = disk = parts.disk
        self.alone: Node | None = None
        self.traffic = Traffic()
        self.drain: Drain | None = self._open_drain(parts.drain_holder)
        self.memory = MemoryBudget(limits.memory_bytes_max, limits.batch_bytes_max)
        self.group_commit = GroupCommit(
            self.store,
            self.registry,
            limits,
            on_flush,
            lingers=storage.lingers,
            inline=self.drain,
            check_room=None if disk is None else disk.check,
            on_room=self.memory.came_free,
        )
        self.memory.count(lambda: self.group_commit.pending_bytes)
        self.versions = SchemaVersions(self.admin)
        self.fetcher = Fetcher(self.store, self.registry, limits, self.versions)
        self.reclaimer = Reclaimer(
            self.registry, self.stages, storage.stores, limits.stage_seconds_max
        )
        try:
            self.shares = self._open_shares(parts.open_replicas)
        except BaseException:
            if tables is not None:
                tables.close()
            self._close_parts()
            raise
        self.maintainer = Maintainer(
            metadata,
            limits.maintenance_seconds,
            self.reclaimer.wake,
            self._tiering(),
            drain=None if self.drain is None else self.drain.run,
            finished=partial(
                finished_by_all, metadata.groups, self.shares.coordinator.positions.describe
            ),
            tables=tables,
            stores=storage.objects.values(),
        )

    @classmethod
    def open(
        cls,
        deployment: Deployment,
        limits: Limits | None = None,
        on_flush: Callable[[FlushReport], None] | None = None,
    ) -> Self:
        """Open the log of a deployment, without commits to tables.

        Raises:
            WingsError: The errors of `Deployment.open`.
        """
        limits = limits or Limits()
        return cls(deployment.open(limits), limits, on_flush)

    def _open_drain(self, holder: str | None) -> Drain | None:
        """Return the drain of inline pages; None if there are none."""
        if self.storage.inline is None:
            return None
        return Drain(
            self.metadata,
            self.storage.inline,
            self.store,
            self.limits.inline_bytes_max,
            LINGERING_FLUSH_BYTES_MAX if self.storage.lingers else FLUSH_BYTES_MAX,
            self.limits.inline_seconds,
            holder,
        )

    def _tiering(self) -> Tiering:
        disk, objects = self.disk, self.storage.objects
        return Tiering(
            self.registry,
            self.maintenance,
            self.store,
            self.storage.remote,
            TIER_AFTER_MS if "remote" in objects else None,
            has_room=lambda size: bool(objects) or disk is None or disk.may_merge(size),
            versions=self.versions,
        )

    def _open_shares(self, open_replicas: OpenReplicas | None) -> Shares:
        groups = self.metadata.groups
        records = RecordFetcher(LogSource(self.fetcher, self.registry, store=self.store))
        letters = DeadLetterWriter(self.admin, self.group_commit, self.limits, records)
        source = ShareSource(
            self.registry,
            self.fetcher.offsets_for_timestamps,
            letters,
            partial(current_group, groups),
            LogTimes(self.fetcher, self.registry),
            partial(blame_topic, self.admin, groups),
        )
        replicas = Replicas() if open_replicas is None else open_replicas()
        coordinator = Coordinator(replicas, source)
        redriver = Redriver(self.admin, self.registry, self.fetcher, self.group_commit, self.limits)
        return Shares(self.admin, groups, coordinator, records, redriver, self.limits)

    def pushed_in(
        self, topic: Topic, partition: Partition, first: int, last: int
    ) -> Sequence[Mapping[str, str]]:
        """Return the trace headers of the spans that pushed messages.

        Only recent pushes to this process are known, while tracing is on; see
        `tracing.RecentPushes`.
        """
        if not tracing.is_on():
            return ()
        return self.group_commit.recent.find(topic.uuid, partition, first, last)

    def live_nodes(self) -> list[Node]:
        """Return the processes that serve this log, by address."""
        return self.nodes.live() if self.alone is None else [self.alone]

    def silent_nodes(self) -> list[Node]:
        """Return the processes that stopped without leaving, for a day, by address."""
        return self.nodes.silent() if self.alone is None else []

    def delete_topic(self, name: TopicName) -> Topic:
        """Delete a topic; its disk space is freed in the background.

        Raises:
            TopicNotFound: There is no topic of this name.
        """
        groups = self.shares.of_topic(name)
        topic = self.admin.delete_topic(name)
        self.reclaimer.wake()
        for group in groups:
            self.shares.coordinator.delete(group)
        return topic

    def abort_stages(
        self,
        writer: str,
        stages: Sequence[str],
        batch: int | None = None,
        prefix: str | None = None,
    ) -> AbortResult:
        """Delete stages; their disk space is freed in the background.

        See `Stages.abort`.

        Raises:
            InvalidArgument: The writer or batch is invalid.
        """
        aborted = self.stages.abort(writer, stages, batch, prefix)
        if aborted.stages:
            self.reclaimer.wake()
        return aborted

    def close(self) -> None:
        """Commit the received batches, then close every part; readers must have ended.

        Raises:
            Internal: The disk failed. Everything is closed, and acknowledged messages are durable.
        """
        with ExitStack() as closed:
            closed.callback(self._close_parts)
            closed.callback(self.maintainer.close)
            closed.callback(self.shares.close)

    def _close_parts(self) -> None:
        self.group_commit.close()
        if self.drain is not None:
            self.drain.close()
        self.reclaimer.close()
        self._parts.close()
