"""Metrics over OTLP: the families of `/metrics`, sent to a collector at an interval.

The numbers and names are those that Prometheus scrapes, except that counters lack `_total`, which a
collector adds when it exports to Prometheus.

    OTEL_METRIC_EXPORT_INTERVAL    milliseconds between exports; 60000
    OTEL_METRIC_EXPORT_TIMEOUT     timeout of an export in milliseconds; 30000
"""

import os
import threading
import time
from collections.abc import Callable, Iterable
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import structlog
from prometheus_client.metrics_core import Metric

from wings_core import tracing_setup
from wings_core.errors import InvalidArgument

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricExporter, MetricsData
    from opentelemetry.sdk.resources import Resource

CLOSE_SECONDS_MAX = 3.0
"""Longest wait of a stop for the last export."""

_UNITS = {"seconds": "s", "bytes": "By"}

_logger = structlog.get_logger("wings.metrics")


class OtlpMetrics:
    """Exporter of metrics on a thread of its own, from its construction to `close`.

    Args:
        collect: Returns all families; may block to read metadata.

    Raises:
        InvalidArgument: The environment is invalid, or the extra `otel` is not installed.
    """

    def __init__(self, collect: Callable[[], Iterable[Metric]]) -> None:
        self._collect = collect
        self._began = time.time_ns()
        self._interval = _milliseconds("OTEL_METRIC_EXPORT_INTERVAL", 60_000) / 1e3
        self._timeout = _milliseconds("OTEL_METRIC_EXPORT_TIMEOUT", 30_000)
        self._exporter = _exporter()
        self._resource = tracing_setup.resource("wings")
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="wings-otlp", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Export a last time, and stop; waits at most `CLOSE_SECONDS_MAX`."""
        self._closed.set()
        self._thread.join(CLOSE_SECONDS_MAX)

    def _run(self) -> None:
        while not self._closed.wait(self._interval):
            self._export()
        self._export()
        self._exporter.shutdown()

    def _export(self) -> None:
        try:
            data = metrics_data(self._collect(), self._resource, self._began)
            self._exporter.export(data, timeout_millis=self._timeout)
        except Exception as error:  # noqa: BLE001 - the next export may succeed
            _logger.warning("metrics were not exported", reason=f"{error!r:.200}")


def metrics_data(families: Iterable[Metric], resource: "Resource", began: int) -> "MetricsData":
    """Convert Prometheus families to OpenTelemetry data.

    Args:
        families: Counters, gauges and histograms; others are left out.
        resource: Resource of the process.
        began: Start of the counters, in nanoseconds since the epoch.
    """
    from opentelemetry.sdk.metrics.export import MetricsData, ResourceMetrics, ScopeMetrics
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    now = time.time_ns()
    found = [made for family in families if (made := _metric(family, began, now)) is not None]
    scope = InstrumentationScope("wings", version("wings-flight"))
    return MetricsData([ResourceMetrics(resource, [ScopeMetrics(scope, found, "")], "")])


def _metric(family: Metric, began: int, now: int) -> Any:
    from opentelemetry.sdk.metrics.export import (
        AggregationTemporality,
        Gauge,
        Histogram,
        NumberDataPoint,
        Sum,
    )
    from opentelemetry.sdk.metrics.export import Metric as Made

    data: Any
    cumulative = AggregationTemporality.CUMULATIVE
    if family.type == "histogram":
        data = Histogram([_histogram(family, began, now)], cumulative)
    elif family.type in {"counter", "gauge"}:
        points = [
            NumberDataPoint(sample.labels, began, now, float(sample.value))
            for sample in family.samples
            if not sample.name.endswith("_created")
        ]
        if not points:
            return None
        data = Gauge(points) if family.type == "gauge" else Sum(points, cumulative, True)
    else:
        return None
    unit = _UNITS.get(family.name.rpartition("_")[2], "1")
    return Made(family.name, family.documentation, unit, data)


def _histogram(family: Metric, began: int, now: int) -> Any:
    """Return the single point of a histogram without labels, as all of Wings' are."""
    from opentelemetry.sdk.metrics.export import HistogramDataPoint

    below = [
        (sample.labels["le"], int(sample.value))
        for sample in family.samples
        if sample.name.endswith("_bucket")
    ]
    totals = [number for _, number in below]
    counts = [number - before for before, number in zip([0, *totals], totals, strict=False)]
    (seconds,) = (each.value for each in family.samples if each.name.endswith("_sum"))
    return HistogramDataPoint(
        attributes={},
        start_time_unix_nano=began,
        time_unix_nano=now,
        count=totals[-1],
        sum=seconds,
        bucket_counts=counts,
        explicit_bounds=[float(bound) for bound, _ in below[:-1]],
        min=float("nan"),
        max=float("nan"),
    )


def _exporter() -> "MetricExporter":
    kind = tracing_setup.protocol("metrics")
    try:
        if kind == "grpc":
            from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
        else:
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    except ModuleNotFoundError as error:
        raise tracing_setup.missing(error) from None
    return OTLPMetricExporter()


def _milliseconds(name: str, default: int) -> int:
    given = os.environ.get(name, "").strip()
    if not given:
        return default
    if not given.isdecimal() or int(given) == 0:
        raise InvalidArgument(f"{name} is {given!r:.80}: expected milliseconds")
    return int(given)
