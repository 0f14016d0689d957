"""Acquires: leases messages of the partitions that are ready, within the bounds of the log."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from wings_core.contracts.messages import MEMBER_CHARACTERS_MAX
from wings_core.errors import InvalidArgument, OffsetOutOfRange, Unavailable, WingsError
from wings_core.metadata.interfaces import OffsetRegistry
from wings_core.model import LeasedRange, PartitionState, ShareGroup
from wings_core.partitions import UNPARTITIONED, Partition
from wings_core.share.coordinator.core import CoordinatorCore
from wings_core.share.coordinator.group_table import GroupTable
from wings_core.share.coordinator.lease import Bundle, Leased
from wings_core.share.coordinator.partition_table import READ_PARTITIONS_MAX, Bounds
from wings_core.share.coordinator.ready import ReadyPartitions
from wings_core.share.counts import ShareCounts
from wings_core.share.model import Acquired, AcquireRequest, ReadTimes
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
    begun_at: float
    leased: list[Leased]
    """The outcome of each request, so far."""
    bundles: list[Bundle] = field(default_factory=list[Bundle])
    procedures: list[Procedure[Any]] = field(default_factory=list[Procedure[Any]])
    """One for each bundle."""
    states: dict[Partition, PartitionState] = field(default_factory=dict[Partition, PartitionState])
    """Logs of the partitions looked at."""
    generations: dict[Partition, int] = field(default_factory=dict[Partition, int])
    """Generations as of which they were ready."""


class Acquires:
    """Leases messages without waiting.

    Args:
        groups: The groups that are used on this node.
        core: Their procedures.
        runner: Runs them.
        registry: The log's index.
        counts: Counts leased messages.
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

    def now(self, request: AcquireRequest, times: ReadTimes | None) -> Acquired:
        """Lease what is available now; see `Coordinator.acquire_now`.

        Args:
            request: The request.
            times: Reads the times of messages, where the request names nothing else.
        """
        _check_member(request)
        group = self._groups.check(request.group)
        request = replace(request, group=group, times=request.times or times)
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
            group: The group, as it is now.
            requests: At least one.
        """
        index = self._groups.index(group)
        index.look()
        begun = Begun(group, index, self._core.now(), [[] for _ in requests])
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
            error = self._prepare(group, found)
            if error is not None and not isinstance(error, Unavailable):
                raise error
            looked_at.append(found)
        # Only now, as nothing may fail any more: what is planned is kept from all others.
        for of_partition, found in zip(wanting.values(), looked_at, strict=True):
            plan = self._core.leases.plan(group, of_partition, found, self._batch_end)
            for number, failed in plan.errors.items():
                begun.leased[number] = failed
            begun.bundles += plan.bundles
        begun.procedures = [self._core.leases.hold(group, bundle) for bundle in begun.bundles]
        return begun

    def finish(
        self, begun: "Begun", outcomes: Sequence[list[tuple[int, Leased]] | WingsError]
    ) -> list[Acquired | WingsError]:
        """Return what each request got, by the outcomes of its procedures."""
        group = begun.group
        found = _gathered(begun.leased, begun.bundles, outcomes)
        if (self._core.now() - begun.begun_at) * 2_000 >= group.config.lock_duration_ms:
            # Other procedures took long, which all waited for: leases may be over by now.
            found = [
                leased
                if isinstance(leased, WingsError)
                else [each for each in leased if self._core.table.is_leased(group, each)]
                for leased in found
            ]
        for partition, generation in begun.generations.items():
            state = begun.states[partition]
            if not (
                begun.index.is_ready(partition)
                and self._core.table.has_fresh(group, partition, state.next_offset)
            ):
                self._looked_at(begun.index, group, generation, state)
        begun.index.took_some()
        self._count_delivered(group, found)
        return [each if isinstance(each, WingsError) else Acquired(tuple(each)) for each in found]

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
            again = self._core.leases.retry_seconds(group, state.partition)
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
            ranges = self._lease(request, states)
            for (_, generation), state in zip(some, states, strict=True):
                self._looked_at(index, group, generation, state, found=bool(ranges))
            if ranges:
                return ranges
        return []

    def _lease(
        self, request: AcquireRequest, states: Sequence[PartitionState]
    ) -> list[LeasedRange]:
        """Lease what is available in some partitions; one whose holds fail is not tried again.

        Raises:
            WingsError: Nothing was leased.
        """
        group, leases = request.group, self._core.leases
        error, left = self._prepare(group, states), list(states)
        while left:
            plan = leases.plan(group, {0: request}, left, self._batch_end)
            error = plan.errors.get(0, error)
            if not plan.bundles:
                break
            outcomes = self._runner.run_all([leases.hold(group, each) for each in plan.bundles])
            (leased,) = _gathered([[]], plan.bundles, outcomes)
            if isinstance(leased, WingsError):
                raise leased
            if leased:
                return leased
            tried = {bundle.tracked.key.partition for bundle in plan.bundles}
            left = [state for state in left if state.partition not in tried]
        if error is not None:
            raise error
        return []

    def _prepare(self, group: ShareGroup, states: Sequence[PartitionState]) -> WingsError | None:
        """Load partitions that are not known yet; blocks for the replicas then.

        Returns:
            The error for which some are not loaded.
        """
        table = self._core.table
        if self._is_local and all(
            table.is_loaded(group, state.partition) for state in states if state.next_offset
        ):
            return None
        return self._runner.run_all([self._core.leases.prepare(group, states)])[0]

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


def _gathered(
    before: Sequence[Leased],
    bundles: Sequence[Bundle],
    outcomes: Sequence[list[tuple[int, Leased]] | WingsError],
) -> list[Leased]:
    """Return the ranges that each request got of all bundles, or an error where it got none."""
    errors = [each if isinstance(each, WingsError) else None for each in before]
    ranges: list[list[LeasedRange]] = [[] for _ in before]
    for bundle, outcome in zip(bundles, outcomes, strict=True):
        of_bundle: list[tuple[int, Leased]]
        if isinstance(outcome, WingsError):
            of_bundle = [(each.number, outcome) for each in bundle.taken]
        else:
            of_bundle = outcome
        for number, leased in of_bundle:
            if isinstance(leased, WingsError):
                errors[number] = errors[number] or leased
            else:
                ranges[number] += leased
    return [found or error or [] for found, error in zip(ranges, errors, strict=True)]
