"""RangeMap: values by ranges of offsets, in order; neighbours with equal values are one range.

Ranges are inclusive at both ends. A look-up is a binary search; a change moves the starts of the
ranges after it, which for 100,000 ranges takes a few microseconds.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar

V = TypeVar("V")

Range = tuple[int, int, V]
"""`(first, last, value)`."""


def merged(ranges: Iterable[Range[V]]) -> Iterator[Range[V]]:
    """Yield disjoint ranges in their order; those that touch and have equal values as one."""
    before: Range[V] | None = None
    for first, last, value in ranges:
        if before is not None and before[1:] == (first - 1, value):
            first = before[0]
        elif before is not None:
            yield before
        before = first, last, value
    if before is not None:
        yield before


class Change(NamedTuple, Generic[V]):
    """The whole ranges that a change took out of a map, and those it put in."""

    removed: Sequence[Range[V]] = ()
    added: Sequence[Range[V]] = ()


class RangeMap(Generic[V]):
    """Values by disjoint ranges of offsets; values are compared to merge neighbours.

    Attributes:
        end: One past the last offset that has a value; 0: none has.
    """

    __slots__ = ("_firsts", "_rest", "end")

    def __init__(self) -> None:
        self.end = 0
        self._firsts: list[int] = []
        self._rest: dict[int, tuple[int, V]] = {}
        """Last offset and value, by first offset."""

    @classmethod
    def of(cls, ranges: Iterable[Range[V]]) -> "RangeMap[V]":
        """Return the map that putting each of the ranges makes; ordered ones cost next to nothing.

        So it begins with hundreds of thousands of ranges without a search for each.
        """
        made: RangeMap[V] = cls()
        before: Range[V] | None = None
        for each in ranges:
            first, last, value = each
            if (
                before is None
                or first > before[1] + 1
                or (first > before[1] and value != before[2])
            ):
                made._firsts.append(first)
                made._rest[first] = (last, value)
                made.end = last + 1
            else:
                made.put(first, last, value)  # Merged with what is there, or over it.
            if before is None or last >= before[1]:
                before = each
        return made

    def __len__(self) -> int:
        """Return the number of ranges."""
        return len(self._firsts)

    def __iter__(self) -> Iterator[Range[V]]:
        """Yield all ranges in order; the map must not change meanwhile."""
        for first in self._firsts:
            last, value = self._rest[first]
            yield first, last, value

    def head(self) -> Range[V] | None:
        """Return the first range."""
        if not self._firsts:
            return None
        first = self._firsts[0]
        last, value = self._rest[first]
        return first, last, value

    def starting_at(self, first: int) -> Range[V] | None:
        """Return the range that begins at an offset."""
        rest = self._rest.get(first)
        return None if rest is None else (first, *rest)

    def at(self, offset: int) -> Range[V] | None:
        """Return the range that holds an offset."""
        index = bisect_right(self._firsts, offset) - 1
        if index < 0:
            return None
        first = self._firsts[index]
        last, value = self._rest[first]
        return (first, last, value) if offset <= last else None

    def parts(self, first: int, last: int) -> list[Range[V]]:
        """Return what lies in `[first, last]`, cut to it, in order; gaps are left out."""
        firsts = self._firsts
        if not firsts:
            return []
        found: list[Range[V]] = []
        rest = self._rest
        for index in range(max(0, bisect_right(firsts, first) - 1), len(firsts)):
            begin = firsts[index]
            if begin > last:
                break
            end, value = rest[begin]
            if end >= first:
                cut = (begin if begin > first else first, end if end < last else last, value)
                found.append(cut)
        return found

    def filled(self, first: int, last: int, missing: V) -> list[Range[V]]:
        """Return `[first, last]` as ranges, with a value for the gaps."""
        found: list[Range[V]] = []
        for begin, end, value in self.parts(first, last):
            if begin > first:
                found.append((first, begin - 1, missing))
            found.append((begin, end, value))
            first = end + 1
        if first <= last:
            found.append((first, last, missing))
        return found

    def put(self, first: int, last: int, value: V) -> Change[V]:
        """Give `[first, last]` a value, whatever was there."""
        firsts, rest = self._firsts, self._rest
        if first > self.end or (
            first == self.end and (not firsts or rest[firsts[-1]][1] != value)
        ):  # Behind all others, as most are that begin.
            firsts.append(first)
            rest[first] = (last, value)
            self.end = last + 1
            return Change((), [(first, last, value)])
        low, high, removed = self._overlapped(first, last)
        added: list[Range[V]] = []
        # Neighbours of the same value are one range with it, whether they were cut or touch it.
        if removed and removed[0][0] < first:
            if removed[0][2] == value:
                first = removed[0][0]
            else:
                added.append((removed[0][0], first - 1, removed[0][2]))
        elif low > 0 and rest[firsts[low - 1]] == (first - 1, value):
            low -= 1
            removed.insert(0, (firsts[low], first - 1, value))
            first = firsts[low]
        right: Range[V] | None = None
        if removed and removed[-1][1] > last:
            if removed[-1][2] == value:
                last = removed[-1][1]
            else:
                right = (last + 1, removed[-1][1], removed[-1][2])
        elif high < len(firsts) and firsts[high] == last + 1 and rest[last + 1][1] == value:
            high += 1
            removed.append((last + 1, rest[last + 1][0], value))
            last = rest[last + 1][0]
        added.append((first, last, value))
        if right is not None:
            added.append(right)
        return self._swap(low, high, removed, added)

    def remove(self, first: int, last: int) -> Change[V]:
        """Take `[first, last]` out."""
        firsts, rest = self._firsts, self._rest
        whole = rest.get(first)
        if whole is not None and whole[0] == last:  # As most are that end.
            del firsts[bisect_right(firsts, first) - 1], rest[first]
            if last + 1 == self.end:
                self.end = rest[firsts[-1]][0] + 1 if firsts else 0
            return Change([(first, *whole)])
        low, high, removed = self._overlapped(first, last)
        if not removed:
            return Change()
        added: list[Range[V]] = []
        begin, _, value = removed[0]
        if begin < first:
            added.append((begin, first - 1, value))
        _, end, value = removed[-1]
        if end > last:
            added.append((last + 1, end, value))
        return self._swap(low, high, removed, added)

    def undo(self, change: Change[V]) -> None:
        """Take the last change back."""
        for first, last, _ in change.added:
            self.remove(first, last)
        for first, last, value in change.removed:
            self.put(first, last, value)

    def _overlapped(self, first: int, last: int) -> tuple[int, int, list[Range[V]]]:
        """Return the ranges that have an offset in `[first, last]`, and where they lie.

        The end is exclusive.
        """
        assert first <= last
        firsts, rest = self._firsts, self._rest
        low = bisect_right(firsts, first) - 1
        if low < 0 or rest[firsts[low]][0] < first:
            low += 1  # It ends before.
        high = low
        found: list[Range[V]] = []
        if low < len(firsts) and firsts[low] <= last:
            high = bisect_right(firsts, last, low)
            found = [(begin, *rest[begin]) for begin in firsts[low:high]]
        return low, high, found

    def _swap(
        self, low: int, high: int, removed: list[Range[V]], added: list[Range[V]]
    ) -> Change[V]:
        if added == removed:
            return Change()
        rest = self._rest
        for begin, _, _ in removed:
            del rest[begin]
        for begin, end, value in added:
            rest[begin] = (end, value)
        firsts = self._firsts
        firsts[low:high] = [begin for begin, _, _ in added] if added else ()
        self.end = rest[firsts[-1]][0] + 1 if firsts else 0
        return Change(removed, added)
