"""An OTLP receiver on loopback: takes traces and metrics over HTTP or gRPC, and keeps them."""

import gzip
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.trace.v1.trace_pb2 import Span

SECONDS_MAX = 60.0
"""How long a test waits for what it expects."""


class Receiver:
    """What came, as the published messages; `environment` is that of a process that sends it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.spans: list[tuple[str, Span]] = []
        """Each with the `service.name` of the process that made it."""
        self.metrics: dict[str, Metric] = {}
        """The last of each name."""
        self.environment: dict[str, str] = {}

    def take_traces(self, request: ExportTraceServiceRequest) -> None:
        with self._changed:
            for resource in request.resource_spans:
                service = attributes(resource.resource)["service.name"]
                for scope in resource.scope_spans:
                    self.spans += [(service, span) for span in scope.spans]
            self._changed.notify_all()

    def take_metrics(self, request: ExportMetricsServiceRequest) -> None:
        with self._changed:
            for resource in request.resource_metrics:
                for scope in resource.scope_metrics:
                    self.metrics |= {metric.name: metric for metric in scope.metrics}
            self._changed.notify_all()

    def wait(self, is_there: Callable[[], Any]) -> Any:
        """Wait until something true is returned, and return it."""
        deadline = time.monotonic() + SECONDS_MAX
        with self._changed:
            while not (found := is_there()):
                left = deadline - time.monotonic()
                seen = sorted((service, span.name) for service, span in self.spans)
                assert left > 0, f"not received; there are {seen}"
                self._changed.wait(left)
            return found

    def span(self, service: str, name: str, trace_id: bytes | None = None) -> Span:
        """Wait for a span, and return it."""
        return self.wait(lambda: self.find(service, name, trace_id))

    def find(self, service: str, name: str, trace_id: bytes | None = None) -> Span | None:
        """Return a span that has come, or None."""
        for maker, span in self.spans:
            if (maker, span.name) == (service, name) and trace_id in {None, span.trace_id}:
                return span
        return None


def attributes(of: Any) -> dict[str, Any]:
    """Return the attributes of a message as a mapping."""
    return {
        each.key: getattr(each.value, str(each.value.WhichOneof("value"))) for each in of.attributes
    }


@contextmanager
def http_receiver() -> Generator[Receiver]:
    """Receive OTLP over HTTP, as protobuf, on a free port."""
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                raw = gzip.decompress(raw)
            if self.path == "/v1/traces":
                receiver.take_traces(ExportTraceServiceRequest.FromString(raw))
                answer = ExportTraceServiceResponse().SerializeToString()
            else:
                assert self.path == "/v1/metrics"
                receiver.take_metrics(ExportMetricsServiceRequest.FromString(raw))
                answer = ExportMetricsServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver.environment = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
        "OTEL_BSP_SCHEDULE_DELAY": "20",
        "OTEL_METRIC_EXPORT_INTERVAL": "100",
    }
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def grpc_receiver() -> Generator[Receiver]:
    """Receive traces by OTLP over gRPC, on a free port."""
    receiver = Receiver()

    class Servicer(TraceServiceServicer):
        def Export(  # noqa: N802 - the protocol's name
            self, request: ExportTraceServiceRequest, context: Any
        ) -> ExportTraceServiceResponse:
            receiver.take_traces(request)
            return ExportTraceServiceResponse()

    server = grpc.server(ThreadPoolExecutor(2))
    add_TraceServiceServicer_to_server(Servicer(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    receiver.environment = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
        "OTEL_METRICS_EXPORTER": "none",
        "OTEL_BSP_SCHEDULE_DELAY": "20",
    }
    try:
        yield receiver
    finally:
        server.stop(None).wait()
