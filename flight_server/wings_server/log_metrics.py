"""Metrics of a log: gauges of its topics, storage and share groups, read at each scrape.

A scrape is bounded: of many partitions the largest have series, and `wings_series_left_out` counts
the others.
"""

import heapq
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from wings_core.errors import NotFound, Unavailable
from wings_core.log import Log
from wings_core.model import Topic
from wings_core.names import TopicName
from wings_core.partitions import Partition
from wings_core.share.counts import GroupCounts
from wings_core.share.model import ShareGroup, SharePartitionState
from wings_core.storage.open import Storage
from wings_core.tables import Tables

PARTITIONS_MAX = 100
"""Partitions of a topic that have series, those with most messages, and of a consumer, by lag."""

GROUP_PARTITIONS_MAX = 10
"""Partitions of a share group that have series of their own, those with most lag."""

GROUPS_MAX = 1_000
"""The most share groups that are looked at in one scrape."""

SERIES_MAX = 10_000
"""The most series of partitions in one scrape; as many of consumers, and of tiers."""

CONSUMERS_MAX = 1_000
"""The most named consumers whose lag is computed in one scrape."""

S = TypeVar("S")


@dataclass(slots=True)
class _Standing:
    """The state of the log at one scrape."""

    ends: dict[tuple[TopicName, Partition], int] = field(
        default_factory=dict[tuple[TopicName, Partition], int]
    )
    lags: list[tuple[str, TopicName, Partition, int]] = field(
        default_factory=list[tuple[str, TopicName, Partition, int]]
    )
    tiers: dict[tuple[TopicName, bool], tuple[int, int, int]] = field(
        default_factory=dict[tuple[TopicName, bool], tuple[int, int, int]]
    )
    """Pages, rows and bytes by topic, and by whether the pages are merged."""
    groups: list[tuple[ShareGroup, list[SharePartitionState]]] = field(
        default_factory=list[tuple[ShareGroup, list[SharePartitionState]]]
    )
    partitions: dict[TopicName, int] = field(default_factory=dict[TopicName, int])
    """How many each topic has."""
    left_out: int = 0


_MAINTENANCE = {
    "passes": "Looks at all partitions, or at those of a topic.",
    "seconds": "Time that these took.",
    "partitions": "Partitions that something was due in.",
    "partitions_busy": "Partitions of them that were left to another node.",
    "pages_expired": "Pages that retention dropped.",
    "rows_expired": "Messages that retention dropped.",
    "bytes_expired": "Bytes of pages that retention dropped.",
    "segments": "Segments of merged pages written to the remote store.",
    "segment_bytes": "Bytes of segments written to the remote store.",
    "pages_merged": "Pages that merged ones took the place of.",
    "rows_merged": "Messages in pages that were merged.",
    "bytes_merged": "Bytes of pages that were merged, as they were stored before.",
    "failures": "Partitions whose maintenance failed, to be tried again.",
}
"""Counts of the maintainer, by the name in its report."""


