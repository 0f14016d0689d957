"""Workers: processes that parse and run statements, since DuckDB bounds neither time nor memory.

    server ── channel ─▶ process: parse, prepare, run     the kernel bounds its memory
           ◀─ a pipe for each scan of a table ─┐          it is killed when its query is cancelled
           ─▶ rows of topics, as Arrow ────────┘          or times out
           ◀─ a pipe for the rows of the result

Processes are fresh interpreters with few modules loaded and no secrets. Starting one takes half a
second, so they are kept for later statements.
"""

import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from queue import SimpleQueue
from typing import Any, Protocol

import pyarrow as pa

from wings_core.errors import Internal, ResourceExhausted, Unavailable
from wings_core.fetch.fetcher import Cancel
from wings_core.limits import MIB, Limits
from wings_core.sql.predicate import Predicate
from wings_core.sql_process.interface import (
    Channel,
    EngineFailed,
    Parsed,
    Received,
    View,
    open_pipe,
    readable,
    writer_to,
)

WAIT_SECONDS_MAX = 5.0
"""Longest time that a query waits for a worker when all are lent."""

IDLE_SECONDS = 60.0
"""Time that an idle worker is kept; one worker is kept in any case."""

BEYOND_BYTES = 512 * MIB
"""Memory allowed to a process beyond its use at start and the memory that DuckDB counts."""

SCHEMA_BYTES_MAX = 16 * MIB
"""Largest schema of a result, in bytes."""

SAID_BYTES_MAX = 4_096
"""Bytes of a process's last standard error output that are logged; a pipe keeps 64 KiB."""

LOOK_SECONDS = 0.02
"""Interval at which a run checks whether its query should end."""

_WAIT_SECONDS = 0.1
"""Interval at which a query that waits for a worker checks for cancellation."""

_MODULE = "wings_core.sql_process"

_ENVIRONMENT = ("HOME", "LANG", "LD_LIBRARY_PATH", "PATH", "PYTHONPATH", "TMPDIR", "VIRTUAL_ENV")
"""Environment variables that a process inherits from the server."""

_logger = logging.getLogger(__name__)


class LogTable(Protocol):
    """A table whose rows are read as DuckDB scans it."""

    schema: pa.Schema
    """The columns that a scan may ask for."""

    def batches(self, schema: pa.Schema, predicate: Predicate | None) -> Iterator[pa.RecordBatch]:
        """Yield the columns of `schema` of the rows that satisfy `predicate`."""
        ...


