"""DoExchange of kind `share`: deliveries and acknowledgements of one member, both ways at once.

    handler's thread: read ─▶ parse ─▶ queue                     (it alone reads the stream)
    worker's thread:  acknowledge ─▶ answers ─▶ acquire ─▶ deliveries ─▶ wait

A pyarrow server that returns from a call while another thread reads its stream aborts the process
(seen), so the handler's thread reads until the client has ended its side, and joins the worker. The
worker alone writes, so a client that does not read holds up nothing but its own stream.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.flight as flight
import structlog

from wings_core.batches import empty_batch
from wings_core.contracts.share import acquired_metadata
from wings_core.contracts.share_stream import (
    AcknowledgeMessage,
    CreditMessage,
    ShareCommand,
    ShareEnd,
    answer_metadata,
    end_metadata,
    parse_client_message,
    parse_share_command,
)
from wings_core.errors import Internal, InvalidArgument, NotFound, Unavailable, WingsError
from wings_core.fetch.fetcher import Cancel
from wings_core.log import Log
from wings_core.names import TopicName
from wings_core.partitions import Partition
from wings_core.security.principal import ANYONE, Principal
from wings_core.security.quotas import CallUsage
from wings_core.share.delivery.delivery import Delivery, delivery_schema
from wings_core.share.delivery.stream_holds import StreamHolds
from wings_core.share.model import AcquireRequest, ShareGroup
from wings_core.share.shares import GroupMoved
from wings_server.flight.acquire import wanted_partition
from wings_server.metrics import Metrics
from wings_server.share_actions import acknowledge_entries, acknowledgement_of

REQUESTS_WAITING_MAX = 1_000
"""Acknowledgements of one stream that wait for their turn; with more, it is read no further."""

CHECK_SECONDS = 1.0
"""How often it is looked whether the token of a stream's caller has ended."""

PAUSE_SECONDS = (0.05, 1.0)
"""The pause after messages could not be acquired or read: at first, and after many times."""

_logger = structlog.get_logger("wings.flight")


class _ClientGone(Exception):  # noqa: N818 - not an error of ours.
    """A write failed: nothing more reaches the client."""


@dataclass(frozen=True, slots=True)
class _Opened:
    """A descriptor, resolved against the log."""

    command: ShareCommand
    group: ShareGroup
    partition: Partition | None
    schema: pa.Schema


@dataclass(frozen=True, slots=True)
class Admission:
    """Who opens a stream, and whether it may."""

    allow: Callable[[str], None]
    """Raises `PermissionDenied` for a topic that the caller may not acquire messages of."""
    principal: Principal
    usage: CallUsage | None
    """What the call uses of the principal's quotas; None: it has none."""

    @property
    def check_seconds(self) -> float | None:
        """How often it is looked whether the principal has ended; None: it cannot."""
        return None if self.principal is ANYONE else CHECK_SECONDS


