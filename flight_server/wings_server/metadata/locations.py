"""`OffsetLocation`: long polls that hold no thread.

commit ─▶ (its thread) callback ─▶ (event loop) the coroutine that waits looks again ─▶ the answer
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from concurrent.futures import Executor, Future
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from wings_core.errors import InvalidArgument, Unavailable
from wings_core.fetch.state import Waits
from wings_core.metadata.interfaces import OffsetRegistry
from wings_core.metadata.waiting import GatheredChanges
from wings_core.model import Located, Position
from wings_core.partitions import canonical_partition
from wings_core.protocol import messages
from wings_core.protocol.v1 import offset_registry_pb2 as pb
from wings_core.times import Deadline, now_us

ANSWER_MARGIN_SECONDS = 1.0
"""An answer is given so long before the call's own gRPC deadline, or it might come too late."""

CHANGES_MAX = 10_000
"""Partitions that one message of a watched topic names."""

T = TypeVar("T")


class Locations:
    """The long polls of one service; all methods on its event loop.

    Args:
        registry: The registry looked at.
        executor: Runs what may block.
        waiting_max: How many calls may wait at once.
    """

    def __init__(self, registry: OffsetRegistry, executor: Executor, waiting_max: int) -> None:
        self._registry = registry
        self._executor = executor
        self._waits = Waits(waiting_max)
        self._stopped = asyncio.Event()
        self._wakes: set[asyncio.Event] = set()

    @property
    def waiting(self) -> int:
        """How many calls wait now."""
        return self._waits.waiting

    @property
    def begun(self) -> int:
        """How many waits have begun so far."""
        return self._waits.begun

    def stop(self) -> None:
        """End every wait, and every later one, with `Unavailable`."""
        self._stopped.set()
        for wake in self._wakes:
            wake.set()

    async def offset_location(
        self, request: pb.OffsetLocationRequest, time_remaining: float | None
    ) -> pb.OffsetLocationResponse:
        """Answer the locations from an offset on, or none when the deadline passes.

        Args:
            request: See the `.proto` file for what its times mean.
            time_remaining: Until the call's own deadline, in seconds, if it has one.

        Raises:
            TopicNotFound: The topic was deleted.
            OffsetOutOfRange: The offset is below the log's start.
            ResourceExhausted: Too many calls wait already.
            Unavailable: The service stops.
        """
        deadline = self._deadline(request, time_remaining)
        located = await self._locate(request)
        if located.locations or deadline is None or deadline.passed:
            return messages.LOCATED.encode(located)
        with self._waits.one():
            return messages.LOCATED.encode(await self._wait(request, located, deadline))

    async def watch_topic(self, request: pb.WatchTopicRequest) -> AsyncIterator[pb.TopicChange]:
        """Yield an empty change, and then what is committed to a topic, until the client leaves.

        Raises:
            ResourceExhausted: Too many calls wait already.
            Unavailable: The service stops.
        """
        loop = asyncio.get_running_loop()
        wake = asyncio.Event()
        changes = GatheredChanges(lambda: _notify(loop, wake))
        with self._waits.one(), self._registry.watch_topic(request.topic_uuid, changes.hear):
            self._wakes.add(wake)
            try:
                yield pb.TopicChange()
                while not self._stopped.is_set():
                    await wake.wait()
                    # Cleared before the look, so that no change after it is missed.
                    wake.clear()
                    ends = changes.take()
                    if ends is None:
                        yield pb.TopicChange()
                        continue
                    found = [
                        pb.TopicChange.End(partition=partition, next_offset=next_offset)
                        for partition, next_offset in ends.items()
                    ]
                    for first in range(0, len(found), CHANGES_MAX):
                        yield pb.TopicChange(ends=found[first : first + CHANGES_MAX])
                raise Unavailable("the metadata service is stopping")
            finally:
                self._wakes.discard(wake)

    async def _wait(
        self, request: pb.OffsetLocationRequest, located: Located, deadline: Deadline
    ) -> Located:
        loop = asyncio.get_running_loop()
        wake = asyncio.Event()
        position = Position(
            request.topic_uuid, canonical_partition(request.partition), request.offset
        )
        watch = self._registry.watch([position], lambda: _notify(loop, wake))
        # It looks into the store, so it is entered on a thread; and it is left whenever it was
        # entered, also where this call is cancelled meanwhile.
        entered = self._executor.submit(watch.__enter__)
        self._wakes.add(wake)
        try:
            await asyncio.wrap_future(entered)
            while not located.locations:
                if self._stopped.is_set():
                    raise Unavailable("the metadata service is stopping")
                try:
                    await asyncio.wait_for(wake.wait(), deadline.remaining())
                except TimeoutError:
                    return located
                # Cleared before the look, so that no commit after it is missed.
                wake.clear()
                located = await self._locate(request)
            return located
        finally:
            self._wakes.discard(wake)
            entered.add_done_callback(lambda _: _leave(watch, entered))

    async def _locate(self, request: pb.OffsetLocationRequest) -> Located:
        messages_max = max(1, request.messages_max)
        return await asyncio.wrap_future(
            self._executor.submit(
                self._registry.locate,
                request.topic_uuid,
                canonical_partition(request.partition),
                request.offset,
                messages_max,
            )
        )

    def _deadline(
        self, request: pb.OffsetLocationRequest, time_remaining: float | None
    ) -> Deadline | None:
        """Return when to answer at last; None: do not wait."""
        if not request.HasField("deadline"):
            return None
        try:
            until = request.deadline.ToMicroseconds()
            now = request.sent_at.ToMicroseconds() if request.HasField("sent_at") else now_us()
        except ValueError as error:
            raise InvalidArgument(f"a time of the request is none: {error}") from None
        seconds = (until - now) / 1e6
        if time_remaining is not None:
            seconds = min(seconds, time_remaining - ANSWER_MARGIN_SECONDS)
        return Deadline.after(seconds)


def _notify(loop: asyncio.AbstractEventLoop, wake: asyncio.Event) -> None:
    with contextlib.suppress(RuntimeError):  # The loop is closed; no call waits any more.
        loop.call_soon_threadsafe(wake.set)


def _leave(watch: AbstractContextManager[None], entered: Future[Any]) -> None:
    if not entered.cancelled() and entered.exception() is None:
        watch.__exit__(None, None, None)
