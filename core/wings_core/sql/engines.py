"""Engines: the DuckDB instances that queries borrow, each alone and for a bounded time.

Each is a database in memory of its own, so that memory, threads and spilled bytes are bounded for
each query. Files, extensions and Python's variables are out of reach, and its configuration is
locked. It takes 20 ms to open, so it is kept for the next query, unless it was interrupted.
"""

import tempfile
import threading
import time
from pathlib import Path

import duckdb

from wings_core.errors import ResourceExhausted
from wings_core.fetch.fetcher import Cancel
from wings_core.limits import Limits
from wings_core.sql.statement import CATALOG

WAIT_SECONDS_MAX = 5.0
"""How long a query waits for an engine."""

_LOOK_SECONDS = 0.1
_SETTINGS = (
    "SET TimeZone = 'UTC'",
    "SET errors_as_json = true",
    f"ATTACH ':memory:' AS {CATALOG}",
    f"USE {CATALOG}",
    "SET lock_configuration = true",
)


class Engine:
    """One instance of DuckDB, and the directory that it spills to."""

    def __init__(self, limits: Limits) -> None:
        self._spill = tempfile.TemporaryDirectory(prefix="wings-sql-", ignore_cleanup_errors=True)
        config: dict[str, str | bool | int | float | list[str]] = {
            "enable_external_access": "false",
            "autoload_known_extensions": "false",
            "autoinstall_known_extensions": "false",
            "python_enable_replacements": "false",
            "memory_limit": f"{limits.sql_memory_bytes_max}B",
            "temp_directory": str(Path(self._spill.name) / "duckdb"),
            "max_temp_directory_size": f"{limits.sql_spill_bytes_max}B",
        }
        if limits.sql_threads_max:
            config["threads"] = str(limits.sql_threads_max)
        self.connection = duckdb.connect(":memory:", config=config)
        for setting in _SETTINGS:
            self.connection.execute(setting)

    def close(self) -> None:
        """Free its memory, and delete what it spilled."""
        self.connection.close()
        self._spill.cleanup()


class Engines:
    """Lends engines, at most `sql_queries_max` at once; from any thread."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._changed = threading.Condition()
        self._idle: list[Engine] = []
        self._lent = 0
        self._closed = False

    @property
    def lent(self) -> int:
        """How many are lent."""
        return self._lent

    def borrow(self, cancel: Cancel) -> Engine:
        """Return an engine; blocks while all are lent, at most `WAIT_SECONDS_MAX`.

        Raises:
            ResourceExhausted: None came free in time.
            WingsError: What the query was cancelled with.
        """
        until = time.monotonic() + WAIT_SECONDS_MAX
        with self._changed:
            while self._lent >= self._limits.sql_queries_max:
                cancel.check()
                left = until - time.monotonic()
                if left <= 0:
                    raise ResourceExhausted(
                        f"{self._limits.sql_queries_max} SQL queries run already; try again later"
                    )
                self._changed.wait(min(left, _LOOK_SECONDS))
            self._lent += 1
            if self._idle:
                return self._idle.pop()
        try:
            return Engine(self._limits)
        except BaseException:
            self._returned(None)
            raise

    def put_back(self, engine: Engine, *, usable: bool) -> None:
        """Take an engine back; one that is not usable is closed."""
        keep = usable and not self._closed
        if not keep:
            engine.close()
        self._returned(engine if keep else None)

    def _returned(self, engine: Engine | None) -> None:
        with self._changed:
            self._lent -= 1
            if engine is not None:
                self._idle.append(engine)
            self._changed.notify()

    def close(self) -> None:
        """Close the engines; those that are lent, as they come back."""
        with self._changed:
            self._closed = True
            idle, self._idle = self._idle, []
        for engine in idle:
            engine.close()
