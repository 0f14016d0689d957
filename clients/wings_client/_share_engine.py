"""Deliveries and acknowledgements of a member of a share group, by what consumers and workers use.

They go over one share stream. Long polls and calls stand in for it where the consumer only looks
what is there (a timeout of 0, and before a time-out), where it holds as much as a stream may, and
with servers that have no such streams.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial

from wings_client._arguments import check_of
from wings_client._cancellation import current_cancellation, woken_by_cancellation
from wings_client._errors import copy_of, is_passing, is_timeout
from wings_client._retry import Backoff
from wings_client._share import AckType, acknowledge, acquire, command_of
from wings_client._share_locks import Held, Locks, entry_of
from wings_client._share_model import Delivery, OffsetRange, Rows
from wings_client._share_stream import CLOSE_SECONDS, Sent, ShareStream
from wings_client._stream import Reading, StreamCancelled
from wings_client._transport import Transport
from wings_core.contracts.share import ACKNOWLEDGEMENTS_MAX, CREDIT_MAX, AcknowledgementEntry
from wings_core.contracts.tickets import AcquireTicket
from wings_core.errors import InvalidRecordState, WingsError
from wings_core.times import Deadline

POLL_SECONDS = 20.0
"""How long one long poll waits; then another begins."""

READ_SECONDS_MIN = 1.0
"""Seconds: who waits for less reads no stream itself, where it may be late by the time of a
look."""

_logger = logging.getLogger("wings_client")


@dataclass(frozen=True, slots=True, eq=False)
class Settlement:
    """How ranges of a delivery are to be acknowledged, together."""

    delivery: Delivery
    kind: AckType
    ranges: Sequence[OffsetRange]
    delay: float | None = None
    """Delay of a release, in seconds."""
    reason: str | None = None
    counts: bool = True
    """Whether this delivery counts, of a release."""

    @property
    def is_dead(self) -> bool:
        """Whether the messages become dead letters."""
        is_over = self.kind == "release" and self.counts and self.delivery.is_last
        return is_over or self.kind == "reject"

    @property
    def messages(self) -> int:
        """How many messages they are."""
        return sum(last - first + 1 for first, last in self.ranges)

    def entries(self) -> list[AcknowledgementEntry]:
        """Return what is sent."""
        return [
            entry_of(
                self.delivery, self.kind, first, last, self.delay, self.reason, counts=self.counts
            )
            for first, last in self.ranges
        ]


class ShareEngine:
    """The part of a share consumer that sync and async share; methods are thread-safe.

    In a forked child, what ends it does nothing, and everything else is refused.

    Args:
        transport: To the server.
        ticket: Its wait is set for each poll.
        timeout: Seconds without a delivery after which it ends; None: never.
        auto_renew: Whether to renew what is held, or for how many seconds; see `Locks`.
        prefetch: How many deliveries may come ahead.
    """

    def __init__(
        self,
        transport: Transport,
        ticket: AcquireTicket,
        timeout: float | None,
        auto_renew: bool | float,
        prefetch: int = 0,
    ) -> None:
        self.ticket = ticket
        self.transport = transport
        self._timeout = timeout
        # Guards the fields below; never held across a blocking call. A signal handler or a
        # finalizer may call `abandon` on a thread that holds it.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._locks = Locks(
            self._lock,
            self._changed,
            lambda entries: self._acknowledge(entries, repeatable=True),
            auto_renew,
        )
        self._command = command_of(ticket, prefetch)
        self.stream: ShareStream | None = None
        self._polls = timeout == 0
        self._ready: deque[Delivery] = deque()
        self._refused: WingsError | None = None
        """The first error of acknowledgements that were not waited for, until it is raised."""
        self._reading: Reading | None = None
        self._stopped = False
        self._closed = False

    def fill(self) -> bool:
        """Block until there is a delivery to `take`, or an error for `raise_refused`.

        Returns:
            False on time-out, and after `stop` or `close`.

        Raises:
            WingsError: The server's refusal; `Unavailable` where it could not be reached again.
        """
        self.transport.check_process()
        deadline = Deadline.never() if self._timeout is None else Deadline.after(self._timeout)
        backoff = Backoff(self.transport.retry)
        failing = Deadline.never()
        while not self._is_waited_for:
            try:
                self._wait(deadline)
                backoff.reset()
            except StreamCancelled:
                break
            except WingsError as error:
                if not is_passing(error, repeatable=True):
                    raise
                if backoff.failures == 0:
                    failing = Deadline.after(self.transport.retry.reconnect_seconds)
                if failing.passed or deadline.passed:
                    raise
                with self._lock:
                    self._changed.wait_for(lambda: self._stopped, backoff.next_delay())
            if deadline.passed:
                break
        return bool(self._ready) or self._refused is not None

    @property
    def uses_stream(self) -> bool:
        """Whether deliveries come over a share stream; else they are polled for."""
        return not self._polls

    def take(self) -> Delivery | None:
        """Return the next delivery received; None if there is none."""
        self.transport.check_process()
        with self._lock:
            if not self._ready:
                return None
            return self._ready.popleft()

    def take_held(self) -> Delivery | None:
        """Return the next delivery that was not lost while it waited here, to be worked on."""
        while (delivery := self.take()) is not None:
            if self.hand(delivery, delivery.ranges(None)):
                return delivery
        return None

    def hand(self, delivery: Delivery, ranges: Sequence[OffsetRange]) -> bool:
        """Record that work on ranges of a delivery begins; returns False where they are lost."""
        return self._locks.hand(delivery, ranges)

    def acknowledge(
        self,
        delivery: Delivery,
        kind: AckType,
        rows: Rows,
        delay: float | None = None,
        reason: str | None = None,
        *,
        wait: bool = True,
    ) -> None:
        """Acknowledge rows of a delivery, all of them or none.

        Args:
            delivery: The delivery.
            kind: Decision on them.
            rows: The rows of it; None: all.
            delay: Delay of a release, in seconds.
            reason: Reason of a release or a rejection.
            wait: Whether to return only when it is durable. Else `raise_refused` raises its error;
                but a renewal is waited for.

        Raises:
            InvalidRecordState: The lock on some has expired or ended; nothing was changed.
            InvalidArgument: A delay or a reason out of bounds.
            WingsError: The server's refusal; `Unavailable` where the outcome is unknown.
        """
        self.transport.check_process()
        check_of(kind, "delivery")(delivery)
        if delay is not None:
            check_of(kind, "delay")(delay)
        settlement = Settlement(delivery, kind, delivery.ranges(rows), delay, reason)
        if not settlement.ranges:
            return
        entries = settlement.entries()
        if kind == "renew":
            _raise_first(self._acknowledge(entries, repeatable=True))
            self._locks.renewed(delivery)
            return
        held = self._locks.begin(delivery, settlement.ranges)
        is_sent = acknowledged = False
        try:
            is_sent = not wait and self._send(settlement, entries, held)
            if not is_sent:
                _raise_first(self._acknowledge(entries))
                acknowledged = True
        finally:
            if not is_sent:
                self._locks.done(held, settlement.ranges, acknowledged=acknowledged)

    def _send(
        self, settlement: Settlement, entries: Sequence[AcknowledgementEntry], held: Held | None
    ) -> bool:
        """Send an acknowledgement without waiting; False where that is not possible now."""
        stream = self.stream
        if stream is None or len(entries) > ACKNOWLEDGEMENTS_MAX:
            return False

        def answered(error: WingsError | None) -> None:
            # What failed is acknowledged by no other call, so its lock is to end.
            done = error is None
            self._locks.done(held, settlement.ranges, acknowledged=done, renews=False)
            if error is not None and not self._closed:
                with self._lock:
                    self._refused = self._refused or error
                    self._changed.notify_all()  # The next delivery tells of it.

        sent = Sent(entries, answered, settlement.messages)
        releases = settlement.kind == "release"
        is_sent = stream.send(sent, at_once=releases or settlement.delivery.in_order)
        if releases:
            self._notify()  # Who waits for a delivery is to ask for it anew.
        return is_sent

    def flush(self) -> None:
        """Wait until all that was acknowledged is durable, or refused.

        Raises:
            WingsError: `Unavailable` where no answer came in time.
        """
        self.transport.check_process()
        stream = self.stream
        if stream is not None:
            stream.flush()

    @contextmanager
    def telling(self) -> Generator[None]:
        """Raise what was refused at the end of the block, also in place of an error of it.

        Not within: what is raised on another thread for a task that is cancelled reaches no caller.
        """
        try:
            yield
        except WingsError:
            self.raise_refused()
            raise
        self.raise_refused()

    def raise_refused(self) -> None:
        """Raise the error of an acknowledgement that was not waited for, once."""
        refused = self._refused
        if refused is None:
            return
        with self._lock:
            refused, self._refused = self._refused, None
        if refused is not None:
            raise refused

    def settle(self, settlements: Sequence[Settlement]) -> list[WingsError | None]:
        """Acknowledge ranges of many deliveries by one request; never raises a `WingsError`.

        Returns:
            The error of each, in order, or None. Each succeeds or fails by itself: what a partition
            refuses because of another is sent again, alone.
        """
        begun = [self._locks.begin(each.delivery, each.ranges) for each in settlements]
        errors: list[WingsError | None] = []
        try:
            errors = self._settle(settlements)
            for index, each in enumerate(settlements):
                if isinstance(errors[index], InvalidRecordState) and len(settlements) > 1:
                    errors[index] = self._settle([each])[0]
        finally:
            for index, (held, each) in enumerate(zip(begun, settlements, strict=True)):
                acknowledged = index < len(errors) and errors[index] is None
                self._locks.done(held, each.ranges, acknowledged=acknowledged)
        return errors

    def _settle(self, settlements: Sequence[Settlement]) -> list[WingsError | None]:
        lists = [each.entries() for each in settlements]
        try:
            found = iter(self._acknowledge([entry for entries in lists for entry in entries]))
        except WingsError as error:
            return [error for _ in settlements]
        answers = [[next(found) for _ in entries] for entries in lists]
        return [next(filter(None, each), None) for each in answers]

    def stop(self) -> None:
        """End the wait, for good; keeps what is held, its renewals and the stream. Never blocks."""
        if self.transport.is_inherited:
            return
        with self._lock:
            self._stopped = True
            reading, stream = self._reading, self.stream
            self._changed.notify_all()
        if reading is not None:
            reading.cancel()
        if stream is not None:
            stream.interrupt()  # Its caller may be reading.

    def drain(self) -> None:
        """After `stop`: wait until nothing more comes; what came is there to `take`."""
        stream = self.stream
        if stream is not None:
            with suppress(WingsError):  # It has ended.
                stream.drain()

    def abandon(self) -> None:
        """End the wait, the renewals and the stream, whose server releases what it held."""
        if self.transport.is_inherited:
            return
        self._end()
        stream = self.stream
        if stream is not None:
            stream.cancel()

    def _end(self) -> list[list[AcknowledgementEntry]]:
        """End the wait and the renewals; returns the entries that release what is still held.

        Each list succeeds or fails by itself.
        """
        with self._lock:
            self._closed = True
            held = self._locks.end()
            self._ready.clear()
        self.stop()
        return [
            [entry_of(each.delivery, "release", *ends, counts=counts) for ends in ranges]
            for each in held
            for ranges, counts in each.parts()
        ]

    def close(self) -> None:
        """End the wait, flush, and release what is still held; if that fails, the locks expire.

        Raises:
            WingsError: That of `flush`; all is closed.
        """
        if self.transport.is_inherited:
            return
        try:
            if not self._closed:
                self.flush()
        except WingsError as error:
            if is_timeout(error):
                self.abandon()  # Who answers nothing is not asked to release what is held.
            raise
        finally:
            self._close()

    def _close(self) -> None:
        stream = self.stream
        try:
            if stream is not None and not self._closed:
                stream.wait_told()  # What came by one that has ended is released already.
                stream.drain(CLOSE_SECONDS)
            self._release(self._end())
        except WingsError as error:  # The locks expire.
            self._end()
            if stream is not None and is_timeout(error):
                stream.cancel()
        if stream is not None:
            stream.close()

    def _release(self, lists: Sequence[Sequence[AcknowledgementEntry]]) -> None:
        errors = iter(self._acknowledge([entry for entries in lists for entry in entries]))
        for entries in lists:
            refused = [isinstance(next(errors), InvalidRecordState) for _ in entries]
            if any(refused) and len(lists) > 1:
                self._acknowledge(entries)  # Each alone: the refusal may be due to another.

    def _wait(self, deadline: Deadline) -> None:
        """Wait for a delivery until the deadline, or for a while."""
        remaining = deadline.remaining()
        wait = POLL_SECONDS if remaining is None else min(POLL_SECONDS, remaining)
        if self._polls or self._wanted_credit() is None:
            self._poll(wait)
            return
        ends_at = time.monotonic() + wait
        stream = self._open_stream()
        if self._await(stream, ends_at):
            return
        if not stream.is_served:
            _logger.warning("%s serves no share streams: it is polled", stream.endpoint)
            self._polls = True
            return
        if stream.error is not None:
            raise copy_of(stream.error)
        try:
            # A server that does not answer ends the stream.
            silent_at = ends_at + self.transport.timeout
            answer = stream.drain if deadline.passed else partial(stream.acknowledge, ())
            answer(max(0.0, silent_at - time.monotonic()))
        except WingsError:
            stream.cancel()
            raise
        if deadline.passed and not self._ready:
            self._poll(0)  # What is there now comes, however short the time was.

    def _wanted_credit(self) -> int | None:
        """Return how much lets a delivery come beside what is held; None: more than there is.

        What is acknowledged and not answered yet gives its credit back as it is.
        """
        least, step = self._command.credit, self._command.max_messages
        unanswered = self.stream.unanswered if self.stream is not None else 0
        if (self._locks.deliveries + 1) * step - unanswered <= least:
            return least  # What is held need not be counted.
        held = self._locks.messages
        return None if held >= CREDIT_MAX else max(least, held - unanswered + step)

    def _await(self, stream: ShareStream, ends_at: float) -> bool:
        """Ask for a delivery until there is one, or the stream or the time is over.

        Returns:
            Whether to wait no more.

        Raises:
            StreamCancelled: The call was cancelled.
        """

        def is_over() -> bool:
            return self._is_waited_for or stream.is_paused or time.monotonic() >= ends_at

        while True:
            # Again after a release, and from time to time, as a client that stands still gets none.
            pause = stream.ask(min(CREDIT_MAX, (self._wanted_credit() or 0) + stream.spent))
            if ends_at - time.monotonic() > READ_SECONDS_MIN and current_cancellation() is None:
                stream.read(is_over)  # What comes for other threads must not make it late.
                if self._is_waited_for:
                    return True
            with woken_by_cancellation(self._notify) as is_cancelled, self._lock, stream.expected():
                self._changed.wait_for(
                    lambda: is_over() or stream.error is not None or is_cancelled(),
                    max(0.0, min(pause, ends_at - time.monotonic())),
                )
                if is_cancelled():
                    raise StreamCancelled
            if self._is_waited_for:
                return True
            if stream.error is not None or time.monotonic() >= ends_at:
                return False

    @property
    def _is_waited_for(self) -> bool:
        """Whether there is what a wait for a delivery ends with."""
        return bool(self._ready) or self._stopped or self._refused is not None

    def _notify(self) -> None:
        with self._lock:
            self._changed.notify_all()

    def _open_stream(self) -> ShareStream:
        """Return the open stream; opens one where there is none, for one thread at a time."""
        stream = self.stream
        if stream is not None:
            if stream.error is None:
                return stream
            stream.wait_told()
        source = object()

        def ended() -> None:
            """Drop what the caller has not taken: the server has released it."""
            with self._lock:
                for each in self._locks.released(source, list(self._ready)):
                    self._ready.remove(each)
                self._changed.notify_all()

        def delivered(delivery: Delivery) -> None:
            self._receive([delivery], source)

        def opened(stream: ShareStream) -> None:
            self.stream = stream

        stream = ShareStream(self.transport, self._command, opened, delivered, ended)
        if self._closed:
            stream.cancel()
        return stream

    def _poll(self, wait: float) -> None:
        reading = Reading(self.transport)
        with self._lock:
            if self._stopped:
                return
            self._reading = reading
        found = acquire(self.transport, self.ticket, wait, reading)
        self._reading = None
        if not self._receive(found):
            # Closed meanwhile: release what was received.
            self._acknowledge(
                [
                    entry_of(each, "release", each.start_offset, each.end_offset, counts=False)
                    for each in found
                ]
            )

    def _receive(self, found: Sequence[Delivery], source: object = None) -> bool:
        """Take deliveries in, and see to their renewal; returns False after `close`."""
        with self._lock:
            if self._closed:
                return False
            renews = self._locks.add(found, source)
            self._ready.extend(found)
            self._changed.notify_all()
            if self._closed:
                self._ready.clear()  # A signal handler closed it just now.
                return False
        if renews:
            self._locks.start_renewing()
        return True

    def _acknowledge(
        self, entries: Sequence[AcknowledgementEntry], *, repeatable: bool = False
    ) -> list[WingsError | None]:
        ticket = self.ticket
        errors: list[WingsError | None] = []
        for start in range(0, len(entries), ACKNOWLEDGEMENTS_MAX):
            some = entries[start : start + ACKNOWLEDGEMENTS_MAX]
            stream = self.stream
            found = None if stream is None else stream.acknowledge(some)
            if found is None:
                found = acknowledge(
                    self.transport,
                    ticket.group,
                    ticket.topic,
                    ticket.member,
                    some,
                    repeatable=repeatable,
                )
            errors += found
        if any(entry.type == "release" for entry in entries):
            self._notify()  # As in `_send`.
        return errors


def _raise_first(errors: Sequence[WingsError | None]) -> None:
    for error in errors:
        if error is not None:
            raise error
