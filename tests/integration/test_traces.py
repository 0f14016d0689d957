"""Traces and metrics of real processes, as a receiver of OTLP gets them."""

import os
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import httpx
import pytest
from flight_calls import create_topic
from forked_commands import FORKED
from otlp_receiver import Receiver, attributes, grpc_receiver, http_receiver
from share_calls import create_group

from wings_server.testing import ServerProcess, metadata_process, server_process

FLIGHT = "arrow.flight.protocol.FlightService"

PROGRAM = f"""{FORKED}
import sys
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
import wings_client

provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
trace.set_tracer_provider(provider)
tracer = trace.get_tracer("program")
with wings_client.connect(sys.argv[1]) as client:
    with tracer.start_as_current_span("order"):
        client.push("jobs", [{{"n": 1}}])
    with tracer.start_as_current_span("report"):
        assert client.fetch("jobs", offset=0).num_rows == 1

    def handle(message):
        with tracer.start_as_current_span("bill"):
            print(message.row)

    client.worker("billing", "jobs", handle, limit=1).run()
provider.shutdown()
"""
"""A program with OpenTelemetry's SDK, which knows nothing of ours."""


def run_program(server: ServerProcess, receiver: Receiver) -> None:
    variables = {**os.environ, **receiver.environment, "OTEL_SERVICE_NAME": "shop"}
    command = [sys.executable, "-c", PROGRAM, server.flight]
    subprocess.run(command, env=variables, check=True, timeout=120)


@pytest.fixture(scope="module")
def receiver() -> Generator[Receiver]:
    with http_receiver() as found:
        yield found


@pytest.fixture(scope="module")
def server(
    receiver: Receiver, tmp_path_factory: pytest.TempPathFactory
) -> Generator[ServerProcess]:
    """A node of a metadata service, both with traces, after a program has used it."""
    directory = tmp_path_factory.mktemp("traces")
    named = {**receiver.environment, "OTEL_SERVICE_NAME": "metadata"}
    flags = ["--log-format", "json", "--log-level", "debug", "--hot", (directory / "hot").as_uri()]
    with (
        metadata_process(directory / "metadata", environment=named) as metadata,
        server_process(
            directory / "pages",
            flags=["--metadata", metadata.address, *flags],
            environment={**receiver.environment, "WINGS_LIMITS__INLINE_BYTES_MAX": "0"},
        ) as server,
    ):
        client = server.client()
        create_topic(client, "jobs", ["n: int64"])
        create_group(client, "jobs", "billing")
        run_program(server, receiver)
        yield server


def test_a_push_is_one_trace_from_the_program_to_metadata(
    receiver: Receiver, server: ServerProcess
) -> None:
    trace = receiver.span("shop", "order").trace_id
    above = None
    for service, name in (
        ("shop", "order"),
        ("shop", "push"),
        ("wings", f"{FLIGHT}/DoPut"),
        ("wings", "flush"),
        ("wings", "metadata.commit"),
        ("wings", "wings.v1.OffsetRegistryService/Commit"),
        ("metadata", "wings.v1.OffsetRegistryService/Commit"),
    ):
        span = receiver.span(service, name, trace)
        assert above is None or span.parent_span_id == above.span_id, name
        above = span
    write = receiver.span("wings", "storage.write", trace)
    assert write.parent_span_id == receiver.span("wings", "flush", trace).span_id
    put = receiver.span("wings", "object.put", trace)
    assert put.parent_span_id == write.span_id
    push = receiver.span("shop", "push", trace)
    assert attributes(push)["messaging.destination.name"].endswith("/topics/jobs")


def test_a_read_is_one_trace_too(receiver: Receiver, server: ServerProcess) -> None:
    trace = receiver.span("shop", "report").trace_id
    fetch = receiver.span("shop", "fetch", trace)
    call = receiver.span("wings", f"{FLIGHT}/DoGet", trace)
    assert call.parent_span_id == fetch.span_id
    stream = receiver.span("wings", "stream", trace)
    assert stream.parent_span_id == call.span_id
    assert receiver.span("wings", "metadata.locate", trace)
    assert receiver.span("wings", "storage.read", trace).parent_span_id == stream.span_id


