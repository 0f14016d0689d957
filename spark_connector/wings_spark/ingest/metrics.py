"""Figures of a run for Prometheus, served over HTTP while it runs."""

import json
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, cast

from wings_core.errors import InvalidArgument
from wings_core.runtime import import_extra
from wings_spark.ingest.settings import SourceSettings


class RunMetrics:
    """Figures of one run since its start; all have the label `source`.

    Args:
        source: The source's name.

    Raises:
        InvalidArgument: prometheus-client is not installed.
    """

    def __init__(self, source: str) -> None:
        prometheus: Any = import_extra(
            "prometheus_client", "'metrics.listen' needs prometheus-client", "spark"
        )
        self._prometheus = prometheus
        self.registry: Any = prometheus.CollectorRegistry()
        self._source = source

        def counter(name: str, about: str, *labels: str) -> Any:
            names = ["source", *labels]
            return prometheus.Counter(f"wings_ingest_{name}", about, names, registry=self.registry)

        def gauge(name: str, about: str) -> Any:
            return prometheus.Gauge(
                f"wings_ingest_{name}", about, ["source"], registry=self.registry
            ).labels(source)

        self._files = counter("files", "Files of batches, by their outcome.", "outcome")
        self._batches = counter("batches", "Batches that were published.").labels(source)
        self._rows = counter("rows", "Rows that were published.").labels(source)
        self._bytes = counter("bytes", "Size of these rows as staged.").labels(source)
        self._rescued = counter("rescued_rows", "Rows kept as text.").labels(source)
        self._restarts = counter("restarts", "Starts of the query after an error.").labels(source)
        self._published_at = gauge("published_timestamp_seconds", "When the last batch was.")
        self._pending = gauge("pending_messages", "Messages that wait in the queue.")
        self._lost = gauge("lost_messages", "Messages that were not extended in time.")

    def add(self, figures: dict[str, Any]) -> None:
        """Count a batch, given its reported figures."""
        for outcome, count in figures["files"].items():
            self._files.labels(self._source, outcome).inc(count)
        self._batches.inc()
        self._rows.inc(figures["rows"])
        self._bytes.inc(figures["bytes"])
        self._rescued.inc(figures["rescued_rows"])
        self._published_at.set_to_current_time()

    def restarted(self) -> None:
        """Count a start after an error."""
        self._restarts.inc()

    def note(self, progress: Any) -> None:
        """Record the number of waiting messages from the query's last progress, if any."""
        try:
            found: Any = json.loads(progress.sources[0].latestOffset)
        except (AttributeError, IndexError, TypeError, ValueError):
            return
        if not isinstance(found, dict):
            return  # Before the first report.
        for name, metric in (("pending", self._pending), ("lost", self._lost)):
            count: Any = cast("dict[str, Any]", found).get(name)
            if isinstance(count, int):
                metric.set(count)

    @contextmanager
    def served(self, listen: str) -> Generator[int]:
        """Serve the figures at `/metrics` in a `with` statement; yields the port.

        Args:
            listen: `HOST:PORT`; port 0 is a free one.

        Raises:
            InvalidArgument: The address cannot be listened on.
        """
        host, _, port = listen.rpartition(":")
        try:
            server, thread = self._prometheus.start_http_server(
                int(port), host or "0.0.0.0", self.registry
            )
        except (OSError, OverflowError) as error:
            raise InvalidArgument(f"'metrics.listen' is {listen!r}: {error}") from None
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


@contextmanager
def metrics_of(settings: SourceSettings) -> Generator[RunMetrics | None]:
    """Serve figures in a `with` statement if a source asks for them; yields None otherwise.

    Raises:
        InvalidArgument: The figures cannot be served.
    """
    if settings.metrics.listen is None:
        yield None
        return
    metrics = RunMetrics(settings.name)
    with metrics.served(settings.metrics.listen):
        yield metrics
