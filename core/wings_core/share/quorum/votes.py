"""Votes: what several replicas said of the same ranges, put together."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from wings_core.share.model import OffsetRange
from wings_core.share.replica.interfaces import CountedRange, Outcome, Part, ReplicaState
from wings_core.share.state.ranges import RangeMap


@dataclass(frozen=True, slots=True)
class Vote:
    """What each replica that answered said of `[first, last]`."""

    first: int
    last: int
    parts: Mapping[int, Part]

    def replicas(self, *outcomes: Outcome) -> list[int]:
        """Return the replicas that said one of these."""
        return [number for number, part in self.parts.items() if part.outcome in outcomes]

    def retry_seconds(self, majority: int) -> float:
        """Return when a majority may be free, as far as is known."""
        free = sum(part.outcome is Outcome.OK for part in self.parts.values())
        waits = sorted(part.retry_ms for part in self.parts.values() if part.outcome is Outcome.NOK)
        missing = majority - free
        return waits[missing - 1] / 1_000 if 0 < missing <= len(waits) else 0.0


def count_votes(answers: Mapping[int, Sequence[Part]]) -> list[Vote]:
    """Cut the answers to a request where any of them changes, and put them side by side."""
    cuts = {
        cut for parts in answers.values() for part in parts for cut in (part.first, part.last + 1)
    }
    bounds = sorted(cuts)
    at = dict.fromkeys(answers, 0)
    votes: list[Vote] = []
    for first, end in itertools.pairwise(bounds):
        said: dict[int, Part] = {}
        for number, parts in answers.items():
            while at[number] < len(parts) and parts[at[number]].last < first:
                at[number] += 1
            if at[number] < len(parts) and parts[at[number]].first <= first:
                said[number] = parts[at[number]]
        if said:
            votes.append(Vote(first, end - 1, said))
    return votes


@dataclass(frozen=True, slots=True)
class Known:
    """What a majority of replicas knows of a partition."""

    start_offset: int
    finished: tuple[OffsetRange, ...]
    """Above the start, in order."""
    counts: tuple[CountedRange, ...]
    in_flight: int
    to_repair: tuple[OffsetRange, ...]
    """Finished as some replica says, and not at a majority."""


def known_of(states: Sequence[ReplicaState], majority: int) -> Known:
    """Put together what replicas know of one partition."""
    tombs: RangeMap[int] = RangeMap()
    counts: RangeMap[int] = RangeMap()
    for state in states:
        finished = list(state.finished)
        if state.start_offset:
            finished.insert(0, OffsetRange(0, state.start_offset - 1))
        for tomb in finished:
            for first, last, votes in tombs.filled(tomb.first, tomb.last, 0):
                tombs.put(first, last, votes + 1)
        for counted in state.counts:
            for first, last, count in counts.filled(counted.first, counted.last, 0):
                counts.put(first, last, max(count, counted.count))
    start_offset = 0
    finished_above: list[OffsetRange] = []
    for first, last, _ in tombs:
        if first <= start_offset:
            start_offset = last + 1
        elif finished_above and finished_above[-1].last == first - 1:
            finished_above[-1] = OffsetRange(finished_above[-1].first, last)
        else:
            finished_above.append(OffsetRange(first, last))
    return Known(
        start_offset,
        tuple(finished_above),
        tuple(CountedRange(*counted) for counted in counts),
        max((state.in_flight for state in states), default=0),
        tuple(OffsetRange(first, last) for first, last, votes in tombs if votes < majority),
    )
