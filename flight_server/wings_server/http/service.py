"""The HTTP service: the log, the metrics, the budgets and the threads that its handlers share."""

import asyncio
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from wings_core import tracing
from wings_core.errors import Unavailable
from wings_core.fetch.fetcher import Fetcher
from wings_server.flight.running import Running
from wings_server.gate import Gate
from wings_server.http.waiting import Waiting
from wings_server.http.wire import Budget
from wings_server.metrics import Metrics
from wings_server.served_log import ServedLog

READERS = 4
"""Threads that read and encode; none ever waits for messages."""

CHUNKS_MIN = 16
"""An answer has room for at least so many chunks, so that as many partitions can share it."""

WRITERS = 32
"""Threads that push: each waits for its flush, and waiting ones share a flush."""

Result = TypeVar("Result")


class HttpService:
    """Serves a log to the handlers of one application, on one event loop.

    Args:
        log: What is served; closed by its owner after `close`.
        metrics: Counts what is done.
        gate: Decides what each caller may do.

    Attributes:
        log: The log.
        gate: The gate.
        metrics: The metrics.
        fetcher: Reads the log, in chunks that are small against an answer.
        bodies: Counts the bytes of requests held in memory.
        answers: Counts the bytes of answers held in memory.
        waiting: The calls that wait.
    """

    def __init__(self, log: ServedLog, metrics: Metrics, gate: Gate) -> None:
        self.log = log
        self.gate = gate
        self.metrics = metrics
        chunk_bytes_max = min(log.limits.wire_bytes_max, log.limits.http_bytes_max // CHUNKS_MIN)
        self.fetcher = Fetcher(
            log.store,
            log.registry,
            log.limits.model_copy(update={"wire_bytes_max": max(1, chunk_bytes_max)}),
            log.versions,
        )
        self.bodies = Budget(log.limits.http_pending_bytes_max, log.memory)
        self.answers = Budget(log.limits.http_pending_bytes_max)
        self.waiting = Waiting(log.fetcher.waits)
        self._running = Running(log.limits.calls_running_max)
        self._stopping = threading.Event()
        self._stopped_at = 0.0
        self._readers = ThreadPoolExecutor(READERS, "wings-http-read")
        self._writers = ThreadPoolExecutor(WRITERS, "wings-http-write")
        # As many statements again may wait for an engine.
        self._statements = ThreadPoolExecutor(2 * log.limits.sql_queries_max, "wings-http-sql")

    @contextmanager
    def call(self) -> Generator[None]:
        """Count one call.

        Raises:
            Unavailable: The server is stopping.
            ResourceExhausted: `calls_running_max` calls run already.
        """
        if self._stopping.is_set():
            raise Unavailable("the server is stopping")
        with self._running.one():
            yield

    @property
    def calls_running(self) -> int:
        """How many calls are under way, waiting polls among them."""
        return self._running.calls

    async def read(self, work: Callable[[], Result]) -> Result:
        """Run `work` on a reader's thread; it reads and never waits for a commit."""
        return await asyncio.get_running_loop().run_in_executor(self._readers, tracing.bound(work))

    async def write(self, work: Callable[[], Result]) -> Result:
        """Run `work` on a writer's thread; it may wait for a commit."""
        return await asyncio.get_running_loop().run_in_executor(self._writers, tracing.bound(work))

    def state(self, work: Callable[[], Result]) -> "asyncio.Future[Result]":
        """Run `work`, a SQL statement, on a thread of its own."""
        return asyncio.get_running_loop().run_in_executor(self._statements, tracing.bound(work))

    def refuse(self) -> None:
        """Refuse new calls and end waiting ones, with UNAVAILABLE; returns at once."""
        self._stopped_at = time.monotonic()
        self._stopping.set()
        self.waiting.stop(Unavailable("the server is stopping"))

    def drain(self, seconds: float) -> None:
        """Wait until no call is under way, at most `seconds` after `refuse`."""
        left = self._stopped_at + seconds - time.monotonic()
        self._running.drain(left, lambda: False)

    def close(self) -> None:
        """End the threads; waits for their current work."""
        self._statements.shutdown()
        self._readers.shutdown()
        self._writers.shutdown()
