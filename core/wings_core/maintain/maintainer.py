"""The maintainer: periodic passes over all partitions, with retention, tiering and table commits.

One node at a time, the holder of its lease, works on a partition. The lease of a stopped node
expires, and every step is one transaction that is correct whatever other nodes did meanwhile.

A few partitions are processed at a time, in tasks of bounded length, so that neither a large
backlog nor a slow store of one partition blocks the others.

Retention deletes whole pages that are too old, too many, or finished by all share groups.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Protocol

from wings_core.errors import NotFound, OffsetOutOfRange, Unavailable, WingsError
from wings_core.maintain.tiering import Tiering
from wings_core.maintain.workers import (
    WORKERS,
    HeldLease,
    LeaseKeeper,
    MaintenanceReport,
    PartitionTask,
    TaskPool,
)
from wings_core.metadata.interfaces import Admin, Metadata, OffsetRegistry, all_topics
from wings_core.metadata.maintenance import Finished, Maintenance, expired_pages
from wings_core.model import Expired, Location, PartitionState, Topic
from wings_core.partitions import Partition
from wings_core.storage.objects import ObjectStore
from wings_core.storage.parquet_file import is_table_file
from wings_core.times import now_us

_logger = logging.getLogger(__name__)


TURN_SECONDS = 60.0
"""Time after which a task begins no further step; the rest is due again after other partitions."""

PASS_SECONDS_MAX = 600.0
"""Longest time that a requested pass waits for a partition that another pass processes."""

DRAIN_SECONDS_MAX = 4.0
"""Longest time that a requested pass waits for another node's drain, which ends within a second, or
releases its lease after two idle ones."""

DRAIN_PAUSE_SECONDS = 0.1
"""Interval between checks of another node's drain."""


class TableCommits(Protocol):
    """Commits of segments to the tables of topics, as used by maintenance."""

    def is_due(self, topic: Topic) -> bool:
        """Return whether this process's last commit is at least `table_commit_ms` old."""
        ...

    def commit(self, topic: Topic, *, at_once: bool = True) -> bool:
        """Commit the log's segments of a topic to its table.

        Args:
            topic: The topic, as read from metadata.
            at_once: Commit even if the last snapshot, of any node, is younger than
                `table_commit_ms`.

        Returns:
            False if another node holds the lease, the lease was lost, or the topic was replaced.

        Raises:
            Unavailable: The catalog or the storage cannot be reached.
        """
        ...

    def release(self, topic: Topic, folios: Collection[str]) -> bool:
        """Remove segments from a table before retention deletes them; returns whether all are gone.

        Raises:
            Unavailable: The catalog or the storage cannot be reached.
        """
        ...

    def forget_deleted(self) -> None:
        """Drop the tables of topics that were deleted or no longer have a table.

        Raises:
            Unavailable: The catalog cannot be reached.
        """
        ...

    def ask_again(self) -> None:
        """Try the catalog again on the next call, even if it was unreachable a moment ago."""
        ...

    def close(self) -> None:
        """Wait for commits in progress, and make no more."""
        ...


