"""Workers of SQL, their processes, and who may use one again."""

import logging
import os
from collections.abc import Iterator
from contextlib import closing
from queue import SimpleQueue
from threading import Event

import pytest

from wings_core.limits import Limits
from wings_core.sql.processes import SAID_BYTES_MAX, Process
from wings_core.sql.workers import RemoteRun, Worker, Workers
from wings_core.sql_process.channel import Message


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
