r"""Stream offsets: how far a streaming query has read, as the JSON that Spark keeps and shows.

    {"tenants/default/namespaces/default/topics/flights": {"\"JFK\"": 120, "\"LAX\"": 80},
     "uuids": {"tenants/default/namespaces/default/topics/flights": "6f1c…"}}

A number is the next offset to read of the partition with that value (as JSON text). An absent
partition is read from its first message. The UUIDs distinguish a topic from a later one of the same
name, whose offsets mean other messages. The offsets of a topic with many partitions are packed:

    {"tenants/…/flights": {"partitions": 100000, "messages": 700000, "packed": "eJy0vW…"}, …}

The end of a batch follows from its start and the contents of the logs, its heads.
"""

import base64
import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import islice
from typing import Any, Self, cast

from wings_client import Client
from wings_core.contracts.messages import shortened, shown
from wings_core.errors import InvalidArgument, OffsetOutOfRange
from wings_core.partitions import Partition
from wings_spark.bounds import partition_shown
from wings_spark.options import SparkReadOptions
from wings_spark.ranges import Range, share
from wings_spark.subscription import Subscription, states_of_all, topic_replaced, what_is_kept

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

    def to_json(self, *, whole: bool = True) -> dict[str, Any]:
        """Return the form that Spark stores, sorted so that equal offsets give equal texts.

        If not `whole`, it is the form that Spark shows in a query's progress, without packed
        offsets.
        """
        named = sorted(self.topics.items())
        found: dict[str, Any] = {name: topic.to_json(whole=whole) for name, topic in named}
        found[UUIDS] = {name: topic.uuid for name, topic in named}
        return found

    def __iter__(self) -> Iterator[tuple[str, Partition, int]]:
        """Yield topic, partition and offset, by name and value."""
        for name, topic in sorted(self.topics.items()):
            for partition, offset in sorted(topic.offsets.items()):
                yield name, partition, offset


@dataclass(frozen=True, slots=True)
class Head:
    """State of a topic's log, as of one call."""

    uuid: str
    kept: Mapping[Partition, tuple[int, int]]
    """Log start offset and next offset, by partition."""


@dataclass(frozen=True, slots=True)
class Heads:
    """States of the logs of all topics of a query, by full name."""

    topics: Mapping[str, Head]

    @classmethod
    def ask(cls, client: Client, options: SparkReadOptions) -> Self:
        """Fetch the states from the server, with two calls for each topic.

        Raises:
            TopicNotFound: A topic does not exist.
        """
        found: dict[str, Head] = {}
        for topic, states in states_of_all(client, Subscription.find(client, options), options):
            kept = {
                partition: (state.log_start_offset, state.next_offset)
                for partition, state in states.items()
            }
            found[topic.name] = Head(topic.uuid, kept)
        return cls(found)

    @property
    def offset(self) -> StreamOffset:
        """The offset of a query that has read everything."""
        return StreamOffset(
            {
                name: TopicOffset(
                    head.uuid, {partition: end for partition, (_, end) in head.kept.items()}
                )
                for name, head in self.topics.items()
            }
        )


@dataclass(frozen=True, slots=True)
class NextBatch:
    """The next batch of a stream."""

    end: StreamOffset
    rows: int


def next_offsets(
    start: StreamOffset,
    heads: Heads,
    target: StreamOffset | None,
    rows_max: int | None,
    options: SparkReadOptions,
) -> NextBatch:
    """Return the end of the batch that begins at `start`.

    Args:
        start: The batch's first offsets.
        heads: The logs.
        target: Offset at which the query ends, or None.
        rows_max: Most rows of the batch, divided among partitions in proportion to their rows; None
            for all.
        options: Options, of which `failOnDataLoss` is used.

    Raises:
        OffsetOutOfRange: Unread messages were deleted, and `failOnDataLoss` holds.
    """
    spans: list[Range] = []
    for name, head in heads.topics.items():
        spans += _spans(name, head, start.topics.get(name), target, options)
    sizes = [span.rows for span in spans]
    shares = sizes if rows_max is None else share(rows_max, sizes)
    # Missing topics keep their offsets, in case they return.
    found = {name: (topic.uuid, dict(topic.offsets)) for name, topic in start.topics.items()}
    for name, head in heads.topics.items():
        if name not in found or found[name][0] != head.uuid:
            found[name] = (head.uuid, {})
    for span, rows in zip(spans, shares, strict=True):
        offsets = found[span.topic][1]
        if rows or span.partition in offsets:
            offsets[span.partition] = span.start_offset + rows
    topics = {name: TopicOffset(uuid, offsets) for name, (uuid, offsets) in found.items()}
    return NextBatch(StreamOffset(topics), sum(shares))


