"""The two threads of a stream: who reads, who answers, and how a stream ends."""

import queue
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from answers_rig import Rig

from wings_core.errors import Internal, InvalidArgument
from wings_server.flight.put_turns import Lookout, Turns

OTHER = "wings-put"
"""The name of a stream's other thread."""


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.close()


class Stream:
    """What a client sends, as the reader of a call sees it."""

    def __init__(self, rig: Rig, *, alone: bool = True) -> None:
        self.rig = rig
        self.alone = alone
        self.sent: queue.Queue[Exception | bool] = queue.Queue()
        self.readers: list[int] = []
        self.read = threading.Semaphore(0)
        """Released each time that the next message is asked for."""
        self.reads = 0

    def next(self) -> bool | None:
        self.reads += 1
        assert self.reads == 1, "two threads read at a time"
        self.read.release()
        sent = self.sent.get(timeout=60)
        self.reads -= 1
        if isinstance(sent, Exception):
            raise sent
        if not sent or self.rig.stream.refused is not None:
            return None
        self.readers.append(threading.get_ident())
        self.rig.add()
        return self.alone

    def await_read(self) -> None:
        assert self.read.acquire(timeout=20)


@pytest.fixture
def began(rig: Rig) -> Iterator[Callable[[Stream], Future[None]]]:
    """What begins a stream, on a thread as one of a call."""
    lookout = Lookout()
    with ThreadPoolExecutor(1) as pool:
        yield lambda stream: pool.submit(lookout.run, Turns(stream.next, rig.answers))
    lookout.stop()


