"""The connection to the metadata service, and calls on it."""

import threading
from collections.abc import Callable
from typing import TypeVar, cast

import grpc

from wings_core.errors import Internal, NotFound, Unavailable, WingsError
from wings_core.metadata.remote.deduplicate import Outcome
from wings_core.metadata.remote.errors import error_of
from wings_core.security.peers import PeerAccess
from wings_core.times import Deadline

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
        access: What is presented to the service.
    """

    def __init__(self, target: str, access: PeerAccess | None = None) -> None:
        self.target = target
        self._closing = threading.Event()
        self.channel = (access or PeerAccess()).channel(
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
            gone: Of a deletion, the response where a repetition finds nothing: the call whose
                response was lost deleted it.

        Raises:
            Unavailable: There is no connection; or (the fact `in_doubt`) it did not come back in
                time, and it is not known whether the call was carried out.
            WingsError: What the service answered.
        """
        # From the first doubt on: the call may have taken long, or this node been stopped in it.
        until: Deadline | None = None
        pause, pause_max = DOUBT_PAUSE_SECONDS
        while True:
            try:
                return self.call(method, request)
            except NotFound:
                if until is None or gone is None:
                    raise
                return gone
            except Unavailable as error:
                if until is None:
                    if not error.facts.get("in_doubt"):
                        raise
                    until = Deadline.after(DOUBT_SECONDS_MAX)
                if until.passed or self.closed:
                    raise Unavailable(
                        f"it is not known whether this was done: {error.message}", in_doubt=True
                    ) from None
            self._closing.wait(pause)
            pause = min(2 * pause, pause_max)

    def begin(
        self,
        method: "grpc.UnaryUnaryMultiCallable[Request, Response]",
        request: Request,
        seconds: float,
        convert: Callable[[Response], Value | None],
        done: Callable[[Outcome[Value]], None],
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
                done(Outcome(convert(call.result())))
            except grpc.RpcError as error:
                done(Outcome(error=error_of(error, self.target, changes=False)))
            except grpc.FutureCancelledError:
                done(Outcome(error=_closed()))
            except WingsError as error:
                done(Outcome(error=error))
            except Exception as error:  # noqa: BLE001 - all who wait for the call would wait on.
                answered = f"an answer of {self.target} is not understood: {error!r:.200}"
                done(Outcome(error=Internal(answered)))

        # Runs on the one thread of the channel, or here where the call has ended already.
        future.add_done_callback(end)
        return future.cancel  # pyright: ignore[reportReturnType] - it tells whether it could.

    def close(self) -> None:
        """Cancel the calls under way, and ask none again; later ones raise `Unavailable`."""
        self._closing.set()
        self.channel.close()


def seconds_left(deadline: Deadline, seconds_max: float) -> float:
    """Return the seconds until a deadline, at most so many."""
    remaining = deadline.remaining()
    return seconds_max if remaining is None else min(remaining, seconds_max)


def _closed() -> Unavailable:
    return Unavailable("metadata is closed")
