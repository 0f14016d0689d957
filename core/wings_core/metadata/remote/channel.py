"""The connection to the metadata service, calls on it, and their errors.

An error is a gRPC status code for the class, and the error's JSON in the trailing metadata. Peers
authenticate each other by TLS and a token; calls within a trace are spans of it.
"""

import json
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

import grpc
from google.protobuf import descriptor_pool
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message_factory import GetMessageClass

from wings_core import tracing
from wings_core.errors import (
    AlreadyExists,
    BatchTooLarge,
    Conflict,
    Internal,
    InvalidArgument,
    NotFound,
    OffsetOutOfRange,
    PermissionDenied,
    ResourceExhausted,
    StorageCorrupt,
    Unauthenticated,
    Unavailable,
    WingsError,
    error_from_json,
)
from wings_core.metadata.remote.deduplicate import CallOutcome
from wings_core.security.tokens import PeerAccess
from wings_core.times import Deadline

ERROR_KEY = "wings-error-bin"
"""The trailing metadata that holds the error's JSON, in UTF-8."""

MESSAGE_CHARACTERS_MAX = 512
BODY_BYTES_MAX = 4_096
"""gRPC refuses metadata of more than 8 KiB."""

_STATUS: Mapping[type[WingsError], grpc.StatusCode] = {
    InvalidArgument: grpc.StatusCode.INVALID_ARGUMENT,
    NotFound: grpc.StatusCode.NOT_FOUND,
    AlreadyExists: grpc.StatusCode.ALREADY_EXISTS,
    Conflict: grpc.StatusCode.FAILED_PRECONDITION,
    OffsetOutOfRange: grpc.StatusCode.OUT_OF_RANGE,
    BatchTooLarge: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Unauthenticated: grpc.StatusCode.UNAUTHENTICATED,
    PermissionDenied: grpc.StatusCode.PERMISSION_DENIED,
    ResourceExhausted: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Unavailable: grpc.StatusCode.UNAVAILABLE,
    StorageCorrupt: grpc.StatusCode.DATA_LOSS,
    Internal: grpc.StatusCode.INTERNAL,
}
"""Status by class, subclasses included."""


def status_of(error: WingsError) -> grpc.StatusCode:
    """Return the gRPC status that stands for an error."""
    found = (_STATUS[cls] for cls in type(error).__mro__ if cls in _STATUS)
    return next(found, grpc.StatusCode.INTERNAL)


def error_message(error: WingsError) -> str:
    """Return an error's message, cut to what a status carries."""
    message = error.message.encode("utf-8", "replace").decode("utf-8")
    if len(message) <= MESSAGE_CHARACTERS_MAX:
        return message
    return message[: MESSAGE_CHARACTERS_MAX - 3] + "..."


def error_body(error: WingsError) -> bytes:
    """Return an error's JSON; facts that would make it too long are left out."""
    return error.bounded_json(error_message(error), BODY_BYTES_MAX)


def error_of(error: grpc.RpcError, target: str, *, changes: bool = True) -> WingsError:
    """Return the error that a call ended with: the service's own, or `Unavailable`.

    Where it is unknown whether the service did what was asked, the fact `in_doubt` is true.

    Args:
        error: Error of a call that ended.
        target: The service's address, for the message.
        changes: Whether the call may change anything; else there is nothing to be in doubt of.
    """
    assert isinstance(error, grpc.Call)
    trailing = cast("Iterable[tuple[str, str | bytes]]", error.trailing_metadata() or ())
    for key, value in trailing:
        if key == ERROR_KEY and isinstance(value, bytes):
            found = error_from_json(json.loads(value))
            if isinstance(found, Unauthenticated):
                # It is this node that is refused, not its client.
                return Unavailable(f"the metadata service at {target}: {found.message}")
            return found
    code, details = error.code(), str(error.details())
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return Internal(f"the metadata service at {target} does not know this call: {details:.200}")
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and "RPC limit" in details:
        # So gRPC says before it hands a call on; of a message that is too large it says otherwise.
        return Unavailable(f"the metadata service at {target} has too many calls under way")
    if code is grpc.StatusCode.UNAVAILABLE and details.startswith("failed to connect"):
        # gRPC says so only of a call that no connection was found for.
        return Unavailable(f"the metadata service at {target} cannot be reached")
    message = f"the metadata service at {target} did not answer: {code.name}: {details:.200}"
    return Unavailable(message, in_doubt=True) if changes else Unavailable(message)


