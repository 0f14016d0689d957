"""Watches at the metadata service: of positions by long polls, of topics by streams.

wait / watch ─▶ Deduplicate by (topic, partition, offset) ─▶ OffsetLocation, with a deadline

All readers of a topic on a node share one stream, which has a thread of its own while it is
watched. It begins with an empty message, from which on no commit is missed; watchers look at
everything then, also after a lost connection.
"""

import heapq
import itertools
import logging
import random
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import grpc

from wings_core.errors import ResourceExhausted, TopicNotFound
from wings_core.metadata.remote.channel import Stub
from wings_core.metadata.remote.deduplicate import CallOutcome, Deduplicate, Waiter
from wings_core.metadata.waiting import WATCHES_MAX
from wings_core.model import Located, Position
from wings_core.partitions import Partition
from wings_core.protocol.v1 import offset_registry_pb2 as pb
from wings_core.times import Deadline

_logger = logging.getLogger(__name__)


class Retries:
    """Calls functions later; its thread begins with the first and ends with `close`.

    What is scheduled is bounded by those who schedule: each watch has at most one.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._thread: threading.Thread | None = None
        self._closed = False

    def after(self, seconds: float, function: Callable[[], None]) -> None:
        """Call a function after so many seconds, unless closed before; it must not block."""
        with self._changed:
            if self._closed:
                return
            heapq.heappush(self._queue, (time.monotonic() + seconds, next(self._numbers), function))
            if self._thread is None:
                thread = threading.Thread(
                    target=self._run, name="wings-metadata-retries", daemon=True
                )
                thread.start()  # Where it fails, the next call tries again.
                self._thread = thread
            self._changed.notify()

    def close(self) -> None:
        """Drop what is scheduled, and end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._closed and not self._due():
                    pause = self._queue[0][0] - time.monotonic() if self._queue else None
                    self._changed.wait(pause)
                if self._closed:
                    return
                _, _, function = heapq.heappop(self._queue)
            try:
                function()
            except Exception:
                _logger.exception("a retry failed")

    def _due(self) -> bool:
        return bool(self._queue) and self._queue[0][0] <= time.monotonic()


RETRY_SECONDS = (0.05, 1.0)
"""After a call failed, the next is made after a pause between these, which doubles each time."""


class Watches:
    """The waits of this node; safe from many threads.

    Args:
        locations: Long polls, of which each call is bounded.
        retries: Calls back after a pause.
    """

    def __init__(self, locations: Deduplicate[Position, Located], retries: Retries) -> None:
        self._locations = locations
        self._retries = retries
        self._lock = threading.Lock()
        self._watched = 0

    @contextmanager
    def watch(
        self,
        positions: Sequence[Position],
        callback: Callable[[], None],
    ) -> Generator[None]:
        """Call back during the block when a position has a message, or its topic is gone.

        Args:
            positions: All at once.
            callback: Callback; see `OffsetRegistry.watch`.

        Raises:
            ResourceExhausted: Too many are watched already.
        """
        offsets: dict[tuple[str, Partition], int] = {}
        for position in positions:
            key = (position.topic_uuid, position.partition)
            offsets[key] = min(position.offset, offsets.get(key, position.offset))
        self._count(len(offsets))
        watching: list[_Watching] = []
        try:
            for (topic_uuid, partition), offset in offsets.items():
                one = _Watching(
                    self._locations,
                    self._retries,
                    Position(topic_uuid, partition, offset),
                    callback,
                )
                watching.append(one)
                one.begin()
            yield
        finally:
            for one in watching:
                one.end()
            self._count(-len(offsets))

    def _count(self, watched: int) -> None:
        with self._lock:
            if watched > 0 and self._watched + watched > WATCHES_MAX:
                raise ResourceExhausted(f"{WATCHES_MAX} wait for messages already")
            self._watched += watched


