"""The history of a world's clients, and what must hold of it, whatever failed.

The checks know nothing of how the log works: each row has a number of its own, so a history says
which pushes were acknowledged where, and what each read found.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

Place = tuple[str, str]
"""A topic, and a partition of it."""


@dataclass(eq=False)
class Push:
    """A batch that a client pushed, until it learned the outcome or gave up."""

    topic: str
    rows: dict[str, list[int]]
    """Numbers of its rows by partition, in order."""
    producer: str | None
    """Its idempotent producer, whose pushes are in order; None: it was sent once."""
    together: str | None = None
    """The publish that shows it, with others, all or none; None: it is visible at once."""
    placed: dict[str, int] | None = None
    """Where each partition's rows begin, once acknowledged."""
    acked_ns: int = 0
    times: dict[str, int] = field(default_factory=dict[str, int])
    """The timestamps that it got, as they were acknowledged."""
    refused: bool = False
    """Whether it was sent once, and refused by an error that says it is not there."""

    def acknowledge(self, placed: dict[str, int], time_ns: int) -> None:
        """Note where its rows begin; a repeated acknowledgement says the same."""
        assert set(placed) == set(self.rows), f"{placed} for rows in {set(self.rows)}"
        assert self.placed in (None, placed), f"first at {self.placed}, then at {placed}"
        self.placed, self.acked_ns = placed, time_ns


@dataclass(frozen=True)
class Look:
    """What one look at the ends of partitions saw, and when."""

    ends: Mapping[Place, int]
    """The next offset of each place, exclusive; all that was visible by `since_ns` lies before."""
    since_ns: int
    until_ns: int
    """When it had ended: what it saw is visible to all later ones."""
    whole: str | None = None
    """The topic of which it saw all partitions at one moment; None: one place, row by row."""

    def end(self, place: Place) -> int | None:
        """Return the next offset of a place, None where it did not look there."""
        return self.ends.get(place, 0 if place[0] == self.whole else None)


