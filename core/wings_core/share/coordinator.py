"""Coordinator: the core's procedures with a log, threads that wait, and a clock.

A call that waits for messages hears of commits by the registry's watch, of releases by a callback
of its own, and looks again by itself when a lock expires or a delay ends.
"""

import itertools
import logging
import random
import threading
from collections import OrderedDict
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self

from wings_core.contracts.tickets import TimestampOffset
from wings_core.errors import (
    GroupNotFound,
    InvalidArgument,
    OffsetOutOfRange,
    ResourceExhausted,
    Unavailable,
    WingsError,
)
from wings_core.fetch.fetcher import Cancel
from wings_core.metadata.interfaces import OffsetRegistry
from wings_core.model import PartitionState, Position, Topic
from wings_core.partitions import UNPARTITIONED, Partition
from wings_core.share.clock import Clock, MonotonicClock
from wings_core.share.core import Bounds, CoordinatorCore
from wings_core.share.interfaces import DeadLetters, HoldReplica, LeaseEntry
from wings_core.share.links import LocalLink, ReplicaLink, Runner
from wings_core.share.model import (
    MEMBER_CHARACTERS_MAX,
    Acknowledgement,
    AcknowledgementResult,
    Acquired,
    Lease,
    LeasedRange,
    ShareGroup,
    SharePartitionState,
)
from wings_core.share.quorum import HoldQuorum
from wings_core.share.settle import not_held
from wings_core.share.throttle import is_throttled
from wings_core.share.votes import Known
from wings_core.times import Deadline

PARTITIONS_SECONDS = 0.5
"""How often a wait for any partition of a partitioned topic looks for new ones."""

LOAD_PARTITIONS_MAX = 256
"""Partitions whose state is read from the replicas at a time."""

WATCHES_MAX = 16_384
"""How many may wait at once; further ones are refused."""

MAINTENANCE_SECONDS = 1.0
"""How often what expired at the delivery limit is looked for."""

TOPICS_MAX = 1_000
"""Partitioned topics whose partitions are remembered for a moment."""

DELETED_MAX = 10_000
"""Deleted groups that are remembered, to end those who wait for them."""

_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Known:
    """The partitions of a topic, as last looked at."""

    states: list[PartitionState]
    deadline: Deadline
    """When to look again."""


FindOffset = Callable[[Topic, Partition, int], int]
"""Returns the offset of the first message at or after a time, in microseconds since the epoch; as
`Fetcher.offset_for_timestamp`."""


