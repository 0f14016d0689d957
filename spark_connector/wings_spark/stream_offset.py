r"""Stream offsets: how far a streaming query has read, as the JSON that Spark keeps and shows.

    {"tenants/default/namespaces/default/topics/flights": {"\"JFK\"": 120, "\"LAX\"": 80},
     "uuids": {"tenants/default/namespaces/default/topics/flights": "6f1c…"}}

A number is the next offset to read of the partition with that value (as JSON text). An absent
partition is read from its first message. The UUIDs distinguish a topic from a later one of the same
name, whose offsets mean other messages. The offsets of a topic with many partitions are packed:

    {"tenants/…/flights": {"partitions": 100000, "messages": 700000, "packed": "eJy0vW…"}, …}
"""

import base64
import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from typing import Any, Self, cast

from wings_core.contracts.messages import shown
from wings_core.errors import InvalidArgument
from wings_core.partitions import Partition

UUIDS = "uuids"
"""Key of the UUIDs, which differs from topic names as these begin with `tenants/`."""

PACKED = "packed"
"""Key of packed offsets, which differs from partitions as these are JSON."""

PACKED_MIN = 1_000
"""Least number of partitions to pack; fewer remain readable for people."""


@dataclass(frozen=True, slots=True)
class TopicOffset:
    """Progress of reading a topic."""

    uuid: str
    offsets: Mapping[Partition, int] = field(default_factory=dict[Partition, int])
    """Next offset to read, by partition."""

    def to_json(self, *, whole: bool = True) -> dict[str, Any]:
        """Return the offsets in the form that Spark stores or, if not `whole`, shows."""
        if len(self.offsets) < PACKED_MIN:
            return dict(sorted(self.offsets.items()))
        sums = {"partitions": len(self.offsets), "messages": sum(self.offsets.values())}
        return {**sums, PACKED: _pack(self.offsets)} if whole else sums


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """Progress of a query, by full topic name."""

    topics: Mapping[str, TopicOffset]

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        """Parse the result of `to_json` of this or an earlier version.

        Raises:
            InvalidArgument: The text has another form, such as that of another data source.
        """
        uuids = found.get(UUIDS)
        if not isinstance(uuids, dict) or not found.keys() - {UUIDS} == uuids.keys():
            raise InvalidArgument(f"not an offset of a stream of Wings: {shown(dict(found))}")
        named = cast("dict[str, str]", uuids)
        return cls(
            {name: TopicOffset(uuid, _offsets_of(found[name])) for name, uuid in named.items()}
        )

    def to_json(self) -> dict[str, Any]:
        """Return the form that Spark stores, sorted so that equal offsets give equal texts."""
        return self._to_json(whole=True)

    def shown(self) -> dict[str, Any]:
        """Return the form that Spark shows in a query's progress, without packed offsets."""
        return self._to_json(whole=False)

    def _to_json(self, *, whole: bool) -> dict[str, Any]:
        named = sorted(self.topics.items())
        found: dict[str, Any] = {name: topic.to_json(whole=whole) for name, topic in named}
        found[UUIDS] = {name: topic.uuid for name, topic in named}
        return found

    def __iter__(self) -> Iterator[tuple[str, Partition, int]]:
        """Yield topic, partition and offset, by name and value."""
        for name, topic in sorted(self.topics.items()):
            for partition, offset in sorted(topic.offsets.items()):
                yield name, partition, offset


def _offsets_of(found: Mapping[str, Any]) -> Mapping[Partition, int]:
    return _unpack(found[PACKED]) if PACKED in found else cast("Mapping[Partition, int]", found)


def _pack(offsets: Mapping[Partition, int]) -> str:
    """Return offsets as base64 of compressed JSON.

    Partitions are sorted, and each is stored as the length of the prefix that it shares with the
    one before it, and the rest: ascending numbers need almost nothing.
    """
    ordered = sorted(offsets)
    shared = [0, *map(_shared, ordered, islice(ordered, 1, None))]
    rests = [name[length:] for name, length in zip(ordered, shared, strict=True)]
    found = [shared, rests, [offsets[name] for name in ordered]]
    text = json.dumps(found, separators=(",", ":"))
    return base64.b64encode(zlib.compress(text.encode("ascii"))).decode("ascii")


@lru_cache(maxsize=4)  # A trigger begins at the offset that the last one returned.
def _unpack(packed: str) -> Mapping[Partition, int]:
    """Return the offsets in a result of `_pack`; must not be changed."""
    offsets: dict[Partition, int] = {}
    name = ""
    try:
        shared, rests, found = json.loads(zlib.decompress(base64.b64decode(packed)))
        for length, rest, offset in zip(shared, rests, found, strict=True):
            name = name[:length] + rest
            offsets[Partition(name)] = offset
    except (ValueError, zlib.error) as error:
        raise InvalidArgument(f"not an offset of a stream of Wings: {error}") from error
    return offsets


def _shared(one: str, other: str) -> int:
    """Return the length of the common prefix of two texts."""
    if other.startswith(one):
        return len(one)
    return next(index for index, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
