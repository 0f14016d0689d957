"""The answers of a stream: what they bring is gathered for one flush."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from answers_rig import Rig


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

    monkeypatch.setattr(rig.answers, "_gather_seconds", seconds)
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
