"""What a cloud gave in the place of a receipt, for all processes of a pipeline.

One process receives and extends messages, another extends them again and acknowledges them.
"""

import sqlite3
import threading
from collections.abc import Sequence
from pathlib import Path

from wings_core.errors import Unavailable

RECEIPTS_MAX = 10_000
"""Most receipts that are kept; the oldest is forgotten, as if its message were lost."""

BUSY_SECONDS = 30.0
"""How long a call waits for other processes."""


class Receipts:
    """Texts by receipt; safe from many threads. Nothing is synced: what is lost is extended anew.

    Args:
        path: Of the database, which is created if it is missing; None: it is this object's alone.

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
        """Return what was put there; None: nothing was."""
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
        """Forget receipts, known or not."""
        with self._lock:
            self._database.executemany(
                "DELETE FROM receipts WHERE receipt = ?", [(each,) for each in receipts]
            )

    def close(self) -> None:
        """Close the database."""
        with self._lock:
            self._database.close()
