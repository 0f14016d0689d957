"""The messages of a delivery that a member still holds, and which of them are renewed."""

import time
from collections.abc import Sequence

from wings_client._share_model import Delivery, OffsetRange, common, merged, without
from wings_core.times import Deadline

RENEWALS_PER_LOCK = 3
"""Renewals of a delivery within one lock duration."""


class Held:
    """The messages of a delivery still held; not thread-safe, callers hold the engine's lock.

    A renewal is refused whole if a part of it is acknowledged, so it leaves out what is being
    acknowledged, and an acknowledgement waits for a renewal under way.

    Attributes:
        delivery: The delivery.
        left: The offsets not known to be acknowledged.
        due: When to renew next.
        renewing: Whether a renewal is under way.
        source: Of which stream it came; None: of none.
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
        """What the caller has begun to work on, and when."""
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
        """What is held, and the caller has not begun to work on."""
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
            ranges: What was to be acknowledged.
            acknowledged: Whether it was; else the ranges stay held, in doubt.
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


def due_of(delivery: Delivery, thirds: int = 1) -> Deadline:
    """Return when so many thirds of a lock that begins now are over."""
    return Deadline.after(delivery.lock_seconds * thirds / RENEWALS_PER_LOCK)
