"""Workers of the client, sync and async, against a real server."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Annotated, Any, Optional

import pytest
from fix_client import NewTopic, async_in_soak
from forked_commands import FORKED
from pydantic import BaseModel, ConfigDict, Field
from server_processes import until

import wings_client
from wings_client import (
    Client,
    Delivery,
    Message,
    Reject,
    Release,
    Topic,
    WorkerStats,
)
from wings_core.errors import GroupNotFound, InvalidArgument, InvalidTicket
from wings_server.testing import RunningServer

SECONDS = 100.0
"""How long a test waits for something that must come."""

LONG = {"start": "earliest", "lock_duration_ms": 12 * 3_600_000}


@pytest.fixture
def topic(wings: Client, new_topic: NewTopic) -> Topic:
    """A topic of ten messages, `n` being the offset, with a group and its dead letters."""
    topic = new_topic()
    wings.push(topic, {"n": list(range(10))})
    wings.create_share_group("billing", topic, {**LONG, "dlq_topic": f"{topic.id}-dead"})
    return topic


def state(wings: Client, topic: Topic) -> tuple[int, int]:
    """Return the messages that are not finished, and those held."""
    (partition,) = wings.share_group("billing", topic).partitions
    return partition.lag, partition.in_flight


def letters(wings: Client, topic: Topic) -> dict[int, tuple[str, str | None, int]]:
    found = wings.fetch(f"{topic.id}-dead", offset=0, timeout=0).table.to_pylist()
    return {
        each["source_offset"]: (each["reason"], each["error"], each["delivery_count"])
        for each in found
    }


def plain(call: Callable[[Any], None]) -> Callable[[Any], Any]:
    return call


def coroutine(call: Callable[[Any], None]) -> Callable[[Any], Any]:
    async def handle(given: Any) -> None:
        await asyncio.sleep(0)
        call(given)

    return handle


both = pytest.mark.parametrize("kind", [plain, coroutine])


@dataclass
class Count:
    n: int


class Small(BaseModel):
    n: Annotated[int, Field(lt=7)]


@async_in_soak
@pytest.mark.parametrize("model", [Count, Small])
@both
def test_a_handler_takes_rows_as_the_class_of_its_annotation(
    wings: Client, topic: Topic, kind: Any, model: Any
) -> None:
    """A row that the class refuses is a dead letter, with the field and the reason."""
    seen: list[Any] = []

    def note(given: Any) -> None:
        seen.append(given)

    handler = kind(note)
    handler.__annotations__["given"] = model
    stats = wings.worker("billing", topic, handler, limit=10).run()
    fits = 10 if model is Count else 7
    assert sorted(seen, key=lambda each: each.n) == [model(n=n) for n in range(fits)]
    assert (stats.accepted, stats.rejected) == (fits, 10 - fits)
    if model is Small:
        reason, error, _ = letters(wings, topic)[8]
        assert (reason, error) == ("rejected", "not a Small: n: Input should be less than 7")
    with pytest.raises(InvalidArgument, match=model.__name__):
        wings.worker("billing", topic, handler, each="batch")


@pytest.mark.parametrize("model", [Optional[Count], Count | None])  # noqa: UP045 - both are used.
def test_a_handler_of_rows_that_may_be_none_takes_them_as_their_class(
    wings: Client, topic: Topic, model: Any
) -> None:
    seen: list[Any] = []

    def handler(given: Any) -> None:
        seen.append(given)

    handler.__annotations__["given"] = model
    wings.worker("billing", topic, handler, limit=10).run()
    assert sorted(each.n for each in seen) == list(range(10))
    for several in (Count | Small, Count | Message, Small | dict[str, int]):
        handler.__annotations__["given"] = several
        with pytest.raises(InvalidArgument, match="as one class"):
            wings.worker("billing", topic, handler)


def test_a_partial_handler_takes_rows_by_its_first_open_parameter(
    wings: Client, topic: Topic
) -> None:
    def handle(seen: list[int], count: Count) -> None:
        seen.append(count.n)

    seen: list[int] = []
    wings.worker("billing", topic, partial(handle, seen), limit=10).run()
    assert seen == list(range(10))


class Job(BaseModel):
    model_config = ConfigDict(strict=True)

    number: int = Field(alias="jobNumber")
    tags: dict[str, str]


@both
def test_a_handler_takes_a_row_that_was_pushed_as_a_model_and_its_message(
    wings: Client, new_topic_id: str, kind: Any
) -> None:
    jobs = wings.create_topic(new_topic_id, Job)
    wings.create_share_group("billing", jobs, {**LONG, "delivery_limit": 2})
    pushed = [Job(jobNumber=n, tags={"k": f"{n}"}) for n in range(3)]
    wings.push(jobs, pushed)
    seen: list[tuple[Job, int, int, bool]] = []

    def note(job: Job, message: Message) -> None:
        seen.append((job, message.offset, message.delivery_count, message.is_last_delivery))
        if message.offset == 1 and not message.is_last_delivery:
            raise ConnectionError("later")

    async def note_on_the_loop(job: Job, message: Message | None = None) -> None:
        assert message is not None
        note(job, message)

    handler: Any = note if kind is plain else note_on_the_loop
    stats = wings.worker("billing", jobs, handler, backoff=0, limit=4).run()
    assert (stats.accepted, stats.released, stats.dead) == (3, 1, 0)
    assert sorted(seen, key=lambda each: each[1:]) == [
        (pushed[0], 0, 1, False),
        (pushed[1], 1, 1, False),
        (pushed[1], 1, 2, True),
        (pushed[2], 2, 1, False),
    ]


def a_job_of_a_class_unknown(job: "Nowhere") -> None:  # noqa: F821  # pyright: ignore[reportUndefinedVariable, reportUnknownParameterType]
    """Its annotation can be read nowhere."""
    raise AssertionError(job)


def a_job_and_a_name(job: Job, name: str) -> None:
    raise AssertionError(job, name)


def a_message_of_checkers_alone(message: "wings_client.share.Message", retries: int = 3) -> None:  # pyright: ignore[reportAttributeAccessIssue, reportUnknownParameterType]
    assert retries == 3
    assert isinstance(message, Message)


def test_a_handler_that_cannot_be_called_is_refused_by_worker(
    wings: Client, topic: Topic, subtests: pytest.Subtests
) -> None:
    def by_name_alone(*, message: Message) -> None:
        raise AssertionError(message)

    def two(one: object, other: object) -> None:
        raise AssertionError(one, other)

    for handler in (two, lambda: 1, by_name_alone, a_job_and_a_name):
        with subtests.test(repr(handler)), pytest.raises(InvalidArgument, match="cannot be called"):
            wings.worker("billing", topic, handler)
    with pytest.raises(InvalidArgument, match="one argument, a Delivery"):
        wings.worker("billing", topic, two, each="batch")
    with pytest.raises(InvalidArgument, match="'Nowhere' of the handler's 'job'"):
        wings.worker("billing", topic, a_job_of_a_class_unknown)
    handler: Any = a_message_of_checkers_alone
    assert wings.worker("billing", topic, handler, limit=10).run().accepted == 10


@both
def test_each_message_is_handled_and_accepted(wings: Client, topic: Topic, kind: Any) -> None:
    seen: list[Message] = []
    worker = wings.worker("billing", topic, kind(seen.append), limit=10)
    stats = worker.run()
    assert [(each.offset, each.row, each["n"]) for each in seen] == [
        (n, {"n": n}, n) for n in range(10)
    ]
    first = seen[0]
    assert (first.partition, first.delivery_count, first.batch.num_rows) == (None, 1, 1)
    assert first.timestamp.tzinfo is not None
    assert stats == WorkerStats(10, 10, 0, 0, 0, 0, 0, 0)
    assert state(wings, topic) == (0, 0)
    with pytest.raises(KeyError):
        first["no such column"]


@both
def test_a_batch_is_handled_at_once(wings: Client, topic: Topic, kind: Any) -> None:
    seen: list[list[int]] = []

    def handle(delivery: Delivery) -> None:
        seen.append(delivery.offsets)

    wings.worker("billing", topic, kind(handle), each="batch", max_messages=4, limit=10).run()
    assert seen == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert state(wings, topic) == (0, 0)


@async_in_soak
@both
def test_a_message_whose_handler_raises_comes_again_and_others_are_accepted(
    wings: Client, topic: Topic, kind: Any
) -> None:
    tries = Counter[int]()

    def handle(message: Message) -> None:
        tries[message.offset] += 1
        assert message.delivery_count == tries[message.offset]
        if message.offset == 3 and tries[3] < 3:
            raise ValueError("not yet")

    worker = wings.worker("billing", topic, kind(handle), backoff=0.001, concurrency=4, limit=12)
    stats = worker.run()
    assert tries == {n: 3 if n == 3 else 1 for n in range(10)}
    assert (stats.delivered, stats.accepted, stats.released) == (12, 10, 2)
    assert state(wings, topic) == (0, 0)


@async_in_soak
def test_the_last_error_is_told_by_the_dead_letter(wings: Client, topic: Topic) -> None:
    def handle(message: Message) -> None:
        if message.offset == 3:
            raise ValueError(f"delivery {message.delivery_count}")
        if message.offset == 4:
            raise Reject("no such customer")
        if message.offset == 5:
            raise Release("later", delay=0)

    wings.alter_share_group("billing", topic, {"delivery_limit": 2})
    stats = wings.worker("billing", topic, handle, backoff=0.001, limit=12).run()
    assert (stats.accepted, stats.released, stats.rejected, stats.dead) == (7, 4, 1, 3)
    assert letters(wings, topic) == {
        3: ("delivery_limit", "ValueError: delivery 2", 2),
        4: ("rejected", "no such customer", 1),
        5: ("delivery_limit", "later", 2),
    }
    assert state(wings, topic) == (0, 0)


@async_in_soak
@both
def test_the_delivery_that_makes_a_dead_letter_is_logged_as_an_error_with_one_traceback(
    wings: Client, topic: Topic, caplog: pytest.LogCaptureFixture, kind: Any
) -> None:
    def handle(message: Message) -> None:
        if message.offset == 3:
            raise ValueError(f"delivery {message.delivery_count}")
        if message.offset == 4:
            raise Reject("no such customer")

    wings.alter_share_group("billing", topic, {"delivery_limit": 3})
    wings.worker("billing", topic, kind(handle), backoff=0.001, limit=12).run()
    logged = [each for each in caplog.records if each.name == "wings_client"]
    at = f"the handler of billing failed at {topic.name}, partition None, offset"
    assert {(each.levelname, each.getMessage(), bool(each.exc_info)) for each in logged} == {
        ("WARNING", f"{at} 3, delivery 1: ValueError: delivery 1", False),
        ("WARNING", f"{at} 3, delivery 2: ValueError: delivery 2", False),
        ("ERROR", f"{at} 3, delivery 3, now dead: ValueError: delivery 3", True),
        ("ERROR", f"{at} 4, delivery 1, now dead: no such customer", False),
    }


@async_in_soak
def test_a_failed_message_waits_for_its_backoff(wings: Client, topic: Topic) -> None:
    def handle(message: Message) -> None:
        if message.offset % 2:
            raise ValueError("odd")

    stats = wings.worker("billing", topic, handle, backoff=3600, backoff_max=3600, limit=10).run()
    assert (stats.accepted, stats.released) == (5, 5)
    assert state(wings, topic) == (5, 0)
    assert wings.acquire_messages("billing", topic, "other") == []


@async_in_soak
def test_rows_of_a_batch_are_judged_each_for_itself(wings: Client, topic: Topic) -> None:
    def handle(delivery: Delivery) -> None:
        if delivery.delivery_count == 1:
            raise ExceptionGroup(
                "some failed",
                [
                    Reject("bad", rows=[1, 2]),
                    Release("later", delay=0, rows=slice(5, 7)),
                    Release("never met", rows=[1]),
                ],
            )

    stats = wings.worker("billing", topic, handle, each="batch", limit=12).run()
    assert (stats.accepted, stats.released, stats.rejected) == (8, 2, 2)
    assert sorted(letters(wings, topic)) == [1, 2]
    assert state(wings, topic) == (0, 0)


@async_in_soak
@pytest.mark.parametrize("each", ["row", "batch"])
@pytest.mark.parametrize(
    "error",
    [
        SystemExit(1),
        KeyboardInterrupt(),
        Reject("there is no such row", rows=[77]),
        ExceptionGroup("mixed", [Reject("x"), ValueError("y")]),
        ValueError("\ud800" * 10_000),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_worker_outlives_its_handlers(
    wings: Client, topic: Topic, each: Any, error: BaseException
) -> None:
    rejects = isinstance(error, Reject) and each == "row"

    def handle(given: Any) -> None:
        if given.delivery_count == 1:
            raise error

    limit = 10 if rejects else 20
    stats = wings.worker(
        "billing", topic, handle, each=each, backoff=0, max_messages=10, limit=limit
    ).run()
    assert (stats.accepted, stats.released, stats.rejected) == (
        (0, 0, 10) if rejects else (10, 10, 0)
    )
    assert state(wings, topic) == (0, 0)


def test_a_plain_handler_that_forgets_to_await_accepts_nothing(wings: Client, topic: Topic) -> None:
    async def forgotten() -> None: ...

    stats = wings.worker("billing", topic, lambda _: forgotten(), backoff=60, limit=10).run()
    assert (stats.accepted, stats.released) == (0, 10)


@both
def test_as_many_handlers_run_at_once_as_were_asked_for(
    wings: Client, topic: Topic, kind: Any
) -> None:
    running = 0
    most = 0
    lock = threading.Lock()
    barrier = threading.Barrier(3)
    met = asyncio.Event()

    def meet(_: Message) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        barrier.wait(SECONDS)
        with lock:
            running -= 1

    async def meet_on_the_loop(_: Message) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 3:
            met.set()
        await asyncio.wait_for(met.wait(), SECONDS)
        running -= 1

    handler = meet if kind is plain else meet_on_the_loop
    wings.worker("billing", topic, handler, concurrency=3, limit=9).run()
    assert most == 3


@async_in_soak
def test_messages_stay_locked_while_their_handler_works(wings: Client, topic: Topic) -> None:
    begun, end = threading.Event(), threading.Event()

    def handle(_: Message) -> None:
        begun.set()
        assert end.wait(SECONDS)

    wings.alter_share_group("billing", topic, {"lock_duration_ms": 5_000})
    with wings.worker("billing", topic, handle, max_messages=10) as worker:
        assert begun.wait(SECONDS)
        # Longer than a lock, so without renewals it would get them.
        with wings.share_consumer("billing", topic, timeout=6.5) as other:
            assert list(other) == []
        assert (worker.stats.running, worker.stats.waiting) == (1, 9)
        end.set()
        worker.stop()
        worker.wait()
        assert worker.stats.lost == 0


def test_a_stop_ends_what_runs_and_releases_the_rest_at_once(wings: Client, topic: Topic) -> None:
    begun, end = threading.Semaphore(0), threading.Event()

    def handle(_: Message) -> None:
        begun.release()
        assert end.wait(SECONDS)

    worker = wings.worker("billing", topic, handle, concurrency=2, max_messages=5)
    with worker:
        assert begun.acquire(timeout=SECONDS)
        assert begun.acquire(timeout=SECONDS)
        worker.stop()
        with wings.share_consumer("billing", topic, timeout=SECONDS) as other:
            taken: list[int] = []
            while len(taken) < 8:
                delivery = next(other)
                taken += delivery.offsets
                other.accept(delivery)
        assert sorted(taken) == list(range(2, 10))
        assert not worker.wait(0)
        assert worker.stats.running == 2
        end.set()
        assert worker.wait(SECONDS)
    stats = worker.stats
    assert (stats.accepted, stats.running, stats.waiting) == (2, 0, 0)
    assert stats.delivered == stats.accepted + stats.released
    assert state(wings, topic) == (0, 0)


@both
def test_a_handler_stops_its_worker(wings: Client, topic: Topic, kind: Any) -> None:
    def handle(message: Message) -> None:
        if message.offset == 3:
            worker.stop()

    worker = wings.worker("billing", topic, kind(handle))
    assert worker.run().accepted == 4
    assert state(wings, topic) == (6, 0)
    worker.close()


@both
def test_an_abort_releases_what_runs(wings: Client, topic: Topic, kind: Any) -> None:
    begun, end = threading.Event(), threading.Event()

    def handle(_: Message) -> None:
        begun.set()
        assert end.wait(SECONDS)

    async def wait_on_the_loop(_: Message) -> None:
        begun.set()
        await asyncio.sleep(SECONDS)

    worker = wings.worker("billing", topic, handle if kind is plain else wait_on_the_loop)
    with worker:
        assert begun.wait(SECONDS)
        worker.abort()
        assert worker.wait(SECONDS)
    with wings.share_consumer("billing", topic, timeout=SECONDS) as other:
        taken: list[int] = []
        while len(taken) < 10:
            taken += next(other).offsets
    assert sorted(taken) == list(range(10))
    end.set()


@async_in_soak
def test_a_worker_of_long_tasks_holds_only_what_it_runs(wings: Client, topic: Topic) -> None:
    begun, end = threading.Semaphore(0), threading.Event()

    def handle(_: Message) -> None:
        begun.release()
        assert end.wait(SECONDS)

    with wings.worker("billing", topic, handle, concurrency=3, prefetch=False, limit=10) as worker:
        for _ in range(3):
            assert begun.acquire(timeout=SECONDS)
        with wings.share_consumer("billing", topic, timeout=0) as other:
            assert sorted(n for each in other for n in each.offsets) == list(range(3, 10))
        end.set()
        worker.wait()
    assert worker.stats.accepted == 10


@async_in_soak
def test_a_worker_goes_on_where_its_group_was_moved_to(wings: Client, topic: Topic) -> None:
    seen = Counter[int]()
    held, go_on = threading.Event(), threading.Event()

    def handle(message: Message) -> None:
        seen[message.offset] += 1
        if message.offset == 9 and seen[9] == 1:
            held.set()
            assert go_on.wait(SECONDS)

    with wings.worker("billing", topic, handle, limit=20) as worker:
        assert held.wait(SECONDS)
        wings.seek_share_group("billing", topic, "earliest")
        go_on.set()
        worker.wait()
    assert seen == dict.fromkeys(range(10), 2)
    # Of the first ten, those are lost whose acceptance was not durable when it moved.
    assert worker.stats.accepted + worker.stats.lost == 20
    assert worker.stats.accepted >= 10
    assert worker.stats.lost >= 1
    assert state(wings, topic) == (0, 0)


@async_in_soak
def test_a_worker_ends_where_nothing_comes(wings: Client, topic: Topic) -> None:
    assert wings.worker("billing", topic, lambda _: None, timeout=0.2).run().accepted == 10
    assert wings.worker("billing", topic, lambda _: None, timeout=0).run().delivered == 0


@async_in_soak
def test_a_deleted_group_ends_the_worker(wings: Client, topic: Topic) -> None:
    done = threading.Semaphore(0)
    worker = wings.worker("billing", topic, lambda _: done.release())

    def work() -> None:
        with worker:
            for _ in range(10):
                assert done.acquire(timeout=SECONDS)
            wings.delete_share_group("billing", topic)
            with pytest.raises(GroupNotFound):
                worker.wait(SECONDS)

    with pytest.raises(GroupNotFound):
        work()


def test_the_client_closes_its_workers(server: RunningServer, wings: Client, topic: Topic) -> None:
    begun = threading.Event()

    def handle(_: Message) -> None:
        begun.set()

    client = wings_client.connect(server.flight)
    worker = client.worker("billing", topic, handle, limit=100).__enter__()
    assert begun.wait(SECONDS)
    client.close()
    assert worker.wait(0)
    assert worker.stats.lost == 0
    assert state(wings, topic)[1] == 0


def test_what_no_worker_may_be_is_refused(
    wings: Client, topic: Topic, subtests: pytest.Subtests
) -> None:
    for wrong in (
        {"concurrency": 0},
        {"concurrency": 100_000},
        {"backoff": -1},
        {"backoff_max": 1e9},
        {"limit": 0},
        {"each": "rows"},
    ):
        with subtests.test(str(wrong)), pytest.raises(InvalidArgument):
            wings.worker("billing", topic, print, **wrong)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InvalidTicket):
        wings.worker("billing", topic, print, max_messages=0)


WORKER = """
import os, sys, time
import wings_client

