"""The wire between nodes and their metadata service: gRPC's part, simulated.

Requests and responses cross it as bytes, each late, and now and then the connection is cut before
or after the service did what was asked, the service gets a request twice, or its answer comes when
the caller has given up. A call whose deadline has passed is not begun, as the service has it.
`OffsetLocation`, whose long polls are coroutines there, is answered by a thread here, and no topic
can be watched.
"""

from collections.abc import Callable
from random import Random
from typing import Any

import grpc
import world_threads
from world_threads import Life, Scheduler, Task

from wings_core.errors import WingsError
from wings_core.metadata.interfaces import Metadata
from wings_core.metadata.remote import channel as channel_module
from wings_core.metadata.remote.channel import ERROR_KEY, error_body, error_message, status_of
from wings_core.metadata.waiting import Wake
from wings_core.model import Position
from wings_core.partitions import canonical_partition
from wings_core.protocol import messages
from wings_core.times import Deadline
from wings_server.metadata.handlers import services
from wings_server.metadata.requests import check_request, snake_case

CALL_SECONDS = 60.0
"""Longest call without a deadline of its own."""

DELAY_SECONDS = (0.0001, 0.005)
SLOW_SECONDS = (0.05, 3.0)

SLOW_CHANCE = 0.02
CUT_CHANCE = 0.04
TWICE_CHANCE = 0.04
LATE_CHANCE = 0.003
"""Of an answer that comes when the caller has given up."""


class CallFailed(grpc.RpcError, grpc.Call):
    """The error of a call, as gRPC has it."""

    def __init__(self, code: grpc.StatusCode, details: str, body: bytes | None = None) -> None:
        super().__init__()
        self._code, self._details = code, details
        self._trailing = () if body is None else ((ERROR_KEY, body),)

    def code(self) -> grpc.StatusCode:
        """Return the status."""
        return self._code

    def details(self) -> str:
        """Return the message."""
        return self._details

    def trailing_metadata(self) -> Any:
        """Return the error's JSON."""
        return self._trailing


def _failed(code: grpc.StatusCode, details: str, body: bytes | None = None) -> CallFailed:
    return CallFailed(code, details, body)  # pyright: ignore[reportAbstractUsage]


def _cut() -> CallFailed:
    return _failed(grpc.StatusCode.UNAVAILABLE, "the connection was cut")


