"""A plain model of the log: lists in memory, one row after the other, nothing clever."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from flight_calls import Json

Key = str | int | None
"""A partition's value."""

HOUR_US = 3600 * 1_000_000


@dataclass(frozen=True)
class Row:
    """A message as it is read."""

    values: Json
    """By column."""
    timestamp: int
    """Microseconds since the epoch."""


@dataclass(frozen=True)
class Batch:
    """A batch as it is pushed, and what its producer says about it."""

    rows: list[Json]
    expected_offset: int | None = None
    timestamp: int | None = None


class Refused(Exception):  # noqa: N818 - an outcome, not a fault of the model
    """A batch, or a read, that must be refused with this code and these facts."""

    def __init__(self, code: str, **facts: Any) -> None:
        super().__init__(code)
        self.code = code
        self.facts = facts


@dataclass
class TopicModel:
    """One topic. `key` names the column of its partition key."""

    uuid: str
    key: str | None
    logs: dict[Key, list[Row]] = field(default_factory=dict[Key, list[Row]])
    results: dict[str, list[list[Json]]] = field(default_factory=dict[str, list[list[Json]]])
    """What each producer's sequences committed, in order."""

    def log(self, key: Key) -> list[Row]:
        """Return a partition's messages; none where it was never written to."""
        return self.logs.get(key, [])

    def next_sequence(self, producer: str) -> int:
        return len(self.results.get(producer, []))

    def last_timestamp(self, key: Key) -> int | None:
        log = self.log(key)
        return log[-1].timestamp if log else None

    def push(
        self, batch: Batch, partition: Key, producer: tuple[str, int] | None, now: int
    ) -> list[Json]:
        """Commit a batch; return what it committed, its timestamps in microseconds.

        Args:
            batch: The rows.
            partition: Of all rows; None: by key.
            producer: Its id and the batch's sequence.
            now: The time of commit.

        Raises:
            Refused: Nothing is committed.
        """
        routed = self._route(batch, partition)
        expected = self._expected_partition(batch, partition, list(routed))
        if producer is not None:
            name, sequence = producer
            results = self.results.setdefault(name, [])
            if sequence < len(results):
                return results[sequence]
            if sequence > len(results):
                raise Refused("OUT_OF_ORDER_SEQUENCE", expected_sequence=len(results))
        if batch.expected_offset is not None:
            actual = len(self.log(expected))
            if actual != batch.expected_offset:
                raise Refused("OFFSET_MISMATCH", next_offset=actual)
        if batch.timestamp is not None and batch.timestamp > now + HOUR_US:
            raise Refused("INVALID_ARGUMENT")
        committed = [
            self._append(key, rows, now if batch.timestamp is None else batch.timestamp)
            for key, rows in routed.items()
        ]
        if producer is not None:
            self.results[producer[0]].append(committed)
        return committed

    def first_at(self, key: Key, timestamp: int) -> int:
        """Return the offset of the first message at or after a time, else the next offset."""
        log = self.log(key)
        late = (offset for offset, row in enumerate(log) if row.timestamp >= timestamp)
        return next(late, len(log))

    def _route(self, batch: Batch, partition: Key) -> dict[Key, list[Json]]:
        routed: dict[Key, list[Json]] = {}
        for values in batch.rows:
            key = None if self.key is None else values[self.key]
            if partition not in (None, key):
                raise Refused("INVALID_ARGUMENT")
            routed.setdefault(key, []).append(values)
        return routed

    def _expected_partition(self, batch: Batch, partition: Key, keys: list[Key]) -> Key:
        """Say which partition an expected offset is about."""
        if self.key is None or partition is not None or batch.expected_offset is None:
            return partition
        if len(keys) != 1:
            raise Refused("INVALID_ARGUMENT")
        return keys[0]

    def _append(self, key: Key, rows: list[Json], timestamp: int) -> Json:
        last = self.last_timestamp(key)
        timestamp = timestamp if last is None else max(last, timestamp)
        log = self.logs.setdefault(key, [])
        start = len(log)
        log += [Row(values, timestamp) for values in rows]
        return {
            "partition": key,
            "start_offset": start,
            "end_offset": len(log) - 1,
            "timestamp": timestamp,
        }


@dataclass(frozen=True)
class Filter:
    """A predicate in SQL and in Python."""

    sql: str
    keep: Callable[[Json], bool]


@dataclass(frozen=True)
class Read:
    """What a read must give, where time plays no part in it."""

    rows: list[tuple[int, Row]]
    """With their offsets."""
    end: str
    next_offset: int


def read(
    log: Sequence[Row],
    offset: int,
    stop_offset: int,
    row_filter: Filter | None,
    bounds: tuple[int, int] | None,
) -> Read:
    """Read a partition.

    Args:
        log: Its messages.
        offset: Where to begin.
        stop_offset: Where to stop, exclusive.
        row_filter: Which rows to keep.
        bounds: Least and most messages of a fetch, None for a scan.
    """
    rows: list[tuple[int, Row]] = []
    for at in range(offset, min(stop_offset, len(log))):
        if row_filter is None or row_filter.keep(log[at].values):
            rows.append((at, log[at]))
        if bounds is not None and len(rows) == bounds[1]:
            return Read(rows, "max_messages", at + 1)
    next_offset = max(offset, min(stop_offset, len(log)))
    if bounds is None:
        return Read(rows, "end_offset", next_offset)
    return Read(rows, "min_messages" if len(rows) >= bounds[0] else "deadline", next_offset)
