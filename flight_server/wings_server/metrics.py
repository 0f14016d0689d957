"""Metrics for Prometheus: counts that the handlers keep, and gauges of the log, read when scraped.

Series are named `wings_…`; the label `transport` is `flight` or `http`, `partition` the value's
JSON text. A scrape is bounded: partitions and consumers beyond the bounds have no series, and
`wings_series_left_out` counts them.
"""

import itertools
import threading
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, get_args

from prometheus_client import (
    CONTENT_TYPE_PLAIN_0_0_4,
    CollectorRegistry,
    Counter,
    generate_latest,
)
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from wings_core.errors import NotFound, Unavailable
from wings_core.ingest.group_commit import FlushReport
from wings_core.log import Log
from wings_core.model import Topic
from wings_core.names import TopicName
from wings_core.partitions import Partition
from wings_core.share.model import ShareGroup, SharePartitionState
from wings_core.storage.open import Storage

SERIES_MAX = 10_000
"""The most series of partitions in one scrape; as many of consumers, of tiers, of share groups."""

CONSUMERS_MAX = 1_000
"""The most named consumers whose lag is computed in one scrape."""

Transport = Literal["flight", "http"]
_TRANSPORTS: tuple[Transport, ...] = get_args(Transport)

_FLUSH_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


class _Counts:
    """Counters by name and transport.

    An event takes one lock for all its counters; the library's take one each, and ten times as
    long (measured), for every batch.
    """

    def __init__(self, about: dict[str, str]) -> None:
        self._about = about
        self._lock = threading.Lock()
        self._counts = {(name, transport): 0 for name in about for transport in _TRANSPORTS}

    def add(self, transport: Transport, **amounts: int) -> None:
        """Add an event's amounts to the counters of their names."""
        with self._lock:
            for name, amount in amounts.items():
                self._counts[name, transport] += amount

    def collect(self) -> Iterator[Metric]:
        """Yield a family for each name."""
        with self._lock:
            counts = dict(self._counts)
        for name, about in self._about.items():
            family = CounterMetricFamily(f"wings_{name}", about, labels=["transport"])
            for transport in _TRANSPORTS:
                family.add_metric([transport], counts[name, transport])
            yield family


class _Flushes:
    """Counters and the latency histogram of group commits."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._batches = 0
        self._bytes = 0
        self._failures = 0
        self._seconds = 0.0
        self._buckets = [0] * (len(_FLUSH_SECONDS) + 1)

    def add(self, report: FlushReport) -> None:
        """Count a group commit; called before its producers are answered."""
        with self._lock:
            self._count += 1
            self._batches += report.batches
            self._bytes += report.bytes
            self._failures += report.failed
            self._seconds += report.seconds
            self._buckets[bisect_left(_FLUSH_SECONDS, report.seconds)] += 1

    def collect(self) -> Iterator[Metric]:
        """Yield the counters, then the histogram."""
        with self._lock:
            below = list(itertools.accumulate(self._buckets))
            seconds = self._seconds
            numbers = (
                ("flushes", "Group commits.", self._count),
                ("flush_batches", "Batches in group commits.", self._batches),
                ("flush_bytes", "Bytes of pages in group commits.", self._bytes),
                (
                    "flush_failures",
                    "Group commits with at least one batch refused.",
                    self._failures,
                ),
            )
        for name, about, number in numbers:
            yield CounterMetricFamily(f"wings_{name}", about, number)
        bounds = [*map(str, _FLUSH_SECONDS), "+Inf"]
        yield HistogramMetricFamily(
            "wings_flush_seconds",
            "Duration of group commits.",
            buckets=list(zip(bounds, below, strict=True)),
            sum_value=seconds,
        )


class Metrics:
    """The metrics of one server; all methods may be called from any thread."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._errors = Counter(
            "wings_errors", "Errors answered.", ["transport", "code"], registry=self._registry
        )
        self._counts = _Counts(
            {
                "pushes": "Batches committed.",
                "push_rows": "Messages committed.",
                "push_bytes": "Bytes of pages committed.",
                "fetches": "Reads begun.",
                "fetch_rows": "Messages delivered.",
                "fetch_bytes": "Bytes read from storage, or of JSON delivered.",
            }
        )
        self._flushes = _Flushes()
        self._registry.register(self._counts)
        self._registry.register(self._flushes)

    def pushed(self, transport: Transport, rows: int, size: int, batches: int = 1) -> None:
        """Count committed batches, which have `rows` rows and pages of `size` bytes together."""
        self._counts.add(transport, pushes=batches, push_rows=rows, push_bytes=size)

    def fetch_begun(self, transport: Transport) -> None:
        """Count a read."""
        self._counts.add(transport, fetches=1)

    def delivered(self, transport: Transport, rows: int, size: int) -> None:
        """Count messages sent to a reader; `size` is in bytes as read from storage, or of JSON."""
        self._counts.add(transport, fetch_rows=rows, fetch_bytes=size)

    def failed(self, transport: Transport, code: str) -> None:
        """Count an error response, of a whole call or of one part of it."""
        self._errors.labels(transport, code).inc()

    def flushed(self, report: FlushReport) -> None:
        """Count a group commit."""
        self._flushes.add(report)

    def observe(self, log: Log) -> None:
        """Register the gauges of a log; every later scrape reads them."""
        self._registry.register(_LogCollector(log))

    @property
    def media_type(self) -> str:
        """The media type of `exposition`."""
        return CONTENT_TYPE_PLAIN_0_0_4

    def exposition(self) -> bytes:
        """Return all metrics in Prometheus's text format; blocks, as it reads metadata."""
        return generate_latest(self._registry)


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
    groups: list[tuple[ShareGroup, SharePartitionState]] = field(
        default_factory=list[tuple[ShareGroup, SharePartitionState]]
    )
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