class Call:
    """A call under way; one task waits for it."""

    def __init__(self, scheduler: Scheduler, until_ns: int) -> None:
        self.until_ns = until_ns
        self.response: bytes | None = None
        self.error: Exception | None = None
        self._scheduler = scheduler
        self._waiter: Task | None = None

    @property
    def is_done(self) -> bool:
        """Whether it was answered, or failed."""
        return self.response is not None or self.error is not None

    def end(self, response: bytes | None = None, error: Exception | None = None) -> None:
        """End it, once."""
        if not self.is_done:
            self.response, self.error = response, error
            if self._waiter is not None:
                self._scheduler.wake(self._waiter)

    def wait(self) -> None:
        """Block until it has ended, which it has at its deadline."""
        self._waiter = self._scheduler.current
        while not self.is_done:
            if self._scheduler.now_ns >= self.until_ns:
                self.end(error=_failed(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded"))
            else:
                self._scheduler.wait(self.until_ns)


class Wire:
    """Carries calls to one service.

    Args:
        scheduler: The world's.
        random: Decides what fails.

    Attributes:
        fails: Whether it does, or only takes its time.
        faults: How many calls were cut, or found no service.
    """

    def __init__(self, scheduler: Scheduler, random: Random) -> None:
        self.fails = False
        self.faults = 0
        self.scheduler = scheduler
        self._random = random
        self._handlers: dict[str, Callable[[Any], Any]] = {}
        self._requests: dict[str, Any] = {}
        self._metadata: Metadata | None = None
        self._life = Life("no service", dead=True)
        self._calls: list[Call] = []
        channel_module.open_channel = self._channel  # pyright: ignore[reportPrivateImportUsage]

    def _channel(self, *_: object) -> "Channel":
        return Channel(self)

    def serve(self, metadata: Any, life: Life) -> None:
        """Serve metadata, as a life that may end."""
        served: dict[str, Callable[[Any], Any]] = {}
        for descriptor, handlers in services(metadata, metadata.store_id):
            for method in descriptor.methods:
                function = getattr(handlers, snake_case(method.name), None)
                if function is not None:
                    served[f"/{descriptor.full_name}/{method.name}"] = function
        served["/wings.v1.OffsetRegistryService/OffsetLocation"] = self._offset_location
        # At one time: calls come as soon as the service lives.
        self._metadata, self._life, self._handlers = metadata, life, served

    def crash(self, life: Life) -> None:
        """Cut all connections, where it was the service that crashed."""
        if life is self._life:
            self.faults += 1
            for call in self._calls:
                call.end(error=_cut())
            self._calls.clear()

    def begin(self, path: str, request: Any, seconds: float | None, wait: bool) -> Call:
        """Send a request, perhaps to a service that is not there."""
        until = Deadline.after(seconds or CALL_SECONDS)
        call = Call(self.scheduler, self.scheduler.now_ns + int((seconds or CALL_SECONDS) * 1e9))
        while self._life.dead and wait and not until.passed:
            world_threads.sleep(0.1)
        if self._life.dead:
            self.faults += 1
            call.end(error=_failed(grpc.StatusCode.UNAVAILABLE, "failed to connect"))
            return call
        self._calls.append(call)
        data = type(request).FromString(request.SerializeToString())

        def serve() -> None:
            self._pass()
            if self._is_cut():
                call.end(error=_cut())
            elif self.scheduler.now_ns < call.until_ns:
                if self._happens(TWICE_CHANCE):
                    self._answer(path, data)
                response, error = self._answer(path, data)
                self._pass()
                if self._happens(LATE_CHANCE):
                    self.faults += 1
                    world_threads.sleep((call.until_ns - self.scheduler.now_ns) / 1e9)
                call.end(response, _cut() if self._is_cut() else error)
            self._calls = [each for each in self._calls if each is not call]

        self.scheduler.start(path, serve, self._life)
        return call

    def _answer(self, path: str, request: Any) -> tuple[bytes | None, Exception | None]:
        try:
            check_request(request)
            return self._handlers[path](request).SerializeToString(), None
        except WingsError as error:
            return None, _failed(status_of(error), error_message(error), error_body(error))

    def _pass(self) -> None:
        is_slow = self._happens(SLOW_CHANCE)
        world_threads.sleep(self._random.uniform(*(SLOW_SECONDS if is_slow else DELAY_SECONDS)))

    def _is_cut(self) -> bool:
        is_cut = self._happens(CUT_CHANCE)
        self.faults += is_cut
        return is_cut

    def _happens(self, chance: float) -> bool:
        return self.fails and self._random.random() < chance

    def _offset_location(self, request: Any) -> Any:
        assert self._metadata is not None
        registry = self._metadata.registry
        partition = canonical_partition(request.partition)
        most = max(1, request.messages_max)
        seconds = 0.0
        if request.HasField("deadline"):
            sent, until = request.sent_at, request.deadline
            seconds = (until.ToMicroseconds() - sent.ToMicroseconds()) / 1e6
        deadline, wake = Deadline.after(seconds), Wake()
        with registry.watch([Position(request.topic_uuid, partition, request.offset)], wake.set):
            while True:
                wake.clear()
                located = registry.locate(request.topic_uuid, partition, request.offset, most)
                if located.locations or deadline.passed:
                    return messages.LOCATED.encode(located)
                wake.wait(deadline.remaining())


class Channel:
    """A node's channel, by what the product calls of gRPC's."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.closed = False

    def unary_unary(self, path: str, _: object, decode: Callable[[bytes], Any]) -> "Method":
        """Return the callable of a method."""
        return Method(self, path, decode)

    def unary_stream(self, path: str, _: object, decode: Callable[[bytes], Any]) -> "Method":
        """Return a callable that fails."""
        return Method(self, "none", decode)

    def close(self) -> None:
        """Refuse calls from now on."""
        self.closed = True


class Method:
    """A callable of one method."""

    def __init__(self, channel: Channel, path: str, decode: Callable[[bytes], Any]) -> None:
        self._channel = channel
        self._path = path
        self._decode = decode

    def __call__(
        self, request: Any, timeout: float | None = None, wait_for_ready: bool = False
    ) -> Any:
        call = self._begin(request, timeout, wait_for_ready)
        call.wait()
        return self._result(call)

    def future(self, request: Any, timeout: float | None = None) -> "Future":
        """Begin a call; its callbacks run on a thread of the channel."""
        return Future(self._begin(request, timeout, False), self._result, self._channel.wire)

    def _begin(self, request: Any, timeout: float | None, wait: bool) -> Call:
        if self._channel.closed:
            raise ValueError("Cannot invoke RPC on closed channel!")
        return self._channel.wire.begin(self._path, request, timeout, wait)

    def _result(self, call: Call) -> Any:
        if call.response is None:
            assert call.error is not None
            raise call.error
        return self._decode(call.response)


class Future:
    """A call that was begun."""

    def __init__(self, call: Call, result: Callable[[Call], Any], wire: Wire) -> None:
        self._call = call
        self._result = result
        self._wire = wire

    def add_done_callback(self, callback: Callable[["Future"], None]) -> None:
        """Call back when the call has ended."""

        def wait() -> None:
            self._call.wait()
            callback(self)

        self._wire.scheduler.start("wire", wait)

    def cancel(self) -> bool:
        """End the call, unless it has ended."""
        self._call.end(error=grpc.FutureCancelledError())
        return True

    def result(self) -> Any:
        """Return the response, or raise the error; it has ended."""
        return self._result(self._call)
