"""Workers of SQL, their processes, and who may use one again."""

import logging
import os
import resource
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, closing
from queue import SimpleQueue
from threading import Event
from typing import TypeVar

import pyarrow as pa
import pytest
from fix_threads import Threads
from waiting import until

from wings_core.errors import Internal, Unavailable
from wings_core.fetch.fetcher import Cancel
from wings_core.limits import Limits
from wings_core.sql.workers import SAID_BYTES_MAX, Run, StatementWorker, Workers
from wings_core.sql_process.interface import Received, View

pytestmark = pytest.mark.programs

Found = TypeVar("Found")


class Numbers:
    """A table of two numbers."""

    schema = pa.schema([("n", pa.int64())])

    def batches(self, schema: pa.Schema, predicate: object) -> Iterator[pa.RecordBatch]:
        del predicate
        yield pa.record_batch({"n": [1, 2]}, schema=schema)


def opened(workers: Workers, ends: Callable[[], bool] = lambda: False) -> Run:
    return Run(workers, Cancel(), ends, lambda _: None)


@pytest.fixture
def workers() -> Iterator[Workers]:
    with closing(Workers(Limits(sql_memory_bytes_max=64 << 20))) as opened:
        yield opened


def test_a_worker_that_is_killed_as_it_ends_is_not_lent_again(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client may go in the moment in which the last rows have come."""
    gone, killed = Event(), Event()

    class Late(SimpleQueue[Received | None]):
        """Hands on that all is done once the process is about to be killed for it."""

        def get(self, block: bool = True, timeout: float | None = None) -> Received | None:
            message = super().get(block, timeout)
            if message is not None and message.head.get("done"):
                gone.set()
                assert killed.wait(60)
            return message

    def kill(worker: StatementWorker) -> None:
        del worker
        killed.set()  # The kernel takes its time.

    monkeypatch.setattr("wings_core.sql.workers.SimpleQueue", Late)
    worker = workers.borrow(Cancel())
    pid = worker.pid
    workers.put_back(worker, usable=True)
    run = opened(workers, gone.is_set)
    assert run.prepare({}, {}, [], "select 1 as n") is not None
    with monkeypatch.context() as patched:
        patched.setattr(StatementWorker, "kill", kill)
        assert [batch.to_pylist() for batch in run.batches(10)] == [[{"n": 1}]]
        run.close()
    worker = workers.borrow(Cancel())
    assert worker.pid != pid
    workers.put_back(worker, usable=False)


@pytest.mark.usefixtures("started_anew")
def test_what_a_process_says_as_it_ends_is_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wings_core.sql.workers.BEYOND_BYTES", "x" * 2 * SAID_BYTES_MAX)
    worker = StatementWorker(Limits())
    assert worker.channel.receive() is None, "it has ended"
    with caplog.at_level(logging.WARNING):
        until(lambda: not worker.alive)
        worker.close()
    (told,) = caplog.messages
    assert told.startswith("wings_core.sql_process ended by itself (1): ")
    assert "ValueError" in told
    assert len(told) < SAID_BYTES_MAX + 100


def test_a_process_that_is_ended_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    worker = StatementWorker(Limits())
    with caplog.at_level(logging.WARNING):
        worker.close()
    assert not worker.alive
    assert not caplog.messages


def ended(call: Callable[[], Found]) -> Found:
    """Return what a call returns that may never do so, which fails one test alone."""
    found: Future[Found] = Future()

    def run() -> None:
        try:
            found.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised in the test.
            found.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return found.result(60)


@pytest.fixture
def many_files() -> Iterator[None]:
    """Have all new descriptors be of numbers that `select` does not know."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft, hard = before
    if hard != resource.RLIM_INFINITY and hard < 2_048:
        pytest.skip("the process may open few files")
    with ExitStack() as opened:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2_048), hard))
        opened.callback(resource.setrlimit, resource.RLIMIT_NOFILE, before)
        number = 0
        while number < 1_024:
            number = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            opened.callback(os.close, number)
        yield


@pytest.mark.usefixtures("many_files", "started_anew")
def test_statements_are_parsed_and_run_by_a_server_with_many_open_files() -> None:
    with (
        closing(Workers(Limits(sql_memory_bytes_max=64 << 20))) as workers,
        closing(opened(workers)) as run,
    ):
        assert "SELECT" in ended(lambda: run.parse("select 1 as n")).tree
        assert ended(lambda: run.prepare({}, {}, [], "select 1 as n")) is not None
        assert [batch.to_pylist() for batch in run.batches(10)] == [[{"n": 1}]]


def test_a_statement_whose_scan_gets_no_thread_fails(workers: Workers, threads: Threads) -> None:
    """And gives its worker back, which is ended."""
    threads.refuse("wings-sql-scan")
    failures: list[Exception] = []
    run = Run(workers, Cancel(), lambda: False, failures.append)
    try:
        view = View("CREATE VIEW t AS FROM rows", "DROP VIEW t")
        assert run.prepare({"rows": Numbers()}, {}, [view], "FROM t")
        with pytest.raises(Internal, match="can't start new thread"):
            ended(lambda: list(run.batches(10)))
    finally:
        run.close()
    other = workers.borrow(Cancel())
    assert other.alive
    workers.put_back(other, usable=False)


def test_a_worker_may_come_back_while_another_is_started(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On one thread: where that collects the garbage of a query."""
    first, second = workers.borrow(Cancel()), workers.borrow(Cancel())

    def start(limits: Limits) -> StatementWorker:
        workers.put_back(first, usable=True)
        return StatementWorker(limits)

    with monkeypatch.context() as patched:
        patched.setattr("wings_core.sql.workers.StatementWorker", start)
        ended(lambda: workers.put_back(second, usable=False))
    lent = [workers.borrow(Cancel()), workers.borrow(Cancel())]
    assert first in lent
    for each in lent:
        workers.put_back(each, usable=True)


def test_workers_that_are_idle_for_long_end_but_one(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    lent = [workers.borrow(Cancel()) for _ in range(3)]
    for each in lent:
        workers.put_back(each, usable=True)
    assert all(each.alive for each in lent)
    monkeypatch.setattr("wings_core.sql.workers.IDLE_SECONDS", 0.0)
    workers.put_back(workers.borrow(Cancel()), usable=True)
    assert [each.alive for each in lent] == [False, False, True]


def test_a_query_waits_for_a_worker_until_it_is_cancelled() -> None:
    with closing(Workers(Limits(sql_queries_max=1))) as workers:
        only = workers.borrow(Cancel())
        cancel = Cancel()
        cancel.cancel(Unavailable("gone"))
        with pytest.raises(Unavailable, match="gone"):
            workers.borrow(cancel)
        assert workers.lent == 1
        workers.put_back(only, usable=True)
