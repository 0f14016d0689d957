"""DoExchange of kind `share`: deliveries and acknowledgements of one member, both ways at once.

             nothing is done           the loop's round
    IDLE ──────────────────────────▶ ROUND ─ it may block ─▶ LEFT
     ▲  ▲                              │                       │ the turn ends
     │  └──────────────────────────────┘                       ▼
     └───────── nothing that blocks is left ──────────────── BUSY ─ over ─▶ ENDED

The handler's thread reads the client, as a pyarrow server that returns from a call while another
thread reads its stream aborts the process (seen). The group's loop acknowledges and delivers
whatever blocks for no longer than a flush. The rest, such as writing to a client that reads slowly,
is done by a thread of the stream's own, which is started for it: it holds up no other stream.
"""

import enum
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack, closing

import pyarrow.flight as flight
import structlog

from wings_core.contracts.share import (
    AcknowledgeMessage,
    ClientMessage,
    CreditMessage,
    ShareEnd,
    parse_client_message,
)
from wings_core.errors import (
    Internal,
    InvalidArgument,
    NotFound,
    SchemaMismatch,
    StorageCorrupt,
    Unavailable,
    WingsError,
)
from wings_core.fetch.fetcher import Cancel
from wings_core.log import Log
from wings_core.model import LeasedRange
from wings_core.share.coordinator.partitions import WaitingMember
from wings_core.share.delivery.delivery import DeliveredBatch
from wings_core.share.delivery.stream_holds import StreamHolds, divided, still_held
from wings_core.share.model import Acknowledgement, AcquireRequest, Leased
from wings_core.share.shares import GroupMoved
from wings_core.times import Deadline
from wings_server.flight.share_ends import Admission, Opened, ShareWriter, end_of, messages_of
from wings_server.flight.share_loop import GroupLoop, Turn
from wings_server.group_actions import Settled, settle_entries
from wings_server.metrics import Metrics

REQUESTS_WAITING_MAX = 1_000
"""Most acknowledgements of one stream that wait to be carried out; the stream is read no further
meanwhile."""

FREE_LOOK_SECONDS = 0.02
"""Interval in which a stop checks whether members have acknowledged everything they hold."""

PAUSE_SECONDS = (0.05, 1.0)
"""Pause after messages could not be acquired or read: the first, and the longest."""

_logger = structlog.get_logger("wings.flight")


class StreamState(enum.Enum):
    """The part of the server that works on a stream; only that part changes what it holds."""

    IDLE = enum.auto()
    """None, until the client sends a message, messages are available or a time has come."""
    ROUND = enum.auto()
    """The loop's round."""
    LEFT = enum.auto()
    """The loop's round, and then a thread, as work is left that may block."""
    BUSY = enum.auto()
    """A thread."""
    ENDED = enum.auto()
    """None ever again."""


