"""Actions that return totals for overviews, bounded however many partitions there are."""

import heapq
from collections.abc import Iterator
from contextlib import suppress
from operator import itemgetter
from typing import Any, Protocol

from wings_core.contracts.consumer_groups import ListConsumerGroups
from wings_core.contracts.shards import describe_counts
from wings_core.contracts.totals import (
    ConsumerLag,
    HistoryBody,
    ListConsumers,
    ShardSources,
    TopicLag,
    TopicTotals,
    TrafficBody,
    describe_consumer,
    describe_lag,
    describe_totals,
    describe_traffic,
)
from wings_core.errors import NotFound
from wings_core.log import Log
from wings_core.model import CommittedOffset, Topic
from wings_core.names import TopicName
from wings_core.partitions import Partition
from wings_core.security.principal import CALLER, authorize
from wings_core.security.rights import Right
from wings_server.action import Actions, Json
from wings_server.history import SeriesName
from wings_server.rights import may_write_source
from wings_server.served_log import ServedLog

TOTALS_ACTIONS = Actions()

_NAMES_AT_ONCE = 1_000
"""Names of consumers, groups or sources per request to metadata."""


class _Ask(Protocol):
    def __call__(self, names_max: int, /, *, after: str | None) -> list[str]: ...


@TOTALS_ACTIONS.add("topic-totals", TopicTotals)
def topic_totals(log: Log, body: TopicTotals) -> Json:
    """Return the partitions, rows and bytes of topics, without missing topics."""
    caller = CALLER.get()
    totals: list[dict[str, object]] = []
    for name in dict.fromkeys(map(TopicName.parse, body.topics)):
        if not caller.may(Right.READ, str(name)):
            continue
        with suppress(NotFound):
            state = log.maintenance.topic_state(log.admin.get_topic(name).uuid)
            traffic = log.traffic.of(name)
            totals.append(describe_totals(str(name), state, traffic, tiers=body.tiers))
    return totals


@TOTALS_ACTIONS.add("traffic", TrafficBody)
def traffic(log: Log, body: TrafficBody) -> Json:
    """Return the traffic of this process since its start, in total and by topic."""
    caller = CALLER.get()
    topics = [
        {"topic": str(name), **describe_traffic(log.traffic.of(name))}
        for name in log.traffic.latest(log.traffic.topics())
        if caller.may(Right.READ, str(name))
    ]
    counts = describe_traffic(log.traffic.all()) if caller.is_operator else _sum(topics)
    return {**counts, "topics_counted": len(topics), "topics": topics[: body.limit]}


@TOTALS_ACTIONS.add("history", HistoryBody)
def history(log: ServedLog, body: HistoryBody) -> Json:
    """Return this process's samples of the last hour: traffic, or the lag of a group or consumer.

    Each is a list of numbers with the names in `columns`; `at` is in milliseconds since the epoch.
    """
    caller, found = CALLER.get(), log.history
    topic = None if body.topic is None else str(TopicName.parse(body.topic))
    samples: list[list[int]] = []
    if body.consumer is not None:
        kind, lags = "consumer", dict[int, int]()
        for name in found.topics_of(body.consumer):
            if caller.may(Right.READ, name):
                for at, lag in found.samples(SeriesName(kind, name, body.consumer)):
                    lags[at] = lags.get(at, 0) + lag
        samples = [[at, lags[at]] for at in sorted(lags)]
    elif body.group is not None and topic is not None:
        authorize(caller, Right.SHARE, topic)
        kind = "group"
        samples = found.samples(SeriesName(kind, topic, body.group))
    elif topic is not None:
        kind = "topic"
        samples = found.samples(SeriesName(kind, topic))
    else:
        kind = "traffic"
        if caller.is_operator:  # The others see sums of what they may read.
            samples = found.samples(SeriesName(kind))
    return {"columns": found.columns(kind), "samples": samples}


def _sum(topics: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the total traffic of topics, since the earliest start of their counts."""
    names = ("rows_in", "bytes_in", "rows_out", "bytes_out")
    sums: dict[str, Any] = {name: sum(each[name] for each in topics) for name in names}
    return {**sums, "since": min((each["since"] for each in topics), default=None)}


@TOTALS_ACTIONS.add("list-consumers", ListConsumers)
def list_consumers(log: Log, body: ListConsumers) -> Json:
    """Return named consumers by name, each with its lag in the topics it has offsets in."""
    ends = _Ends(log)
    consumers: list[dict[str, object]] = []
    for name in names_asked_for(body, log.registry.list_consumers):
        lags = _lags(ends, log.registry.get_offsets(name))
        if lags:
            consumers.append(describe_consumer(name, lags))
        if len(consumers) == body.limit:
            break
    return consumers


@TOTALS_ACTIONS.add("consumer-lag", ConsumerLag)
def consumer_lag(log: Log, body: ConsumerLag) -> Json:
    """Return the lag of a named consumer, with the partitions that have the most."""
    uuid = None
    if body.topic is not None:
        uuid = log.admin.get_topic(TopicName.parse(body.topic)).uuid
    lags = _lags(_Ends(log), log.registry.get_offsets(body.consumer, uuid))
    every = (each for of_topic in lags for each in of_topic.largest)
    return describe_lag(body.consumer, lags, heapq.nlargest(body.limit, every, key=itemgetter(2)))


@TOTALS_ACTIONS.add("shard-sources", ShardSources)
def shard_sources(log: Log, body: ShardSources) -> Json:
    """Return sources with shards, by name, each with the number of shards in each state."""
    caller = CALLER.get()
    sources: list[dict[str, object]] = []
    for name in names_asked_for(body, log.shards.sources):
        if may_write_source(caller, name):
            sources.append({"source": name, **describe_counts(log.shards.count(name))})
        if len(sources) == body.limit:
            break
    return sources


class _Ends:
    """Start and end offsets of partitions, looked up once for each topic."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._ends: dict[TopicName, dict[Partition, tuple[int, int]]] = {}

    def of(self, topic: TopicName) -> dict[Partition, tuple[int, int]]:
        """Return the start and end of each partition; empty for a deleted topic."""
        if topic not in self._ends:
            self._ends[topic] = {}
            with suppress(NotFound):
                found: Topic = self._log.admin.get_topic(topic)
                self._ends[topic] = {
                    state.partition: (state.log_start_offset, state.next_offset)
                    for state in self._log.registry.partition_states(found.uuid)
                }
        return self._ends[topic]


def names_asked_for(
    body: ListConsumers | ListConsumerGroups | ShardSources, ask: _Ask
) -> Iterator[str]:
    """Yield the names that a request selects, in order."""
    after = body.after or None
    while names := ask(_NAMES_AT_ONCE, after=after):
        yield from (name for name in names if body.contains in name)
        after = names[-1]


def _lags(ends: _Ends, offsets: list[CommittedOffset]) -> list[TopicLag]:
    """Return the lag in each topic that the caller may read, in the order of the offsets."""
    caller = CALLER.get()
    lags: dict[TopicName, TopicLag] = {}
    for offset in offsets:
        if offset.topic not in lags and not caller.may(Right.READ, str(offset.topic)):
            continue
        lag = lags.setdefault(offset.topic, TopicLag(str(offset.topic)))
        lag.add(offset, *ends.of(offset.topic).get(offset.partition, (0, 0)))
    return list(lags.values())
