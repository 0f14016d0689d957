"""Engines: the DuckDB connections that filters borrow, each for one batch and a bounded time.

DuckDB runs in memory, without access to files, extensions or Python's variables, with its
configuration locked. A filter waits for an engine no longer than `WAIT_SECONDS_MAX`, and is
interrupted when its time is over or its reader is cancelled; one thread watches all loans.
"""

import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from wings_core.errors import InvalidFilter, ResourceExhausted, WingsError
from wings_core.times import Deadline

if TYPE_CHECKING:
    import duckdb

ENGINES_MAX = 8
"""Filters that DuckDB evaluates at once in one process."""

PATTERN_ENGINES_MAX = ENGINES_MAX // 2
"""Most filters with regular expressions among them: DuckDB is not interrupted within the match of a
text, so the others keep engines of their own."""

WAIT_SECONDS_MAX = 5.0
"""Longest wait of a filter for an engine."""

EVALUATION_SECONDS_MAX = 10.0
"""Longest evaluation of one batch by DuckDB, also where a read has no deadline."""

EVALUATION_SECONDS_MIN = 1.0
"""Time that an evaluation has in any case: a read looks at one range at least, also past its
deadline."""

MEMORY_LIMIT = "256MiB"
"""Memory of DuckDB for one filter, as far as it counts it."""

_SWEEP_SECONDS = 0.02
_IDLE_SECONDS = 10.0
_MESSAGE_LENGTH_MAX = 300

_CONFIG: dict[str, str | bool | int | float | list[str]] = {
    "enable_external_access": "false",
    "autoload_known_extensions": "false",
    "autoinstall_known_extensions": "false",
    "python_enable_replacements": "false",
    "memory_limit": MEMORY_LIMIT,
    "threads": "1",
}

_PLANNER_OMITS = "statistics_propagation,in_clause,common_subexpressions"
"""Optimizers that conclude from the rows of the planner's table, which has none, or that take an
expression apart into several operators."""


class FilterTimedOut(InvalidFilter):
    """A filter whose time was over before it had looked at all rows of a batch."""


class Cancelling(Protocol):
    """A read that may be cancelled from another thread; see `fetcher.Cancel`."""

    @property
    def error(self) -> WingsError | None:
        """The error that cancelled it; None while it goes on."""
        ...


@dataclass(frozen=True, slots=True)
class Allowance:
    """Time that a filter has, by its reader's deadline and cancellation."""

    deadline: Deadline = field(default_factory=Deadline.never)
    """The request's; the bounds of this module hold besides."""
    cancel: Cancelling | None = None

    def seconds(self, most: float) -> float:
        """Return how long a step may take that has `most` seconds of its own."""
        remaining = self.deadline.remaining()
        return most if remaining is None else min(most, max(remaining, EVALUATION_SECONDS_MIN))

    @property
    def error(self) -> WingsError | None:
        """The error that cancelled the read, if any."""
        return None if self.cancel is None else self.cancel.error


class FilterEngine:
    """Two connections, opened on their first use; one thread at a time uses them."""

    def __init__(self) -> None:
        self._runner: duckdb.DuckDBPyConnection | None = None
        self._planner: duckdb.DuckDBPyConnection | None = None

    @property
    def runner(self) -> "duckdb.DuckDBPyConnection":
        """Parses and evaluates."""
        if self._runner is None:
            self._runner = _open()
        return self._runner

    @property
    def planner(self) -> "duckdb.DuckDBPyConnection":
        """Tells how DuckDB would evaluate an expression over any rows of given types."""
        if self._planner is None:
            self._planner = _open(f"SET disabled_optimizers = '{_PLANNER_OMITS}'")
        return self._planner

    def interrupt(self) -> None:
        """Have what runs on the connections end soon; from any thread."""
        for connection in (self._runner, self._planner):
            if connection is not None:
                connection.interrupt()

    def discard(self) -> None:
        """Close connections that may be in no state to be used again."""
        for connection in (self._runner, self._planner):
            if connection is not None:
                connection.close()
        self._runner = self._planner = None


def _open(*settings: str) -> "duckdb.DuckDBPyConnection":
    import duckdb

    connection = duckdb.connect(":memory:", config=_CONFIG)
    # Texts and times are compared in UTC, whatever the zone of the machine.
    for setting in ("SET TimeZone = 'UTC'", *settings, "SET lock_configuration = true"):
        connection.execute(setting)
    return connection


