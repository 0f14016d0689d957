"""The locks of a member on the messages it holds, and the thread that renews or releases them."""

import math
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from wings_client._arguments import build
from wings_client._share import AckType
from wings_client._share_model import Delivery, OffsetRange, common, merged, without
from wings_client._threads import start_thread
from wings_core.contracts.share import AcknowledgementEntry
from wings_core.errors import InvalidRecordState, WingsError
from wings_core.times import Deadline

RENEWALS_PER_LOCK = 3
"""Renewals of a delivery within one lock duration."""

IDLE_SECONDS = 10.0
"""How long the thread of the renewals waits for something to renew before it ends."""

PAUSE_SECONDS_MIN = 0.05
"""The least seconds between two rounds of renewals."""

ACKNOWLEDGE_WAIT_SECONDS = 1.0
"""How long an acknowledgement waits for a renewal of its delivery; at most a third of its lock."""

Send = Callable[[Sequence[AcknowledgementEntry]], list[WingsError | None]]


class Held:
    """The messages of a delivery still held; not thread-safe, callers hold the engine's lock.

    A renewal is refused whole if a part of it is acknowledged, so it leaves out what is being
    acknowledged, and an acknowledgement waits for a renewal under way.

    Attributes:
        delivery: The delivery.
        left: The offsets not known to be acknowledged.
        due: When to renew next.
        renewing: Whether a renewal is under way.
        source: Stream by which it came; None: by none.
        is_released: Whether that stream ended, so that its server released what came by it.
        came_at: When it came, by the monotonic clock.
    """

    def __init__(self, delivery: Delivery, due: Deadline, source: object = None) -> None:
        self.delivery = delivery
        self.source = source
        self.is_released = False
        self.left: list[OffsetRange] = [(delivery.start_offset, delivery.end_offset)]
        self.renewing = False
        self.due = due
        self.came_at = time.monotonic()
        self._handed: list[tuple[float, Sequence[OffsetRange]]] = []
        """Ranges that the caller has begun to work on, and when."""
        self._ends = Deadline.after(delivery.lock_seconds)
        self._acknowledging: list[Sequence[OffsetRange]] = []
        self._acknowledgements = 0  # Acknowledgements begun so far.
        self._in_doubt: list[OffsetRange] = []
        self._rows: list[OffsetRange] | None = None

    @property
    def messages(self) -> int:
        """How many messages are left."""
        return sum(last - first + 1 for first, last in self.left)

    @property
    def is_finished(self) -> bool:
        """Whether no message is left."""
        if not self.left:
            return True
        if self._rows is None:
            self._rows = merged(self.delivery.offsets)
        return not common(self._rows, self.left)

    @property
    def unhanded(self) -> list[OffsetRange]:
        """Ranges that are held, and that the caller has not begun to work on."""
        return without(self.left, [each for _, ranges in self._handed for each in ranges])

    @property
    def has_expired(self) -> bool:
        """Whether the lock has certainly expired, unless another process renewed it."""
        return self._ends.passed

    def hand(self, ranges: Sequence[OffsetRange], now: float) -> bool:
        """Record that the caller begins to work on ranges; returns False where some were let go."""
        if without(ranges, self.left):
            return False
        self._handed.append((now, ranges))
        return True

    def let_go(self) -> list[OffsetRange]:
        """Return what the caller has not begun to work on, which is not held from now on."""
        unhanded = self.unhanded
        self.left = without(self.left, unhanded)
        return unhanded

    def begin_acknowledging(self, ranges: Sequence[OffsetRange]) -> None:
        """Record that an acknowledgement of ranges begins; `end_acknowledging` follows."""
        self._acknowledging.append(ranges)
        self._acknowledgements += 1

    def end_acknowledging(
        self, ranges: Sequence[OffsetRange], *, acknowledged: bool, renews: bool = True
    ) -> None:
        """Record its outcome.

        Args:
            ranges: Ranges that were to be acknowledged.
            acknowledged: Whether they were; else the ranges stay held, in doubt.
            renews: Whether these are renewed again.
        """
        if ranges not in self._acknowledging:
            return  # Told again, as a signal handler raised meanwhile.
        if acknowledged or renews:
            self._acknowledging.remove(ranges)
        if acknowledged:
            self.left = without(self.left, ranges)
        else:
            self._in_doubt = [*without(self._in_doubt, ranges), *ranges]

    def begin_renewing(self, since: float) -> tuple[list[OffsetRange], int]:
        """Return the ranges to renew, and the count to pass to `end_renewing`.

        Not those that the caller began to work on earlier than `since`.
        """
        self.renewing = True
        overdue = [ranges for at, ranges in self._handed if at < since]
        excluded = [each for ranges in (*self._acknowledging, *overdue) for each in ranges]
        return without(self.left, excluded), self._acknowledgements

    def end_renewing(self, acknowledgements: int, *, renewed: bool, refused: bool) -> bool:
        """Record the end of a renewal.

        Returns:
            Whether the lock is lost. Where a refusal may be due to an acknowledgement, concurrent
            or of unknown outcome, the delivery is due at once instead.
        """
        self.renewing = False
        if renewed:
            self.renewed()
            return False
        if not refused:
            self.due = due_of(self.delivery)  # Unknown outcome: retried then.
            return False
        if self._acknowledgements != acknowledgements:
            return False
        if self._in_doubt:
            self.left = without(self.left, self._in_doubt)
            self._in_doubt = []
            return self.is_finished
        return True

    def renewed(self) -> None:
        """Record that the lock lasts another lock duration."""
        self._ends = Deadline.after(self.delivery.lock_seconds)
        self.due = due_of(self.delivery)

    def parts(self) -> list[tuple[list[OffsetRange], bool]]:
        """Return the ranges still held, those in doubt apart, and whether their delivery counts.

        It does of what the caller began to work on. No list is empty.
        """
        unhanded = without(self.unhanded, self._in_doubt)
        rest = without(self.left, [*unhanded, *self._in_doubt])
        doubted = without(self.left, [*unhanded, *rest])
        return [part for part in ((rest, True), (unhanded, False), (doubted, True)) if part[0]]


