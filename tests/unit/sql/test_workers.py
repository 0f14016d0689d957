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

from wings_core.errors import Internal
from wings_core.limits import Limits
from wings_core.sql.parser import Parser
from wings_core.sql.processes import SAID_BYTES_MAX, Process
from wings_core.sql.workers import RemoteRun, Worker, Workers
from wings_core.sql_process.channel import Message
from wings_core.sql_process.engine import View

pytestmark = pytest.mark.programs

Found = TypeVar("Found")


@pytest.fixture
def workers() -> Iterator[Workers]:
    with closing(Workers(Limits(sql_memory_bytes_max=64 << 20))) as opened:
        yield opened


def test_a_worker_that_is_killed_as_it_ends_is_not_lent_again(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client may go in the moment in which the last rows have come."""
    gone, killed = Event(), Event()

    class Late(SimpleQueue[Message | None]):
        """Hands on that all is done once the process is about to be killed for it."""

        def get(self, block: bool = True, timeout: float | None = None) -> Message | None:
            message = super().get(block, timeout)
            if message is not None and message.head.get("done"):
                gone.set()
                assert killed.wait(60)
            return message

    def kill(worker: Worker) -> None:
        del worker
        killed.set()  # The kernel takes its time.

    monkeypatch.setattr("wings_core.sql.workers.SimpleQueue", Late)
    worker = workers.borrow()
    pid = worker.pid
    workers.put_back(worker, usable=True)
    run = RemoteRun(workers, {}, {}, lambda _: None, gone.is_set)
    assert run.prepare([], "select 1 as n") is not None
    with monkeypatch.context() as patched:
        patched.setattr(Worker, "kill", kill)
        assert [batch.to_pylist() for batch in run.batches(10)] == [[{"n": 1}]]
        run.close()
    worker = workers.borrow()
    assert worker.pid != pid
    workers.put_back(worker, usable=False)


@pytest.mark.usefixtures("started_anew")
def test_what_a_process_says_as_it_ends_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    life, theirs = os.pipe()
    process = Process("wings_core.sql_process", ["x" * 2 * SAID_BYTES_MAX], [theirs])
    os.close(theirs)
    with os.fdopen(life, "rb") as pipe:
        assert pipe.read() == b"", "it has ended"
    with caplog.at_level(logging.WARNING):
        process.close()
    (told,) = caplog.messages
    assert told.startswith("wings_core.sql_process ended by itself (1): ")
    assert "ValueError" in told
    assert len(told) < SAID_BYTES_MAX + 100


def test_a_process_that_is_ended_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    process = Process("wings_core.sql_process.parsing", ["0"], [])
    with caplog.at_level(logging.WARNING):
        process.close()
    assert not process.alive
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
    with closing(Parser()) as parser:
        assert "SELECT" in parser.parse("select 1 as n", lambda: False).tree
    with (
        closing(Workers(Limits(sql_memory_bytes_max=64 << 20))) as workers,
        closing(RemoteRun(workers, {}, {}, lambda _: None, lambda: False)) as run,
    ):
        assert ended(lambda: run.prepare([], "select 1 as n")) is not None
        assert [batch.to_pylist() for batch in run.batches(10)] == [[{"n": 1}]]


def test_a_statement_whose_scan_gets_no_thread_fails(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And gives its worker back, which is ended."""
    start = threading.Thread.start

    def fail(thread: threading.Thread) -> None:
        if thread.name == "wings-sql-scan":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", fail)
    failures: list[Exception] = []
    table = pa.table({"n": [1, 2]})
    run = RemoteRun(workers, {"rows": table}, {}, failures.append, lambda: False)
    try:
        assert run.prepare([View("CREATE VIEW t AS FROM rows", "DROP VIEW t")], "FROM t")
        with pytest.raises(Internal, match="can't start new thread"):
            ended(lambda: list(run.batches(10)))
    finally:
        run.close()
    other = workers.borrow()
    assert other.alive
    workers.put_back(other, usable=False)


def test_a_worker_may_come_back_while_another_is_started(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On one thread: where that collects the garbage of a query."""
    first = workers.borrow()

    def start(limits: Limits) -> Worker:
        workers.put_back(first, usable=True)
        return Worker(limits)

    with monkeypatch.context() as patched:
        patched.setattr("wings_core.sql.workers.Worker", start)
        ended(workers.warm)
    lent = [workers.borrow(), workers.borrow()]
    assert first in lent
    for each in lent:
        workers.put_back(each, usable=False)
