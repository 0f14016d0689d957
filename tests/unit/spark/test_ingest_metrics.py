"""Figures of a run for Prometheus."""

import urllib.request
from types import SimpleNamespace

import pytest

from wings_core.errors import InvalidArgument
from wings_spark.ingest.metrics import RunMetrics


def test_figures_of_batches_are_served_and_added_up() -> None:
    metrics = RunMetrics("orders")
    for _ in range(2):
        metrics.add(
            {"files": {"finished": 2, "dead": 1}, "rows": 30, "bytes": 400, "rescued_rows": 5}
        )
    metrics.restarted()
    metrics.note(SimpleNamespace(sources=[SimpleNamespace(latestOffset='{"pending": 7}')]))
    for offset in ("null", "", None):  # Before the first report.
        metrics.note(SimpleNamespace(sources=[SimpleNamespace(latestOffset=offset)]))
    metrics.note(None)
    with metrics.served("127.0.0.1:0") as port:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            text = answer.read().decode()
        with pytest.raises(InvalidArgument, match="in use"), metrics.served(f"127.0.0.1:{port}"):
            pass
    assert 'wings_ingest_files_total{outcome="dead",source="orders"} 2.0' in text
    assert 'wings_ingest_rows_total{source="orders"} 60.0' in text
    assert 'wings_ingest_rescued_rows_total{source="orders"} 10.0' in text
    assert 'wings_ingest_restarts_total{source="orders"} 1.0' in text
    assert 'wings_ingest_pending_messages{source="orders"} 7.0' in text
