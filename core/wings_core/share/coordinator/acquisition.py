"""Acquisition: hands out what there is now, over all partitions that a member asks for."""

import random
from collections.abc import Callable
from dataclasses import replace

from wings_core.errors import OffsetOutOfRange, WingsError
from wings_core.metadata.interfaces import OffsetRegistry
from wings_core.partitions import Partition
from wings_core.share.coordinator.core import Bounds, CoordinatorCore
from wings_core.share.coordinator.topic_partitions import PARTITIONS_SECONDS, TopicPartitions
from wings_core.share.model import Acquired, AcquireRequest, LeasedRange, ShareGroup
from wings_core.share.quorum.links import Runner
from wings_core.share.state.partition import is_throttled

LOAD_PARTITIONS_MAX = 256
"""Partitions whose state is read from the replicas at a time."""


class Acquisition:
    """Runs the core's hand-out over partitions; all methods from any thread.

    Args:
        core: Of the coordinator.
        runner: Runs its procedures.
        registry: The log's index.
        partitions: Where the log stands.
    """

    def __init__(
        self,
        core: CoordinatorCore,
        runner: Runner,
        registry: OffsetRegistry,
        partitions: TopicPartitions,
    ) -> None:
        self._core = core
        self._runner = runner
        self._registry = registry
        self._partitions = partitions
        self._rng = random.Random()

    def now(self, request: AcquireRequest) -> Acquired:
        """Lease what there is; see `ShareCoordinator.acquire_now`."""
        group, partition = request.group, request.partition
        ranges = self._lease(request)
        if not ranges and self._partitions.forget(group.topic, partition):
            ranges = self._lease(request)
        return Acquired(tuple(ranges), None if ranges else self._again(group, partition))

    def _lease(self, request: AcquireRequest) -> list[LeasedRange]:
        group, core = request.group, self._core
        states = self._partitions.states(group.topic, request.partition)
        # No partition is always last, in whatever rhythm members of several groups ask.
        turn = self._rng.randrange(len(states)) if states else 0
        ranges: list[LeasedRange] = []
        may_catch_up = True
        for number, state in enumerate(ordered := states[turn:] + states[:turn]):
            if state.next_offset == 0:
                continue  # Any value can be asked for: nothing is kept of what was never written.
            bounds = Bounds(state.log_start_offset, state.next_offset)
            taken = sum(leased.messages for leased in ranges)
            if taken >= min(request.messages_max, request.rows_max):
                break
            try:
                if not core.table.is_loaded(group, state.partition):
                    some = ordered[number : number + LOAD_PARTITIONS_MAX]
                    self._runner.run(core.table.load(group, [each.partition for each in some]))
                # Of one partition in a call, since replicas are asked, and while nothing waits.
                if (
                    may_catch_up
                    and not ranges
                    and core.table.needs_catch_up(group, state.partition)
                ):
                    may_catch_up = False
                    self._runner.run(core.acquirer.catch_up(group, state.partition))
                if core.table.look(group, state.partition, bounds) != 0:
                    continue
                ranges += self._runner.run(
                    core.acquirer.acquire(
                        replace(
                            request,
                            messages_max=request.messages_max - taken,
                            rows_max=request.rows_max - taken,
                        ),
                        state.partition,
                        bounds,
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
        for state in self._partitions.states(group.topic, partition):
            if state.next_offset == 0:
                continue  # A commit is heard of.
            bounds = Bounds(state.log_start_offset, state.next_offset)
            again = shorter(again, self._core.table.look(group, state.partition, bounds))
        return again


def shorter(one: float | None, other: float | None) -> float | None:
    """Return the shorter of two times, of which None is the longest."""
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)
