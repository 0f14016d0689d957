"""Waiting without a thread, and reads of many partitions that do, within one budget of bytes.

    open ─▶ read the topics in turn, a share of each partition ─▶ too few: wait ─▶ read ─▶ answer

All but the wait runs on a few threads; a waiting read holds none of them.

Coroutines resume on commits, disconnects and the server's stop:

commit ─▶ (its thread) WaitingCall.notify ─▶ _Notifier ─▶ (event loop) the waiting coroutine resumes
"""

import asyncio
import contextlib
import random
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

import pyarrow as pa
from starlette.types import Receive

from wings_core.errors import SchemaMismatch, WingsError
from wings_core.fetch.chunks import FetchedChunk
from wings_core.fetch.cursors import PartitionCursor
from wings_core.fetch.fetcher import Fetcher, Read
from wings_core.fetch.selection import Selection
from wings_core.fetch.state import FetchState, Waits
from wings_core.log import Log
from wings_core.metadata.deadlines import calls_until
from wings_core.model import Topic
from wings_core.partitions import Partition
from wings_core.security.principal import ANYONE, Principal
from wings_core.times import Deadline
from wings_server.flight.boundary import ClientGone

CHECK_SECONDS = 0.5
"""Interval of checking the tokens of waiting calls."""


@dataclass(slots=True, eq=False, kw_only=True)
class ReadEntry:
    """One partition of a request, and what was read of it so far."""

    offset: int
    """The offset of the request."""
    cursor: PartitionCursor | None = None
    """None if it cannot be read at all."""
    read: Read | None = None
    """The read that its cursor is of."""
    batches: list[Any] = field(default_factory=list[Any])
    """Chunks that are kept for the answer."""
    bytes: int = 0
    """The size of the batches."""
    is_paused: bool = False
    """Whether the partition has its share of the answer's bytes, and perhaps more rows."""
    is_ended: bool = False
    """Whether nothing more can be read of it."""
    share: int = 0
    """The share that it was paused at."""
    error: Any = None
    """A `WingsError`, or a refusal of the protocol's own; None without one."""

    @property
    def has_rows(self) -> bool:
        """Whether there may be more of it now."""
        cursor = self.cursor
        if cursor is None or self.is_ended:
            return False
        return self.is_paused or cursor.offset < cursor.stop

    def bytes_max(self, share: int) -> int:
        """Return the most bytes of it, given its share of the answer."""
        return share

    def pause(self, offset: int, share: int) -> None:
        """Read no more of it at this share, and go on at an offset."""
        assert self.cursor is not None
        self.is_paused, self.share = True, share
        self.cursor.offset = self.cursor.stop = offset

    def resume(self, share: int) -> None:
        """Read on if it was paused and the share has grown."""
        if self.is_paused and max(self.bytes, self.bytes_max(self.share)) < self.bytes_max(share):
            assert self.cursor is not None
            assert self.read is not None
            self.is_paused = False
            self.read.rotation.extend(self.cursor, self.cursor.log_end)


EntryType = TypeVar("EntryType", bound=ReadEntry)


AnswerType = TypeVar("AnswerType")


@dataclass(slots=True, eq=False)
class TopicEntries(Generic[EntryType]):
    """The entries of one topic, which are read together."""

    read: Read
    of: dict[Partition, EntryType]