class Maintainer:
    """Deletes expired messages, and moves old ones to the remote store.

    Runs periodically on a thread of its own, and on request.

    Args:
        metadata: The log's metadata.
        seconds: Interval between passes.
        reclaim: Called when pages may have been deleted, to free their disk space.
        tiering: Moves old messages; None to move none.
        clock: Returns this node's time in microseconds since the epoch.
        drain: Moves inline pages to storage before a requested pass; None without inline pages.
        finished: Returns the messages that all share groups of a topic have finished, by partition;
            None to ignore share groups.
        tables: Commits segments to tables, and is closed with the maintainer; None without tables.
        stores: Object stores; one that failed is tried again in each pass, so that its outage ends.
    """

    def __init__(
        self,
        metadata: Metadata,
        seconds: float,
        reclaim: Callable[[], None],
        tiering: Tiering | None = None,
        clock: Callable[[], int] = now_us,
        drain: Callable[[], object] | None = None,
        finished: Callable[[Topic], Mapping[Partition, Finished]] | None = None,
        tables: TableCommits | None = None,
        stores: Collection[ObjectStore] = (),
    ) -> None:
        self._tables = tables
        self._stores = stores
        self._drain = drain
        self._finished = finished
        self._admin: Admin = metadata.admin
        self._registry: OffsetRegistry = metadata.registry
        self._maintenance: Maintenance = metadata.maintenance
        self._seconds = seconds
        self._reclaim = reclaim
        self._tiering = tiering
        self._clock = clock
        self.total = MaintenanceReport()
        """Totals of all passes since the start."""
        self._working: set[str] = set()
        """Names of the partitions being processed."""
        self._changed = threading.Condition()
        """Guards the two attributes above; a leaf lock."""
        self._closing = threading.Event()
        self._leases = LeaseKeeper(metadata.maintenance)
        self._workers = ThreadPoolExecutor(WORKERS, thread_name_prefix="wings-maintainer-worker")
        self._thread = threading.Thread(target=self._loop, name="wings-maintainer", daemon=True)
        self._thread.start()

    def run(
        self,
        topic: Topic | None = None,
        progress: Callable[[MaintenanceReport], None] | None = None,
    ) -> MaintenanceReport:
        """Do all due maintenance, of one topic or all; blocks until done.

        Args:
            topic: The topic; None for all.
            progress: Called after each task with the totals so far.

        Raises:
            Unavailable: Metadata cannot be reached, or the server is stopping.
        """
        self._drain_all()  # Inline pages are never due.
        if self._tables is not None:
            self._tables.ask_again()
        report = self._pass(
            all_topics(self._admin) if topic is None else (topic,), progress, patient=True
        )
        if topic is None and self._tables is not None:
            self._tables.forget_deleted()
        return report

    def delete_before(self, topic: Topic, partition: Partition, offset: int) -> int:
        """Delete the messages of a partition before an offset, durably; blocks until done.

        Nothing goes that a table has or is about to have.

        Returns:
            The offset at which the log starts now.

        Raises:
            TopicNotFound: The topic was deleted.
            Unavailable: Metadata cannot be reached.
        """
        report, log_start_offset = MaintenanceReport(), 0
        for expired in delete_before(self._maintenance, topic, partition, offset):
            report.add_expired(expired)
            log_start_offset = expired.log_start_offset
        with self._changed:
            self.total.add(report)
        if report.pages_expired:
            self._reclaim()
        return log_start_offset

    def _drain_all(self) -> None:
        """Drain inline pages, or wait a bounded time for the node that drains."""
        until = time.monotonic() + DRAIN_SECONDS_MAX
        try:
            while self._drain is not None and not self._drain():
                left = until - time.monotonic()
                if left <= 0 or self._closing.wait(min(left, DRAIN_PAUSE_SECONDS)):
                    return
        except WingsError as error:
            _logger.warning("could not move small pushes to storage: %s", error)

    def close(self) -> None:
        """Stop after the current steps; the rest is done after the next start."""
        self._closing.set()
        with self._changed:
            self._changed.notify_all()
        self._leases.close()
        self._thread.join()
        # Queued tasks are not cancelled, as their waiters would not be notified; each ends at once.
        self._workers.shutdown(wait=True)
        if self._tables is not None:
            self._tables.close()

    def _loop(self) -> None:
        while not self._closing.wait(self._seconds):
            try:
                for store in self._stores:
                    if store.counts.outage is not None:
                        with suppress(WingsError):
                            store.check(write=store.counts.refuses_puts)
                self._pass(all_topics(self._admin), None, patient=False)
                if self._tables is not None:
                    self._tables.forget_deleted()
            except WingsError as error:
                if not self._closing.is_set():
                    _logger.warning("could not look for what to maintain: %s", error)
            except BaseException:  # Any fault, even a panic in Rust, only costs this round.
                _logger.exception("could not look for what to maintain")

    def _pass(
        self,
        topics: Iterable[Topic],
        progress: Callable[[MaintenanceReport], None] | None,
        *,
        patient: bool,
    ) -> MaintenanceReport:
        """Run one task for each partition; if `patient`, as many as are needed."""
        pool = TaskPool(self._workers, self._run_task, progress, patient=patient)
        began = time.monotonic()
        failures = 0
        tables: list[Topic] = []
        try:
            for topic in topics:
                if topic.config.table is not None:
                    tables.append(topic)
                finished: Mapping[Partition, Finished] = {}
                if topic.config.retention_on_acceptance and not failures:
                    try:
                        finished = self._finished_of(topic)
                    except WingsError as error:  # Other topics would wait for the same replicas.
                        failures += 1
                        _logger.warning("kept finished messages of %s: %s", topic.name, error)
                for state in self._states(topic, finished):
                    own = finished.get(state.partition)
                    pool.begin(PartitionTask(topic, state, patient, own))
            pool.finish()
        finally:
            report = pool.collect()
            report.passes = 1
            report.failures += failures
            self._commit_tables(tables, report, every=patient)
            report.seconds = time.monotonic() - began
            with self._changed:
                self.total.add(report)
            if report.pages_expired or report.pages_merged:
                self._reclaim()
        return report

    def _finished_of(self, topic: Topic) -> Mapping[Partition, Finished]:
        """Return the messages that all groups of a topic have finished; blocks for the replicas.

        Raises:
            WingsError: A majority of replicas cannot be read.
        """
        try:
            return {} if self._finished is None else self._finished(topic)
        except NotFound:
            return {}  # The topic or a group was deleted meanwhile, or a group moved.

    def _states(
        self, topic: Topic, finished: Mapping[Partition, Finished]
    ) -> Iterator[PartitionState]:
        """Yield the partitions of a topic whose messages expire or move."""
        config = topic.config
        expires = config.retention_ms is not None or config.retention_bytes is not None
        if not expires and not finished and self._tiering_of(topic) is None:
            return
        try:
            states = self._registry.partition_states(topic.uuid)
        except NotFound:
            return  # Deleted meanwhile.
        for state in states:
            if self._closing.is_set():
                return
            yield state

    def _tiering_of(self, topic: Topic) -> Tiering | None:
        tiering = self._tiering
        return None if tiering is None or tiering.after_ms(topic) is None else tiering

    def _run_task(self, task: PartitionTask) -> MaintenanceReport:
        """Do due maintenance of a partition for a bounded time, on a worker's thread.

        Raises:
            Unavailable: The server is stopping.
        """
        if self._closing.is_set():
            raise Unavailable("the server is stopping")
        name = f"{task.topic.uuid} {task.state.partition}"
        report = task.report
        try:
            state = task.state
            if not task.is_first:
                state = self._registry.partition_state(task.topic.uuid, state.partition)
            if not self._is_due(task, state):
                return report
            report.partitions += task.is_first
            if not self._claim(name, task.patient):
                report.partitions_busy += 1
                return report
            try:
                with self._leases.hold(name) as held:
                    if held is None:
                        report.partitions_busy += 1
                        return report
                    self._work(task, held)
            finally:
                self._unclaim(name)
        except (NotFound, OffsetOutOfRange):
            pass  # Deleted meanwhile, or pages changed by another node: the next pass checks again.
        except WingsError as error:
            report.failures += 1
            # An outage of a store is logged once, not for each partition in each pass.
            known = any(each.counts.outage is not None for each in self._stores)
            level = logging.DEBUG if known else logging.WARNING
            _logger.log(level, "could not maintain partition %.80s of %s: %s", *task.names, error)
        except Exception:  # The other partitions must still be maintained.
            report.failures += 1
            _logger.exception("could not maintain partition %.80s of %s", *task.names)
        return report

    def _is_due(self, task: PartitionTask, state: PartitionState) -> bool:
        if is_due(self._registry, task.topic, state, self._clock(), task.finished):
            return True
        tiering = self._tiering_of(task.topic)
        return tiering is not None and bool(tiering.due(task.topic, state))

    def _work(self, task: PartitionTask, held: HeldLease) -> None:
        until = time.monotonic() + TURN_SECONDS
        topic, partition = task.topic, task.state.partition
        # Read again: the lease's last holder may have done the work.
        state = self._registry.partition_state(topic.uuid, partition)
        if is_due(self._registry, topic, state, self._clock(), task.finished):
            if topic.config.table is None:
                retain(self._maintenance, topic, state, task.finished, task.report, held.proceed)
            elif self._tables is not None:
                self._retain_table(self._tables, task, state)
            state = self._registry.partition_state(topic.uuid, partition)
        tiering = self._tiering_of(topic)
        if tiering is not None:
            task.unfinished = tiering.tier(topic, state, held, task.report, until)

    def _retain_table(
        self, tables: TableCommits, task: PartitionTask, state: PartitionState
    ) -> None:
        """Delete expired files of a partition with a table, after removing them from the table."""
        topic = task.topic
        found = self._registry.locate(
            topic.uuid, state.partition, state.log_start_offset, EXPIRE_PAGES
        ).locations
        count = _due_pages(topic, state, found, self._clock(), task.finished)
        folios = [page.address.folio for page in found]
        while 0 < count < len(folios) and folios[count] == folios[count - 1]:
            count -= 1
        gone = {folio for folio in folios[:count] if is_table_file(folio)}
        if count and tables.release(topic, gone):
            expire(self._maintenance, topic, state, task.finished, task.report, count)

    def _commit_tables(
        self, topics: Sequence[Topic], report: MaintenanceReport, *, every: bool
    ) -> None:
        """Commit segments to the tables of topics; a failing table does not affect the others.

        Args:
            topics: Topics, with or without tables.
            report: Receives the failures.
            every: Whether to commit even if the last commit is recent.
        """
        tables = self._tables
        for topic in topics if tables is not None else ():
            assert tables is not None
            try:
                if every or tables.is_due(topic):
                    report.partitions_busy += not tables.commit(topic, at_once=every)
            except NotFound:
                continue
            except WingsError as error:
                report.failures += 1
                _logger.warning("could not commit to the table of %s: %s", topic.name, error)
            except Exception:
                report.failures += 1
                _logger.exception("could not commit to the table of %s", topic.name)

    def _claim(self, name: str, patient: bool) -> bool:
        """Claim a partition for this thread; returns False if another thread processes it.

        Args:
            name: Name of the partition.
            patient: Whether to wait for the other thread, within bounds.
        """
        with self._changed:
            if patient:
                self._changed.wait_for(
                    lambda: name not in self._working or self._closing.is_set(), PASS_SECONDS_MAX
                )
            if name in self._working:
                return False
            self._working.add(name)
            return True

    def _unclaim(self, name: str) -> None:
        with self._changed:
            self._working.remove(name)
            self._changed.notify_all()


