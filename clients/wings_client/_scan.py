"""Scan: a range of what is committed, read lazily.

GetFlightInfo fixes the ranges, so that a scan reads one state of the log however long it takes, and
resumes a part whose connection broke.
"""

import threading
from collections.abc import Generator, Iterator
from typing import NamedTuple, cast

from wings_client._chunks import Chunks
from wings_client._handover import ReadAhead
from wings_client._progress import counted, in_notebook
from wings_client._read_options import entries_of
from wings_client._results import Read
from wings_client._transport import Transport
from wings_client.arrow import RecordBatch, Schema
from wings_core.contracts.info import InfoCommand
from wings_core.contracts.tickets import ScanTicket, parse_ticket
from wings_core.errors import InvalidArgument

PARALLEL_MAX = 64
"""Most streams of one scan at once, each with a thread."""

ROWS_PER_PART_MIN = 65_536
"""A range is not cut into parts smaller than a full batch."""

JOIN_SECONDS = 1.0
"""How long the end of a scan waits for each of its threads; one that is opening a stream on a
silent server ends with that stream."""

BATCHES_WAITING_PER_STREAM = 2
"""Batches that a parallel scan has read and not yet delivered, for each of its streams."""


class ScanPart(NamedTuple):
    """A range of one partition or of each of many, and the nodes that serve it."""

    ticket: ScanTicket
    locations: tuple[str, ...]
    """The nodes to ask, in order; empty: the node that calls go to."""
    clamps: bool = False
    """Whether what retention takes before it is read is skipped; else it is an error."""

    def read(self, transport: Transport, *, skips_lost: bool = False) -> Chunks:
        """Return its chunks, no stream opened yet."""
        chunks = Chunks(transport, self.ticket, locations=self.locations)
        if self.clamps or skips_lost:
            chunks.exact = ()
        return chunks


class ScanRead(Read):
    """A range that is being read: its parts one after another, or several at once.

    Args:
        transport: To the server.
        command: The range.
        parallel: Most streams at once, each with a thread.
        skips_lost: True skips what retention takes before it is read, as of a range from
            `"earliest"` on; False raises an error.
    """

    kind = "scan"

    def __init__(
        self,
        transport: Transport,
        command: InfoCommand,
        parallel: int,
        *,
        skips_lost: bool = False,
    ) -> None:
        self.schema, parts = ranges(transport, command, parallel)
        self.rows = None if command.filter else sum(map(rows_of, parts))
        self.streams = min(parallel, len(parts))
        self._topic = command.topic.rsplit("/")[-1]
        self._transport = transport
        self._chunks = [part.read(transport, skips_lost=skips_lost) for part in parts]

    def sources(self) -> list[Iterator[RecordBatch]]:
        """Return the batches of each part, in order of offset."""
        return [(chunk.batch for chunk in chunks) for chunks in self._chunks]

    def batches(self) -> Generator[RecordBatch]:
        """Yield the batches of all parts; in a notebook, display how far it is."""
        batches = self._at_once() if self.streams > 1 else self._in_turn()
        if in_notebook():
            batches = counted(batches, f"scan of {self._topic}", self.rows)
        return batches

    def cancel(self) -> None:
        """End all streams; does not block."""
        if not self._transport.is_inherited:
            for chunks in self._chunks:
                chunks.cancel()

    def _in_turn(self) -> Generator[RecordBatch]:
        for chunks in self._chunks:
            for chunk in chunks:
                yield chunk.batch

    def _at_once(self) -> Generator[RecordBatch]:
        waiting_max = self.streams * BATCHES_WAITING_PER_STREAM
        ahead = ReadAhead(self.sources(), self.cancel, waiting_max, self.streams)
        started: list[threading.Thread] = []
        try:
            for index in range(self.streams):
                thread = threading.Thread(
                    target=ahead.read, name=f"wings-scan-{index}", daemon=True
                )
                thread.start()
                started.append(thread)
            while True:
                self._transport.check_process()
                batch = ahead.handover.take()
                if batch is None:
                    return
                yield batch
        finally:
            if not self._transport.is_inherited:
                ahead.cancel()
            for thread in started:
                thread.join(JOIN_SECONDS)


def ranges(
    transport: Transport, command: InfoCommand, parallel: int
) -> tuple[Schema, list[ScanPart]]:
    """Return the ranges of `plan`, cut so that `parallel` streams have work.

    With `partitions`, each is of many partitions.
    """
    if not 1 <= parallel <= PARALLEL_MAX:
        raise InvalidArgument(f"parallel must be from 1 to {PARALLEL_MAX}; got {parallel}")
    if command.partitions is not None:
        schema, parts = plan(transport, command.model_copy(update={"splits": parallel}))
        only = None if command.system_columns else _only_partition(parts)
        if only is not None:
            return schema, list(_cut(only, parallel, 1))
        return schema, parts
    schema, parts = plan(transport, command)
    return schema, [cut for part in parts for cut in _cut(part, parallel, len(parts))]


def plan(transport: Transport, command: InfoCommand) -> tuple[Schema, list[ScanPart]]:
    """Return the parts that make up a range of one partition or of many, their ends fixed.

    Returns:
        The schema of the batches, and the parts: by partition value where the command does not have
        `partitions`.
    """
    info = transport.info(command)
    clamps = command.begin == "earliest"
    parts: list[ScanPart] = []
    for endpoint in info.endpoints:
        ticket = parse_ticket(endpoint.ticket.ticket)
        if isinstance(ticket, ScanTicket):
            locations = tuple(each.uri.decode() for each in endpoint.locations)
            parts.append(ScanPart(ticket, locations, clamps))
    return cast("Schema", info.schema), parts


def _only_partition(parts: list[ScanPart]) -> ScanPart | None:
    """Return the parts of a topic without a key as one, of its partition; None: it has a key."""
    entries = [entry for part in parts for entry in entries_of(part.ticket)]
    if not entries or any(entry.partition is not None for entry in entries):
        return None
    ticket = parts[0].ticket.model_copy(
        update={
            "partitions": None,
            "offset": entries[0].offset,
            "end_offset": entries[-1].end_offset,
        }
    )
    return parts[0]._replace(ticket=ticket)


def rows_of(part: ScanPart) -> int:
    """Return how many rows the range of a part has, those that retention takes included."""
    return sum(
        each.end_offset - each.offset
        for each in entries_of(part.ticket)
        if isinstance(each.offset, int) and each.end_offset
    )


def _cut(part: ScanPart, parallel: int, parts_planned: int) -> Iterator[ScanPart]:
    """Cut a range, so that `parallel` streams have work where there are fewer ranges.

    Each cut is read from another node first, where there are several.
    """
    ticket, locations = part.ticket, part.locations
    assert isinstance(ticket.offset, int)
    assert ticket.end_offset is not None
    start_offset, rows = ticket.offset, ticket.end_offset - ticket.offset
    cuts = min(-(-parallel // parts_planned), -(-rows // ROWS_PER_PART_MIN))
    for index in range(cuts):
        update = {
            "offset": start_offset + rows * index // cuts,
            "end_offset": start_offset + rows * (index + 1) // cuts,
        }
        first = index % len(locations) if locations else 0
        yield part._replace(
            ticket=ticket.model_copy(update=update),
            locations=(*locations[first:], *locations[:first]),
        )
