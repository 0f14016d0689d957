"""One source of a gather: its state, and its streams, one at a time."""

import time
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import from_json

from wings_client._errors import call_errors, lost, typed_error
from wings_client._stream import OpenStream, Reading
from wings_client._transport import Transport
from wings_client.arrow import RecordBatch
from wings_client.gather._request import FETCH_MESSAGES, ManyReply, Reply, Request
from wings_core.contracts.chunks import PartitionRange, reached
from wings_core.contracts.messages import to_bytes
from wings_core.errors import WingsError
from wings_core.partitions import JsonScalar
from wings_core.times import Deadline

PROMPT_SECONDS = 0.01
"""A server whose first reply arrives within this time counts as prompt."""


@dataclass(slots=True)
class Source:
    """One source; the gather's lock guards it."""

    index: int
    """Among the requests, from 0."""
    request: Request
    deadline: Deadline
    """Until when the server may wait."""
    next_offset: int | None
    """The offset after what was delivered."""
    arrived: int = 0
    """Replies."""
    arrived_rows: int = 0
    replies: int = 0
    """Delivered."""
    rows: int = 0
    """Delivered."""
    failures: int = 0
    """Nodes that failed to serve it."""
    stream_end: object = None
    """The reason in the last end chunk; None if there was none."""
    read_offset: int | None = None
    """The offset after what arrived, whether or not it is put yet."""
    idle_offset: int | None = None
    """The next offset by the last end chunk: all replies before it were put."""
    read_offsets: dict[JsonScalar, int] = field(default_factory=dict[JsonScalar, int])
    """Of many partitions, as `read_offset`."""
    next_offsets: dict[JsonScalar, int] = field(default_factory=dict[JsonScalar, int])
    """Of many partitions, as `next_offset`."""
    idle_offsets: dict[JsonScalar, int] = field(default_factory=dict[JsonScalar, int])
    """Of many partitions, as `idle_offset`."""
    ended: bool = False
    error: WingsError | None = None

    @property
    def has_enough(self) -> bool:
        """Whether it is a fetch that has received `min_messages`."""
        least = self.request.min_messages or 1
        return self.request.kind == "fetch" and self.arrived_rows >= least

    @property
    def is_full(self) -> bool:
        """Whether it is a fetch that has received `max_messages`."""
        most = self.request.max_messages or FETCH_MESSAGES
        return self.request.kind == "fetch" and self.arrived_rows >= most


class SourceStream:
    """One stream of one source, read by one thread at a time.

    Args:
        source: The source.
        transport: To its server.
        is_short: Whether the stream's gRPC deadline may pass before its end: then the next stream
            resumes it.
    """

    def __init__(self, source: Source, transport: Transport, *, is_short: bool = False) -> None:
        self.source = source
        self.is_short = is_short
        self.reading = Reading(transport)
        self._transport = transport
        self._stream: OpenStream | None = None
        self._opened_at = 0.0

    @property
    def is_open(self) -> bool:
        """Whether the stream was opened."""
        return self._stream is not None

    def open(self, ticket: bytes, seconds: float) -> None:
        """Open the stream; blocks until its schema is there.

        Args:
            ticket: To send.
            seconds: Until its gRPC deadline.

        Raises:
            StreamCancelled: It was cancelled.
            WingsError: The server's refusal, or `Unavailable`.
        """
        self.source.stream_end = None
        self._opened_at = time.monotonic()
        # Sources are spread over the nodes of a cluster; after a failure, the next node is read.
        node = self._transport.addresses.for_read(self.source.index + self.source.failures)
        self._stream = self.reading.open(ticket, seconds, node, is_short=self.is_short)

    def next(self) -> Reply | None:
        """Return the next reply, None after the last; blocks while the server waits.

        Raises:
            WingsError: The server's refusal, or `Unavailable`.
        """
        assert self._stream is not None
        source = self.source
        while True:
            try:
                batch, metadata = self._stream.reader.read_chunk()
            except StopIteration:
                if source.request.ticket is None and source.stream_end is None:
                    failure = lost("a stream ended before its end chunk", self._stream.endpoint)
                    raise self._stream.failed(failure) from None
                return None
            except call_errors() as error:
                failure = typed_error(error, self._stream.endpoint)
                raise failure if self.is_short else self._stream.failed(failure) from error
            said = _json_of(metadata)
            rows = 0 if batch is None else batch.num_rows  # pyright: ignore[reportUnnecessaryComparison] - metadata alone.
            # A server other than Wings may use these keys for anything.
            if "end" in said and rows == 0 and type(said.get("next_offset")) is int:
                source.stream_end = said["end"]
                source.read_offset = source.idle_offset = said["next_offset"]
                continue
            if source.request.partitions is not None:
                assert batch is not None
                reply = self._of_many(batch, said)
                if reply is None:
                    continue
                self._arrived(rows)
                return reply
            if batch is None:  # pyright: ignore[reportUnnecessaryComparison] - metadata alone.
                continue
            start_offset, end_offset = said.get("start_offset"), said.get("end_offset")
            if type(start_offset) is int and type(end_offset) is int:
                source.read_offset = end_offset + 1
            else:
                start_offset = end_offset = None
            self._arrived(rows)
            return Reply(batch, source.request, start_offset, end_offset)

    def _of_many(self, batch: RecordBatch, said: dict[str, Any]) -> ManyReply | None:
        """Return the reply of a chunk of many partitions, None where it is the end chunk."""
        source = self.source
        if "end" in said:
            source.stream_end = said["end"]
            ends = {each["partition"]: each["next_offset"] for each in said["partitions"]}
            source.read_offsets |= ends
            source.idle_offsets = ends
            return None
        ranges = [PartitionRange(**each) for each in said["ranges"]]
        source.read_offsets.update(reached(ranges))
        return ManyReply.of(batch, source.request, ranges)

    def _arrived(self, rows: int) -> None:
        """Count a reply that arrived."""
        source = self.source
        if source.arrived == 0 and source.index == 0:
            waited = time.monotonic() - self._opened_at
            self._transport.is_prompt = waited < PROMPT_SECONDS
        source.arrived += 1
        source.arrived_rows += rows


def _json_of(metadata: Any) -> dict[str, Any]:
    """Return a chunk's metadata as a JSON object; empty if it is none."""
    try:
        found = from_json(to_bytes(metadata) or b"{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