class LogCollector:
    """Reads the gauges of a log at each scrape."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def describe(self) -> list[Metric]:
        """Return no families beforehand: the series depend on the log."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the families of the log, its storage, its maintenance and its groups."""
        waits = self._log.fetcher.waits
        yield CounterMetricFamily("wings_waits", "Waits for messages begun.", waits.begun)
        if self._log.tables is not None:
            yield from _of_tables(self._log.tables)
        yield GaugeMetricFamily("wings_waiting", "Readers waiting for messages.", waits.waiting)
        yield GaugeMetricFamily(
            "wings_pending_bytes",
            "Bytes received and not yet committed.",
            self._log.group_commit.pending_bytes,
        )
        yield GaugeMetricFamily("wings_sql_queries", "SQL queries that run.", self._log.sql.running)
        if self._log.drain is not None:
            yield GaugeMetricFamily(
                "wings_inline_bytes",
                "Bytes of small pushes in metadata, to be moved to storage.",
                self._log.drain.backlog_bytes,
            )
            yield CounterMetricFamily(
                "wings_inline_pages_drained",
                "Pages of small pushes moved to storage.",
                self._log.drain.pages_drained,
            )
        yield from _storage_metrics(self._log.storage)
        maintained = self._log.maintainer.total
        for name, about in _MAINTENANCE.items():
            yield CounterMetricFamily(f"wings_maintenance_{name}", about, getattr(maintained, name))
        yield CounterMetricFamily(
            "wings_folios_deleted",
            "Objects and segment files deleted that nothing referred to any more.",
            self._log.reclaimer.folios_deleted,
        )
        standing = self._look()
        ends = GaugeMetricFamily(
            "wings_topic_end_offset",
            "The next offset to be assigned.",
            labels=["topic", "partition"],
        )
        for (topic, partition), next_offset in standing.ends.items():
            ends.add_metric([str(topic), partition], next_offset)
        lags = GaugeMetricFamily(
            "wings_consumer_lag",
            "Messages that a named consumer has not read yet.",
            labels=["consumer", "topic", "partition"],
        )
        for consumer, topic, partition, lag in standing.lags:
            lags.add_metric([consumer, str(topic), partition], lag)
        partitions = GaugeMetricFamily(
            "wings_topic_partitions", "Partitions written to.", labels=["topic"]
        )
        for topic, count in standing.partitions.items():
            partitions.add_metric([str(topic)], count)
        yield ends
        yield partitions
        yield from _of_tiers(standing)
        yield lags
        yield from _of_groups(standing.groups)
        yield from _of_deliveries(self._log.shares.counts)
        yield GaugeMetricFamily(
            "wings_series_left_out", "Partitions and topics without series.", standing.left_out
        )

    def _look(self) -> _Standing:
        standing = _Standing()
        admin, registry = self._log.admin, self._log.registry
        for namespace in admin.list_namespaces():
            try:
                for topic in admin.list_topics(namespace.name):
                    states = registry.partition_states(topic.uuid)
                    standing.partitions[topic.name] = len(states)
                    for state in states:
                        standing.ends[topic.name, state.partition] = state.next_offset
                    for tier in self._log.maintenance.tier_states(topic.uuid):
                        place = (topic.name, tier.remote)
                        pages, rows, size = standing.tiers.get(place, (0, 0, 0))
                        standing.tiers[place] = (
                            pages + tier.pages,
                            rows + tier.rows,
                            size + tier.bytes,
                        )
                    standing.groups += self._groups(topic, GROUPS_MAX - len(standing.groups))
            except NotFound:
                continue  # Deleted meanwhile.
        for consumer in registry.list_consumers(CONSUMERS_MAX):
            for entry in registry.get_offsets(consumer):
                next_offset = standing.ends.get((entry.topic, entry.partition), 0)
                lag = max(0, next_offset - entry.offset)
                standing.lags.append((consumer, entry.topic, entry.partition, lag))
        return _bounded(standing)

    def _groups(
        self, topic: Topic, most: int
    ) -> Iterator[tuple[ShareGroup, list[SharePartitionState]]]:
        shares = self._log.shares
        for group in shares.of_topic(topic.name)[:most]:
            try:
                yield group, shares.describe(group)
            except Unavailable:
                continue  # No majority of the replicas answers; the other groups have series.


def _of_tiers(standing: _Standing) -> Iterator[Metric]:
    """Yield the pages, rows and bytes of topics in each tier."""
    for index, (name, about) in enumerate(
        (
            ("pages", "Pages of a topic in a tier."),
            ("rows", "Messages of a topic in a tier."),
            ("bytes", "Stored bytes of a topic's pages in a tier."),
        )
    ):
        family = GaugeMetricFamily(f"wings_tier_{name}", about, labels=["topic", "tier"])
        for (topic, remote), numbers in standing.tiers.items():
            family.add_metric([str(topic), "remote" if remote else "hot"], numbers[index])
        yield family


def _of_tables(tables: Tables) -> Iterator[Metric]:
    statuses = tables.latest()[:SERIES_MAX]
    rows = GaugeMetricFamily(
        "wings_table_lag_rows",
        "Messages that were not in a topic's table after its last commit.",
        labels=["table"],
    )
    seconds = GaugeMetricFamily(
        "wings_table_lag_seconds",
        "Age of the oldest of them, then.",
        labels=["table"],
    )
    for status in statuses:
        rows.add_metric([status.identifier], status.lag_rows)
        seconds.add_metric([status.identifier], status.lag_ms / 1_000)
    yield from (rows, seconds)


