"""Spans in one process: on and off, over threads, shared, and spread over an iterator."""

import io
import json
import logging
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import structlog
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from wings_core import tracing, tracing_setup
from wings_core.errors import InvalidArgument, Unavailable
from wings_core.model import AssignedRange
from wings_core.partitions import UNPARTITIONED
from wings_core.tracing import FOUND_MAX, PUSHES_MAX
from wings_server import logs


@pytest.fixture
def exporter() -> Generator[InMemorySpanExporter]:
    """Spans are on, and those that ended are in it."""
    found = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(found))
    tracing.use(provider.get_tracer("test"))
    yield found
    tracing.use(None)


def by_name(exporter: InMemorySpanExporter) -> dict[str, Any]:
    return {span.name: span for span in exporter.get_finished_spans()}


def test_while_spans_are_off_all_is_one_object_that_does_nothing() -> None:
    work, items = (lambda: 1), iter([1])
    assert not tracing.is_on()
    assert tracing.span("a") is tracing.server_span("b", {}) is tracing.shared_span("c", [None])
    assert tracing.bound(work) is work
    assert tracing.spread("d", items) is items
    assert tracing.headers() == {}
    assert tracing.present() is tracing.current_ids() is None


def test_inner_spans_begin_no_trace(exporter: InMemorySpanExporter) -> None:
    with tracing.span("alone"):
        assert tracing.present() is None
    assert exporter.get_finished_spans() == ()


def test_a_trace_goes_on_over_headers_and_threads(exporter: InMemorySpanExporter) -> None:
    with tracing.client_span("client"):
        sent = tracing.headers()
    with tracing.server_span("server", sent), ThreadPoolExecutor(1) as pool:

        def work() -> None:
            with tracing.span("work"):
                pass

        pool.submit(tracing.bound(work)).result()
    found = by_name(exporter)
    assert found["server"].parent.span_id == found["client"].context.span_id
    assert found["work"].parent.span_id == found["server"].context.span_id


def test_an_error_has_its_code(exporter: InMemorySpanExporter) -> None:
    with pytest.raises(Unavailable), tracing.client_span("call"):
        raise Unavailable("no")
    assert by_name(exporter)["call"].attributes["error.type"] == "UNAVAILABLE"
    assert not by_name(exporter)["call"].status.is_ok


def test_what_is_done_for_several_is_below_the_first_and_linked_with_the_others(
    exporter: InMemorySpanExporter,
) -> None:
    with tracing.client_span("one"):
        one = tracing.present()
        with tracing.client_span("two"):
            two = tracing.present()
            with tracing.shared_span("both", [one, None, two, two]):
                pass
    found = by_name(exporter)
    both = found["both"]
    assert both.parent.span_id == found["one"].context.span_id
    assert [link.context.span_id for link in both.links] == [found["two"].context.span_id]
    assert [link.context.span_id for link in found["two"].links] == [both.context.span_id]
    assert found["one"].links == ()


def test_a_stream_has_one_span_however_many_items_it_has(exporter: InMemorySpanExporter) -> None:
    def items() -> Iterator[bool]:
        for _ in range(tracing.STEPS_MAX + 5):
            yield tracing.present() is not None

    with tracing.client_span("call"):
        stream = tracing.spread("stream", items())
    assert sum(stream) == tracing.STEPS_MAX, "the others are taken in no span"
    found = by_name(exporter)
    assert found["stream"].parent.span_id == found["call"].context.span_id
    assert len(found) == 2


def test_links_of_messages_are_of_the_last_pushes_that_are_known() -> None:
    recent = tracing.RecentPushes()
    for number in range(PUSHES_MAX + 10):
        committed = [AssignedRange(UNPARTITIONED, 10 * number, 10 * number + 9, 0)]
        recent.note("uuid", committed, {"traceparent": str(number)})
    assert recent.find("uuid", UNPARTITIONED, 0, 99) == [], "they are forgotten"
    assert recent.find("uuid", UNPARTITIONED, 209, 210) == [
        {"traceparent": "21"},
        {"traceparent": "20"},
    ]
    assert len(recent.find("uuid", UNPARTITIONED, 0, 10_000)) == FOUND_MAX
    assert recent.find("other", UNPARTITIONED, 0, 10_000) == []


def test_logs_have_the_ids_of_the_present_span(exporter: InMemorySpanExporter) -> None:
    root = logging.getLogger()
    handlers, level, configured = root.handlers[:], root.level, structlog.get_config()
    stream = io.StringIO()
    try:
        logs.configure("info", "json", stream)
        with tracing.client_span("call"):
            structlog.get_logger("wings.test").info("ours")
            logging.getLogger("library").warning("theirs")
        structlog.get_logger("wings.test").info("outside")
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        structlog.configure(**configured)
    entries = [json.loads(line) for line in stream.getvalue().splitlines()]
    context = by_name(exporter)["call"].context
    for entry in entries[:2]:
        assert entry["trace_id"] == f"{context.trace_id:032x}"
        assert entry["span_id"] == f"{context.span_id:016x}"
    assert "trace_id" not in entries[2]


def test_the_environment_says_what_is_on() -> None:
    endpoint = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4318"}
    for environment, traces, metrics in (
        ({}, False, False),
        (endpoint, True, True),
        ({**endpoint, "OTEL_SDK_DISABLED": "true"}, False, False),
        ({**endpoint, "OTEL_METRICS_EXPORTER": "none"}, True, False),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True, False),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://localhost:4318"}, False, True),
    ):
        assert tracing_setup.is_wanted("traces", environment) == traces, environment
        assert tracing_setup.is_wanted("metrics", environment) == metrics, environment
    with pytest.raises(InvalidArgument, match="zipkin"):
        tracing_setup.is_wanted("traces", {"OTEL_TRACES_EXPORTER": "zipkin"})
