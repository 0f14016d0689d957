"""Share groups by the client, sync and async, against a real server."""

import os
import signal
import threading
import time
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from fix_client import Connect, NewTopic, async_in_soak
from server_processes import until

from wings_client import Client, Delivery, Topic, _share
from wings_client._share import acknowledge
from wings_core.errors import (
    AlreadyExists,
    GroupNotFound,
    InvalidArgument,
    InvalidRecordState,
    SchemaMismatch,
    TopicNotFound,
    Unavailable,
)
from wings_server.testing import server_process

SHORT = 1_000
RENEWED = 6_000
"""Long enough that a busy machine renews it in time."""
"""The shortest lock, in milliseconds."""

UNHURRIED = 6_000
"""A lock of which a third leaves time to do something before its first renewal."""

EARLIEST = {"start": "earliest"}


@pytest.fixture
def topic(wings: Client, new_topic: NewTopic) -> Topic:
    """A topic of ten messages, `n` being the offset."""
    topic = new_topic()
    wings.push(topic, {"n": list(range(10))})
    return topic


def numbers(deliveries: Iterable[Delivery]) -> list[int]:
    columns = [each.batch.column("n") for each in deliveries]
    return [number.as_py() for column in columns for number in column]


def lag(wings: Client, topic: Topic, group: str = "billing") -> int:
    (partition,) = wings.share_group(group, topic).partitions
    return partition.lag


@async_in_soak
def test_a_consumer_gets_messages_and_accepts_them(wings: Client, topic: Topic) -> None:
    wings.create_share_group("billing", topic, EARLIEST)
    with wings.share_consumer("billing", topic=topic, timeout=0.1) as consumer:
        taken: list[int] = []
        for delivery in consumer:
            assert delivery.delivery_count == 1
            assert delivery.lock_seconds == 30
            assert delivery.partition is None
            assert len(delivery) == delivery.batch.num_rows
            assert delivery.rows.schema.names == ["n"]
            assert delivery.offsets == delivery.rows.column("n").to_pylist()
            assert pa.record_batch(delivery).equals(delivery.batch)
            taken += delivery.offsets
            consumer.accept(delivery)
    assert taken == list(range(10))
    assert lag(wings, topic) == 0


@async_in_soak
def test_rows_are_settled_each_in_its_way(wings: Client, topic: Topic) -> None:
    dead = f"{topic.id}-dead"
    wings.create_share_group("billing", topic, {**EARLIEST, "dlq_topic": dead})
    with wings.share_consumer("billing", topic, timeout=0) as consumer:
        (delivery,) = consumer
        consumer.accept(delivery, rows=slice(0, 4))
        consumer.reject(delivery, rows=4, reason="no such customer")
        consumer.release(delivery, rows=[n in {5, 7} for n in range(10)])
        consumer.renew(delivery, rows=[6, 8])
        consumer.accept(delivery, rows=[8, 6, -1])
        again = list(consumer)
    assert numbers(again) == [5, 7]
    assert {each.delivery_count for each in again} == {2}
    letters = wings.fetch(dead, offset=0, min_messages=1, timeout=20).table.to_pylist()
    assert [(each["source_offset"], each["error"]) for each in letters] == [(4, "no such customer")]
    assert lag(wings, topic) == 2


@async_in_soak
@pytest.mark.parametrize("rows", [10, [0, 10], [True] * 9, ["a"], -11])
def test_rows_that_are_not_there_are_refused(wings: Client, topic: Topic, rows: Any) -> None:
    wings.create_share_group("billing", topic, EARLIEST)
    with wings.share_consumer("billing", topic, timeout=0) as consumer:
        (delivery,) = consumer
        with pytest.raises(InvalidArgument, match="10 rows"):
            consumer.accept(delivery, rows=rows)


@async_in_soak
def test_what_was_settled_cannot_be_settled_again(wings: Client, topic: Topic) -> None:
    wings.create_share_group("billing", topic, EARLIEST)
    with wings.share_consumer("billing", topic, timeout=0) as consumer:
        (delivery,) = consumer
        consumer.release(delivery, rows=3)
        with pytest.raises(InvalidRecordState):
            consumer.accept(delivery)
        consumer.accept(delivery, rows=slice(4, None))
    assert lag(wings, topic) == 4


