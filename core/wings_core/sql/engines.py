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

INTERRUPT_SECONDS = 0.02
"""How often it is looked whether a query is to end; so often it is interrupted, as an interrupt
before it runs has no effect."""


class Watch:
    """Interrupts the queries of this process that are to end: one thread for all.

    A thread for each takes as long to start and to end as a look-up takes to plan.
    """

    def __init__(self) -> None:
        # Held while an engine is interrupted: what has left is not interrupted any more. The
        # garbage of a query may be collected, and leave, on a thread that holds it.
        self._changed = threading.Condition(threading.RLock())
        self._watched: dict[Engine, Callable[[], bool]] = {}
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def enter(self, engine: Engine, ends: Callable[[], bool]) -> None:
        """Interrupt an engine from the time on that `ends` returns True, until it leaves."""
        with self._changed:
            self._watched[engine] = ends
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="wings-sql-watch")
                self._thread.daemon = True
                self._thread.start()
            self._changed.notify()

    def leave(self, engine: Engine) -> None:
        """Interrupt an engine no more."""
        with self._changed:
            self._watched.pop(engine, None)

    def _run(self) -> None:
        while not self._stopped.wait(INTERRUPT_SECONDS):
            with self._changed:
                while not self._watched and not self._stopped.is_set():
                    self._changed.wait()
                for engine, ends in list(self._watched.items()):
                    if ends():
                        engine.interrupt()

    def close(self) -> None:
        """End the thread."""
        self._stopped.set()
        with self._changed:
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()


class Engines:
    """Lends engines, at most `sql_queries_max` at once; from any thread.

    Attributes:
        watch: Interrupts those that are to end.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.watch = Watch()
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
        self.watch.close()


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
        ends: Returns whether the query is to end now.
        watch: Asks it.
    """

    def __init__(
        self, engine: Engine, tables: Mapping[str, Any], ends: Callable[[], bool], watch: Watch
    ) -> None:
        self.usable = True
        """Whether the engine may be lent again: nothing was begun there that did not end."""
        self._engine = engine
        self._tables = tables
        self._watch = watch
        watch.enter(engine, ends)

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

    def close(self) -> None:
        """End the watch over the engine, whose caller then returns it."""
        self._watch.leave(self._engine)
        self._engine.release()
