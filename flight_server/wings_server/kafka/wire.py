"""Frames of a connection, and the answers to them, in the order of the requests.

    bytes ─▶ frames, each with room in the budget of memory ─▶ requests, one by one ─▶ answers

As at Kafka, a connection's requests run one after another, but for those to produce: these are
submitted as they come and answered when they are durable. An idle connection holds no buffer.
"""

import asyncio
import struct
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast

import numpy as np
import structlog

from wings_core.errors import ResourceExhausted, WingsError
from wings_server.http.wire import PIECE_BYTES
from wings_server.kafka.messages import HEAD, BadRequest, Head
from wings_server.resources import Budget

SCRATCH_BYTES = 64 * 1024
"""Size of the buffer that all connections of an event loop read small frames into."""

SMALL_BYTES_MAX = 4 * 1024
"""Largest frame that needs no room: heartbeats and the like do not wait behind what is produced."""

REQUESTS_MAX = 128
"""Most requests of a connection that are read and not answered."""

ANSWERED_AT_ONCE = 4
"""Most large responses that are made at a time, each in room that was there when it began."""

ROOM_LOOK_SECONDS = 0.05
"""Interval at which a connection looks for room: for a frame, a response, or at its quotas."""

FRAME_SECONDS_MAX = 60.0
"""Longest time that a frame takes to arrive once it has room, that it or a response waits for room,
and that a client takes to read `PIECE_BYTES` of what it is sent."""

Taken = TypeVar("Taken")

_LENGTH = struct.Struct(">i")
_API_KEY = struct.Struct(">h")
_logger = structlog.get_logger("wings.kafka")


class Requests(Protocol):
    """Answers the requests of one connection."""

    def frame_bytes_max(self, api_key: int | None) -> int:
        """Return the size of the largest frame at present, of one api; None: of any."""
        ...

    def head_of(self, frame: memoryview) -> Head:
        """Return the beginning of a request; see `messages.head_of`."""
        ...

    def produces(self, head: Head) -> bool:
        """Return whether a request is submitted by `submit`."""
        ...

    async def submit(
        self, head: Head, frame: memoryview, answer: Callable[[bytes | None], None]
    ) -> None:
        """Submit a request; calls `answer` on the event loop, with None if there is no response."""
        ...

    def look(self) -> None:
        """Close the connection if its client may make no requests any more."""
        ...

    def failed(self, error: Exception) -> None:
        """Count and log a fault of the server, for which the connection is closed."""
        ...

    def gone(self) -> None:
        """End what waits, as the client has gone."""
        ...

    async def answer(self, head: Head, frame: memoryview) -> bytes:
        """Return the response to a request.

        Raises:
            BadRequest: It cannot be read.
            WingsError: It cannot be answered; the connection is closed.
        """
        ...


@dataclass(slots=True, eq=False)
class _Pending:
    """A request that is not answered yet, or behind one that is not."""

    held: int
    """Bytes that its frame holds of the budget."""
    done: bool = False
    response: bytes | None = None


async def with_room(take: Callable[[], Taken], seconds_max: float) -> Taken:
    """Return the result of a call, which is repeated as long as it finds no room.

    Raises:
        ResourceExhausted: There was none for so long.
    """
    end = time.monotonic() + seconds_max
    while True:
        try:
            return take()
        except ResourceExhausted:
            if time.monotonic() >= end:
                raise
        await asyncio.sleep(ROOM_LOOK_SECONDS)


class Wire:
    """Shared state of the connections of an event loop.

    Args:
        frames: Room for frames, until they are answered.
        answers: Bytes of responses that clients have not read yet.
        frame_bytes_max: Largest frame.
        connections_max: Most connections; further ones are closed at once.
    """

    def __init__(
        self, frames: Budget, answers: Budget, frame_bytes_max: int, connections_max: int
    ) -> None:
        self.frames = frames
        self.answers = answers
        self.frame_bytes_max = frame_bytes_max
        self.connections_max = connections_max
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        self.open: set[Connection] = set()
        self._answering = asyncio.Semaphore(ANSWERED_AT_ONCE)

    @asynccontextmanager
    async def answering(self) -> AsyncGenerator[None]:
        """Make a response within the block, which waits its turn, and for room.

        Raises:
            ResourceExhausted: There is no room for `FRAME_SECONDS_MAX`.
        """
        async with self._answering:
            await with_room(self.answers.check_room, FRAME_SECONDS_MAX)
            yield

    @property
    def is_idle(self) -> bool:
        """Whether every request that was read is answered."""
        return not any(connection.is_busy for connection in self.open)


