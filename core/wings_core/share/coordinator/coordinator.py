"""Coordinator: the core's procedures with a log, threads that wait, and a clock.

A call that waits for messages hears of commits by the registry's watch, of releases by a callback
of its own, and of locks and delays that end by the thread that counts their time.
"""

import logging
import random
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Self

from wings_core.errors import (
    StorageCorrupt,
    WingsError,
)
from wings_core.fetch.fetcher import Cancel
from wings_core.metadata.interfaces import OffsetRegistry
from wings_core.model import (
    HeldRange,
    Lease,
    LeasedRange,
    PartitionState,
    ShareGroup,
    SharePartitionState,
)
from wings_core.partitions import Partition
from wings_core.share.clock import Clock, MonotonicClock
from wings_core.share.coordinator.acknowledgements import Acknowledgements
from wings_core.share.coordinator.acquires import Acquires
from wings_core.share.coordinator.core import CoordinatorCore
from wings_core.share.coordinator.group_table import GroupTable
from wings_core.share.coordinator.maintenance import Maintenance
from wings_core.share.coordinator.partition_table import READ_PARTITIONS_MAX
from wings_core.share.coordinator.starts import (
    FindOffsets,
    Finished,
    Position,
    Starts,
    finished_of,
)
from wings_core.share.coordinator.wake_ups import WakeUps
from wings_core.share.coordinator.watchers import FindGroup
from wings_core.share.counts import ShareCounts
from wings_core.share.interfaces import DeadLetters, Watch
from wings_core.share.model import (
    Acknowledgement,
    AcknowledgementResult,
    Acquired,
    AcquireRequest,
    ShareKey,
)
from wings_core.share.quorum.quorum import HoldQuorum
from wings_core.share.quorum.run import LocalLink, ReplicaLink, Runner
from wings_core.share.quorum.votes import UNTOUCHED, Known
from wings_core.share.replica.requests import HoldReplica, LeaseEntry
from wings_core.share.replica.store import StoredPartition
from wings_core.times import Deadline

_logger = logging.getLogger(__name__)


