"""Votes: the answers of several replicas to one request, compared range by range."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from operator import attrgetter

from wings_core.errors import GroupNotFound, Unavailable, WingsError
from wings_core.model import HeldRange
from wings_core.share.model import OffsetRange
from wings_core.share.replica.requests import (
    Answers,
    CountedRange,
    DelayedRange,
    PartOutcome,
    RangeAnswer,
    ReplicaState,
)
from wings_core.share.state.partition import MessageStates
from wings_core.share.state.ranges import RangeMap, merged


class Verdict(Enum):
    """The outcome of a request in the name of leases."""

    DONE = 0
    REFUSED = 1
    """The leases do not hold at any majority; nothing was done, nor ever will be."""
    UNKNOWN = 2
    """Done on some replicas perhaps, and by the others perhaps later."""
    DISPUTED = 3
    """Unknown, and some replicas of the majority that answered refused the tombstone."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A range that could not be held, and when it is worth asking again, as far as is known."""

    first: int
    last: int
    retry_seconds: float


@dataclass(frozen=True, slots=True)
class HoldResult:
    """The outcome of a request to hold ranges."""

    granted: list[CountedRange]
    """Held at a majority, with the deliveries made before; the majority counts one more."""
    finished: list[OffsetRange]
    """At a majority."""
    refused: list[Refused]


@dataclass(frozen=True, slots=True)
class Renewed:
    """The outcome of a renewal."""

    verdict: Verdict
    counts: list[CountedRange]
    """Where it is done: deliveries of each part, the present one included."""


@dataclass(frozen=True, slots=True)
class Vote:
    """The answers of replicas about `[first, last]`."""

    first: int
    last: int
    parts: Mapping[int, RangeAnswer]

    def replicas(self, *outcomes: PartOutcome) -> list[int]:
        """Return the replicas that said one of these."""
        return [number for number, part in self.parts.items() if part.outcome in outcomes]

    def retry_seconds(self, majority: int) -> float:
        """Return when a majority may be free, as far as is known."""
        free = sum(part.outcome is PartOutcome.OK for part in self.parts.values())
        waits = sorted(
            part.retry_ms for part in self.parts.values() if part.outcome is PartOutcome.NOK
        )
        missing = majority - free
        return waits[missing - 1] / 1_000 if 0 < missing <= len(waits) else 0.0


def count_votes(answers: Mapping[int, Sequence[RangeAnswer]]) -> list[Vote]:
    """Return the votes on each range, in order, cut where any of the answers changes."""
    cuts = {
        cut for parts in answers.values() for part in parts for cut in (part.first, part.last + 1)
    }
    bounds = sorted(cuts)
    at = dict.fromkeys(answers, 0)
    votes: list[Vote] = []
    for first, end in itertools.pairwise(bounds):
        said: dict[int, RangeAnswer] = {}
        for number, parts in answers.items():
            while at[number] < len(parts) and parts[at[number]].last < first:
                at[number] += 1
            if at[number] < len(parts) and parts[at[number]].first <= first:
                said[number] = parts[at[number]]
        if said:
            votes.append(Vote(first, end - 1, said))
    return votes


def verdict_of(votes: Sequence[Vote], majority: int) -> Verdict:
    """Judge what is not final: a renewal or a release."""
    if votes and all(len(vote.replicas(PartOutcome.OK)) >= majority for vote in votes):
        return Verdict.DONE
    for vote in votes:
        if len(vote.replicas(PartOutcome.NOK, PartOutcome.TOMB)) >= majority:
            return Verdict.REFUSED
    return Verdict.UNKNOWN


def short_of(votes: Sequence[Vote], majority: int) -> list[OffsetRange]:
    """Return what some replica has a tombstone of, and no majority."""
    return [
        OffsetRange(vote.first, vote.last)
        for vote in votes
        if 0 < len(vote.replicas(PartOutcome.TOMB)) < majority
    ]


def divide(votes: Sequence[Vote], majority: int) -> tuple[list[Vote], list[Vote], list[Vote]]:
    """Return the votes of a hold by outcome: finished as some replica says, granted, refused."""
    finished: list[Vote] = []
    granted: list[Vote] = []
    refused: list[Vote] = []
    for vote in votes:
        if vote.replicas(PartOutcome.TOMB):
            finished.append(vote)
        elif len(vote.replicas(PartOutcome.OK)) >= majority:
            granted.append(vote)
        else:
            refused.append(vote)
    return finished, granted, refused


