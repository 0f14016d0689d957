"""Kafka's clients at three nodes of a metadata service, one of which is killed."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import confluent_kafka as ck
import pytest
from confluent_kafka.admin import AdminClient
from test_kafka import LATER, Rdkafka, connected, taken
from waiting import until

from wings_server.kafka.messages import Api
from wings_server.testing import ServerProcess, metadata_process, server_process

NODES = 3
PARTITIONS = 6
RECORDS = 360
FAST = {"WINGS_NODE_LEASE_SECONDS": "2"}


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[ServerProcess]]:
    with ExitStack() as stack:
        metadata = stack.enter_context(metadata_process(tmp_path / "metadata"))
        flags = ("--metadata", metadata.address, "--kafka", "127.0.0.1:0")
        started = [
            stack.enter_context(server_process(tmp_path / "pages", flags=flags, environment=FAST))
            for _ in range(NODES)
        ]
        for node in started:
            until(lambda node=node: len(brokers(node)) == NODES)
        yield started


def brokers(node: ServerProcess) -> dict[int, str]:
    """Return the brokers that a node lists."""
    with connected(node.kafka) as connection:
        listed = connection.ask(Api.METADATA, 4, topics=[]).brokers
    return {each.node_id: f"{each.host}:{each.port}" for each in listed}


def everywhere(nodes: list[ServerProcess]) -> Rdkafka:
    return Rdkafka(",".join(node.kafka for node in nodes))


@pytest.mark.timeout(240)
def test_all_nodes_list_each_other_and_agree_on_leaders(
    nodes: list[ServerProcess], new_topic_id: str
) -> None:
    everywhere(nodes).create(new_topic_id, 30)
    listed = brokers(nodes[0])
    assert set(listed.values()) == {node.kafka for node in nodes}
    leaders: list[list[int]] = []
    for node in nodes:
        assert brokers(node) == listed
        with connected(node.kafka) as connection:
            (topic,) = connection.ask(Api.METADATA, 4, topics=[{"name": new_topic_id}]).topics
            leaders.append([each.leader_id for each in topic.partitions])
            found = connection.ask(Api.FIND_COORDINATOR, 2, key="writer", key_type=1)
            assert found.node_id in listed
            cluster = connection.ask(Api.DESCRIBE_CLUSTER, 0)
            assert {each.broker_id for each in cluster.brokers} == set(listed)
            assert listed[cluster.controller_id] == node.kafka
    assert leaders[0] == leaders[1] == leaders[2]
    assert set(leaders[0]) == set(listed)
    # Any serves any, also what it does not lead.
    for number, node in enumerate(nodes):
        own = Rdkafka(node.kafka)
        own.produce(new_topic_id, [{"value": b"%d" % number, "partition": 7}])
        assert [each.value() for each in own.consume(new_topic_id, number + 1, 7)] == [
            b"%d" % each for each in range(number + 1)
        ]


@pytest.mark.timeout(240)
def test_only_the_coordinator_serves_a_group(nodes: list[ServerProcess], new_topic_id: str) -> None:
    rdkafka = everywhere(nodes)
    rdkafka.create(new_topic_id, 1)
    with closing(rdkafka.consumer(new_topic_id)) as consumer:
        consumer.subscribe([new_topic_id])
        rdkafka.produce(new_topic_id, [b"one"])
        taken(consumer, 1)
        consumer.commit(asynchronous=False)
        at = coordinator(nodes, new_topic_id)
        offsets = [{"partition_index": 0, "committed_offset": 0}]
        topics = [{"name": new_topic_id, "partitions": offsets}]
        for node in nodes:
            if node is at:
                continue
            group: dict[str, Any] = {"group_id": new_topic_id}
            with connected(node.kafka) as connection:
                known = {**group, "generation_id": 1, "member_id": "one"}
                assert connection.ask(Api.HEARTBEAT, 1, **known).error_code.value == 16
                (topic,) = connection.ask(Api.OFFSET_COMMIT, 2, **group, topics=topics).topics
                assert topic.partitions[0].error_code.value == 16  # NOT_COORDINATOR
                (described,) = connection.ask(Api.DESCRIBE_GROUPS, 0, groups=[new_topic_id]).groups
                assert described.error_code.value == 16
                assert connection.ask(Api.LIST_GROUPS, 0).groups == ()
        admin = AdminClient(rdkafka.config)
        (listed,) = admin.list_consumer_groups().result(LATER).valid
        assert (listed.group_id, listed.state.name) == (new_topic_id, "STABLE")


def coordinator(nodes: list[ServerProcess], group: str) -> ServerProcess:
    """Return the node that coordinates a group."""
    with connected(nodes[0].kafka) as connection:
        found = connection.ask(Api.FIND_COORDINATOR, 2, key=group)
    assert found.error_code.value == 0
    return next(node for node in nodes if node.kafka == f"{found.host}:{found.port}")


class Readers:
    """Members of a group, each in a thread, that commit after each message."""

    def __init__(self, rdkafka: Rdkafka, topic: str, protocol: str) -> None:
        self.seen: dict[tuple[int, int], bytes] = {}
        self.counted: Counter[tuple[int, int]] = Counter()
        """Messages whose commit was acknowledged."""
        self._rdkafka, self._topic = rdkafka, topic
        self._config: dict[str, Any] = {"group.protocol": protocol}
        if protocol == "classic":
            self._config |= {"session.timeout.ms": 6_000, "heartbeat.interval.ms": 1_000}
        self._done = threading.Event()
        self._threads = [threading.Thread(target=self._read) for _ in range(NODES)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join(LATER)

    def _read(self) -> None:
        with closing(self._rdkafka.consumer(self._topic, **self._config)) as consumer:
            consumer.subscribe([self._topic])
            while not self._done.is_set():
                message = consumer.poll(0.2)
                if message is not None and message.error() is None:
                    self._take(consumer, message)

    def _take(self, consumer: ck.Consumer, message: Any) -> None:
        at = message.partition(), message.offset()
        assert self.seen.setdefault(at, message.value()) == message.value()
        # Refused: another member has the partition, and reads it again.
        with suppress(ck.KafkaException):
            consumer.commit(message=message, asynchronous=False)
            self.counted[at] += 1


@pytest.mark.timeout(400)
@pytest.mark.parametrize("protocol", ["classic", pytest.param("consumer", marks=pytest.mark.soak)])
def test_a_group_goes_on_though_its_coordinator_is_killed(
    nodes: list[ServerProcess], new_topic_id: str, protocol: str
) -> None:
    rdkafka = everywhere(nodes)
    rdkafka.create(new_topic_id, PARTITIONS)
    producer = ck.Producer({**rdkafka.config, "enable.idempotence": True, "linger.ms": 20})
    acknowledged: dict[tuple[int, int], bytes] = {}

    def delivered(error: Any, message: Any) -> None:
        assert error is None, error
        acknowledged[message.partition(), message.offset()] = message.value()

    def produce(first: int) -> None:
        for number in range(first, first + RECORDS // 3):
            partition = number % PARTITIONS
            value = b"%d" % number
            producer.produce(new_topic_id, value, partition=partition, on_delivery=delivered)
            producer.poll(0)

    readers = Readers(rdkafka, new_topic_id, protocol)
    try:
        produce(0)
        assert producer.flush(LATER) == 0
        until(lambda: len({partition for partition, _ in readers.counted}) == PARTITIONS)
        produce(RECORDS // 3)
        killed = coordinator(nodes, new_topic_id)
        killed.kill()
        produce(2 * RECORDS // 3)
        assert producer.flush(2 * LATER) == 0
        until(lambda: len(readers.seen) >= RECORDS)
        left = [node for node in nodes if node is not killed]
        assert coordinator(left, new_topic_id) in left
    finally:
        readers.stop()
    assert readers.seen == acknowledged
    assert set(readers.counted.values()) == {1}
    each = RECORDS // PARTITIONS
    for partition in range(PARTITIONS):
        values = [int(acknowledged[partition, offset]) for offset in range(each)]
        assert values == [*range(partition, RECORDS, PARTITIONS)]