class ShareStreams:
    """The share streams of a server; all methods from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: set[ShareStream] = set()

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
            opened = _open(log, descriptor, admission)
        except WingsError as error:
            metrics.failed("flight", error.code)
            _refuse(writer, error)
        else:
            stream = ShareStream(log, opened, writer, metrics, admission)
            with self._lock:
                self._open.add(stream)
            try:
                stream.run(reader)
            finally:
                with self._lock:
                    self._open.discard(stream)
        for _ in _messages(reader):
            pass  # It waits for the client to end its side.

    def stop(self) -> None:
        """End all streams in order; their clients are told, and what they hold is released."""
        with self._lock:
            streams = list(self._open)
        for stream in streams:
            stream.end(ShareEnd(None, "the server is stopping"))


class ShareStream:
    """One stream.

    Args:
        log: Where the group is.
        opened: The descriptor.
        writer: To the client.
        metrics: Counts what is delivered.
        admission: Ends the stream with the token of its caller.
    """

    def __init__(
        self,
        log: Log,
        opened: _Opened,
        writer: flight.MetadataRecordBatchWriter,
        metrics: Metrics,
        admission: Admission,
    ) -> None:
        self._admission = admission
        self._shares = log.shares
        self._opened = opened
        self._group = opened.group
        self._member = opened.command.member
        self._writer = writer
        self._metrics = metrics
        self._nothing = empty_batch(opened.schema)
        self._cancel = Cancel()
        self._changed = threading.Condition()
        # Guarded by it.
        self._credit = opened.command.credit
        self._requests: deque[AcknowledgeMessage] = deque()
        self._requests_read = 0
        self._look = True
        """Whether there may be something to acquire."""
        self._end: ShareEnd | None = None
        self._closed = False
        """Whether the client has ended its side."""
        self._is_done = False
        """Whether the worker has ended, and takes no more requests."""
        # The worker's alone.
        self._holds = StreamHolds()
        self._look_at: float | None = None
        """When to look again without being told."""
        self._failures = 0
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

    # The handler's thread.

    def _receive(self, raw: bytes | None) -> bool:
        """Take a message of the client; False where the stream has ended."""
        try:
            if raw is None:
                raise InvalidArgument("message: a client sends app_metadata alone")
            message = parse_client_message(raw)
            if isinstance(message, AcknowledgeMessage):
                self._requests_read += 1
                if message.request != self._requests_read:
                    raise InvalidArgument(
                        f"message: key 'request': expected {self._requests_read}; got "
                        f"{message.request}"
                    )
        except WingsError as error:
            self.end(ShareEnd(error.code, error.message))
            return False
        with self._changed:
            if isinstance(message, CreditMessage):
                self._credit = message.credit
                self._look = True  # Without room, it stops waiting for messages.
            else:
                self._changed.wait_for(
                    lambda: (
                        len(self._requests) < REQUESTS_WAITING_MAX
                        or self._end is not None
                        or self._is_done
                    )
                )
                self._requests.append(message)
            self._changed.notify_all()
            return self._end is None and not self._is_done

    # The worker's thread.

    def _work(self) -> None:
        end: ShareEnd | None
        try:
            self._writer.begin(self._opened.schema)
            end = self._serve()
        except WingsError as error:
            self._metrics.failed("flight", error.code)
            end = ShareEnd(error.code, error.message)
        except (_ClientGone, pa.ArrowException, OSError):
            end = None
        except Exception as error:
            _logger.exception("share stream failed by a fault of the server")
            end = ShareEnd(Internal.code, f"internal error: {type(error).__name__}")
        self._release()
        self._shares.wake_another(self._group)  # It may have been called, and has not looked.
        if end is not None:
            self.end(end)
            self._try_write(self._nothing, end_metadata(end))
        with self._changed:
            self._is_done = True
            self._changed.notify_all()

    def _serve(self) -> ShareEnd | None:
        """Acknowledge and deliver; returns why it ended, None where the client ended its side."""
        with self._shares.following(self._group, self._wake), ExitStack() as watching:
            while True:
                requests, room, is_over = self._wait()
                if requests:
                    self._acknowledge(requests)
                if is_over:
                    return self._end
                if room > 0 and not requests:
                    self._deliver(room, watching)
                elif self._is_watching and not requests:
                    self._is_watching = False
                    watching.close()
                    self._shares.wake_another(self._group)

    def _wait(self) -> tuple[list[AcknowledgeMessage], int, bool]:
        """Block until there is something to do.

        Returns:
            Acknowledgements; how many messages may be delivered, of which there may be some; and
            whether the stream is over.
        """
        with self._changed:
            while True:
                now = time.monotonic()
                self._end_with_token()
                self._holds.expire(now)
                room = self._credit - self._holds.messages
                if self._look_at is not None and now >= self._look_at:
                    self._look, self._look_at = True, None
                requests = list(self._requests)
                is_over = self._closed or self._end is not None
                if requests or is_over or (self._look and (room > 0 or self._is_watching)):
                    self._requests.clear()
                    self._changed.notify_all()
                    return requests, room if self._look else 0, is_over
                ends = self._holds.next_expiry() if room <= 0 else self._look_at
                pauses = [] if ends is None else [max(0.0, ends - now)]
                if self._admission.check_seconds is not None:
                    pauses.append(self._admission.check_seconds)
                self._changed.wait(min(pauses, default=None))

    def _end_with_token(self) -> None:
        """End the stream once its caller's token was revoked or has expired."""
        error = self._admission.principal.ended()
        if error is not None and self._end is None:
            self._end = ShareEnd(error.code, error.message)
            self._cancel.cancel(error)

    def _acknowledge(self, requests: Sequence[AcknowledgeMessage]) -> None:
        """Acknowledge all that was read, and answer; blocks until it is durable."""
        acks = [message.acks for message in requests]
        all_errors = acknowledge_entries(self._shares, self._group, self._member, acks)
        now = time.monotonic()
        for message, errors in zip(requests, all_errors, strict=True):
            for entry, error in zip(message.acks, errors, strict=True):
                if error is None:
                    self._holds.acknowledged(acknowledgement_of(self._group, entry), now)
            # A client that is gone is no reason to leave the others of its requests undone.
            answer = answer_metadata(message.request, message.acks, errors)
            self._try_write(self._nothing, answer)

    def _deliver(self, room: int, watching: ExitStack) -> None:
        """Acquire and deliver up to `room` messages, or see to it that the worker is woken."""
        request = AcquireRequest(self._group, self._member, self._opened.partition, room, room)
        try:
            self._is_watching = False
            watching.close()  # Who is busy is not woken for messages that others could take.
            self._look = False
            acquired = self._shares.acquire_now(request)
            if not acquired.ranges:
                watching.enter_context(self._shares.watch(request, self._wake))
                self._is_watching = True
                acquired = self._shares.acquire_now(request)
                if acquired.ranges:
                    self._is_watching = False
                    watching.close()
                    # It may have been called for more than it has room for.
                    self._shares.wake_another(self._group)
            if acquired.ranges:
                self._look = True
            elif acquired.again_after_seconds is not None:
                self._look_at = time.monotonic() + acquired.again_after_seconds
            with closing(
                self._shares.deliver(self._group, self._member, acquired.ranges, self._cancel)
            ) as parts:
                for part in parts:
                    for piece in _pieces(part, self._opened.command.max_messages):
                        self._send(piece)
            self._failures = 0
        except WingsError as error:
            if isinstance(error, NotFound | GroupMoved) or self._shares.damage is not None:
                raise
            if self._cancel.error is not None:
                return
            _logger.warning("messages are not delivered for now", **error.to_json())
            least, most = PAUSE_SECONDS
            self._look_at = time.monotonic() + min(most, least * 2 ** min(self._failures, 16))
            self._failures += 1

    def _send(self, piece: Delivery) -> None:
        self._holds.add(piece.range, time.monotonic())
        self._metrics.delivered("flight", piece.batch.num_rows, piece.batch.nbytes)
        usage = self._admission.usage
        if usage is not None:  # Counted, and not refused: it is leased already.
            usage.hold(piece.batch.nbytes)
        if not self._try_write(piece.batch, acquired_metadata(piece.range)):
            raise _ClientGone
        if usage is not None:
            usage.release(piece.batch.nbytes)

    def _wake(self) -> None:
        with self._changed:
            self._look = True
            self._changed.notify_all()

    def _release(self) -> None:
        """Release what the stream still holds; if that fails, the locks expire."""
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

    def _try_write(self, batch: pa.RecordBatch, metadata: bytes) -> bool:
        """Write to the client; False where it has gone."""
        try:
            self._writer.write_with_metadata(batch, pa.py_buffer(metadata))
        except (pa.ArrowException, OSError):
            return False
        return True