@async_in_soak
def test_what_is_held_is_renewed_while_the_caller_works(wings: Client, topic: Topic) -> None:
    wings.create_share_group("billing", topic, {**EARLIEST, "lock_duration_ms": RENEWED})
    with wings.share_consumer("billing", topic, timeout=0) as consumer:
        (delivery,) = consumer
        with wings.share_consumer("billing", topic, timeout=1.3 * RENEWED / 1000) as other:
            assert list(other) == [], "the lock does not expire"
        consumer.accept(delivery)
    assert lag(wings, topic) == 0


@async_in_soak
@pytest.mark.parametrize("auto_renew", [False, 0.1])
def test_what_is_not_renewed_expires(wings: Client, topic: Topic, auto_renew: Any) -> None:
    wings.create_share_group("billing", topic, {**EARLIEST, "lock_duration_ms": SHORT})
    with wings.share_consumer("billing", topic, timeout=0, auto_renew=auto_renew) as consumer:
        (delivery,) = consumer
        with wings.share_consumer("billing", topic, timeout=60) as other:
            again = next(iter(other))
            with pytest.raises(InvalidRecordState):
                consumer.accept(delivery)
            is_accepted = False
            while not is_accepted:
                try:
                    other.accept(again)
                except InvalidRecordState:  # A busy machine has renewed it too late.
                    again = next(iter(other))
                else:
                    is_accepted = True
    assert again.delivery_count >= 2
    assert lag(wings, topic) == 10 - len(again)


@async_in_soak
def test_leaving_gives_back_what_was_not_settled(wings: Client, topic: Topic) -> None:
    wings.create_share_group("billing", topic, EARLIEST)
    with wings.share_consumer("billing", topic, timeout=0) as consumer:
        (delivery,) = consumer
        consumer.accept(delivery, rows=[0, 1])
    with wings.share_consumer("billing", topic, timeout=0) as consumer:
        again = list(consumer)
    assert numbers(again) == list(range(2, 10))
    with pytest.raises(ZeroDivisionError), wings.share_consumer("billing", topic) as consumer:
        divmod(len(next(iter(consumer))), 0)
    (partition,) = wings.share_group("billing", topic).partitions
    assert partition.in_flight == 0


def counts_of(wings: Client, topic: Topic, messages: int) -> dict[int, int]:
    """Accept messages; returns how often each was delivered."""
    counts: dict[int, int] = {}
    with wings.share_consumer("billing", topic, timeout=60) as consumer:
        while len(counts) < messages:
            delivery = next(consumer)
            counts |= dict.fromkeys(delivery.offsets, delivery.delivery_count)
            consumer.accept(delivery)
    return counts


@async_in_soak
def test_what_is_released_and_what_is_left_at_the_end_costs_one_delivery(
    wings: Client, topic: Topic
) -> None:
    wings.create_share_group("billing", topic, EARLIEST)
    with wings.share_consumer("billing", topic, timeout=60) as consumer:
        delivery = next(consumer)
        consumer.release(delivery, rows=0)
        consumer.renew(delivery, rows=1)  # It would have come by the time of the answer.
    assert counts_of(wings, topic, 10) == dict.fromkeys(range(10), 2)


@async_in_soak
def test_what_came_ahead_and_was_never_taken_costs_none(wings: Client, topic: Topic) -> None:
    wings.create_share_group("billing", topic, EARLIEST)
    with wings.share_consumer("billing", topic, max_messages=1, prefetch=3, timeout=60) as consumer:
        assert next(consumer).offsets == [0]
        until(lambda: wings.share_group("billing", topic).partitions[0].in_flight == 4)
    assert counts_of(wings, topic, 10) == {0: 2, **dict.fromkeys(range(1, 10), 1)}


@async_in_soak
def test_what_is_released_comes_to_a_consumer_that_waits_for_more(
    wings: Client, topic: Topic
) -> None:
    wings.create_share_group("billing", topic, EARLIEST)
    with wings.share_consumer("billing", topic, timeout=60) as consumer:
        first = next(consumer)
        releasing = threading.Timer(0.2, lambda: consumer.release(first, rows=3))
        releasing.start()
        again = next(consumer)
        releasing.join()
        assert (again.offsets, again.delivery_count) == ([3], 2)
        consumer.release(again, wait=False)
        assert next(consumer).delivery_count == 3