class SharedRead(ABC, Generic[EntryType, AnswerType]):
    """One read. Its methods block for reads alone and may run on any thread, one at a time.

    Args:
        log: The log.
        fetcher: Reads the log in chunks that are small against an answer.
        state: Its deadline, and budget of rows.
        bytes_max: Most bytes of all entries.
    """

    is_shuffled: ClassVar[bool] = False
    """Whether entries are read in random order: where a budget is small, others begin."""

    def __init__(self, log: Log, fetcher: Fetcher, state: FetchState, bytes_max: int) -> None:
        self.deadline = state.deadline
        self._fetcher = fetcher
        self._versions = log.versions
        self._state = state
        self._bytes = 0
        self._bytes_max = bytes_max
        self._entries: list[EntryType] = []
        """Entries in the order of the request."""
        self._reads: list[TopicEntries[EntryType]] = []

    def advance(self) -> AnswerType | None:
        """Read what is committed; return the answer, or None where the caller is to wait."""
        with calls_until(self.deadline):
            is_complete = self._read()
        return self._answer() if is_complete or self._is_enough else None

    @property
    def is_empty(self) -> bool:
        """Whether nothing was read so far."""
        return self._bytes == 0

    def ended(self) -> AnswerType:
        """Return the answer with what was read so far."""
        return self._answer()

    def watch(self, callback: Callable[[], None]) -> AbstractContextManager[None]:
        """Call back on commits that are worth another `advance`; see `Fetcher.watch`."""
        return self._fetcher.watch([each.read for each in self._reads], callback)

    @property
    @abstractmethod
    def _is_enough(self) -> bool:
        """Whether what is read suffices, though it is less than may be read."""

    @abstractmethod
    def _answer(self) -> AnswerType:
        """Return the answer."""

    @abstractmethod
    def _keep(self, entry: EntryType, rows: pa.RecordBatch, offset: int, share: int) -> int:
        """Keep rows for the answer, and count their bytes; returns how many rows."""

    def _selection(self, topic: Topic) -> Selection | None:
        """Return the columns to read; None for those of the topic."""
        del topic
        return None

    def _open(self, topic: Topic, entries: Sequence[EntryType]) -> None:
        """Read entries of a topic, each with a cursor of its own partition."""
        cursors = [each.cursor for each in entries if each.cursor is not None]
        if not cursors:
            return
        read = Read.of(topic, cursors, self._selection(topic))
        for each in entries:
            each.read = read
        read.failures = {}
        read.counted = len(cursors)
        if self.is_shuffled:
            read.rotation.skip(random.randrange(len(cursors)))
        of_partition = {c.partition: e for c, e in zip(cursors, entries, strict=True)}
        self._reads.append(TopicEntries(read, of_partition))

    def _read(self) -> bool:
        """Read what is committed, within the budget; return whether the read is complete.

        A slice of each topic at a time, and none of its partitions exceeds its share of the bytes:
        no partition starves another. A partition that fails ends alone, with the rows before its
        error.
        """
        for each in self._reads:
            self._fetcher.hear(each.read)
        while not self._is_full:
            live = [entry for entry in self._entries if entry.has_rows]
            share = self._bytes_max // max(1, len(live))
            for entry in live:
                entry.resume(share)
            ready = [each for each in self._reads if each.read.rotation.ready]
            if not ready:
                # What is paused has its share: more of it would not fit.
                break
            for each in random.sample(ready, len(ready)) if self.is_shuffled else ready:
                if self._is_full:
                    break
                self._turn(each, share)
        return (
            self._is_full
            or any(entry.is_paused for entry in self._entries)
            or self.deadline.passed
            or not self._reads
        )

    @property
    def _is_full(self) -> bool:
        return self._state.full or self._bytes >= self._bytes_max

    def _turn(self, some: TopicEntries[EntryType], share: int) -> None:
        """Read a slice of the entries of a topic, until one of them has its share of the bytes."""
        read = some.read
        assert read.failures is not None
        try:
            with closing(self._fetcher.turn(read, self._state)) as chunks:
                for chunk in chunks:
                    if self._keep_chunk(some, chunk, share) or self._is_full:
                        break
        except WingsError as error:
            for partition in some.of:
                read.failures.setdefault(partition, error)
        failed = [
            (some.of.pop(partition), error)
            for partition, error in read.failures.items()
            if partition in some.of
        ]
        read.failures.clear()
        self._fail(read.topic, failed)
        if not some.of:
            self._reads.remove(some)

    def _keep_chunk(self, some: TopicEntries[EntryType], chunk: FetchedChunk, share: int) -> bool:
        """Keep a chunk for the answer; return whether an entry has its share of the bytes."""
        at, is_paused = 0, False
        for partition, start_offset, _, count in chunk.ranges:
            entry = some.of[partition]
            kept = self._keep(entry, chunk.batch.slice(at, count), start_offset, share)
            at += count
            if kept < count or (entry.bytes >= entry.bytes_max(share) and entry.has_rows):
                entry.pause(start_offset + kept, share)
            is_paused |= entry.is_paused
        return is_paused

    def _fail(self, topic: Topic, failed: Sequence[tuple[EntryType, WingsError]]) -> None:
        """End entries, or read on with what the topic's schema has become, looked up once."""
        newest = topic
        if any(isinstance(error, SchemaMismatch) and not entry.batches for entry, error in failed):
            with suppress(WingsError):
                newest = self._versions.look_again(topic)
        is_newer = newest.schema_version != topic.schema_version
        again: list[EntryType] = []
        for entry, error in failed:
            entry.is_paused, entry.is_ended = False, True
            if entry.batches:
                continue  # What was read before an error is delivered first.
            if isinstance(error, SchemaMismatch) and entry.cursor is not None and is_newer:
                entry.is_ended = False
                entry.cursor = PartitionCursor(entry.cursor.partition, entry.offset)
                again.append(entry)
            else:
                entry.error = error
        self._open(newest, again)


ReadType = TypeVar("ReadType", bound=SharedRead[Any, Any])


class WaitingCall:
    """Ends the waits of one call. `notify` is thread-safe, the rest is for the event loop."""

    __slots__ = ("_error", "_future", "_notified", "_notifier")

    def __init__(self, notifier: "_Notifier") -> None:
        self._notifier = notifier
        self._notified = False
        self._error: WingsError | None = None
        self._future: asyncio.Future[None] | None = None

    def notify(self) -> None:
        """Schedule `set` on the event loop; never blocks, never raises."""
        self._notifier.notify(self)

    def set(self, error: WingsError | None = None) -> None:
        """End the current or the next wait; with an error, all later ones too."""
        self._notified = True
        self._error = self._error or error
        self._end()

    async def wait(self, deadline: Deadline) -> bool:
        """Wait until notified, also if since the last wait, or until the deadline.

        Returns:
            True if it was notified.

        Raises:
            WingsError: The error that `set` was called with.
        """
        remaining = deadline.remaining()
        if not self._notified and remaining != 0:
            loop = asyncio.get_running_loop()
            self._future = loop.create_future()
            timer = None if remaining is None else loop.call_later(remaining, self._end)
            try:
                await self._future
            finally:
                self._future = None
                if timer is not None:
                    timer.cancel()
        # Cleared before the caller reads, so that a later commit is not missed.
        notified, self._notified = self._notified, False
        if self._error is not None:
            raise self._error
        return notified

    def _end(self) -> None:
        """End the current wait."""
        if self._future is not None and not self._future.done():
            self._future.set_result(None)


