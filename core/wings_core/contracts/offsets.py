"""Offsets in tickets and commands: the start and end of reads."""

from typing import Annotated, Literal

from pydantic import ValidationError, ValidatorFunctionWrapHandler, WrapValidator

from wings_core.contracts.messages import (
    INT64_MAX,
    Message,
    OffsetNumber,
    Timestamp,
    problem_of,
    shown,
)
from wings_core.times import parse_timestamp


class TimestampOffset(Message):
    """The first message at or after a time, or the end of the log if there is none."""

    timestamp: Timestamp

    @property
    def timestamp_us(self) -> int:
        """The time in microseconds since the epoch, rounded up."""
        return parse_timestamp(self.timestamp, up=True)


def _one_sentence(value: object, handler: ValidatorFunctionWrapHandler) -> object:
    """Validate an offset, raising one error where pydantic would raise one for each alternative."""
    if isinstance(value, dict):
        return TimestampOffset.model_validate(value)
    try:
        return handler(value)
    except ValidationError:
        expected = f"an integer from 0 to {INT64_MAX}"
        if not isinstance(value, int) or isinstance(value, bool):
            expected = 'an integer, "earliest", "latest" or {"timestamp": a time}'
        raise problem_of(f"must be {expected}; got {shown(value)}") from None


Offset = Annotated[
    OffsetNumber | Literal["earliest", "latest"] | TimestampOffset, WrapValidator(_one_sentence)
]
"""Start of a read: a number, an end of the log, or a time."""


def check_range(offset: object, end_offset: int | None) -> None:
    """Validate that a range of offsets does not end before it begins."""
    if end_offset is not None and isinstance(offset, int) and end_offset < offset:
        raise problem_of(f"key 'end_offset': must be at least offset ({offset}); got {end_offset}")
