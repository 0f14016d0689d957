"""The request of a gather to one source, and a reply."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import pyarrow as pa

from wings_client._messages import OffsetValue, build, wire_offset, wire_partition
from wings_client._model import PartitionValue
from wings_client._stream import milliseconds
from wings_core.contracts.tickets import FetchTicket, FollowTicket, ScanTicket
from wings_core.errors import InvalidTicket

FETCH_MESSAGES: int = FetchTicket.model_fields["max_messages"].default
"""Most messages of a fetch, by default."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a gather: a read of one partition, on this server or another.

    `min_messages` and `max_messages` are of this source, and only of a fetch.
    """

    topic: str = ""
    """Its full name, or an id in the default namespace."""
    partition: PartitionValue = None
    offset: OffsetValue = "earliest"
    kind: Literal["fetch", "scan", "follow"] = "fetch"
    timeout: float | None = None
    """Seconds that the server may wait; None: as long as the gather lasts."""
    min_messages: int | None = None
    max_messages: int | None = None
    columns: tuple[str, ...] | None = None
    filter: str | None = None
    system_columns: bool = False
    endpoint: str | None = None
    """Another server than the client's, like `grpc://host:7777`."""
    ticket: bytes | None = None
    """A ticket to send as it is, of any Flight server, instead of all but `endpoint`."""

    def to_ticket(self, seconds: float, offset: int | None = None) -> bytes:
        """Return the ticket to send.

        Args:
            seconds: How long the server may wait.
            offset: The offset to resume at; None: that of the request.

        Raises:
            InvalidTicket: A value is out of range.
        """
        if self.ticket is not None:
            return self.ticket
        common = {
            "topic": self.topic,
            "partition": wire_partition(self.partition),
            "offset": wire_offset(self.offset) if offset is None else offset,
            "columns": self.columns,
            "filter": self.filter,
            "system_columns": self.system_columns,
        }
        if self.kind == "scan":
            return build(ScanTicket, InvalidTicket, "request", **common).to_bytes()
        common["timeout_ms"] = milliseconds(seconds)
        if self.kind == "follow":
            return build(FollowTicket, InvalidTicket, "request", **common).to_bytes()
        return build(
            FetchTicket,
            InvalidTicket,
            "request",
            min_messages=self.min_messages,
            max_messages=self.max_messages,
            **common,
        ).to_bytes()

    @property
    def waits(self) -> bool:
        """Whether the server waits for messages, for as long as the ticket says."""
        return self.ticket is None and self.kind != "scan"


class Reply(NamedTuple):
    """One batch of one source."""

    batch: pa.RecordBatch
    request: Request
    """The request that it answers: its source."""
    start_offset: int | None
    end_offset: int | None
    """Inclusive; both are None if the server does not send them."""