class ServedStream:
    """One stream.

    Args:
        log: The log of the group.
        opened: The descriptor.
        writer: The stream to the client.
        metrics: Counts deliveries.
        admission: Ends the stream with its caller's token.
        loop: The group's.
    """

    def __init__(
        self,
        log: Log,
        opened: Opened,
        writer: flight.MetadataRecordBatchWriter,
        metrics: Metrics,
        admission: Admission,
        loop: GroupLoop,
    ) -> None:
        self._admission = admission
        self._shares = log.shares
        self._coordinator = log.shares.coordinator
        self._opened = opened
        self._group = opened.group
        self._member = opened.command.member
        self._metrics = metrics
        self._writer = ShareWriter(log, opened, writer, metrics, admission.usage)
        self._loop = loop
        self._cancel = Cancel()
        self._lock = threading.Lock()
        """The condition's; taking it is cheaper where nothing is waited for."""
        self._changed = threading.Condition(self._lock)
        # Guarded by the lock.
        self._state = StreamState.BUSY
        self._requests: deque[AcknowledgeMessage] = deque()
        self._requests_read = 0
        self._look = True
        """Whether there may be something to acquire."""
        self._is_over = False
        """Whether the client has ended its side, or the stream is to be ended with `_end`."""
        self._end: ShareEnd | None = None
        self._has_group_changed = False
        """Whether the group has changed since the stream last found it there."""
        self._check_at = time.monotonic()
        """Time of the next check of the caller's token."""
        # Changed as `StreamState` says.
        command, config = opened.command, opened.group.config
        self._holds = StreamHolds(command.credit, config.lock_duration_ms, time.monotonic())
        self._leased: list[LeasedRange] = []
        """Ranges to be read and delivered by a thread."""
        self._surplus: list[LeasedRange] = []
        """Ranges to be released by a thread."""
        self._look_at: float | None = None
        """Time at which to look for messages without being called."""
        self._failures = 0
        self._asked: AcquireRequest | None = None
        """The last request for messages."""
        self._asked_at = 0.0
        """Time of that request; locks are counted from it."""
        self._taken_at = 0.0
        """Time at which acknowledgements were last taken to be carried out."""
        self._watch: WaitingMember | None = None
        """Calls the stream when there are messages."""

    def run(self, reader: flight.MetadataRecordBatchReader) -> None:
        """Serve until the client ends its side, or the stream was ended; blocks meanwhile."""
        with ExitStack() as stack:
            try:
                self._writer.begin()
                stack.enter_context(self._coordinator.following(self._group, self._hear_of_group))
            except Exception as error:  # noqa: BLE001 - The client is told.
                self._finish(end_of(error, self._metrics))
            else:
                with self._lock:
                    self._state = StreamState.IDLE
                self._loop.offer(self)
            try:
                for raw in messages_of(reader):
                    if not self._receive(raw):
                        break
            finally:
                self._close()

    def end(self, end: ShareEnd) -> None:
        """End the stream after the answers to what was received; the first call counts."""
        with self._lock:
            self._end_with(end)
            self._start_thread()

    def drain(self) -> None:
        """Deliver nothing more; what is held may still be acknowledged."""
        self._holds.drain()

    def wait_until_free(self, deadline: Deadline) -> None:
        """Block until the member holds nothing and is answered, or the stream is over."""
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
                        lambda: len(self._requests) < REQUESTS_WAITING_MAX or self._is_over
                    )
                self._requests.append(message)
                is_last = message.messages >= self._holds.messages
            is_idle = self._state is StreamState.IDLE
            if self._is_over:
                return False
        if is_idle and is_last:
            self._loop.lead(self)  # Nothing else is to be expected of the client meanwhile.
        elif is_idle:
            self._loop.offer(self)
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

    def _close(self) -> None:
        """End the stream, as its client is gone or its end is written; blocks until it has."""
        with self._changed:
            self._end_with(None)
            self._changed.wait_for(lambda: self._state in {StreamState.IDLE, StreamState.ENDED})
            if self._state is StreamState.ENDED:
                return
            self._state = StreamState.BUSY
        self._work()

    # Called from any thread.

    def _wake(self) -> None:
        """Hear that there may be messages."""
        with self._lock:
            self._look = True
            is_idle = self._state is StreamState.IDLE
        if is_idle:
            self._loop.offer(self)

    def _hear_of_group(self) -> None:
        """Hear that the group was altered, moved or deleted."""
        with self._lock:
            self._look = self._has_group_changed = True
            self._start_thread()

    def _start_thread(self) -> None:
        """Have a thread work on the stream, now or after the loop's round; the lock is held."""
        if self._state is StreamState.ROUND:
            self._state = StreamState.LEFT
        elif self._state is StreamState.IDLE:
            try:
                threading.Thread(target=self._work, name="wings-share-stream", daemon=True).start()
            except RuntimeError:  # The system has no more threads.
                self._loop.offer(self, time.monotonic() + PAUSE_SECONDS[1])
                self._changed.notify_all()  # At the end, the handler's thread does the rest.
            else:
                self._state = StreamState.BUSY

    def _end_with(self, end: ShareEnd | None) -> None:
        """Let nothing follow but what was received; the lock is held."""
        if not self._is_over:
            self._is_over, self._end = True, end
        self._cancel.cancel(Unavailable("the stream has ended"))
        self._changed.notify_all()

    def _end_with_token(self) -> None:
        """End the stream if its caller's token was revoked or has expired; the lock is held."""
        seconds = self._admission.check_seconds
        if seconds is not None and time.monotonic() >= self._check_at:
            self._check_at = time.monotonic() + seconds
            self._loop.offer(self, self._check_at)
        error = self._admission.principal.ended()
        if error is not None and not self._is_over:
            self._end_with(ShareEnd(error.code, error.message))

    # A turn in the loop's round.

    def take_turn(self) -> Turn | None:
        """See `LoopStream.take_turn`."""
        with self._lock:
            if self._state is StreamState.ENDED:
                return None
            self._end_with_token()
            if self._state is not StreamState.IDLE:
                return None
            if self._look_at is not None and time.monotonic() >= self._look_at:
                self._look, self._look_at = True, None
            if self._has_blocking:
                self._start_thread()
                return None
            if not self._has_work:
                return None
            turn = Turn(self, self._member, self._take_requests())
            self._state = StreamState.ROUND  # Last: only a turn that was taken is given back.
            return turn

    def answer(self, requests: Sequence[AcknowledgeMessage], settled: Sequence[Settled]) -> None:
        """See `LoopStream.answer`."""
        now = time.monotonic()
        for message, (errors, done) in zip(requests, settled, strict=True):
            for each in done:
                self._holds.acknowledged(each, self._taken_at, now)
            self._writer.answer(message, errors)

    def wanted(self, requests: Sequence[AcknowledgeMessage]) -> AcquireRequest | None:
        """See `LoopStream.wanted`."""
        done = sum(message.messages for message in requests)
        with self._lock:
            room = self._holds.room(time.monotonic(), done)
            wants = self._look and room > 0 and not (self._is_over or self._writer.outbox)
            leaves_watch = self._look and not wants
            self._look = self._look and not wants
        if wants:
            self._stop_watching()
            return self._request(room)
        if leaves_watch:
            self._stand_back()
        return None

    def deliver(self, acquired: Leased) -> None:
        """See `LoopStream.deliver`."""
        if isinstance(acquired, WingsError):
            self._look_further()
            return
        if not acquired:
            self._wait_for_messages()
            return
        self._look = True
        for leased in self._within_room(acquired):
            kept = None
            if not (self._leased or self._writer.outbox):
                kept = self._shares.kept(self._group, leased)
            if kept is None:
                self._leased.append(leased)
            else:
                self._send(kept)

    def _wait_for_messages(self) -> None:
        """Be called when there are some, if there are none; else a thread looks further.

        A stream that waits must be able to take some when it is called, so it has room.
        """
        assert self._asked is not None
        if not (self._look or self._room <= 0 or self._writer.outbox):
            try:
                self._watch = self._coordinator.watch_idle(self._asked, self._wake)
            except WingsError:
                self._watch = None  # The thread meets it again.
            if self._watch is not None:
                self._failures = 0
                return
        self._look_further()

    def leave(self, requests: Sequence[AcknowledgeMessage]) -> None:
        """See `LoopStream.leave`."""
        with self._lock:
            self._requests.extendleft(reversed(requests))
            self._start_thread()

    def _look_further(self) -> None:
        """Have a thread look for messages, which may block."""
        self._look = True
        self.leave(())

    def fail(self, error: Exception) -> None:
        """See `LoopStream.fail`."""
        self._metrics.failed("flight", Internal.code)
        self.end(ShareEnd(Internal.code, f"internal error: {type(error).__name__}"))

    def give_back(self) -> None:
        """See `LoopStream.give_back`."""
        with self._lock:
            is_left, self._state = self._state is StreamState.LEFT, StreamState.IDLE
            if is_left or self._has_blocking:
                self._start_thread()
            is_next = not is_left and self._state is StreamState.IDLE and self._has_work
        if is_next:
            self._loop.offer(self)

    # The stream's own thread, or the handler's at the end.

    def _work(self) -> None:
        """Do what may block, until nothing of that is left, or the stream has ended."""
        try:
            if not self._do_blocking():
                return
            end = self._end
        except Exception as error:  # noqa: BLE001 - The client is told.
            end = end_of(error, self._metrics)
        self._finish(end)

    def _do_blocking(self) -> bool:
        """Do what may block; returns False where none is left, and True where the stream is over.

        Raises:
            ClientLeft: The client has gone.
            WingsError: The stream cannot go on.
        """
        while True:
            with self._lock:
                self._end_with_token()
                self._has_group_changed = False
                requests, is_over = self._take_requests(), self._is_over
            if requests or self._writer.outbox:
                # It may take long, and others could take what it is called for.
                self._look = self._stand_back() or self._look
            try:
                self._writer.write_rest()
            finally:
                if requests or not is_over:  # Without any, it tells whether the group is there.
                    self._acknowledge(requests)
            if is_over:
                return True
            leased, self._leased = self._leased, []
            self._send_all(leased)
            self._release_surplus()
            while self._look and self._room > 0 and not self._requests and not self._is_over:
                self._acquire(self._room)
            if self._look:
                self._stand_back()
            with self._lock:
                if self._has_blocking:
                    continue
                self._state = StreamState.IDLE
                is_next, look_at = self._has_work, self._look_at
            if is_next:
                self._loop.offer(self)
            if look_at is not None:
                self._loop.offer(self, look_at)
            return False

    def _acknowledge(self, requests: Sequence[AcknowledgeMessage]) -> None:
        """Carry out and answer acknowledgements; blocks until they are durable."""
        asked = [(self._member, message.acks) for message in requests]
        # A client that is gone is no reason to leave the others of its requests undone.
        self.answer(requests, settle_entries(self._coordinator, self._group, asked, ())[0])
        self._writer.write_rest()

    def _acquire(self, room: int) -> None:
        """Acquire and deliver up to `room` messages, or see to it that the stream is called."""
        request = self._request(room)
        try:
            self._stop_watching()  # While busy, it is not called for what others could take.
            self._look = False
            # Most often the loop has found nothing just now: it is called from before this look.
            self._watch = self._coordinator.watch(request, self._wake)
            acquired = self._coordinator.acquire_now(request)
            if acquired:
                self._stop_watching()
                # It may have been called for more than it has room for.
                self._coordinator.wake_another(self._group)
                self._look = True
            self._send_all(self._within_room(acquired))
            self._release_surplus()
            self._failures = 0
        except WingsError as error:
            self._stand_back()  # It does not look until the pause is over.
            self._pause(error)

    def _send_all(self, ranges: Sequence[LeasedRange]) -> None:
        """Read leased ranges, and deliver them; blocks for the reads, and for the client.

        Raises:
            WingsError: Nothing can be delivered any more.
        """
        if not ranges:
            return
        try:
            with closing(
                self._shares.deliver(self._group, self._member, ranges, self._cancel)
            ) as parts:
                for part in parts:
                    self._send(part)
                    self._writer.write_rest()
        except WingsError as error:
            self._pause(error)

    def _pause(self, error: WingsError) -> None:
        """Look again after a while where the error may pass; raises it where it does not."""
        is_over = isinstance(error, NotFound | GroupMoved | SchemaMismatch)
        if is_over or self._coordinator.damage is not None:
            raise error
        if self._cancel.error is not None:
            return
        if isinstance(error, Internal | StorageCorrupt):
            self._metrics.failed("flight", error.code)
        _logger.warning("messages are not delivered for now", **error.to_json())
        least, most = PAUSE_SECONDS
        self._look = False
        self._look_at = time.monotonic() + min(most, least * 2 ** min(self._failures, 16))
        self._failures += 1

    def _release_surplus(self) -> None:
        """Release ranges that are not delivered; blocks for the replicas."""
        surplus, self._surplus = self._surplus, []
        if surplus:
            self._coordinator.release_undelivered(self._group, surplus)

    def _finish(self, end: ShareEnd | None) -> None:
        """Release what the stream holds, and write its last message; blocks for the replicas."""
        try:
            self._stop_watching()
            self._release()
            # It may have been called, and has not looked.
            self._coordinator.wake_another(self._group)
        except Exception:
            _logger.exception("what a share stream held expires by a fault of the server")
        try:
            with self._lock:
                self._end_with(end)
            if end is not None:
                self._writer.end(end)
        finally:
            with self._changed:
                self._state = StreamState.ENDED
                self._changed.notify_all()

    def _release(self) -> None:
        """Release what the stream still holds; if that fails, the locks expire."""
        now, unwritten = time.monotonic(), self._writer.unwritten()
        self._surplus += [*self._leased, *unwritten]
        self._release_surplus()
        for each in unwritten:
            self._holds.acknowledged(Acknowledgement.of(each, "release"), now, now)
        held = self._holds.releases(now)
        try:
            errors = self._coordinator.acknowledge(self._group, self._member, held) if held else []
            refused = [each for each, error in zip(held, errors, strict=True) if error]
            # Parts of them were acknowledged by calls beside the stream, as clients do at its end.
            known = self._coordinator.held(self._group) if refused else {}
            for each in still_held(refused, known):
                self._coordinator.acknowledge(self._group, self._member, [each])
        except WingsError as error:
            _logger.info("what a share stream held expires", reason=error.message[:200])

    # Either of the two.

    @property
    def _room(self) -> int:
        return self._holds.room(time.monotonic())

    @property
    def _is_free(self) -> bool:
        """Whether nothing is held, or to be done; the lock is held."""
        busy = self._requests or self._state is not StreamState.IDLE or self._has_blocking
        return not (busy or self._holds.messages)

    @property
    def _has_blocking(self) -> bool:
        """Whether there is something that may block; the lock is held."""
        if self._leased or self._surplus or self._writer.outbox:
            return True
        if self._is_over or self._has_group_changed:
            return True
        return any(entry.type != "accept" for message in self._requests for entry in message.acks)

    @property
    def _has_work(self) -> bool:
        """Whether there is something for a turn to do; the lock is held."""
        if self._requests:
            return True
        return self._look and (self._room > 0 or self._watch is not None)

    def _send(self, part: DeliveredBatch) -> None:
        """Deliver a part as far as that does not wait for the client."""
        self._holds.add(part.range, self._asked_at, time.monotonic())
        self._writer.deliver(part)

    def _within_room(self, ranges: Sequence[LeasedRange]) -> Sequence[LeasedRange]:
        """Return what there is room for; the rest is left to be released."""
        within, surplus = divided(ranges, self._room)
        self._surplus += surplus
        return within

    def _request(self, room: int) -> AcquireRequest:
        """Return a request for up to `room` messages now."""
        self._asked_at = time.monotonic()
        most = self._opened.command.max_messages
        self._asked = AcquireRequest(
            self._group, self._member, self._opened.partition, room, room, most
        )
        return self._asked

    def _take_requests(self) -> Sequence[AcknowledgeMessage]:
        """Take the acknowledgements that were read; the lock is held."""
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

    def _stand_back(self) -> bool:
        """Be called no more, and have another called instead; returns whether it was."""
        was_watching = self._stop_watching()
        if was_watching:
            self._coordinator.wake_another(self._group)
        return was_watching
