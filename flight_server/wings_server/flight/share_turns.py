"""ShareTurns: the state of a share stream, by its turns: its reader's, and its group's flow's."""

import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace

import pyarrow.flight as flight

from wings_core.contracts.share_stream import (
    AcknowledgeMessage,
    ClientMessage,
    CreditMessage,
    ShareEnd,
    parse_client_message,
)
from wings_core.errors import Internal, InvalidArgument, Unavailable, WingsError
from wings_core.fetch.fetcher import Cancel
from wings_core.log import Log
from wings_core.model import LeasedRange
from wings_core.share.coordinator.ready import WaitingMember
from wings_core.share.delivery.delivery import DeliveredBatch
from wings_core.share.delivery.stream_holds import StreamHolds
from wings_core.share.model import Acquired, AcquireRequest
from wings_core.times import Deadline
from wings_server.flight.share_flow import ShareFlow, Turn
from wings_server.flight.share_opening import Admission, Opened
from wings_server.flight.share_writer import ShareWriter
from wings_server.metrics import Metrics
from wings_server.share_actions import Settled

REQUESTS_WAITING_MAX = 1_000
"""Acknowledgements of one stream that wait for their turn; with more, it is read no further."""

FREE_LOOK_SECONDS = 0.02
"""A stop looks so often whether members have acknowledged what they hold."""


