"""Metrics of a log: gauges of its topics, storage and share groups, read at each scrape.

A scrape is bounded: the topics with the most bytes, and the largest partitions of each, have
series; the others are summed as `other`, and counted by `wings_series_summed`.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import astuple
from itertools import islice
from typing import NamedTuple

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from wings_core.model import LargestTopics, PartitionSums, ShareGroup, SharePartitionState
from wings_core.share.progress import GroupCounts
from wings_core.storage.open import Storage
from wings_core.tables import Tables
from wings_core.times import now_us
from wings_server.log_standing import TOPICS_MAX, LogStanding
from wings_server.nodes import GroupNode
from wings_server.served_log import ServedLog

PARTITIONS_MAX = 100
"""Most series for a topic's partitions, by messages, and for a consumer's partitions, by lag."""

GROUP_PARTITIONS_MAX = 10
"""Most series for a share group's partitions, by lag."""

SERIES_MAX = 1_000
"""Most series of one family in a scrape."""

_MAINTENANCE = {
    "passes": ("passes", "Looks at all partitions, or at those of a topic."),
    "seconds": ("seconds", "Time that these took, in seconds."),
    "partitions": ("partitions", "Partitions that something was due in."),
    "partitions_busy": ("busy_partitions", "Partitions of them that were left to another node."),
    "pages_expired": ("expired_pages", "Pages that retention dropped."),
    "rows_expired": ("expired_rows", "Messages that retention dropped."),
    "bytes_expired": ("expired_bytes", "Bytes of pages that retention dropped."),
    "segments": ("segments", "Segments of merged pages written to the remote store."),
    "segment_bytes": ("segment_bytes", "Bytes of segments written to the remote store."),
    "pages_merged": ("merged_pages", "Pages that merged ones took the place of."),
    "rows_merged": ("merged_rows", "Messages in pages that were merged."),
    "bytes_merged": ("merged_bytes", "Bytes of pages that were merged, as stored before."),
    "failures": ("failures", "Partitions whose maintenance failed, to be tried again."),
}
"""Name and help of the maintainer's metrics, by the field of its report."""

OTHER = "other"
"""Name for all without series of their own. No partition has this text, as JSON strings have
quotes, and no topic, whose name is a path."""


class LogCollector:
    """Collector that reads the gauges of a log at each scrape."""

    def __init__(self, log: ServedLog) -> None:
        self._log = log

    def describe(self) -> list[Metric]:
        """Return no families in advance, as series depend on the log."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the families of the log, its storage, its maintenance and its groups."""
        waits = self._log.fetcher.waits
        yield CounterMetricFamily("wings_waits", "Waits for messages begun.", waits.begun)
        if self._log.tables is not None:
            yield from _of_tables(self._log.tables)
        yield GaugeMetricFamily(
            "wings_waiting_readers", "Readers waiting for messages.", waits.waiting
        )
        yield GaugeMetricFamily(
            "wings_pending_bytes",
            "Bytes received and not yet committed.",
            self._log.group_commit.pending_bytes,
        )
        if self._log.tls is not None:
            yield GaugeMetricFamily(
                "wings_certificate_end_timestamp_seconds",
                "End of the listeners' certificate, in seconds since the epoch.",
                self._log.tls.ends_at.timestamp(),
            )
        if (last_at := self._log.backups.last_at) is not None:
            yield GaugeMetricFamily(
                "wings_last_backup_timestamp_seconds",
                "Moment of the last backup begun at this process, in seconds since the epoch.",
                last_at / 1_000_000,
            )
        yield GaugeMetricFamily("wings_sql_queries", "SQL queries that run.", self._log.sql_running)
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
        for count, (name, about) in _MAINTENANCE.items():
            number = getattr(maintained, count)
            yield CounterMetricFamily(f"wings_maintenance_{name}", about, number)
        yield CounterMetricFamily(
            "wings_folios_deleted",
            "Objects and segment files deleted that nothing referred to any more.",
            self._log.reclaimer.folios_deleted,
        )
        yield from _of_machine(self._log)
        standing = self._log.standings.look()
        ends = _bounded_gauge(
            "wings_topic_end_offset",
            "The next offset to be assigned, of partitions in `other` their sum.",
            ["topic", "partition"],
            _ends(standing),
        )
        lags = _bounded_gauge(
            "wings_consumer_lag_messages",
            "Messages that a named consumer has not read yet.",
            ["consumer", "topic", "partition"],
            (
                BoundedSeries((consumer, str(entry.topic)), entry.partition, lag)
                for consumer, entry, lag in standing.lags
            ),
        )
        for family, _ in (ends, lags):
            yield family
        yield _of_members(self._log.consumer_groups)
        yield from _of_topics(standing.largest)
        yield from _of_groups(standing.groups)
        yield from _of_deliveries(self._log.shares.coordinator.counts)
        yield GaugeMetricFamily(
            "wings_series_summed",
            "Partitions, and topics, that have no series of their own and are summed as `other`.",
            ends[1] + lags[1] + _summed(standing.largest),
        )


