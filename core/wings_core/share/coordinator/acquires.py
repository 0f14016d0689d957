"""Acquires: leases messages of the partitions that are ready, within the bounds of the log."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from wings_core.contracts.messages import MEMBER_CHARACTERS_MAX
from wings_core.errors import InvalidArgument, OffsetOutOfRange, Unavailable, WingsError
from wings_core.metadata.interfaces import OffsetRegistry
from wings_core.model import LeasedRange, PartitionState, ShareGroup
from wings_core.partitions import UNPARTITIONED, Partition
from wings_core.share.coordinator.acquiring import Acquiring, Leased, all_of
from wings_core.share.coordinator.core import CoordinatorCore
from wings_core.share.coordinator.group_table import GroupTable
from wings_core.share.coordinator.partition_table import READ_PARTITIONS_MAX, Bounds
from wings_core.share.coordinator.ready import ReadyPartitions
from wings_core.share.counts import ShareCounts
from wings_core.share.model import Acquired, AcquireRequest
from wings_core.share.quorum.run import Procedure, Runner

PEEK_PARTITIONS = 16
"""Ready partitions that an acquire looks at first; where they have nothing, it looks at more."""

PEEK_MIN = 4
"""So many at least of acquires side by side that want fewer messages: some have nothing."""


@dataclass(slots=True)
class Begun:
    """Acquires of a group, side by side; all of their procedures are to be run."""

    group: ShareGroup
    index: ReadyPartitions
    requests: int
    parts: list[Acquiring] = field(default_factory=list[Acquiring])
    """For each partition that requests ask for, or for any."""
    states: dict[Partition, PartitionState] = field(default_factory=dict[Partition, PartitionState])
    """Where the partitions stood that are looked at."""
    generations: dict[Partition, int] = field(default_factory=dict[Partition, int])
    """As of which they were ready."""

    @property
    def procedures(self) -> list[Procedure[Any]]:
        """Those of all parts."""
        return [procedure for part in self.parts for procedure in part.procedures]


class Acquires:
    """Leases messages without waiting.

    Args:
        groups: Those that are used on this node.
        core: Whose procedures are run.
        runner: Runs them.
        registry: The log's index.
        counts: Of what is leased.
        local: Whether the only replica is in this process.
    """

    def __init__(
        self,
        groups: GroupTable,
        core: CoordinatorCore,
        runner: Runner,
        registry: OffsetRegistry,
        counts: ShareCounts,
        *,
        local: bool,
    ) -> None:
        self._groups = groups
        self._core = core
        self._runner = runner
        self._registry = registry
        self._counts = counts
        self._is_local = local

    def now(self, request: AcquireRequest) -> Acquired:
        """See `ShareCoordinator.acquire_now`."""
        request = self._checked(request)
        index = self._groups.index(request.group)
        try:
            ranges = self._acquire(request, index)
        except WingsError:
            index.took_some()  # It may have been woken for what another can get.
            raise
        if ranges:
            index.took_some()
            self._count_delivered(request.group, [ranges])
            return Acquired(tuple(ranges))
        if request.partition is not None:
            index.found_none(request.partition)
        return Acquired(())

    def begin(self, group: ShareGroup, requests: Sequence[AcquireRequest]) -> "Begun":
        """Return the procedures of acquires of a group, to be run beside others, then `finish`ed.

        Args:
            group: As it is now.
            requests: At least one.
        """
        index = self._groups.index(group)
        index.look()
        begun = Begun(group, index, len(requests))
        wanting: dict[Partition | None, dict[int, AcquireRequest]] = {}
        messages = 0
        for number, each in enumerate(requests):
            _check_member(each)
            messages += each.messages_max
            wanting.setdefault(self._only_partition(each), {})[number] = each
        most = min(READ_PARTITIONS_MAX, PEEK_PARTITIONS * len(requests), max(PEEK_MIN, messages))
        looked_at: list[list[PartitionState]] = []
        for wanted in wanting:
            found: list[PartitionState] = []
            for partition, generation in index.peek(wanted, most):
                begun.generations.setdefault(partition, generation)
                state = begun.states.get(partition)
                if state is None:
                    state = self._groups.recent_state(index, group, partition)
                    begun.states[partition] = state
                found.append(state)
            self._load(group, found)
            looked_at.append(found)
        # Only now, as nothing may fail any more: what is planned is kept from all others.
        for of_partition, found in zip(wanting.values(), looked_at, strict=True):
            begun.parts.append(Acquiring(self._core, group, of_partition, found, self._batch_end))
        return begun

    def finish(
        self, begun: "Begun", outcomes: Sequence[list[LeasedRange] | WingsError]
    ) -> list[Acquired | WingsError]:
        """Return what each request got, by the outcomes of its procedures."""
        leased: dict[int, Leased] = {}
        at = 0
        for part in begun.parts:
            end = at + len(part.procedures)
            leased |= part.outcomes(outcomes[at:end])
            at = end
        for partition, generation in begun.generations.items():
            state = begun.states[partition]
            if not (
                begun.index.is_ready(partition)
                and self._core.table.has_fresh(begun.group, partition, state.next_offset)
            ):
                self._looked_at(begun.index, begun.group, generation, state)
        begun.index.took_some()
        found = [leased[number] for number in range(begun.requests)]
        self._count_delivered(begun.group, found)
        return [each if isinstance(each, WingsError) else Acquired(tuple(each)) for each in found]

    def _checked(self, request: AcquireRequest) -> AcquireRequest:
        _check_member(request)
        group = self._groups.check(request.group)
        return request if group is request.group else replace(request, group=group)

    def _only_partition(self, request: AcquireRequest) -> Partition | None:
        """Return the one partition that a request may be served from; None: any."""
        if request.partition is None and request.group.topic.partition_key is None:
            return UNPARTITIONED
        return request.partition

    def _count_delivered(self, group: ShareGroup, found: Iterable[Leased]) -> None:
        """Count what was leased, which may be nothing."""
        delivered = redelivered = 0
        for leased in found:
            if not isinstance(leased, WingsError):
                for each in leased:
                    delivered += each.messages
                    redelivered += each.messages if each.delivery_count > 1 else 0
        if delivered:
            self._counts.add(group, delivered=delivered, redelivered=redelivered)

    def _looked_at(
        self,
        index: ReadyPartitions,
        group: ShareGroup,
        generation: int,
        state: PartitionState,
        *,
        found: bool = True,
    ) -> None:
        """Take a partition out of the index where it has nothing, after an acquire.

        Also for a while where it `found` none, as others held all that was asked for.
        """
        if self._groups.is_altered(group):
            return  # What was found was of before: who waits is woken to look anew.
        bounds = Bounds(state.log_start_offset, state.next_offset)
        again = self._core.table.look(group, state.partition, bounds) if bounds.end else None
        if again == 0 and not found:
            again = self._core.acquirer.retry_seconds(group, state.partition)
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
        most, tried = PEEK_PARTITIONS, set[Partition]()
        while some := index.peek(partition, most, tried):
            tried.update(each for each, _ in some)
            most = READ_PARTITIONS_MAX
            if fresh is None:
                states = [self._groups.state(index, group, each) for each, _ in some]
            else:
                states = [fresh]
            ranges = self._acquire_of(request, states)
            for (_, generation), state in zip(some, states, strict=True):
                self._looked_at(index, group, generation, state, found=bool(ranges))
            if ranges:
                return ranges
        return []

    def _acquire_of(
        self, request: AcquireRequest, states: Sequence[PartitionState]
    ) -> list[LeasedRange]:
        """Lease what is available in some partitions, side by side where there are several."""
        if procedures := self._side_by_side(request, states):
            ranges = all_of(self._runner.run_all(procedures))
            if isinstance(ranges, WingsError):
                raise ranges
            if ranges:
                return list(ranges)
        return self._runner.run(self._core.acquirer.acquire(request, states, self._batch_end))

    def _side_by_side(
        self, request: AcquireRequest, states: Sequence[PartitionState]
    ) -> list[Procedure[list[LeasedRange]]]:
        """See `Acquirer.side_by_side`; loads the partitions, of which some may be known already."""
        group, table = request.group, self._core.table
        written = [state for state in states if state.next_offset]
        if len(written) < 2 or request.messages_max < 2:
            return []
        self._load(group, written)
        loaded = [state for state in written if table.is_loaded(group, state.partition)]
        return self._core.acquirer.side_by_side(request, loaded)

    def _load(self, group: ShareGroup, states: Sequence[PartitionState]) -> None:
        """Read the state of partitions that are not known yet; blocks for the replicas then."""
        table = self._core.table
        written = [state.partition for state in states if state.next_offset]
        if not all(table.is_loaded(group, partition) for partition in written):
            with suppress(Unavailable):
                self._runner.run(table.load(group, written))

    def _batch_end(self, group: ShareGroup, partition: Partition, offset: int) -> int:
        try:
            located = self._registry.locate(group.topic.uuid, partition, offset, 1)
        except OffsetOutOfRange:
            return offset  # Retention has just passed it.
        return located.locations[0].end_offset if located.locations else offset


def _check_member(request: AcquireRequest) -> None:
    if not 1 <= len(request.member) <= MEMBER_CHARACTERS_MAX:
        raise InvalidArgument(f"a member has 1 to {MEMBER_CHARACTERS_MAX} characters")
    assert request.messages_max >= 1
    assert request.rows_max >= 1
