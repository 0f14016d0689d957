"""The share consumer: a member of a share group, which renews the locks of what it processes.

Deliveries and acknowledgements go over one share stream. Long polls and calls stand in for it where
the consumer only looks what is there (a timeout of 0, and before a time-out), where it holds as
much as a stream may, and with servers that have no such streams.
"""

import logging
import threading
import weakref
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Self

from wings_client._acquire import AckType, acknowledge, acquire, command_of
from wings_client._cancellation import woken_by_cancellation
from wings_client._errors import copy_of, is_passing
from wings_client._retry import Backoff
from wings_client._share_held import RENEWALS_PER_LOCK, Held
from wings_client._share_model import Delivery, OffsetRange, Rows
from wings_client._share_stream import ShareStream
from wings_client._stream import Reading, StreamCancelled
from wings_client._threads import start_thread
from wings_client._transport import Transport
from wings_core.contracts.share import ACKNOWLEDGEMENTS_MAX, AcknowledgementEntry
from wings_core.contracts.share_stream import CREDIT_MAX
from wings_core.contracts.tickets import AcquireTicket
from wings_core.errors import InvalidRecordState, WingsError
from wings_core.times import Deadline

POLL_SECONDS = 20.0
"""How long one long poll waits; then another begins."""

PAUSE_SECONDS_MIN = 0.05
"""The least seconds between two rounds of renewals."""

ACKNOWLEDGE_WAIT_SECONDS = 1.0
"""How long an acknowledgement waits for a renewal of its delivery; at most a third of its lock."""


_logger = logging.getLogger("wings_client")