def test_batches_that_come_alone_are_read_and_answered_by_one_thread(
    rig: Rig, began: Callable[[Stream], Future[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wings_server.flight.put_turns.LATE_SECONDS", 3600.0)
    writers: list[int] = []
    write = rig.writer.write

    def noted(answer: pa.Buffer) -> None:
        writers.append(threading.get_ident())
        write(answer)

    monkeypatch.setattr(rig.writer, "write", noted)
    stream = Stream(rig)
    running = began(stream)
    for _ in range(5):
        stream.sent.put(True)
        rig.await_answers(1)
    stream.sent.put(False)
    running.result(20)
    assert len(set(stream.readers)) == 1
    assert writers == stream.readers


def test_no_other_thread_is_started_for_batches_that_come_alone(
    rig: Rig, began: Callable[[Stream], Future[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wings_server.flight.put_turns.LATE_SECONDS", 3600.0)
    stream = Stream(rig)
    running = began(stream)
    for _ in range(3):
        stream.sent.put(True)
        rig.await_answers(1)
        stream.await_read()
    assert _others() == 0
    stream.alone = False
    stream.sent.put(True)
    rig.await_answers(1)
    assert _others() == 1
    stream.sent.put(False)
    running.result(20)
    assert _others() == 0


def test_a_stream_goes_on_where_no_other_thread_can_be_started(
    rig: Rig, began: Callable[[Stream], Future[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wings_server.flight.put_turns.LATE_SECONDS", 0.0)
    refused = _start_no_other(monkeypatch)
    write = rig.writer.write

    def write_late(answer: pa.Buffer) -> None:
        assert refused.wait(60)  # The stream was found to be late.
        write(answer)

    monkeypatch.setattr(rig.writer, "write", write_late)
    stream = Stream(rig)
    running = began(stream)
    for _ in range(2):
        stream.sent.put(True)
        rig.await_answers(1)
        refused.clear()
    stream.sent.put(False)
    running.result(20)
    assert rig.writer.count == 2


def test_batches_that_come_close_are_answered_where_no_other_thread_can_be_started(
    rig: Rig, began: Callable[[Stream], Future[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = _start_no_other(monkeypatch)
    stream = Stream(rig, alone=False)
    running = began(stream)
    for _ in range(3):
        stream.sent.put(True)
        rig.await_answers(1)
    assert refused.is_set()
    stream.sent.put(False)
    running.result(20)
    assert rig.writer.count == 3


def test_the_only_thread_reads_on_once_the_lookout_has_let_go_of_the_reading(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be back from its answer before the lookout, which takes the reading from it, is."""
    _start_no_other(monkeypatch)
    writes, go_on, waits = threading.Event(), threading.Event(), threading.Event()
    write = rig.writer.write

    def write_late(answer: pa.Buffer) -> None:
        writes.set()
        assert go_on.wait(60)
        write(answer)

    class Calls(queue.Queue[None]):
        def get(self, block: bool = True, timeout: float | None = None) -> None:
            waits.set()
            super().get(block, timeout)

    def let_go() -> None:
        go_on.set()
        assert waits.wait(60)  # Its thread found the lock held.
        reading.release()

    monkeypatch.setattr("wings_server.flight.put_turns.LATE_SECONDS", 0.0)
    monkeypatch.setattr(rig.writer, "write", write_late)
    stream = Stream(rig)
    turns = Turns(stream.next, rig.answers)
    reading = threading.Lock()
    held = SimpleNamespace(acquire=reading.acquire, release=let_go)
    monkeypatch.setattr(turns, "_reading", held)
    monkeypatch.setattr(turns, "_calls", Calls())
    running = threading.Thread(target=turns.run, daemon=True)
    running.start()
    stream.sent.put(True)
    assert writes.wait(60)
    turns.look()
    stream.sent.put(False)
    running.join(20)
    assert not running.is_alive()


def _start_no_other(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Have no stream's other thread started; returns what is set once that was tried."""
    start, refused = threading.Thread.start, threading.Event()

    def start_no_other(thread: threading.Thread) -> None:
        if thread.name == OTHER:
            refused.set()
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_no_other)
    return refused


def _others() -> int:
    return len([thread for thread in threading.enumerate() if thread.name == OTHER])


@pytest.mark.parametrize("alone", [True, False])
def test_a_stream_is_read_on_while_its_client_reads_no_answer(
    rig: Rig,
    began: Callable[[Stream], Future[None]],
    monkeypatch: pytest.MonkeyPatch,
    alone: bool,
) -> None:
    go_on = threading.Event()
    write = rig.writer.write

    def blocked(answer: pa.Buffer) -> None:
        assert go_on.wait(60)
        write(answer)

    monkeypatch.setattr(rig.writer, "write", blocked)
    stream = Stream(rig, alone=alone)
    running = began(stream)
    for _ in range(4):
        stream.await_read()
        stream.sent.put(True)
    stream.await_read()
    go_on.set()
    rig.await_answers(4)
    stream.sent.put(False)
    running.result(20)


def test_a_stream_is_read_on_while_another_flush_runs(
    rig: Rig, began: Callable[[Stream], Future[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wings_server.flight.put_turns.LATE_SECONDS", 3600.0)
    as_if_another_thread_flushed: Callable[[object], None] = lambda _: None  # noqa: E731
    monkeypatch.setattr(rig.group, "flush_now", as_if_another_thread_flushed)
    stream = Stream(rig)
    running = began(stream)
    for _ in range(3):
        stream.await_read()
        stream.sent.put(True)
    stream.await_read()
    monkeypatch.undo()
    rig.group.close()  # It flushes what is left.
    rig.await_answers(3)
    stream.sent.put(False)
    running.result(20)


def test_what_ends_a_stream_is_raised_once_all_is_answered(
    rig: Rig, began: Callable[[Stream], Future[None]]
) -> None:
    stream = Stream(rig, alone=False)
    running = began(stream)
    for _ in range(3):
        stream.sent.put(True)
    stream.sent.put(InvalidArgument("a message that is none"))
    with pytest.raises(InvalidArgument, match="a message that is none"):
        running.result(20)
    assert rig.writer.count == 3


@pytest.mark.parametrize("alone", [True, False])
def test_a_fault_of_a_thread_that_answers_ends_the_stream(
    rig: Rig,
    began: Callable[[Stream], Future[None]],
    monkeypatch: pytest.MonkeyPatch,
    alone: bool,
) -> None:
    def fail(answer: pa.Buffer) -> None:
        raise TypeError(f"a fault of ours at {answer}")

    monkeypatch.setattr(rig.writer, "write", fail)
    stream = Stream(rig, alone=alone)
    running = began(stream)
    for sent in [True, True, True, False]:  # The client sends on, or finishes.
        stream.sent.put(sent)
    with pytest.raises(TypeError, match="a fault of ours"):
        running.result(20)
    assert isinstance(rig.stream.refused, Internal)


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.soak) for seed in (2, 3))]
)
def test_each_batch_is_answered_once_however_the_threads_meet(
    rig: Rig, began: Callable[[Stream], Future[None]], monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr("wings_server.flight.put_turns.LATE_SECONDS", 0.0005)
    monkeypatch.setattr("wings_server.flight.put_turns.LOOK_SECONDS", 0.0005)
    chance = random.Random(seed)
    write = rig.writer.write

    def write_slowly(answer: pa.Buffer) -> None:
        if chance.random() < 0.2:
            time.sleep(chance.random() / 500)
        write(answer)

    monkeypatch.setattr(rig.writer, "write", write_slowly)
    stream = Stream(rig)
    running = began(stream)
    sent = awaited = 0
    for _ in range(100):
        stream.alone = chance.random() < 0.5
        burst = chance.choice([1, 1, 1, 2, 8, 30])
        for _ in range(burst):
            stream.sent.put(True)
        sent += burst
        if chance.random() < 0.7:  # Else it sends on without having been answered.
            rig.await_answers(sent - awaited)
            awaited = sent
    rig.await_answers(sent - awaited)
    stream.sent.put(False)
    running.result(20)
    rig.group.close()  # Its thread has told of the last flush.
    assert rig.writer.count == sent
    assert sum(report.batches for report in rig.reports) == sent
