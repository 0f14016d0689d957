"""Fresh: leases messages that were never looked at to several members at once.

    plan ─▶ hold, by one request of a partition for all members ─▶ leased ranges

That is what workers take that keep up: no message was delivered before, so nothing is throttled, at
the delivery limit, or to be left to another. What needs a closer look is the `Acquirer`'s.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from wings_core.errors import WingsError
from wings_core.model import LeasedRange, PartitionState, ShareGroup
from wings_core.share.clock import Clock
from wings_core.share.coordinator.acquirer import Acquirer
from wings_core.share.coordinator.finalize import Finalizer
from wings_core.share.coordinator.partition_table import (
    READ_AGAIN_SECONDS,
    PartitionTable,
    TrackedPartition,
)
from wings_core.share.model import AcquireRequest, OffsetRange
from wings_core.share.quorum.quorum import HoldQuorum
from wings_core.share.quorum.run import Procedure
from wings_core.share.quorum.votes import Held
from wings_core.share.replica.requests import HoldRequest
from wings_core.share.state.partition import Pick


@dataclass(slots=True)
class Planned:
    """What requests take of one partition; its messages are pending."""

    tracked: TrackedPartition
    retired: Sequence[tuple[int, int]]
    """What retention has passed."""
    members: list[int] = field(default_factory=list[int])
    """The number of each request."""
    holds: list[HoldRequest] = field(default_factory=list[HoldRequest])
    """What each takes: one range, right behind that of the one before."""


class FreshAcquirer:
    """The procedures.

    Args:
        table: The partitions.
        quorum: Of the replicas.
        acquirer: Does what is left where not all is granted.
        finalizer: Tells the replicas what retention has passed.
        clock: What leases are counted by.
    """

    def __init__(
        self,
        table: PartitionTable,
        quorum: HoldQuorum,
        acquirer: Acquirer,
        finalizer: Finalizer,
        clock: Clock,
    ) -> None:
        self._table = table
        self._quorum = quorum
        self._acquirer = acquirer
        self._finalizer = finalizer
        self._clock = clock

    def plan(
        self,
        group: ShareGroup,
        requests: Sequence[AcquireRequest],
        states: Sequence[PartitionState],
    ) -> list[Planned] | None:
        """Divide what is new in loaded partitions among requests, the first of which comes first.

        All that is returned must be passed to `acquire`, and that be run.

        Args:
            group: Of all requests.
            requests: For any of the partitions, or for the only one.
            states: Where the logs of the partitions stand.

        Returns:
            None where the first of the partitions has other messages, or needs another look.
        """
        config = group.config
        if config.is_ordered or config.acquire_mode != "record_limit" or config.deliver_at_column:
            return None
        left = [min(request.messages_max, request.rows_max) for request in requests]
        total = sum(left)
        planned: list[Planned] = []
        at = 0
        with self._table.lock:
            now = self._clock.now()
            for log in states:
                tracked = self._table.get(group, log.partition)
                tracked.state.deliver_by(None)
                tracked.state.advance(now, log.log_start_offset)
                if (
                    tracked.state.has_ready
                    or tracked.collisions
                    # Others may have made room, of whom replicas know.
                    or (tracked.state.in_flight >= config.window and not self._quorum.is_local)
                ):
                    if planned:
                        break  # Its turn comes.
                    return None
                first, last = tracked.state.take_fresh(log.next_offset, total, config.in_flight_max)
                if first > last:
                    continue
                total -= last - first + 1
                part = Planned(tracked, tracked.state.take_retired())
                planned.append(part)
                while first <= last:
                    end = min(last, first + left[at] - 1)
                    lease = self._table.next_lease(requests[at].member)
                    part.members.append(at)
                    part.holds.append(
                        HoldRequest(
                            tracked.key,
                            (OffsetRange(first, end),),
                            lease,
                            config.lock_duration_ms,
                            config.in_flight_max,
                            requests[at].member,
                        )
                    )
                    left[at] -= end - first + 1
                    first = end + 1
                    if left[at] <= 0:
                        at += 1
                if total <= 0:
                    break
        return planned

    def acquire(
        self, group: ShareGroup, planned: Planned, *, alone: bool
    ) -> Procedure[list[tuple[int, Sequence[LeasedRange] | WingsError]]]:
        """Lease what was planned of a partition.

        Args:
            group: Its.
            planned: By `plan`.
            alone: Whether the members get nothing of other partitions.

        Returns:
            What each request got, by its number, or why it got nothing.
        """
        tracked, config = planned.tracked, group.config
        if planned.retired:
            yield from self._finalizer.retire(tracked, planned.retired)
        asked_at = self._clock.now()
        outcomes = yield from self._quorum.hold(planned.holds)
        until = self._quorum.expiry(asked_at, config.lock_duration_ms)
        leases = [(hold.ranges[0].first, hold.ranges[0].last, hold.lease) for hold in planned.holds]
        are_granted = [
            isinstance(outcome, Held) and outcome.is_all_of(first, last)
            for outcome, (first, last, _) in zip(outcomes, leases, strict=True)
        ]
        if all(are_granted) and self._clock.now() < until:
            with self._table.lock:
                tracked.read_again_seconds = READ_AGAIN_SECONDS[0]
                tracked.state.grant_each(leases, until)
            return [
                (
                    number,
                    [
                        LeasedRange(
                            tracked.key.partition,
                            first,
                            last,
                            str(lease),
                            1,
                            config.lock_duration_ms,
                        )
                    ],
                )
                for number, (first, last, lease) in zip(planned.members, leases, strict=True)
            ]
        found: list[tuple[int, Sequence[LeasedRange] | WingsError]] = []
        for number, outcome, (first, last, lease) in zip(
            planned.members, outcomes, leases, strict=True
        ):
            picks = [Pick(first, last, 0)]
            if isinstance(outcome, WingsError):
                self._acquirer.put_back(tracked, picks)
                found.append((number, outcome))
                continue
            ranges = yield from self._acquirer.granted(
                group, tracked, outcome, picks, lease, until, alone=alone
            )
            found.append((number, ranges))
        return found
