"""GetFlightInfo commands and ListFlights criteria."""

from collections.abc import Sequence
from typing import Annotated, Self

import pyarrow as pa
from pydantic import Field, model_validator

from wings_core.contracts.messages import INT64_MAX, Message, OffsetNumber, to_bytes
from wings_core.contracts.put import topic_of_path
from wings_core.contracts.reads import PartitionOptions
from wings_core.errors import InvalidArgument


class InfoCommand(PartitionOptions):
    """The command of GetFlightInfo, whose endpoints have `scan` tickets; keys are as in a ticket.

    Without `partition` and `partitions`, each partition gets endpoints of its own.
    """

    end_offset: OffsetNumber | None = None
    splits: Annotated[int, Field(ge=1, le=INT64_MAX)] = 1
    """Number of near-equal ranges per partition, at most its rows; with `partitions`, the number of
    endpoints for all partitions together."""

    @model_validator(mode="after")
    def _check_range(self) -> Self:
        self.check_partitions(self.end_offset)
        return self


class Criteria(Message):
    """The criteria of ListFlights."""

    namespace: str | None = None
    """Full name of the namespace; None for all namespaces."""


def parse_info_command(raw: bytes) -> InfoCommand:
    """Parse the command of a descriptor.

    Raises:
        InvalidArgument: The message names the key and the problem.
    """
    return InfoCommand.parse(raw, InvalidArgument, "info command")


def info_path(path: Sequence[bytes | str]) -> InfoCommand:
    """Return the command equivalent to a path descriptor `[topic]`.

    Raises:
        InvalidArgument: Not exactly one element, or not UTF-8.
    """
    return InfoCommand(topic=topic_of_path(path))


def parse_criteria(raw: "bytes | pa.Buffer | None") -> Criteria:
    """Parse the criteria of ListFlights; empty criteria select every topic.

    Raises:
        InvalidArgument: The message names the key and the problem.
    """
    found = to_bytes(raw)
    return Criteria.parse(found, InvalidArgument, "criteria") if found else Criteria()
