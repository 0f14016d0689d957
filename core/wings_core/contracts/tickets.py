"""DoGet tickets: one model for each kind, which refuses the keys of other kinds.

The handler that opens a read checks `topic` and `partition` against the log; they keep their own
error codes.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

import pyarrow as pa
from pydantic import (
    AfterValidator,
    Field,
    JsonValue,
    model_validator,
)

from wings_core.contracts.many import Partitions, Positions, check_partitions
from wings_core.contracts.messages import (
    INT64_MAX,
    Identifier,
    MemberName,
    Message,
    OffsetNumber,
    Timestamp,
    check_distinct,
    dump,
    load_object,
    problem_of,
    shortened,
    shown,
)
from wings_core.contracts.offsets import Offset
from wings_core.errors import InvalidTicket
from wings_core.schemas import FIELDS_MAX
from wings_core.times import Deadline, parse_timestamp

MESSAGES_MAX = 100_000
"""The largest `min_messages` and `max_messages`."""

TIMEOUT_MS_MAX = 300_000
"""The longest `timeout_ms`."""

FETCH_TIMEOUT_SECONDS = 0.5
"""How long a fetch or acquire without `deadline` and `timeout_ms` waits."""


Columns = Annotated[
    tuple[str, ...],
    Field(strict=False, min_length=1, max_length=FIELDS_MAX),
    AfterValidator(check_distinct),
]
"""Names of columns, in the order wanted."""


SchemaVersion = Annotated[int, Field(ge=1, le=INT64_MAX)]
"""The number of a version of a topic's schema, from 1 on."""


class _Ticket(Message):
    """The keys of all tickets."""

    topic: str
    """A full name or a bare id."""
    partition: JsonValue = None
    """The partition value; None for a topic without a key."""

    def to_bytes(self) -> bytes:
        """Return the ticket, from which `parse_ticket` makes an equal one."""
        found = self.model_dump(mode="json", exclude_defaults=True)
        return dump({"kind": type(self).model_fields["kind"].default, **found})


class _Read(_Ticket):
    """The keys of tickets that read a partition, or many."""

    partitions: Partitions | None = None
    """Many partitions in one stream; None: `partition` alone."""
    positions: Positions = ()
    """Of all partitions: where to begin in these, instead of at `offset`."""
    columns: Columns | None = None
    """The columns wanted; None for all."""
    filter: str | None = None
    """A SQL predicate over the topic's columns."""
    system_columns: bool = False
    """Append `__offset` and `__timestamp`."""
    schema_version: SchemaVersion | None = None
    """Read as an earlier version of the topic's schema had the columns; None: as the last has
    them."""


class _Waiting(_Ticket, ABC):
    """A ticket that may wait, until `deadline` or for `timeout_ms`."""

    deadline: Timestamp | None = None
    timeout_ms: Annotated[int, Field(gt=1, le=TIMEOUT_MS_MAX)] | None = None

    @model_validator(mode="after")
    def _check_one_end(self) -> Self:
        if self.deadline is not None and self.timeout_ms is not None:
            raise problem_of("keys 'deadline' and 'timeout_ms' exclude each other")
        return self

    def deadline_from_now(self) -> Deadline:
        """Return when waiting ends, `timeout_ms` counted from now: call it once, on arrival."""
        if self.deadline is not None:
            return Deadline.at_timestamp(parse_timestamp(self.deadline))
        if self.timeout_ms is not None:
            return Deadline.after(self.timeout_ms / 1000)
        return self._default_deadline()

    @abstractmethod
    def _default_deadline(self) -> Deadline:
        """Return when waiting ends where the ticket does not say."""


