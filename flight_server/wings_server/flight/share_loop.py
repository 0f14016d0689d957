"""GroupLoop: one thread that takes the turns of a group's share streams, many in a round.

    the streams' readers ─▶ offered ─▶ a round: take turns ─▶ acknowledge all, in one flush,
                                                              and acquire for all meanwhile
                                                          └─▶ answer, deliver

A thread for each stream would cost a hand-over, and a sync of the disk, for each message. A round
takes no longer than a flush. A stream that may block on something else (a client that does not
read, rows to be read, dead letters, a look at other nodes' replicas) leaves the loop for as long,
with a thread of its own; see `ServedStream`.
"""

import heapq
import itertools
import queue
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Protocol

import structlog

from wings_core.contracts.share import AcknowledgeMessage
from wings_core.errors import WingsError
from wings_core.model import ShareGroup
from wings_core.share.coordinator.coordinator import Coordinator
from wings_core.share.model import AcquireRequest, Leased
from wings_server.group_actions import Settled, settle_entries

ROUND_MAX = 256
"""Most streams offered to one round."""

_logger = structlog.get_logger("wings.flight")


@dataclass(slots=True, eq=False)
class Turn:
    """A stream's turn in a round, from `take_turn` to `give_back`."""

    stream: "LoopStream"
    member: str
    requests: Sequence[AcknowledgeMessage]


class LoopStream(Protocol):
    """A stream in a loop; no method blocks, and no other thread works on it during its turn."""

    def take_turn(self) -> Turn | None:
        """Begin a turn; None where there is nothing to do, or another thread does it."""
        ...

    def answer(self, requests: Sequence[AcknowledgeMessage], settled: Sequence[Settled]) -> None:
        """Answer the requests of the turn."""
        ...

    def wanted(self, requests: Sequence[AcknowledgeMessage]) -> AcquireRequest | None:
        """Return the messages to acquire once the requests are carried out; None: none."""
        ...

    def deliver(self, acquired: Leased) -> None:
        """Deliver acquired messages as far as there is room; a thread does the rest."""
        ...

    def leave(self, requests: Sequence[AcknowledgeMessage]) -> None:
        """Have a thread carry out the requests after the turn."""
        ...

    def fail(self, error: Exception) -> None:
        """End the stream by a fault of the server."""
        ...

    def give_back(self) -> None:
        """End the turn."""
        ...


