"""The contract of a queue: messages are leased, and delivered at least once.

Clouds change a message's receipt with each extension. One process receives and extends messages,
another extends them again and acknowledges them: `Receipts` has the current ones for both.
"""

import sqlite3
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from wings_core.errors import Unavailable

THREADS_MAX = 16
"""Concurrent calls: one to a distant queue takes tens of milliseconds."""

RECEIPTS_MAX = 10_000
"""Most receipts kept; beyond it the oldest is dropped, as if its message were lost."""

BUSY_SECONDS = 30.0
"""Longest wait of a call for other processes."""


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


class Receipts:
    """Current receipts, as texts, by the first receipt of a message.

    Thread-safe, not durable: lost receipts only cost a redelivery.

    Args:
        path: Path of the database, created if missing; None for one private to this object.

    Raises:
        Unavailable: The database cannot be opened.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._lock = threading.Lock()
        try:
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
            self._database = sqlite3.connect(
                path or ":memory:",
                timeout=BUSY_SECONDS,
                isolation_level=None,
                check_same_thread=False,
            )
            self._database.execute("PRAGMA synchronous = OFF")
            self._database.execute(
                "CREATE TABLE IF NOT EXISTS receipts (receipt TEXT UNIQUE, now TEXT) STRICT"
            )
        except (OSError, sqlite3.Error) as error:
            raise Unavailable(f"{path}: {error}") from None

    def get(self, receipt: str) -> str | None:
        """Return the text of a receipt, or None."""
        with self._lock:
            found = self._database.execute(
                "SELECT now FROM receipts WHERE receipt = ?", (receipt,)
            ).fetchone()
        return None if found is None else str(found[0])

    def put(self, receipt: str, now: str) -> None:
        """Set the text of a receipt."""
        with self._lock:
            self._database.execute(
                "INSERT INTO receipts VALUES (?, ?) ON CONFLICT DO UPDATE SET now = excluded.now",
                (receipt, now),
            )
            self._database.execute(
                "DELETE FROM receipts WHERE rowid <= (SELECT max(rowid) FROM receipts) - ?",
                (RECEIPTS_MAX,),
            )

    def forget(self, receipts: Sequence[str]) -> None:
        """Delete receipts, known or not."""
        with self._lock:
            self._database.executemany(
                "DELETE FROM receipts WHERE receipt = ?", [(each,) for each in receipts]
            )

    def close(self) -> None:
        """Close the database."""
        with self._lock:
            self._database.close()
