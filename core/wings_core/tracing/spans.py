"""Spans: begun, handed to other threads and other processes, and ended."""

import contextvars
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from wings_core.errors import WingsError

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, SpanContext, Tracer

Attributes = Mapping[str, str | int | bool]

Kind = Literal["internal", "client", "server", "producer", "consumer"]

LINKS_MAX = 128
"""The most links of a span, as many as OpenTelemetry keeps by default."""

STEPS_MAX = 64
"""Items of an iterator that are taken as a part of its span."""

SYSTEM = {"messaging.system": "wings"}

T = TypeVar("T")


class _Nothing:
    """What is entered where there is no span; one for all, as it has no state."""

    __slots__ = ()

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None


_NOTHING = _Nothing()

_tracer: "Tracer | None" = None


def use(tracer: "Tracer | None") -> None:
    """Make spans with this tracer from now on; None: none any more."""
    global _tracer
    _tracer = tracer


def notice() -> None:
    """Make spans from now on where the program has a tracer provider, as OpenTelemetry's SDK sets.

    The client calls it at each call of the program's. It imports nothing.
    """
    if _tracer is None and "opentelemetry.trace" in sys.modules:
        _look()


def _look() -> None:
    from opentelemetry import trace

    provider = trace.get_tracer_provider()
    if not isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        use(provider.get_tracer("wings"))


def is_on() -> bool:
    """Whether spans are made."""
    return _tracer is not None


def span(name: str, attributes: Attributes | None = None) -> "AbstractContextManager[Span | None]":
    """Do what follows in a span below the present one; without one, in none."""
    if _tracer is None or _recording() is None:
        return _NOTHING
    return _running(_tracer, name, "internal", attributes)


def client_span(
    name: str, attributes: Attributes | None = None, kind: Kind = "client"
) -> "AbstractContextManager[Span | None]":
    """Do what follows in a span that calls another process; it may be a trace's first.

    A program whose tracer provider was set by now has its spans; see `notice`.
    """
    notice()
    if _tracer is None:
        return _NOTHING
    return _running(_tracer, name, kind, attributes)


def server_span(
    name: str,
    received: Mapping[str, str],
    attributes: Attributes | None = None,
    *,
    begins: bool = True,
) -> "AbstractContextManager[Span | None]":
    """Do what follows in the span of a call that came in.

    Args:
        name: Of the span.
        received: The headers of the call, by their names in lower case.
        attributes: Of the span.
        begins: Whether a call that names no trace begins one; else it is in none.
    """
    if _tracer is None or not (begins or "traceparent" in received):
        return _NOTHING
    from opentelemetry import propagate

    return _running(_tracer, name, "server", attributes, propagate.extract(received))


def linked_span(
    name: str,
    producers: Iterable[Mapping[str, str]],
    attributes: Attributes | None = None,
) -> "AbstractContextManager[Span | None]":
    """Do what follows in a span of a consumer, below the present one, with links to others.

    Args:
        name: Of the span.
        producers: The headers that name each of the others; of more than `LINKS_MAX`, the first.
        attributes: Of the span.
    """
    if _tracer is None:
        return _NOTHING
    from opentelemetry import propagate, trace

    linked: list[SpanContext] = []
    for each in producers:
        context = trace.get_current_span(propagate.extract(each)).get_span_context()
        if context.is_valid and len(linked) < LINKS_MAX:
            linked.append(context)
    return _running(_tracer, name, "consumer", attributes, None, linked)


def shared_span(name: str, parts: "Iterable[Span | None]") -> "AbstractContextManager[Span | None]":
    """Do what follows in a span for several others at once: below the first, linked with all.

    Args:
        name: Of the span.
        parts: What `present` returned for each; of more than `LINKS_MAX`, the first are linked.
    """
    if _tracer is None:
        return _NOTHING
    others = list(dict.fromkeys(each for each in parts if each is not None))[:LINKS_MAX]
    if not others:
        return _NOTHING
    return _shared(_tracer, name, others)