class ShareEngine:
    """The part of a share consumer that sync and async share; methods are thread-safe.

    Args:
        transport: To the server.
        ticket: Its wait is set for each poll.
        timeout: Seconds without a delivery after which it ends; None: never.
        auto_renew: Whether to renew what is held; a number: for so many seconds of each delivery.
    """

    def __init__(
        self,
        transport: Transport,
        ticket: AcquireTicket,
        timeout: float | None,
        auto_renew: bool | float,
    ) -> None:
        self.ticket = ticket
        self._transport = transport
        self._timeout = timeout
        self._auto_renew = auto_renew
        # Guards the fields below; never held across a blocking call. A signal handler or a
        # finalizer may call `abandon` on a thread that holds it.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._renewal_ended = threading.Condition(self._lock)
        self._command = command_of(ticket)
        self._stream: ShareStream | None = None
        self._polls = timeout == 0
        self._ready: deque[Delivery] = deque()
        self._held: dict[int, Held] = {}
        self._reading: Reading | None = None
        self._renewing = False
        self._closed = False

    def fill(self) -> bool:
        """Block until there is a delivery to `take`; returns False on time-out and after `close`.

        Raises:
            WingsError: The server's refusal; `Unavailable` where it could not be reached again.
        """
        deadline = Deadline.never() if self._timeout is None else Deadline.after(self._timeout)
        backoff = Backoff(self._transport.retry)
        failing = Deadline.never()
        while not self._ready and not self._closed:
            try:
                self._wait(deadline)
                backoff.reset()
            except StreamCancelled:
                break
            except WingsError as error:
                if not is_passing(error, repeatable=True):
                    raise
                if backoff.failures == 0:
                    failing = Deadline.after(self._transport.retry.reconnect_seconds)
                if failing.passed or deadline.passed:
                    raise
                self._transport.closed.wait(backoff.next_delay())
            if deadline.passed:
                break
        return bool(self._ready)

    @property
    def uses_stream(self) -> bool:
        """Whether deliveries come over a share stream; else they are polled for."""
        return not self._polls

    def take(self) -> Delivery | None:
        """Return the next delivery received; None if there is none."""
        with self._lock:
            return self._ready.popleft() if self._ready else None

    def acknowledge(
        self,
        delivery: Delivery,
        kind: AckType,
        rows: Rows,
        delay: float | None = None,
        reason: str | None = None,
    ) -> None:
        """Acknowledge rows of a delivery, all of them or none.

        Raises:
            InvalidRecordState: The lock on some has expired or ended; nothing was changed.
            WingsError: The server's refusal; `Unavailable` where the outcome is unknown.
        """
        ranges = delivery.ranges(rows)
        if not ranges:
            return
        entries = [
            AcknowledgementEntry(
                partition=delivery.partition,
                first=first,
                last=last,
                lease=delivery.lease,
                type=kind,
                delay_ms=None if delay is None else round(delay * 1000),
                reason=reason,
            )
            for first, last in ranges
        ]
        if kind == "renew":
            _raise_first(self._acknowledge(entries, repeatable=True))
            self._renewed(delivery)
            return
        with self._acknowledging(delivery, ranges):
            _raise_first(self._acknowledge(entries))

    def abandon(self) -> None:
        """End the wait, the renewals and the stream, whose server releases what it held."""
        self._end()
        stream = self._stream
        if stream is not None:
            stream.cancel()

    def _end(self) -> list[list[AcknowledgementEntry]]:
        """End the wait and the renewals; returns the entries that release what is still held.

        Each list succeeds or fails by itself.
        """
        with self._lock:
            self._closed = True
            held = list(self._held.values())
            self._held = {}  # Replaced, as another thread may iterate over it.
            self._ready.clear()
            reading = self._reading
            self._changed.notify_all()
        if reading is not None:
            reading.cancel()
        return [
            [_entry(each.delivery, "release", first, last) for first, last in ranges]
            for each in held
            for ranges in each.parts()
        ]

    def close(self) -> None:
        """End the wait and release what is still held; if that fails, the locks expire."""
        lists = self._end()
        with suppress(WingsError):  # The locks expire.
            errors = iter(self._acknowledge([entry for entries in lists for entry in entries]))
            for entries in lists:
                refused = [isinstance(next(errors), InvalidRecordState) for _ in entries]
                if any(refused) and len(lists) > 1:
                    self._acknowledge(entries)  # Each alone: the refusal may be due to another.
        stream = self._stream
        if stream is not None:
            stream.close()

    def _wait(self, deadline: Deadline) -> None:
        """Wait for a delivery until the deadline, or for a while."""
        remaining = deadline.remaining()
        wait = POLL_SECONDS if remaining is None else min(POLL_SECONDS, remaining)
        with self._lock:
            held = sum(each.messages for each in self._held.values() if not each.has_expired)
        if self._polls or held >= CREDIT_MAX:
            self._poll(wait)
            return
        stream = self._open_stream()
        credit = min(CREDIT_MAX, held + self._command.max_messages)
        if credit != stream.credit:
            stream.set_credit(credit)
        with woken_by_cancellation(self._notify) as is_cancelled, self._lock:
            self._changed.wait_for(
                lambda: self._ready or self._closed or stream.error is not None or is_cancelled(),
                wait,
            )
            if is_cancelled():
                raise StreamCancelled
            if self._ready or self._closed:
                return
        if not stream.is_served:
            _logger.warning("%s serves no share streams: it is polled", stream.endpoint)
            self._polls = True
            return
        if stream.error is not None:
            raise copy_of(stream.error)
        try:
            if deadline.passed:
                stream.set_credit(0)
            # What is on its way comes before the answer; one that never comes ends the stream.
            stream.acknowledge(())
        except WingsError:
            stream.cancel()
            raise
        if deadline.passed and not self._ready:
            self._poll(0)  # What is there now comes, however short the time was.

    def _notify(self) -> None:
        with self._lock:
            self._changed.notify_all()

    def _open_stream(self) -> ShareStream:
        """Return the open stream; opens one where there is none, for one thread at a time."""
        stream = self._stream
        if stream is not None and stream.error is None:
            return stream
        source = object()

        def ended() -> None:
            """Drop what the caller has not taken: the server has released it."""
            with self._lock:
                for each in list(self._ready):
                    held = self._held.get(id(each))
                    if held is not None and held.source is source:
                        self._ready.remove(each)
                        del self._held[id(each)]
                self._changed.notify_all()

        def delivered(delivery: Delivery) -> None:
            self._receive([delivery], source)

        stream = ShareStream(self._transport, self._command, delivered, ended)
        with self._lock:
            self._stream = stream
            is_closed = self._closed
        if is_closed:
            stream.cancel()
        return stream

    def _poll(self, wait: float) -> None:
        reading = Reading(self._transport)
        with self._lock:
            if self._closed:
                return
            self._reading = reading
        found = acquire(self._transport, self.ticket, wait, reading)
        self._reading = None
        if not self._receive(found):
            # Closed meanwhile: release what was received.
            self._acknowledge(
                [_entry(each, "release", each.start_offset, each.end_offset) for each in found]
            )

    def _receive(self, found: Sequence[Delivery], source: object = None) -> bool:
        """Take deliveries in, and see to their renewal; returns False after `close`."""
        held = {id(each): Held(each, source) for each in found}
        renews = False
        with self._lock:
            if self._closed:
                return False
            self._held.update(held)
            self._ready.extend(found)
            self._changed.notify_all()
            if self._closed:
                self._ready.clear()  # A signal handler closed it just now.
                return False
            if found and self._auto_renew is not False and not self._renewing:
                renews = self._renewing = True
        if renews:
            try:
                start_thread(self._renew, "wings-renew")
            except RuntimeError:
                with self._lock:
                    self._renewing = False
                raise
        return True

    def _acknowledge(
        self, entries: Sequence[AcknowledgementEntry], *, repeatable: bool = False
    ) -> list[WingsError | None]:
        ticket = self.ticket
        errors: list[WingsError | None] = []
        for start in range(0, len(entries), ACKNOWLEDGEMENTS_MAX):
            some = entries[start : start + ACKNOWLEDGEMENTS_MAX]
            stream = self._stream
            found = None if stream is None else stream.acknowledge(some)
            if found is None:
                found = acknowledge(
                    self._transport,
                    ticket.group,
                    ticket.topic,
                    ticket.member,
                    some,
                    repeatable=repeatable,
                )
            errors += found
        return errors

    @contextmanager
    def _acknowledging(self, delivery: Delivery, ranges: Sequence[OffsetRange]) -> Generator[None]:
        """Exclude renewals of a delivery while the block acknowledges ranges of it."""
        wait = min(ACKNOWLEDGE_WAIT_SECONDS, delivery.lock_seconds / RENEWALS_PER_LOCK)
        with self._lock:
            held = self._held.get(id(delivery))
            if held is not None:
                self._renewal_ended.wait_for(lambda: not held.renewing, wait)
                held.begin_acknowledging(ranges)
        acknowledged = False
        try:
            yield
            acknowledged = True
        finally:
            if held is not None:
                with self._lock:
                    held.end_acknowledging(ranges, acknowledged=acknowledged)
                    # Some of a refused range may still be held; the next renewal finds out.
                    if held.is_finished or (held.has_expired and not acknowledged):
                        self._held.pop(id(delivery), None)

    def _renewed(self, delivery: Delivery) -> None:
        with self._lock:
            held = self._held.get(id(delivery))
            if held is not None:
                held.renewed()

    def _renew(self) -> None:
        """Renew each delivery as it becomes due, until none is held or the consumer is closed."""
        while True:
            with self._lock:
                if self._closed or not self._held:
                    self._renewing = False
                    return
                dues = [each.due.remaining() or 0.0 for each in self._held.values()]
                pause = min(dues, default=0.0)  # A finalizer may have emptied it since.
                if pause > 0:
                    self._changed.wait(max(PAUSE_SECONDS_MIN, pause))
                    continue
                due = [each for each in self._held.values() if each.due.passed]
            for each in due:
                self._renew_one(each)

    def _renew_one(self, held: Held) -> None:
        delivery = held.delivery
        with self._lock:
            left, acknowledgements = held.begin_renewing()
        # One delivery a call: with several, a lost one would fail the others.
        entries = [_entry(delivery, "renew", first, last) for first, last in left]
        errors: list[WingsError | None] = []
        with suppress(WingsError):  # Retried when it is next due.
            errors = self._acknowledge(entries, repeatable=True)
        renewed = bool(errors) and not any(errors)
        refused = any(isinstance(error, InvalidRecordState) for error in errors)
        with self._lock:
            lost = held.end_renewing(acknowledgements, renewed=renewed, refused=refused)
            self._renewal_ended.notify_all()
            expires = (
                not isinstance(self._auto_renew, bool) and held.age_seconds >= self._auto_renew
            )
            if expires or lost:
                self._held.pop(id(delivery), None)


