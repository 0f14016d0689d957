"""The answers of a stream: what they bring is gathered for one flush."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from answers_rig import Rig

from wings_core.errors import Unavailable
from wings_core.model import Rejected


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.close()


def patient(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> threading.Semaphore:
    """Have the thread wait without an end for what it gathers; returns what tells that it waits."""
    waits = threading.Semaphore(0)

    def seconds() -> float:
        waits.release()
        return 3600.0

    monkeypatch.setattr(rig.answers, "_linger_seconds", seconds)
    return waits


def test_what_many_answers_bring_is_gathered_for_one_flush(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = patient(rig, monkeypatch)
    rig.submit(8)
    rig.await_answers(8)
    assert waits.acquire(timeout=20)
    for _ in range(6):  # Three quarters of what was answered.
        rig.submit(1)
    rig.await_answers(6)
    assert [report.batches for report in rig.reports] == [8, 6]


def test_what_is_gathered_is_committed_where_the_stream_ends(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = patient(rig, monkeypatch)
    rig.submit(8)
    rig.await_answers(8)
    assert waits.acquire(timeout=20)
    rig.submit(2)
    rig.answers.finish()
    assert rig.writer.count == 10
    assert [report.batches for report in rig.reports] == [8, 2]


def test_a_batch_that_stays_alone_is_not_waited_with(rig: Rig) -> None:
    for count in range(1, 4):
        rig.submit(1)
        rig.await_answers(1)
        assert [report.batches for report in rig.reports] == [1] * count


def test_nothing_is_answered_after_a_fault_of_the_thread_that_answers(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = [TypeError("a fault of ours")]

    def fail_at_the_second() -> None:
        if rig.writer.count == 1 and faults:
            raise faults.pop()

    rig.writer.before = fail_at_the_second
    for _ in range(3):
        rig.answers.add(Rejected(Unavailable("refused")))
    assert rig.answers.take_turn()
    with pytest.raises(TypeError):
        rig.answers.write_due()
    rig.answers.finish()  # The thread that reads: it may be first to know.
    assert rig.writer.count == 1


def test_a_stream_may_be_read_while_what_answers_bring_is_gathered(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = patient(rig, monkeypatch)
    rig.add(8)
    assert rig.answers.take_turn()
    let_read = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        answering = pool.submit(rig.answers.write_due, let_read.set)
        rig.await_answers(8)
        assert waits.acquire(timeout=20)
        told = let_read.is_set()
        rig.answers.finish()
        answering.result(20)
    assert told
