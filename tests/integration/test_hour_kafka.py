"""The first hour of someone from Kafka: their own clients, and the same rows as Arrow and SQL."""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import confluent_kafka as ck
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from fix_commands import Command

import wings_client
from wings_client import Client
from wings_server.testing import RunningServer

pytestmark = pytest.mark.server(kafka=True)

LATER = 60.0
"""How long what is awaited may take on a busy machine."""


@pytest.fixture
def wings(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """A client, beside a shell."""
    monkeypatch.setenv("WINGS_ENDPOINT", server.flight)
    with wings_client.connect(server.flight) as client:
        yield client


@pytest.fixture
def kafka(server: RunningServer) -> dict[str, Any]:
    return {"bootstrap.servers": server.kafka, "log_level": 0}


def polled(until: Callable[[], bool], *consumers: ck.Consumer, found: list[bytes]) -> None:
    """Poll consumers until something holds; adds the values that they get to a list."""
    end = time.monotonic() + LATER
    while not until():
        assert time.monotonic() < end, found
        for consumer in consumers:
            message = consumer.poll(0.02)
            if message is not None:
                assert message.error() is None, message.error()
                found.append(message.value() or b"")


def produced(kafka: dict[str, Any]) -> None:
    """A topic of four partitions, created by the admin client, and twenty records with keys."""
    admin = AdminClient(kafka)
    admin.create_topics([NewTopic("clicks", 4, 1)])["clicks"].result(LATER)
    producer = ck.Producer({**kafka, "enable.idempotence": True, "linger.ms": 1})
    for number in range(20):
        record: dict[str, Any] = {"key": f"user-{number % 7}", "headers": {"page": b"home"}}
        producer.produce("clicks", f"click {number}", **record)
    assert producer.flush(LATER) == 0


def shared(kafka: dict[str, Any], wings: Client, command: Command) -> None:
    """Two members have half of the partitions each; both clients tell the lag."""
    group = {"group.id": "site", "auto.offset.reset": "earliest"}
    both = [ck.Consumer({**kafka, **group}) for _ in range(2)]
    got: list[bytes] = []
    with closing(both[0]), closing(both[1]):  # Which commits, as usual.
        for consumer in both:
            consumer.subscribe(["clicks"])
        polled(lambda: {len(each.assignment()) for each in both} == {2}, *both, found=got)
        polled(lambda: len(set(got)) == 20, *both, found=got)
    assert wings.consumer_lag("kafka:site").lag == 0
    wings.push("clicks", {"partition": [0, 1], "value": [b"from Arrow", b"from Arrow"]})
    assert wings.consumer_lag("kafka:site").lag == 2
    assert "kafka:site" in command("group", "list").out
    assert re.search(r"clicks\W+2", command("group", "lag", "kafka:site").out)
    with closing(ck.Consumer({**kafka, **group})) as back:
        back.subscribe(["clicks"])
        got.clear()
        polled(lambda: len(got) == 2, back, found=got)
        assert got == [b"from Arrow"] * 2


def read_as_arrow(wings: Client, command: Command) -> None:
    """The same records are rows of a client, of SQL, and of a group at a shell."""
    rows = wings.read("clicks").to_arrow().to_pylist()
    assert sorted(int(each["value"].split()[1]) for each in rows) == list(range(20))
    assert rows[0]["headers"] == [{"key": "page", "value": b"home"}]
    keys = "SELECT count(DISTINCT CAST(key AS VARCHAR)) FROM clicks"
    assert wings.sql(keys).to_arrow().to_pydict().popitem()[1] == [7]
    shown = ("--group", "--format", "jsonl", "--timeout", "300ms", "--columns", "partition")
    consumed = command("consume", "report", "clicks", *shown)
    assert consumed.status == 0, consumed
    assert len(consumed.out.splitlines()) == 20
    assert command("consume", "report", "clicks", *shown).out == ""


def transacted(kafka: dict[str, Any], wings: Client) -> None:
    """Rows of an aborted transaction are seen by nobody, of a committed one by all."""
    admin = AdminClient(kafka)
    admin.create_topics([NewTopic("orders", 1, 1)])["orders"].result(LATER)
    producer = ck.Producer({**kafka, "transactional.id": "shop", "linger.ms": 1})
    producer.init_transactions(LATER)
    for value, ended in (
        (b"lost", producer.abort_transaction),
        (b"paid", producer.commit_transaction),
    ):
        producer.begin_transaction()
        producer.produce("orders", value, partition=0)
        producer.flush(LATER)
        assert value not in wings.read("orders").to_arrow()["value"].to_pylist()
        ended(LATER)
    assert wings.read("orders").to_arrow()["value"].to_pylist() == [b"paid"]
    reader = {"group.id": "till", "isolation.level": "read_committed"}
    with closing(ck.Consumer({**kafka, **reader})) as consumer:
        consumer.assign([ck.TopicPartition("orders", 0, ck.OFFSET_BEGINNING)])
        (message,) = consumer.consume(1, LATER)
        assert message.value() == b"paid"


def test_an_hour_from_kafka(kafka: dict[str, Any], wings: Client, command: Command) -> None:
    produced(kafka)
    read_as_arrow(wings, command)
    shared(kafka, wings, command)
    transacted(kafka, wings)
