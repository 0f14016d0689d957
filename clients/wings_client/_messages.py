"""Builds the messages of the contracts from a caller's arguments, with typed errors."""

import base64
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ValidationError

from wings_client._model import PartitionValue
from wings_core.contracts.messages import sentence, shortened
from wings_core.contracts.reads import TimestampOffset
from wings_core.errors import InvalidArgument, InvalidTicket
from wings_core.partitions import JsonScalar
from wings_core.times import duration_in, format_timestamp, moment_of, parse_timestamp

M = TypeVar("M", bound=BaseModel)

OffsetValue = int | str | datetime
"""Where to begin: an offset; a negative number, which counts from the end of each partition;
`"earliest"`, `"latest"`; or a time with a zone, also as text of RFC 3339, or as `"-1h"`, that long
before now by this machine's clock: the first message at or after it, else the end of the log."""

TimeValue = datetime | str
"""A time with a zone, or its text as RFC 3339."""


def build(model: type[M], error: type[InvalidArgument], what: str, **keys: Any) -> M:
    """Build a message; keys that are None are left out.

    Raises:
        InvalidArgument: Of class `error`; names the key and the problem.
    """
    given = {key: value for key, value in keys.items() if value is not None}
    try:
        return model(**given)
    except ValidationError as problem:
        raise error(shortened(f"{what}: {sentence(problem, model)}")) from None


def wire_partition(value: PartitionValue) -> JsonScalar:
    """Return a partition value in its wire form: bytes as base64."""
    return base64.b64encode(value).decode("ascii") if isinstance(value, bytes) else value


def offset_of(text: str) -> Literal["earliest", "latest"] | datetime:
    """Parse the text of an offset: a word, a time with a zone, or a time before now, like `-1h`.

    Raises:
        InvalidTicket: It is none of these.
    """
    if text == "earliest" or text == "latest":
        return text
    try:
        if text[:1] == "-" and not text[-1].isdigit():  # A plain number is an offset from the end.
            ago_ms = duration_in("ms", text[1:])
            if ago_ms is not None:
                return datetime.now(UTC) - timedelta(milliseconds=ago_ms)
        return moment_of(parse_timestamp(text, up=True))
    except (InvalidArgument, OverflowError):
        raise InvalidTicket(
            f"{text!r:.80} is not an offset: expected a number, earliest, latest, a time with a "
            "zone, like 2026-11-20T12:00:00Z, or one before now, like -30m, -1h or -7d"
        ) from None


def wire_offset(value: OffsetValue) -> int | str | TimestampOffset:
    """Return an offset in its wire form: numbers and words as they are, times wrapped.

    Raises:
        InvalidTicket: A text is no word and no time.
    """
    if isinstance(value, str):
        value = offset_of(value)
    if isinstance(value, datetime):
        return TimestampOffset(timestamp=wire_time(value))
    return value


def wire_time(value: TimeValue) -> str:
    """Return a time as RFC 3339 in UTC.

    Raises:
        InvalidArgument: Without a zone, or not RFC 3339, or outside of the years 1 to 9999.
    """
    if isinstance(value, str):
        return format_timestamp(parse_timestamp(value))
    if value.tzinfo is None:
        raise InvalidArgument(f"the time {value.isoformat()} has no zone: give one, like UTC")
    try:
        utc = value.astimezone(UTC)
    except (OverflowError, ValueError):
        raise InvalidArgument(
            f"the time {value.isoformat()} is outside of the years 1 to 9999 of UTC"
        ) from None
    return utc.isoformat(timespec="microseconds").replace("+00:00", "Z")