class StatementWorker:
    """One process, used by one query at a time.

    If the process dies by itself, its standard error (a failed allocation in C++, for example) is
    logged.

    Args:
        limits: The resources that the process may use.
    """

    def __init__(self, limits: Limits) -> None:
        self.idle_since = 0.0
        """Monotonic time of its last return."""
        self._owned = ExitStack()
        with ExitStack() as theirs, ExitStack() as failed:
            failed.callback(self._owned.close)
            spill = tempfile.TemporaryDirectory(prefix="wings-sql-", ignore_cleanup_errors=True)
            self._owned.callback(spill.cleanup)
            ours, end = socket.socketpair()
            theirs.callback(end.close)
            self.channel = Channel(ours)
            self._owned.callback(self.channel.close)
            life, alive = os.pipe()
            theirs.callback(os.close, life)
            self._owned.callback(os.close, alive)
            self._said, said = os.pipe()
            theirs.callback(os.close, said)
            self._owned.callback(os.close, self._said)
            # Output beyond the pipe's capacity is lost; the process does not wait for a reader.
            os.set_blocking(said, False)
            numbers = (
                end.fileno(),
                life,
                limits.sql_memory_bytes_max,
                BEYOND_BYTES,
                limits.sql_spill_bytes_max,
                limits.sql_threads_max,
            )
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", _MODULE, *map(str, numbers), spill.name],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=said,
                pass_fds=[end.fileno(), life],
                env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
                start_new_session=True,  # A terminal's Ctrl-C is the server's.
            )
            failed.pop_all()

    @property
    def pid(self) -> int:
        """Id of the process."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def kill(self) -> None:
        """Kill the process; does not wait for its end."""
        self._process.kill()

    def close(self) -> None:
        """End the process, and delete its spill files."""
        self._process.kill()
        code = self._process.wait()
        if code not in (0, -signal.SIGKILL):
            os.set_blocking(self._said, False)
            with suppress(BlockingIOError):
                said = os.read(self._said, 1 << 16)[-SAID_BYTES_MAX:].decode(errors="replace")
                _logger.warning("%s ended by itself (%d): %s", _MODULE, code, said.strip())
        self._owned.close()


class Workers:
    """A pool that lends at most `sql_queries_max` workers at once. Thread-safe.

    Args:
        limits: The resources of each worker, and their number.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        # Reentrant: collecting a query's garbage returns its worker, on a thread that may hold the
        # lock.
        self._changed = threading.Condition(threading.RLock())
        self._idle: list[StatementWorker] = []
        self._lent = 0
        self._closed = False

    @property
    def lent(self) -> int:
        """Number of lent workers."""
        return self._lent

    def borrow(self, cancel: Cancel) -> StatementWorker:
        """Lend a worker; blocks while all are lent, for at most `WAIT_SECONDS_MAX`.

        Raises:
            Unavailable: The log is closed.
            ResourceExhausted: No worker was returned in time.
            WingsError: The error that the query was cancelled with.
        """
        until = time.monotonic() + WAIT_SECONDS_MAX
        with self._changed:
            if self._closed:
                raise Unavailable("the log is closed")
            while self._lent >= self._limits.sql_queries_max:
                cancel.check()
                left = until - time.monotonic()
                if left <= 0:
                    raise ResourceExhausted(
                        f"{self._limits.sql_queries_max} SQL queries run already; try again later"
                    )
                self._changed.wait(min(left, _WAIT_SECONDS))
            self._lent += 1
            while self._idle:
                worker = self._idle.pop()
                if worker.alive:
                    return worker
                worker.close()
        try:
            return StatementWorker(self._limits)
        except BaseException:
            self._returned()
            raise

    def put_back(self, worker: StatementWorker, *, usable: bool) -> None:
        """Return a worker; an unusable one is ended, and a new one started."""
        worker.idle_since = now = time.monotonic()
        ended = [] if usable else [worker]
        with self._changed:
            if usable:
                self._idle.append(worker)
            if self._closed:
                ended, self._idle = [*ended, *self._idle], []
            while len(self._idle) > 1 and now - self._idle[0].idle_since > IDLE_SECONDS:
                ended.append(self._idle.pop(0))
            self._returned()
        for each in ended:
            each.close()
        if not usable:
            self._warm()

    def _warm(self) -> None:
        """Start a process for the next statement, unless an idle one exists."""
        with self._changed:
            if not self._idle and not self._closed:
                self._idle.append(StatementWorker(self._limits))

    def _returned(self) -> None:
        with self._changed:
            self._lent -= 1
            self._changed.notify()

    def close(self) -> None:
        """End the processes; lent ones end when they are returned."""
        with self._changed:
            self._closed = True
            idle, self._idle = self._idle, []
        for worker in idle:
            worker.close()


