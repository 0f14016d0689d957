"""The contract of a queue: messages are leased, and delivered at least once."""

import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class QueueMessage:
    """A delivered message, which other receivers do not see before its deadline."""

    id: str
    """The same for every delivery of the message. No other message has it, not even one of a queue
    that was deleted and created again in the same place."""
    receipt: str
    """Identifies this delivery; extends and acknowledges it."""
    body: str
    deliveries: int
    """Deliveries so far, this one included, as far as the queue knows."""
    deadline: float
    """Time at which it becomes visible again, in seconds since the epoch."""


class Queue(Protocol):
    """Messages that announce files, or carry data themselves; safe from many threads.

    Delivery is at least once: a message may be delivered twice, and is delivered again after its
    deadline.
    """

    @property
    def drops_messages(self) -> bool:
        """Whether the queue drops a message after too many deliveries."""
        return False

    def visibility_seconds(self, asked: float) -> float:
        """Return the visibility that the queue actually applies, in seconds.

        Args:
            asked: The visibility passed to `receive` and `extend`.
        """
        return asked

    def receive(
        self, messages_max: int, visibility_seconds: float, wait_seconds: float = 0.0
    ) -> list[QueueMessage]:
        """Receive messages, and hide them from other receivers.

        Blocks until there is one, at most for `wait_seconds`, without polling in a busy loop.

        Args:
            messages_max: Most messages, at least 1; fewer may be returned even if there are more.
            visibility_seconds: Time for which they are hidden; see the method `visibility_seconds`.
            wait_seconds: The longest wait for the first one.

        Raises:
            Unavailable: The queue cannot be reached.
            InvalidArgument: There is no such queue.
            Unauthenticated: The queue does not know the caller. Also raised by the methods below.
            PermissionDenied: The caller lacks a permission. Also raised by the methods below.
        """
        ...

    def extend(self, receipt: str, visibility_seconds: float) -> float | None:
        """Hide a message for `visibility_seconds` from now on.

        Returns:
            The new deadline; None if the message is lost: it was, or may be, delivered again.

        Raises:
            Unavailable: The queue cannot be reached.
        """
        ...

    def acknowledge(self, receipts: Sequence[str]) -> None:
        """Delete messages; lost ones are delivered again, which is no error.

        Raises:
            Unavailable: The queue cannot be reached.
        """
        ...

    def send(self, bodies: Iterable[str]) -> None:
        """Add messages, in order if the queue keeps it.

        Raises:
            Unavailable: The queue cannot be reached; some may have been added.
        """
        ...

    def pending(self) -> int | None:
        """Return the approximate number of messages waiting for delivery; None if unknown.

        Raises:
            Unavailable: The queue cannot be reached.
            InvalidArgument: There is no such queue.
        """
        ...

    def close(self) -> None:
        """Close the connection; a blocked `receive` returns."""
        ...


THREADS_MAX = 16
"""Concurrent calls: one to a distant queue takes tens of milliseconds."""


def extend_all(
    queue: Queue, receipts: Mapping[str, str], seconds: float
) -> tuple[dict[str, float | None], Exception | None]:
    """Hide messages for `seconds` from now on; the first failure leaves the rest as they are.

    Blocks until all calls have ended.

    Args:
        queue: The queue that delivered them.
        receipts: Receipts by message id.
        seconds: The new visibility.

    Returns:
        The new deadlines by message id, None for a lost message, without the messages that were not
        extended; and the error of the first call that failed, or None.
    """
    if not receipts:
        return {}, None
    found: dict[str, float | None] = {}
    problems: list[Exception] = []
    failed = threading.Event()

    def extend(message_id: str, receipt: str) -> None:
        if failed.is_set():
            return  # It would fail in the same way.
        try:
            found[message_id] = queue.extend(receipt, seconds)
        except Exception as error:  # noqa: BLE001 - returned
            problems.append(error)
            failed.set()

    with ThreadPoolExecutor(min(THREADS_MAX, len(receipts)), "wings-extend") as threads:
        for message_id, receipt in receipts.items():
            threads.submit(extend, message_id, receipt)
    return found, problems[0] if problems else None