@dataclass
class History:
    """What the clients did and saw.

    Attributes:
        deleted: How far retention was asked to delete, by place.
        committed: The last offset whose commit was acknowledged, by consumer and place.
        offered: The last offset that a consumer tried to commit, by consumer and place.
    """

    pushes: list[Push] = field(default_factory=list[Push])
    rows: dict[Place, dict[int, int]] = field(default_factory=dict[Place, dict[int, int]])
    """What was seen at each offset, by any read."""
    seen_ns: dict[int, int] = field(default_factory=dict[int, int])
    """When each row was first seen."""
    looks: list[Look] = field(default_factory=list[Look])
    deleted: dict[Place, int] = field(default_factory=dict[Place, int])
    committed: dict[tuple[str, Place], int] = field(default_factory=dict[tuple[str, Place], int])
    offered: dict[tuple[str, Place], int] = field(default_factory=dict[tuple[str, Place], int])
    reads: int = 0

    def see(self, place: Place, start: int, numbers: Sequence[int], time_ns: int) -> None:
        """Note what a read found at an offset and those after it."""
        known = self.rows.setdefault(place, {})
        self.reads += 1
        for offset, number in enumerate(numbers, start):
            before = known.setdefault(offset, number)
            assert before == number, f"{place} had {before} at {offset}, now it has {number}"
            self.seen_ns.setdefault(number, time_ns)

    def see_offsets(self, consumer: str, stored: Mapping[Place, int]) -> None:
        """Check what a consumer has stored: its last commit, or one that may have been lost."""
        for (name, place), offered in self.offered.items():
            if name == consumer:
                least = self.committed.get((consumer, place), -1)
                found = stored.get(place, -1)
                assert least <= found <= offered, f"{consumer} has {found} in {place}, not {least}"

    def acked_before(self, place: Place, time_ns: int) -> int:
        """Return the end of what was acknowledged by a time in a place: a read after it sees it."""
        return 1 + max(self.ends_of(place, time_ns), default=-1)

    def ends_of(self, place: Place, time_ns: float = math.inf) -> list[int]:
        """Return the last offset of each push in a place that was acknowledged by a time."""
        topic, partition = place
        return sorted(
            push.placed[partition] + len(push.rows[partition]) - 1
            for push in self.pushes
            if push.topic == topic and push.placed is not None and partition in push.placed
            if push.acked_ns <= time_ns
        )

    def acked_at(self, place: Place, end: int, since_ns: int) -> int | None:
        """Return when all before an offset was acknowledged, at the earliest `since_ns`."""
        times = {push.acked_ns for push in self.pushes if push.placed is not None}
        return next(
            (
                each
                for each in sorted({since_ns, *times})
                if each >= since_ns and self.acked_before(place, each) >= end
            ),
            None,
        )

    def check(self, logs: dict[Place, tuple[int, list[int]]], time_ns: int) -> None:
        """Check all of it at the end.

        Args:
            logs: What each partition has: the offset at which it starts, and all its rows.
        """
        for place, (start, numbers) in logs.items():
            self.see(place, start, numbers, time_ns)
            limit = self.deleted.get(place, 0)
            assert start <= limit, f"{place} starts at {start}; only what is before {limit} may go"
        for place, known in self.rows.items():
            start, numbers = logs.get(place, (0, []))
            lost = [offset for offset in known if offset >= start + len(numbers)]
            assert not lost, f"{place} ends at {start + len(numbers)}, but {lost} were read"
            ahead = [look for look in self.looks if (look.end(place) or 0) > start + len(numbers)]
            assert not ahead, f"{place} ends at {start + len(numbers)}, but {ahead} saw more"
            assert len(set(known.values())) == len(known), f"a row is in {place} twice"
        found = _Found(
            {place: start for place, (start, _) in logs.items()},
            {place: {row: at for at, row in known.items()} for place, known in self.rows.items()},
        )
        pushed = {
            (push.topic, partition, row)
            for push in self.pushes
            for partition, rows in push.rows.items()
            for row in rows
        }
        seen = {(*place, row) for place, known in self.rows.items() for row in known.values()}
        assert seen <= pushed, f"rows that nobody pushed there: {sorted(seen - pushed)}"
        together: dict[str | int, list[Push]] = {}
        for push in self.pushes:
            together.setdefault(push.together or id(push), []).append(push)
        for name, pushes in together.items():
            visible = {found.shows(push) for push in pushes}
            assert not {True, False} <= visible, f"the publish {name} is visible in part"
            refused = any(push.refused for push in pushes)
            assert not (refused and True in visible), f"{pushes} was refused, and is there"
            self._check_looks(pushes, found)
        for place, offsets in found.offsets.items():
            self._check_order(place, offsets)

    def _check_looks(self, pushes: Sequence[Push], found: "_Found") -> None:
        """Check that rows shown at once are seen as a whole, and by all looks after the first."""
        ranges = [each for push in pushes for each in found.ranges(push)]
        times = [push.acked_ns for push in pushes if push.placed is not None]
        rows = [row for push in pushes for some in push.rows.values() for row in some]
        times += [self.seen_ns[row] for row in rows if row in self.seen_ns]
        looks: list[tuple[Look, list[tuple[int, int, int]]]] = []
        for look in self.looks:
            seen = ((look.end(place), first, last) for place, first, last in ranges)
            ends = [(end, first, last) for end, first, last in seen if end is not None]
            if ends:
                looks.append((look, ends))
                if any(end > first for end, first, _ in ends):
                    times.append(look.until_ns)
        visible_ns = min(times, default=math.inf)
        for look, ends in looks:
            shown = {end > last for end, _, last in ends}
            late = look.since_ns > visible_ns
            assert not (late and False in shown), f"{look} missed {ranges}, shown at {visible_ns}"
            if look.whole is not None:
                parts = [end for end, first, last in ends if end and first < end <= last]
                assert len(shown) + len(parts) <= 1, f"{look} saw a part of {ranges}"

    def _check_order(self, place: Place, offsets: Mapping[int, int]) -> None:
        """Check that pushes of a producer are in the order in which it sent them, times too."""
        topic, partition = place
        stamped = sorted(
            (push.placed[partition], push.times[partition])
            for push in self.pushes
            if push.topic == topic and push.placed is not None and partition in push.times
        )
        times = [time for _, time in stamped]
        assert times == sorted(times), f"times of {place} go back: {stamped}"
        last: dict[str, int] = {}
        for push in self.pushes:
            if push.topic != place[0] or push.producer is None:
                continue
            for row in push.rows.get(place[1], []):
                if row in offsets:
                    assert offsets[row] > last.get(push.producer, -1), f"{place} is out of order"
                    last[push.producer] = offsets[row]


@dataclass(frozen=True)
class _Found:
    """Where rows are at the end."""

    starts: Mapping[Place, int]
    """Where the log of each partition starts."""
    offsets: Mapping[Place, Mapping[int, int]]
    """The offset of each row, gone ones that were read included."""

    def ranges(self, push: Push) -> Iterator[tuple[Place, int, int]]:
        """Yield the places of a push that are known, with its first and last offset there."""
        for partition, rows in push.rows.items():
            place = push.topic, partition
            offsets = self.offsets.get(place, {})
            first = next((offsets[row] - i for i, row in enumerate(rows) if row in offsets), None)
            if first is not None:
                yield place, first, first + len(rows) - 1

    def shows(self, push: Push) -> bool | None:
        """Tell whether a push is visible, as a whole; None where retention may have taken it."""
        visible: set[bool] = set()
        known = {place: first for place, first, _ in self.ranges(push)}
        for partition, rows in push.rows.items():
            place = push.topic, partition
            start, offsets = self.starts.get(place, 0), self.offsets.get(place, {})
            first = known.get(place)
            want = None if push.placed is None else push.placed[partition]
            if first is None and (start if want is None else want + len(rows) <= start):
                continue  # It may have been there, and unseen.
            if want is not None:
                assert first == want, f"acknowledged in {place} at {want}, found at {first}"
            visible.add(first is not None)
            if first is not None:
                for at, row in enumerate(rows, first):
                    unseen = at < start and row not in offsets
                    assert unseen or offsets.get(row) == at, f"a part of {push} is in {place}"
        assert len(visible) <= 1, f"a push to {sorted(push.rows)} is visible in part"
        return visible.pop() if visible else None