def between(start: StreamOffset, end: StreamOffset) -> Iterator[Range]:
    """Yield the range between two offsets of each partition."""
    for name, partition, end_offset in end:
        begun, uuid = start.topics.get(name), end.topics[name].uuid
        same = begun is not None and begun.uuid == uuid
        start_offset = begun.offsets.get(partition, 0) if begun is not None and same else 0
        yield Range(name, uuid, partition, min(start_offset, end_offset), end_offset)


def check_nothing_lost(start: StreamOffset, end: StreamOffset, heads: Heads) -> None:
    """Check a batch whose end was determined without its start, as in Spark 4.1.

    Raises:
        OffsetOutOfRange: A topic was replaced since the start, or its log ends before the start.
    """
    for name, partition, start_offset in start:
        if name not in end.topics or name not in heads.topics:
            continue
        if end.topics[name].uuid != start.topics[name].uuid:
            raise topic_replaced(name)
        # The first batch may begin at a log end that was read just after the batch's own end.
        _, next_offset = heads.topics[name].kept.get(partition, (0, 0))
        if start_offset > next_offset:
            raise _log_shortened(name, partition, start_offset, next_offset)


def still_kept(ranges: Iterator[Range], heads: Heads, options: SparkReadOptions) -> Iterator[Range]:
    """Yield the parts of planned ranges that the logs still hold.

    Raises:
        OffsetOutOfRange: A part was deleted, and `failOnDataLoss` holds.
    """
    for each in ranges:
        if not each.rows:
            continue
        head = heads.topics.get(each.topic)
        if head is None or head.uuid != each.uuid:
            if options.fail_on_data_loss:
                raise topic_replaced(each.topic)
            continue
        log_start_offset, next_offset = head.kept.get(each.partition, (0, 0))
        left = each
        if each.end_offset > next_offset:
            if options.fail_on_data_loss:
                raise _log_shortened(each.topic, each.partition, each.end_offset, next_offset)
            left = replace(
                each, start_offset=min(each.start_offset, next_offset), end_offset=next_offset
            )
        yield what_is_kept(left, log_start_offset, options)


def _spans(
    name: str,
    head: Head,
    begun: TopicOffset | None,
    target: StreamOffset | None,
    options: SparkReadOptions,
) -> Iterator[Range]:
    """Yield the readable range of each of a topic's partitions, empty ranges included."""
    if begun is not None and begun.uuid != head.uuid:
        if options.fail_on_data_loss:
            raise topic_replaced(name)
        begun = None
    goal = None if target is None else target.topics.get(name)
    goals = goal.offsets if goal is not None and goal.uuid == head.uuid else {}
    for partition, (log_start_offset, next_offset) in head.kept.items():
        start_offset = begun.offsets.get(partition, 0) if begun is not None else 0
        if start_offset > next_offset:  # The server was restored to an older state.
            if options.fail_on_data_loss:
                raise _log_shortened(name, partition, start_offset, next_offset)
            start_offset = log_start_offset
        end_offset = next_offset
        if target is not None:
            end_offset = min(end_offset, goals.get(partition, start_offset))
        span = Range(name, head.uuid, partition, start_offset, max(start_offset, end_offset))
        yield what_is_kept(span, log_start_offset, options)


def _log_shortened(
    topic: str, partition: Partition, start_offset: int, next_offset: int
) -> OffsetOutOfRange:
    return OffsetOutOfRange(
        shortened(
            f"{partition_shown(partition)} of {topic} ends at offset {next_offset}, and the query "
            f"has read to {start_offset} already: messages are gone. To read the others "
            "again, set the option 'failOnDataLoss' to false"
        )
    )


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
