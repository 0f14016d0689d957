"""DoExchange of kind `share`: deliveries and acknowledgements of one member, both ways at once.

    handler's thread: read ─▶ parse ─▶ queue ─▶ offer a turn to the group's flow
    flow's thread:    acknowledge ─▶ answer ─▶ acquire ─▶ deliver, for all streams at once
    worker's thread:  what may take longer than that, and what is found by waiting

A pyarrow server that returns from a call while another thread reads its stream aborts the process
(seen), so the handler's thread reads until the client has ended its side, and joins the worker. Who
has the turn writes: the flow no more than cannot wait for the client, the worker the rest; so a
client that does not read holds up nothing but its own stream.
"""

import threading
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace

import pyarrow as pa
import pyarrow.flight as flight
import structlog

from wings_core.contracts.share_stream import AcknowledgeMessage, ShareEnd
from wings_core.errors import Internal, NotFound, SchemaMismatch, Unavailable, WingsError
from wings_core.model import HeldRange, LeasedRange
from wings_core.partitions import Partition
from wings_core.share.model import Acknowledgement
from wings_core.share.shares import GroupMoved
from wings_server.flight.share_turns import ShareTurns
from wings_server.flight.share_writer import ClientLeft
from wings_server.share_actions import settle_entries

PAUSE_SECONDS = (0.05, 1.0)
"""The pause after messages could not be acquired or read: at first, and after many times."""

_logger = structlog.get_logger("wings.flight")


