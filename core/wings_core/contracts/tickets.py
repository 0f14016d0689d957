"""DoGet tickets: one model for each kind, which rejects the keys of other kinds.

The handler validates `topic` and `partition` against the log, with their own error codes. The
actions that begin and end a backup are beside the tickets that read its files.
"""

from abc import ABC, abstractmethod
from typing import Annotated, Any, Literal, Self

import pyarrow as pa
from pydantic import Field, JsonValue, model_validator

from wings_core.contracts.actions import ActionBody
from wings_core.contracts.messages import (
    INT64_MAX,
    Identifier,
    MemberName,
    OffsetNumber,
    Ticket,
    Timestamp,
    load_object,
    problem_of,
    shortened,
    shown,
)
from wings_core.contracts.reads import PartitionOptions, Positions
from wings_core.contracts.sql import SqlTicket
from wings_core.errors import InvalidTicket, did_you_mean, suggested
from wings_core.times import Deadline, parse_timestamp

FILES_SCHEMA = pa.schema(
    [
        pa.field("name", pa.string(), nullable=False),
        pa.field("bytes", pa.int64()),
    ]
)
"""Schema of the file list: the first `bytes` of a file, which never change, are in the backup; null
for the whole file."""

DATA_SCHEMA = pa.schema([pa.field("data", pa.binary(), nullable=False)])
"""Schema of file contents: consecutive bytes."""

METADATA_FILE = "metadata.sqlite"
HOLDS_FILE = "holds.sqlite"

BackupId = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]


class BackupBegin(ActionBody):
    """The body of `backup-begin`: an empty object."""


class BackupEnd(ActionBody):
    """The body of `backup-end`."""

    backup: BackupId


class BackupTicket(Ticket):
    """Keys common to both tickets."""

    backup: BackupId
    """Id returned by `backup-begin`."""


class BackupFiles(BackupTicket):
    """List the files with messages that a backup needs, in batches of `FILES_SCHEMA`."""

    kind: Literal["backup-files"] = "backup-files"


class BackupRead(BackupTicket):
    """Read a part of a file, in batches of `DATA_SCHEMA`."""

    kind: Literal["backup-read"] = "backup-read"
    file: str
    """Name of a listed file, or of a database."""
    start: Annotated[int, Field(ge=0, le=INT64_MAX)] = 0
    """First byte, 0-based."""
    end: Annotated[int, Field(ge=0, le=INT64_MAX)]
    """End in bytes, exclusive; cut at the end of the file."""


MESSAGES_MAX = 100_000
"""Greatest `min_messages` and `max_messages`."""

TIMEOUT_MS_MAX = 300_000
"""Greatest `timeout_ms`."""

FETCH_TIMEOUT_SECONDS = 0.5
"""Default wait of a fetch or acquire without `deadline` and `timeout_ms`."""


class WaitingTicket(Ticket, ABC):
    """A ticket that may wait, until `deadline` or for `timeout_ms`."""

    deadline: Timestamp | None = None
    """Time in RFC 3339 at which the wait ends."""
    timeout_ms: Annotated[int, Field(gt=1, le=TIMEOUT_MS_MAX)] | None = None
    """Longest wait in milliseconds, from the ticket's arrival, instead of `deadline`."""

    @model_validator(mode="after")
    def _check_one_end(self) -> Self:
        if self.deadline is not None and self.timeout_ms is not None:
            raise problem_of("keys 'deadline' and 'timeout_ms' exclude each other")
        return self

    def deadline_from_now(self) -> Deadline:
        """Return the deadline, with `timeout_ms` counted from now; call it once, on arrival."""
        if self.deadline is not None:
            return Deadline.at_timestamp(parse_timestamp(self.deadline))
        if self.timeout_ms is not None:
            return Deadline.after(self.timeout_ms / 1000)
        return self._default_deadline()

    @abstractmethod
    def _default_deadline(self) -> Deadline:
        """Return the deadline of a ticket without one."""


class ReadTicket(PartitionOptions, Ticket):
    """A ticket that reads one or many partitions."""

    positions: Positions = ()
    """Starts in some of all partitions, instead of `offset`."""


