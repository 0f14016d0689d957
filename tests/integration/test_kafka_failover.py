"""Kafka's producers while PostgreSQL fails over: nothing acknowledged is lost, doubled or cut."""

import threading
from collections import Counter
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import confluent_kafka as ck
import pytest
from fix_postgres import postgres_server
from test_kafka import Rdkafka
from waiting import until

from wings_server.testing import node_process

PARTITIONS = 3
MORE = 60
"""Batches, and transactions, that are acknowledged before the failover and after it."""


class Load:
    """A producer and a writer of transactions, which count up until they are to end.

    Attributes:
        produced: Values that were acknowledged.
        committed: Numbers of transactions that were acknowledged.
        unknown: Numbers of those whose commit was not answered.
    """

    def __init__(self, rdkafka: Rdkafka, topic: str) -> None:
        self._rdkafka = rdkafka
        self._topic = topic
        self._ended = threading.Event()
        self.produced: list[bytes] = []
        self.committed: list[int] = []
        self.unknown: set[int] = set()

    @contextmanager
    def running(self) -> Generator[None]:
        """Run both within the block."""
        with ThreadPoolExecutor(2) as threads:
            runs = [threads.submit(self._produce), threads.submit(self._commit)]
            try:
                yield
            finally:
                self._ended.set()
            for run in runs:
                run.result()

    def goes_on(self) -> None:
        """Wait until more of both is acknowledged."""
        produced, committed = len(self.produced), len(self.committed)
        until(
            lambda: len(self.produced) > produced + MORE and len(self.committed) > committed + MORE,
            seconds=90,
        )

    def _produce(self) -> None:
        producer = ck.Producer({**self._rdkafka.config, "enable.idempotence": True})
        number = 0

        def delivered(error: ck.KafkaError | None, message: ck.Message) -> None:
            if error is None:
                value = message.value()
                assert isinstance(value, bytes)
                self.produced.append(value)

        while not self._ended.is_set():
            for partition in range(PARTITIONS):
                value = b"%d-%d" % (partition, number)
                producer.produce(self._topic, value, partition=partition, on_delivery=delivered)
            number += 1
            producer.poll(0.01)
        assert producer.flush(60) == 0

    def _commit(self) -> None:
        producer = self._writer()
        number = 0
        while not self._ended.is_set():
            number += 1
            try:
                producer.begin_transaction()
                for partition in range(PARTITIONS):
                    value = b"txn-%d" % number
                    producer.produce(self._topic, value, partition=partition)
                if number % 5 == 0:
                    producer.abort_transaction(30)
                    continue
                self.unknown.add(number)
                producer.commit_transaction(30)
            except ck.KafkaException as error:
                if not error.args[0].txn_requires_abort():
                    producer = self._writer()
                    continue
                producer.abort_transaction(30)
            else:
                self.unknown.discard(number)
                self.committed.append(number)

    def _writer(self) -> ck.Producer:
        producer = ck.Producer({**self._rdkafka.config, "transactional.id": "writer"})
        producer.init_transactions(60)
        return producer


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_records_outlive_a_failover_of_postgres(tmp_path: Path) -> None:
    with (
        postgres_server(sync=True) as primary,
        primary.standby() as standby,
    ):
        both = f"127.0.0.1:{primary.port},127.0.0.1:{standby.port}"
        url = primary.new_database().replace(f"127.0.0.1:{primary.port}", both)
        objects, flags = (tmp_path / "objects").as_uri(), ("--kafka", "127.0.0.1:0")
        target = f"{url}?target_session_attrs=read-write"
        with node_process(target, objects, flags=flags) as node:
            rdkafka = Rdkafka(node.kafka)
            rdkafka.create("load", PARTITIONS)
            load = Load(rdkafka, "load")
            with load.running():
                load.goes_on()
                primary.kill()
                standby.promote()
                primary.follow(standby)
                load.goes_on()
            found = {partition: values_of(rdkafka, partition) for partition in range(PARTITIONS)}
    everything = Counter(value for values in found.values() for value in values)
    assert all(everything[value] == 1 for value in load.produced)
    transactions = Counter(
        {value: count for value, count in everything.items() if value.startswith(b"txn-")}
    )
    assert set(transactions.values()) == {PARTITIONS}
    numbers = {int(value.removeprefix(b"txn-")) for value in transactions}
    assert set(load.committed) <= numbers <= set(load.committed) | load.unknown
    for partition, values in found.items():
        plain = [int(each.split(b"-")[1]) for each in values if each.startswith(b"%d-" % partition)]
        assert plain == sorted(set(plain))


def values_of(rdkafka: Rdkafka, partition: int) -> list[bytes]:
    """Return the values of a partition, by a consumer of their own."""
    config: dict[str, Any] = {"enable.partition.eof": True}
    consumer = rdkafka.consumer(**config)
    consumer.assign([ck.TopicPartition("load", partition, 0)])
    values: list[bytes] = []
    while True:
        message = consumer.poll(30)
        assert message is not None
        error = message.error()
        if error is not None:
            assert error.code() == ck.KafkaError._PARTITION_EOF
            consumer.close()
            return values
        value = message.value()
        assert isinstance(value, bytes)
        values.append(value)