CALL_SECONDS = 30.0
"""How long a call may take that waits for nothing."""

DOUBT_SECONDS_MAX = 10.0
"""How long a call whose response was lost is repeated, before its outcome is in doubt."""

DOUBT_PAUSE_SECONDS = (0.05, 0.5)
"""Between two attempts, doubling."""

MESSAGE_BYTES_MAX = 64 * 1024 * 1024
"""The largest message: a flush with very many pages, or a long list."""

RECONNECT_MS = (100, 1_000)
"""A lost connection is tried again after at least, and at most, so many milliseconds."""

CONNECT_MS = 3_000
"""How long one attempt may take: over a long way, or at a service that has much to do."""

KEEPALIVE_MS = 10_000
"""A silent connection is pinged after so many milliseconds, ..."""

KEEPALIVE_ANSWER_MS = 5_000
"""... and closed where no answer comes within so many."""

Request = TypeVar("Request")
Response = TypeVar("Response")
Value = TypeVar("Value")


class ServiceChannel:
    """Calls of the metadata service at one address; it connects when it is first needed.

    Args:
        target: `HOST:PORT`.
        access: Credentials presented to the service.
    """

    def __init__(self, target: str, access: PeerAccess | None = None) -> None:
        self.target = target
        self._closing = threading.Event()
        self._unary: dict[str, grpc.UnaryUnaryMultiCallable[Any, Any]] = {}
        self.channel = open_channel(
            access or PeerAccess(),
            target,
            [
                ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
                ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
                ("grpc.initial_reconnect_backoff_ms", RECONNECT_MS[0]),
                # In spite of its name, this is what bounds an attempt.
                ("grpc.min_reconnect_backoff_ms", CONNECT_MS),
                ("grpc.max_reconnect_backoff_ms", RECONNECT_MS[1]),
                ("grpc.keepalive_time_ms", KEEPALIVE_MS),
                ("grpc.keepalive_timeout_ms", KEEPALIVE_ANSWER_MS),
                ("grpc.http2.max_pings_without_data", 0),
                ("grpc.use_local_subchannel_pool", 1),
                ("grpc.enable_http_proxy", 0),
                # Whether a call may be made again is decided here, for each kind.
                ("grpc.enable_retries", 0),
            ],
        )

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closing.is_set()

    def unary(self, method: MethodDescriptor) -> "grpc.UnaryUnaryMultiCallable[Any, Any]":
        """Return the callable of an RPC."""
        found = self._unary.get(method.full_name)
        if found is None:
            found = self.channel.unary_unary(*_arguments_of(method))
            self._unary[method.full_name] = found
        return found

    def call(
        self,
        method: "grpc.UnaryUnaryMultiCallable[Request, Response]",
        request: Request,
        seconds: float = CALL_SECONDS,
        *,
        wait_for_ready: bool = False,
        changes: bool = True,
    ) -> Response:
        """Make a call; blocks until it is answered, at most for so many seconds.

        With `wait_for_ready`, also while there is no connection yet. Without `changes`, it only
        looks: where its answer is lost, nothing is in doubt.

        Raises:
            Unavailable: There is no connection, or no answer; see `error_of`.
            WingsError: What the service answered.
        """
        try:
            return method(request, timeout=seconds, wait_for_ready=wait_for_ready)
        except grpc.RpcError as error:
            raise error_of(error, self.target, changes=changes) from None
        except ValueError:
            raise _closed() from None  # So gRPC says that the channel is closed.

    def look(
        self, method: "grpc.UnaryUnaryMultiCallable[Request, Response]", request: Request
    ) -> Response:
        """Make a call that changes nothing, as `call`."""
        return self.call(method, request, changes=False)

    def call_repeatedly(
        self,
        method: "grpc.UnaryUnaryMultiCallable[Request, Response]",
        request: Request,
        gone: Response | None = None,
    ) -> Response:
        """Make an idempotent call, again and again until its outcome is known.

        Where its response is lost, it is made again for up to `DOUBT_SECONDS_MAX`; blocks for as
        long.

        Args:
            method: The method.
            request: Its request; a repetition changes nothing.
            gone: Response of a deletion whose repetition finds nothing: the call whose response was
                lost deleted it.

        Raises:
            Unavailable: There is no connection; or (the fact `in_doubt`) it did not come back in
                time, and it is not known whether the call was carried out.
            WingsError: What the service answered; with the fact `in_doubt` where it refuses a
                repetition.
        """
        # From the first doubt on: the call may have taken long, or this node been stopped in it.
        until: Deadline | None = None
        pause, pause_max = DOUBT_PAUSE_SECONDS
        while True:
            try:
                return self.call(method, request)
            except (Unavailable, Internal, ResourceExhausted) as error:
                # A repetition that the service's disk fails says nothing of the first call.
                if until is None:
                    if not error.facts.get("in_doubt"):
                        raise
                    until = Deadline.after(DOUBT_SECONDS_MAX)
                if until.passed or self.closed:
                    raise Unavailable(
                        f"it is not known whether this was done: {error.message}", in_doubt=True
                    ) from None
            except WingsError as error:
                if until is not None:
                    if gone is not None and isinstance(error, NotFound):
                        return gone
                    # It may be refused for what was done since the first call.
                    error.facts["in_doubt"] = True
                raise
            self._closing.wait(pause)
            pause = min(2 * pause, pause_max)

    def begin(
        self,
        method: "grpc.UnaryUnaryMultiCallable[Request, Response]",
        request: Request,
        seconds: float,
        convert: Callable[[Response], Value | None],
        done: Callable[[CallOutcome[Value]], None],
    ) -> Callable[[], None]:
        """Begin a call for `Deduplicate`: `done` gets what `convert` makes of the answer.

        It only looks: where its answer is lost, nothing is in doubt.

        Raises:
            Unavailable: The channel is closed.
        """
        try:
            future = method.future(request, timeout=seconds)
        except ValueError:
            raise _closed() from None

        def end(ended: object) -> None:
            call = cast("grpc.Future[Response]", ended)
            try:
                done(CallOutcome(convert(call.result())))
            except grpc.RpcError as error:
                done(CallOutcome(error=error_of(error, self.target, changes=False)))
            except grpc.FutureCancelledError:
                done(CallOutcome(error=_closed()))
            except WingsError as error:
                done(CallOutcome(error=error))
            except Exception as error:  # noqa: BLE001 - all who wait for the call would wait on.
                answered = f"an answer of {self.target} is not understood: {error!r:.200}"
                done(CallOutcome(error=Internal(answered)))

        # Runs on the one thread of the channel, or here where the call has ended already.
        future.add_done_callback(end)
        return future.cancel  # pyright: ignore[reportReturnType] - it tells whether it could.

    def close(self) -> None:
        """Cancel the calls under way, and ask none again; later ones raise `Unavailable`."""
        self._closing.set()
        self.channel.close()


