"""Coordinator: the core's procedures with a log, threads that wait, and a clock.

A call that waits for messages hears of commits by the registry's watch, of releases by a callback
of its own, and looks again by itself when a lock expires or a delay ends.
"""

import logging
import random
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Self

from wings_core.contracts.tickets import TimestampOffset
from wings_core.errors import (
    GroupNotFound,
    InvalidArgument,
    OffsetOutOfRange,
    Unavailable,
    WingsError,
)
from wings_core.fetch.fetcher import Cancel
from wings_core.metadata.interfaces import OffsetRegistry
from wings_core.model import PartitionState, Position, Topic
from wings_core.partitions import Partition
from wings_core.share.clock import Clock, MonotonicClock
from wings_core.share.coordinator.core import Bounds, CoordinatorCore
from wings_core.share.coordinator.entries import not_held
from wings_core.share.coordinator.partition_table import READ_PARTITIONS_MAX
from wings_core.share.coordinator.watchers import (
    PARTITIONS_SECONDS,
    FindGroup,
    TopicPartitions,
    Watchers,
)
from wings_core.share.interfaces import DeadLetters
from wings_core.share.model import (
    MEMBER_CHARACTERS_MAX,
    Acknowledgement,
    AcknowledgementResult,
    Acquired,
    AcquireRequest,
    Lease,
    LeasedRange,
    ShareGroup,
    SharePartitionState,
)
from wings_core.share.quorum.links import LocalLink, ReplicaLink, Runner
from wings_core.share.quorum.quorum import HoldQuorum
from wings_core.share.quorum.votes import Known
from wings_core.share.replica.interfaces import HoldReplica, LeaseEntry
from wings_core.times import Deadline

MAINTENANCE_SECONDS = 1.0
"""How often what expired at the delivery limit is looked for."""

SWEEP_SECONDS = 60.0
"""How often groups without waiting members are looked up, to forget deleted ones."""

SWEEP_MAX = 1_000
"""Groups looked at then: the first that are known, which make way for others when they are gone."""

_logger = logging.getLogger(__name__)


FindOffset = Callable[[Topic, Partition, int], int]
"""Returns the offset of the first message at or after a time, in microseconds since the epoch; as
`Fetcher.offset_for_timestamp`."""