class Locks:
    """Holds of a member; all methods from any thread.

    A caller that hangs loses what it works on. What waits behind it is released for others: an end
    of its lock would count as a delivery, of messages that nobody has seen.

    `add`, `released` and `end` are called under the lock.

    Args:
        lock: Guards this and the consumer's own fields; reentrant, as a signal handler or a
            finalizer may come on a thread that holds it.
        changed: Condition of that lock.
        send: Sends renewals and releases.
        auto_renew: Whether to renew what is held; a number: for so many seconds after the caller
            began to work on it, and what waits for as long after it began with anything.
    """

    def __init__(
        self,
        lock: "threading.RLock",
        changed: threading.Condition,
        send: Send,
        auto_renew: bool | float,
    ) -> None:
        # Taken instead of its conditions: a signal handler that raises in `Condition.__enter__`,
        # which is Python's, would leave it taken.
        self._lock = lock
        self._changed = changed
        self._renewals = threading.Condition(lock)
        """Wakes the thread that renews, and no other."""
        self._renew_at = 0.0
        """When that thread looks, by the monotonic clock."""
        self._send = send
        self._renews_seconds = math.inf if auto_renew is True else float(auto_renew)
        self._held: dict[int, Held] = {}
        self._handed_at = 0.0
        """When the caller last began to work on something."""
        self._renewing = False
        self._ended = False

    @property
    def deliveries(self) -> int:
        """Number of deliveries of which something is held, or was until its lock expired."""
        return len(self._held)

    @property
    def messages(self) -> int:
        """How many messages are held, as far as is known."""
        with self._lock:
            held = [each for each in self._held.values() if not each.is_released]
            return sum(each.messages for each in held if not each.has_expired)

    def hand(self, delivery: Delivery, ranges: Sequence[OffsetRange]) -> bool:
        """Record that the caller begins to work on ranges of a delivery.

        Returns:
            False where they are not held any more, as far as is known.
        """
        with self._lock:
            held = self._held.get(id(delivery))
            if held is None:
                return False
            if held.has_expired or held.is_released:
                del self._held[id(delivery)]
                return False
            now = time.monotonic()
            is_held = held.hand(ranges, now)
            self._handed_at = now if is_held else self._handed_at
            return is_held

    def add(self, found: Sequence[Delivery], source: object) -> bool:
        """Take deliveries in; returns whether `renew` is to be started now."""
        for each in found:
            # Without renewals, what waits is let go while its lock has not ended.
            due = due_of(each, 1 if self._renews_seconds else 2)
            held = self._held[id(each)] = Held(each, due, source)
            if self._renewing and (held.due.at or 0.0) < self._renew_at:
                self._renewals.notify()
        if self._ended or not found or self._renewing:
            return False
        self._renewing = True
        return True

    def start_renewing(self) -> None:
        """Start the thread that `add` asked for.

        Raises:
            RuntimeError: No thread can be started.
        """
        try:
            start_thread(self._renew, "wings-renew")
        except BaseException:  # Ctrl-C, too: the next delivery starts it.
            with self._lock:
                self._renewing = False
            raise

    def released(self, source: object, ready: Sequence[Delivery]) -> list[Delivery]:
        """Record that a stream ended, whose server releases what came by it.

        Returns:
            Deliveries of `ready` that came by it, which are forgotten.
        """
        came = [each for each in self._held.values() if each.source is source]
        for each in came:
            each.is_released = True
        gone = {id(each.delivery) for each in came}
        dropped = [each for each in ready if id(each) in gone]
        for each in dropped:
            del self._held[id(each)]
        return dropped

    def end(self) -> list[Held]:
        """End the renewals; returns what is still held, and forgets it."""
        self._ended = True
        self._renewals.notify()
        held = [each for each in self._held.values() if not each.is_released]
        self._held = {}  # Replaced, as another thread may iterate over it.
        return held

    def begin(self, delivery: Delivery, ranges: Sequence[OffsetRange]) -> Held | None:
        """Exclude renewals of ranges that are to be acknowledged; `done` follows.

        Waits for a renewal under way, at most a second.
        """
        wait = min(ACKNOWLEDGE_WAIT_SECONDS, delivery.lock_seconds / RENEWALS_PER_LOCK)
        with self._lock:
            held = self._held.get(id(delivery))
            if held is not None:
                self._changed.wait_for(lambda: not held.renewing, wait)
                held.begin_acknowledging(ranges)
        return held

    def done(
        self,
        held: Held | None,
        ranges: Sequence[OffsetRange],
        *,
        acknowledged: bool,
        renews: bool = True,
    ) -> None:
        """Record the outcome of an acknowledgement; see `Held.end_acknowledging`."""
        if held is None:
            return
        with self._lock:
            held.end_acknowledging(ranges, acknowledged=acknowledged, renews=renews)
            # Some of a refused range may still be held; the next renewal finds out.
            if held.is_finished or (held.has_expired and not acknowledged):
                self._held.pop(id(held.delivery), None)

    def renewed(self, delivery: Delivery) -> None:
        """Record that the caller renewed a delivery."""
        with self._lock:
            held = self._held.get(id(delivery))
            if held is not None:
                held.renewed()

    def _renew(self) -> None:
        """Renew each delivery as it becomes due, until none is held for a while or `end`."""
        was_idle = False
        while True:
            with self._lock:
                if self._ended or (was_idle and not self._held):
                    self._renewing = False
                    return
                # Where nothing is held, the next delivery is likely to come soon.
                was_idle = not self._held
                dues = [each.due.remaining() or 0.0 for each in self._held.values()]
                pause = min(dues, default=IDLE_SECONDS)
                if pause > 0:
                    pause = max(PAUSE_SECONDS_MIN, pause)
                    self._renew_at = time.monotonic() + pause
                    self._renewals.wait(pause)
                    continue
                due = [each for each in self._held.values() if each.due.passed]
            for each in due:
                self._renew_one(each)

    def _renew_one(self, held: Held) -> None:
        delivery = held.delivery
        with self._lock:
            now, waiting = time.monotonic(), list[OffsetRange]()
            if now - max(held.came_at, self._handed_at) >= self._renews_seconds:
                waiting = held.let_go()
            left, acknowledgements = held.begin_renewing(now - self._renews_seconds)
        # One delivery a call: with several, a lost one would fail the others.
        releases = [entry_of(delivery, "release", *each, counts=False) for each in waiting]
        entries = [entry_of(delivery, "renew", first, last) for first, last in left]
        errors: list[WingsError | None] = []
        with suppress(WingsError):  # Retried when it is next due; what is not released expires.
            self._send(releases)
            errors = self._send(entries)
        renewed = bool(errors) and not any(errors)
        refused = any(isinstance(error, InvalidRecordState) for error in errors)
        with self._lock:
            lost = held.end_renewing(acknowledgements, renewed=renewed, refused=refused)
            self._changed.notify_all()
            is_over = held.is_finished or (not left and held.has_expired)
            if lost or is_over:
                self._held.pop(id(delivery), None)


def entry_of(
    delivery: Delivery,
    kind: AckType,
    first: int,
    last: int,
    delay: float | None = None,
    reason: str | None = None,
    *,
    counts: bool = True,
) -> AcknowledgementEntry:
    """Return the acknowledgement of a range of a delivery; `delay` in seconds.

    Raises:
        InvalidArgument: The delay or the reason is out of bounds.
    """
    return build(
        AcknowledgementEntry,
        kind,
        partition=delivery.partition,
        first=first,
        last=last,
        lease=delivery.lease,
        type=kind,
        delay_ms=None if delay is None else round(delay * 1000),
        reason=reason,
        counts=None if counts else False,
    )


def due_of(delivery: Delivery, thirds: int = 1) -> Deadline:
    """Return when so many thirds of a lock that begins now are over."""
    return Deadline.after(delivery.lock_seconds * thirds / RENEWALS_PER_LOCK)
