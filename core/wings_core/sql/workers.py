"""Workers: processes that run statements which may take memory that DuckDB does not count.

    server ── channel ─▶ process: prepare, run        the kernel bounds its memory
           ◀─ a pipe for each scan of a table ─┐      it is killed when its query is cancelled,
           ─▶ rows of topics, as Arrow ────────┘      or its time is over, whatever it does
           ◀─ a pipe for the rows of the result

A process takes half a second to start, so one is kept warm from the first statement on.
"""

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from queue import SimpleQueue
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from wings_core.errors import Internal, ResourceExhausted
from wings_core.limits import MIB, Limits
from wings_core.sql.engines import INTERRUPT_SECONDS
from wings_core.sql.processes import Process
from wings_core.sql_process.channel import Channel, Message, readable
from wings_core.sql_process.engine import EngineFailed, View, spill_directory
from wings_core.sql_process.rows import expression_of, open_pipe, writer_to

IDLE_MAX = 2
"""Processes that are kept for the next statement; each takes about 100 MB."""

BEYOND_BYTES = 512 * MIB
"""Memory that a process may use beyond what it has at its start and what DuckDB counts."""


class Worker:
    """One process; one query at a time uses it.

    Args:
        limits: What it may use.
    """

    def __init__(self, limits: Limits) -> None:
        self._spill = spill_directory()
        ours, theirs = socket.socketpair()
        life, self._life = os.pipe()
        numbers = (
            theirs.fileno(),
            life,
            limits.sql_memory_bytes_max,
            BEYOND_BYTES,
            limits.sql_spill_bytes_max,
            limits.sql_threads_max,
        )
        try:
            self._process = Process(
                "wings_core.sql_process",
                [*map(str, numbers), self._spill.name],
                [theirs.fileno(), life],
            )
        except BaseException:
            ours.close()
            os.close(self._life)
            self._spill.cleanup()
            raise
        finally:
            theirs.close()
            os.close(life)
        self.channel = Channel(ours)

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.alive

    def kill(self) -> None:
        """End the process, whatever it does; does not wait for its end."""
        self._process.kill()

    def close(self) -> None:
        """End the process, and delete what it spilled."""
        self._process.close()
        self.channel.close()
        os.close(self._life)
        self._spill.cleanup()


class Workers:
    """Lends workers; from any thread. How many are lent is bounded by the engines that are.

    Args:
        limits: What each may use.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        # The garbage of a query may be collected, and put one back, on a thread that holds it.
        self._lock = threading.RLock()
        self._idle: list[Worker] = []
        self._closed = False

    def warm(self) -> None:
        """Start a process for the next statement that needs one, if none waits; returns at once."""
        with self._lock:
            if not self._idle and not self._closed:
                self._idle.append(Worker(self._limits))

    def borrow(self) -> Worker:
        """Return a worker, whose process may yet be starting."""
        with self._lock:
            while self._idle:
                worker = self._idle.pop()
                if worker.alive:
                    return worker
                worker.close()
        return Worker(self._limits)

    def put_back(self, worker: Worker, *, usable: bool) -> None:
        """Take a worker back; one that is not usable is ended, and another one started."""
        with self._lock:
            keep = usable and not self._closed and len(self._idle) < IDLE_MAX
            if keep:
                self._idle.append(worker)
        if not keep:
            worker.close()
            self.warm()

    def close(self) -> None:
        """End the processes; those that are lent, as they come back."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for worker in idle:
            worker.close()


