"""A share consumer that takes deliveries ahead, and waits for no acknowledgement."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from breakable_proxy import BreakableProxy
from fix_calls import Calls
from fix_client import Connect, NewTopic, async_in_soak
from held_address import held_address
from server_processes import until

import wings_client
from wings_client import (
    Client,
    ShareConsumer,
    Topic,
    _share_stream,
)
from wings_client._share_engine import ShareEngine
from wings_client._share_locks import Locks
from wings_client._transport import Transport
from wings_core.contracts.share import AcknowledgementEntry
from wings_core.errors import InvalidArgument, InvalidRecordState, Unavailable, WingsError
from wings_core.share.coordinator.finalize import Finalizer
from wings_core.share.quorum.votes import Verdict
from wings_core.share.replica.requests import Procedure
from wings_server.testing import RunningServer, server_process

MESSAGES = 200
CONFIG = {"start": "earliest", "lock_duration_ms": 12 * 3_600_000, "delivery_limit": 100}


@pytest.fixture
def topic(wings: Client, new_topic: NewTopic) -> Topic:
    """A topic of 200 messages, `n` being the offset, with a group of a long lock."""
    topic = new_topic()
    wings.push(topic, {"n": list(range(MESSAGES))})
    wings.create_share_group("billing", topic, CONFIG)
    return topic


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch, calls: Calls) -> list[int]:
    """What each request acknowledged, in entries, where they wait an hour for others."""
    requests: list[int] = []

    def record(_: int, entries: Sequence[AcknowledgementEntry]) -> None:
        requests.append(len(entries))

    calls.before(_share_stream, "acknowledge_metadata", record)
    monkeypatch.setattr(_share_stream, "LINGER_SECONDS", 3_600.0)
    monkeypatch.setattr(_share_stream, "WATCH_SECONDS", 60.0)
    return requests


def read_itself(consumer: ShareConsumer) -> int:
    """Accept messages until the caller reads them itself; returns how many.

    That is so once it has read several answers in a row: the stream's thread, which has just left
    the reading to it, may still have been called back once.
    """
    in_a_row = 0
    for number in range(1, MESSAGES):
        before = callers_reads(consumer)
        consumer.accept(next(consumer))
        in_a_row = in_a_row + 1 if callers_reads(consumer) > before >= 0 else 0
        if in_a_row == 3:
            return number
    raise AssertionError("callers read nothing")


def callers_reads(consumer: ShareConsumer) -> int:
    """Return how often callers have read the stream; -1 where its own thread reads, or none is."""
    stream = consumer.engine.stream
    return -1 if stream is None or stream.is_being_read else stream.callers_reads


in_sync = pytest.mark.parametrize("connect", ["sync"], indirect=True)
"""An async consumer is read by threads of its own, and what it acknowledges may be sent at once."""


def acceptance(delivery: wings_client.Delivery) -> AcknowledgementEntry:
    return AcknowledgementEntry(
        partition=delivery.partition,
        first=delivery.start_offset,
        last=delivery.end_offset,
        lease=delivery.lease,
        type="accept",
    )


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def state(wings: Client, topic: Topic) -> tuple[int, int]:
    """Return the lag of the group and its messages in flight."""
    (partition,) = wings.share_group("billing", topic).partitions
    return partition.lag, partition.in_flight


@async_in_soak
def test_what_is_not_waited_for_is_accepted_once_it_is_flushed(wings: Client, topic: Topic) -> None:
    taken: list[int] = []
    with wings.share_consumer(
        "billing", topic, max_messages=1, prefetch=15, timeout=20
    ) as consumer:
        for delivery in consumer:
            taken += delivery.offsets
            consumer.accept(delivery, wait=False)
            if len(taken) == MESSAGES:
                break
        consumer.flush()
        assert state(wings, topic) == (0, 0)
        consumer.flush()
    assert taken == [*range(MESSAGES)]


@async_in_soak
def test_as_many_come_ahead_as_were_asked_for(wings: Client, topic: Topic) -> None:
    with wings.share_consumer("billing", topic, max_messages=2, prefetch=3) as consumer:
        assert next(consumer).offsets == [0, 1]
        until(lambda: state(wings, topic)[1] == 8)
        assert [next(consumer).offsets for _ in range(3)] == [[2, 3], [4, 5], [6, 7]]
        assert state(wings, topic) == (MESSAGES, 8)
        assert next(consumer).offsets == [8, 9], "who holds all of them gets one more"
    assert state(wings, topic) == (MESSAGES, 0)


@async_in_soak
def test_without_a_prefetch_the_next_comes_when_the_last_is_durable(
    wings: Client, topic: Topic
) -> None:
    with wings.share_consumer("billing", topic, max_messages=150, timeout=20) as consumer:
        first = next(consumer)
        consumer.accept(first, wait=False)
        second = next(consumer)
        assert state(wings, topic) == (50, 50)
        consumer.accept(second, wait=False)
    assert state(wings, topic) == (0, 0), "the end of the block waits for it"


@in_sync
def test_acknowledgements_of_a_moment_share_a_request_until_they_are_half_the_credit(
    wings: Client, topic: Topic, requests: list[int]
) -> None:
    with wings.share_consumer(
        "billing", topic, max_messages=1, prefetch=15, timeout=20
    ) as consumer:
        left = MESSAGES - read_itself(consumer)
        requests.clear()
        for _ in range(left):
            consumer.accept(next(consumer), wait=False)
        consumer.flush()
        assert [each for each in requests if each] == [8] * (left // 8) + [left % 8] * (
            left % 8 > 0
        )
        assert state(wings, topic) == (0, 0)


@in_sync
def test_one_that_is_refused_takes_no_other_of_its_request_with_it(
    wings: Client, topic: Topic, requests: list[int]
) -> None:
    with wings.share_consumer(
        "billing", topic, max_messages=1, prefetch=15, timeout=20
    ) as consumer:
        before = read_itself(consumer)
        held = [next(consumer) for _ in range(3)]
        _accept_elsewhere(wings, topic, consumer.member, held[1])
        requests.clear()
        for delivery in held:
            consumer.accept(delivery, wait=False)
        with pytest.raises(InvalidRecordState):
            consumer.flush()
        assert [each for each in requests if each] == [3, 1, 2, 1, 1]
        consumer.flush()  # It is raised once.
    assert state(wings, topic) == (MESSAGES - before - 3, 0)


def _accept_elsewhere(
    wings: Client, topic: Topic, member: str, delivery: wings_client.Delivery
) -> None:
    entry = acceptance(delivery)
    assert wings.acknowledge_messages("billing", topic, member, [entry]) == [None]


@in_sync
def test_a_flush_waits_until_who_acknowledged_was_told(
    wings: Client, topic: Topic, calls: Calls
) -> None:
    telling, flushed = threading.Event(), threading.Event()

    def wait(*_: object, **__: object) -> None:
        telling.set()
        flushed.wait(1)

    with wings.share_consumer("billing", topic, max_messages=1, prefetch=3) as consumer:
        held = next(consumer)
        _accept_elsewhere(wings, topic, consumer.member, held)
        calls.before(Locks, "done", wait)
        consumer.accept(held, wait=False)
        assert telling.wait(30)
        with pytest.raises(InvalidRecordState):
            consumer.flush()
        flushed.set()


@async_in_soak
def test_one_that_is_refused_is_told_to_who_waits_for_a_delivery(
    wings: Client, topic: Topic
) -> None:
    wings.create_share_group("late", topic, {**CONFIG, "start": "latest"})
    wings.push(topic, {"n": [0]})
    with wings.share_consumer("late", topic, max_messages=1, prefetch=3) as consumer:
        held = next(consumer)
        entry = acceptance(held)
        assert wings.acknowledge_messages("late", topic, consumer.member, [entry]) == [None]
        accepting = threading.Timer(0.2, lambda: consumer.accept(held, wait=False))
        accepting.start()
        with pytest.raises(InvalidRecordState):
            next(consumer)
        accepting.join()


@in_sync
@pytest.mark.parametrize("call", ["fill", "flush"])
def test_an_error_that_a_cancelled_task_would_raise_is_told_to_the_next(
    server: RunningServer,
    wings: Client,
    topic: Topic,
    monkeypatch: pytest.MonkeyPatch,
    call: str,
) -> None:
    begun, done, is_cancelled = threading.Event(), threading.Event(), threading.Event()
    original = getattr(ShareEngine, call)

    def late(self: ShareEngine) -> Any:
        begun.set()
        try:
            return original(self)
        finally:
            done.set()
            is_cancelled.wait(30)

    wings.create_share_group("late", topic, {**CONFIG, "start": "latest"})
    wings.push(topic, {"n": [0]})

    async def work() -> None:
        async with (
            wings_client.connect_async(server.flight) as client,
            await client.share_consumer("late", topic, max_messages=1) as consumer,
        ):
            held = await anext(consumer)
            with monkeypatch.context() as delayed:
                delayed.setattr(ShareEngine, call, late)
                entry = acceptance(held)
                assert wings.acknowledge_messages("late", topic, consumer.member, [entry]) == [None]
                if call == "flush":
                    await consumer.accept(held, wait=False)
                    task = asyncio.ensure_future(consumer.flush())
                else:
                    task = asyncio.ensure_future(anext(consumer))
                    assert await asyncio.to_thread(begun.wait, 30)
                    await consumer.accept(held, wait=False)
                assert await asyncio.to_thread(done.wait, 30)
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
            is_cancelled.set()
            with pytest.raises(InvalidRecordState):
                await consumer.flush()

    asyncio.run(work())


@async_in_soak
def test_one_that_is_refused_keeps_no_room_from_the_next(wings: Client, topic: Topic) -> None:
    with wings.share_consumer("billing", topic, max_messages=1) as consumer:
        first = next(consumer)
        next(consumer)
        _accept_elsewhere(wings, topic, consumer.member, first)
        consumer.accept(first, wait=False)
        with pytest.raises(InvalidRecordState):
            consumer.flush()
        assert next(consumer).offsets == [2]


@in_sync
def test_one_that_failed_is_not_held_for_as_long_as_its_consumer_lives(
    wings: Client, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    wings.create_share_group("short", topic, {**CONFIG, "lock_duration_ms": 1_000})

    def failing(*_: object, **__: object) -> Procedure[Verdict]:
        monkeypatch.undo()
        yield from ()
        return Verdict.UNKNOWN

    with wings.share_consumer("short", topic, max_messages=1, prefetch=3) as consumer:
        held = next(consumer)
        monkeypatch.setattr(Finalizer, "tombstone", failing)
        consumer.accept(held, wait=False)
        with pytest.raises(Unavailable):
            consumer.flush()
        with wings.share_consumer("short", topic, max_messages=MESSAGES, timeout=20) as other:
            until(lambda: held.offsets[0] in next(other).offsets)


@in_sync
def test_ctrl_c_as_a_lock_is_taken_does_not_leave_it_taken(
    wings: Client, topic: Topic, calls: Calls
) -> None:
    with wings.share_consumer("billing", topic, max_messages=1, prefetch=3) as consumer:
        held = next(consumer)
        changed = consumer.engine._changed  # pyright: ignore[reportPrivateUsage]

        def interrupt_it(_: bool, entered: threading.Condition) -> None:
            if entered is changed and threading.current_thread() is threading.main_thread():
                raise KeyboardInterrupt

        calls.after(threading.Condition, "__enter__", interrupt_it)
        with suppress(KeyboardInterrupt):
            consumer.accept(held)
        calls.stop()
        consuming = threading.Thread(target=next, args=(consumer,), daemon=True)
        consuming.start()
        consuming.join(20)
        assert not consuming.is_alive()


@in_sync
def test_what_cannot_be_sent_is_refused_by_an_error_of_wings(wings: Client, topic: Topic) -> None:
    with wings.share_consumer("billing", topic, max_messages=1) as consumer:
        held = next(consumer)
        with pytest.raises(InvalidArgument, match="delay_ms"):
            consumer.release(held, delay=-1, wait=False)
        with pytest.raises(InvalidArgument, match="reason"):
            consumer.reject(held, reason="x" * 5_000)
        consumer.accept(held)


@in_sync
def test_what_waits_is_renewed_while_its_worker_goes_on(wings: Client, topic: Topic) -> None:
    wings.create_share_group("short", topic, {**CONFIG, "lock_duration_ms": 1_000})
    with wings.share_consumer(
        "short", topic, max_messages=1, prefetch=7, timeout=20, auto_renew=1.0
    ) as consumer:
        taken: list[int] = []
        for delivery in consumer:
            taken += delivery.offsets
            if len(taken) == 8:
                break
            time.sleep(0.4)  # It works.
            consumer.accept(delivery, wait=False)
        assert taken == [*range(8)]


@in_sync
@pytest.mark.parametrize("auto_renew", [False, 0.1])
def test_what_waits_behind_a_caller_that_hangs_goes_to_others_as_if_it_never_came(
    wings: Client, new_topic: NewTopic, auto_renew: Any
) -> None:
    topic = new_topic()
    wings.push(topic, {"n": list(range(6))})
    wings.create_share_group("short", topic, {**CONFIG, "lock_duration_ms": 3_000})
    with wings.share_consumer(
        "short", topic, max_messages=1, prefetch=5, timeout=20, auto_renew=auto_renew
    ) as consumer:
        assert next(consumer).offsets == [0]
        counts: dict[int, int] = {}
        with wings.share_consumer("short", topic, max_messages=1, timeout=20) as other:
            while len(counts) < 6:
                delivery = next(other)
                counts[delivery.start_offset] = delivery.delivery_count
                other.accept(delivery)
        assert counts == {0: 2, 1: 1, 2: 1, 3: 1, 4: 1, 5: 1}
        wings.push(topic, {"n": [6]})
        assert next(consumer).offsets == [6], "what was let go is not handed out"


@async_in_soak
def test_a_close_tells_of_an_error_once(
    connect: Connect,
    wings: Client,
    topic: Topic,
    proxy: BreakableProxy,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_share_stream, "CLOSE_SECONDS", 0.2)
    with connect(proxy.endpoint, timeout=0.5) as client:
        consumer = client.share_consumer("billing", topic, max_messages=1, timeout=20)
        held = next(consumer)
        proxy.stall()
        consumer.accept(held, wait=False)
        with pytest.raises(WingsError):
            consumer.close()
        consumer.close()


class _Ending:
    """A writer that records whether a side was ended."""

    def __init__(self, writer: Any, ended: threading.Event) -> None:
        self._writer = writer
        self._ended = ended

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)

    def done_writing(self) -> None:
        self._ended.set()
        self._writer.done_writing()


@in_sync
def test_a_stream_that_was_broken_is_not_ended_too_which_would_abort_the_process(
    wings: Client, topic: Topic, calls: Calls
) -> None:
    ended = threading.Event()

    def watched(opened: tuple[Any, Any, str], *_: object) -> tuple[_Ending, Any, str]:
        writer, reader, endpoint = opened
        return _Ending(writer, ended), reader, endpoint

    calls.change(Transport, "exchange", watched)
    with wings.share_consumer("billing", topic, max_messages=1) as consumer:
        next(consumer)
        stream = consumer.engine.stream
        assert stream is not None
        consumer.engine.abandon()
        stream.close()
        assert not ended.is_set()
    until(lambda: state(wings, topic)[1] == 0)


@in_sync
def test_a_stream_that_ctrl_c_came_upon_as_it_was_opened_holds_nothing_after_a_close(
    wings: Client, topic: Topic, calls: Calls
) -> None:
    wings.create_share_group("late", topic, {**CONFIG, "start": "latest"})
    consumer = wings.share_consumer("late", topic, max_messages=1)
    calls.after(_share_stream.ShareStream, "__init__", interrupt, times=1)
    with pytest.raises(KeyboardInterrupt):
        next(consumer)
    consumer.close()
    wings.push(topic, {"n": [0]})
    with wings.share_consumer("late", topic, timeout=20) as other:
        assert next(other).offsets == [MESSAGES]


@in_sync
@pytest.mark.parametrize("is_accepted", [True, False])
def test_a_close_waits_once_for_a_silent_server(
    connect: Connect,
    wings: Client,
    topic: Topic,
    proxy: BreakableProxy,
    monkeypatch: pytest.MonkeyPatch,
    calls: Calls,
    is_accepted: bool,
) -> None:
    monkeypatch.setattr(_share_stream, "CLOSE_SECONDS", 3_600.0)
    waits = calls.heard(_share_stream, "timed_out")
    with connect(proxy.endpoint, timeout=0.5) as client:
        consumer = client.share_consumer("billing", topic, max_messages=1, timeout=20)
        held = [next(consumer) for _ in range(2)]
        proxy.stall()
        if is_accepted:
            consumer.accept(held[0], wait=False)
        with pytest.raises(Unavailable) if is_accepted else nullcontext():
            consumer.close()
        assert len(waits) == 1
    proxy.go_on()
    until(lambda: state(wings, topic)[1] == 0)


@in_sync
def test_a_signal_handler_adds_nothing_to_what_is_being_sent(
    wings: Client, topic: Topic, requests: list[int], calls: Calls
) -> None:
    with wings.share_consumer("billing", topic, max_messages=1, prefetch=15) as consumer:
        before = read_itself(consumer)
        first, second = next(consumer), next(consumer)
        consumer.accept(first, wait=False)

        def handler(*_: object, **__: object) -> None:
            consumer.accept(second, wait=False)

        calls.before(_share_stream.ShareStream, "_write_request", handler, times=1)
        consumer.flush()
        assert state(wings, topic)[0] == MESSAGES - before - 2


@in_sync
def test_a_flush_by_a_signal_handler_does_not_say_what_its_thread_is_about_to_tell(
    wings: Client, topic: Topic, requests: list[int], calls: Calls
) -> None:
    with wings.share_consumer("billing", topic, max_messages=1, prefetch=15) as consumer:
        before = read_itself(consumer)

        def handler(*_: object) -> None:
            with pytest.raises(Unavailable):
                consumer.flush()

        consumer.accept(next(consumer), wait=False)
        calls.before(_share_stream.Sent, "tell", handler, times=1)
        consumer.flush()
        assert state(wings, topic)[0] == MESSAGES - before - 1


@in_sync
@pytest.mark.parametrize("keeps_from", ["being sent", "being told"])
def test_what_ctrl_c_keeps_from_being_sent_or_told_is_not_said_to_be_durable(
    wings: Client, topic: Topic, requests: list[int], calls: Calls, keeps_from: str
) -> None:
    with wings.share_consumer("billing", topic, max_messages=1, prefetch=15) as consumer:
        read_itself(consumer)
        for _ in range(2):
            consumer.accept(next(consumer), wait=False)
        if keeps_from == "being sent":
            calls.before(_share_stream, "acknowledge_metadata", interrupt, times=1)
        else:
            calls.before(_share_stream.Sent, "tell", interrupt, times=1)
        with pytest.raises(KeyboardInterrupt):
            consumer.flush()
        with pytest.raises(Unavailable):
            consumer.flush()


@async_in_soak
@pytest.mark.parametrize("tells", ["next", "close"])
def test_one_that_is_refused_is_told_of(wings: Client, topic: Topic, tells: str) -> None:
    consumer = wings.share_consumer("billing", topic, max_messages=1, prefetch=3, timeout=20)
    held = next(consumer)
    _accept_elsewhere(wings, topic, consumer.member, held)
    consumer.accept(held, wait=False)
    tell = consumer.close if tells == "close" else lambda: list(map(consumer.accept, consumer))
    with pytest.raises(InvalidRecordState):
        tell()
    if tells == "next":
        assert len(next(consumer)) == 1, "it goes on"
        consumer.close()
    until(lambda: state(wings, topic)[1] == 0)


@async_in_soak
def test_an_error_of_the_block_takes_precedence(wings: Client, topic: Topic) -> None:
    consumer = wings.share_consumer("billing", topic, max_messages=1, timeout=20)

    def work() -> None:
        with consumer:
            held = next(consumer)
            _accept_elsewhere(wings, topic, consumer.member, held)
            consumer.accept(held, wait=False)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    assert state(wings, topic) == (MESSAGES - 1, 0)


@async_in_soak
def test_it_is_sent_though_the_worker_works_on(wings: Client, topic: Topic) -> None:
    with wings.share_consumer("billing", topic, max_messages=4, prefetch=4) as consumer:
        for _ in range(20):  # Soon the caller reads, and what it acknowledges is gathered.
            consumer.accept(next(consumer), wait=False)
        until(lambda: state(wings, topic)[0] == MESSAGES - 80)
        assert state(wings, topic)[0] == MESSAGES - 80


@async_in_soak
def test_it_is_released_and_rejected_without_a_wait_too(
    wings: Client, new_topic: NewTopic, topic: Topic
) -> None:
    dead = f"{topic.name}-dead"
    wings.create_share_group("checks", topic, {**CONFIG, "dlq_topic": dead})
    with wings.share_consumer("checks", topic, max_messages=100, timeout=20) as consumer:
        first = next(consumer)
        consumer.reject(first, rows=slice(0, 50), reason="negative", wait=False)
        consumer.release(first, rows=slice(50, 99), delay=3_600, wait=False)
        consumer.renew(first, rows=99)
        consumer.accept(first, rows=99, wait=False)
        assert next(consumer).start_offset == 100
    letters = pa.Table.from_batches(wings.scan(dead))
    assert letters["error"].to_pylist() == ["negative"] * 50
    (partition,) = wings.share_group("checks", topic).partitions
    assert (partition.lag, partition.in_flight) == (149, 0)


@in_sync
def test_in_an_ordered_group_it_is_sent_at_once(
    wings: Client, topic: Topic, requests: list[int]
) -> None:
    wings.create_share_group("ordered", topic, {**CONFIG, "ordering": "partition"})
    with wings.share_consumer("ordered", topic, max_messages=1, prefetch=9, timeout=20) as consumer:
        before = read_itself(consumer)
        for offset in range(before, before + 20):  # Each comes only after the one before it.
            delivery = next(consumer)
            assert delivery.offsets == [offset]
            consumer.accept(delivery, wait=False)


@in_sync
def test_a_worker_that_only_acknowledges_has_the_pace_of_the_answers(
    wings: Client, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_share_stream, "UNANSWERED_MAX", 20)
    topic = new_topic()
    wings.push(topic, {"n": list(range(2_000))})
    wings.create_share_group("billing", topic, {**CONFIG, "in_flight_max": 10_000})
    with wings.share_consumer("billing", topic, max_messages=10_000, timeout=60) as consumer:
        delivery = next(consumer)
        stream = consumer.engine.stream
        assert stream is not None
        for row in range(0, len(delivery), 4):  # Of two ranges each, so none is gathered.
            consumer.accept(delivery, rows=[row, row + 2], wait=False)
            consumer.accept(delivery, rows=[row + 1, row + 3], wait=False)
            assert stream.unanswered <= 2 * 20
        consumer.flush()
        assert state(wings, topic) == (0, 0)


@async_in_soak
def test_after_a_broken_connection_the_outcome_is_unknown_and_nothing_lost(
    connect: Connect, wings: Client, topic: Topic, proxy: BreakableProxy
) -> None:
    taken: Counter[int] = Counter()
    with (
        connect(proxy.endpoint) as client,
        client.share_consumer("billing", topic, max_messages=1, prefetch=15, timeout=2) as consumer,
    ):
        accepted: set[int] = set()
        while len(accepted) < MESSAGES:
            unflushed: set[int] = set()
            with suppress(Unavailable, InvalidRecordState):
                while len(accepted) + len(unflushed) < MESSAGES:
                    delivery = next(consumer)
                    taken.update(delivery.offsets)
                    assert not accepted & set(delivery.offsets), "what was flushed comes no more"
                    consumer.accept(delivery, wait=False)
                    unflushed.update(delivery.offsets)
                    if len(unflushed) % 40 == 20:
                        proxy.cut()
                    if len(unflushed) % 40 == 10:
                        consumer.flush()
                        accepted |= unflushed
                        unflushed = set()
                consumer.flush()
                accepted |= unflushed
            if state(wings, topic)[0] == 0:
                break
    assert state(wings, topic) == (0, 0)
    assert set(taken) == {*range(MESSAGES)}


@async_in_soak
def test_members_that_wait_for_nothing_take_each_message_once(wings: Client, topic: Topic) -> None:
    taken: Counter[int] = Counter()

    def work(messages: int, prefetch: int) -> None:
        with wings.share_consumer(
            "billing", topic, max_messages=messages, prefetch=prefetch, timeout=1
        ) as consumer:
            for delivery in consumer:
                taken.update(delivery.offsets)
                consumer.accept(delivery, wait=False)

    threads = [threading.Thread(target=work, args=each) for each in ((1, 7), (3, 2), (10, 0))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert taken == dict.fromkeys(range(MESSAGES), 1)
    assert state(wings, topic) == (0, 0)


def test_what_was_flushed_before_the_server_is_killed_comes_no_more(tmp_path: Path) -> None:
    with held_address() as address:
        flags = ["--flight", address]
        with server_process(tmp_path / "data", flags=flags) as server:
            client = wings_client.connect(server.flight)
            client.create_topic("t", {"n": "int64"})
            config = {**CONFIG, "lock_duration_ms": 3_000}
            client.create_share_group("billing", "t", config)
            client.push("t", {"n": list(range(MESSAGES))})
            consumer = client.share_consumer("billing", "t", max_messages=1, prefetch=15)
            for _ in range(100):
                consumer.accept(next(consumer), wait=False)
            consumer.flush()
            for _ in range(50):
                consumer.accept(next(consumer), wait=False)
            server.kill()
        with server_process(tmp_path / "data", flags=flags):
            with suppress(WingsError):
                consumer.close()  # What it sent last may be accepted or not.
            with client.share_consumer("billing", "t", timeout=10) as other:
                again = list[int]()
                while not again or max(again) < MESSAGES - 1:  # Locks of before end first.
                    again += next(other).offsets
            client.close()
    assert set(again) >= {*range(150, MESSAGES)}
    assert set(again).isdisjoint(range(100))


@async_in_soak
def test_a_prefetch_out_of_range_is_refused(wings: Client, topic: Topic) -> None:
    for prefetch in (-1, 10_001):
        with pytest.raises(InvalidArgument, match="prefetch must be 0 to 10000"):
            wings.share_consumer("billing", topic, prefetch=prefetch)