def _entry(delivery: Delivery, kind: AckType, first: int, last: int) -> AcknowledgementEntry:
    return AcknowledgementEntry(
        partition=delivery.partition, first=first, last=last, lease=delivery.lease, type=kind
    )


def _raise_first(errors: Sequence[WingsError | None]) -> None:
    for error in errors:
        if error is not None:
            raise error


class ShareConsumer(Iterator[Delivery]):
    """A member of a share group; made by `Client.share_consumer`.

    Iterating yields deliveries and blocks while there are none. Each is held by this member, and
    renewed while the caller works (unless `auto_renew` is False), until it is acknowledged:
    `accept`, `release` or `reject`, whole or by rows. What is still held when the consumer is
    closed, or its `with` block is left, is released; if it is garbage-collected without either, the
    locks expire. One thread iterates; the other methods may be called from any.

    Attributes:
        group: The share group's name.
        topic: The topic of the group.
        member: This member's name.
        engine: The part that `AsyncShareConsumer` shares.
    """

    def __init__(self, engine: ShareEngine) -> None:
        self.group = engine.ticket.group
        self.topic = engine.ticket.topic
        self.member = engine.ticket.member
        self.engine = engine
        # The engine's threads never hold this object, so its finalizer can end them.
        weakref.finalize(self, engine.abandon)

    def __next__(self) -> Delivery:
        """Return the next delivery; blocks until there is one.

        Raises:
            StopIteration: Nothing came for as long as the timeout, or the consumer was closed.
            WingsError: The server's refusal; `Unavailable` where it could not be reached again.
        """
        self.engine.fill()
        delivery = self.engine.take()
        if delivery is None:
            raise StopIteration
        return delivery

    def accept(self, delivery: Delivery, rows: Rows = None) -> None:
        """Acknowledge messages as processed; they are never delivered to the group again.

        Args:
            delivery: The delivery.
            rows: The rows of it; None: all.

        Raises:
            InvalidRecordState: The lock on some has expired or ended by an acknowledgement; nothing
                was changed.
            Unavailable: The outcome is unknown; they may be redelivered.
        """
        self.engine.acknowledge(delivery, "accept", rows)

    def release(self, delivery: Delivery, rows: Rows = None, *, delay: float | None = None) -> None:
        """Release messages for redelivery to any member; this delivery counts.

        Args:
            delivery: The delivery.
            rows: The rows of it; None: all.
            delay: Seconds for which they are not delivered.

        Raises:
            InvalidRecordState: The lock on some has expired or ended; nothing was changed.
            Unavailable: The outcome is unknown.
        """
        self.engine.acknowledge(delivery, "release", rows, delay=delay)

    def reject(self, delivery: Delivery, rows: Rows = None, *, reason: str | None = None) -> None:
        """Reject messages: they become dead letters, if the group has a topic of them.

        Args:
            delivery: The delivery.
            rows: The rows of it; None: all.
            reason: The text of the error, for the dead letter.

        Raises:
            InvalidRecordState: The lock on some has expired or ended; nothing was changed.
            Unavailable: The outcome is unknown; they may be redelivered.
        """
        self.engine.acknowledge(delivery, "reject", rows, reason=reason)

    def renew(self, delivery: Delivery, rows: Rows = None) -> None:
        """Renew the lock on messages: it lasts a lock duration from now.

        Args:
            delivery: The delivery.
            rows: The rows of it; None: all.

        Raises:
            InvalidRecordState: The lock on some has expired or ended; nothing was changed.
            Unavailable: The outcome is unknown.
        """
        self.engine.acknowledge(delivery, "renew", rows)

    @property
    def uses_stream(self) -> bool:
        """Whether deliveries come over a share stream, as they do unless the timeout is 0.

        A server of a version without them is polled, as a warning of the logger `wings_client`
        says.
        """
        return self.engine.uses_stream

    def close(self) -> None:
        """End iteration, and release what is still held; if that fails, the locks expire."""
        self.engine.close()

    def __enter__(self) -> Self:
        """Return the consumer itself."""
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the consumer."""
        self.close()
