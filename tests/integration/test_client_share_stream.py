"""The share consumer over its stream, against a real server."""

import asyncio
import gc
import logging
import threading
from pathlib import Path

import pyarrow.flight as flight
import pytest
from fix_client import NewTopic

import wings_client
from wings_client import Client, Topic
from wings_core.errors import GroupNotFound, InvalidRecordState
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


def test_after_a_time_out_nothing_is_held_that_nobody_takes(wings: Client, topic: Topic) -> None:
    with wings.share_consumer("billing", topic, timeout=0.05) as consumer:
        for delivery in consumer:
            consumer.accept(delivery)
        wings.push(topic, {"n": [10, 11]})
        with wings.share_consumer("billing", topic, timeout=0) as other:
            assert next(other).offsets == [10, 11]


def test_a_consumer_that_is_forgotten_releases_at_once(wings: Client, topic: Topic) -> None:
    consumer = wings.share_consumer("billing", topic, timeout=20)
    assert len(next(consumer)) == 10
    del consumer
    gc.collect()
    with wings.share_consumer("billing", topic, timeout=20) as other:
        again = next(other)
    assert (again.offsets, again.delivery_count) == ([*range(10)], 2)


def test_several_threads_acknowledge_what_one_takes(wings: Client, topic: Topic) -> None:
    wings.push(topic, {"n": list(range(10, 200))})
    with wings.share_consumer("billing", topic, max_messages=1, timeout=1) as consumer:
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


def test_a_deleted_group_ends_the_wait(wings: Client, topic: Topic) -> None:
    with wings.share_consumer("billing", topic, timeout=20) as consumer:
        consumer.accept(next(consumer))
        wings.delete_share_group("billing", topic)
        with pytest.raises(GroupNotFound):
            next(consumer)


@pytest.mark.parametrize("how", ["terminate", "kill"])
def test_a_consumer_outlives_its_server(tmp_path: Path, how: str) -> None:
    with server_process(tmp_path / "data") as server:
        client = wings_client.connect(server.flight)
        client.create_topic("t", {"n": "int64"})
        config = {"start": "earliest", "lock_duration_ms": 1_000}
        client.create_share_group("billing", "t", config)
        client.push("t", {"n": [0]})
        consumer = client.share_consumer("billing", "t", timeout=60)
        consumer.accept(next(consumer))
        taken: list[int] = []
        waiting = threading.Thread(target=lambda: taken.extend(next(consumer).offsets))
        waiting.start()
        getattr(server, how)()
        address = server.flight.removeprefix("grpc://")
    with server_process(tmp_path / "data", flags=["--flight", address]):
        client.push("t", {"n": [1]})
        waiting.join(60)
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
        with client.share_consumer("billing", "t", timeout=0.1) as consumer:
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
