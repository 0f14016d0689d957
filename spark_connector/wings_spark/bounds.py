"""Bounds: a read's start or end in each partition, as users write them.

    earliest                                          every partition from its start
    {"flights": {"JFK": 120, "LAX": "latest"}}        by topic and partition; others by default
    {"events": 7}                                     for a topic without a key

A partition is named by its value's JSON text or, for a string key, by the string itself. As in
Kafka's source, -2 stands for earliest and -1 for latest.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self, cast

import pyarrow as pa

from wings_core.contracts.messages import INT64_MAX, shown
from wings_core.errors import InvalidArgument, WingsError
from wings_core.names import TopicName
from wings_core.partitions import Partition, partition_of, partition_value
from wings_core.times import parse_timestamp

_KAFKA: Mapping[int, Literal["earliest", "latest"]] = {-2: "earliest", -1: "latest"}


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first message at or after a time, else the log's end."""

    timestamp: int
    """The time, in microseconds since the epoch."""


Position = int | Literal["earliest", "latest"] | AtTime


@dataclass(frozen=True, slots=True)
class Bound:
    """One end of a read."""

    default: Position | None = None
    """Position in partitions that are not named; None for the log's start or end on this side."""
    named: Mapping[TopicName, Mapping[str | None, Position]] = field(
        default_factory=dict[TopicName, Mapping[str | None, Position]]
    )
    """Positions by topic and the user's text for the partition (None in a topic without a key)."""

    @classmethod
    def at_timestamp(cls, timestamp: int) -> Self:
        """Return the bound at one time in all partitions."""
        return cls(AtTime(timestamp))

    def of_topic(self, name: TopicName, key_type: pa.DataType | None) -> dict[Partition, Position]:
        """Return the positions of a topic's named partitions.

        Raises:
            InvalidArgument: A partition value is not of the topic's key type, or is missing in a
                topic with a key.
        """
        found: dict[Partition, Position] = {}
        for text, position in self.named.get(name, {}).items():
            if text is None:
                partition = partition_of(None, key_type)
            else:
                partition = partition_of_text(text, key_type)
            if partition in found:
                raise InvalidArgument(f"partition {partition:.80} of {name} is named twice")
            found[partition] = position
        return found


def parse_bound(text: str) -> Bound:
    """Parse the option `startingOffsets` or `endingOffsets`.

    Raises:
        InvalidArgument: The text is neither `earliest`, `latest` nor JSON of the form above.
    """
    stripped = text.strip()
    if stripped.lower() in ("earliest", "latest"):
        return Bound(cast("Position", stripped.lower()))
    if not stripped.startswith("{"):
        raise InvalidArgument(
            'must be earliest, latest, or JSON like {"topic": {"partition value": offset}}; '
            f"got {shown(text)}"
        )
    try:
        topics = cast("dict[str, Any]", json.loads(stripped, object_pairs_hook=_each_once))
    except ValueError as problem:
        raise InvalidArgument(f"not valid JSON: {problem}") from None
    named: dict[TopicName, dict[str | None, Position]] = {}
    for topic, found in topics.items():
        name = TopicName.parse(topic)
        if name in named:
            raise InvalidArgument(f"topic {name} is named twice")
        partitions = cast("dict[str | None, Any]", found if _is_object(found) else {None: found})
        named[name] = {
            key: _position(topic if key is None else key, value)
            for key, value in partitions.items()
        }
    return Bound(None, named)


def partition_of_text(text: str, key_type: pa.DataType | None) -> Partition:
    """Return the partition that a user named by JSON text or, for a string key, by the string.

    Raises:
        InvalidArgument: The text is not a value of the topic's key.
    """
    try:
        return partition_of(json.loads(text), key_type)
    except (ValueError, WingsError) as problem:
        if key_type is not None and not _is_number(key_type):
            return partition_of(text, key_type)
        if isinstance(problem, WingsError):
            raise
        raise InvalidArgument(f"partition {text!r:.80} is not JSON") from None


def partition_shown(partition: Partition) -> str:
    """Return a partition for a message."""
    return "the partition" if partition_value(partition) is None else f"partition {partition:.80}"


def _is_object(found: object) -> bool:
    return isinstance(found, dict) and "timestamp" not in found


def _is_number(key_type: pa.DataType) -> bool:
    return pa.types.is_integer(key_type) or pa.types.is_boolean(key_type)


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice!r:.80} is there twice")
    return found


def _position(name: str, value: object) -> Position:
    if isinstance(value, int) and not isinstance(value, bool):
        if value in _KAFKA:
            return _KAFKA[value]
        if 0 <= value <= INT64_MAX:
            return value
    if value in ("earliest", "latest"):
        return cast("Position", value)
    if isinstance(value, dict):
        timestamp = cast("dict[str, object]", value).get("timestamp")
        if isinstance(timestamp, str):
            return AtTime(parse_timestamp(timestamp, up=True))
    raise InvalidArgument(
        f'{name!r:.80}: must be an offset, "earliest", "latest" or '
        f'{{"timestamp": a time}}; got {shown(value)}'
    )