class ServedStream(ShareTurns):
    """One stream, with its worker."""

    def run(self, reader: flight.MetadataRecordBatchReader) -> None:
        """Serve until the client ends its side, or the stream was ended; blocks meanwhile."""
        worker = threading.Thread(target=self._work, name="wings-share-stream", daemon=True)
        worker.start()
        try:
            for raw in messages_of(reader):
                if not self._receive(raw):
                    break
        finally:
            with self._changed:
                self._closed = self._end is None
                self._cancel.cancel(Unavailable("the stream has ended"))
                self._changed.notify_all()
            worker.join()

    # The worker's thread.

    def _work(self) -> None:
        end: ShareEnd | None
        try:
            self._writer.begin()
            end = self._serve()
        except SchemaMismatch:
            # Messages were released: a stream keeps the schema that it began with.
            end = ShareEnd(None, "the topic's schema has grown: another stream reads all of it")
        except WingsError as error:
            self._metrics.failed("flight", error.code)
            end = ShareEnd(error.code, error.message)
        except (ClientLeft, pa.ArrowException, OSError):
            end = None
        except Exception as error:
            _logger.exception("share stream failed by a fault of the server")
            end = ShareEnd(Internal.code, f"internal error: {type(error).__name__}")
        try:
            self._release()
            self._coordinator.wake_another(
                self._group
            )  # It may have been called, and has not looked.
        except Exception:
            _logger.exception("what a share stream held expires by a fault of the server")
        try:
            if end is not None:
                self.end(end)
                self._writer.end(end)
        finally:
            with self._changed:
                self._is_done = True
                self._changed.notify_all()

    def _serve(self) -> ShareEnd | None:
        """Do what the flow leaves; returns why it ended, None where the client ended its side."""
        with (
            self._coordinator.following(self._group, self._group_changed),
            ExitStack() as stack,
        ):
            stack.callback(self._stop_watching)
            while True:
                requests, is_over = self._wait()
                if (requests or self._writer.outbox) and self._stop_watching():
                    # It may take long, and others could take what it is called for.
                    self._look = True
                    self._coordinator.wake_another(self._group)
                try:
                    self._writer.write_rest()
                finally:
                    if requests or not is_over:  # Without any, it tells whether the group is there.
                        self._acknowledge(requests)
                if is_over:
                    return self._end
                leased, self._leased = self._leased, []
                self._send_all(leased)
                self._release_surplus()
                while self._look and self._room > 0 and not self._requests and not self._is_over:
                    self._deliver(self._room)
                if self._look and self._stop_watching():
                    self._coordinator.wake_another(self._group)
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
                seconds = self._admission.check_seconds
                if self._is_taken:
                    self._changed.wait(seconds)
                    continue
                now = time.monotonic()
                self._end_with_token()
                if self._look_at is not None and now >= self._look_at:
                    self._look, self._look_at, self._is_left = True, None, True
                if self._is_left or self._is_over or self._may_be_over:
                    self._is_left, self._may_be_over = True, False
                    return self._take_requests(), self._is_over
                if self._look_at is not None:
                    pause = self._look_at - now
                    seconds = pause if seconds is None else min(seconds, pause)
                self._changed.wait(seconds)

    def _acknowledge(self, requests: Sequence[AcknowledgeMessage]) -> None:
        """Acknowledge all that was read, and answer; blocks until it is durable."""
        asked = [(self._member, message.acks) for message in requests]
        # A client that is gone is no reason to leave the others of its requests undone.
        self.answer(requests, settle_entries(self._coordinator, self._group, asked, ())[0])
        self._writer.write_rest()

    def _deliver(self, room: int) -> None:
        """Acquire and deliver up to `room` messages, or see to it that the worker is woken."""
        request = self._request(room)
        try:
            self._stop_watching()  # Who is busy is not woken for messages that others could take.
            self._look = False
            # Most often the flow has found nothing just now: it is called from before this look.
            self._watch = self._coordinator.watch(request, self._wake)
            acquired = self._coordinator.acquire_now(request)
            if acquired.ranges:
                self._stop_watching()
                # It may have been called for more than it has room for.
                self._coordinator.wake_another(self._group)
                self._look = True
            self._send_all(self._within_room(acquired.ranges))
            self._release_surplus()
            self._failures = 0
        except WingsError as error:
            if self._stop_watching():  # It does not look until the pause is over.
                self._coordinator.wake_another(self._group)
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
        """Wait a while after what may pass; raises what does not."""
        is_over = isinstance(error, NotFound | GroupMoved | SchemaMismatch)
        if is_over or self._coordinator.damage is not None:
            raise error
        if self._cancel.error is not None:
            return
        _logger.warning("messages are not delivered for now", **error.to_json())
        least, most = PAUSE_SECONDS
        self._look = False
        self._look_at = time.monotonic() + min(most, least * 2 ** min(self._failures, 16))
        self._failures += 1

    def _release_surplus(self) -> None:
        """Release what was acquired and is not delivered; blocks for the replicas."""
        surplus, self._surplus = self._surplus, []
        if surplus:
            self._coordinator.release_undelivered(self._group, surplus)

    def _release(self) -> None:
        """Release what the stream still holds; if that fails, the locks expire."""
        now, unwritten = time.monotonic(), self._writer.unwritten()
        self._surplus += [*self._leased, *unwritten]
        self._release_surplus()
        for each in unwritten:
            self._holds.acknowledged(_released(each), now, now)
        held = self._holds.releases(now)
        try:
            results = self._coordinator.acknowledge(self._group, self._member, held) if held else []
            refused = [each.acknowledgement for each in results if each.error is not None]
            for each in self._still_held(refused) if refused else ():
                self._coordinator.acknowledge(self._group, self._member, [each])
        except WingsError as error:
            _logger.info("what a share stream held expires", reason=error.message[:200])

    def _still_held(self, refused: Sequence[Acknowledgement]) -> Generator[Acknowledgement]:
        """Yield what is left to release of ranges that were refused whole.

        Parts of them were acknowledged by calls beside the stream, as clients do while it ends.
        """
        leases: dict[tuple[Partition, str], list[HeldRange]] = {}
        for partition, ranges in self._coordinator.held(self._group).items():
            for held in ranges:
                leases.setdefault((partition, str(held.lease)), []).append(held)
        for each in refused:
            for held in leases.get((each.partition, each.lease), ()):
                first, last = max(each.first, held.first), min(each.last, held.last)
                if first <= last:
                    yield replace(each, first=first, last=last)


def _released(leased: LeasedRange) -> Acknowledgement:
    first, last = leased.start_offset, leased.end_offset
    return Acknowledgement(leased.partition, first, last, leased.lease, "release")


def messages_of(reader: flight.MetadataRecordBatchReader) -> Generator[bytes | None]:
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
