"""Builds the messages of the contracts from a caller's arguments, with typed errors."""

import base64
from datetime import UTC, datetime
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from wings_client._model import PartitionValue
from wings_core.contracts.messages import sentence, shortened
from wings_core.contracts.reads import TimestampOffset
from wings_core.errors import InvalidArgument
from wings_core.partitions import JsonScalar
from wings_core.times import format_timestamp, parse_timestamp

M = TypeVar("M", bound=BaseModel)

OffsetValue = int | str | datetime
"""Where to begin: an offset, `"earliest"`, `"latest"`, or a time with a zone: the first message at
or after it, else the end of the log."""

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


def wire_offset(value: OffsetValue) -> int | str | TimestampOffset:
    """Return an offset in its wire form: numbers and words as they are, times wrapped."""
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
