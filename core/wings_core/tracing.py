"""Traces: OpenTelemetry spans of calls, across client, server, storage and metadata.

Off unless a process starts them (`tracing_setup.start`), or a program that uses the client has a
tracer provider of its own. When off, every function but `notice` costs one check of a variable.

The spans that pushed recent messages are kept in the memory of the node that received the pushes,
for links from the spans of consumers: messages pushed before a restart, at another node, or too
long ago have no links. Nothing is stored with the messages.
"""

import contextvars
import sys
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from wings_core.errors import WingsError
from wings_core.model import AssignedRange
from wings_core.partitions import Partition

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, SpanContext, Tracer

Attributes = Mapping[str, str | int | bool]

Kind = Literal["internal", "client", "server", "producer", "consumer"]

LINKS_MAX = 128
"""Most links of a span, OpenTelemetry's default limit."""

STEPS_MAX = 64
"""Items of an iterator that are taken within its span."""

SYSTEM = {"messaging.system": "wings"}

T = TypeVar("T")


_NOTHING = nullcontext()
"""A block without a span."""

_tracer: "Tracer | None" = None


def use(tracer: "Tracer | None") -> None:
    """Create spans with this tracer from now on; None turns them off."""
    global _tracer
    _tracer = tracer


def notice() -> None:
    """Create spans from now on if the program has set a tracer provider of OpenTelemetry's SDK.

    The client calls it at each of the program's calls. It imports nothing.
    """
    if _tracer is None and "opentelemetry.trace" in sys.modules:
        _look()


def _look() -> None:
    from opentelemetry import trace

    provider = trace.get_tracer_provider()
    if not isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        use(provider.get_tracer("wings"))


def is_on() -> bool:
    """Return whether spans are created."""
    return _tracer is not None


def span(name: str, attributes: Attributes | None = None) -> "AbstractContextManager[Span | None]":
    """Run the block in a child span of the current span; without one, in none."""
    if _tracer is None or _recording() is None:
        return _NOTHING
    return _running(_tracer, name, "internal", attributes)


def client_span(
    name: str, attributes: Attributes | None = None, kind: Kind = "client"
) -> "AbstractContextManager[Span | None]":
    """Run the block in a span for a call to another process; it may begin a trace.

    Uses a tracer provider set by the program meanwhile; see `notice`.
    """
    notice()
    if _tracer is None:
        return _NOTHING
    return _running(_tracer, name, kind, attributes)


def server_span(
    name: str,
    received: Mapping[str, str],
    attributes: Attributes | None = None,
) -> "AbstractContextManager[Span | None]":
    """Run the block in the span of an incoming call, which may begin a trace.

    Args:
        name: Name of the span.
        received: Headers of the call, by lower-case names.
        attributes: Attributes of the span.
    """
    if _tracer is None:
        return _NOTHING
    from opentelemetry import propagate

    return _running(_tracer, name, "server", attributes, propagate.extract(received))


def linked_span(
    name: str,
    producers: Iterable[Mapping[str, str]],
    attributes: Attributes | None = None,
) -> "AbstractContextManager[Span | None]":
    """Run the block in a consumer's span, a child of the current one, with links to others.

    Args:
        name: Name of the span.
        producers: Headers of the linked spans; only the first `LINKS_MAX` are used.
        attributes: Attributes of the span.
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
    """Run the block in a span on behalf of several others: child of the first, linked to all.

    Args:
        name: Name of the span.
        parts: Results of `present` for each; only the first `LINKS_MAX` are linked.
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
    """Return a child span of the current one for a call to another process; the caller ends it.

    There must be a current span.
    """
    assert _tracer is not None, "there is a present span"
    from opentelemetry.trace import SpanKind

    return _tracer.start_span(name, kind=SpanKind.CLIENT, attributes=SYSTEM)


def spread(name: str, items: Iterator[T], attributes: Attributes | None = None) -> Iterator[T]:
    """Yield the items of an iterator, taken in a child span of the current one.

    The first `STEPS_MAX` items are taken within that span, further ones in none, so that the trace
    of a long stream stays small.
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
            # Not current between steps, which may run on any thread.
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
    """Return the current span, for a thread that works on its behalf; None if there is none."""
    return None if _tracer is None else _recording()


def under(span: "Span | None") -> "AbstractContextManager[Span | None]":
    """Run the block within a span, possibly of another thread, without ending the span."""
    if span is None:
        return _NOTHING
    from opentelemetry.trace import use_span

    return use_span(span, record_exception=False, set_status_on_exception=False)


def bound(work: Callable[[], T]) -> Callable[[], T]:
    """Return `work` wrapped to run within the current span on another thread."""
    if _tracer is None:
        return work
    context = contextvars.copy_context()
    return lambda: context.run(work)


def headers(span: "Span | None" = None) -> dict[str, str]:
    """Return the headers that propagate a span, by default the current one, to another process.

    W3C's `traceparent` and `tracestate`, or those of `OTEL_PROPAGATORS`; empty without a span.
    """
    if _tracer is None:
        return {}
    from opentelemetry import propagate, trace

    carrier: dict[str, str] = {}
    context = None if span is None else trace.set_span_in_context(span)
    propagate.inject(carrier, context)
    return carrier


def current_ids() -> tuple[str, str] | None:
    """Return the ids of the current trace and span, in hexadecimal; None without a span."""
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


PARTITIONS_MAX = 1_000
"""Most partitions whose pushes are known; the least recently pushed to is dropped."""

PUSHES_MAX = 64
"""Most recent pushes known of each partition."""

FOUND_MAX = 8
"""Most pushes returned for a range."""


class _Push(NamedTuple):
    start_offset: int
    end_offset: int
    headers: Mapping[str, str]


class RecentPushes:
    """The recent pushes of a process. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pushes: OrderedDict[tuple[str, Partition], deque[_Push]] = OrderedDict()

    def note(
        self, topic: str, committed: Iterable[AssignedRange], headers: Mapping[str, str]
    ) -> None:
        """Record that messages of a topic (its UUID) were pushed in the span named by `headers`."""
        with self._lock:
            for found in committed:
                key = (topic, found.partition)
                pushes = self._pushes.setdefault(key, deque(maxlen=PUSHES_MAX))
                self._pushes.move_to_end(key)
                pushes.append(_Push(found.start_offset, found.end_offset, headers))
                if len(self._pushes) > PARTITIONS_MAX:
                    self._pushes.popitem(last=False)

    def find(
        self, topic: str, partition: Partition, start_offset: int, end_offset: int
    ) -> Sequence[Mapping[str, str]]:
        """Return headers of the spans that pushed messages, the latest first, without duplicates.

        At most the last `FOUND_MAX` are returned.
        """
        with self._lock:
            pushes = list(self._pushes.get((topic, partition), ()))
        found: list[Mapping[str, str]] = []
        for push in reversed(pushes):
            meets = push.start_offset <= end_offset and start_offset <= push.end_offset
            if meets and push.headers not in found:
                found.append(push.headers)
                if len(found) == FOUND_MAX:
                    break
        return found