class Run:
    """The steps of one statement in a worker; the caller closes it.

    The constructor blocks while all workers are lent; see `Workers.borrow`.

    Args:
        workers: Lends the worker.
        cancel: Ends the wait for a worker.
        ends: Returns whether the query should end now.
        failed: Called with each error of a scan.
    """

    def __init__(
        self,
        workers: Workers,
        cancel: Cancel,
        ends: Callable[[], bool],
        failed: Callable[[Exception], None],
    ) -> None:
        self._workers = workers
        self._ends = ends
        self._failed = failed
        self._tables: Mapping[str, LogTable] = {}
        self._usable = True
        self._killed = False  # Kept apart: the process may be killed after it reported success.
        self._fault: BaseException | None = None
        """The error that ended the listening thread."""
        self._answers: SimpleQueue[Received | None] = SimpleQueue()
        self._scans: list[threading.Thread] = []
        self._worker = workers.borrow(cancel)
        self._ended, self._end = os.pipe()
        self._listener = threading.Thread(target=self._listen, name="wings-sql-listen", daemon=True)
        self._listener.start()

    def parse(self, text: str) -> Parsed:
        """Return the syntax tree of a text.

        Raises:
            ResourceExhausted: Parsing exceeds its time or memory.
            EngineFailed: The query was cancelled or timed out.
        """
        problem = "parsing the statement takes more time or memory than allowed"
        answer = self._asked({"parse": True}, text.encode(), problem)
        return Parsed(answer.body.decode(), tuple(answer.head["kinds"]))

    def write(self, tree: str) -> str:
        """Return the text of a syntax tree."""
        return str(self._asked({"write": True}, tree.encode()).head["written"])

    def prepare(
        self,
        tables: Mapping[str, LogTable],
        sent: Mapping[str, bytes],
        views: Sequence[View],
        text: str,
    ) -> pa.Schema | None:
        """Create tables and views, and plan a statement over them; no rows are read yet.

        Args:
            tables: The tables to scan, by the names that the views use.
            sent: IPC streams of tables sent with the statement, by the names that the views use.
            views: Views, created in this order.
            text: The statement.

        Returns:
            The schema of its rows; None for a statement that returns none.

        Raises:
            EngineFailed: DuckDB rejects the statement.
            ResourceExhausted: The schema exceeds `SCHEMA_BYTES_MAX`.
        """
        self._tables = tables
        parts = [(name, table.schema.serialize().to_pybytes()) for name, table in tables.items()]
        parts += sent.items()
        listed = [(name, len(part), name in sent) for name, part in parts]
        views_made = [(view.create, view.drop) for view in views]
        asked = {"prepare": {"tables": listed, "views": views_made, "text": text}}
        answer = self._asked(asked, b"".join(part for _, part in parts))
        if len(answer.body) > SCHEMA_BYTES_MAX:
            raise ResourceExhausted(
                f"the schema of a result may have at most {SCHEMA_BYTES_MAX} bytes"
            )
        return pa.ipc.read_schema(pa.py_buffer(answer.body)) if answer.head["schema"] else None

    def batches(self, rows: int) -> Generator[pa.RecordBatch]:
        """Yield the rows of the statement in batches of about `rows`.

        Raises:
            EngineFailed: The statement fails on the data, or exceeds its limits.
            ResourceExhausted: The process exceeded its memory.
        """
        read, write = open_pipe()
        try:
            self._usable = False  # Until the process reports the end of the statement.
            self._ask({"run": rows}, descriptor=write)
        except BaseException:
            os.close(read)
            raise
        finally:
            os.close(write)
        # If the stream is cut, the process's message, or its death, gives the cause.
        cut = suppress(OSError, pa.ArrowException)
        with os.fdopen(read, "rb", buffering=1 << 16) as pipe, cut:
            yield from _stream(pipe)
        self._answer()
        self._usable = True

    def _asked(
        self,
        head: dict[str, Any],
        body: bytes,
        problem: str = "the query was stopped: it needs more memory than it may use",
    ) -> Received:
        self._ask(head, body)
        return self._answer(problem)

    def _ask(self, head: dict[str, Any], body: bytes = b"", descriptor: int | None = None) -> None:
        with suppress(OSError):  # The process ended; the wait for its answer reports it.
            self._worker.channel.send(head, body, descriptor)

    def _answer(
        self, problem: str = "the query was stopped: it needs more memory than it may use"
    ) -> Received:
        answer = self._answers.get()
        if answer is None:
            self._usable = False
            if self._fault is not None:
                raise Internal(f"the query was stopped by a fault of the server: {self._fault!r}")
            raise ResourceExhausted(problem)
        failed = answer.head.get("failed")
        if failed is not None:
            self._usable = bool(answer.head["usable"])
            raise EngineFailed(failed["message"], failed["kind"], failed["shift"])
        return answer

    def _listen(self) -> None:
        """Receive the process's messages; kill the process when the query should end."""
        try:
            self._hear()
        except BaseException as error:  # noqa: BLE001 - raised in the query, which waits.
            self._fault = error
            self._killed = True
            self._worker.kill()
            self._answers.put(None)

    def _hear(self) -> None:
        channel = self._worker.channel
        while True:
            ready = readable([channel.fileno(), self._ended], LOOK_SECONDS)
            if self._ended in ready:
                return
            if self._ends():
                self._killed = True
                self._worker.kill()
            if not ready:
                continue
            message = channel.receive()
            if message is not None and "scan" in message.head:
                scan = threading.Thread(
                    target=self._scan, args=(message,), name="wings-sql-scan", daemon=True
                )
                scan.start()
                self._scans = [each for each in self._scans if each.is_alive()]
                self._scans.append(scan)
                continue
            self._answers.put(message)
            if message is None:
                return

    def _scan(self, message: Received) -> None:
        """Write the rows of a table to the process."""
        assert message.descriptor is not None, "the rows go to a pipe"
        try:
            table = self._tables[message.head["scan"]]
            schema = pa.schema([table.schema.field(name) for name in message.head["columns"]])
            predicate = Predicate.of(message.body) if message.body else None
            with writer_to(message.descriptor, schema) as writer:
                for batch in table.batches(schema, predicate):
                    writer.write_batch(batch)
        except BrokenPipeError:
            pass  # The process needs no more rows.
        except Exception as error:  # noqa: BLE001 - raised by the query.
            self._failed(error)
        finally:
            os.close(message.descriptor)

    def close(self) -> None:
        """Return the worker; one with an unfinished statement is killed."""
        os.close(self._end)
        self._listener.join()
        os.close(self._ended)
        usable = self._usable and not self._killed
        if not usable:
            self._worker.kill()
        for scan in self._scans:
            scan.join()
        self._workers.put_back(self._worker, usable=usable)


def _stream(pipe: Any) -> Generator[pa.RecordBatch]:
    """Yield the rows of an IPC stream; an empty pipe has none."""
    if pipe.peek(1):
        with pa.ipc.open_stream(pipe) as reader:
            yield from reader
