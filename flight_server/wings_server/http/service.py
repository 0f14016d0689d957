"""The HTTP service: the log, metrics, budgets and threads that handlers share."""

import asyncio
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import TypeVar, cast

from starlette.requests import Request

from wings_core import tracing
from wings_core.errors import TopicNotFound, Unavailable, WingsError
from wings_core.fetch.fetcher import Fetcher
from wings_core.security.principal import Principal
from wings_server.flight.authentication import secret_of
from wings_server.flight.calls import Running
from wings_server.gate import Gate, with_similar
from wings_server.http.wire import PRINCIPAL, USAGE
from wings_server.metrics import Metrics
from wings_server.quotas import PushQuotas
from wings_server.resources import Budget
from wings_server.served_log import ServedLog
from wings_server.shared_reads import Waiting

READERS = 4
"""Threads that read and encode, never waiting for messages."""

CHUNKS_MIN = 16
"""Least number of chunks that fit in a response, so that as many partitions can share it."""

WRITERS = 32
"""Threads that push, each waiting for its flush; waiting threads share flushes."""

Result = TypeVar("Result")


class HttpService:
    """Shared state of the handlers of one application, on one event loop.

    Args:
        log: The log; its owner closes it after `close`.
        metrics: The metrics.
        gate: Authorizes callers.

    Attributes:
        log: The log.
        gate: The gate.
        metrics: The metrics.
        fetcher: Reads the log in chunks that are small compared to a response.
        bodies: Counts the bytes of request bodies in memory.
        answers: Counts the bytes of responses in memory.
        waiting: The waiting calls.
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
        # Twice the running statements, so that as many may wait for an engine.
        self._statements = ThreadPoolExecutor(2 * log.limits.sql_queries_max, "wings-http-sql")

    @contextmanager
    def call(self) -> Generator[None]:
        """Count one call for the block.

        Raises:
            Unavailable: The server is stopping.
            ResourceExhausted: `calls_running_max` calls are in progress.
        """
        if self._stopping.is_set():
            raise Unavailable("the server is stopping")
        with self._running.one():
            yield

    @property
    def calls_running(self) -> int:
        """Number of calls in progress, waiting polls included."""
        return self._running.calls

    async def read(self, work: Callable[[], Result]) -> Result:
        """Run `work`, which never waits for a commit, on a reader's thread."""
        return await asyncio.get_running_loop().run_in_executor(self._readers, tracing.bound(work))

    async def write(self, work: Callable[[], Result]) -> Result:
        """Run `work`, which may wait for a commit, on a writer's thread."""
        return await asyncio.get_running_loop().run_in_executor(self._writers, tracing.bound(work))

    async def explained(self, request: Request, error: WingsError) -> WingsError:
        """Return the error of a call, that of a missing topic with similar ones.

        Other errors may be those of requests without a principal, such as `/readyz`.
        """
        if not isinstance(error, TopicNotFound):
            return error
        principal = request.scope[PRINCIPAL]
        return await self.read(partial(with_similar, self.log.admin, principal, error))

    def state(self, work: Callable[[], Result]) -> "asyncio.Future[Result]":
        """Run `work`, a SQL statement, on a thread of its own."""
        return asyncio.get_running_loop().run_in_executor(self._statements, tracing.bound(work))

    def refuse(self) -> None:
        """Reject new calls and end waiting ones with UNAVAILABLE; returns at once."""
        self._stopped_at = time.monotonic()
        self._stopping.set()
        self.waiting.stop(Unavailable("the server is stopping"))

    def drain(self, seconds: float) -> None:
        """Wait until no call is in progress, at most `seconds` after `refuse`."""
        left = self._stopped_at + seconds - time.monotonic()
        self._running.drain(left, lambda: False)

    def close(self) -> None:
        """End the threads; waits for their current work."""
        self._statements.shutdown()
        self._readers.shutdown()
        self._writers.shutdown()


def secret_presented(request: Request) -> str | None:
    """Return the secret that a request presents, if any."""
    return secret_of(request.headers.getlist("authorization"))


def principal_of(request: Request) -> Principal:
    """Return the principal of a request."""
    return cast("Principal", request.scope[PRINCIPAL])


def push_quotas_of(request: Request, gate: Gate) -> PushQuotas | None:
    """Return the quotas for a push by a request's principal; None without quotas."""
    return gate.push_quotas(principal_of(request), request.scope[USAGE])