class GroupLoop:
    """The loop of one group on this server; all methods from any thread.

    Args:
        coordinator: The coordinator of the group's messages.
        group: The group.
    """

    def __init__(self, coordinator: Coordinator, group: ShareGroup) -> None:
        self._coordinator = coordinator
        self._group = group
        self._offered: queue.SimpleQueue[tuple[LoopStream | None, float]] = queue.SimpleQueue()
        self._leading = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="wings-share-loop", daemon=True)
        self._thread.start()

    def offer(self, stream: LoopStream, at: float = 0.0) -> None:
        """Take a turn for a stream in the next round, or in the first after a monotonic time."""
        self._offered.put((stream, at))

    def lead(self, stream: LoopStream) -> None:
        """Take a turn for a stream on this thread, unless a round is under way; blocks for it.

        Saves the hand-over where one member works alone.
        """
        if not self._offered.empty() or not self._leading.acquire(blocking=False):
            self.offer(stream)
            return
        try:
            self._round([stream])
        finally:
            self._leading.release()

    def close(self) -> None:
        """End the thread; no stream is offered afterwards."""
        self._offered.put((None, 0.0))
        self._thread.join()

    def _run(self) -> None:
        later: list[tuple[float, int, LoopStream]] = []
        numbers = itertools.count()
        is_open = True
        while is_open:
            seconds = max(0.0, later[0][0] - time.monotonic()) if later else None
            offered: list[tuple[LoopStream | None, float]] = []
            with suppress(queue.Empty):
                offered.append(self._offered.get(timeout=seconds))
            with self._leading:
                while len(offered) < ROUND_MAX and not self._offered.empty():
                    offered.append(self._offered.get())
                streams: dict[LoopStream, None] = {}
                for stream, at in offered:
                    if stream is None:
                        is_open = False
                    elif at:
                        heapq.heappush(later, (at, next(numbers), stream))
                    else:
                        streams[stream] = None
                while later and later[0][0] <= time.monotonic():
                    streams[heapq.heappop(later)[2]] = None
                self._round(list(streams))

    def _round(self, streams: Sequence[LoopStream]) -> None:
        turns: list[Turn] = []
        for stream in streams:
            try:
                turn = stream.take_turn()
            except Exception as error:  # noqa: BLE001 - The others, and later rounds, go on.
                _fail([stream], error)
                continue
            if turn is not None:
                turns.append(turn)
        try:
            self._settle(turns)
        except Exception as error:  # noqa: BLE001 - It is logged.
            _fail([turn.stream for turn in turns], error)
        for turn in turns:
            try:
                turn.stream.give_back()
            except Exception as error:  # noqa: BLE001 - It is logged.
                _fail([turn.stream], error)

    def _settle(self, turns: Sequence[Turn]) -> None:
        asking = [turn for turn in turns if turn.requests]
        wanting = [
            (turn, request)
            for turn in turns
            if (request := turn.stream.wanted(turn.requests)) is not None
        ]
        requests = [(turn.member, message.acks) for turn in asking for message in turn.requests]
        acquires: list[AcquireRequest] = []
        if wanting and self._coordinator.has_ready(self._group):
            acquires = [request for _, request in wanting]
        settled: Sequence[Settled] = ()
        acquired: Sequence[Leased] = ()
        try:
            if requests or acquires:
                settled, acquired = settle_entries(
                    self._coordinator, self._group, requests, acquires
                )
        except WingsError as error:  # Nothing was done. A thread meets it again.
            for turn in asking:
                turn.stream.leave(turn.requests)
            for turn, _ in wanting:
                turn.stream.deliver(error)
            return
        at = 0
        for turn in asking:
            end = at + len(turn.requests)
            turn.stream.answer(turn.requests, settled[at:end])
            at = end
        without: list[tuple[Turn, AcquireRequest]] = []
        acquired = acquired or [[] for _ in wanting]
        for (turn, request), found in zip(wanting, acquired, strict=True):
            if turn.requests and found == []:
                without.append((turn, request))
            else:
                turn.stream.deliver(found)
        if without:
            self._acquire_again(without)

    def _acquire_again(self, wanting: Sequence[tuple[Turn, AcquireRequest]]) -> None:
        """Acquire for streams whose acknowledgements in this round filled the window till now."""
        acquired: Sequence[Leased] = [[] for _ in wanting]
        if self._coordinator.has_ready(self._group):
            requests = [request for _, request in wanting]
            try:
                acquired = self._coordinator.settle(self._group, (), requests)[1]
            except WingsError as error:  # The group was moved or deleted just now.
                acquired = [error] * len(wanting)
        for (turn, _), found in zip(wanting, acquired, strict=True):
            turn.stream.deliver(found)


def _fail(streams: Sequence[LoopStream], error: Exception) -> None:
    """End streams by a fault of the server."""
    _logger.error("share streams failed by a fault of the server", exc_info=error)
    for stream in streams:
        stream.fail(error)


class GroupLoops:
    """The loops of a server's groups; all methods from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loops: dict[str, tuple[GroupLoop, int]] = {}

    @contextmanager
    def joined(self, coordinator: Coordinator, group: ShareGroup) -> Generator[GroupLoop]:
        """Yield the loop of a group for one stream; it ends with the last stream's block."""
        with self._lock:
            loop, streams = self._loops.get(group.uuid) or (GroupLoop(coordinator, group), 0)
            self._loops[group.uuid] = (loop, streams + 1)
        try:
            yield loop
        finally:
            with self._lock:
                loop, streams = self._loops.pop(group.uuid)
                if streams > 1:
                    self._loops[group.uuid] = (loop, streams - 1)
            if streams == 1:
                loop.close()