EXPIRE_PAGES = 1_000
"""Most pages deleted per metadata transaction, so that pushes never wait long for it."""


def is_due(
    registry: OffsetRegistry,
    topic: Topic,
    state: PartitionState,
    now: int,
    finished: Finished | None,
) -> bool:
    """Return whether a partition's first page has expired; takes no lock.

    Args:
        registry: Locates the first page.
        topic: The topic with its configuration.
        state: State of the partition.
        now: This node's time in microseconds since the epoch.
        finished: Messages finished by all groups, if the topic's configuration deletes them; None
            otherwise.
    """
    config = topic.config
    if state.log_start_offset == state.next_offset:
        return False
    may_be_too_many = config.retention_bytes is not None and state.bytes > config.retention_bytes
    finished_before = 0 if finished is None else finished.before
    may_be_finished = finished_before > state.log_start_offset
    if config.retention_ms is None and not may_be_too_many and not may_be_finished:
        return False
    located = registry.locate(topic.uuid, state.partition, state.log_start_offset, 1)
    return _due_pages(topic, state, located.locations[:1], now, finished) > 0


def _due_pages(
    topic: Topic,
    state: PartitionState,
    pages: Sequence[Location],
    now: int,
    finished: Finished | None,
) -> int:
    """Return the number of a partition's first pages that have expired; see `is_due`."""
    config = topic.config
    return expired_pages(
        [(page.timestamp, page.end_offset, page.bytes) for page in pages],
        state.bytes,
        None if config.retention_ms is None else now - config.retention_ms * 1_000,
        config.retention_bytes,
        0 if finished is None else finished.before,
    )


