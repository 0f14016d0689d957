"""ShareConsumer: a member of a share group, which holds what it works at until it settles it."""

import threading
import weakref
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Self

from wings_client._acquire import AckType, acknowledge, acquire
from wings_client._errors import is_passing
from wings_client._retry import Backoff
from wings_client._share_held import RENEWALS_PER_LOCK, Held
from wings_client._share_model import Delivery, OffsetRange, Rows
from wings_client._stream import Reading, StreamCancelled
from wings_client._threads import start_thread
from wings_client._transport import Transport
from wings_core.contracts.share import ACKNOWLEDGEMENTS_MAX, AcknowledgementEntry
from wings_core.contracts.tickets import AcquireTicket
from wings_core.errors import InvalidRecordState, WingsError
from wings_core.times import Deadline

POLL_SECONDS = 20.0
"""How long one long poll waits; then another begins."""

PAUSE_SECONDS_MIN = 0.05
"""Between two rounds of renewals, at least."""

SETTLE_WAIT_SECONDS = 1.0
"""How long settling waits for a renewal of the same delivery at most, and a third of its lock."""


class ShareEngine:
    """What a share consumer does, however it waits; all methods may be called from any thread.

    Args:
        transport: To the server.
        ticket: Without an end of the wait.
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
        # Guards what is below; held for no longer than it takes to look. A signal handler or a
        # finalizer may call `abandon` on a thread that holds it.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._renewal_ended = threading.Condition(self._lock)
        self._ready: deque[Delivery] = deque()
        self._held: dict[int, Held] = {}
        self._reading: Reading | None = None
        self._renewing = False
        self._closed = False

    def fill(self) -> bool:
        """Block until there is a delivery to `take`; return whether there is.

        Raises:
            WingsError: The server's refusal; `Unavailable` where it could not be reached again.
        """
        deadline = Deadline.never() if self._timeout is None else Deadline.after(self._timeout)
        backoff = Backoff(self._transport.retry)
        failing = Deadline.never()
        while not self._ready and not self._closed:
            remaining = deadline.remaining()
            try:
                self._poll(POLL_SECONDS if remaining is None else min(POLL_SECONDS, remaining))
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

    def take(self) -> Delivery | None:
        """Return the next delivery that came; None where there is none."""
        with self._lock:
            return self._ready.popleft() if self._ready else None

    def settle(
        self,
        delivery: Delivery,
        kind: AckType,
        rows: Rows,
        delay: float | None = None,
        reason: str | None = None,
    ) -> None:
        """Settle rows of a delivery, all of them or none.

        Raises:
            InvalidRecordState: Some are not held any more; nothing was changed.
            WingsError: Of the server; `Unavailable` where it is unknown whether it was done.
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
        with self._settling(delivery, ranges):
            _raise_first(self._acknowledge(entries))

    def abandon(self) -> list[list[AcknowledgementEntry]]:
        """End the wait and the renewals; return what would give back what is still held.

        Each list may be refused without the others.
        """
        with self._lock:
            self._closed = True
            held = list(self._held.values())
            self._held = {}  # Another, as it may be looked at now.
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
        """End the wait, and give back what is still held; what that fails for expires."""
        lists = self.abandon()
        with suppress(WingsError):  # They expire.
            errors = iter(self._acknowledge([entry for entries in lists for entry in entries]))
            for entries in lists:
                refused = [isinstance(next(errors), InvalidRecordState) for _ in entries]
                if any(refused) and len(lists) > 1:
                    self._acknowledge(entries)  # Alone: it may be another that is lost.

    def _poll(self, wait: float) -> None:
        reading = Reading(self._transport)
        with self._lock:
            if self._closed:
                return
            self._reading = reading
        found = acquire(self._transport, self.ticket, wait, reading)
        held = {id(each): Held(each) for each in found}
        renews = False
        with self._lock:
            self._reading = None
            if not self._closed:
                self._held.update(held)
                self._ready.extend(found)
                self._changed.notify_all()
            is_open = not self._closed
            if not is_open:
                self._ready.clear()  # It may have been closed amid this.
            elif found and self._auto_renew is not False and not self._renewing:
                renews = self._renewing = True
        if renews:
            try:
                start_thread(self._renew, "wings-renew")
            except RuntimeError:
                with self._lock:
                    self._renewing = False
                raise
        if is_open:
            return
        # Closed meanwhile: what came is given back.
        self._acknowledge(
            [_entry(each, "release", each.start_offset, each.end_offset) for each in found]
        )

    def _acknowledge(
        self, entries: Sequence[AcknowledgementEntry], *, repeatable: bool = False
    ) -> list[WingsError | None]:
        ticket = self.ticket
        errors: list[WingsError | None] = []
        for start in range(0, len(entries), ACKNOWLEDGEMENTS_MAX):
            errors += acknowledge(
                self._transport,
                ticket.group,
                ticket.topic,
                ticket.member,
                entries[start : start + ACKNOWLEDGEMENTS_MAX],
                repeatable=repeatable,
            )
        return errors

    @contextmanager
    def _settling(self, delivery: Delivery, ranges: Sequence[OffsetRange]) -> Generator[None]:
        """Settle ranges of a delivery in the block, and beside no renewal of it."""
        wait = min(SETTLE_WAIT_SECONDS, delivery.lock_seconds / RENEWALS_PER_LOCK)
        with self._lock:
            held = self._held.get(id(delivery))
            if held is not None:
                self._renewal_ended.wait_for(lambda: not held.renewing, wait)
                held.begin_settling(ranges)
        settled = False
        try:
            yield
            settled = True
        finally:
            if held is not None:
                with self._lock:
                    held.end_settling(ranges, settled=settled)
                    # What is refused may be held in part; whether it is, a renewal finds out.
                    if held.is_settled or (held.has_expired and not settled):
                        self._held.pop(id(delivery), None)

    def _renewed(self, delivery: Delivery) -> None:
        with self._lock:
            held = self._held.get(id(delivery))
            if held is not None:
                held.renewed()

    def _renew(self) -> None:
        """Renew what is held as each becomes due, until nothing is or the consumer is closed."""
        while True:
            with self._lock:
                if self._closed or not self._held:
                    self._renewing = False
                    return
                dues = [each.due.remaining() or 0.0 for each in self._held.values()]
                pause = min(dues, default=0.0)  # A finalizer may have closed it amid this.
                if pause > 0:
                    self._changed.wait(max(PAUSE_SECONDS_MIN, pause))
                    continue
                due = [each for each in self._held.values() if each.due.passed]
            for each in due:
                self._renew_one(each)

    def _renew_one(self, held: Held) -> None:
        delivery = held.delivery
        with self._lock:
            left, settles = held.begin_renewing()
        # One delivery a call: of several, one that was lost would keep the others from it.
        entries = [_entry(delivery, "renew", first, last) for first, last in left]
        errors: list[WingsError | None] = []
        with suppress(WingsError):  # It is tried again when it is due again.
            errors = self._acknowledge(entries, repeatable=True)
        renewed = bool(errors) and not any(errors)
        refused = any(isinstance(error, InvalidRecordState) for error in errors)
        with self._lock:
            lost = held.end_renewing(settles, renewed=renewed, refused=refused)
            self._renewal_ended.notify_all()
            given_up = (
                not isinstance(self._auto_renew, bool) and held.age_seconds >= self._auto_renew
            )
            if given_up or lost:
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
    renewed while the caller works (unless `auto_renew` is False), until it is settled: `accept`,
    `release` or `reject`, whole or by rows. What is not settled when the consumer is closed, or its
    `with` block is left, is released; one that is let go of without either leaves it to expire. One
    thread iterates; the other methods may be called from any.

    Attributes:
        group: The share group.
        topic: Whose messages it shares.
        member: What it calls itself.
        engine: What it does, for faces that wait otherwise.
    """

    def __init__(self, engine: ShareEngine) -> None:
        self.group = engine.ticket.group
        self.topic = engine.ticket.topic
        self.member = engine.ticket.member
        self.engine = engine
        # The engine's threads never hold this: letting go of it ends them.
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
        """Say that messages are done; they are never delivered to the group again.

        Args:
            delivery: Where they came.
            rows: Which of them; None: all.

        Raises:
            InvalidRecordState: Some are not held any more, as the lock expired or they were settled
                already; nothing was changed.
            Unavailable: It is unknown whether it was done; they may come again.
        """
        self.engine.settle(delivery, "accept", rows)

    def release(self, delivery: Delivery, rows: Rows = None, *, delay: float | None = None) -> None:
        """Give messages back, for any member to get; the delivery counts.

        Args:
            delivery: Where they came.
            rows: Which of them; None: all.
            delay: Seconds that nobody gets them for.

        Raises:
            InvalidRecordState: Some are not held any more; nothing was changed.
            Unavailable: It is unknown whether it was done.
        """
        self.engine.settle(delivery, "release", rows, delay=delay)

    def reject(self, delivery: Delivery, rows: Rows = None, *, reason: str | None = None) -> None:
        """Give messages up: they become dead letters, where the group has a topic of them.

        Args:
            delivery: Where they came.
            rows: Which of them; None: all.
            reason: The text of the error, for the dead letter.

        Raises:
            InvalidRecordState: Some are not held any more; nothing was changed.
            Unavailable: It is unknown whether it was done; they may come again.
        """
        self.engine.settle(delivery, "reject", rows, reason=reason)

    def renew(self, delivery: Delivery, rows: Rows = None) -> None:
        """Hold messages for another lock duration from now.

        Args:
            delivery: Where they came.
            rows: Which of them; None: all.

        Raises:
            InvalidRecordState: Some are not held any more; nothing was changed.
            Unavailable: It is unknown whether it was done.
        """
        self.engine.settle(delivery, "renew", rows)

    def close(self) -> None:
        """End iteration, and release what is still held; where that fails, it expires."""
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
        """Close it."""
        self.close()