@dataclass(eq=False, slots=True)
class _Loan:
    """An engine at work, and until when."""

    engine: FilterEngine
    ends_at: float
    allowance: Allowance

    @property
    def over(self) -> bool:
        return self.allowance.error is not None or time.monotonic() >= self.ends_at


class _Watch:
    """Interrupts engines whose time is over, on a thread that ends when none is lent for long."""

    def __init__(self) -> None:
        # Held while an engine is interrupted: one that was returned is interrupted no more.
        self._lock = threading.Lock()
        self._loans: set[_Loan] = set()
        self._arrived = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, loan: _Loan) -> None:
        with self._lock:
            self._loans.add(loan)
            # Not alive either in a process that was forked from one that had it.
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(
                    target=self._run, name="wings-filter-watch", daemon=True
                )
                self._thread.start()
            self._arrived.set()

    def remove(self, loan: _Loan) -> None:
        with self._lock:
            self._loans.discard(loan)

    def _run(self) -> None:
        pause = threading.Event()  # Never set.
        while True:
            arrived = self._arrived.wait(_IDLE_SECONDS)
            self._arrived.clear()
            while self._loans:
                pause.wait(_SWEEP_SECONDS)
                with self._lock:
                    for loan in self._loans:
                        if loan.over:
                            loan.engine.interrupt()
            with self._lock:
                if not arrived and not self._loans:
                    self._thread = None
                    return


class _Engines:
    """Lends engines, the one that was used last first."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._idle = [FilterEngine() for _ in range(ENGINES_MAX)]
        self._with_patterns = 0

    def borrow(self, allowance: Allowance, *, pattern: bool) -> FilterEngine:
        """Return a free engine; blocks as long as all are lent.

        Raises:
            ResourceExhausted: All are, for too long.
            WingsError: What the read was cancelled with.
        """
        until = time.monotonic() + allowance.seconds(WAIT_SECONDS_MAX)
        with self._changed:
            while not self._idle or (pattern and self._with_patterns >= PATTERN_ENGINES_MAX):
                if allowance.error is not None:
                    raise allowance.error
                left = until - time.monotonic()
                if left <= 0:
                    raise ResourceExhausted(
                        "as many filters as may run at once are at work already; try again later"
                    )
                self._changed.wait(min(left, 5 * _SWEEP_SECONDS))
            self._with_patterns += pattern
            return self._idle.pop()

    def put_back(self, engine: FilterEngine, *, pattern: bool) -> None:
        with self._changed:
            self._idle.append(engine)
            self._with_patterns -= pattern
            # All: the first that waits may be one with a pattern, which does not take it.
            self._changed.notify_all()


_engines = _Engines()
_watch = _Watch()


@contextmanager
def lent(allowance: Allowance, *, pattern: bool = False) -> Generator[FilterEngine]:
    """Lend an engine; DuckDB's errors become `InvalidFilter`, with their first line.

    Blocks while all engines are lent, at most `WAIT_SECONDS_MAX`.

    Args:
        allowance: The reader's time, for the wait and again for the evaluation.
        pattern: Whether the filter matches regular expressions.

    Raises:
        InvalidFilter: DuckDB failed.
        FilterTimedOut: It was interrupted, as its time was over.
        ResourceExhausted: No engine was free in time.
        WingsError: What the read was cancelled with.
    """
    import duckdb  # Many servers never filter.

    engine = _engines.borrow(allowance, pattern=pattern)
    seconds = allowance.seconds(EVALUATION_SECONDS_MAX)
    loan = _Loan(engine, time.monotonic() + seconds, allowance)
    _watch.add(loan)
    try:
        try:
            yield engine
        finally:
            _watch.remove(loan)  # First of all: a closed connection cannot be interrupted.
    except duckdb.InterruptException:
        engine.discard()
        if allowance.error is not None:
            raise allowance.error from None
        raise FilterTimedOut(
            f"the filter takes too long: it was stopped after {seconds:.1f} s on one batch"
        ) from None
    except (duckdb.Error, MemoryError) as error:
        if isinstance(error, (duckdb.InternalError, duckdb.OperationalError, MemoryError)):
            engine.discard()
        message = str(error).strip().partition("\n")[0]
        raise InvalidFilter(f"the filter fails: {message:.{_MESSAGE_LENGTH_MAX}}") from None
    except InvalidFilter:
        raise
    except BaseException:
        engine.discard()
        raise
    finally:
        _engines.put_back(engine, pattern=pattern)