def test_what_a_worker_does_is_linked_to_the_push(
    receiver: Receiver, server: ServerProcess
) -> None:
    process = receiver.span("shop", "process")
    pushed_in = receiver.span("shop", "order").trace_id
    assert [link.trace_id for link in process.links] == [pushed_in]
    assert process.trace_id != pushed_in
    bill = receiver.span("shop", "bill")
    assert (bill.trace_id, bill.parent_span_id) == (process.trace_id, process.span_id)


def test_http_goes_on_with_the_trace_of_its_headers(
    receiver: Receiver, server: ServerProcess
) -> None:
    trace, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    batches = [{"topic": "jobs", "data": [{"n": 2}]}]
    answer = httpx.post(
        f"{server.http}/v1/push",
        json={"namespace": "tenants/default/namespaces/default", "batches": batches},
        headers={"traceparent": f"00-{trace}-{parent}-01"},
    )
    assert answer.json()["batches"][0]["_tag"] == "success"
    call = receiver.span("wings", "POST /v1/push", bytes.fromhex(trace))
    assert call.parent_span_id.hex() == parent
    assert attributes(call)["http.response.status_code"] == 200
    flush = receiver.span("wings", "flush", bytes.fromhex(trace))
    assert flush.parent_span_id == call.span_id


def test_a_refused_request_has_its_status_in_its_span(
    receiver: Receiver, server: ServerProcess
) -> None:
    trace = "1af7651916cd43dd8448eb211c80319c"
    answer = httpx.get(
        f"{server.http}/v1/tenants/default/namespaces/default/topics/none",
        headers={"traceparent": f"00-{trace}-b7ad6b7169203331-01"},
    )
    assert answer.status_code == 404
    route = "/v1/tenants/{tenant}/namespaces/{namespace}/topics/{topic}"
    call = receiver.span("wings", f"GET {route}", bytes.fromhex(trace))
    assert attributes(call)["http.route"] == route
    assert attributes(call)["http.response.status_code"] == 404


def test_metrics_come_by_otlp(receiver: Receiver, server: ServerProcess) -> None:
    pushed = receiver.wait(
        lambda: (
            found
            if (found := receiver.metrics.get("wings_push_rows"))
            and any(point.as_double for point in found.sum.data_points)
            else None
        )
    )
    assert pushed.sum.is_monotonic
    assert {attributes(point)["transport"] for point in pushed.sum.data_points} == {
        "flight",
        "http",
        "kafka",
    }
    seconds = receiver.metrics["wings_flush_duration_seconds"]
    assert seconds.unit == "s"
    (point,) = seconds.histogram.data_points
    assert point.count == sum(point.bucket_counts) > 0
    assert len(point.bucket_counts) == len(point.explicit_bounds) + 1
    lag = receiver.metrics["wings_share_lag_messages"]
    assert {attributes(point)["group"] for point in lag.gauge.data_points} == {"billing"}


def test_over_grpc_and_from_the_command_line(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"n": 1}\n')
    with (
        grpc_receiver() as receiver,
        server_process(tmp_path / "data", environment=receiver.environment) as server,
    ):
        create_topic(server.client(), "jobs", ["n: int64"])
        command = [sys.executable, "-m", "wings_client.cli", "push", "jobs", str(rows)]
        subprocess.run(
            [*command, "--endpoint", server.flight],
            env={**os.environ, **receiver.environment},
            check=True,
            timeout=120,
        )
        trace = receiver.span("wings-cli", "wings push").trace_id
        assert receiver.span("wings", f"{FLIGHT}/DoAction", trace)
        assert receiver.span("wings", "metadata.commit")


def test_a_program_without_opentelemetry_loads_none_of_it(tmp_path: Path) -> None:
    program = """
import sys, wings_client
with wings_client.connect(sys.argv[1]) as client:
    client.push("jobs", [{"n": 1}])
print([each for each in sys.modules if each.startswith("opentelemetry")])
"""
    with server_process(tmp_path / "data") as server:
        create_topic(server.client(), "jobs", ["n: int64"])
        found = subprocess.check_output([sys.executable, "-c", program, server.flight], text=True)
    assert found == "[]\n"
