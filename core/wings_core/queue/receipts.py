"""Current receipts of messages by their first receipt, for all processes of a pipeline.

Clouds change a message's receipt with each extension. One process receives and extends messages,
another extends them again and acknowledges them.
"""

import sqlite3
import threading
from collections.abc import Sequence
from pathlib import Path

from wings_core.errors import Unavailable

RECEIPTS_MAX = 10_000
"""Most receipts kept; beyond it the oldest is dropped, as if its message were lost."""

BUSY_SECONDS = 30.0
"""Longest wait of a call for other processes."""


class Receipts:
    """Texts by receipt. Thread-safe, not durable: lost receipts only cost a redelivery.

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