def handle(message):
    os.write(1, b"%d\\n" % message.offset)  # Whole, from ten threads.
    time.sleep(3600)

with wings_client.connect(sys.argv[1]) as client:
    client.worker("billing", sys.argv[2], handle, concurrency=10).run()
"""


@contextmanager
def working(server: RunningServer, topic: Topic) -> Generator["subprocess.Popen[bytes]"]:
    """Run a worker in a process of its own, which has begun ten messages."""
    with subprocess.Popen(
        [sys.executable, "-c", FORKED + WORKER, server.flight, topic.name], stdout=subprocess.PIPE
    ) as worker:
        assert worker.stdout is not None
        try:
            assert sorted(int(worker.stdout.readline()) for _ in range(10)) == list(range(10))
            yield worker
        finally:
            worker.kill()


def counts_of(wings: Client, topic: Topic, limit: int) -> dict[int, int]:
    """Return how often messages were delivered that another worker gets."""
    seen: dict[int, int] = {}

    def handle(message: Message) -> None:
        seen[message.offset] = message.delivery_count

    wings.worker("billing", topic, handle, limit=limit, timeout=SECONDS).run()
    return seen


@async_in_soak
def test_the_messages_of_a_killed_worker_come_to_another(
    server: RunningServer, wings: Client, topic: Topic
) -> None:
    with working(server, topic):
        pass
    assert counts_of(wings, topic, 10) == dict.fromkeys(range(10), 2)


@async_in_soak
def test_the_dead_letter_of_a_message_that_kills_its_worker_says_so(
    server: RunningServer, wings: Client, topic: Topic
) -> None:
    wings.alter_share_group("billing", topic, {"delivery_limit": 1})
    with working(server, topic):
        pass
    until(lambda: state(wings, topic) == (0, 0))
    error = "never acknowledged: the member died, or its connection ended"
    assert letters(wings, topic) == dict.fromkeys(range(10), ("delivery_limit", error, 1))


@async_in_soak
def test_a_worker_whose_process_stands_still_uses_up_no_deliveries(
    server: RunningServer, wings: Client, topic: Topic
) -> None:
    config = {"lock_duration_ms": 3_000, "delivery_limit": 2}
    wings.alter_share_group("billing", topic, config)
    with working(server, topic) as still:
        os.kill(still.pid, signal.SIGSTOP)
        until(lambda: state(wings, topic)[1] == 0)
        wings.push(topic, {"n": list(range(10, 20))})
        clock = wings.create_share_group("clock", topic, {**LONG, **config})
        assert wings.acquire_messages(clock.name, topic, "one")
        until(lambda: wings.share_group(clock.name, topic).partitions[0].in_flight == 0)
        assert state(wings, topic) == (20, 0), "they wait for another"
        assert counts_of(wings, topic, 20) == {n: 2 if n < 10 else 1 for n in range(20)}
    assert letters(wings, topic) == {}


@async_in_soak
@both
def test_a_handler_that_hangs_loses_its_messages_and_is_given_no_others(
    wings: Client, topic: Topic, kind: Any
) -> None:
    begun, end = list[int](), threading.Event()

    def hang(message: Message) -> None:
        begun.append(message.offset)
        end.wait(SECONDS)

    async def hang_on_the_loop(message: Message) -> None:
        begun.append(message.offset)
        while not end.is_set():
            await asyncio.sleep(0.01)

    config = {"lock_duration_ms": 1_000, "delivery_limit": 2}
    wings.alter_share_group("billing", topic, config)
    handler = hang if kind is plain else hang_on_the_loop
    hanging = wings.worker("billing", topic, handler, max_messages=4, auto_renew=0.1)
    with hanging:
        until(lambda: begun == [0])
        until(lambda: state(wings, topic)[1] == 0)
        clock = wings.create_share_group("clock", topic, {**LONG, **config})
        assert wings.acquire_messages(clock.name, topic, "one")
        until(lambda: wings.share_group(clock.name, topic).partitions[0].in_flight == 0)
        assert state(wings, topic) == (10, 0), "it took none in the meantime"
        assert counts_of(wings, topic, 10) == {0: 2, **dict.fromkeys(range(1, 10), 1)}
        assert begun == [0]
        end.set()
        hanging.stop()
        hanging.wait()
    assert letters(wings, topic) == {}


@async_in_soak
def test_what_no_handler_has_begun_is_released_as_if_it_never_came(
    wings: Client, topic: Topic
) -> None:
    begun, end = threading.Event(), threading.Event()

    def handle(_: Message) -> None:
        begun.set()
        assert end.wait(SECONDS)

    with wings.worker("billing", topic, handle, max_messages=10) as worker:
        assert begun.wait(SECONDS)
        worker.stop()
        assert counts_of(wings, topic, 9) == dict.fromkeys(range(1, 10), 1)
        end.set()
    assert state(wings, topic) == (0, 0)


@async_in_soak
@both
def test_in_order_a_message_that_comes_again_holds_back_its_partition_alone(
    wings: Client, new_topic: NewTopic, kind: Any
) -> None:
    topic = new_topic("k: string", "n: int64", partition_key="k")
    wings.push(topic, {"k": ["a"] * 4 + ["b"] * 4, "n": [0, 1, 2, 3] * 2})
    config = {**LONG, "ordering": "partition", "dlq_topic": f"{topic.id}-dead"}
    wings.create_share_group("billing", topic, config)
    seen: list[tuple[str, int, int]] = []
    seen_by: dict[str, list[tuple[int, int]]] = {"a": [], "b": []}
    running = Counter[str]()

    def handle(message: Message) -> None:
        key, n = message["k"], message["n"]
        running[key] += 1
        assert running[key] == 1, f"two messages of {key} are worked on at once"
        seen.append((key, n, message.delivery_count))
        seen_by[key].append((n, message.delivery_count))
        running[key] -= 1
        if key == "a" and n == 1 and message.delivery_count < 3:
            raise ConnectionError("later")
        if key == "a" and n == 2:
            raise Reject("never")

    worker = wings.worker(
        "billing", topic, kind(handle), concurrency=4, max_messages=4, backoff=0.01, limit=10
    )
    stats = worker.run()
    assert seen_by["a"] == [(0, 1), (1, 1), (1, 2), (1, 3), (2, 1), (3, 1)]
    assert seen_by["b"] == [(n, 1) for n in range(4)]
    assert (stats.accepted, stats.rejected, stats.lost) == (7, 1, 0)
    assert letters(wings, topic) == {2: ("rejected", "never", 1)}


@async_in_soak
def test_a_worker_is_woken_when_the_time_of_a_message_comes(
    wings: Client, new_topic: NewTopic
) -> None:
    topic = new_topic("n: int64", "at: timestamp[us, tz=UTC]")
    wings.create_share_group("billing", topic, {**LONG, "deliver_at_column": "at"})
    due = datetime.now(UTC) + timedelta(seconds=1)
    wings.push(topic, {"n": [0, 1, 2], "at": [due, None, due]})
    seen: list[tuple[int, datetime]] = []
    worker = wings.worker(
        "billing", topic, lambda each: seen.append((each["n"], datetime.now(UTC))), limit=3
    )
    worker.run()
    assert sorted(n for n, _ in seen) == [0, 1, 2]
    assert all(at >= due for n, at in seen if n != 1)
    with pytest.raises(InvalidArgument, match="no timestamp"):
        wings.alter_share_group("billing", topic, {"deliver_at_column": "n"})