class FetchTicket(_Read, _Waiting):
    """Read from an offset, and wait while there are fewer than `min_messages`."""

    kind: Literal["fetch"] = "fetch"
    offset: Offset | None = None
    """None, which only many partitions may have: `"earliest"`."""
    min_messages: Annotated[int, Field(ge=1, le=MESSAGES_MAX)] = 1
    max_messages: Annotated[int, Field(ge=1, le=MESSAGES_MAX)] = 10_000

    @model_validator(mode="after")
    def _check_limits(self) -> Self:
        if self.offset is None and self.partitions is None:
            raise problem_of("key 'offset' is required")
        check_partitions(self.model_fields_set, self.partitions, self.offset, bounded=False)
        if self.min_messages > self.max_messages:
            raise problem_of(
                f"key 'min_messages': must be at most max_messages ({self.max_messages}); "
                f"got {self.min_messages}"
            )
        return self

    def _default_deadline(self) -> Deadline:
        return Deadline.after(FETCH_TIMEOUT_SECONDS)


class FollowTicket(_Read, _Waiting):
    """Read from an offset and go on as messages are committed."""

    kind: Literal["follow"] = "follow"
    offset: Offset = "earliest"

    @model_validator(mode="after")
    def _check_partitions(self) -> Self:
        check_partitions(self.model_fields_set, self.partitions, self.offset, bounded=False)
        return self

    def _default_deadline(self) -> Deadline:
        return Deadline.never()


class ScanTicket(_Read):
    """Read the range `[offset, end_offset)` of what is committed; never waits."""

    kind: Literal["scan"] = "scan"
    offset: Offset = "earliest"
    end_offset: OffsetNumber | None = None

    @model_validator(mode="after")
    def _check_range(self) -> Self:
        check_partitions(self.model_fields_set, self.partitions, self.offset, self.end_offset)
        return self


class AcquireTicket(_Waiting):
    """Acquire messages of a share group's topic for a member, and wait where there are none."""

    kind: Literal["acquire"] = "acquire"
    group: Identifier
    member: MemberName
    """The member that holds them, by its own name."""
    max_messages: Annotated[int, Field(ge=1, le=MESSAGES_MAX)] = 10_000

    @property
    def any_partition(self) -> bool:
        """Whether the ticket names no partition: messages of any may be acquired."""
        return "partition" not in self.model_fields_set

    def _default_deadline(self) -> Deadline:
        return Deadline.after(FETCH_TIMEOUT_SECONDS)


ReadTicket = FetchTicket | ScanTicket | FollowTicket
Ticket = ReadTicket | AcquireTicket

_KINDS: dict[str, type[Ticket]] = {
    "fetch": FetchTicket,
    "scan": ScanTicket,
    "follow": FollowTicket,
    "acquire": AcquireTicket,
}
"""The models by `kind`; a kind of read is added here."""


def parse_ticket(raw: bytes) -> Ticket:
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
        raise InvalidTicket(
            shortened(f"ticket: key 'kind': must be one of {known}; got {shown(kind)}")
        )
    _check_keys(found, kind, model)
    return model.parse_object(found, raw, InvalidTicket, "ticket")


def resolve_columns(schema: pa.Schema, columns: Sequence[str]) -> tuple[int, ...]:
    """Return the indices of columns in a topic's schema, in the order of `columns`.

    Raises:
        InvalidTicket: The topic has no such column.
    """
    indices = tuple(schema.get_field_index(name) for name in columns)
    for name, index in zip(columns, indices, strict=True):
        if index < 0:
            raise InvalidTicket(
                shortened(f"key 'columns': the topic has no column {name!r:.80}"), column=name
            )
    return indices


def _check_keys(found: dict[str, Any], kind: str, model: type[Ticket]) -> None:
    """Refuse a key of another kind, and one of no kind, each with its own message."""
    for key in found:
        if key in model.model_fields:
            continue
        if any(key in other.model_fields for other in _KINDS.values()):
            raise InvalidTicket(f"ticket: key {key!r} does not belong to kind {kind!r}")
        raise InvalidTicket(shortened(f"ticket: unknown key {key!r:.80}"))