@contextmanager
def _shared(tracer: "Tracer", name: str, others: "list[Span]") -> "Generator[Span]":
    from opentelemetry.trace import set_span_in_context

    linked = [each.get_span_context() for each in others[1:]]
    parent = set_span_in_context(others[0])
    with _running(tracer, name, "internal", None, parent, linked) as shared:
        for each in others[1:]:
            each.add_link(shared.get_span_context())
        yield shared


def begin(name: str) -> "Span":
    """Return a span below the present one, of a call to another process; the caller ends it.

    Only where there is a present one.
    """
    assert _tracer is not None, "there is a present span"
    from opentelemetry.trace import SpanKind

    return _tracer.start_span(name, kind=SpanKind.CLIENT, attributes=SYSTEM)


def spread(name: str, items: Iterator[T], attributes: Attributes | None = None) -> Iterator[T]:
    """Return what an iterator yields, taken in a span below the present one, until its end.

    The first `STEPS_MAX` items are taken as a part of that span; further ones in none, so that the
    trace of a stream that goes on for hours stays small.
    """
    if _tracer is None or (parent := _recording()) is None:
        return items
    from opentelemetry.trace import set_span_in_context

    begun = _tracer.start_span(
        name, set_span_in_context(parent), attributes={**SYSTEM, **(attributes or {})}
    )
    return _steps(begun, items)


def _steps(span: "Span", items: Iterator[T]) -> Generator[T]:
    from opentelemetry.trace import Status, StatusCode

    step = 0
    try:
        while True:
            # Not the present one while the iterator stands: its steps may be on any thread.
            with under(span if step < STEPS_MAX else None):
                try:
                    item = next(items)
                except StopIteration:
                    return
            step += 1
            yield item
    except Exception as error:
        span.set_status(Status(StatusCode.ERROR, type(error).__name__))
        if isinstance(error, WingsError):
            span.set_attribute("error.type", error.code)
        raise
    finally:
        span.end()
        close = getattr(items, "close", None)
        if close is not None:
            close()


def present() -> "Span | None":
    """Return the present span, for another thread that works for it; None: there is none."""
    return None if _tracer is None else _recording()


def under(span: "Span | None") -> "AbstractContextManager[Span | None]":
    """Do what follows as a part of a span, which another thread may have begun; ends nothing."""
    if span is None:
        return _NOTHING
    from opentelemetry.trace import use_span

    return use_span(span, record_exception=False, set_status_on_exception=False)


def bound(work: Callable[[], T]) -> Callable[[], T]:
    """Return `work`, to be done on another thread as a part of the present span."""
    if _tracer is None:
        return work
    context = contextvars.copy_context()
    return lambda: context.run(work)


def headers(span: "Span | None" = None) -> dict[str, str]:
    """Return the headers by which another process finds a span, or the present one.

    They are W3C's `traceparent` and `tracestate`, or what `OTEL_PROPAGATORS` says; none where there
    is no span.
    """
    if _tracer is None:
        return {}
    from opentelemetry import propagate, trace

    carrier: dict[str, str] = {}
    context = None if span is None else trace.set_span_in_context(span)
    propagate.inject(carrier, context)
    return carrier


def current_ids() -> tuple[str, str] | None:
    """Return the present trace's and span's id, in hexadecimal; None: there is none."""
    if _tracer is None:
        return None
    from opentelemetry import trace

    found = trace.get_current_span().get_span_context()
    if not found.is_valid:
        return None
    return trace.format_trace_id(found.trace_id), trace.format_span_id(found.span_id)


def _recording() -> "Span | None":
    from opentelemetry import trace

    found = trace.get_current_span()
    return found if found.is_recording() else None


@contextmanager
def _running(
    tracer: "Tracer",
    name: str,
    kind: Kind,
    attributes: Attributes | None,
    context: "Context | None" = None,
    linked: "Iterable[SpanContext]" = (),
) -> "Generator[Span]":
    from opentelemetry.trace import Link, SpanKind

    arguments: dict[str, Any] = {"links": [Link(each) for each in linked]} if linked else {}
    with tracer.start_as_current_span(
        name,
        context,
        SpanKind[kind.upper()],
        {**SYSTEM, **(attributes or {})},
        **arguments,
    ) as running:
        try:
            yield running
        except WingsError as error:
            running.set_attribute("error.type", error.code)
            raise