class ShareTurns:
    """One stream, but for its worker, which is `ServedStream`.

    Its state is changed by whom the turn belongs to: the flow between `take_turn` and `give_back`,
    else the worker, from when the turn is left to it until it has done what there is.

    Args:
        log: Where the group is.
        opened: The descriptor.
        writer: To the client.
        metrics: Counts what is delivered.
        admission: Ends the stream with the token of its caller.
        flow: Of the group.
    """

    def __init__(
        self,
        log: Log,
        opened: Opened,
        writer: flight.MetadataRecordBatchWriter,
        metrics: Metrics,
        admission: Admission,
        flow: ShareFlow,
    ) -> None:
        self._admission = admission
        self._shares = log.shares
        self._coordinator = log.shares.coordinator
        self._opened = opened
        self._group = opened.group
        self._member = opened.command.member
        self._metrics = metrics
        self._writer = ShareWriter(log, opened, writer, metrics, admission.usage)
        self._flow = flow
        self._cancel = Cancel()
        self._lock = threading.Lock()
        """Of the condition below; to take it is cheaper, where nothing is waited for."""
        self._changed = threading.Condition(self._lock)
        # Guarded by it.
        self._requests: deque[AcknowledgeMessage] = deque()
        self._requests_read = 0
        self._look = True
        """Whether there may be something to acquire."""
        self._end: ShareEnd | None = None
        self._closed = False
        """Whether the client has ended its side."""
        self._is_done = False
        """Whether the worker has ended, and takes no more requests."""
        self._is_taken = False
        """Whether the flow has the turn."""
        self._is_left = True
        """Whether the worker has the turn, or is to have it next."""
        self._may_be_over = False
        """Whether the group has changed, so that the worker is to see whether it is there still."""
        # Of who has the turn, but for what the client says.
        command, config = opened.command, opened.group.config
        self._holds = StreamHolds(command.credit, config.lock_duration_ms, time.monotonic())
        self._leased: list[LeasedRange] = []
        """What the flow has left to the worker to deliver."""
        self._surplus: list[LeasedRange] = []
        """What it has left to it to release."""
        self._look_at: float | None = None
        """When to look again without being told."""
        self._failures = 0
        self._asked: AcquireRequest | None = None
        """What the flow asked for in its turn."""
        self._asked_at = 0.0
        """When messages were last asked for, which their locks are counted from."""
        self._taken_at = 0.0
        """When requests were last taken to be carried out."""
        self._watch: WaitingMember | None = None
        """By which it is called when there are messages."""

    def end(self, end: ShareEnd) -> None:
        """End the stream after the answers to what was received; the first call counts."""
        with self._changed:
            self._end = self._end or end
            self._cancel.cancel(Unavailable("the stream has ended"))
            self._changed.notify_all()

    def drain(self) -> None:
        """Deliver no more; what is held may be acknowledged on."""
        self._holds.drain()

    def wait_until_free(self, deadline: Deadline) -> None:
        """Wait until the member holds nothing and all is answered, or the stream has ended."""
        with self._changed:
            while not (self._is_free or self._is_over or deadline.passed):
                self._changed.wait(FREE_LOOK_SECONDS)

    # The handler's thread.

    def _receive(self, raw: bytes | None) -> bool:
        """Take a message of the client; False where the stream has ended."""
        try:
            message = self._parsed(raw)
        except WingsError as error:
            self.end(ShareEnd(error.code, error.message))
            return False
        is_last = False
        with self._lock:
            self._holds.hear(message, time.monotonic())
            if isinstance(message, CreditMessage):
                self._look = True  # Without room, it stops waiting for messages.
            elif isinstance(message, AcknowledgeMessage):
                if len(self._requests) >= REQUESTS_WAITING_MAX:
                    self._changed.wait_for(
                        lambda: (
                            len(self._requests) < REQUESTS_WAITING_MAX
                            or self._end is not None
                            or self._is_done
                        )
                    )
                self._requests.append(message)
                acknowledged = 0
                for entry in message.acks:
                    acknowledged += entry.last - entry.first + 1
                is_last = acknowledged >= self._holds.messages
            is_free = not (self._is_taken or self._is_left)
            if self._end is not None or self._is_done:
                return False
        if is_free and is_last:
            self._flow.lead(self)  # Nothing else is to be expected of the client meanwhile.
        elif is_free:
            self._flow.offer(self)
        return True

    def _parsed(self, raw: bytes | None) -> ClientMessage:
        """Parse a message of the client, and count its requests."""
        if raw is None:
            raise InvalidArgument("message: a client sends app_metadata alone")
        message = parse_client_message(raw)
        if isinstance(message, AcknowledgeMessage):
            self._requests_read += 1
            if message.request != self._requests_read:
                raise InvalidArgument(
                    f"message: key 'request': expected {self._requests_read}; got {message.request}"
                )
        return message

    # The flow's turn.

    def take_turn(self) -> Turn | None:
        """See `FlowStream.take_turn`."""
        with self._lock:
            self._end_with_token()
            if self._is_over:
                self._changed.notify_all()
                return None
            if self._is_taken or self._is_left:
                return None
            wants = self._look and self._room > 0
            is_quick = all(
                entry.type == "accept" for message in self._requests for entry in message.acks
            )
            leaves_watch = self._look and self._watch is not None and not wants
            if not is_quick or (leaves_watch and not self._requests):
                self._is_left = True
                self._changed.notify_all()
                return None
            if not self._requests and not wants:
                return None
            turn = Turn(self, self._member, self._take_requests())
            self._is_taken = True  # Last: the turn ends by `give_back` only where this returns.
            return turn

    def answer(self, requests: Sequence[AcknowledgeMessage], settled: Sequence[Settled]) -> None:
        """See `FlowStream.answer`."""
        now = time.monotonic()
        for message, (errors, done) in zip(requests, settled, strict=True):
            for each in done:
                self._holds.acknowledged(each, self._taken_at, now)
            self._writer.answer(message, errors)
        self._is_left = self._is_left or bool(self._writer.outbox)

    def wanted(self, requests: Sequence[AcknowledgeMessage]) -> AcquireRequest | None:
        """See `FlowStream.wanted`."""
        done = 0
        for message in requests:
            for entry in message.acks:
                done += entry.last - entry.first + 1
        with self._lock:
            room = self._holds.room(time.monotonic(), done)
            if self._writer.outbox or not self._look or room <= 0 or self._is_over:
                return None
            self._look = False
        self._stop_watching()
        self._asked = self._request(room)
        return self._asked

    def deliver(self, acquired: Acquired | WingsError) -> None:
        """See `FlowStream.deliver`."""
        if isinstance(acquired, WingsError):
            self._look = self._is_left = True  # The worker looks further.
            return
        if not acquired.ranges:
            self._wait_for_messages()
            return
        self._look = True
        for leased in self._within_room(acquired.ranges):
            kept = None
            if not (self._leased or self._writer.outbox):
                kept = self._shares.kept(self._group, leased)
            if kept is None:
                self._leased.append(leased)
                self._is_left = True
                continue
            self._send(kept)

    def _wait_for_messages(self) -> None:
        """Be called when there are some, if there are none; else the worker looks further.

        Who waits must be able to take some when it is called, so it has room, and its client reads.
        """
        assert self._asked is not None
        if not (self._look or self._is_left or self._room <= 0 or self._writer.outbox):
            try:
                self._watch = self._coordinator.watch_idle(self._asked, self._wake)
            except WingsError:
                self._watch = None  # The worker meets it again.
            if self._watch is not None:
                self._failures = 0
                return
        self._look = self._is_left = True

    def _wake(self) -> None:
        """Hear that there may be messages; from any thread."""
        with self._lock:
            self._look = True
            is_free = not (self._is_taken or self._is_left)
            if self._is_over:
                return
        if is_free:
            self._flow.offer(self)

    def _group_changed(self) -> None:
        """Hear that the group was altered, moved or deleted; from any thread."""
        with self._changed:
            self._look = self._may_be_over = True
            self._changed.notify_all()

    def _within_room(self, ranges: Sequence[LeasedRange]) -> Sequence[LeasedRange]:
        """Return what there is room for; what more was acquired is left to the worker to release.

        It is more only where an acknowledgement failed, or the client has taken back credit, or
        stands still.
        """
        room = left = self._room
        for leased in ranges:
            left -= leased.messages
        if left >= 0:
            return ranges
        within: list[LeasedRange] = []
        for leased in ranges:
            end = min(leased.end_offset, leased.start_offset + room - 1)
            if end >= leased.start_offset:
                within.append(replace(leased, end_offset=end))
                room -= within[-1].messages
            if end < leased.end_offset:
                first = max(leased.start_offset, end + 1)
                self._surplus.append(replace(leased, start_offset=first))
        self._is_left = True
        return within

    def leave(self, requests: Sequence[AcknowledgeMessage]) -> None:
        """See `FlowStream.leave`."""
        with self._changed:
            self._requests.extendleft(reversed(requests))
            self._is_left = True

    def fail(self, error: Exception) -> None:
        """See `FlowStream.fail`."""
        self.end(ShareEnd(Internal.code, f"internal error: {type(error).__name__}"))

    def give_back(self) -> None:
        """See `FlowStream.give_back`."""
        with self._lock:
            self._is_taken = False
            if self._is_left or self._is_over or self._may_be_over:
                self._changed.notify_all()
            is_next = not self._is_left and self._has_work
        if is_next:
            self._flow.offer(self)

    def _send(self, part: DeliveredBatch) -> None:
        """Deliver a part as far as that does not wait for the client."""
        self._holds.add(part.range, self._asked_at, time.monotonic())
        self._writer.deliver(part)
        self._is_left = self._is_left or bool(self._writer.outbox)

    # Of who has the turn, or the lock.

    @property
    def _room(self) -> int:
        return self._holds.room(time.monotonic())

    @property
    def _is_free(self) -> bool:
        """Whether nothing is held, or to be done; the lock is held."""
        busy = self._requests or self._is_taken or self._is_left or self._leased
        return not (busy or self._writer.outbox or self._holds.messages)

    @property
    def _is_over(self) -> bool:
        return self._closed or self._end is not None or self._is_done

    @property
    def _has_work(self) -> bool:
        if self._requests:
            return True
        return self._look and (self._room > 0 or self._watch is not None)

    def _request(self, room: int) -> AcquireRequest:
        self._asked_at = time.monotonic()
        return AcquireRequest(
            self._group,
            self._member,
            self._opened.partition,
            room,
            room,
            self._opened.command.max_messages,
        )

    def _take_requests(self) -> Sequence[AcknowledgeMessage]:
        """Take what was read; the lock is held."""
        self._taken_at = time.monotonic()
        requests = list(self._requests)
        self._requests.clear()
        if len(requests) >= REQUESTS_WAITING_MAX:
            self._changed.notify_all()
        return requests

    def _stop_watching(self) -> bool:
        """Be called for messages no more; returns whether it was."""
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.close()
        return watch is not None

    def _end_with_token(self) -> None:
        """End the stream once its caller's token was revoked or has expired."""
        error = self._admission.principal.ended()
        if error is not None and self._end is None:
            self._end = ShareEnd(error.code, error.message)
            self._cancel.cancel(error)
