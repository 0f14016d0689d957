"""ShareFlow: what the share streams of one group ask for at one time, done together.

    the streams' readers ─▶ offered ─▶ one thread: take turns ─▶ acknowledge all, in one flush,
                                                                 and acquire for all meanwhile
                                                             └─▶ answer, deliver

A stream that waited for threads of its own would pay for a hand-over, and for a sync of the disk,
with each message. So one thread does what takes no longer than a flush, for all streams of the
group; what may block on something else (a client that does not read, rows that are not at hand,
dead letters, messages that the index does not tell of) is left to the stream's worker.
"""

import queue
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import structlog

from wings_core.contracts.share_stream import AcknowledgeMessage
from wings_core.errors import WingsError
from wings_core.model import ShareGroup
from wings_core.share.coordinator.coordinator import Coordinator
from wings_core.share.model import Acquired, AcquireRequest
from wings_server.share_actions import Settled, settle_entries

ROUND_MAX = 256
"""Streams whose turns are taken together."""

_NOTHING = Acquired(())

_logger = structlog.get_logger("wings.flight")


@dataclass(slots=True, eq=False)
class Turn:
    """A turn of one stream, which is the flow's until `give_back`."""

    stream: "FlowStream"
    member: str
    requests: Sequence[AcknowledgeMessage]


class FlowStream(Protocol):
    """A stream as the flow sees it; from `take_turn` to `give_back` no other thread works on it."""

    def take_turn(self) -> Turn | None:
        """Let the flow have the stream's turn; None where there is nothing to do, or not for it."""
        ...

    def answer(self, requests: Sequence[AcknowledgeMessage], settled: Sequence[Settled]) -> None:
        """Answer the requests of the turn; never blocks."""
        ...

    def wanted(self, requests: Sequence[AcknowledgeMessage]) -> AcquireRequest | None:
        """Return what may be delivered once requests are carried out; None: nothing."""
        ...

    def deliver(self, acquired: Acquired | WingsError) -> None:
        """Deliver what was acquired as far as there is room, or leave it to the worker.

        Never blocks.
        """
        ...

    def leave(self, requests: Sequence[AcknowledgeMessage]) -> None:
        """Leave the rest of the turn to the worker, these requests first."""
        ...

    def fail(self, error: Exception) -> None:
        """End the stream by a fault of the server."""
        ...

    def give_back(self) -> None:
        """End the turn."""
        ...


class ShareFlow:
    """The streams of one group on this server; all methods from any thread.

    Args:
        coordinator: Where messages come from.
        group: Theirs.
    """

    def __init__(self, coordinator: Coordinator, group: ShareGroup) -> None:
        self._coordinator = coordinator
        self._group = group
        self._offered: queue.SimpleQueue[FlowStream | None] = queue.SimpleQueue()
        self._leading = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="wings-share-flow", daemon=True)
        self._thread.start()

    def offer(self, stream: FlowStream) -> None:
        """Have a turn taken for a stream soon."""
        self._offered.put(stream)

    def lead(self, stream: FlowStream) -> None:
        """Take a turn for a stream on this thread, unless the flow is at work; blocks for it.

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
        """End the thread; no stream is offered any more."""
        self._offered.put(None)
        self._thread.join()

    def _run(self) -> None:
        while True:
            streams: dict[FlowStream, None] = {}
            stream = self._offered.get()
            with self._leading:
                while stream is not None:
                    streams[stream] = None
                    if len(streams) >= ROUND_MAX or self._offered.empty():
                        break
                    stream = self._offered.get()
                self._round(list(streams))
            if stream is None:
                return

    def _round(self, streams: Sequence[FlowStream]) -> None:
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
        acquired: Sequence[Acquired | WingsError] = ()
        try:
            if requests or acquires:
                settled, acquired = settle_entries(
                    self._coordinator, self._group, requests, acquires
                )
        except WingsError as error:  # Of the group: nothing was done. The worker meets it again.
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
        acquired = acquired or [_NOTHING] * len(wanting)
        for (turn, request), found in zip(wanting, acquired, strict=True):
            if turn.requests and isinstance(found, Acquired) and not found.ranges:
                without.append((turn, request))
            else:
                turn.stream.deliver(found)
        if without:
            self._acquire_again(without)

    def _acquire_again(self, wanting: Sequence[tuple[Turn, AcquireRequest]]) -> None:
        """Acquire for streams whose own acknowledgements, just now, may have been in the way."""
        acquired: Sequence[Acquired | WingsError] = [_NOTHING] * len(wanting)
        if self._coordinator.has_ready(self._group):
            requests = [request for _, request in wanting]
            try:
                acquired = self._coordinator.settle(self._group, (), requests)[1]
            except WingsError as error:  # The group was moved or deleted just now.
                acquired = [error] * len(wanting)
        for (turn, _), found in zip(wanting, acquired, strict=True):
            turn.stream.deliver(found)


def _fail(streams: Sequence[FlowStream], error: Exception) -> None:
    """End streams by a fault of the server."""
    _logger.error("share streams failed by a fault of the server", exc_info=error)
    for stream in streams:
        stream.fail(error)


class ShareFlows:
    """The flows of a server's groups; all methods from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._flows: dict[str, tuple[ShareFlow, int]] = {}

    def join(self, coordinator: Coordinator, group: ShareGroup) -> ShareFlow:
        """Return the flow of a group for one more stream, which is to `leave` it."""
        with self._lock:
            flow, streams = self._flows.get(group.uuid, (None, 0))
            if flow is None:
                flow = ShareFlow(coordinator, group)
            self._flows[group.uuid] = (flow, streams + 1)
            return flow

    def leave(self, group: ShareGroup) -> None:
        """Take a stream out of its flow, which ends with the last of them."""
        with self._lock:
            flow, streams = self._flows[group.uuid]
            if streams > 1:
                self._flows[group.uuid] = (flow, streams - 1)
                return
            del self._flows[group.uuid]
        flow.close()