@dataclass(frozen=True, slots=True)
class KnownPartition:
    """The state of a partition by a majority of replicas."""

    start_offset: int
    finished: tuple[OffsetRange, ...]
    """Above the start, in order."""
    counts: tuple[CountedRange, ...]
    in_flight: int
    to_repair: tuple[OffsetRange, ...]
    """Finished as some replica says, and not at a majority."""


UNTOUCHED = KnownPartition(0, (), (), 0, ())
"""State of partitions that no replica knows of: one for all, as there may be very many."""

_touched_of = attrgetter("start_offset", "finished", "counts", "in_flight")


def _is_touched(state: ReplicaState) -> bool:
    return _touched_of(state) != (0, (), (), 0)


def known_of(states: Sequence[ReplicaState], majority: int) -> KnownPartition:
    """Put together what replicas know of one partition."""
    return _put_together(states, majority) if any(map(_is_touched, states)) else UNTOUCHED


def _put_together(states: Sequence[ReplicaState], majority: int) -> KnownPartition:
    tombs: RangeMap[int] = RangeMap()
    counts: RangeMap[int] = RangeMap()
    for state in states:
        below = [OffsetRange(0, state.start_offset - 1)] if state.start_offset else []
        for tomb in (*below, *state.finished):
            for first, last, votes in tombs.filled(tomb.first, tomb.last, 0):
                tombs.put(first, last, votes + 1)
        for counted in state.counts:
            for first, last, count in counts.filled(counted.first, counted.last, 0):
                counts.put(first, last, max(count, counted.count))
    whole = merged((first, last, None) for first, last, _ in tombs)
    finished = [OffsetRange(first, last) for first, last, _ in whole]
    start_offset = finished.pop(0).last + 1 if finished and not finished[0].first else 0
    return KnownPartition(
        start_offset,
        tuple(finished),
        tuple(CountedRange(*counted) for counted in counts),
        max((state.in_flight for state in states), default=0),
        tuple(OffsetRange(first, last) for first, last, votes in tombs if votes < majority),
    )


def learn(state: MessageStates, known: KnownPartition) -> None:
    """Tell a partition's state what a majority of the replicas knows."""
    if known.start_offset > state.start_offset:
        state.finish(state.start_offset, known.start_offset - 1)
    for tomb in known.finished:
        state.finish(tomb.first, tomb.last)
    for counted in known.counts:
        state.learn(counted.first, counted.last, counted.count)


def held_by(states: Sequence[ReplicaState], majority: int) -> list[HeldRange]:
    """Return the ranges of one partition that a lease holds at a majority, in order."""
    votes: RangeMap[tuple[HeldRange, ...]] = RangeMap()
    for state in states:
        for held in state.holds:
            for first, last, found in votes.filled(held.first, held.last, ()):
                votes.put(first, last, (*found, held))
    agreed: list[HeldRange] = []
    for first, last, found in votes:
        for held in found:
            if sum(each.lease == held.lease for each in found) >= majority:
                agreed.append(replace(held, first=first, last=last))
                break
    return agreed


def delayed_by(states: Sequence[ReplicaState], majority: int) -> list[DelayedRange]:
    """Return the ranges of one partition that are delayed at a majority, in order."""
    votes: RangeMap[tuple[int, int]] = RangeMap()
    for state in states:
        for each in state.delays:
            for first, last, (count, left_ms) in votes.filled(
                each.first, each.last, (0, each.left_ms)
            ):
                votes.put(first, last, (count + 1, min(left_ms, each.left_ms)))
    return [
        DelayedRange(first, last, left_ms)
        for first, last, (count, left_ms) in votes
        if count >= majority
    ]


def unavailable(answers: Answers) -> WingsError:
    """Return the error of a request that no majority answered."""
    errors = [answer for answer in answers.values() if isinstance(answer, WingsError)]
    gone = next((error for error in errors if isinstance(error, GroupNotFound)), None)
    if gone is not None:
        return gone
    if len(answers) == 1 and errors:
        return errors[0]
    said = f": {errors[0].message}" if errors else ""
    return Unavailable(f"no majority of the replicas of holds answered{said}")