class _Watching:
    """One position that is watched, from call to call."""

    def __init__(
        self,
        locations: Deduplicate[Position, Located],
        retries: Retries,
        position: Position,
        callback: Callable[[], None],
    ) -> None:
        self._locations = locations
        self._retries = retries
        self._position = position
        self._callback = callback
        self._lock = threading.Lock()
        self._waiter: Waiter[Position, Located] | None = None
        self._calls = 0
        self._ended = False
        self._pause = RETRY_SECONDS[0]

    def begin(self) -> None:
        """Wait for the next message at the position."""
        if self._ended:
            return
        with self._lock:
            self._calls += 1
            call = self._calls
        waiter = self._locations.join(self._position, Deadline.never(), self._hear)
        with self._lock:
            if call == self._calls:  # Else it was answered, and the next has begun meanwhile.
                self._waiter = waiter
            ended = self._ended
        if ended:
            self._locations.leave(waiter)

    def end(self) -> None:
        """Stop; one callback may still be under way."""
        with self._lock:
            self._ended = True
            waiter = self._waiter
        if waiter is not None:
            self._locations.leave(waiter)

    def _hear(self, outcome: CallOutcome[Located]) -> None:
        if self._ended:
            return
        if outcome.value is not None:
            self._position = replace(self._position, offset=outcome.value.log_end_offset)
            self._pause = RETRY_SECONDS[0]
            # What is committed until the next call is made is seen by it: it looks first.
            self._retries.after(0, self.begin)
            self._call()
        elif isinstance(outcome.error, TopicNotFound):
            self._call()
        else:
            # The service is not there, or has no room. The pauses of many differ, or all of them
            # would come back at one moment.
            pause, self._pause = self._pause, min(2 * self._pause, RETRY_SECONDS[1])
            self._retries.after(pause * random.uniform(0.5, 1.0), self.begin)

    def _call(self) -> None:
        try:
            self._callback()
        except Exception:
            # The other waiters of the same call must be called back too.
            _logger.exception("a waiter's callback failed")


TOPICS_MAX = 1_024
"""How many topics a node watches at once, at a thread each."""

Callback = Callable[[Mapping[Partition, int] | None], None]


class TopicWatches:
    """The watched topics of this node; safe from many threads.

    Args:
        stub: The service.
    """

    def __init__(self, stub: Stub) -> None:
        self._stub = stub
        self._lock = threading.Lock()
        self._streams: dict[str, _Stream] = {}

    @contextmanager
    def watch(self, topic_uuid: str, callback: Callback) -> Generator[None]:
        """Call back during the block; see `OffsetRegistry.watch_topic`.

        Raises:
            ResourceExhausted: Too many topics are watched already, or threads run.
        """
        key = object()
        with self._lock:
            stream = self._streams.get(topic_uuid)
            if stream is None:
                if len(self._streams) >= TOPICS_MAX:
                    raise ResourceExhausted(f"{TOPICS_MAX} topics are watched already")
                stream = _Stream(self._stub, topic_uuid)
                stream.callbacks[key] = callback
                stream.start()
                self._streams[topic_uuid] = stream
            else:
                # Where it is open, what is committed from now on will be heard.
                stream.callbacks[key] = callback
        try:
            yield
        finally:
            with self._lock:
                del stream.callbacks[key]
                ended = not stream.callbacks
                if ended:
                    del self._streams[topic_uuid]
            if ended:
                stream.end()


class _Stream:
    """The stream of one topic; `callbacks` change under the lock of `TopicWatches`."""

    def __init__(self, stub: Stub, topic_uuid: str) -> None:
        self.callbacks: dict[object, Callback] = {}
        self._stub = stub
        self._request = pb.WatchTopicRequest(topic_uuid=topic_uuid)
        self._ended = threading.Event()
        self._call: grpc.Call | None = None

    def start(self) -> None:
        """Begin; takes no lock.

        Raises:
            ResourceExhausted: No thread can be started.
        """
        thread = threading.Thread(target=self._run, name="wings-topic-watch", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            raise ResourceExhausted(f"no thread can be started: {error}") from None

    def end(self) -> None:
        """End the stream; one callback may still be under way."""
        self._ended.set()
        call = self._call
        if call is not None:
            call.cancel()

    def _run(self) -> None:
        pause, pause_max = RETRY_SECONDS
        while not self._ended.is_set():
            try:
                changes = self._stub.WatchTopic(self._request)
                self._call = changes
                if self._ended.is_set():
                    changes.cancel()
                for change in changes:
                    pause = RETRY_SECONDS[0]
                    ends = {Partition(end.partition): end.next_offset for end in change.ends}
                    self._tell(ends or None)
            except grpc.RpcError:
                pass  # The service is not there, has no room, or stops.
            except ValueError:
                return  # So gRPC says that the channel is closed.
            # The pauses of many differ, or all of them would come back at one moment.
            self._ended.wait(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, pause_max)

    def _tell(self, ends: Mapping[Partition, int] | None) -> None:
        for callback in list(self.callbacks.values()):
            try:
                callback(ends)
            except Exception:
                _logger.exception("a waiter's callback failed")