def _of_members(node: GroupNode | None) -> Metric:
    """Return how many members the consumer groups have that this node runs."""
    family = GaugeMetricFamily(
        "wings_consumer_group_members",
        "Live members of a consumer group, at the node that runs it.",
        labels=["consumer"],
    )
    counts = {} if node is None else node.coordinator.members_by_group
    for consumer, members in islice(counts.items(), SERIES_MAX):
        family.add_metric([consumer], members)
    return family


def _of_machine(log: ServedLog) -> Iterator[Metric]:
    """Yield the log's use of memory and disk, and their limits."""
    yield GaugeMetricFamily(
        "wings_memory_held_bytes", "Memory that requests hold of their budget.", log.memory.in_use
    )
    yield GaugeMetricFamily(
        "wings_memory_limit_bytes", "The budget of memory for requests.", log.memory.bytes_max
    )
    if log.disk is not None:
        yield GaugeMetricFamily(
            "wings_disk_free_bytes",
            "Free bytes of the data directory's disk, when it was last looked at.",
            log.disk.free_bytes,
        )
        yield GaugeMetricFamily(
            "wings_pushes_refused",
            "1 while pushes are refused for want of room on a disk, else 0.",
            log.disk.refusal is not None,
        )
    yield GaugeMetricFamily(
        "wings_share_damaged",
        "1 while share groups are closed because their state is damaged, else 0.",
        log.shares.coordinator.damage is not None,
    )


class BoundedSeries(NamedTuple):
    """One value of an owner's item, such as a topic's partition."""

    owner: tuple[str, ...]
    """Values of the labels before the last one."""
    name: str
    """Value of the last label, which is bounded."""
    value: float


def _bounded_gauge(
    name: str, about: str, labels: list[str], series: Iterable[BoundedSeries]
) -> tuple[GaugeMetricFamily, int]:
    """Return a gauge bounded by the last label, and the number of summed series."""
    kept, summed = bounded(series, PARTITIONS_MAX, SERIES_MAX)
    family = GaugeMetricFamily(name, about, labels=labels)
    for each in kept:
        family.add_metric([*each.owner, each.name], each.value)
    return family, summed


def _named(largest: LargestTopics) -> list[tuple[str, PartitionSums]]:
    """Return the totals of topics with series, then of all others as `other`."""
    named = [(str(each.topic), each.sums) for each in largest.topics]
    if largest.others:
        rest = [named.pop()[1], largest.of_others]
        named.append((OTHER, PartitionSums(*map(sum, zip(*map(astuple, rest), strict=True)))))
    return named


def _summed(largest: LargestTopics) -> int:
    """Return the number of topics and partitions in `other`."""
    if not largest.others:
        return 0
    last = largest.topics[-1].sums.partitions
    return 1 + largest.others + last + largest.of_others.partitions


def _ends(standing: LogStanding) -> Iterator[BoundedSeries]:
    for each in standing.largest.topics[: TOPICS_MAX - bool(standing.largest.others)]:
        for partition, (_, next_offset) in standing.ends[each.topic].items():
            yield BoundedSeries((str(each.topic),), partition, next_offset)
    if standing.largest.others:
        (*_, (_, sums)) = _named(standing.largest)
        yield BoundedSeries((OTHER,), OTHER, sums.messages)


def _of_topics(largest: LargestTopics) -> Iterator[Metric]:
    """Yield the number of partitions of topics, and the pages, rows and bytes of each tier."""
    named = _named(largest)
    partitions = GaugeMetricFamily(
        "wings_topic_partitions", "Partitions written to.", labels=["topic"]
    )
    for topic, sums in named:
        partitions.add_metric([topic], sums.partitions)
    yield partitions
    for name, about in (
        ("pages", "Pages of a topic in a tier."),
        ("rows", "Messages of a topic in a tier."),
        ("bytes", "Stored bytes of a topic's pages in a tier."),
    ):
        family = GaugeMetricFamily(f"wings_tier_{name}", about, labels=["tier", "topic"])
        for topic, sums in named:
            remote: int = getattr(sums, f"merged_{name}")
            if sums.pages > sums.merged_pages:
                family.add_metric(["hot", topic], getattr(sums, name) - remote)
            if sums.merged_pages:
                family.add_metric(["remote", topic], remote)
        yield family


def _of_tables(tables: Tables) -> Iterator[Metric]:
    statuses = tables.latest()[:SERIES_MAX]
    rows = GaugeMetricFamily(
        "wings_table_lag_rows",
        "Messages that were not in a topic's table when maintenance last looked.",
        labels=["table"],
    )
    seconds = GaugeMetricFamily(
        "wings_table_lag_seconds",
        "Age of the oldest message that was not in the table when maintenance last looked.",
        labels=["table"],
    )
    for status in statuses:
        rows.add_metric([status.identifier], status.lag_rows)
        seconds.add_metric([status.identifier], status.lag_ms / 1_000)
    yield from (rows, seconds)