class Coordinator:
    """A `ShareCoordinator`.

    Args:
        links: To the replicas; closed with the coordinator.
        registry: The log's index.
        dead_letters: None: groups with a DLQ topic drop what they give up.
        local: Whether the only replica is in this process.
        clock: What leases are counted by.
        find_offset: None: the registry's, which finds the page, and not the row of a merged one.
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
    ) -> None:
        clock, rng = clock or MonotonicClock(), random.Random()
        quorum = HoldQuorum(len(links), clock, rng, local=local)
        self._core = CoordinatorCore(quorum, dead_letters, clock, rng, self._wake)
        self._runner = Runner(links)
        self._registry = registry
        self._find_offset = find_offset or _in_registry(registry)
        self._lock = threading.Lock()
        self._watchers: dict[str, dict[object, Callable[[], None]]] = {}
        self._watches = 0
        self._groups: dict[str, ShareGroup] = {}
        self._deleted: OrderedDict[str, None] = OrderedDict()
        self._topics: OrderedDict[str, _Known] = OrderedDict()
        self._turns = itertools.count()
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
        with self._lock:
            self._groups.pop(group.uuid, None)
            self._deleted[group.uuid] = None
            while len(self._deleted) > DELETED_MAX:
                self._deleted.popitem(last=False)
        self._runner.run(self._core.delete(group))

    def acquire(
        self,
        group: ShareGroup,
        member: str,
        partition: Partition | None,
        messages_max: int,
        rows_max: int,
        deadline: Deadline,
        cancel: Cancel,
    ) -> list[LeasedRange]:
        """See `ShareCoordinator.acquire`."""
        acquired = self.acquire_now(group, member, partition, messages_max, rows_max)
        while not acquired.ranges and not deadline.passed:
            with self.watch(group, partition, cancel.wake.set) as partitions:
                while not acquired.ranges and not deadline.passed:
                    cancel.wake.clear()
                    cancel.check()
                    acquired = self.acquire_now(group, member, partition, messages_max, rows_max)
                    if acquired.ranges or len(self._states(group.topic, partition)) != partitions:
                        break  # What is new is to be watched as well.
                    cancel.wake.wait(_shorter(deadline.remaining(), acquired.again_after_seconds))
                    cancel.check()
        return list(acquired.ranges)

    def acquire_now(
        self,
        group: ShareGroup,
        member: str,
        partition: Partition | None,
        messages_max: int,
        rows_max: int,
    ) -> Acquired:
        """See `ShareCoordinator.acquire_now`."""
        if not 1 <= len(member) <= MEMBER_CHARACTERS_MAX:
            raise InvalidArgument(f"a member has 1 to {MEMBER_CHARACTERS_MAX} characters")
        assert messages_max >= 1
        assert rows_max >= 1
        self._check(group)
        ranges = self._acquire_from(group, member, partition, messages_max, rows_max)
        if not ranges and self._forget_partitions(group.topic, partition):
            ranges = self._acquire_from(group, member, partition, messages_max, rows_max)
        return Acquired(tuple(ranges), None if ranges else self._again(group, partition))

    @contextmanager
    def watch(
        self, group: ShareGroup, partition: Partition | None, callback: Callable[[], None]
    ) -> Generator[int]:
        """See `ShareCoordinator.watch`; gives the number of partitions that are watched."""
        self._check(group)
        states = self._states(group.topic, partition)
        positions = [
            Position(group.topic.uuid, state.partition, state.next_offset) for state in states
        ]
        token = object()
        with self._lock:
            if self._watches >= WATCHES_MAX:
                raise ResourceExhausted(f"{WATCHES_MAX} wait for messages of groups already")
            self._watches += 1
            self._watchers.setdefault(group.uuid, {})[token] = callback
        try:
            with self._registry.watch(positions, callback):
                yield len(positions)
        finally:
            with self._lock:
                self._watches -= 1
                watchers = self._watchers[group.uuid]
                del watchers[token]
                if not watchers:
                    del self._watchers[group.uuid]

    def acknowledge(
        self, group: ShareGroup, member: str, entries: Sequence[Acknowledgement]
    ) -> list[AcknowledgementResult]:
        """See `ShareCoordinator.acknowledge`."""
        self._check(group)
        places: dict[Partition, list[int]] = {}
        for place, entry in enumerate(entries):
            places.setdefault(entry.partition, []).append(place)
        errors: dict[int, WingsError | None] = {}
        for partition, of_partition in places.items():
            asked = [entries[place] for place in of_partition]
            found = self._acknowledge_partition(group, partition, member, asked)
            errors.update(zip(of_partition, found, strict=True))
        return [AcknowledgementResult(entry, errors[place]) for place, entry in enumerate(entries)]

    def give_back(self, group: ShareGroup, leased: Sequence[LeasedRange]) -> None:
        """See `ShareCoordinator.give_back`."""
        places: dict[Partition, list[LeaseEntry]] = {}
        for each in leased:
            entry = LeaseEntry(each.start_offset, each.end_offset, Lease.parse(each.lease))
            places.setdefault(each.partition, []).append(entry)
        for partition, entries in places.items():
            try:
                self._runner.run(self._core.load(group, [partition]))
                self._runner.run(self._core.give_back(group, partition, entries))
            except WingsError as error:
                _logger.info("messages of %s expire: %s", group.name, error.message)

    def describe(self, group: ShareGroup) -> list[SharePartitionState]:
        """See `ShareCoordinator.describe`."""
        self._check(group)
        logs = self._registry.partition_states(group.topic.uuid)
        described: list[SharePartitionState] = []
        for at in range(0, len(logs), LOAD_PARTITIONS_MAX):
            some = logs[at : at + LOAD_PARTITIONS_MAX]
            known = self._runner.run(self._core.read(group, [state.partition for state in some]))
            described += [_describe(state, known[state.partition]) for state in some]
        return described

    def close(self) -> None:
        """See `ShareCoordinator.close`."""
        self._stopped.set()
        with self._lock:
            groups = list(self._watchers)
            maintenance = self._maintenance
        for group_uuid in groups:
            self._wake(group_uuid)
        if maintenance is not None:
            maintenance.join()
        self._runner.close()

    # Inside.

    def _check(self, group: ShareGroup) -> None:
        """Refuse what cannot be served any more, and remember the group as it is now."""
        if self._stopped.is_set():
            raise Unavailable("the coordinator of share groups is closed")
        if self._groups.get(group.uuid) == group:
            return
        with self._lock:
            if group.uuid in self._deleted:
                raise GroupNotFound(f"group {group.name} was deleted")
            self._groups[group.uuid] = group
            if self._maintenance is None:
                self._maintenance = threading.Thread(
                    target=self._maintain, name="wings-share", daemon=True
                )
                self._maintenance.start()

    def _acquire_from(
        self,
        group: ShareGroup,
        member: str,
        partition: Partition | None,
        messages_max: int,
        rows_max: int,
    ) -> list[LeasedRange]:
        states = self._states(group.topic, partition)
        turn = next(self._turns) % len(states) if states else 0  # No partition is always last.
        ranges: list[LeasedRange] = []
        for number, state in enumerate(ordered := states[turn:] + states[:turn]):
            if state.next_offset == 0:
                continue  # Any value can be asked for: nothing is kept of what was never written.
            bounds = Bounds(state.log_start_offset, state.next_offset)
            taken = sum(leased.messages for leased in ranges)
            if taken >= min(messages_max, rows_max):
                break
            try:
                if not self._core.is_loaded(group, state.partition):
                    some = ordered[number : number + LOAD_PARTITIONS_MAX]
                    self._runner.run(self._core.load(group, [each.partition for each in some]))
                if self._core.look(group, state.partition, bounds) != 0:
                    continue
                ranges += self._runner.run(
                    self._core.acquire(
                        group,
                        state.partition,
                        bounds,
                        member,
                        messages_max - taken,
                        rows_max - taken,
                        self._batch_end(group, state.partition),
                        alone=not ranges,
                    )
                )
            except WingsError:
                if not ranges:
                    raise
                break  # What was handed out must reach its worker.
            limit = group.config.delivery_limit
            if ranges and is_throttled(ranges[-1].delivery_count - 1, limit):
                break
        return ranges

    def _batch_end(self, group: ShareGroup, partition: Partition) -> Callable[[int], int] | None:
        if group.config.acquire_mode != "batch_optimized":
            return None

        def batch_end(offset: int) -> int:
            try:
                located = self._registry.locate(group.topic.uuid, partition, offset, 1)
            except OffsetOutOfRange:
                return offset  # Retention has just passed it.
            return located.locations[0].end_offset if located.locations else offset

        return batch_end

    def _again(self, group: ShareGroup, partition: Partition | None) -> float | None:
        again = None
        if partition is None and group.topic.partition_key is not None:
            again = PARTITIONS_SECONDS
        for state in self._states(group.topic, partition):
            if state.next_offset == 0:
                continue  # A commit is heard of.
            bounds = Bounds(state.log_start_offset, state.next_offset)
            again = _shorter(again, self._core.look(group, state.partition, bounds))
        return again

    def _states(self, topic: Topic, partition: Partition | None) -> list[PartitionState]:
        """Return where the log stands in what is asked for; all partitions are a little old."""
        if partition is None and topic.partition_key is None:
            partition = UNPARTITIONED
        if partition is not None:
            return [self._registry.partition_state(topic.uuid, partition)]
        known = self._topics.get(topic.uuid)
        if known is None or known.deadline.passed:
            states = self._registry.partition_states(topic.uuid)
            known = _Known(states, Deadline.after(PARTITIONS_SECONDS))
            with self._lock:
                self._topics[topic.uuid] = known
                while len(self._topics) > TOPICS_MAX:
                    self._topics.popitem(last=False)
        return known.states

    def _forget_partitions(self, topic: Topic, partition: Partition | None) -> bool:
        """Forget what all partitions were; false where nothing was remembered."""
        if partition is not None or topic.partition_key is None:
            return False
        with self._lock:
            return self._topics.pop(topic.uuid, None) is not None

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
            self._runner.run(self._core.load(group, [partition]))
            return self._runner.run(self._core.acknowledge(group, partition, bounds, member, asked))
        except WingsError as error:
            return [error] * len(asked)

    def _wake(self, group_uuid: str) -> None:
        with self._lock:
            callbacks = list(self._watchers.get(group_uuid, {}).values())
        for callback in callbacks:
            callback()

    def _maintain(self) -> None:
        """Give up what expired at the delivery limit, also where nobody asks for messages."""
        while not self._stopped.wait(MAINTENANCE_SECONDS):
            with self._lock:
                groups = list(self._groups.values())
            for group in groups:
                for partition in self._core.exhausted_places(group):
                    try:
                        state = self._registry.partition_state(group.topic.uuid, partition)
                        bounds = Bounds(state.log_start_offset, state.next_offset)
                        self._runner.run(self._core.give_up(group, partition, bounds))
                    except WingsError as error:
                        _logger.info("nothing was given up of %s: %s", group.name, error.message)
                    except Exception:
                        _logger.exception("giving up messages of %s failed", group.name)


def _shorter(one: float | None, other: float | None) -> float | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


def _describe(log: PartitionState, known: Known) -> SharePartitionState:
    start = max(known.start_offset, log.log_start_offset)
    above = sum(
        tomb.last - max(tomb.first, start) + 1 for tomb in known.finished if tomb.last >= start
    )
    lag = max(0, log.next_offset - start - above)
    return SharePartitionState(log.partition, start, known.in_flight, lag)


def _in_registry(registry: OffsetRegistry) -> FindOffset:
    def find(topic: Topic, partition: Partition, timestamp: int) -> int:
        return registry.offset_for_timestamp(topic.uuid, partition, timestamp)

    return find