def _of_groups(groups: list[tuple[ShareGroup, list[SharePartitionState]]]) -> Iterator[Metric]:
    """Yield how far groups are: as many series as there are groups, and a few of each."""
    labels = ["group", "topic"]
    lag = GaugeMetricFamily(
        "wings_share_lag", "Messages that a share group has not finished.", labels=labels
    )
    in_flight = GaugeMetricFamily(
        "wings_share_in_flight", "Messages that members of a share group hold.", labels=labels
    )
    largest = GaugeMetricFamily(
        "wings_share_partition_lag",
        f"The same of the {GROUP_PARTITIONS_MAX} partitions where it is most.",
        labels=[*labels, "partition"],
    )
    for group, states in groups:
        values = [group.name, str(group.topic.name)]
        lag.add_metric(values, sum(state.lag for state in states))
        in_flight.add_metric(values, sum(state.in_flight for state in states))
        for state in heapq.nlargest(GROUP_PARTITIONS_MAX, states, key=_lag):
            largest.add_metric([*values, state.partition], state.lag)
    yield lag
    yield in_flight
    yield largest


def _lag(state: SharePartitionState) -> int:
    return state.lag


_DELIVERIES = {
    "delivered": "Messages delivered to members of a share group, each time.",
    "redelivered": "Messages delivered to members of a share group again.",
    "accepted": "Messages that members of a share group accepted.",
    "dead_lettered": "Messages of a share group that were rejected, or at the delivery limit.",
}


def _of_deliveries(counts: Mapping[tuple[str, str], GroupCounts]) -> Iterator[Metric]:
    for name, about in _DELIVERIES.items():
        family = CounterMetricFamily(f"wings_share_{name}", about, labels=["group", "topic"])
        for (topic, group), of_group in counts.items():
            family.add_metric([group, topic], getattr(of_group, name))
        yield family


def _storage_metrics(storage: Storage) -> Iterator[Metric]:
    """Yield the families of the page cache and of requests to object stores."""
    cache = storage.cache
    yield GaugeMetricFamily(
        "wings_page_cache_bytes", "Bytes of pages of object stores in memory.", cache.bytes
    )
    yield CounterMetricFamily(
        "wings_page_cache_hits", "Pages found in the cache.", cache.counts.hits
    )
    yield CounterMetricFamily(
        "wings_page_cache_misses", "Pages not found in the cache.", cache.counts.misses
    )
    labels = ["store", "operation"]
    requests = CounterMetricFamily(
        "wings_object_requests", "Requests to object stores, repeated ones included.", labels=labels
    )
    failures = CounterMetricFamily(
        "wings_object_failures", "Requests to object stores that failed.", labels=labels
    )
    sizes = CounterMetricFamily(
        "wings_object_bytes", "Bytes put into object stores, or read of them.", labels=labels
    )
    seconds = CounterMetricFamily(
        "wings_object_seconds", "Time that requests to object stores took.", labels=labels
    )
    for store, objects in storage.objects.items():
        for operation, count in objects.counts.snapshot().items():
            requests.add_metric([store, operation], count.requests)
            failures.add_metric([store, operation], count.failures)
            sizes.add_metric([store, operation], count.bytes)
            seconds.add_metric([store, operation], count.seconds)
    yield from (requests, failures, sizes, seconds)


def _bounded(standing: _Standing) -> _Standing:
    """Return the largest of each topic and consumer, as many as one scrape may have."""
    ends = _largest(list(standing.ends.items()), lambda each: each[0][0], lambda each: each[1])
    lags = _largest(standing.lags, lambda each: (each[0], each[1]), lambda each: each[3])
    tiers = list(standing.tiers.items())
    topics = list(standing.partitions.items())
    kept = (ends[:SERIES_MAX], lags[:SERIES_MAX], tiers[:SERIES_MAX], topics[:SERIES_MAX])
    found = (standing.ends, standing.lags, tiers, topics)
    left_out = sum(map(len, found)) - sum(map(len, kept))
    return _Standing(
        dict(kept[0]), kept[1], dict(kept[2]), standing.groups, dict(kept[3]), left_out
    )


def _largest(
    series: Iterable[S], owner: Callable[[S], Hashable], size: Callable[[S], int]
) -> list[S]:
    """Return the `PARTITIONS_MAX` largest series of each owner."""
    owned: dict[Hashable, list[S]] = {}
    for each in series:
        owned.setdefault(owner(each), []).append(each)
    return [
        each for found in owned.values() for each in heapq.nlargest(PARTITIONS_MAX, found, key=size)
    ]