def _of_groups(groups: list[tuple[ShareGroup, list[SharePartitionState]]]) -> Iterator[Metric]:
    """Yield the progress of share groups: a series for each, and a few for its partitions."""
    labels = ["group", "topic"]
    lag = GaugeMetricFamily(
        "wings_share_lag_messages", "Messages that a share group has not finished.", labels=labels
    )
    in_flight = GaugeMetricFamily(
        "wings_share_in_flight_messages",
        "Messages that members of a share group hold.",
        labels=labels,
    )
    series: list[BoundedSeries] = []
    for group, states in groups:
        values = (group.name, str(group.topic.name))
        lag.add_metric(values, sum(state.lag for state in states))
        in_flight.add_metric(values, sum(state.in_flight for state in states))
        series += [BoundedSeries(values, state.partition, state.lag) for state in states]
    of_partitions = GaugeMetricFamily(
        "wings_share_partition_lag_messages",
        "Messages that a share group has not finished, by partition.",
        labels=[*labels, "partition"],
    )
    for each in bounded(series, GROUP_PARTITIONS_MAX, SERIES_MAX).series:
        of_partitions.add_metric([*each.owner, each.name], each.value)
    yield from (lag, in_flight, of_partitions)


_DELIVERIES = {
    "delivered": "Messages delivered to members of a share group, each time.",
    "redelivered": "Messages delivered to members of a share group again.",
    "accepted": "Messages that members of a share group accepted.",
    "dead_lettered": "Messages of a share group that were rejected, or at the delivery limit.",
}


def _of_deliveries(counts: Mapping[tuple[str, str], GroupCounts]) -> Iterator[Metric]:
    for name, about in _DELIVERIES.items():
        labels = ["group", "topic"]
        family = CounterMetricFamily(f"wings_share_{name}_messages", about, labels=labels)
        # The first ones counted, as counters must never decrease.
        others = 0
        for number, ((topic, group), of_group) in enumerate(counts.items()):
            if number < SERIES_MAX - 1:
                family.add_metric([group, topic], getattr(of_group, name))
            else:
                others += getattr(of_group, name)
        if len(counts) >= SERIES_MAX:
            family.add_metric([OTHER, OTHER], others)
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
        "wings_object_seconds",
        "Time that requests to object stores took, in seconds.",
        labels=labels,
    )
    outages = GaugeMetricFamily(
        "wings_object_outage_seconds",
        "Time for which an object store has failed; 0 while it works.",
        labels=["store"],
    )
    for store, objects in storage.objects.items():
        outage = objects.counts.outage
        outages.add_metric([store], 0 if outage is None else (now_us() - outage.since) / 1e6)
        for operation, count in objects.counts.snapshot().items():
            requests.add_metric([store, operation], count.requests)
            failures.add_metric([store, operation], count.failures)
            sizes.add_metric([store, operation], count.bytes)
            seconds.add_metric([store, operation], count.seconds)
    yield from (requests, failures, sizes, seconds, outages)


class _Bounded(NamedTuple):
    """Series within their bound."""

    series: list[BoundedSeries]
    summed: int
    """Number of series that are part of a sum."""


def bounded(series: Iterable[BoundedSeries], each_max: int, all_max: int) -> _Bounded:
    """Return the largest series of each owner, and one with the sum of its others.

    Args:
        series: Series, unique by owner and name.
        each_max: Most series of one owner, including its sum; at least 1.
        all_max: Most series in total. With more owners, those with the largest sums have one
            series each, and the others share one, whose owner is `other` too.
    """
    owned: dict[tuple[str, ...], list[BoundedSeries]] = {}
    for each in series:
        owned.setdefault(each.owner, []).append(each)
    found: list[BoundedSeries] = []
    summed = 0
    owners = list(owned.values())
    if len(owners) > all_max:
        owners.sort(key=_sum, reverse=True)
        rest = [each for few in owners[all_max - 1 :] for each in few]
        del owners[all_max - 1 :]
        found.append(BoundedSeries((OTHER,) * len(rest[0].owner), OTHER, _sum(rest)))
        summed += len(rest)
    each_max = min(each_max, max(1, (all_max - len(found)) // max(1, len(owners))))
    for few in owners:
        if len(few) <= each_max:
            found += few
            continue
        few.sort(key=_value, reverse=True)
        found += few[: each_max - 1]
        found.append(BoundedSeries(few[0].owner, OTHER, _sum(few[each_max - 1 :])))
        summed += len(few) - each_max + 1
    return _Bounded(found, summed)


def _value(series: BoundedSeries) -> float:
    return series.value


def _sum(series: Iterable[BoundedSeries]) -> float:
    return sum(each.value for each in series)
