"""The share consumer over its stream, against a real server."""

import asyncio
import gc
import logging
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import nullcontext, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest
from fix_calls import Calls
from fix_client import NewTopic, async_in_soak
from held_address import held_address
from server_processes import until

import wings_client
from wings_client import Client, ShareConsumer, Topic, _share_stream
from wings_client._transport import Transport
from wings_core.contracts.share import ShareAnswer
from wings_core.errors import GroupNotFound, InvalidRecordState, WingsError
from wings_server.flight.service import FlightService
from wings_server.testing import running_server, server_process

EARLIEST = {"start": "earliest", "lock_duration_ms": 12 * 3_600_000}


@pytest.fixture
def topic(wings: Client, new_topic: NewTopic) -> Topic:
    """A topic of ten messages, `n` being the offset, with a group of a long lock."""
    topic = new_topic()
    wings.push(topic, {"n": list(range(10))})
    wings.create_share_group("billing", topic, EARLIEST)
    return topic


def in_flight(wings: Client, topic: Topic) -> int:
    (partition,) = wings.share_group("billing", topic).partitions
    return partition.in_flight


@async_in_soak
def test_a_consumer_that_may_wait_uses_a_stream(wings: Client, topic: Topic) -> None:
    with wings.share_consumer("billing", topic, max_messages=4, timeout=20) as consumer:
        assert consumer.uses_stream
        first = next(consumer)
        assert first.offsets == [0, 1, 2, 3]
        assert in_flight(wings, topic) == 4, "no more are held than were asked for"
        consumer.accept(first)
        second = next(consumer)
        third = next(consumer)
        assert [second.offsets, third.offsets] == [[4, 5, 6, 7], [8, 9]], "all of them are held"
        consumer.reject(second, rows=0)
        consumer.renew(third)
        with pytest.raises(InvalidRecordState):
            consumer.accept(second)
    assert in_flight(wings, topic) == 0
    with wings.share_consumer("billing", topic, timeout=0) as consumer:
        assert not consumer.uses_stream
        assert sorted(offset for each in consumer for offset in each.offsets) == [5, 6, 7, 8, 9]


@async_in_soak
def test_after_a_time_out_nothing_is_held_that_nobody_takes(wings: Client, topic: Topic) -> None:
    with wings.share_consumer("billing", topic, timeout=0.05) as consumer:
        for delivery in consumer:
            consumer.accept(delivery)
        wings.push(topic, {"n": [10, 11]})
        with wings.share_consumer("billing", topic, timeout=0) as other:
            assert next(other).offsets == [10, 11]


@async_in_soak
def test_a_consumer_that_is_forgotten_releases_at_once(wings: Client, topic: Topic) -> None:
    consumer = wings.share_consumer("billing", topic, timeout=20)
    assert len(next(consumer)) == 10
    del consumer

    def is_released() -> bool:
        gc.collect()  # A thread may have had it for a moment.
        return in_flight(wings, topic) == 0

    until(is_released)
    with wings.share_consumer("billing", topic, timeout=20) as other:
        again = next(other)
    assert (again.offsets, again.delivery_count) == ([*range(10)], 2)


@async_in_soak
def test_several_threads_acknowledge_what_one_takes(wings: Client, topic: Topic) -> None:
    wings.push(topic, {"n": list(range(10, 200))})
    with wings.share_consumer("billing", topic, max_messages=1, timeout=60) as consumer:
        threads: list[threading.Thread] = []
        for delivery in consumer:
            threads.append(threading.Thread(target=consumer.accept, args=(delivery,)))
            threads[-1].start()
            if len(threads) == 200:
                break
        for thread in threads:
            thread.join(30)
    (partition,) = wings.share_group("billing", topic).partitions
    assert (partition.lag, partition.in_flight) == (0, 0)


reads_itself = pytest.mark.parametrize("connect", ["sync"], indirect=True)
"""An async consumer waits on threads of its own."""


