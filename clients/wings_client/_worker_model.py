"""Values that a worker hands to its handler, and what it learns from it."""

import random
from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, cast

from wings_client._share_engine import Settlement
from wings_client._share_model import Delivery, OffsetRange, Rows, common, without
from wings_client.arrow import RecordBatch
from wings_core import tracing
from wings_core.contracts.share import DELAY_MS_MAX, REASON_CHARACTERS_MAX
from wings_core.errors import InvalidArgument
from wings_core.partitions import JsonScalar

Each = Literal["row", "batch"]

DELAY_SECONDS_MAX = DELAY_MS_MAX / 1000
"""The longest delay of a release."""


class Release(Exception):  # noqa: N818 - a verdict, not a fault.
    """Raised by a handler: its messages are to be delivered again.

    Args:
        reason: A text for the dead letter, if this was the last delivery.
        delay: Seconds for which they are not delivered; None: the worker's backoff.
        rows: Rows of a batch that this holds for, as `ShareConsumer.release` takes them; the
            others are accepted. None: all.
    """

    def __init__(
        self, reason: str | None = None, *, delay: float | None = None, rows: Rows = None
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.delay = delay
        self.rows = rows


class Reject(Exception):  # noqa: N818 - a verdict, not a fault.
    """Raised by a handler: its messages are hopeless, and become dead letters.

    Args:
        reason: A text for the dead letter.
        rows: Rows of a batch that this holds for; the others are accepted. None: all.
    """

    def __init__(self, reason: str | None = None, *, rows: Rows = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.rows = rows


@dataclass(frozen=True, slots=True, eq=False)
class Message:
    """One message of a delivery."""

    delivery: Delivery
    index: int
    """Its row in the delivery's batch."""

    @property
    def row(self) -> dict[str, Any]:
        """The topic's columns, as Python values."""
        return self.batch.to_pylist()[0]

    @property
    def batch(self) -> RecordBatch:
        """The topic's columns, as a batch of one row."""
        return self.delivery.rows.slice(self.index, 1)

    @property
    def partition(self) -> JsonScalar:
        """The partition value; of a binary key, in base64."""
        return self.delivery.partition

    @property
    def offset(self) -> int:
        """Its offset; with the partition, it names the message for good."""
        return cast("int", self["__offset"])

    @property
    def timestamp(self) -> datetime:
        """When it was committed, in UTC."""
        return cast("datetime", self["__timestamp"])

    @property
    def delivery_count(self) -> int:
        """Number of deliveries, this one included: 1 at the first."""
        return self.delivery.delivery_count

    @property
    def is_last_delivery(self) -> bool:
        """True where a release, or an error of the handler, makes it a dead letter.

        By the group's `delivery_limit` when the worker connected.
        """
        return self.delivery.is_last

    def __getitem__(self, column: str) -> Any:
        """Return the value of a column.

        Raises:
            KeyError: The topic has no such column.
        """
        return self.delivery.batch.column(column)[self.index].as_py()


@dataclass(frozen=True, slots=True)
class WorkerStats:
    """Counts of what a worker has done, in messages. All but `waiting` and `running` only grow."""

    delivered: int
    accepted: int
    released: int
    """To be delivered again: their handler raised, or the worker stopped before it began."""
    rejected: int
    lost: int
    """Messages whose lock had ended, or whose acknowledgement failed: they may be delivered
    again."""
    dead: int
    """Messages that became dead letters: rejected, or released at their last delivery."""
    waiting: int
    """Held, their handler not begun."""
    running: int
    """In a handler now."""


@dataclass(frozen=True, slots=True)
class BackoffPolicy:
    """How long messages whose handler raised wait for their next delivery.

    Attributes:
        first: Seconds after the first delivery; doubled with each further one.
        most: Seconds at most.
    """

    first: float
    most: float

    def delay(self, delivery_count: int) -> float:
        """Return the seconds after this delivery, between a half and the whole of the nominal."""
        nominal = min(self.most, self.first * 2.0 ** min(delivery_count - 1, 64))
        return nominal * random.uniform(0.5, 1.0)


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """Unit that one call of a handler works on: a delivery, or a message of it."""

    delivery: Delivery
    message: Message | None = None
    following: "deque[Task] | None" = None
    """Work that follows it, and not beside it: in order, the rest of its delivery."""

    @property
    def argument(self) -> Message | Delivery:
        """Value that the handler is given."""
        return self.message or self.delivery

    @property
    def messages(self) -> int:
        """How many messages it is."""
        return len(self.delivery) if self.message is None else 1

    @property
    def ranges(self) -> list[OffsetRange]:
        """Its offsets."""
        if self.message is None:
            return self.delivery.ranges(None)
        return [(self.message.offset, self.message.offset)]

    def span(self) -> AbstractContextManager[object]:
        """Return a span for what its handler does, with links to where it was pushed."""
        tracing.notice()
        about = {"messaging.batch.message_count": self.messages}
        return tracing.linked_span("process", self.delivery.traces, attributes=about)

    def settlements(self, error: BaseException | None, backoff: BackoffPolicy) -> list[Settlement]:
        """Return how its messages are acknowledged, after its handler returned or raised."""
        left = self.ranges
        found: list[Settlement] = []
        try:
            for verdict in _verdicts(error):
                whole = self.message is not None or verdict.rows is None
                ranges = left if whole else common(left, self.delivery.ranges(verdict.rows))
                left = without(left, ranges)
                if ranges:
                    found.append(self._settlement(verdict, ranges, backoff))
        except (InvalidArgument, TypeError, ValueError) as wrong:  # There are no such rows.
            return [self._settlement(Release(text_of(wrong)), self.ranges, backoff)]
        if left:
            found.append(Settlement(self.delivery, "accept", left))
        return found

    def _settlement(
        self, verdict: Release | Reject, ranges: Sequence[OffsetRange], backoff: BackoffPolicy
    ) -> Settlement:
        reason = None if verdict.reason is None else bounded(str(verdict.reason))
        if isinstance(verdict, Reject):
            return Settlement(self.delivery, "reject", ranges, reason=reason)
        delay = verdict.delay
        if delay is None:
            delay = backoff.delay(self.delivery.delivery_count)
        delay = min(max(0.0, delay), DELAY_SECONDS_MAX)
        return Settlement(self.delivery, "release", ranges, delay, reason)


def _raised(error: BaseException) -> Sequence[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return cast("BaseExceptionGroup[BaseException]", error).exceptions
    return [error]


def is_verdict(error: BaseException) -> bool:
    """Return whether a handler raised it on purpose: `Release`, `Reject`, or a group of them."""
    return all(isinstance(each, (Release, Reject)) for each in _raised(error))


def _verdicts(error: BaseException | None) -> list[Release | Reject]:
    if error is None:
        return []
    raised = [each for each in _raised(error) if isinstance(each, (Release, Reject))]
    return raised if is_verdict(error) else [Release(text_of(error))]


def text_of(error: BaseException) -> str:
    """Return an error's class and text."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def bounded(reason: str) -> str:
    """Return a reason as it may be sent: cut, and in characters that UTF-8 has."""
    return reason[:REASON_CHARACTERS_MAX].encode("utf-8", "replace").decode("utf-8")
