import threading
import time
from concurrent.futures import Future, wait
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from breakable_proxy import BreakableProxy, breakable
from fix_calls import Calls
from fix_client import EAGER, Connect, NewTopic, async_in_soak

from wings_client import Client, Committed, Connection, Retry, Topic, connect
from wings_client._window import Window
from wings_core.errors import (
    InvalidArgument,
    OffsetMismatch,
    OutOfOrderSequence,
    ResourceExhausted,
    SchemaMismatch,
    TopicNotFound,
    Unavailable,
)
from wings_core.limits import Limits
from wings_server.testing import RunningServer, running_server, server_process

SENDS = 400


def numbers(client: Client, topic: Topic | str) -> list[Any]:
    return client.scan(topic).read_all()["n"].to_pylist()


@async_in_soak
def test_sends_are_committed_in_order(wings: Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    with wings.producer(topic) as producer:
        sent = [producer.send({"n": [index, index]}) for index in range(100)]
        producer.flush()
        assert all(each.done() for each in sent)
    for index, each in enumerate(sent):
        committed = each.result()
        (found,) = committed.committed
        assert (found.start_offset, found.end_offset) == (2 * index, 2 * index + 1)
        assert (committed.sequence, committed.next_sequence) == (index, index + 1)
    assert numbers(wings, topic) == [index for index in range(100) for _ in range(2)]


def test_a_send_of_several_batches_is_one_result(wings: Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    with wings.producer(topic, batch_rows=10) as producer:
        producer.send({"n": [0]})
        committed = producer.send(pa.table({"n": range(35)})).result()
        assert producer.next_sequence == 5
        assert (producer.rows_committed, producer.batches_committed) == (36, 5)
    assert (committed.rows, committed.batches) == (35, 4)
    assert (committed.sequence, committed.next_sequence) == (1, 5)
    (found,) = committed.committed
    assert (found.start_offset, found.end_offset) == (1, 35)


@pytest.mark.parametrize("connect", ["sync"], indirect=True)
def test_a_send_that_is_interrupted_when_it_is_to_write_itself_holds_up_no_other(
    wings: Client, new_topic: NewTopic, calls: Calls
) -> None:
    topic = new_topic()
    sent = 0

    def interrupt(is_to_write: bool, *_: object) -> None:
        if is_to_write:
            raise KeyboardInterrupt

    with wings.producer(topic) as producer:
        calls.after(Window, "put", interrupt)
        was_interrupted = False
        while not was_interrupted:
            sent += 1
            try:
                producer.send({"n": [sent]}).result()
            except KeyboardInterrupt:
                was_interrupted = True
        calls.stop()
        producer.flush(30)
    assert numbers(wings, topic) == list(range(1, sent + 1))


@async_in_soak
def test_sends_of_many_threads_lie_together(wings: Client, new_topic: NewTopic) -> None:
    topic = new_topic("thread: int64", "n: int64")
    results: list[Committed] = []

    def work(thread: int) -> None:
        for _ in range(10):
            data = {"thread": [thread] * 20, "n": list(range(20))}
            results.append(producer.send(data).result())

    with wings.producer(topic, batch_rows=5, window_batches=3) as producer:
        threads = [threading.Thread(target=work, args=(index,)) for index in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert len(results) == 80
    assert all(len(each.committed) == 1 and each.rows == 20 for each in results)
    rows = wings.scan(topic).read_all().to_pylist()
    for start in range(0, len(rows), 20):
        together = rows[start : start + 20]
        assert len({row["thread"] for row in together}) == 1
        assert [row["n"] for row in together] == list(range(20))


def test_a_refused_batch_fails_its_send_and_all_later_ones(
    wings: Client, new_topic: NewTopic
) -> None:
    topic = new_topic()
    producer = wings.producer(topic)
    assert producer.send({"n": [1]}).result().rows == 1
    refused = producer.send({"n": [2]}, expected_offset=7)
    error = refused.exception(60)
    assert isinstance(error, OffsetMismatch)
    assert error.next_offset == 1
    assert error.rows_committed == 0
    for call in (lambda: producer.send({"n": [3]}), producer.flush, producer.close):
        with pytest.raises(OffsetMismatch):
            call()
    producer.close()
    assert numbers(wings, topic) == [1]


def test_what_does_not_fit_the_topic_is_raised_and_the_producer_goes_on(
    wings: Client, new_topic: NewTopic
) -> None:
    topic = new_topic()
    with wings.producer(topic) as producer:
        with pytest.raises(SchemaMismatch):
            producer.send({"n": ["one"]})
        producer.send({"n": [1]})
    assert numbers(wings, topic) == [1]


def test_pushes_that_wait_for_a_full_disk_are_logged_once_with_the_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    retry = Retry(delay=0.01, reconnect_seconds=0.5)
    with (
        running_server(limits=Limits(disk_free_bytes_min=2**60)) as full,
        connect(full.flight, retry=retry) as client,
    ):
        topic = client.create_topic("waiting", {"n": int})
        with pytest.raises(ResourceExhausted), client.producer(topic) as producer:
            producer.append({"n": 1})
    (warned,) = (each for each in caplog.records if each.name == "wings_client")
    assert warned.getMessage().startswith(
        f"pushes to {topic.name} wait, and are tried again for up to 0.5 s: pushes are refused: the"
    )


def test_leaving_the_block_flushes_and_tells_of_a_refusal(
    wings: Client, new_topic: NewTopic
) -> None:
    topic = new_topic()
    with pytest.raises(OffsetMismatch), wings.producer(topic) as producer:
        producer.send({"n": [1]}, expected_offset=7)

    def fail_midway() -> None:
        with wings.producer(topic) as producer:
            producer.send({"n": [2]})
            raise KeyError

    with pytest.raises(KeyError):
        fail_midway()
    assert numbers(wings, topic) == [2]
    producer.close()


def test_a_topic_that_is_deleted_fails_what_is_sent(wings: Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    producer = wings.producer(topic)
    wings.delete_topic(topic)
    assert isinstance(producer.send({"n": [1]}).exception(60), TopicNotFound)
    with pytest.raises(TopicNotFound):
        producer.close()


def test_bounds_of_the_window_are_checked(wings: Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    for wrong in ({"window_batches": 65}, {"window_batches": 0}, {"window_bytes": 0}):
        with pytest.raises(InvalidArgument, match="window"):
            wings.producer(topic, **wrong)  # pyright: ignore[reportArgumentType]


@async_in_soak
def test_a_producer_goes_on_after_a_restart_of_its_process(
    server: RunningServer, wings: Client, new_topic: NewTopic, connect: Connect
) -> None:
    topic = new_topic()
    lines = list(range(100))

    def run(sequence: int, lines_from: int, lines_to: int) -> int:
        """Send lines one by one, as a process would that has kept a sequence and a line."""
        with (
            connect(server.flight) as client,
            client.producer(topic, producer_id="loader", sequence=sequence) as producer,
        ):
            sent = [producer.send({"n": [line]}) for line in lines[lines_from:lines_to]]
            return sent[-1].result().next_sequence

    assert run(0, 0, 40) == 40
    # It had kept sequence 20 and line 20 before it died; 20 to 39 are there already.
    assert run(20, 20, 100) == 100
    assert numbers(wings, topic) == lines


def test_a_sequence_that_leaves_a_gap_is_refused(wings: Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    with wings.producer(topic, producer_id="p") as first:
        first.send({"n": [1]})
    producer = wings.producer(topic, producer_id="p", sequence=7)
    error = producer.send({"n": [2]}).exception(60)
    assert isinstance(error, OutOfOrderSequence)
    assert error.expected_sequence == 1
    with pytest.raises(OutOfOrderSequence):
        producer.close()


@async_in_soak
def test_a_breaking_connection_neither_loses_nor_doubles_anything(
    shaky: Client, proxy: BreakableProxy, new_topic: NewTopic
) -> None:
    topic = new_topic()
    pause = threading.Event()

    def break_it() -> None:
        for _ in range(12):
            pause.wait(0.1)
            proxy.cut()

    breaker = threading.Thread(target=break_it)
    sent: list[Future[Committed]] = []
    with shaky.producer(topic) as producer:
        # The first one takes long: pyarrow imports pandas for it.
        sent.append(producer.send({"n": [0]}))
        breaker.start()
        while breaker.is_alive() or len(sent) <= 100:
            sent.append(producer.send({"n": [len(sent)]}))
    ranges = [each.result(0).committed[0] for each in sent]
    assert [each.start_offset for each in ranges] == list(range(len(sent)))
    assert numbers(shaky, topic) == list(range(len(sent)))


@async_in_soak
def test_a_stream_is_renewed_before_its_deadline(
    server: RunningServer, new_topic: NewTopic, wings: Client, connect: Connect
) -> None:
    topic = new_topic()
    with (
        connect(server.flight, timeout=0.3) as client,
        client.producer(topic) as producer,
    ):
        end = time.monotonic() + 1.5
        count = 0
        while time.monotonic() < end:
            producer.send({"n": [count]}).result()
            count += 1
            time.sleep(0.01)  # It is of the time, not of how much is sent.
        server.wait_for_calls(0)  # An idle producer holds no stream for longer than that.
        producer.send({"n": [count]}).result()
    assert numbers(wings, topic) == list(range(count + 1))


def test_a_full_window_blocks_and_gives_up_in_time(
    proxy: BreakableProxy, new_topic: NewTopic, wings: Client, connect: Connect
) -> None:
    topic = new_topic()
    with connect(proxy.endpoint, timeout=1.0, retry=EAGER) as client:
        producer = client.producer(topic, window_batches=2)
        producer.send({"n": [0]}).result()
        proxy.stall()
        held = [producer.send({"n": [index]}) for index in (1, 2)]
        with pytest.raises(ResourceExhausted) as full:
            producer.send({"n": [3]}, timeout=0.05)
        assert full.value.batches_sent == 0
        with pytest.raises(Unavailable) as late:
            producer.flush(timeout=0.05)
        assert late.value.connection == Connection.TIMEOUT
        proxy.go_on()
        assert not wait(held, timeout=60).not_done
        producer.close()
    assert numbers(wings, topic) == [0, 1, 2]


@async_in_soak
def test_a_server_that_stays_away_fails_what_was_sent_in_bounded_time(
    proxy: BreakableProxy, new_topic: NewTopic, wings: Client, connect: Connect
) -> None:
    topic = new_topic()
    retry = Retry(delay=0.01, delay_max=0.05, reconnect_seconds=0.5)
    client = connect(proxy.endpoint, retry=retry)
    producer = client.producer(topic)
    producer.send({"n": [0]}).result()
    proxy.stop_listening()
    error = producer.send({"n": [1]}).exception(60)
    assert isinstance(error, Unavailable)
    assert error.connection in {Connection.UNREACHABLE, Connection.LOST}
    with pytest.raises(Unavailable):
        client.close()
    assert numbers(wings, topic) == [0]


@async_in_soak
def test_a_killed_and_restarted_server_neither_loses_nor_doubles_anything(
    tmp_path: Path, connect: Connect
) -> None:
    sent: list[Future[Committed]] = []
    reached = threading.Event()

    def send_all() -> None:
        for number in range(SENDS):
            sent.append(producer.send({"n": [number]}))
            if number == SENDS // 2:
                reached.set()

    with ExitStack() as stack:
        server = stack.enter_context(server_process(tmp_path))
        proxy = stack.enter_context(breakable(server.flight))
        client = stack.enter_context(connect(proxy.endpoint, retry=EAGER))
        client.create_topic("crash", {"n": "int64"})
        producer = client.producer("crash")
        sender = threading.Thread(target=send_all)
        sender.start()
        assert reached.wait(60)
        server.kill()
        again = stack.enter_context(server_process(tmp_path))
        proxy.retarget(again.flight)
        sender.join(100)
        producer.close()
        offsets = [each.result(0).committed[0].start_offset for each in sent]
        assert offsets == list(range(SENDS))
        assert numbers(client, "crash") == list(range(SENDS))