@async_in_soak
def test_a_released_message_comes_after_its_delay(wings: Client, topic: Topic) -> None:
    wings.create_share_group("billing", topic, EARLIEST)
    with wings.share_consumer("billing", topic, timeout=0, max_messages=1) as consumer:
        delivery = next(iter(consumer))
        consumer.release(delivery, delay=2)
        second = next(iter(consumer))
    assert numbers([delivery, second]) == [0, 1]
    with wings.share_consumer("billing", topic, timeout=60) as consumer:
        taken: list[int] = []
        for found in islice(iter(consumer), 20):
            taken += numbers([found])
            consumer.accept(found)
            if 0 in taken:
                break
    assert 0 in taken


def test_a_waiting_consumer_gets_what_is_pushed(wings: Client, topic: Topic) -> None:
    wings.create_share_group("billing", topic)
    found: list[int] = []

    def work() -> None:
        with wings.share_consumer("billing", topic, timeout=100) as consumer:
            delivery = next(iter(consumer))
            found.extend(numbers([delivery]))
            consumer.accept(delivery)

    thread = threading.Thread(target=work)
    thread.start()
    wings.push(topic, {"n": [10, 11]})
    thread.join(100)
    assert found == [10, 11]


def test_closing_ends_the_wait_of_another_thread(wings: Client, topic: Topic) -> None:
    wings.create_share_group("billing", topic)
    consumer = wings.share_consumer("billing", topic)
    ended: list[list[Delivery]] = []
    waiting = threading.Thread(target=lambda: ended.append(list(consumer)))
    waiting.start()
    consumer.close()
    waiting.join(30)
    assert ended == [[]]


