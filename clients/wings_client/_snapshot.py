"""Snapshots: a topic at one moment, from the files of its table and the rest from the server.

The ranges are fixed first; what the table has of them is read from its files, and all that was not,
also where a file is gone meanwhile or cannot be reached, from the server. So each row comes once,
whatever maintenance does: a row's offset never changes, and what was read is taken out of the
ranges before it is handed out. What retention takes before it is read is skipped.
"""

from collections.abc import Generator, Iterator
from typing import Any, cast

from wings_client._chunks import Chunks
from wings_client._errors import client_closed
from wings_client._results import Read
from wings_client._scan import ScanPart, rows_of
from wings_client._transport import Transport
from wings_client.arrow import RecordBatch, Schema
from wings_client.cold import open_cold_file, paths_of
from wings_core.contracts.reads import ALL, PartitionEntry
from wings_core.partitions import JsonScalar, Partition, partition_of_value

Span = tuple[int, int]
"""Offsets, the end exclusive."""


class UnreadRanges:
    """Offsets of each partition that is still to be read; for one thread.

    Args:
        spans: Spans by partition.
    """

    def __init__(self, spans: dict[Partition, list[Span]]) -> None:
        self._spans = spans

    def within(self, partition: Partition, start: int, end: int) -> list[Span]:
        """Return what is left of a range, by offset."""
        cut = ((max(a, start), min(b, end)) for a, b in self._spans.get(partition, ()))
        return [(a, b) for a, b in cut if a < b]

    def take(self, partition: Partition, start: int, end: int) -> None:
        """Take a range out."""
        left: list[Span] = []
        for a, b in self._spans.get(partition, ()):
            left += [(x, y) for x, y in ((a, min(b, start)), (max(a, end), b)) if x < y]
        self._spans[partition] = left

    def of(self, partition: Partition) -> list[Span]:
        """Return what is left of a partition, by offset."""
        return self._spans.get(partition, [])


class SnapshotRead(Read):
    """A snapshot that is being read; all but `cancel` by one thread.

    Args:
        transport: To the server.
        schema: Schema of the batches.
        parts: The ranges of the moment, as the server planned them.
        topic_uuid: UUID of their topic.
        table: Pyiceberg's; None where all is read from the server.
        filtered: Whether not all rows of the ranges come.

    Attributes:
        cold_rows: How many rows came from files so far.
    """

    kind = "snapshot"

    def __init__(
        self,
        transport: Transport,
        schema: Schema,
        parts: list[ScanPart],
        topic_uuid: str,
        table: Any,
        *,
        filtered: bool,
    ) -> None:
        self.schema = schema
        self.rows = None if filtered else sum(map(rows_of, parts))
        self.cold_rows = 0
        self._transport = transport
        self._parts = parts
        self._uuid = topic_uuid
        self._table = table
        self._left = UnreadRanges(dict(_spans(parts)))
        self._stream: Chunks | None = None
        self._is_cancelled = False

    def batches(self) -> Generator[RecordBatch]:
        """Yield the rows, those of files first.

        Raises:
            WingsError: Any other refusal of the server.
        """
        yield from self._cold()
        yield from self._hot()

    def cancel(self) -> None:
        """End the read; from any thread."""
        self._is_cancelled = True
        if self._stream is not None:
            self._stream.cancel()

    def _cold(self) -> Generator[RecordBatch]:
        if self._table is None:
            return
        try:
            paths = paths_of(self._table, self._uuid)
        except Exception:  # noqa: BLE001 - of any file system; the server has the rows too.
            return
        for path in paths:
            # What of a file could not be read is left to the server.
            rows = self._file(path)
            while True:
                self._check()
                try:
                    batch = next(rows, None)
                except Exception:  # noqa: BLE001 - as above.
                    break
                if batch is None:
                    break
                yield batch

    def _file(self, path: str) -> Iterator[RecordBatch]:
        opened = open_cold_file(self._table, path, self._uuid)
        if opened is None:
            return
        file = opened.file
        for start, end in self._left.within(file.partition, file.start_offset, file.end_offset):
            for offset, batch in opened.read(start, end, self.schema):
                # Before it is yielded: from then on it is delivered.
                self._left.take(file.partition, offset, offset + batch.num_rows)
                self.cold_rows += batch.num_rows
                yield cast("RecordBatch", batch)

    def _hot(self) -> Generator[RecordBatch]:
        for part in self._parts:
            for rest in self._rest(part):
                self._check()
                self._stream = rest.read(self._transport)
                for chunk in self._stream:
                    yield chunk.batch

    def _rest(self, part: ScanPart) -> Iterator[ScanPart]:
        """Yield parts that read what is left: a ticket has one range of each partition."""
        ticket = part.ticket
        if ticket.partitions is None:
            for start, end in self._left.of(partition_of_value(_scalar(ticket.partition))):
                update = {"offset": start, "end_offset": end}
                yield part._replace(ticket=ticket.model_copy(update=update))
            return
        assert ticket.partitions != ALL
        left = [
            (entry, self._left.of(partition_of_value(_scalar(entry.partition))))
            for entry in ticket.partitions
        ]
        for turn in range(max((len(spans) for _, spans in left), default=0)):
            entries = tuple(
                entry._replace(offset=spans[turn][0], end_offset=spans[turn][1])
                for entry, spans in left
                if turn < len(spans)
            )
            yield part._replace(ticket=ticket.model_copy(update={"partitions": entries}))

    def _check(self) -> None:
        if self._is_cancelled:
            raise client_closed(self._transport.endpoint)


def _spans(parts: list[ScanPart]) -> Iterator[tuple[Partition, list[Span]]]:
    for part in parts:
        ticket = part.ticket
        entries = ticket.partitions
        if entries is None:
            entries = (PartitionEntry(ticket.partition, ticket.offset, ticket.end_offset),)
        assert entries != ALL
        for value, offset, end_offset in entries:
            start = ticket.offset if offset is None else offset
            end = ticket.end_offset if end_offset is None else end_offset
            assert isinstance(start, int)
            assert end is not None
            yield partition_of_value(_scalar(value)), [(start, end)] if start < end else []


def _scalar(value: Any) -> JsonScalar:
    return cast("JsonScalar", value)
