"""Coordinator: the core's procedures with a log, threads that wait, and a clock.

A call that waits for messages hears of commits by the registry's watch, of releases by a callback
of its own, and looks again by itself when a lock expires or a delay ends.
"""

import logging
import random
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, Self

from wings_core.contracts.messages import MEMBER_CHARACTERS_MAX
from wings_core.errors import (
    GroupNotFound,
    InvalidArgument,
    OffsetOutOfRange,
    StorageCorrupt,
    Unavailable,
    WingsError,
)
from wings_core.fetch.fetcher import Cancel
from wings_core.metadata.interfaces import OffsetRegistry
from wings_core.model import PartitionState
from wings_core.partitions import UNPARTITIONED, Partition
from wings_core.share.clock import Clock, MonotonicClock
from wings_core.share.coordinator.core import Bounds, CoordinatorCore
from wings_core.share.coordinator.entries import not_held
from wings_core.share.coordinator.partition_table import READ_PARTITIONS_MAX
from wings_core.share.coordinator.ready import ReadyPartitions
from wings_core.share.coordinator.starts import (
    FindOffsets,
    Finished,
    Position,
    Starts,
    finished_of,
)
from wings_core.share.coordinator.watchers import FindGroup, Watchers
from wings_core.share.counts import ShareCounts
from wings_core.share.interfaces import DeadLetters
from wings_core.share.model import (
    Acknowledgement,
    AcknowledgementResult,
    Acquired,
    AcquireRequest,
    Lease,
    LeasedRange,
    ShareGroup,
    ShareKey,
    SharePartitionState,
)
from wings_core.share.quorum.effects import Procedure
from wings_core.share.quorum.links import LocalLink, ReplicaLink, Runner
from wings_core.share.quorum.quorum import HoldQuorum
from wings_core.share.quorum.votes import Known
from wings_core.share.replica.interfaces import HeldRange, HoldReplica, LeaseEntry
from wings_core.share.replica.store import StoredPartition
from wings_core.times import Deadline

MAINTENANCE_SECONDS = 1.0
"""How often what expired at the delivery limit is looked for."""

WAKE_SECONDS_MIN = 0.005
"""Locks and delays that end within this time of each other wake members together."""

PEEK_PARTITIONS = 16
"""Ready partitions that an acquire looks at first; where they have nothing, it looks at more."""

SWEEP_SECONDS = 60.0
"""How often groups without waiting members are looked up, to forget deleted ones."""