def begun(
    opened: Callable[[], ReadType], wake: WaitingCall, watch: ExitStack
) -> tuple[ReadType, Any]:
    """Open a read; return it and its answer, None where the caller is to wait by `answer_of`.

    Args:
        opened: Opens the read.
        wake: The call, notified of commits from then on where nothing was found.
        watch: Closed by the caller, to end that.
    """
    read = opened()
    answer = read.advance()
    if answer is None or read.is_empty:
        with calls_until(read.deadline):
            watch.enter_context(read.watch(wake.notify))
    return read, answer


async def answer_of(
    read: SharedRead[Any, AnswerType],
    wake: WaitingCall,
    run: Callable[[Callable[[], Any]], Awaitable[Any]],
) -> AnswerType:
    """Wait for the answer of a read, until its deadline; holds no thread meanwhile.

    Args:
        read: The read, which `begun` returned without an answer.
        wake: The call, which waits.
        run: Runs work on a thread that may read the log.

    Raises:
        WingsError: The error that `wake` was ended with.
    """
    while True:
        notified = await wake.wait(read.deadline)
        if not notified and read.is_empty:
            return read.ended()
        answer = await run(read.advance)
        if answer is not None:
            return answer


class Waiting:
    """The waiting calls of one event loop.

    Args:
        waits: Counts and bounds waiting calls, together with those of Flight.
    """

    def __init__(self, waits: Waits) -> None:
        self._waits = waits
        self._notifier: _Notifier | None = None
        self._wakes: dict[WaitingCall, Principal] = {}
        self._checking: asyncio.TimerHandle | None = None
        """Timer of the next check of principals, while any call waits."""
        self._stopped: WingsError | None = None

    def call(self) -> WaitingCall:
        """Return a call that may come to wait, in a block of `one`."""
        if self._notifier is None:
            self._notifier = _Notifier(asyncio.get_running_loop())
        return WaitingCall(self._notifier)

    @contextmanager
    def one(
        self,
        receive: Receive | None,
        principal: Principal = ANYONE,
        wake: WaitingCall | None = None,
    ) -> Generator[WaitingCall]:
        """Register one call for the block; ended with `ClientGone` if its client disconnects.

        Args:
            receive: The call's ASGI channel, whose body was received; None if the block's coroutine
                is cancelled when its client disconnects.
            principal: The caller; the call ends soon after its `check` raises, with that error.
            wake: The call; None: a new one.

        Raises:
            ResourceExhausted: Too many calls are waiting.
            WingsError: The error that `stop` was called with.
        """
        if self._stopped is not None:
            raise self._stopped
        wake = wake or self.call()
        with self._waits.one():
            self._wakes[wake] = principal
            if self._checking is None:
                self._check_principals()
            watcher = None
            if receive is not None:
                watcher = asyncio.ensure_future(_watch_client(receive, wake))
            try:
                yield wake
            finally:
                if watcher is not None:
                    watcher.cancel()
                del self._wakes[wake]

    def stop(self, error: WingsError) -> None:
        """End all current and later waits with an error. Thread-safe."""
        self._stopped = error
        if self._notifier is not None:
            self._notifier.call(self._end_all)

    def _check_principals(self) -> None:
        """End the calls of principals that are no longer valid; repeats every `CHECK_SECONDS`."""
        for wake, principal in self._wakes.items():
            error = principal.ended()
            if error is not None:
                wake.set(error)
        self._checking = None
        if self._wakes:
            loop = asyncio.get_running_loop()
            self._checking = loop.call_later(CHECK_SECONDS, self._check_principals)

    def _end_all(self) -> None:
        for wake in self._wakes:
            wake.set(self._stopped)


class _Notifier:
    """Passes notifications to the event loop in batches.

    A commit notifies all its waiters with a single wake-up of the loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._notified: deque[WaitingCall] = deque()
        self._called = False

    def notify(self, wake: WaitingCall) -> None:
        # Appended before the check, while the loop clears the flag before emptying the deque, so
        # that no wake is lost.
        self._notified.append(wake)
        if not self._called:
            self._called = True
            self.call(self._set_all)

    def call(self, callback: Any) -> None:
        with contextlib.suppress(RuntimeError):  # The loop is closed: no call is waiting.
            self._loop.call_soon_threadsafe(callback)

    def _set_all(self) -> None:
        self._called = False
        while self._notified:
            self._notified.popleft().set()


async def _watch_client(receive: Receive, wake: WaitingCall) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    wake.set(ClientGone("the client has gone away"))
