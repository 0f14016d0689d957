"""The history of a world's clients, and what must hold of it, whatever failed.

The checks know nothing of how the log works: each row has a number of its own, so a history says
which pushes were acknowledged where, and what each read found.
"""

import math
from collections.abc import Mapping, Sequence
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

    def acknowledge(self, placed: dict[str, int], time_ns: int) -> None:
        """Note where its rows begin; a repeated acknowledgement says the same."""
        assert set(placed) == set(self.rows), f"{placed} for rows in {set(self.rows)}"
        assert self.placed in (None, placed), f"first at {self.placed}, then at {placed}"
        self.placed, self.acked_ns = placed, time_ns


@dataclass
class History:
    """What the clients did and saw.

    Attributes:
        deleted: How far retention was asked to delete, by place.
        committed: The last offset whose commit was acknowledged, by consumer and place.
    """

    pushes: list[Push] = field(default_factory=list[Push])
    rows: dict[Place, dict[int, int]] = field(default_factory=dict[Place, dict[int, int]])
    """What was seen at each offset, by any read."""
    deleted: dict[Place, int] = field(default_factory=dict[Place, int])
    committed: dict[tuple[str, Place], int] = field(default_factory=dict[tuple[str, Place], int])
    reads: int = 0

    def see(self, place: Place, start: int, numbers: Sequence[int]) -> None:
        """Note what a read found at an offset and those after it."""
        known = self.rows.setdefault(place, {})
        self.reads += 1
        for offset, number in enumerate(numbers, start):
            before = known.setdefault(offset, number)
            assert before == number, f"{place} had {before} at {offset}, now it has {number}"

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

    def check(self, logs: dict[Place, tuple[int, list[int]]]) -> None:
        """Check all of it at the end.

        Args:
            logs: What each partition has: the offset at which it starts, and all its rows.
        """
        for place, (start, numbers) in logs.items():
            self.see(place, start, numbers)
            limit = self.deleted.get(place, 0)
            assert start <= limit, f"{place} starts at {start}; only what is before {limit} may go"
        for place, known in self.rows.items():
            start, numbers = logs.get(place, (0, []))
            lost = [offset for offset in known if offset >= start + len(numbers)]
            assert not lost, f"{place} ends at {start + len(numbers)}, but {lost} were read"
            assert len(set(known.values())) == len(known), f"a row is in {place} twice"
        found = _Found(
            {place: start for place, (start, _) in logs.items()},
            {place: {row: at for at, row in known.items()} for place, known in self.rows.items()},
        )
        pushed = {row for push in self.pushes for rows in push.rows.values() for row in rows}
        invented = {row for known in self.rows.values() for row in known.values()} - pushed
        assert not invented, f"rows that nobody pushed: {sorted(invented)}"
        together: dict[str, set[bool | None]] = {}
        for push in self.pushes:
            visible = found.shows(push)
            if push.together is not None:
                together.setdefault(push.together, set()).add(visible)
        for name, visible in together.items():
            assert not {True, False} <= visible, f"the publish {name} is visible in part"
        for place, offsets in found.offsets.items():
            self._check_order(place, offsets)

    def _check_order(self, place: Place, offsets: Mapping[int, int]) -> None:
        """Check that pushes of a producer are in the order in which it sent them."""
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

    def shows(self, push: Push) -> bool | None:
        """Tell whether a push is visible, as a whole; None where retention may have taken it."""
        visible: set[bool] = set()
        for partition, rows in push.rows.items():
            place = push.topic, partition
            start, offsets = self.starts.get(place, 0), self.offsets.get(place, {})
            first = next((offsets[row] - i for i, row in enumerate(rows) if row in offsets), None)
            if first is None and start:
                return None  # It may have been there, and unseen.
            if push.placed is not None:
                want = push.placed[partition]
                assert first == want, f"acknowledged in {place} at {want}, found at {first}"
            visible.add(first is not None)
            if first is not None:
                for want, row in enumerate(rows, first):
                    unseen = want < start and row not in offsets
                    assert unseen or offsets.get(row) == want, f"a part of {push} is in {place}"
        assert len(visible) == 1, f"a push to {sorted(push.rows)} is visible in part"
        return visible.pop()
