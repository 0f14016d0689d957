"""The entries of one acknowledge request in one partition, checked and sorted."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from wings_core.errors import InvalidArgument, InvalidRecordState, Unavailable, WingsError
from wings_core.model import Lease, member_tag
from wings_core.share.model import Acknowledgement
from wings_core.share.quorum.votes import Verdict
from wings_core.share.replica.requests import CountedRange

OFFSET_MAX = 1 << 62
"""No message has a later offset, and replicas refuse to be asked about one."""


@dataclass(slots=True)
class SettleEntry:
    """One acknowledgement of a partition, cut to what the log still has."""

    asked: Acknowledgement
    first: int
    last: int
    lease: Lease
    until: float = 0.0
    """When its lease is over."""
    counts: list[CountedRange] = field(default_factory=list)
    """Deliveries of its parts, the present one included."""
    gone: bool = False
    """Wholly below the log's start."""
    error: WingsError | None = None

    def exhausted(self, limit: int) -> bool:
        """Tell whether a release archives at least a part of it."""
        if self.asked.type != "release" or not self.asked.counts:
            return False
        return any(part.count >= limit for part in self.counts)


def entries_of(
    asked: Sequence[Acknowledgement], member: str, log_start: int
) -> list[SettleEntry] | WingsError:
    """Check what needs no state: ranges, leases, whose they are.

    Returns:
        The entries in the order given, or why all of them fail.
    """
    tag = member_tag(member)
    entries: list[SettleEntry] = []
    for acknowledgement in asked:
        first, last = acknowledgement.first, acknowledgement.last
        if not 0 <= first <= last:
            return InvalidArgument(f"offsets {first} to {last} are no range")
        gone = last < log_start
        if gone:
            # Whatever it was held with: retention has finished it.
            entries.append(SettleEntry(acknowledgement, first, last, Lease("", 0, ""), gone=True))
            continue
        try:
            lease = Lease.parse(acknowledgement.lease)
        except InvalidArgument:
            lease = None  # To a worker, what leases look like is nothing.
        if lease is None or lease.member_tag != tag or last > OFFSET_MAX:
            return not_held(acknowledgement, member)
        entries.append(SettleEntry(acknowledgement, max(first, log_start), last, lease))
    return overlap(entries) or entries


def not_held(asked: Acknowledgement, member: str) -> InvalidRecordState:
    """Return the error for what a member does not hold with the lease that it named."""
    return InvalidRecordState(
        f"messages {asked.first} to {asked.last} of partition {asked.partition:.80} are not held "
        f"by {member:.80} with lease {asked.lease:.80}; nothing of the partition was changed",
        first=asked.first,
        last=asked.last,
    )


def not_released(
    asked: Acknowledgement, member: str, verdict: Verdict, *, alone: bool
) -> WingsError:
    """Return the error for what was not released.

    Args:
        asked: The acknowledgement.
        member: The member that asked.
        verdict: The outcome of the release.
        alone: Whether nothing else of the request was done.
    """
    if verdict is Verdict.UNKNOWN:
        return unknown(asked)
    if alone:
        return not_held(asked, member)
    return InvalidRecordState(
        f"messages {asked.first} to {asked.last} of partition {asked.partition:.80} are not held "
        f"by {member:.80} any more; what else was asked for in the request is answered for by "
        "itself",
        first=asked.first,
        last=asked.last,
    )


def not_tried(asked: Acknowledgement) -> Unavailable:
    """Return the error for what was left alone as something else of the request had failed."""
    return Unavailable(
        f"messages {asked.first} to {asked.last} stay held: too few of the replicas of holds "
        "answered to acknowledge others of the request"
    )


def unknown(asked: Acknowledgement) -> Unavailable:
    """Return the error for what may have been done."""
    return Unavailable(
        f"it is unknown whether messages {asked.first} to {asked.last} were acknowledged: too few "
        "of the replicas of holds answered",
        in_doubt=True,
    )


def overlap(entries: Sequence[SettleEntry]) -> InvalidRecordState | None:
    """Return the error of entries of which two have a message in common, if there are such."""
    ordered = sorted((entry for entry in entries if not entry.gone), key=lambda entry: entry.first)
    for before, after in itertools.pairwise(ordered):
        if after.first <= before.last:
            return InvalidRecordState(
                f"messages {after.first} to {min(before.last, after.last)} are acknowledged twice "
                "in one request; nothing of the partition was changed"
            )
    return None