@async_in_soak
def test_two_consumers_get_each_message_once(wings: Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    wings.push(topic, {"n": list(range(500))})
    wings.create_share_group("billing", topic, EARLIEST)
    taken: list[int] = []

    def work() -> None:
        with wings.share_consumer("billing", topic, timeout=0.2, max_messages=7) as consumer:
            for delivery in consumer:
                consumer.accept(delivery)
                taken.extend(numbers([delivery]))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(taken) == list(range(500))


def test_a_consumer_of_one_partition_gets_no_others(wings: Client, new_topic: NewTopic) -> None:
    topic = new_topic("key: binary", "n: int64", partition_key="key")
    wings.push(topic, {"key": [b"a", b"b", b"a"], "n": [0, 1, 2]})
    wings.create_share_group("billing", topic, EARLIEST)
    with wings.share_consumer("billing", topic, partition=b"a", timeout=0) as consumer:
        assert numbers(consumer) == [0, 2]


@async_in_soak
def test_groups_are_created_changed_listed_and_deleted(wings: Client, topic: Topic) -> None:
    created = wings.create_share_group("billing", topic, {"delivery_limit": 3})
    assert (created.name, created.topic) == ("billing", topic.name)
    assert created.config["delivery_limit"] == 3
    with pytest.raises(AlreadyExists):
        wings.create_share_group("billing", topic)
    assert wings.create_share_group("billing", topic, if_not_exists=True) == created
    altered = wings.alter_share_group("billing", topic, {"lock_duration_ms": 2_000})
    assert (altered.config["delivery_limit"], altered.config["lock_duration_ms"]) == (3, 2_000)
    # What is the default is a change too.
    for changes in (
        {"ordering": "partition", "delivery_limit": 7, "dlq_topic": f"{topic.name}-dead"},
        {"ordering": "none", "delivery_limit": 5, "dlq_topic": None},
    ):
        config = wings.alter_share_group("billing", topic, changes).config
        assert {key: config[key] for key in changes} == changes
    assert [group.name for group in wings.share_groups(topic)] == ["billing"]
    assert topic.name in [group.topic for group in wings.share_groups()]
    wings.delete_share_group("billing", topic)
    assert wings.share_groups(topic) == []
    with pytest.raises(GroupNotFound):
        wings.share_group("billing", topic)
    with (
        pytest.raises(GroupNotFound),
        wings.share_consumer("billing", topic, timeout=0) as consumer,
    ):
        list(consumer)
    with pytest.raises(InvalidArgument, match="delivery_limit"):
        wings.create_share_group("billing", topic, {"delivery_limit": 0})
    with pytest.raises(SchemaMismatch):
        wings.redrive(topic)


@async_in_soak
def test_dead_letters_are_sent_back_once(wings: Client, topic: Topic) -> None:
    dead = f"{topic.id}-dead"
    wings.create_share_group("billing", topic, {**EARLIEST, "dlq_topic": dead})
    with wings.share_consumer("billing", topic, timeout=0) as consumer:
        (delivery,) = consumer
        consumer.reject(delivery, rows=[1, 2])
        consumer.accept(delivery, rows=[0, *range(3, 10)])
    assert wings.redrive(dead, filter="source_offset = 1").redriven == 1
    done = wings.redrive(dead)
    assert (done.redriven, done.already_redriven, done.failed) == (1, 1, 0)
    with wings.share_consumer("billing", topic, timeout=0) as consumer:
        assert sorted(numbers(consumer)) == [1, 2]


@async_in_soak
def test_dead_letters_are_sent_to_another_topic_once_and_at_a_rate(
    wings: Client, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic()
    other = wings.create_topic(f"{topic.id}-other", {"n": "int64"})
    third = wings.create_topic(f"{topic.id}-third", {"n": "int64", "m": "int64"})
    dead = f"{topic.id}-dead"
    wings.create_share_group("billing", topic, {"start": "earliest", "dlq_topic": dead})
    wings.push(topic, {"n": list(range(10))})
    with wings.share_consumer("billing", topic, timeout=60) as consumer:
        delivery = next(iter(consumer))
        consumer.reject(delivery, rows=slice(0, 8), reason="bad")
        consumer.reject(delivery, rows=slice(8, 10), reason="worse")
    clock = [0.0]

    def slept(seconds: float) -> None:
        clock[0] += seconds

    monkeypatch.setattr(_share, "monotonic", lambda: clock[0])
    monkeypatch.setattr(_share, "sleep", slept)
    done = wings.redrive(dead, filter="error = 'bad'", to=other, rate=0.5)
    assert (done.redriven, done.failed) == (8, 0)
    assert clock[0] == 16.0, "the two that are left out are read too, without a pause"
    assert wings.fetch(other, offset=0).table.column("n").to_pylist() == list(range(8))
    again = wings.redrive(dead, to=other)
    assert (again.redriven, again.already_redriven) == (2, 8)
    assert wings.redrive(dead).redriven == 10, "it is another topic"
    refused = wings.redrive(dead, to=third)
    assert (refused.redriven, refused.failed) == (0, 10)
    with pytest.raises(TopicNotFound):
        wings.redrive(dead, to="nowhere")
    with pytest.raises(InvalidArgument):
        wings.redrive(dead, rate=0)


class Renewals:
    """The renewals of all consumers: each may be kept from the server, and their answers."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.go = threading.Event()
        self.ended = threading.Event()
        self.ranges: list[list[tuple[int, int]]] = []
        self.refused = 0

    def __call__(self, *args: Any, **keywords: Any) -> list[Any]:
        entries = args[4]
        if entries[0].type != "renew":
            return self.settle(*args, **keywords)
        self.begun.set()
        self.go.wait(0.1)
        errors = acknowledge(*args, **keywords)
        self.ranges.append([(entry.first, entry.last) for entry in entries])
        self.refused += any(isinstance(error, InvalidRecordState) for error in errors)
        self.ended.set()
        return errors

    def settle(self, *args: Any, **keywords: Any) -> list[Any]:
        return acknowledge(*args, **keywords)

    def wait(self) -> None:
        """Block until another has ended."""
        self.ended.clear()
        assert self.ended.wait(60)


@pytest.fixture
def renewals(monkeypatch: pytest.MonkeyPatch) -> Renewals:
    renewals = Renewals()
    monkeypatch.setattr("wings_client._share_engine.acknowledge", renewals)
    return renewals


@async_in_soak
def test_rows_that_are_settled_amid_a_renewal_do_not_spoil_it(
    wings: Client, topic: Topic, renewals: Renewals
) -> None:
    wings.create_share_group("billing", topic, {**EARLIEST, "lock_duration_ms": UNHURRIED})
    with wings.share_consumer("billing", topic, timeout=0) as consumer:
        (delivery,) = consumer
        assert renewals.begun.wait(60)
        consumer.accept(delivery, rows=0)
        renewals.go.set()
        assert renewals.ended.wait(60)
        assert renewals.refused == 0
        consumer.accept(delivery, rows=slice(1, None))
    assert lag(wings, topic) == 0


@async_in_soak
def test_a_renewal_leaves_out_what_is_being_settled(
    wings: Client, topic: Topic, renewals: Renewals, monkeypatch: pytest.MonkeyPatch
) -> None:
    def settle(*args: Any, **keywords: Any) -> list[Any]:
        errors = acknowledge(*args, **keywords)
        for _ in range(3):  # The answer is under way; the first one may have begun before.
            renewals.wait()
            if [(0, 2), (4, 9)] in renewals.ranges:
                break
        return errors

    wings.create_share_group("billing", topic, {**EARLIEST, "lock_duration_ms": UNHURRIED})
    with wings.share_consumer("billing", topic, timeout=0) as consumer:
        (delivery,) = consumer
        with monkeypatch.context() as patch:
            patch.setattr(renewals, "settle", settle)
            consumer.accept(delivery, rows=3)
        assert [(0, 2), (4, 9)] in renewals.ranges
        assert renewals.refused == 0


@async_in_soak
def test_rows_of_which_nothing_is_known_do_not_keep_others_from_being_renewed(
    wings: Client, topic: Topic, renewals: Renewals, monkeypatch: pytest.MonkeyPatch
) -> None:
    def settle(*args: Any, **keywords: Any) -> list[Any]:
        acknowledge(*args, **keywords)
        raise Unavailable("the answer is lost")

    wings.create_share_group("billing", topic, {**EARLIEST, "lock_duration_ms": UNHURRIED})
    with wings.share_consumer("billing", topic, timeout=0) as consumer:
        (delivery,) = consumer
        with monkeypatch.context() as patch:
            patch.setattr(renewals, "settle", settle)
            with pytest.raises(Unavailable):
                consumer.accept(delivery, rows=0)
        renewals.go.set()
        while [(1, 9)] not in renewals.ranges:
            renewals.wait()
        consumer.accept(delivery, rows=slice(1, None))
    assert lag(wings, topic) == 0


@async_in_soak
def test_rows_whose_settling_was_refused_are_still_renewed(
    wings: Client, topic: Topic, renewals: Renewals
) -> None:
    wings.create_share_group("billing", topic, {**EARLIEST, "lock_duration_ms": UNHURRIED})
    with wings.share_consumer("billing", topic, timeout=0) as consumer:
        (delivery,) = consumer
        consumer.accept(delivery, rows=0)
        with pytest.raises(InvalidRecordState):
            consumer.accept(delivery, rows=[0, 1])
        renewals.go.set()
        while [(1, 9)] not in renewals.ranges:
            renewals.wait()


@async_in_soak
@pytest.mark.parametrize("is_known", [True, False], ids=["known", "new"])
def test_a_silent_server_takes_no_longer_than_the_wait_and_the_time_out_of_the_client(
    connect: Connect, tmp_path: Path, is_known: bool
) -> None:
    with server_process(tmp_path) as server, connect(server.flight, timeout=1) as client:
        with connect(server.flight) as patient:
            patient.create_topic("t", {"n": "int64"})
            patient.create_share_group("billing", "t", EARLIEST)
        if is_known:
            client.push("t", {"n": [0, 1]})
        consumer = client.share_consumer("billing", "t", max_messages=1, timeout=1)
        if is_known:
            next(consumer)
        os.kill(server.pid, signal.SIGSTOP)
        try:
            begun = time.monotonic()
            with pytest.raises(Unavailable), consumer:
                list(consumer)
            consumed = time.monotonic()
            with pytest.raises(Unavailable):
                client.acquire_messages("billing", "t", "one", timeout=1)
            acquired = time.monotonic()
        finally:
            os.kill(server.pid, signal.SIGCONT)
    assert (consumed - begun) < 5, "two seconds, and some for a busy machine"
    assert (acquired - consumed) < 5