class Coordinator:
    """A `ShareCoordinator`.

    Args:
        links: To the replicas; closed with the coordinator.
        registry: The log's index.
        dead_letters: None: no dead letters are written, also where a group has a DLQ topic.
        local: Whether the only replica is in this process.
        clock: What leases are counted by.
        find_offsets: None: the registry's, which find the page, and not the row of a merged one.
        find_group: Looks at groups for what other nodes did to them; None: there are no others.
    """

    def __init__(
        self,
        links: Sequence[ReplicaLink],
        registry: OffsetRegistry,
        dead_letters: DeadLetters | None = None,
        *,
        local: bool = False,
        clock: Clock | None = None,
        find_offsets: FindOffsets | None = None,
        find_group: FindGroup | None = None,
    ) -> None:
        clock, rng = clock or MonotonicClock(), random.Random()
        self.is_local = local
        quorum = HoldQuorum(len(links), clock, rng, local=local)
        self.counts = ShareCounts()
        self._core = core = CoordinatorCore(
            quorum,
            dead_letters,
            clock,
            rng,
            self._changed,
            archived=self._count_archived,
            met_limit=lambda: self._maintenance.call(),
        )
        self._runner = runner = Runner(links)
        self._registry = registry
        self._starts = Starts(registry, find_offsets)
        self._groups = groups = GroupTable(
            core.table,
            registry,
            clock,
            local=local,
            find_group=find_group,
            used=self._start,
            sooner=self._call,
        )
        self._wake_ups = WakeUps(groups.wake_due)
        self._maintenance = Maintenance(groups, core, runner)
        self._acquires = Acquires(groups, core, runner, registry, self.counts, local=local)
        self._acknowledgements = Acknowledgements(groups, core, runner, self.counts)

    @classmethod
    def embedded(
        cls,
        replica: HoldReplica,
        registry: OffsetRegistry,
        dead_letters: DeadLetters | None = None,
        clock: Clock | None = None,
        find_offsets: FindOffsets | None = None,
        find_group: FindGroup | None = None,
    ) -> Self:
        """Return a coordinator with one replica in this process, closed after it by who opened it.

        `Replica(SqliteHoldStore(directory.holds))` is such a replica.
        """
        return cls(
            [LocalLink(replica)],
            registry,
            dead_letters,
            local=True,
            clock=clock,
            find_offsets=find_offsets,
            find_group=find_group,
        )

    @property
    def damage(self) -> StorageCorrupt | None:
        """See `ShareCoordinator.damage`; None where the replicas are elsewhere."""
        return None

    def create(self, group: ShareGroup) -> None:
        """See `ShareCoordinator.create`."""
        self._begin(group, self._starts.of(group.topic, group.config.start))

    def create_moved(
        self, group: ShareGroup, anew: ShareGroup, to: Position, partition: Partition | None
    ) -> None:
        """See `ShareCoordinator.create_moved`."""
        if partition is None:
            self._begin(anew, self._starts.of(group.topic, to))
            return
        finished = {partition: self._starts.of_one(group.topic, to, partition)}
        logs = self._registry.partition_states(group.topic.uuid)
        others = [state.partition for state in logs if state.partition != partition]
        known = self._read(group, others)
        finished |= {each: finished_of(known[each]) for each in others}
        self._begin(anew, finished)

    def delete(self, group: ShareGroup) -> None:
        """See `ShareCoordinator.delete`."""
        self._groups.forget(group)
        self._runner.run(self._core.delete(group))

    def altered(self, group: ShareGroup) -> None:
        """See `ShareCoordinator.altered`."""
        self._groups.watchers.altered(group)

    def acquire(
        self, request: AcquireRequest, deadline: Deadline, cancel: Cancel
    ) -> list[LeasedRange]:
        """See `ShareCoordinator.acquire`."""
        acquired = self.acquire_now(request)
        if acquired.ranges or deadline.passed:
            return list(acquired.ranges)
        with self.following(request.group, cancel.wake.set):
            while not acquired.ranges and not deadline.passed:
                # Entered anew each time: who waits longest is woken first.
                with self.watch(request, cancel.wake.set):
                    cancel.wake.clear()
                    cancel.check()
                    acquired = self.acquire_now(request)
                    if not acquired.ranges:
                        cancel.wake.wait(deadline.remaining())
                        cancel.check()
                if acquired.ranges:
                    if cancel.wake.is_set():
                        self.wake_another(request.group)
                elif cancel.wake.is_set() or not deadline.passed:
                    acquired = self.acquire_now(request)  # It was woken, and no other for it.
        return list(acquired.ranges)

    def acquire_now(self, request: AcquireRequest) -> Acquired:
        """See `ShareCoordinator.acquire_now`."""
        return self._acquires.now(request)

    def settle(
        self,
        group: ShareGroup,
        requests: Sequence[tuple[str, Sequence[Acknowledgement]]],
        acquires: Sequence[AcquireRequest],
    ) -> tuple[list[list[AcknowledgementResult]], list[Acquired | WingsError]]:
        """See `ShareCoordinator.settle`."""
        if not acquires:
            return self.acknowledge_all(group, requests), []
        begun = self._acquires.begin(self._groups.check(group), acquires)
        if not requests:
            return [], self._acquires.finish(begun, self._runner.run_all(begun.procedures))
        results, outcomes = self._acknowledgements.take(begun.group, requests, begun.procedures)
        return results, self._acquires.finish(begun, outcomes)

    @contextmanager
    def following(self, group: ShareGroup, callback: Callable[[], None]) -> Generator[None]:
        """See `ShareCoordinator.following`."""
        with self._groups.watchers.registered(self._groups.check(group), callback):
            yield

    def watch(self, request: AcquireRequest, callback: Callable[[], None]) -> Watch:
        """See `ShareCoordinator.watch`."""
        index = self._groups.index(self._groups.check(request.group))
        return index.waiting(request.partition, request.messages_max, callback)

    def watch_idle(self, request: AcquireRequest, callback: Callable[[], None]) -> Watch | None:
        """See `ShareCoordinator.watch_idle`."""
        if not self.is_local:
            return None  # Over a network, commits are told of a while later.
        index = self._groups.index(self._groups.check(request.group))
        watch = index.waiting(request.partition, request.messages_max, callback)
        if not index.has_ready:
            return watch
        watch.close()
        return None

    def has_ready(self, group: ShareGroup) -> bool:
        """See `ShareCoordinator.has_ready`."""
        return self._groups.has_ready(group)

    def wake_another(self, group: ShareGroup) -> None:
        """See `ShareCoordinator.wake_another`."""
        self._groups.wake_another(group)

    def acknowledge(
        self, group: ShareGroup, member: str, entries: Sequence[Acknowledgement]
    ) -> list[AcknowledgementResult]:
        """See `ShareCoordinator.acknowledge`."""
        (results,) = self.acknowledge_all(group, [(member, entries)])
        return results

    def acknowledge_all(
        self, group: ShareGroup, requests: Sequence[tuple[str, Sequence[Acknowledgement]]]
    ) -> list[list[AcknowledgementResult]]:
        """See `ShareCoordinator.acknowledge_all`."""
        return self._acknowledgements.take(self._groups.check(group), requests, ())[0]

    def release_undelivered(self, group: ShareGroup, leased: Sequence[LeasedRange]) -> None:
        """See `ShareCoordinator.release_undelivered`."""
        indexes: dict[Partition, list[LeaseEntry]] = {}
        for each in leased:
            entry = LeaseEntry(each.start_offset, each.end_offset, Lease.parse(each.lease))
            indexes.setdefault(each.partition, []).append(entry)
        for partition, entries in indexes.items():
            try:
                self._runner.run(self._core.table.load(group, [partition]))
                self._runner.run(self._core.leases.release_undelivered(group, partition, entries))
            except WingsError as error:
                _logger.info("messages of %s expire: %s", group.name, error.message)

    def describe(self, group: ShareGroup) -> list[SharePartitionState]:
        """See `ShareCoordinator.describe`."""
        self._groups.check(group)
        logs = self._registry.partition_states(group.topic.uuid)
        known = self._read(group, [state.partition for state in logs])
        return [_describe(state, known[state.partition]) for state in logs]

    def stored(self, group: ShareGroup) -> list[StoredPartition]:
        """See `ShareCoordinator.stored`."""
        logs = self._registry.partition_states(self._groups.check(group).topic.uuid)
        return [
            StoredPartition(
                ShareKey(group.uuid, group.topic.uuid, partition),
                known.start_offset,
                [(each.first, each.last, 0) for each in known.finished],
                [(each.first, each.last, each.count) for each in known.counts],
            )
            for partition, known in self._read(group, [each.partition for each in logs]).items()
        ]

    def held(self, group: ShareGroup) -> Mapping[Partition, Sequence[HeldRange]]:
        """See `ShareCoordinator.held`."""
        return self._runner.run(self._core.held(self._groups.check(group)))

    def close(self) -> None:
        """See `ShareCoordinator.close`."""
        self._groups.close()
        self._wake_ups.stop()
        self._maintenance.stop()
        self._runner.close()

    # Inside.

    def _read(self, group: ShareGroup, partitions: Sequence[Partition]) -> dict[Partition, Known]:
        """Return what a majority knows of partitions, in requests of a bounded number each."""
        known: dict[Partition, Known] = {}
        for at in range(0, len(partitions), READ_PARTITIONS_MAX):
            some = partitions[at : at + READ_PARTITIONS_MAX]
            known |= self._runner.run(self._core.read(group, some))
        return known

    def _begin(self, group: ShareGroup, finished: Finished) -> None:
        """Make a group that is not known yet begin where so much is finished of partitions."""
        begun = [(partition, ranges) for partition, ranges in finished.items() if ranges]
        for at in range(0, len(begun), READ_PARTITIONS_MAX):
            outcomes = self._runner.run_all(
                [self._core.begin(group, *each) for each in begun[at : at + READ_PARTITIONS_MAX]]
            )
            for outcome in outcomes:
                if isinstance(outcome, WingsError):
                    raise outcome

    def _changed(self, group_uuid: str, partition: Partition) -> None:
        self._groups.changed(group_uuid, partition)

    def _count_archived(self, group_uuid: str, messages: int) -> None:
        group = self._groups.get(group_uuid)
        if group is not None:
            self.counts.add(group, dead_lettered=messages)

    def _start(self) -> None:
        """Start the threads before anything is leased that they are to look after."""
        self._maintenance.start()
        self._wake_ups.call()

    def _call(self) -> None:
        self._wake_ups.call()


def _describe(log: PartitionState, known: Known) -> SharePartitionState:
    if known is UNTOUCHED:
        start, end = log.log_start_offset, log.next_offset
        return SharePartitionState(log.partition, start, 0, end - start)
    start = max(known.start_offset, log.log_start_offset)
    above = sum(
        tomb.last - max(tomb.first, start) + 1 for tomb in known.finished if tomb.last >= start
    )
    lag = max(0, log.next_offset - start - above)
    return SharePartitionState(log.partition, start, known.in_flight, lag)
