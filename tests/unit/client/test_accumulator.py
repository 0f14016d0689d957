"""The accumulator: what waits, when it is due, and what a caller is told."""

import threading
from concurrent.futures import Future

import pytest
from fix_threads import Threads

from wings_client import Appended
from wings_client._accumulator import Accumulator, Acked, Taken
from wings_core.errors import (
    Internal,
    InvalidArgument,
    ResourceExhausted,
    SchemaMismatch,
    Unavailable,
    WingsError,
)
from wings_core.times import Deadline

NEVER = 3600.0


class Rig:
    """An accumulator, and what its thread sent while the gate was open."""

    def __init__(self, *, linger_seconds: float = NEVER, batch_rows: int = 4) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.taken: list[Taken] = []
        self.sent = threading.Semaphore(0)
        self.broken: BaseException | None = None
        self.accumulator = Accumulator(
            self._send,
            self._fail,
            linger_seconds=linger_seconds,
            batch_bytes=1 << 20,
            batch_rows=batch_rows,
            endpoint="grpc://nowhere",
        )

    def append(self, *rows: object, timeout: float | None = 0.0) -> None:
        for row in rows:
            self.accumulator.append(row, timeout)

    def drained(self) -> list[object]:
        self.accumulator.drain(Deadline.after(20))
        return [row for taken in self.taken for row in taken.rows]

    def close(self) -> None:
        self.gate.set()
        self.accumulator.close()

    def _fail(self, error: WingsError) -> None:
        self.accumulator.fail(error)

    def _send(self, taken: Taken) -> None:
        assert self.gate.wait(20)
        if self.broken is not None:
            raise self.broken
        self.taken.append(taken)
        self.sent.release()


def test_rows_wait_for_others_until_a_batch_is_full() -> None:
    rig = Rig()
    rig.append(1, 2, 3)
    assert not rig.sent.acquire(timeout=0.05)
    rig.append(4)
    assert rig.sent.acquire(timeout=20)
    assert [taken.rows for taken in rig.taken] == [[1, 2, 3, 4]]
    rig.close()


def test_a_row_lingers_no_longer_than_it_shall() -> None:
    rig = Rig(linger_seconds=0.001)
    rig.append(1)
    assert rig.sent.acquire(timeout=20)
    rig.append(2)
    assert rig.sent.acquire(timeout=20)
    assert [(taken.rows, taken.first_row) for taken in rig.taken] == [([1], 0), ([2], 1)]
    rig.close()


def test_a_drain_does_not_linger_and_waits_until_rows_were_sent() -> None:
    rig = Rig()
    assert rig.drained() == []
    rig.append(1)
    assert rig.drained() == [1]
    rig.append(2, 3)
    rig.gate.clear()
    with pytest.raises(ResourceExhausted):
        rig.accumulator.drain(Deadline.after(0.01))
    rig.gate.set()
    assert rig.drained() == [1, 2, 3]
    rig.close()


def _append_all(rig: Rig, added: list[int]) -> None:
    for row in range(100):
        rig.append(row, timeout=0.01)
        added.append(row)


def test_batches_wait_up_to_a_bound() -> None:
    rig = Rig()
    rig.gate.clear()
    added: list[int] = []
    with pytest.raises(ResourceExhausted):
        _append_all(rig, added)
    rows = len(added)
    assert 8 <= rows <= 16  # Two batches, and what the thread has in hand.
    waiting = threading.Thread(target=rig.append, args=(rows,), kwargs={"timeout": 20.0})
    waiting.start()
    rig.gate.set()
    waiting.join(20)
    assert rig.drained() == list(range(rows + 1))
    rig.close()


def test_what_a_send_raises_fails_the_producer_and_its_rows() -> None:
    for broken, told in ((ValueError("no"), Internal), (Unavailable("gone"), Unavailable)):
        rig = Rig()
        rig.broken = broken
        acks: list[Future[Appended]] = [Future(), Future()]
        for ack in acks:
            rig.accumulator.append(Acked(1, ack), None)
        rig.accumulator.drain(Deadline.after(20))
        assert [type(ack.exception(20)) for ack in acks] == [told] * 2
        with pytest.raises(told):
            rig.append(2)


def test_a_caller_who_waits_is_told_of_a_failure() -> None:
    rig = Rig()
    rig.gate.clear()
    told: list[BaseException] = []

    def fill() -> None:
        try:
            for row in range(100):
                rig.append(row, timeout=None)
        except Unavailable as error:
            told.append(error)

    waiting = threading.Thread(target=fill)
    waiting.start()
    rig.accumulator.fail(Unavailable("gone"))
    waiting.join(20)
    assert [str(error) for error in told] == ["gone"]
    rig.gate.set()


def test_a_row_that_is_added_while_it_fails_is_refused_or_its_ack_is() -> None:
    for _ in range(50):
        rig = Rig(linger_seconds=0.0)
        acks: list[Future[Appended]] = []

        def fill(rig: Rig = rig, acks: list[Future[Appended]] = acks) -> None:
            try:
                while True:
                    ack: Future[Appended] = Future()
                    rig.accumulator.append(Acked(1, ack), None)
                    acks.append(ack)
            except WingsError:
                pass

        filling = threading.Thread(target=fill)
        filling.start()
        rig.accumulator.fail(Unavailable("gone"))
        filling.join(20)
        sent = {id(ack) for taken in rig.taken for _, ack in taken.acks}
        assert all(ack.done() for ack in acks if id(ack) not in sent)


def test_bad_rows_are_told_once_and_all() -> None:
    rig = Rig()
    rig.accumulator.report(3, SchemaMismatch("row 3", row=3))
    rig.accumulator.report(5, SchemaMismatch("row 5", row=5))
    with pytest.raises(SchemaMismatch, match="row 3; and 1 more") as told:
        rig.append(1)
    assert (told.value.facts["row"], told.value.facts["rows"]) == (3, [3, 5])
    rig.append(2)
    assert rig.drained() == [2]
    rig.accumulator.raise_reported()
    rig.close()


def test_a_closed_accumulator_sends_its_rows_and_takes_no_more() -> None:
    rig = Rig()
    rig.append(1)
    assert rig.accumulator.close()
    assert not rig.accumulator.close()
    with pytest.raises(InvalidArgument):
        rig.append(2)
    assert rig.drained() == [1]


def test_larger_rows_make_smaller_batches() -> None:
    rig = Rig(batch_rows=1_000_000)
    rig.accumulator.learn_row_bytes(1 << 19)
    rig.append(1, 2)
    assert rig.sent.acquire(timeout=20)
    assert [taken.rows for taken in rig.taken] == [[1, 2]]
    rig.close()


def test_a_row_whose_thread_does_not_start_was_not_added(threads: Threads) -> None:
    rig = Rig()
    threads.refuse("", times=1)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        rig.append("refused")
    rig.append("added")
    assert rig.drained() == ["added"]
    rig.close()