def _open(log: Log, descriptor: flight.FlightDescriptor, admission: Admission) -> _Opened:
    """Resolve a descriptor.

    Raises:
        InvalidArgument: It is no command of a share stream.
        PermissionDenied: The caller may not acquire messages of its topic.
        TopicNotFound: No such topic.
        GroupNotFound: It has no such group.
        PartitionTypeMismatch: And the other errors of a partition value.
        StorageCorrupt: All groups are closed.
    """
    if descriptor.command is None:
        raise InvalidArgument("the descriptor is no JSON command")
    command = parse_share_command(descriptor.command)
    admission.allow(command.topic)
    group = log.shares.find(TopicName.parse(command.topic), command.group)
    if log.shares.damage is not None:
        raise log.shares.damage
    partition = wanted_partition(
        group.topic, command.partition, any_partition=command.any_partition
    )
    return _Opened(command, group, partition, delivery_schema(group.topic))


def _refuse(writer: flight.MetadataRecordBatchWriter, error: WingsError) -> None:
    schema = pa.schema([])
    try:
        writer.begin(schema)
        end = ShareEnd(error.code, error.message)
        writer.write_with_metadata(empty_batch(schema), pa.py_buffer(end_metadata(end)))
    except (pa.ArrowException, OSError):
        return


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


def _pieces(part: Delivery, messages_max: int) -> Iterator[Delivery]:
    """Cut a delivery into some of at most so many messages each."""
    rows = part.batch.num_rows
    if rows <= messages_max:
        yield part
        return
    offsets = part.batch.column("__offset")
    start = part.range.start_offset
    for row in range(0, rows, messages_max):
        after = row + messages_max
        end = part.range.end_offset if after >= rows else offsets[after].as_py() - 1
        covered = replace(part.range, start_offset=start, end_offset=end)
        yield Delivery(covered, part.batch.slice(row, messages_max))
        start = end + 1
