"""What a member holds: which of a delivery it has not settled, and what may be renewed of it."""

import time
from collections.abc import Sequence

from wings_client._share_model import Delivery, OffsetRange, common, merged, without
from wings_core.times import Deadline

RENEWALS_PER_LOCK = 3
"""How often a delivery is renewed in the time that it is held."""


class Held:
    """What is left of a delivery that was not settled yet; who calls sees to it that one does.

    A renewal is refused whole where a part of it is finished, so it leaves out what is being
    settled, and a settling waits for one that is under way.

    Attributes:
        delivery: The delivery.
        left: What was not settled, as far as is known.
        due: When it is to be renewed.
        renewing: Whether it is being renewed.
    """

    def __init__(self, delivery: Delivery) -> None:
        self.delivery = delivery
        self.left: list[OffsetRange] = [(delivery.start_offset, delivery.end_offset)]
        self.renewing = False
        self.due = _due(delivery)
        self._came_at = time.monotonic()
        self._ends = Deadline.after(delivery.lock_seconds)
        self._settling: list[Sequence[OffsetRange]] = []
        self._settles = 0  # Begun so far.
        self._in_doubt: list[OffsetRange] = []
        self._rows: list[OffsetRange] | None = None

    @property
    def age_seconds(self) -> float:
        """How long ago it came."""
        return time.monotonic() - self._came_at

    @property
    def is_settled(self) -> bool:
        """Whether no message is left."""
        if self._rows is None:
            self._rows = merged(self.delivery.offsets)
        return not common(self._rows, self.left)

    @property
    def has_expired(self) -> bool:
        """Whether the lock is over for certain, unless others renewed it."""
        return self._ends.passed

    def begin_settling(self, ranges: Sequence[OffsetRange]) -> None:
        """Note that ranges are being settled; `end_settling` follows."""
        self._settling.append(ranges)
        self._settles += 1

    def end_settling(self, ranges: Sequence[OffsetRange], *, settled: bool) -> None:
        """Note what became of it; what was not settled for certain is left, and in doubt."""
        self._settling.remove(ranges)
        if settled:
            self.left = without(self.left, ranges)
        else:
            self._in_doubt = [*without(self._in_doubt, ranges), *ranges]

    def begin_renewing(self) -> tuple[list[OffsetRange], int]:
        """Return what is to be renewed, and what `end_renewing` takes."""
        self.renewing = True
        settling = [each for ranges in self._settling for each in ranges]
        return without(self.left, settling), self._settles

    def end_renewing(self, settles: int, *, renewed: bool, refused: bool) -> bool:
        """Note the end of a renewal.

        Returns:
            Whether what is left is lost. Where a refusal may have another reason, it is due at once
            instead: something of it was settled meanwhile, or may have been before.
        """
        self.renewing = False
        if renewed:
            self.renewed()
            return False
        if not refused:
            self.due = _due(self.delivery)  # It is not known; it is tried again then.
            return False
        if self._settles != settles:
            return False
        if self._in_doubt:
            self.left = without(self.left, self._in_doubt)
            self._in_doubt = []
            return self.is_settled
        return True

    def renewed(self) -> None:
        """Note that it is held for another lock duration."""
        self._ends = Deadline.after(self.delivery.lock_seconds)
        self.due = _due(self.delivery)

    def parts(self) -> list[list[OffsetRange]]:
        """Return what is left, what is in doubt apart from the rest; neither is empty."""
        rest = without(self.left, self._in_doubt)
        return [part for part in (rest, without(self.left, rest)) if part]


def _due(delivery: Delivery) -> Deadline:
    return Deadline.after(delivery.lock_seconds / RENEWALS_PER_LOCK)