class RemoteRun:
    """One statement in a worker; closed by its caller.

    Args:
        workers: Where it borrows its worker.
        tables: Datasets and tables of Arrow, by the names under which views know them.
        sent: IPC streams of tables that a client has sent, by such names.
        failed: Told of each error of a scan.
        ends: Returns whether the query is to end now.
    """

    def __init__(
        self,
        workers: Workers,
        tables: Mapping[str, Any],
        sent: Mapping[str, bytes],
        failed: Callable[[Exception], None],
        ends: Callable[[], bool],
    ) -> None:
        self._workers = workers
        self._tables = tables
        self._sent = sent
        self._failed = failed
        self._ends = ends
        self._usable = True
        self._killed = False  # Told apart: it may be killed once it has said that all is done.
        self._fault: BaseException | None = None
        """Of the thread that listens, which has ended by it."""
        self._answers: SimpleQueue[Message | None] = SimpleQueue()
        self._scans: list[threading.Thread] = []
        self._ended, self._end = os.pipe()
        self._worker = workers.borrow()
        self._watch = threading.Thread(target=self._listen, name="wings-sql-listen", daemon=True)
        self._watch.start()

    def prepare(self, views: Sequence[View], text: str) -> pa.Schema | None:
        """Plan a statement; see `Engine.prepare`."""
        parts = [(name, table.schema.serialize(), False) for name, table in self._tables.items()]
        parts += [(name, pa.py_buffer(raw), True) for name, raw in self._sent.items()]
        asked = {
            "tables": [
                {"name": name, "bytes": part.size, "sent": sent} for name, part, sent in parts
            ],
            "views": [(view.create, view.drop) for view in views],
            "text": text,
        }
        self._ask({"prepare": asked}, b"".join(part.to_pybytes() for _, part, _ in parts))
        answer = self._answer()
        return pa.ipc.read_schema(pa.py_buffer(answer.body)) if answer.head["schema"] else None

    def batches(self, rows: int) -> Generator[pa.RecordBatch]:
        """Yield the rows of the statement; see `Engine.batches`."""
        read, write = open_pipe()
        try:
            self._usable = False  # Until it says that it has done all.
            self._ask({"run": rows}, descriptor=write)
        except BaseException:
            os.close(read)
            raise
        finally:
            os.close(write)
        # Where the stream is cut, the process tells why, or that it ended does.
        cut = contextlib.suppress(OSError, pa.ArrowException)
        with os.fdopen(read, "rb", buffering=1 << 16) as pipe, cut:
            yield from _stream(pipe)
        self._answer()
        self._usable = True

    def _ask(self, head: dict[str, Any], body: bytes = b"", descriptor: int | None = None) -> None:
        with contextlib.suppress(OSError):  # That it ended comes as its answer.
            self._worker.channel.send(head, body, descriptor)

    def _answer(self) -> Message:
        answer = self._answers.get()
        if answer is None:
            self._usable = False
            if self._fault is not None:
                raise Internal(f"the query was stopped by a fault of the server: {self._fault!r}")
            raise ResourceExhausted("the query was stopped: it needs more memory than it may use")
        failed = answer.head.get("failed")
        if failed is not None:
            self._usable = bool(answer.head["usable"])
            raise EngineFailed(failed["message"], failed["kind"], failed["shift"])
        return answer

    def _listen(self) -> None:
        """Take what the process says, and end it where the query is to end."""
        try:
            self._hear()
        except BaseException as error:  # noqa: BLE001 - the query waits, and is told why.
            self._fault = error
            self._killed = True
            self._worker.kill()
            self._answers.put(None)

    def _hear(self) -> None:
        channel = self._worker.channel
        while True:
            ready = readable([channel.fileno(), self._ended], INTERRUPT_SECONDS)
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

    def _scan(self, message: Message) -> None:
        """Write the rows of a table to the process."""
        assert message.descriptor is not None, "the rows go to a pipe"
        try:
            table = self._tables[message.head["scan"]]
            condition = expression_of(message.body)
            columns: list[str] = message.head["columns"]
            scanned = ds.dataset(table) if isinstance(table, pa.Table) else table
            rows = scanned.scanner(columns=columns, filter=condition).to_reader()
            with writer_to(message.descriptor, rows.schema) as writer:
                for batch in rows:
                    writer.write_batch(batch)
        except BrokenPipeError:
            pass  # The process needs no more of it.
        except Exception as error:  # noqa: BLE001 - raised by the query.
            self._failed(error)
        finally:
            os.close(message.descriptor)

    def close(self) -> None:
        """Return the worker; one whose statement has begun and not ended is killed."""
        os.close(self._end)
        self._watch.join()
        os.close(self._ended)
        usable = self._usable and not self._killed
        if not usable:
            self._worker.kill()
        for scan in self._scans:
            scan.join()
        self._workers.put_back(self._worker, usable=usable)


def _stream(pipe: Any) -> Generator[pa.RecordBatch]:
    """Yield the rows of an IPC stream; of no bytes at all there are none."""
    if pipe.peek(1):
        with pa.ipc.open_stream(pipe) as reader:
            yield from reader