class FetchTicket(ReadTicket, WaitingTicket):
    """A ticket to read from an offset, waiting for `min_messages`."""

    kind: Literal["fetch"] = "fetch"
    min_messages: Annotated[int, Field(ge=1, le=MESSAGES_MAX)] = 1
    """Number of messages to wait for."""
    max_messages: Annotated[int, Field(ge=1, le=MESSAGES_MAX)] = 10_000
    """Most messages (rows that pass the filter) to return; the read ends there."""

    @model_validator(mode="after")
    def _check_limits(self) -> Self:
        if self.offset is None and self.partitions is None:
            raise problem_of("key 'offset' is required")
        self.check_partitions(has_positions="positions" in self.model_fields_set, bounded=False)
        if self.min_messages > self.max_messages:
            raise problem_of(
                f"key 'min_messages': must be at most max_messages ({self.max_messages}); "
                f"got {self.min_messages}"
            )
        return self

    def _default_deadline(self) -> Deadline:
        return Deadline.after(FETCH_TIMEOUT_SECONDS)


class FollowTicket(ReadTicket, WaitingTicket):
    """A ticket to read from an offset, and continue as messages are committed."""

    kind: Literal["follow"] = "follow"

    @model_validator(mode="after")
    def _check_range(self) -> Self:
        self.check_partitions(has_positions="positions" in self.model_fields_set, bounded=False)
        return self

    def _default_deadline(self) -> Deadline:
        return Deadline.never()


class ScanTicket(ReadTicket):
    """A ticket to read the committed messages `[offset, end_offset)`; never waits."""

    kind: Literal["scan"] = "scan"
    end_offset: OffsetNumber | None = None
    """End of the read, exclusive; None for the log's end."""

    @model_validator(mode="after")
    def _check_range(self) -> Self:
        self.check_partitions(self.end_offset, has_positions="positions" in self.model_fields_set)
        return self


class AcquireTicket(WaitingTicket):
    """A ticket to acquire messages of a share group for a member, waiting for the first one."""

    kind: Literal["acquire"] = "acquire"
    topic: str
    """Full name or bare id of the topic."""
    partition: JsonValue = None
    """Partition value, None for a topic without a key; messages of any partition if absent."""
    group: Identifier
    """The share group."""
    member: MemberName
    """Name of the member that will hold the messages."""
    max_messages: Annotated[int, Field(ge=1, le=MESSAGES_MAX)] = 10_000
    """Most messages to return."""

    def _default_deadline(self) -> Deadline:
        return Deadline.after(FETCH_TIMEOUT_SECONDS)


AnyRead = FetchTicket | ScanTicket | FollowTicket
AnyTicket = AnyRead | AcquireTicket | SqlTicket | BackupFiles | BackupRead

_KINDS: dict[str, type[AnyTicket]] = {
    "fetch": FetchTicket,
    "scan": ScanTicket,
    "follow": FollowTicket,
    "acquire": AcquireTicket,
    "sql": SqlTicket,
    "backup-files": BackupFiles,
    "backup-read": BackupRead,
}
"""Models by `kind`; a new kind needs an entry here, and a case in the handler's `match`."""


def parse_ticket(raw: bytes) -> AnyTicket:
    """Parse a ticket.

    Args:
        raw: JSON in UTF-8.

    Raises:
        InvalidTicket: The message names the key and the problem.
    """
    found = load_object(raw, InvalidTicket, "ticket")
    kind = found.get("kind", "fetch")
    model = _KINDS.get(kind) if isinstance(kind, str) else None
    if model is None:
        known = ", ".join(_KINDS)
        hint = did_you_mean(kind, _KINDS) if isinstance(kind, str) else ""
        raise InvalidTicket(
            shortened(f"ticket: key 'kind': must be one of {known}; got {shown(kind)}{hint}")
        )
    _check_keys(found, kind, model)
    return model.parse_object(found, raw, InvalidTicket, "ticket")


def _check_keys(found: dict[str, Any], kind: str, model: type[AnyTicket]) -> None:
    """Reject unknown keys, with a message of its own for keys of another kind."""
    for key in found:
        if key in model.model_fields:
            continue
        if any(key in other.model_fields for other in _KINDS.values()):
            raise InvalidTicket(f"ticket: key {key!r} does not belong to kind {kind!r}")
        hint = suggested(key, model.model_fields)
        raise InvalidTicket(shortened(f"ticket: unknown key {key!r:.80}{hint}"))