def retain(
    maintenance: Maintenance,
    topic: Topic,
    state: PartitionState,
    finished: Finished | None,
    report: MaintenanceReport,
    proceed: Callable[[], bool],
) -> None:
    """Delete the expired pages of a partition, a bounded number at a time.

    Args:
        maintenance: Deletes the pages.
        topic: The topic with its configuration.
        state: State of the partition.
        finished: Messages finished by all groups, if the topic's configuration deletes them; None
            otherwise.
        report: Receives the counts of deletions.
        proceed: Returns whether to continue; called before each further step.
    """
    while expire(maintenance, topic, state, finished, report, EXPIRE_PAGES) == EXPIRE_PAGES:
        if not proceed():
            return


def expire(
    maintenance: Maintenance,
    topic: Topic,
    state: PartitionState,
    finished: Finished | None,
    report: MaintenanceReport,
    pages_max: int,
) -> int:
    """Delete up to `pages_max` expired pages; returns how many were deleted. See `retain`."""
    age_ms = topic.config.retention_ms
    expired = maintenance.expire(
        topic.uuid,
        state.partition,
        age_us=None if age_ms is None else age_ms * 1_000,
        bytes_kept=topic.config.retention_bytes,
        finished=finished,
        outside_tables=topic.config.table is not None,
        pages_max=pages_max,
    )
    report.add_expired(expired)
    return expired.pages


def delete_before(
    maintenance: Maintenance, topic: Topic, partition: Partition, offset: int
) -> Iterator[Expired]:
    """Delete a partition's messages before an offset, a bounded number of pages at a time.

    Yields:
        Counts of each step, and where the log starts after it.
    """
    while True:
        expired = maintenance.expire(
            topic.uuid,
            partition,
            age_us=None,
            bytes_kept=None,
            outside_tables=True,
            before_offset=offset,
            pages_max=EXPIRE_PAGES,
        )
        yield expired
        if expired.pages < EXPIRE_PAGES:
            return