@pytest.fixture
def watch_seconds(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets how often the watchdog looks for a thread that reads for too long."""
    return lambda seconds: monkeypatch.setattr(_share_stream, "WATCH_SECONDS", seconds)


@pytest.fixture
def read_quickly(
    monkeypatch: pytest.MonkeyPatch,
    watch_seconds: Callable[[float], None],
    calls: Calls,
    wings: Client,
    topic: Topic,
) -> Callable[[ShareConsumer], threading.Event]:
    """Has a consumer read its stream itself; returns an event that is set when it next reads so."""
    readers: list[threading.Thread] = []
    monkeypatch.setattr(_share_stream, "QUICK_READS", 3)
    record: Callable[[object], None] = lambda _: readers.append(threading.current_thread())  # noqa: E731
    calls.before(_share_stream, "parse_server_message", record)

    def read_quickly(consumer: ShareConsumer) -> threading.Event:
        # A busy machine is no reason to take over; a wait without end is.
        watch_seconds(1.0)
        while threading.current_thread() not in readers:
            wings.push(topic, {"n": [0]})
            consumer.accept(next(consumer))
        while wings.share_group("billing", topic).partitions[0].lag:
            consumer.accept(next(consumer))
        watch_seconds(0.05)
        begun = threading.Event()
        calls.before(_share_stream.ShareStream, "read", lambda *_: begun.set())
        return begun

    return read_quickly


@reads_itself
def test_a_caller_that_reads_its_stream_itself_can_be_stopped(
    wings: Client, topic: Topic, read_quickly: Callable[[ShareConsumer], threading.Event]
) -> None:
    with wings.share_consumer("billing", topic, max_messages=1) as consumer:
        begun = read_quickly(consumer)
        wings.push(topic, {"n": [0]})
        held = next(consumer)
        begun.clear()
        stopping = threading.Thread(target=lambda: (begun.wait(30), consumer.engine.stop()))
        stopping.start()
        assert list(consumer) == []
        stopping.join(30)
        consumer.accept(held)  # The stream has not been broken for it.


@reads_itself
def test_a_caller_that_reads_its_stream_itself_answers_for_other_threads(
    wings: Client, topic: Topic, read_quickly: Callable[[ShareConsumer], threading.Event]
) -> None:
    with wings.share_consumer("billing", topic, max_messages=1) as consumer:
        begun = read_quickly(consumer)
        wings.push(topic, {"n": [0]})
        held = next(consumer)
        begun.clear()

        def accept() -> None:
            assert begun.wait(30)
            consumer.accept(held)
            assert in_flight(wings, topic) == 0
            wings.push(topic, {"n": [1]})

        accepting = threading.Thread(target=accept)
        accepting.start()
        assert next(consumer).batch["n"].to_pylist() == [1]
        accepting.join(30)


@reads_itself
def test_a_signal_handler_acknowledges_while_its_thread_reads_the_stream(
    calls: Calls,
    wings: Client,
    topic: Topic,
    read_quickly: Callable[[ShareConsumer], threading.Event],
) -> None:
    with wings.share_consumer("billing", topic, max_messages=1) as consumer:
        read_quickly(consumer)
        wings.push(topic, {"n": [0, 1]})
        held, accepted = [next(consumer)], list[wings_client.Delivery]()

        def accept(number: int, frame: FrameType | None) -> None:
            delivery = held.pop()
            consumer.accept(delivery)
            accepted.append(delivery)

        def signal_it(found: object, _: object) -> None:
            is_here = threading.current_thread() is threading.main_thread()
            if is_here and held and not isinstance(found, ShareAnswer):
                signal.raise_signal(signal.SIGUSR1)  # In the midst of a read.

        before = signal.signal(signal.SIGUSR1, accept)
        calls.after(_share_stream, "parse_server_message", signal_it)
        try:
            last = next(consumer)
        finally:
            signal.signal(signal.SIGUSR1, before)
        assert accepted
        assert in_flight(wings, topic) == 1
        consumer.accept(last)


def _signalled(begun: threading.Event, number: int) -> threading.Thread:
    """Send the main thread a signal once it reads."""
    main = threading.main_thread().ident
    assert main is not None
    begun.clear()
    signalling = threading.Thread(
        target=lambda: (begun.wait(30), signal.pthread_kill(main, number))
    )
    signalling.start()
    return signalling


@pytest.fixture
def handle() -> Generator[Callable[[Callable[[], object]], None]]:
    """Sets the handler of SIGUSR1."""
    before = signal.getsignal(signal.SIGUSR1)

    def handle(call: Callable[[], object]) -> None:
        def handler(number: int, frame: FrameType | None) -> None:
            call()

        signal.signal(signal.SIGUSR1, handler)

    yield handle
    signal.signal(signal.SIGUSR1, before)


@reads_itself
@pytest.mark.parametrize("closes", [False, True])
def test_a_signal_handler_calls_the_consumer_whose_caller_gets_nothing(
    wings: Client,
    topic: Topic,
    read_quickly: Callable[[ShareConsumer], threading.Event],
    handle: Callable[[Callable[[], object]], None],
    calls: Calls,
    closes: bool,
) -> None:
    broken = calls.heard(_share_stream.ShareStream, "cancel")
    with wings.share_consumer("billing", topic, max_messages=1) as consumer:
        begun = read_quickly(consumer)
        wings.push(topic, {"n": [0]})
        held, found = next(consumer), list[int]()

        def call() -> None:
            if closes:
                consumer.close()
            else:
                consumer.accept(held)
            found.append(in_flight(wings, topic))
            wings.push(topic, {"n": [1]})

        handle(call)
        signalling = _signalled(begun, signal.SIGUSR1)
        following = next(consumer, None)
        signalling.join(30)
        assert found == [0]
        if not closes:
            assert following is not None
            assert following.batch["n"].to_pylist() == [1]
            consumer.accept(following)
    assert not broken


@reads_itself
@pytest.mark.parametrize(
    ("number", "error"),
    [
        (signal.SIGINT, KeyboardInterrupt),
        (signal.SIGUSR1, RuntimeError),
        (signal.SIGUSR1, TimeoutError),
    ],
)
def test_what_a_signal_handler_raises_is_raised_by_a_caller_that_reads_itself(
    wings: Client,
    topic: Topic,
    read_quickly: Callable[[ShareConsumer], threading.Event],
    handle: Callable[[Callable[[], object]], None],
    number: int,
    error: type[BaseException],
) -> None:
    def fail() -> None:
        raise error

    with wings.share_consumer("billing", topic, max_messages=1, timeout=20) as consumer:
        begun = read_quickly(consumer)
        wings.push(topic, {"n": [6]})
        held = next(consumer)
        handle(fail)
        signalling = _signalled(begun, number)
        with pytest.raises(error):
            next(consumer)
        signalling.join(30)
        wings.push(topic, {"n": [7]})
        assert next(consumer).batch["n"].to_pylist() == [7], "it goes on afterwards"
        consumer.accept(held)  # The stream has not been broken for it.


@reads_itself
@pytest.mark.parametrize("error", [RuntimeError, TimeoutError])
def test_what_a_signal_handler_raises_while_a_message_is_handed_on_is_raised(
    wings: Client,
    topic: Topic,
    read_quickly: Callable[[ShareConsumer], threading.Event],
    handle: Callable[[Callable[[], object]], None],
    calls: Calls,
    error: type[Exception],
) -> None:
    signals = [signal.SIGUSR1]

    def fail() -> None:
        raise error("no time is left")

    def signal_it(found: object, _: object) -> None:
        is_here = threading.current_thread() is threading.main_thread()
        if is_here and signals and not isinstance(found, ShareAnswer):
            signal.raise_signal(signals.pop())

    with wings.share_consumer("billing", topic, max_messages=1, timeout=20) as consumer:
        read_quickly(consumer)
        handle(fail)
        wings.push(topic, {"n": [6]})
        calls.after(_share_stream, "parse_server_message", signal_it)
        with pytest.raises(error, match="no time is left"):
            next(consumer)
        assert next(consumer).batch["n"].to_pylist() == [6], "it was released"


@reads_itself
@pytest.mark.parametrize("closes", [False, True])
def test_a_signal_handler_calls_the_consumer_whose_caller_writes_a_request(
    wings: Client,
    topic: Topic,
    handle: Callable[[Callable[[], object]], None],
    calls: Calls,
    closes: bool,
) -> None:
    signals = [signal.SIGUSR1]

    def signal_it(*_: object) -> None:
        if threading.current_thread() is threading.main_thread() and signals:
            signal.raise_signal(signals.pop())

    with wings.share_consumer("billing", topic, max_messages=1) as consumer:
        wings.push(topic, {"n": [0, 1, 2]})
        first, second = next(consumer), next(consumer)
        handle(consumer.close if closes else lambda: consumer.accept(second))
        calls.before(_share_stream, "acknowledge_metadata", signal_it)
        with suppress(WingsError) if closes else nullcontext():
            consumer.accept(first)
        assert not signals
        for _ in range(0 if closes else 3):
            consumer.accept(next(consumer))
    assert in_flight(wings, topic) == 0


@reads_itself
def test_a_caller_that_reads_for_other_threads_times_out(
    wings: Client,
    topic: Topic,
    read_quickly: Callable[[ShareConsumer], threading.Event],
    watch_seconds: Callable[[float], None],
) -> None:
    with wings.share_consumer("billing", topic, max_messages=1, timeout=5) as consumer:
        begun = read_quickly(consumer)
        watch_seconds(1.0)
        wings.push(topic, {"n": [0]})
        held, ended = next(consumer), threading.Event()
        begun.clear()

        def renew() -> None:
            assert begun.wait(30)
            for _ in range(1_000):
                consumer.renew(held)
                if ended.wait(0.1):
                    return

        renewing = threading.Thread(target=renew)
        renewing.start()
        assert list(consumer) == []
        assert renewing.is_alive(), "it need not wait until nothing comes"
        ended.set()
        renewing.join(30)


class _Unread:
    """A writer to a server that reads nothing until the stream is broken, and its reader."""

    def __init__(self, opened: tuple[Any, Any, str]) -> None:
        self.blocks = False
        self.was_broken = False
        self._writer, self._reader, _ = opened
        self.broken = threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    def write_metadata(self, message: pa.Buffer) -> None:
        if self.blocks:
            self.was_broken = self.broken.wait(20)
        self._writer.write_metadata(message)

    def done_writing(self) -> None:
        self._writer.done_writing()

    def close(self) -> None:
        self._writer.close()

    def cancel(self) -> None:
        self.broken.set()
        self._reader.cancel()


@reads_itself
def test_a_stream_is_broken_where_the_server_does_not_read_what_is_to_wake_a_caller(
    wings: Client,
    topic: Topic,
    read_quickly: Callable[[ShareConsumer], threading.Event],
    monkeypatch: pytest.MonkeyPatch,
    calls: Calls,
) -> None:
    monkeypatch.setattr(_share_stream, "SILENT_SECONDS", 0.5)
    streams: list[_Unread] = []

    def wrapped(opened: tuple[Any, Any, str], *_: object) -> tuple[_Unread, _Unread, str]:
        streams.append(_Unread(opened))
        return streams[-1], streams[-1], opened[2]

    calls.change(Transport, "exchange", wrapped)
    with wings.share_consumer("billing", topic, max_messages=1, timeout=60) as consumer:
        read_quickly(consumer)
        (unread,) = streams
        unread.blocks = True

        def push() -> None:
            assert unread.broken.wait(30)
            wings.push(topic, {"n": [1]})

        pushing = threading.Thread(target=push)
        pushing.start()
        consumer.accept(next(consumer))
        pushing.join(30)
        assert unread.was_broken


@async_in_soak
def test_a_deleted_group_ends_the_wait(wings: Client, topic: Topic) -> None:
    with wings.share_consumer("billing", topic, timeout=20) as consumer:
        consumer.accept(next(consumer))
        wings.delete_share_group("billing", topic)
        with pytest.raises(GroupNotFound):
            next(consumer)


@pytest.mark.parametrize("how", ["terminate", "kill"])
def test_a_consumer_outlives_its_server(tmp_path: Path, how: str) -> None:
    with held_address() as address:
        _outlive(tmp_path / "data", how, ["--flight", address])


def _outlive(data_dir: Path, how: str, flags: list[str]) -> None:
    with server_process(data_dir, flags=flags) as server:
        client = wings_client.connect(server.flight)
        client.create_topic("t", {"n": "int64"})
        config = {"start": "earliest", "lock_duration_ms": 1_000, "delivery_limit": 100}
        client.create_share_group("billing", "t", config)
        client.push("t", {"n": [0]})
        consumer = client.share_consumer("billing", "t", timeout=150)
        is_accepted = False
        while not is_accepted:  # Else its lock, which is short, has expired.
            with suppress(InvalidRecordState):
                consumer.accept(next(consumer))
                is_accepted = True
        taken: list[int] = []
        waiting = threading.Thread(target=lambda: taken.extend(next(consumer).offsets))
        waiting.start()
        getattr(server, how)()
    with server_process(data_dir, flags=flags):
        client.push("t", {"n": [1]})
        waiting.join(100)
        client.close()
    assert taken == [1]


def test_a_server_without_streams_is_polled_and_that_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(FlightService, "do_exchange", flight.FlightServerBase.do_exchange)
    with (
        running_server(tmp_path / "data") as server,
        wings_client.connect(server.flight) as client,
        caplog.at_level(logging.WARNING, "wings_client"),
    ):
        client.create_topic("t", {"n": "int64"})
        client.create_share_group("billing", "t", {"start": "earliest"})
        client.push("t", {"n": [0, 1]})
        with client.share_consumer("billing", "t", timeout=60) as consumer:
            delivery = next(consumer)
            assert delivery.offsets == [0, 1]
            assert not consumer.uses_stream
            consumer.accept(delivery)
        assert "serves no share streams" in caplog.text
        caplog.clear()
        client.push("t", {"n": [2]})
        asyncio.run(_asynchronously(server.flight))
        assert "serves no share streams" in caplog.text


async def _asynchronously(address: str) -> None:
    async with (
        wings_client.connect_async(address) as client,
        client.share_consumer("billing", "t", timeout=0.1) as consumer,
    ):
        assert (await anext(consumer)).offsets == [2]
        assert not consumer.uses_stream