class Stub:
    """Callables of a channel, named as the methods of a service that do not take a stream.

    Args:
        channel: Channel to the service.
        service: Its name in `wings.v1`.
    """

    def __init__(self, channel: grpc.Channel, service: str) -> None:
        found = descriptor_pool.Default().FindServiceByName(f"wings.v1.{service}")
        for method in found.methods:
            if not method.client_streaming:
                kind = channel.unary_stream if method.server_streaming else channel.unary_unary
                setattr(self, method.name, kind(*_arguments_of(method)))

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Return the callable of a method."""


def seconds_left(deadline: Deadline, seconds_max: float) -> float:
    """Return the seconds until a deadline, at most so many."""
    remaining = deadline.remaining()
    return seconds_max if remaining is None else min(remaining, seconds_max)


def _closed() -> Unavailable:
    return Unavailable("metadata is closed")


def _arguments_of(method: MethodDescriptor) -> tuple[str, Callable[..., bytes], Callable[..., Any]]:
    """Return the name of a method, and the functions that encode requests and decode responses."""
    return (
        f"/{method.containing_service.full_name}/{method.name}",
        GetMessageClass(method.input_type).SerializeToString,
        GetMessageClass(method.output_type).FromString,
    )


def open_channel(
    access: PeerAccess, target: str, options: Sequence[tuple[str, Any]]
) -> grpc.Channel:
    """Return a channel to a service, which connects on first use."""
    if access.tls_ca is None:
        channel = grpc.insecure_channel(target, options)
    else:
        credentials = grpc.ssl_channel_credentials(access.tls_ca, access.tls_key, access.tls_cert)
        channel = grpc.secure_channel(target, credentials, options)
    if tracing.is_on():
        channel = grpc.intercept_channel(channel, _Tracing())
    if access.token is None:
        return channel
    return grpc.intercept_channel(channel, _Presenting(access.token))


@dataclass(frozen=True)
class _CallDetails(grpc.ClientCallDetails):
    """Details of a call with additional metadata."""

    method: Any
    timeout: Any
    metadata: Any
    credentials: Any
    wait_for_ready: Any
    compression: Any

    @classmethod
    def adding(cls, details: Any, metadata: Iterable[tuple[str, str]]) -> "_CallDetails":
        """Return the details of a call with metadata added."""
        return cls(
            details.method,
            details.timeout,
            (*(details.metadata or ()), *metadata),
            details.credentials,
            details.wait_for_ready,
            details.compression,
        )


class _Presenting(
    grpc.UnaryUnaryClientInterceptor,
    grpc.UnaryStreamClientInterceptor,
    grpc.StreamStreamClientInterceptor,
):
    """Interceptor that sends the token with every call."""

    def __init__(self, token: str) -> None:
        self._metadata = (("authorization", f"Bearer {token}"),)

    def intercept_unary_unary(
        self, continuation: Callable[..., Any], client_call_details: Any, request: Any
    ) -> Any:
        return continuation(self._with_token(client_call_details), request)

    def intercept_unary_stream(
        self, continuation: Callable[..., Any], client_call_details: Any, request: Any
    ) -> Any:
        return continuation(self._with_token(client_call_details), request)

    def intercept_stream_stream(
        self, continuation: Callable[..., Any], client_call_details: Any, request_iterator: Any
    ) -> Any:
        return continuation(self._with_token(client_call_details), request_iterator)

    def _with_token(self, details: Any) -> _CallDetails:
        return _CallDetails.adding(details, self._metadata)


class _Tracing(grpc.UnaryUnaryClientInterceptor):
    """Interceptor that makes a call within a trace a span, and propagates the trace."""

    def intercept_unary_unary(
        self, continuation: Callable[..., Any], client_call_details: Any, request: Any
    ) -> Any:
        if tracing.present() is None:
            return continuation(client_call_details, request)
        span = tracing.begin(client_call_details.method.removeprefix("/"))
        details = _CallDetails.adding(client_call_details, tracing.headers(span).items())
        call = continuation(details, request)

        def end(_: object) -> None:
            span.end()

        call.add_done_callback(end)
        return call