SWEEP_MAX = 1_000
"""Groups looked at then: the first that are known, which make way for others when they are gone."""

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
        quorum = HoldQuorum(len(links), clock, rng, local=local)
        self._clock = clock
        self._is_local = local
        self._watchers = Watchers(find_group, self._end, self._know)
        self.counts = ShareCounts()
        self._core = CoordinatorCore(
            quorum, dead_letters, clock, rng, self._changed, archived=self._count_archived
        )
        self._runner = Runner(links)
        self._registry = registry
        self._indexes: dict[str, ReadyPartitions] = {}
        """By group."""
        self._starts = Starts(registry, find_offsets)
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
                        wait = _shorter(deadline.remaining(), acquired.again_after_seconds)
                        cancel.wake.wait(wait)
                        cancel.check()
                if acquired.ranges:
                    if cancel.wake.is_set():
                        self.wake_another(request.group)
                elif cancel.wake.is_set() or not deadline.passed:
                    acquired = self.acquire_now(request)  # It was woken, and no other for it.
        return list(acquired.ranges)

    def acquire_now(self, request: AcquireRequest) -> Acquired:
        """See `ShareCoordinator.acquire_now`."""
        request = self._checked(request)
        index = self._index(request.group)
        try:
            ranges = self._acquire(request, index)
        except WingsError:
            index.took_some()  # It may have been woken for what another can get.
            raise
        if ranges:
            index.took_some()
            return self._delivered(request.group, ranges)
        if request.partition is not None:
            index.found_none(request.partition)
        return Acquired((), index.next_due())

    def acquire_all(
        self, group: ShareGroup, requests: Sequence[AcquireRequest]
    ) -> list[Acquired | WingsError]:
        """See `ShareCoordinator.acquire_all`."""
        return self.settle(group, (), requests)[1]

    def settle(
        self,
        group: ShareGroup,
        requests: Sequence[tuple[str, Sequence[Acknowledgement]]],
        acquires: Sequence[AcquireRequest],
    ) -> tuple[list[list[AcknowledgementResult]], list[Acquired | WingsError]]:
        """See `ShareCoordinator.settle`."""
        if not acquires:
            return self.acknowledge_all(group, requests), []
        group = self._check(group)
        index = self._index(group)
        index.look()
        states: dict[Partition, PartitionState] = {}
        peeked: dict[Partition, int] = {}
        procedures: list[Procedure[list[LeasedRange]]] = []
        for each in map(self._checked, acquires):
            some = index.peek(self._only_partition(each), PEEK_PARTITIONS)
            for partition, generation in some:
                peeked.setdefault(partition, generation)
                if partition not in states:
                    states[partition] = self._recent_state(index, group, partition)
            found = [states[partition] for partition, _ in some]
            if len(acquires) == 1:
                procedures += self._side_by_side(each, found)
            if not procedures or len(acquires) > 1:
                procedures.append(self._core.acquirer.acquire(each, found, self._batch_end))
        results, outcomes = self._acknowledge_beside(group, requests, procedures)
        if len(acquires) == 1:
            outcomes = [_all_of(outcomes)]
        for partition, generation in peeked.items():
            self._looked_at(index, group, generation, states[partition])
        index.took_some()
        return results, [
            outcome if isinstance(outcome, WingsError) else self._delivered(group, outcome)
            for outcome in outcomes
        ]

    @contextmanager
    def following(self, group: ShareGroup, callback: Callable[[], None]) -> Generator[None]:
        """See `ShareCoordinator.following`."""
        with self._watchers.registered(self._check(group), callback):
            yield

    @contextmanager
    def watch(self, request: AcquireRequest, callback: Callable[[], None]) -> Generator[None]:
        """See `ShareCoordinator.watch`."""
        group = self._check(request.group)
        try:
            with self._index(group).waiting(request.partition, request.messages_max, callback):
                yield
        except BaseException:
            self.wake_another(group)
            raise

    def wake_another(self, group: ShareGroup) -> None:
        """See `ShareCoordinator.wake_another`."""
        index = self._indexes.get(group.uuid)
        if index is not None:
            index.took_some()

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
        return self._acknowledge_beside(self._check(group), requests, ())[0]

    def _acknowledge_beside(
        self,
        group: ShareGroup,
        requests: Sequence[tuple[str, Sequence[Acknowledgement]]],
        beside: Sequence[Procedure[list[LeasedRange]]],
    ) -> tuple[list[list[AcknowledgementResult]], Sequence[list[LeasedRange] | WingsError]]:
        """Acknowledge messages while acquires are carried out; returns the outcomes of both."""
        members = [member for member, _ in requests]
        asked: dict[tuple[int, Partition], list[Acknowledgement]] = {}
        for number, (_, entries) in enumerate(requests):
            for entry in entries:
                asked.setdefault((number, entry.partition), []).append(entry)
        others = {
            entry.partition
            for _, entries in requests
            for entry in entries
            if entry.type != "accept"
        }
        bounds = {
            key[1]: self._bounds(group, key[1])
            if key[1] in others
            else self._known_bounds(group, key[1])
            for key in asked
        }
        errors, outcomes = self._acknowledge(group, members, asked, bounds, beside)
        # Where retention has passed messages just now, they are acknowledged all the same.
        again = {
            key: entries
            for key, entries in asked.items()
            if any(errors[key]) and self._bounds(group, key[1]) != bounds[key[1]]
        }
        if again:
            fresh = {key[1]: self._bounds(group, key[1]) for key in again}
            errors |= self._acknowledge(group, members, again, fresh)[0]
        accepted = sum(
            entry.last - entry.first + 1
            for key, entries in asked.items()
            for entry, error in zip(entries, errors[key], strict=True)
            if error is None and entry.type == "accept"
        )
        if accepted:
            self.counts.add(group, accepted=accepted)
        found = {key: iter(of_key) for key, of_key in errors.items()}
        results = [
            [
                AcknowledgementResult(entry, next(found[number, entry.partition]))
                for entry in entries
            ]
            for number, (_, entries) in enumerate(requests)
        ]
        return results, outcomes

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
        known = self._read(group, [state.partition for state in logs])
        return [_describe(state, known[state.partition]) for state in logs]

    def stored(self, group: ShareGroup) -> list[StoredPartition]:
        """See `ShareCoordinator.stored`."""
        logs = self._registry.partition_states(self._check(group).topic.uuid)
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
        return self._runner.run(self._core.held(self._check(group)))

    def close(self) -> None:
        """See `ShareCoordinator.close`."""
        self._stopped.set()
        self._watchers.close()
        for index in list(self._indexes.values()):
            index.close()
        with self._lock:
            maintenance = self._maintenance
        if maintenance is not None:
            maintenance.join()
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

    def _checked(self, request: AcquireRequest) -> AcquireRequest:
        if not 1 <= len(request.member) <= MEMBER_CHARACTERS_MAX:
            raise InvalidArgument(f"a member has 1 to {MEMBER_CHARACTERS_MAX} characters")
        assert request.messages_max >= 1
        assert request.rows_max >= 1
        group = self._check(request.group)
        return request if group is request.group else replace(request, group=group)

    def _delivered(self, group: ShareGroup, ranges: Sequence[LeasedRange]) -> Acquired:
        """Count what was leased, which may be nothing."""
        if ranges:
            again = [each.messages for each in ranges if each.delivery_count > 1]
            delivered = sum(each.messages for each in ranges)
            self.counts.add(group, delivered=delivered, redelivered=sum(again))
        return Acquired(tuple(ranges), None)

    def _only_partition(self, request: AcquireRequest) -> Partition | None:
        """Return the one partition that a request may be served from; None: any."""
        if request.partition is None and request.group.topic.partition_key is None:
            return UNPARTITIONED
        return request.partition

    def _looked_at(
        self, index: ReadyPartitions, group: ShareGroup, generation: int, state: PartitionState
    ) -> None:
        """Take a partition out of the index where it has nothing, after an acquire."""
        bounds = Bounds(state.log_start_offset, state.next_offset)
        again = self._core.table.look(group, state.partition, bounds) if bounds.end else None
        index.looked_at(state.partition, generation, state.next_offset, again)

    def _acquire(self, request: AcquireRequest, index: ReadyPartitions) -> list[LeasedRange]:
        """Lease what is available in partitions that are ready; takes out those that are not."""
        group, fresh = request.group, None
        index.look()
        partition = self._only_partition(request)
        if partition is not None:
            fresh = self._registry.partition_state(group.topic.uuid, partition)
            index.note(fresh)
        elif not self._is_local:
            index.look_again()  # Over a network, commits are told of a while later.
        most, tried = PEEK_PARTITIONS, set[tuple[Partition, int]]()
        while some := [each for each in index.peek(partition, most) if each not in tried]:
            tried.update(some)
            most = READ_PARTITIONS_MAX
            if fresh is None:
                states = [self._state(index, group, each) for each, _ in some]
            else:
                states = [fresh]
            ranges = self._acquire_of(request, states)
            for (_, generation), state in zip(some, states, strict=True):
                self._looked_at(index, group, generation, state)
            if ranges:
                return ranges
        return []

    def _acquire_of(
        self, request: AcquireRequest, states: Sequence[PartitionState]
    ) -> list[LeasedRange]:
        """Lease what is available in some partitions, side by side where there are several."""
        if procedures := self._side_by_side(request, states):
            ranges = _all_of(self._runner.run_all(procedures))
            if isinstance(ranges, WingsError):
                raise ranges
            if ranges:
                return ranges
        return self._runner.run(self._core.acquirer.acquire(request, states, self._batch_end))

    def _side_by_side(
        self, request: AcquireRequest, states: Sequence[PartitionState]
    ) -> list[Procedure[list[LeasedRange]]]:
        """See `Acquirer.side_by_side`; loads the partitions, of which some may be known already."""
        group, table = request.group, self._core.table
        written = [state for state in states if state.next_offset]
        if len(written) < 2 or request.messages_max < 2:
            return []
        with suppress(Unavailable):
            self._runner.run(table.load(group, [state.partition for state in written]))
        loaded = [state for state in written if table.is_loaded(group, state.partition)]
        return self._core.acquirer.side_by_side(request, loaded)

    def _state(
        self, index: ReadyPartitions, group: ShareGroup, partition: Partition
    ) -> PartitionState:
        """Return where a partition's log stands; where it was just listed, as of then."""
        state = index.listed_state(partition)
        if state is None:
            state = self._registry.partition_state(group.topic.uuid, partition)
            index.note(state)
        return state

    def _recent_state(
        self, index: ReadyPartitions, group: ShareGroup, partition: Partition
    ) -> PartitionState:
        """Return where a partition stood a moment ago; what is told of it since is in it."""
        state = index.known_state(partition) if self._is_local else None
        if state is None or index.is_behind(state):
            return self._state(index, group, partition)
        return state

    def _index(self, group: ShareGroup) -> ReadyPartitions:
        """Return the index of a group, made where there is none."""
        index = self._indexes.get(group.uuid)
        if index is not None:
            return index
        topic_uuid = group.topic.uuid
        made = ReadyPartitions(
            self._clock.now,
            lambda: self._registry.partition_states(topic_uuid),
            lambda callback: self._registry.watch_topic(topic_uuid, callback),
        )
        with self._lock:
            index = self._indexes.setdefault(group.uuid, made)
        if index is not made:
            made.close()
        return index

    def _changed(self, group_uuid: str, partition: Partition | None) -> None:
        """Hear that something may have become available; None: of any partition."""
        index = self._indexes.get(group_uuid)
        if partition is None:
            self._watchers.wake(group_uuid)
        if index is not None:
            if partition is None:
                index.wake_all()
            else:
                index.changed(partition)

    def _count_archived(self, group_uuid: str, messages: int) -> None:
        group = self._groups.get(group_uuid)
        if group is not None:
            self.counts.add(group, dead_lettered=messages)

    def _batch_end(self, group: ShareGroup, partition: Partition, offset: int) -> int:
        try:
            located = self._registry.locate(group.topic.uuid, partition, offset, 1)
        except OffsetOutOfRange:
            return offset  # Retention has just passed it.
        return located.locations[0].end_offset if located.locations else offset

    def _check(self, group: ShareGroup) -> ShareGroup:
        """Refuse what cannot be served any more; return and remember the group as it is now."""
        if self._stopped.is_set():
            raise Unavailable("the coordinator of share groups is closed")
        group = self._watchers.current(group)
        known = self._groups.get(group.uuid)
        if known is group:
            return group  # To compare them takes long, as they have a schema.
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
        self._changed(group.uuid, None)

    def _end(self, group: ShareGroup) -> None:
        """Forget a group that another node has deleted, and wake those who wait for it."""
        self._forget(group)
        self._watchers.wake(group.uuid)

    def _forget(self, group: ShareGroup) -> None:
        with self._lock:
            self._core.table.forget(group)
            self._groups.pop(group.uuid, None)
            index = self._indexes.pop(group.uuid, None)
        if index is not None:
            index.close()

    def _acknowledge(
        self,
        group: ShareGroup,
        members: Sequence[str],
        asked: Mapping[tuple[int, Partition], Sequence[Acknowledgement]],
        bounds: Mapping[Partition, Bounds | WingsError],
        beside: Sequence[Procedure[list[LeasedRange]]] = (),
    ) -> tuple[
        dict[tuple[int, Partition], list[WingsError | None]],
        Sequence[list[LeasedRange] | WingsError],
    ]:
        """Acknowledge entries by request and partition, and carry out acquires meanwhile.

        Returns:
            The errors of the entries in the same order, and the outcomes of the acquires.
        """
        errors: dict[tuple[int, Partition], list[WingsError | None]] = {}
        begun: dict[tuple[int, Partition], Procedure[list[WingsError | None]]] = {}
        for key, entries in asked.items():
            of_log, member = bounds[key[1]], members[key[0]]
            if isinstance(of_log, WingsError):
                errors[key] = [of_log] * len(entries)
            elif of_log.end == 0:  # Never written to; nothing is kept of it.
                errors[key] = [not_held(entries[0], member)] * len(entries)
            else:
                begun[key] = self._core.acknowledge.run(group, key[1], of_log, member, entries)
        outcomes: Sequence[Any]
        try:
            if begun:
                partitions = [partition for _, partition in begun]
                self._runner.run(self._core.table.load(group, partitions))
            procedures: list[Procedure[Any]] = [*begun.values(), *beside]
            outcomes = self._runner.run_all(procedures)
        except WingsError as error:
            outcomes = [error] * (len(begun) + len(beside))
        for key, outcome in zip(begun, outcomes, strict=False):
            failed = isinstance(outcome, WingsError)
            errors[key] = [outcome] * len(asked[key]) if failed else outcome
        return errors, outcomes[len(begun) :]

    def _known_bounds(self, group: ShareGroup, partition: Partition) -> Bounds | WingsError:
        index = self._indexes.get(group.uuid)
        state = None if index is None else index.known_state(partition)
        if state is None:
            return self._bounds(group, partition)
        return Bounds(state.log_start_offset, state.next_offset)

    def _bounds(self, group: ShareGroup, partition: Partition) -> Bounds | WingsError:
        try:
            state = self._registry.partition_state(group.topic.uuid, partition)
        except WingsError as error:
            return error
        return Bounds(state.log_start_offset, state.next_offset)

    def _wake_due(self) -> float:
        """Wake members for locks and delays that have ended; returns the seconds to wait."""
        dues = [index.wake_due() for index in list(self._indexes.values()) if not index.is_idle]
        soonest = min((due for due in dues if due is not None), default=MAINTENANCE_SECONDS)
        return min(MAINTENANCE_SECONDS, max(WAKE_SECONDS_MIN, soonest))

    def _drop_unused(self) -> None:
        """Drop the indexes of groups that no member has asked for in a while."""
        with self._lock:
            unused = [
                self._indexes.pop(group_uuid)
                for group_uuid, index in list(self._indexes.items())
                if index.is_idle and index.used_at + SWEEP_SECONDS < self._clock.now()
            ]
        for index in unused:
            index.close()

    def _maintain(self) -> None:
        """Archive what expired at the delivery limit, also where no member acquires."""
        sweep = Deadline.after(SWEEP_SECONDS)
        maintain = Deadline.after(MAINTENANCE_SECONDS)
        while not self._stopped.wait(self._wake_due()):
            if not maintain.passed:
                continue
            maintain = Deadline.after(MAINTENANCE_SECONDS)
            with self._lock:
                groups = list(self._groups.values())
            if sweep.passed:
                self._watchers.look(groups[:SWEEP_MAX])
                self._drop_unused()
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
                        self._changed(group.uuid, partition)
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


def _all_of(
    outcomes: Sequence[list[LeasedRange] | WingsError],
) -> list[LeasedRange] | WingsError:
    """Return what was leased of several partitions, or why nothing was."""
    errors = [outcome for outcome in outcomes if isinstance(outcome, WingsError)]
    ranges = [
        leased for outcome in outcomes if not isinstance(outcome, WingsError) for leased in outcome
    ]
    return errors[0] if errors and not ranges else ranges


def _shorter(one: float | None, other: float | None) -> float | None:
    """Return the shorter of two times, of which None is the longest."""
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)
