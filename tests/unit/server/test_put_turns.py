"""The two threads of a stream: who reads, who answers, and how a stream ends."""

import queue
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from answers_rig import Rig
from fix_threads import Threads

from wings_core.errors import Internal, InvalidArgument
from wings_server.flight.do_put import ALONE_BYTES, ALONE_MAX, ALONE_SECONDS, Spacing
from wings_server.flight.put_turns import LATE_SECONDS, LOOK_SECONDS, Lookout, Turns

NEVER_SECONDS = 3_600.0

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
def began() -> Iterator[Callable[..., Future[None]]]:
    """Begins a stream, on a thread as one of a call; one thread answers for at most so long."""
    lookouts: list[Lookout] = []
    with ThreadPoolExecutor(1) as pool:

        def begin(stream: Stream, late_seconds: float = NEVER_SECONDS) -> Future[None]:
            lookouts.append(Lookout(late_seconds, min(late_seconds, LOOK_SECONDS)))
            return pool.submit(lookouts[-1].run, Turns(stream.next, stream.rig.answers))

        yield begin
    for lookout in lookouts:
        lookout.stop()


def test_batches_that_come_alone_are_read_and_answered_by_one_thread(
    rig: Rig, began: Callable[..., Future[None]]
) -> None:
    writers: list[int] = []
    rig.writer.before = lambda: writers.append(threading.get_ident())
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
    rig: Rig, began: Callable[..., Future[None]]
) -> None:
    before = set(threading.enumerate())  # Other tests' calls may still end.
    stream = Stream(rig)
    running = began(stream)
    for _ in range(3):
        stream.sent.put(True)
        rig.await_answers(1)
        stream.await_read()
    assert _others(before) == 0
    stream.alone = False
    stream.sent.put(True)
    rig.await_answers(1)
    assert _others(before) == 1
    stream.sent.put(False)
    running.result(20)
    assert _others(before) == 0


def test_a_stream_goes_on_where_no_other_thread_can_be_started(
    rig: Rig, began: Callable[..., Future[None]], threads: Threads
) -> None:
    threads.refuse(OTHER)
    rig.writer.before = lambda: threads.refused.wait(60)  # Until the stream is found to be late.
    stream = Stream(rig)
    running = began(stream, late_seconds=0.0)
    for _ in range(2):
        stream.sent.put(True)
        rig.await_answers(1)
        threads.refused.clear()
    stream.sent.put(False)
    running.result(20)
    assert rig.writer.count == 2


def test_batches_that_come_close_are_answered_where_no_other_thread_can_be_started(
    rig: Rig, began: Callable[..., Future[None]], threads: Threads
) -> None:
    threads.refuse(OTHER)
    stream = Stream(rig, alone=False)
    running = began(stream)
    for _ in range(3):
        stream.sent.put(True)
        rig.await_answers(1)
    assert threads.refused.is_set()
    stream.sent.put(False)
    running.result(20)
    assert rig.writer.count == 3


def _others(before: set[threading.Thread]) -> int:
    """Return how many other threads of streams were started since."""
    return len(
        [each for each in threading.enumerate() if each.name == OTHER and each not in before]
    )


@pytest.mark.parametrize("alone", [True, False])
def test_a_stream_is_read_on_while_its_client_reads_no_answer(
    rig: Rig, began: Callable[..., Future[None]], alone: bool
) -> None:
    go_on = threading.Event()
    rig.writer.before = lambda: go_on.wait(60)
    stream = Stream(rig, alone=alone)
    running = began(stream, LATE_SECONDS)
    for _ in range(4):
        stream.await_read()
        stream.sent.put(True)
    stream.await_read()
    go_on.set()
    rig.await_answers(4)
    stream.sent.put(False)
    running.result(20)


def test_a_stream_is_read_on_while_another_flush_runs(
    rig: Rig, began: Callable[..., Future[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
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
    rig: Rig, began: Callable[..., Future[None]]
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
    rig: Rig, began: Callable[..., Future[None]], alone: bool
) -> None:
    def fail() -> None:
        raise TypeError("a fault of ours")

    rig.writer.before = fail
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
@pytest.mark.parametrize("alone", [False, True])
def test_each_batch_is_answered_once_however_the_threads_meet(
    rig: Rig,
    began: Callable[..., Future[None]],
    threads: Threads,
    seed: int,
    alone: bool,
) -> None:
    if alone:
        threads.refuse(OTHER)
    chance = random.Random(seed)

    def wait_a_little() -> None:
        if chance.random() < 0.2:
            time.sleep(chance.random() / 500)

    rig.writer.before = wait_a_little
    stream = Stream(rig)
    running = began(stream, late_seconds=0.0005)
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


# Which batches of a put stream come alone, so that the thread that reads flushes them itself. #####

SMALL = 100


def told(*came: tuple[float, bool], size: int = SMALL) -> list[bool]:
    """Return which batches come alone, by how long each was waited for and whether it was idle."""
    spacing = Spacing()
    return [spacing.is_alone(size, seconds, idle=idle) for seconds, idle in came]


def each(came: tuple[float, bool], times: int) -> Iterable[tuple[float, bool]]:
    return [came] * times


WAITED, AT_ONCE = (ALONE_SECONDS, True), (ALONE_SECONDS / 2, True)
BEFORE_THE_ANSWER = (1.0, False)


def test_the_first_comes_alone_and_those_that_are_waited_for_after_another() -> None:
    assert told(AT_ONCE, WAITED, WAITED, WAITED) == [True, False, True, True]
    assert told(AT_ONCE, AT_ONCE, WAITED, AT_ONCE, WAITED) == [True] + [False] * 4


def test_what_comes_before_the_answer_to_the_one_before_it_does_not_come_alone() -> None:
    came = [WAITED, WAITED, WAITED, BEFORE_THE_ANSWER, WAITED, WAITED]
    assert told(*came) == [True, False, True, False, False, True]
    assert told(*each(BEFORE_THE_ANSWER, 100)) == [True] + [False] * 99


def test_a_large_one_does_not_come_alone() -> None:
    assert not any(told(*each(WAITED, 10), size=ALONE_BYTES + 1))


def test_the_next_is_read_before_the_answer_now_and_then() -> None:
    alone = told(*each(WAITED, 10 * ALONE_MAX))
    assert [number for number, each in enumerate(alone[2:], 2) if not each] == [
        ALONE_MAX * times for times in range(1, 10)
    ]
