"""Setup of OpenTelemetry's SDK by the standard `OTEL_…` variables.

    OTEL_EXPORTER_OTLP_ENDPOINT, …_TRACES_ENDPOINT, …_METRICS_ENDPOINT    turn both or one on
    OTEL_TRACES_EXPORTER, OTEL_METRICS_EXPORTER                           otlp: on, none: off
    OTEL_SDK_DISABLED                                                     true: everything is off
    OTEL_EXPORTER_OTLP_PROTOCOL, …_TRACES_PROTOCOL, …_METRICS_PROTOCOL    http/protobuf, or grpc

The SDK and its exporters read all other variables.
"""

import os
import threading
from collections.abc import Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Literal

from wings_core import tracing
from wings_core.errors import InvalidArgument

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider

Signal = Literal["traces", "metrics"]

FLUSH_SECONDS_MAX = 3.0
"""Longest time that the end of a process waits for the export of its last spans."""

_provider: "TracerProvider | None" = None


def is_wanted(signal: Signal, environment: Mapping[str, str] | None = None) -> bool:
    """Return whether the environment turns traces or metrics on.

    Raises:
        InvalidArgument: It names an unsupported exporter.
    """
    environment = os.environ if environment is None else environment
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    name = f"OTEL_{signal.upper()}_EXPORTER"
    exporter = environment.get(name, "").strip().lower()
    if exporter:
        if exporter not in {"otlp", "none"}:
            raise InvalidArgument(f"{name} is {exporter!r:.80}: expected otlp or none")
        return exporter == "otlp"
    return any(
        environment.get(f"OTEL_EXPORTER_OTLP_{prefix}ENDPOINT")
        for prefix in ("", f"{signal.upper()}_")
    )


def protocol(signal: Signal) -> str:
    """Return `grpc` or `http/protobuf`.

    Raises:
        InvalidArgument: The environment names another protocol.
    """
    for name in (
        f"OTEL_EXPORTER_OTLP_{signal.upper()}_PROTOCOL",
        "OTEL_EXPORTER_OTLP_PROTOCOL",
    ):
        found = os.environ.get(name, "").strip().lower()
        if found in {"grpc", "http/protobuf"}:
            return found
        if found:
            raise InvalidArgument(f"{name} is {found!r:.80}: expected grpc or http/protobuf")
    return "http/protobuf"


def start(service: str) -> None:
    """Start exporting spans of this process, if the environment turns traces on.

    Args:
        service: Value of `service.name`, unless the environment sets it.

    Raises:
        InvalidArgument: The environment is invalid, or the extra `otel` is not installed.
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
    # Not set globally: FastAPI would then create a span for each request, too.
    tracing.use(provider.get_tracer("wings", version("wings-flight")))


def stop() -> None:
    """Export remaining spans, for at most `FLUSH_SECONDS_MAX`, and create no more."""
    global _provider
    provider, _provider = _provider, None
    if provider is not None:
        tracing.use(None)
        # On a thread, since without a receiver the exporter retries for longer than that.
        ending = threading.Thread(target=provider.shutdown, name="wings-traces", daemon=True)
        ending.start()
        ending.join(FLUSH_SECONDS_MAX)


def resource(service: str) -> "Resource":
    """Return the resource attributes of this process; the environment's take precedence."""
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource

    ours = {"service.name": service, "service.version": version("wings-flight")}
    return Resource.create(ours).merge(OTELResourceDetector().detect())


def missing(error: ModuleNotFoundError) -> InvalidArgument:
    """Return the error for a missing package that the environment requires."""
    return InvalidArgument(
        f"the environment turns OpenTelemetry on (OTEL_…), and {error.name} is not installed: "
        "pip install 'wings-flight[otel]', or set OTEL_SDK_DISABLED=true"
    )
