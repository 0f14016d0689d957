"""From rows that were appended to batches that a topic takes, and from their results to acks.

A row that does not fit is left out, and those around it are sent: it is found by halving.
"""

from base64 import b64encode
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, cast

import pyarrow as pa

from wings_client._accumulator import Ack, Taken, fail_acks
from wings_client._batches import Cut, to_batches
from wings_client._model import Appended, Committed, CommittedRange, Topic
from wings_client._rows import batch_of_items
from wings_core.batches import BatchCheck
from wings_core.contracts.messages import shortened
from wings_core.errors import (
    BatchTooLarge,
    InvalidArgument,
    PartitionRequired,
    SchemaMismatch,
    WingsError,
)
from wings_core.limits import Limits
from wings_core.partitions import Partition, partitions_of_keys


@dataclass(frozen=True, slots=True)
class AppendedBatch:
    """A batch of rows that fit, and the acks of some of them."""

    rows: pa.RecordBatch
    acks: list[tuple[int, Ack]] = field(default_factory=list[tuple[int, Ack]])
    """Index among `rows`, ascending."""


class RowConverter:
    """Turns appended rows into batches, for one thread.

    Args:
        topic: Where they go.
        cut: How large a batch may be.
        partition: Partition of all rows; None: by the key column, row by row.
    """

    def __init__(self, topic: Topic, cut: Cut, partition: Partition | None) -> None:
        self._schema = topic.schema
        self._key = topic.partition_key
        self._cut = cut
        self._partition = partition
        self._check = BatchCheck(topic.schema)
        configured = topic.config.get("batch_bytes_max")
        default: int = Limits.model_fields["batch_bytes_max"].default
        self._row_bytes_max = configured if isinstance(configured, int) else default

    def convert(self, taken: Taken) -> tuple[list[AppendedBatch], dict[int, WingsError]]:
        """Return the rows that fit as batches, in order, and the errors of the others.

        Returns:
            The batches; and by the row's number among all appended, why it was left out.
        """
        bad: dict[int, WingsError] = {}
        parts = list(self._fitting(taken.rows, taken.first_row, bad))
        if not parts:
            return [], bad
        whole = parts[0] if len(parts) == 1 else cast("Any", pa).concat_batches(parts)
        acks = dict(taken.acks)
        numbers = [index for index in range(len(taken.rows)) if taken.first_row + index not in bad]
        batches: list[AppendedBatch] = []
        first = 0
        for piece in to_batches(whole, self._schema, self._cut):
            own = numbers[first : first + piece.num_rows]
            first += piece.num_rows
            if piece.num_rows == 1 and piece.nbytes > self._row_bytes_max:
                row = taken.first_row + own[0]
                bad[row] = BatchTooLarge(
                    f"row {row} has {piece.nbytes} bytes, the limit is {self._row_bytes_max}",
                    bytes=piece.nbytes,
                    bytes_max=self._row_bytes_max,
                    row=row,
                )
                continue
            batches.append(
                AppendedBatch(
                    piece,
                    [(at, acks[index]) for at, index in enumerate(own) if index in acks]
                    if acks
                    else [],
                )
            )
        return batches, bad

    def _fitting(
        self, rows: Sequence[object], first_row: int, bad: dict[int, WingsError]
    ) -> Iterator[pa.RecordBatch]:
        """Yield rows as batches; those that do not fit are found by halving and put into `bad`."""
        try:
            batch = batch_of_items(rows, self._schema, first_row)
            self._check_rows(batch)
        except Exception as error:  # noqa: BLE001 - values of any class raise what they like.
            if len(rows) == 1:
                bad[first_row] = _error_of_row(error, first_row)
                return
        else:
            yield batch
            return
        half = len(rows) // 2
        yield from self._fitting(rows[:half], first_row, bad)
        yield from self._fitting(rows[half:], first_row + half, bad)

    def _check_rows(self, batch: pa.RecordBatch) -> None:
        """Refuse what a server refuses, which would refuse all rows of the batch.

        Raises:
            SchemaMismatch: A null where none may be.
            PartitionRequired: A null in the key column.
            InvalidArgument: A row of another partition than the producer's.
        """
        self._check.check(batch)
        if self._key is None:
            return
        keys = batch.column(self._key)
        if keys.null_count:
            raise PartitionRequired(f"the partition key {self._key!r} is null", column=self._key)
        found = partitions_of_keys(keys.unique())
        if self._partition is not None and found != [self._partition]:
            raise InvalidArgument(
                f"the producer is for partition {self._partition:.80}, the row's key is another",
                column=self._key,
            )


def _error_of_row(error: Exception, row: int) -> WingsError:
    if isinstance(error, WingsError):
        if error.facts.get("row") == row:
            return error
        return type(error)(shortened(f"row {row}: {error.message}"), **{**error.facts, "row": row})
    try:
        shown = f"{type(error).__name__}: {error!s:.200}"
    except Exception:  # noqa: BLE001 - the message of an error of any class.
        shown = type(error).__name__
    return SchemaMismatch(shortened(f"row {row} cannot be converted: {shown}"), row=row)


def resolve_acks(
    acks: Sequence[tuple[int, Ack]], keys: Sequence[object] | None, sent: Future[Committed]
) -> None:
    """Resolve the future of each row of a batch that is durable or refused.

    Args:
        acks: Index in the batch, ascending, and the future.
        keys: The partition key of each row; None where all are of one partition.
        sent: The batch's future, done.
    """
    error = sent.exception()
    if error is not None:
        assert isinstance(error, WingsError), "a send fails with nothing else"
        fail_acks(acks, error)
        return
    ranges: dict[object, deque[CommittedRange]] = defaultdict(deque)
    for found in sent.result().committed:
        ranges[found.partition if keys is not None else None].append(found)
    passed: dict[object, int] = defaultdict(int)  # Rows already counted of each key's first range.
    row = 0
    for index, ack in acks:
        while True:
            key = None if keys is None else _json_key(keys[row])
            found = ranges[key][0]
            offset = found.start_offset + passed[key]
            passed[key] += 1
            if offset == found.end_offset:
                ranges[key].popleft()
                passed[key] = 0
            row += 1
            if row > index:
                break
        ack.set_result(Appended(found.partition, offset, found.timestamp))


def _json_key(value: object) -> object:
    """Return a partition key as results have it: bytes as base64."""
    return b64encode(value).decode("ascii") if isinstance(value, bytes) else value
