"""Actions that return totals for overviews: of topics, named consumers, and sources."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from wings_core.contracts.actions import ActionBody, Limit, Part
from wings_core.contracts.messages import Identifier, problem_of
from wings_core.model import CommittedOffset, TopicState
from wings_core.partitions import partition_value
from wings_core.times import format_timestamp
from wings_core.traffic import TrafficCounts

TOPICS_MAX = 1_000
"""Most topics of one `topic-totals`."""

CONSUMERS_MAX = 1_000
"""Most consumers of one `list-consumers`."""


SOURCES_MAX = 1_000
"""Most sources of one `shard-sources`."""


class TopicTotals(ActionBody):
    """The body of `topic-totals`."""

    topics: Annotated[tuple[str, ...], Field(strict=False, max_length=TOPICS_MAX)]
    tiers: bool = False
    """Whether to return the totals of each tier."""


class TrafficBody(ActionBody):
    """The body of `traffic`."""

    limit: Annotated[int, Field(ge=1, le=TOPICS_MAX)] = 20
    """Most topics listed: those most recently pushed to or read."""


class HistoryBody(ActionBody):
    """The body of `history`: nothing for all topics, or one of the keys."""

    topic: str | None = None
    group: Identifier | None = None
    """A share group of the topic."""
    consumer: Identifier | None = None
    """A named consumer, in all topics that the caller may read."""

    @model_validator(mode="after")
    def _check_subject(self) -> Self:
        if self.group is not None and self.topic is None:
            raise problem_of("key 'group' needs key 'topic'")
        if self.consumer is not None and self.topic is not None:
            raise problem_of("give one of the keys 'topic' and 'consumer'")
        return self


class HealthBody(ActionBody):
    """The body of `health`: empty."""


class NodeStates(ActionBody):
    """The body of `node-states`."""

    others: bool = True
    """Whether to ask the other processes; false: only the one that answers."""


class ListConsumers(ActionBody):
    """The body of `list-consumers`."""

    contains: Part = ""
    """Select consumers whose name contains this."""
    after: Part = ""
    """Select consumers whose name is greater."""
    limit: Annotated[int, Field(ge=1, le=CONSUMERS_MAX)] = 100


class ShardSources(ActionBody):
    """The body of `shard-sources`."""

    contains: Part = ""
    """Select sources whose name contains this."""
    after: Part = ""
    """Select sources whose name is greater."""
    limit: Annotated[int, Field(ge=1, le=SOURCES_MAX)] = 100


class ConsumerLag(ActionBody):
    """The body of `consumer-lag`."""

    consumer: Identifier
    topic: str | None = None
    """Name of the topic; None for all topics."""
    limit: Limit = 100
    """Most partitions listed individually: those with the most lag."""


def describe_traffic(counts: TrafficCounts) -> dict[str, Any]:
    """Return a process's traffic counts, and their start."""
    return {
        "rows_in": counts.rows_in,
        "bytes_in": counts.bytes_in,
        "rows_out": counts.rows_out,
        "bytes_out": counts.bytes_out,
        "since": format_timestamp(counts.since),
    }


def describe_totals(
    topic: str, state: TopicState, traffic: TrafficCounts, *, tiers: bool
) -> dict[str, Any]:
    """Return the totals of a topic.

    Args:
        topic: Full name of the topic.
        state: Totals over its partitions, and the time of the last write.
        traffic: This process's counts of it.
        tiers: Whether to include the totals of each tier.
    """
    sums, last = state.sums, state.last_timestamp
    described: dict[str, Any] = {
        "topic": topic,
        "partitions": sums.partitions,
        "rows": sums.rows,
        "messages": sums.messages,
        "bytes": sums.bytes,
        "last_timestamp": None if last is None else format_timestamp(last),
        "traffic": describe_traffic(traffic),
    }
    if tiers:
        merged = {
            "pages": sums.merged_pages, "rows": sums.merged_rows, "bytes": sums.merged_bytes
        }  # fmt: skip
        hot = {name: getattr(sums, name) - count for name, count in merged.items()}
        described["tiers"] = [{"tier": "hot", **hot}, {"tier": "remote", **merged}]
    return described


@dataclass(slots=True)
class TopicLag:
    """The lag of a consumer in a topic."""

    topic: str
    partitions: int = 0
    lag: int = 0
    committed_at: int = 0
    """Time of its last commit, in microseconds since the epoch."""
    largest: list[tuple[CommittedOffset, int, int]] = field(
        default_factory=list[tuple[CommittedOffset, int, int]]
    )
    """Offsets with the most lag, each with the partition's next offset and the lag."""

    def add(self, offset: CommittedOffset, log_start_offset: int, next_offset: int) -> None:
        """Add the lag of a partition: the number of its unread messages that still exist."""
        lag = max(0, next_offset - max(offset.offset, log_start_offset))
        self.partitions += 1
        self.lag += lag
        self.committed_at = max(self.committed_at, offset.committed_at)
        self.largest.append((offset, next_offset, lag))


def describe_consumer(consumer: str, lags: Iterable[TopicLag]) -> dict[str, Any]:
    """Return the lag of a consumer, by topic."""
    topics = [
        {
            "topic": each.topic,
            "partitions": each.partitions,
            "lag": each.lag,
            "committed_at": format_timestamp(each.committed_at),
        }
        for each in lags
    ]
    return {"consumer": consumer, "topics": topics}


def describe_lag(
    consumer: str, lags: Iterable[TopicLag], largest: Iterable[tuple[CommittedOffset, int, int]]
) -> dict[str, Any]:
    """Return the response to `consumer-lag`, with partitions in the order given."""
    partitions = [
        {
            "topic": str(offset.topic),
            "partition": partition_value(offset.partition),
            "offset": offset.offset,
            "next_offset": next_offset,
            "lag": lag,
            "committed_at": format_timestamp(offset.committed_at),
        }
        for offset, next_offset, lag in largest
    ]
    return {**describe_consumer(consumer, lags), "partitions": partitions}