class _LogCollector:
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
        yield GaugeMetricFamily("wings_waiting", "Readers waiting for messages.", waits.waiting)
        yield GaugeMetricFamily(
            "wings_pending_bytes",
            "Bytes received and not yet committed.",
            self._log.group_commit.pending_bytes,
        )
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
        yield ends
        yield from _of_tiers(standing)
        yield lags
        yield from _of_groups(standing.groups)
        yield GaugeMetricFamily(
            "wings_series_left_out", "Partitions and topics without series.", standing.left_out
        )

    def _look(self) -> _Standing:
        standing = _Standing()
        admin, registry = self._log.admin, self._log.registry
        for namespace in admin.list_namespaces():
            try:
                for topic in admin.list_topics(namespace.name):
                    for state in registry.partition_states(topic.uuid):
                        standing.ends[topic.name, state.partition] = state.next_offset
                    for tier in self._log.maintenance.tier_states(topic.uuid):
                        place = (topic.name, tier.remote)
                        pages, rows, size = standing.tiers.get(place, (0, 0, 0))
                        standing.tiers[place] = (
                            pages + tier.pages,
                            rows + tier.rows,
                            size + tier.bytes,
                        )
                    standing.groups += self._groups(topic)
            except NotFound:
                continue  # Deleted meanwhile.
        for consumer in registry.list_consumers(CONSUMERS_MAX):
            for entry in registry.get_offsets(consumer):
                next_offset = standing.ends.get((entry.topic, entry.partition), 0)
                lag = max(0, next_offset - entry.offset)
                standing.lags.append((consumer, entry.topic, entry.partition, lag))
        return _bounded(standing)

    def _groups(self, topic: Topic) -> Iterator[tuple[ShareGroup, SharePartitionState]]:
        shares = self._log.shares
        for group in shares.of_topic(topic.name):
            try:
                states = shares.describe(group)
            except Unavailable:
                continue  # No majority of the replicas answers; the other groups have series.
            yield from ((group, state) for state in states)


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


def _of_groups(groups: list[tuple[ShareGroup, SharePartitionState]]) -> Iterator[Metric]:
    labels = ["group", "topic", "partition"]
    lag = GaugeMetricFamily(
        "wings_share_lag", "Messages that a share group has not finished.", labels=labels
    )
    in_flight = GaugeMetricFamily(
        "wings_share_in_flight", "Messages that members of a share group hold.", labels=labels
    )
    for group, state in groups:
        values = [group.name, str(group.topic.name), state.partition]
        lag.add_metric(values, state.lag)
        in_flight.add_metric(values, state.in_flight)
    yield lag
    yield in_flight


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
    ends = list(standing.ends.items())
    tiers = list(standing.tiers.items())
    left_out = sum(
        max(0, len(series) - SERIES_MAX) for series in (ends, standing.lags, tiers, standing.groups)
    )
    return _Standing(
        dict(ends[:SERIES_MAX]),
        standing.lags[:SERIES_MAX],
        dict(tiers[:SERIES_MAX]),
        standing.groups[:SERIES_MAX],
        left_out,
    )
