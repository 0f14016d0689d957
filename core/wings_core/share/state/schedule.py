"""Schedule: messages of a partition that are not to be delivered before their times.

Kept as columns, sixteen bytes a message, in chunks sorted by time as they were looked at.
"""

import heapq
from typing import Any, cast

import pyarrow as pa

from wings_core.arrow_compute import pc
from wings_core.share.state.ranges import merged

SCHEDULED_MAX = 1_000_000
"""Messages of one partition that wait for their times; beyond so many, none is looked at."""


class Schedule:
    """Messages and their times, in microseconds since the epoch.

    Attributes:
        messages: How many wait.
    """

    def __init__(self) -> None:
        self.messages = 0
        self._chunks: list[tuple[int, int, pa.Int64Array, pa.Int64Array]] = []
        """The first time, a number, then times and offsets in order of time; a heap."""
        self._added = 0

    @property
    def next_us(self) -> int | None:
        """The earliest time; None: none waits."""
        return self._chunks[0][0] if self._chunks else None

    def add(self, first: int, times: pa.Int64Array) -> None:
        """Add messages from an offset on, of which those wait that have a time."""
        offsets = cast("Any", pa).arange(first, first + len(times))
        waiting = times.is_valid()
        times, offsets = pc.filter(times, waiting), pc.filter(offsets, waiting)
        order = pc.sort_indices(times)
        self.messages += len(times)
        self._push(times.take(order), offsets.take(order))

    def take_due(self, now_us: int) -> list[tuple[int, int]]:
        """Take out the messages whose time has come; returns them as ranges, in order."""
        due: list[int] = []
        while self._chunks and self._chunks[0][0] <= now_us:
            _, _, times, offsets = heapq.heappop(self._chunks)
            count = pc.sum(pc.less_equal(times, now_us)).as_py()
            due += cast("list[int]", offsets.slice(0, count).to_pylist())
            self._push(times.slice(count), offsets.slice(count))
        self.messages -= len(due)
        ranges = merged((offset, offset, None) for offset in sorted(due))
        return [(first, last) for first, last, _ in ranges]

    def forget_before(self, offset: int) -> None:
        """Forget the messages before an offset, which the log has no more."""
        chunks, self._chunks, self.messages = self._chunks, [], 0
        for _, _, times, offsets in chunks:
            kept = pc.greater_equal(offsets, offset)
            times, offsets = pc.filter(times, kept), pc.filter(offsets, kept)
            self.messages += len(times)
            self._push(times, offsets)

    def _push(self, times: pa.Int64Array, offsets: pa.Int64Array) -> None:
        if len(times):
            self._added += 1
            heapq.heappush(self._chunks, (times[0].as_py(), self._added, times, offsets))


def runs_of(times: pa.Int64Array, now_us: int) -> list[tuple[int, int, bool]]:
    """Return runs `[first, last]` of rows, and whether their time has come; a null's has."""
    due = pc.fill_null(pc.less_equal(times, now_us), True)
    encoded = pc.run_end_encode(due)
    first, runs = 0, list[tuple[int, int, bool]]()
    for end, is_due in zip(encoded.run_ends.to_pylist(), encoded.values.to_pylist(), strict=True):
        runs.append((first, end - 1, is_due))
        first = end
    return runs
