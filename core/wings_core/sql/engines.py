"""Engines: the DuckDB instances that queries borrow, each alone and for a bounded time."""

import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from wings_core.errors import ResourceExhausted
from wings_core.fetch.fetcher import Cancel
from wings_core.limits import Limits
from wings_core.sql_process.engine import Engine, EngineBounds, EngineFailed, View

WAIT_SECONDS_MAX = 5.0
"""How long a query waits for an engine."""

_LOOK_SECONDS = 0.1


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
            return Engine(bounds_of(self._limits))
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


def bounds_of(limits: Limits) -> EngineBounds:
    """Return what an engine may use."""
    return EngineBounds(
        limits.sql_memory_bytes_max, limits.sql_spill_bytes_max, limits.sql_threads_max
    )


class LocalRun:
    """One statement in an engine of this process; closed by its caller.

    Args:
        engine: Lent to the caller.
        tables: Datasets and tables of Arrow, by the names under which views know them.
        ends: Returns whether the query is to end now; asked every `look_seconds`.
        look_seconds: How often; so often it is interrupted, as one before it runs has no effect.
    """

    def __init__(
        self,
        engine: Engine,
        tables: Mapping[str, Any],
        ends: Callable[[], bool],
        look_seconds: float,
    ) -> None:
        self.usable = True
        """Whether the engine may be lent again: nothing was begun there that did not end."""
        self._engine = engine
        self._tables = tables
        self._ends = ends
        self._look_seconds = look_seconds
        self._ended = threading.Event()
        self._watch = threading.Thread(target=self._look, name="wings-sql-watch", daemon=True)
        self._watch.start()

    def prepare(self, views: Sequence[View], text: str) -> pa.Schema | None:
        """Plan a statement; see `Engine.prepare`."""
        try:
            return self._engine.prepare(self._tables, views, text)
        except EngineFailed as failed:
            self.usable = failed.harmless
            raise

    def batches(self, rows: int) -> Generator[pa.RecordBatch]:
        """Yield the rows of the statement; see `Engine.batches`."""
        self.usable = False
        yield from self._engine.batches(rows)
        self.usable = True

    def _look(self) -> None:
        while not self._ended.wait(self._look_seconds):
            if self._ends():
                self._engine.interrupt()

    def close(self) -> None:
        """Remove what was made in the engine, whose caller then returns it."""
        self._ended.set()
        if threading.current_thread() is not self._watch:
            self._watch.join()
        self.usable = self._engine.sweep() and self.usable
