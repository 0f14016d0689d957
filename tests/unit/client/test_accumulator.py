"""The accumulator: what waits, when it is due, and what a caller is told."""

import threading
from concurrent.futures import Future

import pytest

from wings_client import Appended
from wings_client._accumulator import Accumulator, Acked, Taken
from wings_core.errors import InvalidArgument, ResourceExhausted, SchemaMismatch, Unavailable

NEVER = 3600.0


class Rig:
    """An accumulator, and what its thread took from it while the gate was open."""

    def __init__(self, *, linger_seconds: float = NEVER, batch_rows: int = 4) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.taken: list[Taken] = []
        self.drained = threading.Semaphore(0)
        self.accumulator = Accumulator(
            self._drain,
            linger_seconds=linger_seconds,
            batch_bytes=1 << 20,
            batch_rows=batch_rows,
            endpoint="grpc://nowhere",
        )

    def append(self, *rows: object, timeout: float | None = 0.0) -> None:
        for row in rows:
            self.accumulator.append(row, timeout)

    def _drain(self) -> None:
        assert self.gate.wait(20)
        taken = self.accumulator.take()
        if taken is not None:
            self.taken.append(taken)
        self.drained.release()


def test_rows_wait_for_others_until_a_batch_is_full() -> None:
    rig = Rig()
    rig.append(1, 2, 3)
    assert not rig.drained.acquire(timeout=0.05)
    rig.append(4)
    assert rig.drained.acquire(timeout=20)
    assert [taken.rows for taken in rig.taken] == [[1, 2, 3, 4]]
    rig.accumulator.close()


def test_a_row_lingers_no_longer_than_it_shall() -> None:
    rig = Rig(linger_seconds=0.001)
    rig.append(1)
    assert rig.drained.acquire(timeout=20)
    rig.append(2)
    assert rig.drained.acquire(timeout=20)
    assert [(taken.rows, taken.first_row) for taken in rig.taken] == [([1], 0), ([2], 1)]
    rig.accumulator.close()


def test_two_batches_may_wait_and_a_third_finds_no_room() -> None:
    rig = Rig()
    rig.gate.clear()
    rig.append(*range(8))
    with pytest.raises(ResourceExhausted):
        rig.append(8, timeout=0.01)
    waiting = threading.Thread(target=rig.append, args=(8,), kwargs={"timeout": 20.0})
    waiting.start()
    rig.gate.set()
    waiting.join(20)
    assert rig.drained.acquire(timeout=20)
    rest = rig.accumulator.take()
    rows = [row for taken in (*rig.taken, rest) if taken is not None for row in taken.rows]
    assert rows == list(range(9))
    rig.accumulator.close()


def test_a_caller_who_waits_is_told_of_a_failure() -> None:
    rig = Rig()
    rig.gate.clear()
    rig.append(*range(8))
    told: list[BaseException] = []

    def wait() -> None:
        try:
            rig.append(8, timeout=None)
        except Unavailable as error:
            told.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    rig.accumulator.fail(Unavailable("gone"))
    waiting.join(20)
    assert [str(error) for error in told] == ["gone"]
    rig.gate.set()


def test_a_bad_row_is_told_once() -> None:
    rig = Rig()
    rig.accumulator.report(SchemaMismatch("row 0", row=0))
    rig.accumulator.report(SchemaMismatch("row 1", row=1))
    with pytest.raises(SchemaMismatch, match="row 0"):
        rig.append(1)
    rig.append(2)
    taken = rig.accumulator.take()
    assert taken is not None
    assert taken.rows == [2]
    rig.accumulator.raise_reported()
    rig.accumulator.close()


def test_a_closed_accumulator_keeps_its_rows_and_takes_no_more() -> None:
    rig = Rig()
    ack: Future[Appended] = Future()
    rig.accumulator.append(Acked(1, ack), None)
    assert rig.accumulator.close()
    assert not rig.accumulator.close()
    with pytest.raises(InvalidArgument):
        rig.append(2)
    taken = rig.accumulator.take()
    assert taken is not None
    assert (taken.rows, taken.acks) == ([1], [(0, ack)])


def test_larger_rows_make_smaller_batches() -> None:
    rig = Rig(batch_rows=1_000_000)
    rig.accumulator.learn_row_bytes(1 << 19)
    rig.append(1, 2)
    assert rig.drained.acquire(timeout=20)
    assert [taken.rows for taken in rig.taken] == [[1, 2]]
    rig.accumulator.close()
