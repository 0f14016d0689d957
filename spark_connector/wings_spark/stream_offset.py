r"""Stream offsets: how far a streaming query has read, as the JSON that Spark keeps and shows.

    {"tenants/default/namespaces/default/topics/flights": {"\"JFK\"": 120, "\"LAX\"": 80},
     "uuids": {"tenants/default/namespaces/default/topics/flights": "6f1c…"}}

A number is the next offset to read of the partition with that value (as JSON text). A partition
that is absent is read from its first message. The UUIDs distinguish a topic from a later one of the
same name, whose offsets mean other messages.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self, cast

from wings_core.contracts.messages import shown
from wings_core.errors import InvalidArgument
from wings_core.partitions import Partition

UUIDS = "uuids"
"""No topic's name: those begin with `tenants/`."""


@dataclass(frozen=True, slots=True)
class TopicOffset:
    """How far a topic has been read."""

    uuid: str
    offsets: Mapping[Partition, int] = field(default_factory=dict[Partition, int])
    """The next offset to read, by partition."""


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """How far a query has read, by full topic name."""

    topics: Mapping[str, TopicOffset]

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        """Parse the result of `to_json`.

        Raises:
            InvalidArgument: It has another form, such as that of another data source.
        """
        uuids = found.get(UUIDS)
        if not isinstance(uuids, dict) or not found.keys() - {UUIDS} == uuids.keys():
            raise InvalidArgument(f"not an offset of a stream of Wings: {shown(dict(found))}")
        return cls(
            {
                name: TopicOffset(uuid, found[name])
                for name, uuid in cast("dict[str, str]", uuids).items()
            }
        )

    def to_json(self) -> dict[str, Any]:
        """Return the form that Spark stores, sorted, so that equal offsets are equal texts."""
        named = sorted(self.topics.items())
        found: dict[str, Any] = {name: dict(sorted(topic.offsets.items())) for name, topic in named}
        found[UUIDS] = {name: topic.uuid for name, topic in named}
        return found

    def __iter__(self) -> Iterator[tuple[str, Partition, int]]:
        """Yield topic, partition and offset, by name and value."""
        for name, topic in sorted(self.topics.items()):
            for partition, offset in sorted(topic.offsets.items()):
                yield name, partition, offset
