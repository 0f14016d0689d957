"""DoExchange of kind `share`: deliveries and acknowledgements of one member, both ways at once.

    handler's thread: read ─▶ parse ─▶ queue ─▶ offer a turn to the group's flow
    flow's thread:    acknowledge ─▶ answer ─▶ acquire ─▶ deliver, for all streams at once
    worker's thread:  what may take longer than that, and waiting

A pyarrow server that returns from a call while another thread reads its stream aborts the process
(seen), so the handler's thread reads until the client has ended its side, and joins the worker. Who
has the turn writes: the flow no more than cannot wait for the client, the worker the rest; so a
client that does not read holds up nothing but its own stream.
"""

import threading
import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import cast

import pyarrow as pa
import pyarrow.flight as flight
import structlog
from pyarrow.ipc import get_record_batch_size

from wings_core.batches import empty_batch
from wings_core.contracts.share import AcquiredWords
from wings_core.contracts.share_stream import (
    AcknowledgeMessage,
    CreditMessage,
    ShareEnd,
    answer_metadata,
    end_metadata,
    parse_client_message,
)
from wings_core.errors import (
    Internal,
    InvalidArgument,
    NotFound,
    SchemaMismatch,
    Unavailable,
    WingsError,
)
from wings_core.fetch.fetcher import Cancel
from wings_core.log import Log
from wings_core.share.delivery.delivery import Delivery
from wings_core.share.delivery.stream_holds import StreamHolds
from wings_core.share.model import Acquired, AcquireRequest, LeasedRange
from wings_core.share.shares import GroupMoved
from wings_core.times import Deadline
from wings_server.flight.share_flow import ShareFlow, ShareFlows, Turn
from wings_server.flight.share_opening import Admission, Opened, open_stream, refuse
from wings_server.flight.unread import UNREAD_BYTES_MAX, Unread
from wings_server.metrics import Metrics
from wings_server.share_actions import Settled, settle_entries

REQUESTS_WAITING_MAX = 1_000
"""Acknowledgements of one stream that wait for their turn; with more, it is read no further."""

DRAIN_SECONDS_MAX = 2.0
"""How long a stop waits for members to acknowledge what they hold."""

FREE_LOOK_SECONDS = 0.02
"""A stop looks so often whether they have."""

PAUSE_SECONDS = (0.05, 1.0)
"""The pause after messages could not be acquired or read: at first, and after many times."""

_logger = structlog.get_logger("wings.flight")


class _ClientGone(Exception):  # noqa: N818 - not an error of ours.
    """A write failed: nothing more reaches the client."""


