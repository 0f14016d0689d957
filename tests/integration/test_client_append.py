"""Rows appended one by one: gathered into batches, in order, durable before their ack."""

import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, NamedTuple

import pytest
from breakable_proxy import BreakableProxy
from fix_calls import Calls
from fix_client import NewTopic, async_in_soak
from forked_commands import FORKED
from pydantic import BaseModel

from wings_client import Appended, Client, Producer
from wings_client._accumulator import Accumulator
from wings_core.errors import (
    BatchTooLarge,
    InvalidArgument,
    PartitionRequired,
    SchemaMismatch,
    TopicNotFound,
)
from wings_server.testing import RunningServer

SLOW = 60_000.0
"""A linger in milliseconds that no test waits for."""


@dataclass
class Point:
    n: int


class Model(BaseModel):
    n: int


class Pair(NamedTuple):
    n: int


def numbers(client: Client, topic: Any) -> list[Any]:
    return client.scan(topic).read_all()["n"].to_pylist()


def test_rows_of_every_kind_are_appended_in_order(wings: Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    with wings.producer(topic) as producer:
        producer.append({"n": 0})
        producer.append(Point(1))
        producer.append(Model(n=2))
        producer.append(Pair(3))
        producer.append([4])
        producer.extend([{"n": 5}, (6,), {}])
    assert numbers(wings, topic) == [0, 1, 2, 3, 4, 5, 6, None]


def test_appended_rows_become_a_few_batches(wings: Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    with wings.producer(topic, linger_ms=SLOW) as producer:
        producer.extend({"n": number} for number in range(1_000))
        producer.flush()
        assert producer.rows_committed == 1_000
        assert producer.batches_committed <= 3  # A small one first, by which rows are measured.
    assert numbers(wings, topic) == list(range(1_000))


def test_a_row_alone_is_sent_when_it_has_lingered(wings: Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    with wings.producer(topic, linger_ms=1) as producer:
        ack = producer.append({"n": 7}, ack=True)
        assert ack.result(20) == Appended(None, 0, ack.result().timestamp)
        assert numbers(wings, topic) == [7]


def test_a_full_batch_does_not_linger(wings: Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    with wings.producer(topic, linger_ms=SLOW, batch_rows=10) as producer:
        acks = [producer.append({"n": number}, ack=True) for number in range(10)]
        assert [ack.result(20).offset for ack in acks] == list(range(10))


@async_in_soak
def test_appends_and_sends_of_a_thread_keep_their_order(wings: Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    with wings.producer(topic, linger_ms=SLOW) as producer:
        for number in range(0, 100, 2):
            producer.append({"n": number})
            producer.send({"n": [number + 1]})
    assert numbers(wings, topic) == list(range(100))


def test_acks_name_partition_and_offset_of_each_row(wings: Client, new_topic: NewTopic) -> None:
    topic = new_topic("k: binary", "n: int64", partition_key="k")
    keys = [b"a", b"b", b"a", b"\xff", b"b", b"a"]
    with wings.producer(topic, linger_ms=SLOW) as producer:
        acks: list[Future[Appended]] = []
        for number, key in enumerate(keys):
            row = {"k": key, "n": number}
            if number == 1:
                producer.append(row)
            else:
                acks.append(producer.append(row, ack=True))
        producer.flush()
    found = [(ack.result().partition, ack.result().offset) for ack in acks]
    assert found == [("YQ==", 0), ("YQ==", 1), ("/w==", 0), ("Yg==", 1), ("YQ==", 2)]


def test_a_dict_that_is_filled_anew_was_copied(wings: Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    row: dict[str, int] = {}
    with wings.producer(topic, linger_ms=SLOW) as producer:
        for number in range(10):
            row["n"] = number
            producer.append(row)
    assert numbers(wings, topic) == list(range(10))


def test_bad_rows_are_left_out_and_told(wings: Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    producer = wings.producer(topic, linger_ms=SLOW)
    rows: list[object] = [{"n": number} for number in range(40)]
    rows[17], rows[33] = {"m": 1}, {"n": 1.5}
    producer.extend(rows)
    good = producer.append({"n": 40}, ack=True)
    bad = producer.append("text", ack=True)
    with pytest.raises(SchemaMismatch) as told:
        producer.flush()
    assert told.value.facts["rows"] == [17, 33]
    assert good.result().offset == 38
    with pytest.raises(SchemaMismatch, match="a str is no row"):
        bad.result()
    producer.append({"n": 41})
    producer.close()
    assert numbers(wings, topic) == [n for n in range(42) if n not in {17, 33}]


def test_a_bad_row_is_told_by_the_next_append(wings: Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    with wings.producer(topic, linger_ms=0) as producer:
        producer.append({"n": "text"})
        appended: list[int] = []
        with pytest.raises(SchemaMismatch):
            _append_ones(producer, appended)
    assert numbers(wings, topic) == appended


def _append_ones(producer: Producer, appended: list[int]) -> None:
    """Append rows, each once the one before is durable, until one is refused."""
    for _ in range(1_000):
        producer.append({"n": 1}, ack=True).result(20)
        appended.append(1)


def test_values_that_pyarrow_would_change_are_refused(wings: Client, new_topic: NewTopic) -> None:
    topic = new_topic("n: int64", "at: timestamp[us, tz=UTC]", "s: string", "d: date32")
    rows: list[dict[str, Any]] = [
        {"n": True},
        {"n": 1.0e300},
        {"at": datetime(2024, 1, 1)},  # noqa: DTZ001 - without a zone
        {"s": b"\xff"},
        {"d": datetime(2024, 1, 1, 5, tzinfo=UTC)},
        {"n": 2**63},
    ]
    with wings.producer(topic, linger_ms=SLOW) as producer:
        acks = [producer.append(row, ack=True) for row in rows]
        producer.flush()
    assert [type(ack.exception()) for ack in acks] == [SchemaMismatch] * len(rows)
    assert wings.scan(topic).read_all().num_rows == 0


@async_in_soak
def test_appends_of_many_threads_are_all_there(wings: Client, new_topic: NewTopic) -> None:
    topic = new_topic("thread: int64", "n: int64")

    def work(thread: int) -> None:
        for number in range(500):
            producer.append({"thread": thread, "n": number})

    with wings.producer(topic, linger_ms=1, batch_rows=64) as producer:
        threads = [threading.Thread(target=work, args=(index,)) for index in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    rows = wings.scan(topic).read_all().to_pylist()
    for index in range(6):
        assert [row["n"] for row in rows if row["thread"] == index] == list(range(500))


def test_a_closed_producer_takes_no_row(wings: Client, new_topic: NewTopic) -> None:
    producer = wings.producer(new_topic())
    producer.append({"n": 1})
    producer.close()
    producer.close()
    with pytest.raises(InvalidArgument, match="closed"):
        producer.append({"n": 2})


def test_a_refused_batch_fails_the_rows_after_it(wings: Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    producer = wings.producer(topic, linger_ms=SLOW)
    producer.append({"n": 1}, ack=True)
    wings.delete_topic(topic)
    ack = producer.append({"n": 2}, ack=True)
    with pytest.raises(TopicNotFound):
        producer.flush()
    with pytest.raises(TopicNotFound):
        ack.result(20)
    with pytest.raises(TopicNotFound):
        producer.append({"n": 3})
    with pytest.raises(TopicNotFound):
        producer.close()


@async_in_soak
def test_once_a_flush_has_failed_no_row_is_taken(
    wings: Client, new_topic: NewTopic, calls: Calls
) -> None:
    calls.before(Accumulator, "fail", lambda *_: time.sleep(0.3))
    topic = new_topic()
    producer = wings.producer(topic, linger_ms=SLOW)
    wings.delete_topic(topic)
    producer.append({"n": 1})
    with pytest.raises(TopicNotFound):
        producer.flush()
    with pytest.raises(TopicNotFound):
        producer.append({"n": 2})
    with pytest.raises(TopicNotFound):
        producer.close()


@async_in_soak
@pytest.mark.parametrize("rows", [900, pytest.param(3_000, marks=pytest.mark.soak)])
def test_appended_rows_survive_broken_connections_once(
    shaky: Client, proxy: BreakableProxy, new_topic: NewTopic, rows: int
) -> None:
    topic = new_topic()
    with shaky.producer(topic, linger_ms=0, batch_rows=50) as producer:
        acks: list[Future[Appended]] = []
        for number in range(rows):
            acks.append(producer.append({"n": number}, ack=True))
            if number % (rows // 6) == rows // 12:
                proxy.cut()
        producer.flush(60)
    assert numbers(shaky, topic) == list(range(rows))
    assert [ack.result().offset for ack in acks] == list(range(rows))


@async_in_soak
def test_values_of_any_class_cost_their_own_row_alone(wings: Client, new_topic: NewTopic) -> None:
    topic = new_topic("n: int64", "t: timestamp[us]", "m: map<string, int64>")

    class Odd:
        def __repr__(self) -> str:
            raise ValueError("no text")

    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    bad: list[object] = [
        *({"t": 1 << 62}, {"n": Odd()}, Model, {"n": deep}, {"m": [None]}, object(), None, "n", 7),
    ]
    with wings.producer(topic, linger_ms=SLOW) as producer:
        good = [producer.append({"n": number}, ack=True) for number in range(3)]
        refused = [producer.append(row, ack=True) for row in bad]
        good += [producer.append({"n": number}, ack=True) for number in range(3, 6)]
        producer.flush(60)
    assert [type(ack.exception()) for ack in refused] == [SchemaMismatch] * len(bad)
    assert [ack.result().offset for ack in good] == list(range(6))
    assert numbers(wings, topic) == list(range(6))


@async_in_soak
def test_rows_that_a_server_would_refuse_are_left_out_alone(
    wings: Client, new_topic: NewTopic
) -> None:
    topic = new_topic("k: int64", "n: int64 not null", partition_key="k")
    rows: list[dict[str, object]] = [
        {"k": 1, "n": 0},
        {"k": None, "n": 1},
        {"k": 2, "n": None},
        {"k": 1, "n": 3},
    ]
    with wings.producer(topic, linger_ms=SLOW) as producer:
        acks = [producer.append(row, ack=True) for row in rows]
        producer.flush()
    found = [type(ack.exception()) for ack in acks]
    assert found == [type(None), PartitionRequired, SchemaMismatch, type(None)]
    with wings.producer(topic, partition=2, linger_ms=SLOW) as producer:
        acks = [producer.append({"k": key, "n": 9}, ack=True) for key in (2, 1)]
        producer.flush()
    assert [type(ack.exception()) for ack in acks] == [type(None), InvalidArgument]


def test_a_row_above_the_topics_bound_is_left_out_alone(wings: Client, new_topic: NewTopic) -> None:
    topic = new_topic("n: int64", "x: string")
    wings.alter_topic(topic, {"batch_bytes_max": 100_000})
    with wings.producer(wings.topic(topic.name), linger_ms=SLOW) as producer:
        acks = [
            producer.append({"n": n, "x": "y" * (200_000 if n == 2 else 10)}, ack=True)
            for n in range(4)
        ]
        producer.flush()
    assert [type(ack.exception()) for ack in acks] == [
        *(type(None), type(None), BatchTooLarge, type(None))
    ]
    assert numbers(wings, topic) == [0, 1, 3]


def test_rows_are_as_they_were_when_they_were_appended(wings: Client, new_topic: NewTopic) -> None:
    topic = new_topic("a: int64", "b: int64")

    class Swapped(NamedTuple):
        b: int
        a: int

    @dataclass
    class Mutable:
        a: int
        b: int = 0

    row = Mutable(0)
    with wings.producer(topic, linger_ms=SLOW) as producer:
        for number in range(3):
            row.a = number
            producer.append(row)
        producer.append(Swapped(b=2, a=1))
    stored = wings.scan(topic).read_all().to_pylist()
    assert stored == [{"a": 0, "b": 0}, {"a": 1, "b": 0}, {"a": 2, "b": 0}, {"a": 1, "b": 2}]


def test_times_of_zones_are_as_exact_as_ever(wings: Client, new_topic: NewTopic) -> None:
    topic = new_topic("at: timestamp[us, tz=UTC]")
    odd = timezone(timedelta(microseconds=7))
    times = [
        datetime(2024, 1, 1, tzinfo=UTC),
        datetime(2024, 1, 1, tzinfo=timezone(timedelta(hours=2))),
        datetime(2024, 1, 1, tzinfo=odd),
        datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14))),
    ]
    with wings.producer(topic, linger_ms=SLOW) as producer:
        acks = [producer.append({"at": at}, ack=True) for at in times]
        producer.flush()
    found = [type(ack.exception()) for ack in acks]
    assert found == [type(None), type(None), SchemaMismatch, SchemaMismatch]


def test_a_close_refuses_sends_of_other_threads(wings: Client, new_topic: NewTopic) -> None:
    producer = wings.producer(new_topic())
    refused = threading.Event()

    def send() -> None:
        try:
            while True:
                producer.send({"n": [1]})
        except InvalidArgument:
            refused.set()

    threads = [threading.Thread(target=send) for _ in range(2)]
    for thread in threads:
        thread.start()
    producer.append({"n": 1}, ack=True).result(20)
    producer.close()
    assert refused.wait(20)
    for thread in threads:
        thread.join(20)


# Appended rows and Ctrl-C: whenever it comes, what a later flush says is durable is there. ########

PROGRAM = f"""{FORKED}
import random, signal, sys, threading, time
import wings_client

interruptible = False

def interrupted(*_):
    if interruptible:
        raise KeyboardInterrupt

signal.signal(signal.SIGINT, interrupted)
client = wings_client.connect(sys.argv[1])
producer = client.producer(sys.argv[2], linger_ms=1)
stop = threading.Event()

def interrupt():
    while not stop.wait(random.uniform(0.001, 0.02)):
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

thread = threading.Thread(target=interrupt, daemon=True)
thread.start()
end = time.monotonic() + 2
next_number = 0
while time.monotonic() < end or next_number < 100:
    try:
        interruptible = True
        producer.append({{"n": next_number}})
        next_number += 1
        if next_number % 50 == 0:
            producer.flush(60)
        interruptible = False
    except KeyboardInterrupt:
        interruptible = False
stop.set()
thread.join()
producer.close(60)
print(next_number)
"""


@pytest.mark.parametrize("connect", ["sync"], indirect=True)  # The program has a client itself.
def test_no_row_is_lost_by_ctrl_c(
    server: RunningServer, wings: Client, new_topic: NewTopic
) -> None:
    topic = new_topic()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, server.flight, topic.name],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    numbers: list[Any] = wings.scan(topic).read_all()["n"].to_pylist()
    # A row whose append was interrupted after it was added comes again: the program cannot tell.
    assert sorted(set(numbers)) == list(range(max(numbers) + 1))
    assert max(numbers) in {int(done.stdout) - 1, int(done.stdout)}