class Coordinator:
    """A `ShareCoordinator`.

    Args:
        links: To the replicas; closed with the coordinator.
        registry: The log's index.
        dead_letters: None: no dead letters are written, also where a group has a DLQ topic.
        local: Whether the only replica is in this process.
        clock: What leases are counted by.
        find_offset: None: the registry's, which finds the page, and not the row of a merged one.
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
        find_offset: FindOffset | None = None,
        find_group: FindGroup | None = None,
    ) -> None:
        clock, rng = clock or MonotonicClock(), random.Random()
        quorum = HoldQuorum(len(links), clock, rng, local=local)
        self._watchers = Watchers(find_group, self._end, self._know)
        self._core = CoordinatorCore(quorum, dead_letters, clock, rng, self._watchers.wake)
        self._runner = Runner(links)
        self._registry = registry
        self._partitions = TopicPartitions(registry)
        self._find_offset = find_offset or _in_registry(registry)
        self._lock = threading.Lock()
        self._groups: dict[str, ShareGroup] = {}
        self._stopped = threading.Event()
        self._maintenance: threading.Thread | None = None

    @classmethod
    def embedded(
        cls,
        replica: HoldReplica,
        registry: OffsetRegistry,
        dead_letters: DeadLetters | None = None,
        clock: Clock | None = None,
        find_offset: FindOffset | None = None,
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
            find_offset=find_offset,
            find_group=find_group,
        )

    def create(self, group: ShareGroup) -> None:
        """See `ShareCoordinator.create`."""
        start = group.config.start
        starts: dict[Partition, int] = {}
        for state in self._registry.partition_states(group.topic.uuid):
            if isinstance(start, TimestampOffset):
                starts[state.partition] = self._find_offset(
                    group.topic, state.partition, start.timestamp_us
                )
            else:
                latest = start == "latest"
                starts[state.partition] = state.next_offset if latest else state.log_start_offset
        self._runner.run(self._core.create(group, starts))

    def delete(self, group: ShareGroup) -> None:
        """See `ShareCoordinator.delete`."""
        self._forget(group)
        self._runner.run(self._core.delete(group))

    def altered(self, group: ShareGroup) -> None:
        """See `ShareCoordinator.altered`."""
        self._know(group)
        self._watchers.altered(group)

    def acquire(
        self, request: AcquireRequest, deadline: Deadline, cancel: Cancel
    ) -> list[LeasedRange]:
        """See `ShareCoordinator.acquire`."""
        group, partition = request.group, request.partition
        acquired = self.acquire_now(request)
        while not acquired.ranges and not deadline.passed:
            with self.watch(group, partition, cancel.wake.set) as partitions:
                while not acquired.ranges and not deadline.passed:
                    cancel.wake.clear()
                    cancel.check()
                    acquired = self.acquire_now(request)
                    if (
                        acquired.ranges
                        or len(self._partitions.states(group.topic, partition)) != partitions
                    ):
                        break  # What is new is to be watched as well.
                    cancel.wake.wait(_shorter(deadline.remaining(), acquired.again_after_seconds))
                    cancel.check()
        return list(acquired.ranges)

    def acquire_now(self, request: AcquireRequest) -> Acquired:
        """See `ShareCoordinator.acquire_now`."""
        if not 1 <= len(request.member) <= MEMBER_CHARACTERS_MAX:
            raise InvalidArgument(f"a member has 1 to {MEMBER_CHARACTERS_MAX} characters")
        assert request.messages_max >= 1
        assert request.rows_max >= 1
        request = replace(request, group=self._check(request.group))
        group, partition = request.group, request.partition
        ranges = self._acquire(request)
        if not ranges and self._partitions.forget(group.topic, partition):
            ranges = self._acquire(request)
        return Acquired(tuple(ranges), None if ranges else self._again(group, partition))

    @contextmanager
    def watch(
        self, group: ShareGroup, partition: Partition | None, callback: Callable[[], None]
    ) -> Generator[int]:
        """See `ShareCoordinator.watch`; gives the number of partitions that are watched."""
        self._check(group)
        states = self._partitions.states(group.topic, partition)
        positions = [
            Position(group.topic.uuid, state.partition, state.next_offset) for state in states
        ]
        with (
            self._watchers.registered(group, callback),
            self._registry.watch(positions, callback),
        ):
            yield len(positions)

    def acknowledge(
        self, group: ShareGroup, member: str, entries: Sequence[Acknowledgement]
    ) -> list[AcknowledgementResult]:
        """See `ShareCoordinator.acknowledge`."""
        group = self._check(group)
        indexes: dict[Partition, list[int]] = {}
        for index, entry in enumerate(entries):
            indexes.setdefault(entry.partition, []).append(index)
        errors: dict[int, WingsError | None] = {}
        for partition, of_partition in indexes.items():
            asked = [entries[index] for index in of_partition]
            found = self._acknowledge_partition(group, partition, member, asked)
            errors.update(zip(of_partition, found, strict=True))
        return [AcknowledgementResult(entry, errors[index]) for index, entry in enumerate(entries)]

    def release_undelivered(self, group: ShareGroup, leased: Sequence[LeasedRange]) -> None:
        """See `ShareCoordinator.release_undelivered`."""
        indexes: dict[Partition, list[LeaseEntry]] = {}
        for each in leased:
            entry = LeaseEntry(each.start_offset, each.end_offset, Lease.parse(each.lease))
            indexes.setdefault(each.partition, []).append(entry)
        for partition, entries in indexes.items():
            try:
                self._runner.run(self._core.table.load(group, [partition]))
                self._runner.run(self._core.acquirer.release_undelivered(group, partition, entries))
            except WingsError as error:
                _logger.info("messages of %s expire: %s", group.name, error.message)

    def describe(self, group: ShareGroup) -> list[SharePartitionState]:
        """See `ShareCoordinator.describe`."""
        self._check(group)
        logs = self._registry.partition_states(group.topic.uuid)
        described: list[SharePartitionState] = []
        for at in range(0, len(logs), READ_PARTITIONS_MAX):
            some = logs[at : at + READ_PARTITIONS_MAX]
            known = self._runner.run(self._core.read(group, [state.partition for state in some]))
            described += [_describe(state, known[state.partition]) for state in some]
        return described

    def close(self) -> None:
        """See `ShareCoordinator.close`."""
        self._stopped.set()
        self._watchers.close()
        with self._lock:
            maintenance = self._maintenance
        if maintenance is not None:
            maintenance.join()
        self._runner.close()

    # Inside.

    def _acquire(self, request: AcquireRequest) -> list[LeasedRange]:
        states = self._partitions.states(request.group.topic, request.partition)
        return self._runner.run(self._core.acquirer.acquire(request, states, self._batch_end))

    def _batch_end(self, group: ShareGroup, partition: Partition, offset: int) -> int:
        try:
            located = self._registry.locate(group.topic.uuid, partition, offset, 1)
        except OffsetOutOfRange:
            return offset  # Retention has just passed it.
        return located.locations[0].end_offset if located.locations else offset

    def _again(self, group: ShareGroup, partition: Partition | None) -> float | None:
        """Return in how many seconds something may be available; None: after a change only."""
        again = None
        if partition is None and group.topic.partition_key is not None:
            again = PARTITIONS_SECONDS
        for state in self._partitions.states(group.topic, partition):
            if state.next_offset == 0:
                continue  # Its first commit wakes those who wait.
            bounds = Bounds(state.log_start_offset, state.next_offset)
            again = _shorter(again, self._core.table.look(group, state.partition, bounds))
        return again

    def _check(self, group: ShareGroup) -> ShareGroup:
        """Refuse what cannot be served any more; return and remember the group as it is now."""
        if self._stopped.is_set():
            raise Unavailable("the coordinator of share groups is closed")
        group = self._watchers.current(group)
        if self._groups.get(group.uuid) == group:
            return group
        with self._lock:
            if self._core.table.is_deleted(group):
                raise GroupNotFound(f"group {group.name:.80} was deleted")
            self._groups[group.uuid] = group
            if self._maintenance is None:
                self._maintenance = threading.Thread(
                    target=self._maintain, name="wings-share", daemon=True
                )
                self._maintenance.start()
        return group

    def _know(self, group: ShareGroup) -> None:
        """Go on with a group as it is now, where it is known here."""
        with self._lock:
            if group.uuid in self._groups:
                self._groups[group.uuid] = group

    def _end(self, group: ShareGroup) -> None:
        """Forget a group that another node has deleted, and wake those who wait for it."""
        self._forget(group)
        self._watchers.wake(group.uuid)

    def _forget(self, group: ShareGroup) -> None:
        with self._lock:
            self._core.table.forget(group)
            self._groups.pop(group.uuid, None)

    def _acknowledge_partition(
        self,
        group: ShareGroup,
        partition: Partition,
        member: str,
        asked: Sequence[Acknowledgement],
    ) -> list[WingsError | None]:
        try:
            state = self._registry.partition_state(group.topic.uuid, partition)
            if state.next_offset == 0:  # Never written to; nothing is kept of it.
                return [not_held(asked[0], member)] * len(asked)
            bounds = Bounds(state.log_start_offset, state.next_offset)
            self._runner.run(self._core.table.load(group, [partition]))
            return self._runner.run(
                self._core.acknowledge.run(group, partition, bounds, member, asked)
            )
        except WingsError as error:
            return [error] * len(asked)

    def _maintain(self) -> None:
        """Archive what expired at the delivery limit, also where no member acquires."""
        sweep = Deadline.after(SWEEP_SECONDS)
        while not self._stopped.wait(MAINTENANCE_SECONDS):
            with self._lock:
                groups = list(self._groups.values())
            if sweep.passed:
                self._watchers.look(groups[:SWEEP_MAX])
                sweep = Deadline.after(SWEEP_SECONDS)
            for known in groups:
                partitions = self._core.table.exhausted(known)
                if partitions:  # Archiving by an old configuration cannot be undone.
                    self._watchers.look([known])
                group = self._groups.get(known.uuid)
                if group is None:
                    continue
                for partition in partitions:
                    try:
                        state = self._registry.partition_state(group.topic.uuid, partition)
                        bounds = Bounds(state.log_start_offset, state.next_offset)
                        self._runner.run(
                            self._core.acquirer.archive_exhausted(group, partition, bounds)
                        )
                    except WingsError as error:
                        _logger.info("nothing was archived of %s: %s", group.name, error.message)
                    except Exception:
                        _logger.exception("archiving messages of %s failed", group.name)


def _describe(log: PartitionState, known: Known) -> SharePartitionState:
    start = max(known.start_offset, log.log_start_offset)
    above = sum(
        tomb.last - max(tomb.first, start) + 1 for tomb in known.finished if tomb.last >= start
    )
    lag = max(0, log.next_offset - start - above)
    return SharePartitionState(log.partition, start, known.in_flight, lag)


def _shorter(one: float | None, other: float | None) -> float | None:
    """Return the shorter of two times, of which None is the longest."""
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


def _in_registry(registry: OffsetRegistry) -> FindOffset:
    def find(topic: Topic, partition: Partition, timestamp: int) -> int:
        return registry.offset_for_timestamp(topic.uuid, partition, timestamp)

    return find