class ShareStreams:
    """The share streams of a server; all methods from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: set[ShareStream] = set()
        self._flows = ShareFlows()

    def serve(
        self,
        log: Log,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.MetadataRecordBatchWriter,
        metrics: Metrics,
        admission: Admission,
    ) -> None:
        """Serve a stream until its client has ended its side; blocks for as long as that takes."""
        try:
            opened = open_stream(log, descriptor, admission)
        except WingsError as error:
            metrics.failed("flight", error.code)
            refuse(writer, error)
        else:
            flow = self._flows.join(log.shares, opened.group)
            stream = ShareStream(log, opened, writer, metrics, admission, flow)
            with self._lock:
                self._open.add(stream)
            try:
                stream.run(reader)
            finally:
                with self._lock:
                    self._open.discard(stream)
                self._flows.leave(opened.group)
        for _ in _messages(reader):
            pass  # It waits for the client to end its side.

    def stop(self, drain_seconds: float) -> None:
        """End all streams in order; their clients are told, and what they hold is released.

        Before that nothing more is delivered, and their members have `drain_seconds`, at most
        `DRAIN_SECONDS_MAX`, to acknowledge what they hold. Blocks meanwhile.
        """
        with self._lock:
            streams = list(self._open)
        for stream in streams:
            stream.drain()
        deadline = Deadline.after(min(drain_seconds, DRAIN_SECONDS_MAX))
        for stream in streams:
            stream.wait_until_free(deadline)
        for stream in streams:
            stream.end(ShareEnd(None, "the server is stopping"))


class ShareStream:
    """One stream.

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
        self._pushed_in = log.pushed_in
        self._opened = opened
        self._group = opened.group
        self._member = opened.command.member
        self._writer = writer
        self._metrics = metrics
        self._flow = flow
        self._nothing = empty_batch(opened.schema)
        self._cancel = Cancel()
        self._lock = threading.Lock()
        """Of the condition below; to take it is cheaper, where nothing is waited for."""
        self._changed = threading.Condition(self._lock)
        # Guarded by it.
        self._credit: int | None = None
        """None: the client's first message has not come, so nothing is delivered yet."""
        self._requests: deque[AcknowledgeMessage] = deque()
        self._requests_read = 0
        self._look = True
        """Whether there may be something to acquire."""
        self._end: ShareEnd | None = None
        self._is_draining = False
        """Whether nothing more is delivered."""
        self._closed = False
        """Whether the client has ended its side."""
        self._is_done = False
        """Whether the worker has ended, and takes no more requests."""
        self._is_taken = False
        """Whether the flow has the turn."""
        self._is_left = True
        """Whether the worker has the turn, or is to have it next."""
        self._wakes_at: float | None = None
        """When the worker looks around by itself; None: never."""
        # Of who has the turn.
        self._holds = StreamHolds()
        self._unread = Unread()
        self._outbox: list[tuple[pa.RecordBatch, bytes]] = []
        """What the flow has left to the worker to write."""
        self._leased: list[LeasedRange] = []
        """What it has left to it to deliver."""
        self._surplus: list[LeasedRange] = []
        """What it has left to it to release."""
        self._look_at: float | None = None
        """When to look again without being told."""
        self._failures = 0
        self._watching = ExitStack()
        self._is_watching = False
        """Whether it is called when there are messages."""

    def run(self, reader: flight.MetadataRecordBatchReader) -> None:
        """Serve until the client ends its side, or the stream was ended; blocks meanwhile."""
        worker = threading.Thread(target=self._work, name="wings-share-stream", daemon=True)
        worker.start()
        try:
            for raw in _messages(reader):
                if not self._receive(raw):
                    break
        finally:
            with self._changed:
                self._closed = self._end is None
                self._cancel.cancel(Unavailable("the stream has ended"))
                self._changed.notify_all()
            worker.join()

    def end(self, end: ShareEnd) -> None:
        """End the stream after the answers to what was received; the first call counts."""
        with self._changed:
            self._end = self._end or end
            self._cancel.cancel(Unavailable("the stream has ended"))
            self._changed.notify_all()

    def drain(self) -> None:
        """Deliver no more; what is held may be acknowledged on."""
        with self._changed:
            self._is_draining = True
            self._credit = 0

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
            if self._credit is None:
                self._credit, self._look = self._opened.command.credit, True
            if isinstance(message, CreditMessage):
                self._credit = 0 if self._is_draining else message.credit
                self._look = True  # Without room, it stops waiting for messages.
            else:
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

    def _parsed(self, raw: bytes | None) -> AcknowledgeMessage | CreditMessage:
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
            self._holds.expire(time.monotonic())
            wants = self._look and self._room > 0
            is_quick = all(
                entry.type == "accept" for message in self._requests for entry in message.acks
            )
            leaves_watch = self._look and self._is_watching and not wants
            if not is_quick or (leaves_watch and not self._requests):
                self._is_left = True
                self._changed.notify_all()
                return None
            if not self._requests and not wants:
                return None
            turn = Turn(self, self._member, self._take_requests())
            self._is_taken = True  # Last: it is given back only where this returns.
            return turn

    def answer(self, requests: Sequence[AcknowledgeMessage], settled: Sequence[Settled]) -> None:
        """See `FlowStream.answer`."""
        now = time.monotonic()
        for message, (errors, done) in zip(requests, settled, strict=True):
            self._unread.acknowledged(message.acks)
            for each in done:
                self._holds.acknowledged(each, now)
            answer = answer_metadata(message.request, message.acks, errors)
            self._put(self._nothing, answer, len(answer))

    def wanted(self, requests: Sequence[AcknowledgeMessage]) -> AcquireRequest | None:
        """See `FlowStream.wanted`."""
        done = 0
        for message in requests:
            for entry in message.acks:
                done += entry.last - entry.first + 1
        with self._lock:
            room = (self._credit or 0) - max(0, self._holds.messages - done)
            if self._outbox or not self._look or room <= 0 or self._is_over:
                return None
            self._look = False
        self._stop_watching()
        return self._request(room, archives=False)

    def deliver(self, acquired: Acquired | WingsError) -> None:
        """See `FlowStream.deliver`."""
        self._look = True
        if isinstance(acquired, WingsError) or not acquired.ranges:
            self._is_left = True  # The worker looks further, and waits.
            return
        for leased in self._within_room(acquired.ranges):
            kept = None
            if not (self._leased or self._outbox):
                kept = self._shares.kept(self._group, leased)
            if kept is None:
                self._leased.append(leased)
                self._is_left = True
                continue
            self._send_pieces(kept)

    def _within_room(self, ranges: Sequence[LeasedRange]) -> Sequence[LeasedRange]:
        """Return what there is room for; what more was acquired is left to the worker to release.

        It is more only where an acknowledgement failed, or the client has taken back credit.
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
            if self._is_left or self._is_over or self._is_due_earlier():
                self._changed.notify_all()
            is_next = not self._is_left and self._has_work
        if is_next:
            self._flow.offer(self)

    def _put(
        self,
        batch: pa.RecordBatch,
        metadata: bytes,
        size: int = 0,
        delivered: tuple[str, int] | None = None,
    ) -> None:
        """Write so many bytes to the client, or leave it to the worker where that might wait."""
        has_room = self._unread.wrote(size, delivered) and not self._outbox
        if not has_room or not self._try_write(batch, metadata):
            self._outbox.append((batch, metadata))
            self._is_left = True

    # The worker's thread.

    def _work(self) -> None:
        end: ShareEnd | None
        try:
            self._writer.begin(self._opened.schema)
            end = self._serve()
        except SchemaMismatch:
            # Messages were released: a stream keeps the schema that it began with.
            end = ShareEnd(None, "the topic's schema has grown: another stream reads all of it")
        except WingsError as error:
            self._metrics.failed("flight", error.code)
            end = ShareEnd(error.code, error.message)
        except (_ClientGone, pa.ArrowException, OSError):
            end = None
        except Exception as error:
            _logger.exception("share stream failed by a fault of the server")
            end = ShareEnd(Internal.code, f"internal error: {type(error).__name__}")
        try:
            self._release()
            self._shares.wake_another(self._group)  # It may have been called, and has not looked.
        except Exception:
            _logger.exception("what a share stream held expires by a fault of the server")
        try:
            if end is not None:
                self.end(end)
                self._try_write(self._nothing, end_metadata(end))
        finally:
            with self._changed:
                self._is_done = True
                self._changed.notify_all()

    def _serve(self) -> ShareEnd | None:
        """Do what the flow leaves; returns why it ended, None where the client ended its side."""
        with self._shares.following(self._group, self._wake), self._watching:
            while True:
                requests, is_over = self._wait()
                if (requests or self._outbox) and self._stop_watching():
                    # It may take long, and others could take what it is called for.
                    self._look = True
                    self._shares.wake_another(self._group)
                try:
                    self._write_outbox()
                finally:
                    if requests:
                        self._acknowledge(requests)
                if is_over:
                    return self._end
                leased, self._leased = self._leased, []
                self._send_all(leased)
                self._release_surplus()
                while self._look and self._room > 0 and not self._requests and not self._is_over:
                    self._deliver(self._room)
                if self._look and self._stop_watching():
                    self._shares.wake_another(self._group)
                with self._changed:
                    self._is_left = False
                    is_next = self._has_work
                if is_next:
                    self._flow.offer(self)

    def _wait(self) -> tuple[Sequence[AcknowledgeMessage], bool]:
        """Block until the turn is the worker's, and there is something to do.

        Returns:
            Acknowledgements, and whether the stream is over.
        """
        with self._changed:
            while True:
                if self._is_taken:
                    self._wakes_at = None
                    self._changed.wait(self._admission.check_seconds)
                    continue
                now = time.monotonic()
                self._end_with_token()
                before = self._holds.messages
                self._holds.expire(now)
                if self._look_at is not None and now >= self._look_at:
                    self._look, self._look_at, self._is_left = True, None, True
                if self._look and self._holds.messages < before:
                    self._is_left = True
                if self._is_left or self._is_over:
                    self._is_left = True
                    return self._take_requests(), self._is_over
                self._wakes_at = self._due()
                if self._admission.check_seconds is not None:
                    check_at = now + self._admission.check_seconds
                    self._wakes_at = min(check_at, self._wakes_at or check_at)
                self._changed.wait(None if self._wakes_at is None else self._wakes_at - now)

    def _acknowledge(self, requests: Sequence[AcknowledgeMessage]) -> None:
        """Acknowledge all that was read, and answer; blocks until it is durable."""
        asked = [(self._member, message.acks) for message in requests]
        # A client that is gone is no reason to leave the others of its requests undone.
        self.answer(requests, settle_entries(self._shares, self._group, asked, ())[0])
        self._write_outbox()

    def _deliver(self, room: int) -> None:
        """Acquire and deliver up to `room` messages, or see to it that the worker is woken."""
        request = self._request(room, archives=True)
        try:
            self._stop_watching()  # Who is busy is not woken for messages that others could take.
            self._look = False
            acquired = self._shares.acquire_now(request)
            if not acquired.ranges:
                self._watching.enter_context(self._shares.watch(request, self._wake))
                self._is_watching = True
                acquired = self._shares.acquire_now(request)
                if acquired.ranges:
                    self._stop_watching()
                    # It may have been called for more than it has room for.
                    self._shares.wake_another(self._group)
            if acquired.ranges:
                self._look = True
            elif acquired.again_after_seconds is not None:
                self._look_at = time.monotonic() + acquired.again_after_seconds
            self._send_all(acquired.ranges)
            self._failures = 0
        except WingsError as error:
            self._pause(error)

    def _send_all(self, ranges: Sequence[LeasedRange]) -> None:
        """Read leased ranges, and deliver them; blocks for the reads, and for the client.

        Raises:
            WingsError: Nothing can be delivered any more.
        """
        try:
            with closing(
                self._shares.deliver(self._group, self._member, ranges, self._cancel)
            ) as parts:
                for part in parts:
                    self._send_pieces(part, waits=True)
        except WingsError as error:
            self._pause(error)

    def _pause(self, error: WingsError) -> None:
        """Wait a while after what may pass; raises what does not."""
        is_over = isinstance(error, NotFound | GroupMoved | SchemaMismatch)
        if is_over or self._shares.damage is not None:
            raise error
        if self._cancel.error is not None:
            return
        _logger.warning("messages are not delivered for now", **error.to_json())
        least, most = PAUSE_SECONDS
        self._look = False
        self._look_at = time.monotonic() + min(most, least * 2 ** min(self._failures, 16))
        self._failures += 1

    def _write_outbox(self) -> None:
        """Write what might wait for the client."""
        outbox, self._outbox = self._outbox, []
        for batch, metadata in outbox:
            if not self._try_write(batch, metadata):
                raise _ClientGone

    def _release_surplus(self) -> None:
        """Release what was acquired and is not delivered; blocks for the replicas."""
        surplus, self._surplus = self._surplus, []
        if surplus:
            self._shares.release_undelivered(self._group, surplus)

    def _release(self) -> None:
        """Release what the stream still holds; if that fails, the locks expire."""
        self._surplus += self._leased
        self._release_surplus()
        self._holds.expire(time.monotonic())
        held = self._holds.releases()
        try:
            results = self._shares.acknowledge(self._group, self._member, held) if held else []
            refused = [result for result in results if result.error is not None]
            if len(results) > 1:
                for result in refused:  # Each alone: another of its partition may be the cause.
                    self._shares.acknowledge(self._group, self._member, [result.acknowledgement])
        except WingsError as error:
            _logger.info("what a share stream held expires", reason=error.message[:200])

    # Any thread.

    def _wake(self) -> None:
        with self._changed:
            self._look = True
            is_free = not (self._is_taken or self._is_left)
            if self._is_over:
                return
        if is_free:
            self._flow.offer(self)

    # Of who has the turn, or the lock.

    @property
    def _room(self) -> int:
        return (self._credit or 0) - self._holds.messages

    @property
    def _is_free(self) -> bool:
        """Whether nothing is held, or to be done; the lock is held."""
        busy = self._requests or self._is_taken or self._is_left or self._outbox or self._leased
        return not busy and not self._holds.messages

    @property
    def _is_over(self) -> bool:
        return self._closed or self._end is not None or self._is_done

    @property
    def _has_work(self) -> bool:
        return bool(self._requests) or (self._look and (self._room > 0 or self._is_watching))

    def _request(self, room: int, *, archives: bool) -> AcquireRequest:
        return AcquireRequest(
            self._group,
            self._member,
            self._opened.partition,
            room,
            room,
            archives,
            self._opened.command.max_messages,
        )

    def _take_requests(self) -> Sequence[AcknowledgeMessage]:
        """Take what was read; the lock is held."""
        requests = list(self._requests)
        self._requests.clear()
        if len(requests) >= REQUESTS_WAITING_MAX:
            self._changed.notify_all()
        return requests

    def _stop_watching(self) -> bool:
        """Be called for messages no more; returns whether it was."""
        was_watching, self._is_watching = self._is_watching, False
        if was_watching:
            self._watching.close()
        return was_watching

    def _due(self) -> float | None:
        """Return when there may be something to do without being told; the lock is held."""
        ends = self._holds.next_expiry() if self._room <= 0 else None
        if ends is None or self._look_at is None:
            return self._look_at if ends is None else ends
        return min(ends, self._look_at)

    def _is_due_earlier(self) -> bool:
        """Tell whether that is earlier than the worker looks; the lock is held."""
        due = self._due()
        return due is not None and (self._wakes_at is None or due < self._wakes_at)

    def _end_with_token(self) -> None:
        """End the stream once its caller's token was revoked or has expired."""
        error = self._admission.principal.ended()
        if error is not None and self._end is None:
            self._end = ShareEnd(error.code, error.message)
            self._cancel.cancel(error)

    def _send_pieces(self, part: Delivery, *, waits: bool = False) -> None:
        """Deliver a part in as many pieces as the client wants, counted as one.

        Args:
            part: What is delivered.
            waits: Whether it may wait for the client.
        """
        self._holds.add(part.range, time.monotonic())
        rows, leased = part.batch.num_rows, part.range
        size = get_record_batch_size(part.batch)
        self._metrics.delivered("flight", rows, size, self._group.topic.name)
        usage = self._admission.usage
        words, most = AcquiredWords.of(leased), self._opened.command.max_messages
        # All of a small one may lie unread, however its bytes are spread.
        about = size * most // rows if most < rows and size <= UNREAD_BYTES_MAX // 2 else None
        for first, last, batch in _pieces(part, most):
            bytes_ = get_record_batch_size(batch) if about is None else about
            traces = self._pushed_in(self._group.topic, leased.partition, first, last)
            if usage is not None:  # Counted, and not refused: it is leased already.
                usage.hold(bytes_)
            self._put(batch, words.metadata(first, last, traces), bytes_, (leased.lease, first))
            if usage is not None:
                usage.release(bytes_)
            if waits:
                self._write_outbox()

    def _try_write(self, batch: pa.RecordBatch, metadata: bytes) -> bool:
        """Write to the client; False where it has gone."""
        try:
            self._writer.write_with_metadata(batch, pa.py_buffer(metadata))
        except (pa.ArrowException, OSError):
            return False
        return True


def _messages(reader: flight.MetadataRecordBatchReader) -> Generator[bytes | None]:
    """Yield the messages of the client until it ends its side or is gone; None: not metadata."""
    while True:
        try:
            chunk = reader.read_chunk()
        except (StopIteration, pa.ArrowException, OSError):
            return
        if chunk.data is not None or chunk.app_metadata is None:
            yield None
        else:
            yield chunk.app_metadata.to_pybytes()


def _pieces(part: Delivery, messages_max: int) -> Iterator[tuple[int, int, pa.RecordBatch]]:
    """Cut a delivery into some of at most so many messages, with the range that each covers."""
    rows, first, last = part.batch.num_rows, part.range.start_offset, part.range.end_offset
    if rows <= messages_max:
        yield first, last, part.batch
        return
    offsets = cast("list[int]", part.batch.column("__offset").to_pylist())
    for row in range(0, rows, messages_max):
        after = row + messages_max
        end = last if after >= rows else offsets[after] - 1
        yield first, end, part.batch.slice(row, messages_max)
        first = end + 1