class Connection(asyncio.BufferedProtocol):
    """One connection; all methods run on the event loop.

    Args:
        wire: State shared with the other connections.
        opened: Returns what answers its requests; called once.
    """

    def __init__(self, wire: Wire, opened: Callable[["Connection"], Requests]) -> None:
        self._wire = wire
        self._opened = opened
        self._requests: Requests | None = None
        self._has_asked = False
        """Whether a request has come: health checks and port scans send none."""
        self._transport: asyncio.Transport
        self._rest = b""
        """Bytes after the last complete frame, less than the next one."""
        self._partial: memoryview | None = None
        """A frame that has room and is being read."""
        self._filled = 0
        self._paused = False
        """Whether no more is read for now."""
        self._frames: deque[tuple[memoryview, _Pending]] = deque()
        self._pending: deque[_Pending] = deque()
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        """Closes the connection if a frame does not arrive, or finds no room, in time."""
        self._room_timer: asyncio.TimerHandle | None = None
        """Looks for room for the next frame."""
        self._unread_timer: asyncio.TimerHandle | None = None
        self._unread_bytes = 0
        """Bytes of responses that the client has not read."""
        self._changed = asyncio.Event()
        """Set when a request was answered, or responses were read."""

    @property
    def is_busy(self) -> bool:
        """Whether requests wait to be answered."""
        return bool(self._pending)

    @property
    def host(self) -> str:
        """Address of the client."""
        peer = self._transport.get_extra_info("peername")
        return str(peer[0]) if peer else ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(0)  # To notice when all is sent.
        self._wire.open.add(self)
        if len(self._wire.open) > self._wire.connections_max:
            self.close("too many connections")
            return
        try:
            self._requests = self._opened(self)
        except WingsError as error:
            self.close(error.message)

    def connection_lost(self, exc: Exception | None) -> None:
        """End what is under way; what was submitted is committed all the same."""
        del exc
        self._wire.open.discard(self)
        for timer in (self._timer, self._room_timer, self._unread_timer):
            if timer is not None:
                timer.cancel()
        if self._partial is not None:
            self._wire.frames.release(_held(len(self._partial)))
            self._partial = None
        while self._frames:
            self._end(self._frames.popleft()[1], None)
        self._read_all()
        self._changed.set()
        if self._requests is not None:
            self._requests.gone()

    def look(self) -> None:
        """Close the connection if its client may make no requests any more."""
        if self._requests is not None:
            self._requests.look()

    def leave(self) -> None:
        """Close the connection at once, as the server stops."""
        self._transport.abort()

    def close(self, reason: str) -> None:
        """Close the connection at once, because of its client."""
        is_scan = self._requests is not None and not self._has_asked
        log = _logger.debug if is_scan else _logger.info
        log("closed a connection", client=self.host, reason=reason)
        self._transport.abort()

    def get_buffer(self, sizehint: int) -> Any:
        """Return where to read the next bytes."""
        del sizehint
        return self._wire.scratch if self._partial is None else self._partial[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """Take in bytes that were read."""
        if self._partial is None:
            self._take_in(self._wire.scratch[:nbytes])
            return
        self._filled += nbytes
        if self._filled == len(self._partial):
            frame, self._partial = self._partial, None
            self._stop_timer()
            self._add(frame)

    def _take_in(self, data: memoryview) -> None:
        """Cut frames out of bytes; a frame that is not complete is read into memory of its own."""
        read = self._rest + data
        position = 0
        assert self._requests is not None
        while len(read) - position >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(read, position)
            key = position + _LENGTH.size
            has_key = len(read) - key >= _API_KEY.size
            (api_key,) = _API_KEY.unpack_from(read, key) if has_key else (None,)
            if not HEAD.size <= size <= self._requests.frame_bytes_max(api_key):
                self.close(f"a frame of {size} bytes")
                return
            if not has_key:
                break
            if len(self._pending) >= REQUESTS_MAX or not self._take_room(size):
                self._pause(read[position:])
                return
            position += _LENGTH.size
            frame = memoryview(read)[position : position + size]
            if len(frame) < size:
                self._begin_partial(frame, size)
                return
            position += size
            self._add(frame)
        self._rest = read[position:]

    def _take_room(self, size: int) -> bool:
        """Take room for a frame; returns whether there is some."""
        try:
            if held := _held(size):
                self._wire.frames.take(held)
        except WingsError:
            return False
        self._stop_timer()
        return True

    def _pause(self, rest: bytes) -> None:
        """Read no more until requests are answered, and there is room for the next frame."""
        self._rest = rest
        self._transport.pause_reading()
        self._paused = True
        if len(self._pending) < REQUESTS_MAX:
            self._start_timer("the next request found no room")
            loop = asyncio.get_running_loop()
            self._room_timer = loop.call_later(ROOM_LOOK_SECONDS, self._resume)

    def _resume(self) -> None:
        if not self._paused or self._transport.is_closing():
            return
        self._paused = False
        if self._room_timer is not None:
            self._room_timer.cancel()
            self._room_timer = None
        rest, self._rest = self._rest, b""
        self._transport.resume_reading()
        self._take_in(memoryview(rest))

    def _begin_partial(self, begun: memoryview, size: int) -> None:
        # Memory that is used only as far as it is written.
        self._partial = memoryview(cast("Any", np.empty(size, np.uint8)))
        self._partial[: len(begun)] = begun
        self._filled, self._rest = len(begun), b""
        self._start_timer("a request did not arrive in time")

    def _start_timer(self, reason: str) -> None:
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(FRAME_SECONDS_MAX, self.close, reason)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _add(self, frame: memoryview) -> None:
        """Queue a complete frame."""
        pending = _Pending(_held(len(frame)))
        self._pending.append(pending)
        self._frames.append((frame.toreadonly(), pending))
        self._has_asked = True
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        """Run the requests that were read, one after another."""
        try:
            while self._frames and await self._until(lambda: not self._unread_bytes):
                frame, pending = self._frames[0]
                requests = self._requests
                assert requests is not None
                head = requests.head_of(frame)
                is_submitted = requests.produces(head)
                # Others after what was produced before them, as their client may rely on.
                if is_submitted or await self._until(lambda: self._pending[0] is pending):  # noqa: B023 - called here
                    self._frames.popleft()
                    await self._run_one(requests, head, frame, pending, is_submitted=is_submitted)
        except (BadRequest, WingsError) as error:
            if not self._transport.is_closing():
                self.close(str(error))
        except Exception as error:  # noqa: BLE001 - It is logged.
            assert self._requests is not None
            self._requests.failed(error)
            self._transport.abort()
        finally:
            self._task = None

    async def _run_one(
        self,
        requests: Requests,
        head: Head,
        frame: memoryview,
        pending: _Pending,
        *,
        is_submitted: bool,
    ) -> None:
        response: bytes | None = None
        is_ended = True
        try:
            if is_submitted:
                await requests.submit(head, frame, lambda answer: self._end(pending, answer))
                is_ended = False
            else:
                response = await requests.answer(head, frame)
        finally:
            if is_ended:
                self._end(pending, response)

    async def _until(self, holds: Callable[[], bool]) -> bool:
        """Wait until something holds; returns False if the connection is lost first."""
        while not self._transport.is_closing():
            if holds():
                return True
            self._changed.clear()
            await self._changed.wait()
        return False

    def _end(self, pending: _Pending, response: bytes | None) -> None:
        """End a request, and send the responses whose turn it is."""
        if pending.held:
            self._wire.frames.release(pending.held)
        pending.done, pending.response = True, response
        while self._pending and self._pending[0].done:
            ended = self._pending.popleft()
            if ended.response is not None and not self._transport.is_closing():
                self._send(ended.response)
        self._changed.set()
        self._resume()

    def _send(self, response: bytes) -> None:
        self._transport.write(response)
        if self._transport.get_write_buffer_size():
            self._unread_bytes += len(response)
            self._wire.answers.hold(len(response))

    def pause_writing(self) -> None:
        """Note that the client does not read as fast as it is sent to."""
        self._expect_less(self._transport.get_write_buffer_size())

    def _expect_less(self, unread: int) -> None:
        """Close the connection unless the client goes on reading."""
        loop = asyncio.get_running_loop()
        self._unread_timer = loop.call_later(FRAME_SECONDS_MAX, self._look_at_unread, unread)

    def _look_at_unread(self, before: int) -> None:
        unread = self._transport.get_write_buffer_size()
        if before - unread < PIECE_BYTES:
            self.close("the client reads too little")
        else:
            self._expect_less(unread)

    def resume_writing(self) -> None:
        """Go on, as the client has read everything."""
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None
        self._read_all()
        self._changed.set()

    def _read_all(self) -> None:
        self._wire.answers.release(self._unread_bytes)
        self._unread_bytes = 0


def _held(size: int) -> int:
    """Return how much of the budget a frame takes."""
    return size if size > SMALL_BYTES_MAX else 0
