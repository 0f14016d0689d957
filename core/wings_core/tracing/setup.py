"""OpenTelemetry's SDK for a process of ours, as the standard `OTEL_…` variables say; else nothing.

    OTEL_EXPORTER_OTLP_ENDPOINT, …_TRACES_ENDPOINT, …_METRICS_ENDPOINT    turn both or one on
    OTEL_TRACES_EXPORTER, OTEL_METRICS_EXPORTER                           otlp: on, none: off
    OTEL_SDK_DISABLED                                                     true: all is off
    OTEL_EXPORTER_OTLP_PROTOCOL, …_TRACES_PROTOCOL, …_METRICS_PROTOCOL    http/protobuf, or grpc

All others are read by the SDK and its exporters themselves.
"""

import os
import threading
from collections.abc import Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Literal

from wings_core.errors import InvalidArgument
from wings_core.tracing import spans

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider

Signal = Literal["traces", "metrics"]

FLUSH_SECONDS_MAX = 3.0
"""How long the end of a process waits for its last spans to be exported."""

_provider: "TracerProvider | None" = None


def is_wanted(signal: Signal, environment: Mapping[str, str] | None = None) -> bool:
    """Whether the environment turns traces or metrics on.

    Raises:
        InvalidArgument: It names an exporter that there is not.
    """
    environment = os.environ if environment is None else environment
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    name = f"OTEL_{signal.upper()}_EXPORTER"
    exporter = environment.get(name, "").strip().lower()
    if exporter:
        if exporter not in {"otlp", "none"}:
            raise InvalidArgument(f"{name} is {exporter!r:.80}: there are otlp and none")
        return exporter == "otlp"
    return any(
        environment.get(f"OTEL_EXPORTER_OTLP_{prefix}ENDPOINT")
        for prefix in ("", f"{signal.upper()}_")
    )


def protocol(signal: Signal) -> str:
    """Return `grpc` or `http/protobuf`.

    Raises:
        InvalidArgument: The environment names another.
    """
    for name in (
        f"OTEL_EXPORTER_OTLP_{signal.upper()}_PROTOCOL",
        "OTEL_EXPORTER_OTLP_PROTOCOL",
    ):
        found = os.environ.get(name, "").strip().lower()
        if found in {"grpc", "http/protobuf"}:
            return found
        if found:
            raise InvalidArgument(f"{name} is {found!r:.80}: there are grpc and http/protobuf")
    return "http/protobuf"


def start(service: str) -> None:
    """Export spans of this process from now on, where the environment says so.

    Args:
        service: `service.name`, unless the environment names one.

    Raises:
        InvalidArgument: The environment cannot be followed, or the extra `otel` is missing.
    """
    global _provider
    if _provider is not None or not is_wanted("traces"):
        return
    kind = protocol("traces")
    try:
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        if kind == "grpc":
            from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        else:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ModuleNotFoundError as error:
        raise missing(error) from None
    _provider = provider = TracerProvider(resource=resource(service), shutdown_on_exit=False)
    exporter: Any = OTLPSpanExporter()
    provider.add_span_processor(BatchSpanProcessor(exporter))
    # Not the provider of all libraries in the process: FastAPI would make each request a span, too.
    spans.use(provider.get_tracer("wings", version("wings-flight")))


def stop() -> None:
    """Export what is left, for `FLUSH_SECONDS_MAX` at most, and make no more spans."""
    global _provider
    provider, _provider = _provider, None
    if provider is not None:
        spans.use(None)
        # On a thread: where nothing takes them, the exporter tries for longer than that.
        ending = threading.Thread(target=provider.shutdown, name="wings-traces", daemon=True)
        ending.start()
        ending.join(FLUSH_SECONDS_MAX)


def resource(service: str) -> "Resource":
    """Return what describes this process, with the environment's words above ours."""
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource

    ours = {"service.name": service, "service.version": version("wings-flight")}
    return Resource.create(ours).merge(OTELResourceDetector().detect())


def missing(error: ModuleNotFoundError) -> InvalidArgument:
    """Return the error of a process whose environment wants what is not installed."""
    return InvalidArgument(
        f"the environment turns OpenTelemetry on (OTEL_…), and {error.name} is not installed: "
        "pip install 'wings-flight[otel]', or set OTEL_SDK_DISABLED=true"
    )
