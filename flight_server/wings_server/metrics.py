"""Metrics for Prometheus: counters updated by handlers, and gauges of the log, read at each scrape.

Series are named `wings_…`; the label `transport` is `flight`, `http` or `kafka`, `partition` the
value's JSON text. The gauges of the log are in `log_metrics`.
"""

import itertools
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import version
from typing import Literal, get_args

from prometheus_client import (
    CONTENT_TYPE_PLAIN_0_0_4,
    CollectorRegistry,
    Counter,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from wings_core.errors import Internal, StorageCorrupt
from wings_core.ingest.group_commit import FlushReport
from wings_core.model import PublishResult
from wings_core.names import TopicName
from wings_core.traffic import Traffic
from wings_server.log_metrics import LogCollector
from wings_server.served_log import ServedLog

Transport = Literal["flight", "http", "kafka"]
_TRANSPORTS: tuple[Transport, ...] = get_args(Transport)

_FAULTS = frozenset({Internal.code, StorageCorrupt.code})
"""Codes of errors of the server itself."""

_FLUSH_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


class _Counts:
    """Counters by name and transport.

    An event takes one lock for all its counters; the library's counters take one each, which is ten
    times as slow (measured), for every batch.
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
            "wings_flush_duration_seconds",
            "Duration of group commits.",
            buckets=list(zip(bounds, below, strict=True)),
            sum_value=seconds,
        )


class _BuildInfo:
    """The version of the server."""

    def collect(self) -> Iterator[Metric]:
        """Yield one gauge, always 1."""
        family = GaugeMetricFamily("wings_build_info", "The version.", labels=["version"])
        family.add_metric([version("wings-flight")], 1)
        yield family


class Metrics:
    """The metrics of one server. Thread-safe."""

    def __init__(self) -> None:
        self.traffic = Traffic()
        """Traffic of the log by topic."""
        self.of_all: Callable[[bytes], bytes] = lambda own: own
        """Adds the metrics of the server's other processes to those of this one."""
        self._registry = CollectorRegistry()
        self._errors = Counter(
            "wings_errors", "Errors answered.", ["transport", "code"], registry=self._registry
        )
        # Present from the start: Prometheus sees no increase in a series that begins with 1.
        for transport in get_args(Transport):
            for code in _FAULTS:
                self._errors.labels(transport, code)
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
        self.flushed = self._flushes.add
        self._registry.register(_BuildInfo())
        ProcessCollector(registry=self._registry)
        self._registry.register(self._counts)
        self._registry.register(self._flushes)

    def pushed(
        self, transport: Transport, topic: TopicName, rows: int, size: int, batches: int = 1
    ) -> None:
        """Count committed batches with `rows` rows and pages of `size` bytes in total."""
        self._counts.add(transport, pushes=batches, push_rows=rows, push_bytes=size)
        self.traffic.pushed(topic, rows, size)

    def published(self, transport: Transport, result: PublishResult) -> None:
        """Count what a publish made visible, one batch for each partition; a repeat counts nothing.

        Staged batches are counted here alone: until their publish nobody can read them.
        """
        if not result.replayed:
            for each in result.committed:
                self.pushed(transport, each.topic, each.rows, each.bytes)

    def fetch_begun(self, transport: Transport) -> None:
        """Count the start of a read."""
        self._counts.add(transport, fetches=1)

    def delivered(
        self, transport: Transport, rows: int, size: int, topic: TopicName | None = None
    ) -> None:
        """Count messages sent to a reader.

        Args:
            transport: Transport that they were sent over.
            rows: Number of messages.
            size: Bytes read from storage, or of JSON.
            topic: Topic of the messages; None for several topics or none, as for SQL.
        """
        self._counts.add(transport, fetch_rows=rows, fetch_bytes=size)
        if topic is not None:
            self.traffic.delivered(topic, rows, size)

    def failed(self, transport: Transport, code: str) -> None:
        """Count an error response, of a call or of a part of it."""
        self._errors.labels(transport, code).inc()
        self.traffic.failed(fault=code in _FAULTS)

    def observe(self, log: ServedLog) -> None:
        """Register the gauges of a log, which every later scrape reads, and count its publishes."""
        self.traffic = log.traffic
        log.on_publish = partial(self.published, "flight")  # HTTP stages nothing.
        self._registry.register(LogCollector(log))

    def families(self) -> Iterator[Metric]:
        """Yield all metrics; blocks, as it reads metadata."""
        yield from self._registry.collect()

    @property
    def media_type(self) -> str:
        """Media type of `exposition`."""
        return CONTENT_TYPE_PLAIN_0_0_4

    def exposition(self) -> bytes:
        """Return all metrics in Prometheus's text format; blocks, as it reads metadata."""
        return generate_latest(self._registry)

    def exposition_of_all(self) -> bytes:
        """Return the metrics of all processes of the server; see `of_all`."""
        return self.of_all(self.exposition())
