"""Transactions of Kafka's clients, unmodified (librdkafka), against a server that may be killed."""

import random
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import confluent_kafka as ck
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from held_address import held_address

import wings_client
from wings_core.names import DEFAULT_NAMESPACE, TopicName
from wings_server.testing import RunningServer

pytestmark = pytest.mark.server(kafka=True)

LATER = 60.0
"""How long what is awaited may take on a busy machine."""


def ignored(_: object) -> None:
    """Take an error that a client reports besides; without this, it is raised in callbacks."""


class Clients:
    """Clients of one server."""

    def __init__(self, address: str) -> None:
        self.config: dict[str, Any] = {
            "bootstrap.servers": address,
            "log_level": 0,
            "error_cb": ignored,
            "reconnect.backoff.ms": 50,
            "reconnect.backoff.max.ms": 200,
        }

    def create(self, *names: str, partitions: int = 1) -> None:
        admin = AdminClient(self.config)  # It must outlive its futures.
        made = admin.create_topics([NewTopic(name, partitions, 1) for name in names])
        for future in made.values():
            future.result(LATER)

    def producer(self, transactional_id: str, **config: Any) -> ck.Producer:
        """Return a producer that has joined its id."""
        own = {"transactional.id": transactional_id, "linger.ms": 1}
        producer = ck.Producer({**self.config, **own, **config})
        producer.init_transactions(LATER)
        return producer

    def consumer(self, group: str, **config: Any) -> ck.Consumer:
        own = {
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
        return ck.Consumer({**self.config, **own, **config})

    def values(self, topic: str, partition: int = 0, **config: Any) -> list[bytes]:
        """Return the values that are visible of a partition; offsets have no gaps."""
        return [value for _, value in self.records(topic, partition, **config)]

    def records(
        self, topic: str, partition: int = 0, **config: Any
    ) -> list[tuple[bytes | None, bytes]]:
        """Return the keys and values that are visible of a partition."""
        found: list[tuple[bytes | None, bytes]] = []
        with closing(self.consumer("nobody", **config)) as consumer:
            consumer.assign([ck.TopicPartition(topic, partition, 0)])
            end = time.monotonic() + LATER
            while time.monotonic() < end:
                message = consumer.poll(0.1)
                if message is None:
                    continue
                error = message.error()
                if error is None:
                    assert message.offset() == len(found)
                    key, value = message.key(), message.value() or b""
                    assert not isinstance(key, str)
                    assert isinstance(value, bytes)
                    found.append((key, value))
                elif error.code() == ck.KafkaError._PARTITION_EOF:
                    return found
        raise AssertionError("the end of the partition does not come")

    def committed(self, group: str, topic: str, timeout: float = LATER) -> int:
        with closing(self.consumer(group)) as consumer:
            (found,) = consumer.committed([ck.TopicPartition(topic, 0)], timeout)
            return found.offset


@pytest.fixture
def clients(server: RunningServer) -> Clients:
    return Clients(server.kafka)


def code_of(call: Callable[[], object]) -> tuple[int, bool]:
    """Return the code of a refusal, and whether it is fatal to the client."""
    with pytest.raises(ck.KafkaException) as caught:
        call()
    error = caught.value.args[0]
    return error.code(), error.fatal()


def test_what_runs_each_second_goes_on_after_a_fault(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: SimpleQueue[int] = SimpleQueue()

    def expire(most: int) -> int:
        asked.put(most)
        raise TypeError("a bug")

    monkeypatch.setattr(server.server.log.metadata.transactions, "expire", expire)
    for _ in range(2):
        asked.get(timeout=LATER)


def test_a_transaction_is_visible_once_it_is_committed_and_not_before(
    clients: Clients, server: RunningServer, new_topic_id: str
) -> None:
    one, two = f"{new_topic_id}-1", f"{new_topic_id}-2"
    clients.create(one, two, partitions=2)
    placed: list[tuple[str, int, int]] = []

    def delivered(error: Any, message: Any) -> None:
        assert error is None, error
        placed.append((message.topic(), message.partition(), message.offset()))

    producer = clients.producer(new_topic_id)
    for number, commits in enumerate((True, False, True)):
        producer.begin_transaction()
        for topic, partition in ((one, 0), (one, 1), (two, 0)):
            for each in range(3):
                value = f"{number} {each}".encode()
                producer.produce(topic, value, partition=partition, on_delivery=delivered)
        assert producer.flush(LATER) == 0
        for isolation in ("read_committed", "read_uncommitted"):
            config: dict[str, Any] = {"isolation.level": isolation}
            seen = clients.values(one, **config)
            assert len(seen) == (0, 3, 3)[number]
        if commits:
            producer.commit_transaction(LATER)
        else:
            producer.abort_transaction(LATER)
    expected = [f"{number} {each}".encode() for number in (0, 2) for each in range(3)]
    for topic, partition in ((one, 0), (one, 1), (two, 0)):
        assert clients.values(topic, partition) == expected
        offsets = [offset for *place, offset in placed if place == [topic, partition]]
        assert offsets == [0, 1, 2, 3, 4, 5, 3, 4, 5]  # Predicted within a transaction, and exact.
    assert clients.values(two, 1) == []
    with wings_client.connect(server.flight) as client:
        assert client.scan(two, partition=0).read_all()["value"].to_pylist() == expected


def test_rows_of_a_transaction_are_counted_when_it_commits(
    clients: Clients, server: RunningServer, new_topic_id: str
) -> None:
    clients.create(new_topic_id)
    traffic, name = server.server.log.traffic, TopicName.parse(new_topic_id)
    producer = clients.producer(new_topic_id)
    for end in (producer.abort_transaction, producer.commit_transaction):
        producer.begin_transaction()
        producer.produce(new_topic_id, b"1")
        producer.produce(new_topic_id, b"2")
        assert producer.flush(LATER) == 0
        assert traffic.of(name).rows_in == 0
        end(LATER)
    assert traffic.of(name).rows_in == 2
    assert traffic.of(name).bytes_in > 0


def test_offsets_of_a_group_are_committed_with_what_was_made_of_them(
    clients: Clients, new_topic_id: str
) -> None:
    source, target = f"{new_topic_id}-in", f"{new_topic_id}-out"
    clients.create(source, target)
    fill(clients, source, 10)
    producer = clients.producer(new_topic_id)
    with closing(clients.consumer(new_topic_id)) as consumer:
        consumer.subscribe([source])
        for commits in (False, True):
            taken = take(consumer, 5)
            producer.begin_transaction()
            for value in taken:
                producer.produce(target, b"made of " + value)
            position = consumer.position([ck.TopicPartition(source, 0)])
            producer.send_offsets_to_transaction(
                position, consumer.consumer_group_metadata(), LATER
            )
            if commits:
                # The next member is not told of an offset that is about to change (KIP-447).
                code, _ = code_of(lambda: clients.committed(new_topic_id, source, 0.5))
                assert code == ck.KafkaError._TIMED_OUT
                producer.commit_transaction(LATER)
            else:
                producer.abort_transaction(LATER)
                assert clients.committed(new_topic_id, source) == ck.OFFSET_INVALID
                consumer.seek(ck.TopicPartition(source, 0, 0))
    assert clients.committed(new_topic_id, source) == 5
    assert clients.values(target) == [f"made of {n}".encode() for n in range(5)]


def test_a_member_that_left_commits_no_offsets(clients: Clients, new_topic_id: str) -> None:
    clients.create(new_topic_id)
    fill(clients, new_topic_id, 1)
    producer = clients.producer(new_topic_id)
    with closing(clients.consumer(new_topic_id)) as consumer:
        consumer.subscribe([new_topic_id])
        take(consumer, 1)
        membership = consumer.consumer_group_metadata()
    producer.begin_transaction()
    offsets = [ck.TopicPartition(new_topic_id, 0, 1)]
    code, is_fatal = code_of(
        lambda: producer.send_offsets_to_transaction(offsets, membership, LATER)
    )
    assert code in {ck.KafkaError.UNKNOWN_MEMBER_ID, ck.KafkaError.ILLEGAL_GENERATION}
    assert not is_fatal
    producer.abort_transaction(LATER)


def test_a_producer_that_joins_fences_the_one_before_and_aborts_its_transaction(
    clients: Clients, new_topic_id: str
) -> None:
    clients.create(new_topic_id)
    first = clients.producer(new_topic_id)
    first.begin_transaction()
    first.produce(new_topic_id, b"lost")
    assert first.flush(LATER) == 0
    second = clients.producer(new_topic_id)
    assert code_of(lambda: first.commit_transaction(LATER)) == (ck.KafkaError._FENCED, True)
    second.begin_transaction()
    second.produce(new_topic_id, b"kept")
    second.commit_transaction(LATER)
    assert clients.values(new_topic_id) == [b"kept"]


def test_batches_of_a_fenced_producer_are_refused(clients: Clients, new_topic_id: str) -> None:
    clients.create(new_topic_id)
    first = clients.producer(new_topic_id)
    first.begin_transaction()
    first.produce(new_topic_id, b"one")
    assert first.flush(LATER) == 0
    clients.producer(new_topic_id)
    first.produce(new_topic_id, b"two")
    assert code_of(lambda: first.flush(LATER)) == (ck.KafkaError._FENCED, True)
    assert clients.values(new_topic_id) == []


def test_the_server_aborts_a_transaction_that_is_open_too_long(
    clients: Clients, server: RunningServer, new_topic_id: str
) -> None:
    clients.create(new_topic_id)
    producer = clients.producer(new_topic_id, **{"transaction.timeout.ms": 1_000})
    producer.begin_transaction()
    producer.produce(new_topic_id, b"late")
    assert producer.flush(LATER) == 0
    transactions = server.server.log.metadata.transactions
    end = time.monotonic() + LATER
    while True:
        found = transactions.find(f"{DEFAULT_NAMESPACE}/{new_topic_id}")
        assert found is not None
        if found.deadline is None:
            break
        assert time.monotonic() < end
    code, is_fatal = code_of(lambda: producer.commit_transaction(LATER))
    assert (code, is_fatal) == (ck.KafkaError._FENCED, True)
    again = clients.producer(new_topic_id)
    again.begin_transaction()
    again.produce(new_topic_id, b"in time")
    again.commit_transaction(LATER)
    assert clients.values(new_topic_id) == [b"in time"]


def test_time_outs_have_a_bound(clients: Clients) -> None:
    code, is_fatal = code_of(
        lambda: clients.producer("t", **{"transaction.timeout.ms": 15 * 60 * 1_000 + 1})
    )
    assert (code, is_fatal) == (ck.KafkaError.INVALID_TRANSACTION_TIMEOUT, True)


def fill(clients: Clients, topic: str, count: int, partition: int = 0) -> None:
    producer = ck.Producer({**clients.config, "enable.idempotence": True})
    for number in range(count):
        producer.produce(topic, str(number).encode(), partition=partition)
    assert producer.flush(LATER) == 0


def take(consumer: ck.Consumer, count: int) -> list[bytes]:
    """Return the values of the next messages."""
    found: list[bytes] = []
    end = time.monotonic() + LATER
    while len(found) < count:
        assert time.monotonic() < end, f"{len(found)} of {count} messages"
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            found.append(message.value() or b"")
    return found


class Killed:
    """A server process at one address and directory, killed and started again.

    Args:
        address: Its address for Kafka's clients.
        data_dir: Its directory.
    """

    def __init__(self, address: str, data_dir: Path) -> None:
        any_port = "127.0.0.1:0"
        command = [sys.executable, "-m", "wings_client.cli", "serve", "--data-dir", str(data_dir)]
        self._command = [*command, "--flight", any_port, "--http", any_port, "--kafka", address]
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line.startswith("wings ready"), line

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


@contextmanager
def killed_server(data_dir: Path) -> Generator[tuple[Killed, Clients]]:
    with held_address() as address:
        server = Killed(address, data_dir)
        try:
            yield server, Clients(address)
        finally:
            server.kill()


def test_after_a_kill_within_a_transaction_nothing_of_it_is_visible_and_all_of_committed_ones(
    tmp_path: Path,
) -> None:
    with killed_server(tmp_path) as (server, clients):
        clients.create("one", "two")
        fill(clients, "one", 1)
        expected: list[bytes] = []
        for number in range(3):
            producer = clients.producer("t")  # Its epoch survived, and the open one is aborted.
            for name, commits in (("kept", True), ("lost", False)):
                producer.begin_transaction()
                for topic in ("one", "two"):
                    producer.produce(topic, f"{name} {number}".encode())
                offsets = [ck.TopicPartition("one", 0, number + commits)]
                with closing(clients.consumer("g")) as consumer:
                    group = consumer.consumer_group_metadata()
                producer.send_offsets_to_transaction(offsets, group, LATER)
                assert producer.flush(LATER) == 0
                if commits:
                    producer.commit_transaction(LATER)
            server.kill()
            server.start()
            expected.append(f"kept {number}".encode())
            assert clients.values("one") == [b"0", *expected]
            assert clients.values("two") == expected
        clients.producer("t")  # Else the offsets are pending.
        assert clients.committed("g", "one") == 3


NO_REBOOTSTRAP = {"metadata.recovery.strategy": "none"}
"""Keep librdkafka's brokers while the only one is away.

Otherwise it forgets them, but not that one of them coordinates a group, so
`send_offsets_to_transaction` waits minutes for a broker object without a thread, past its time-out.
"""


def copy(clients: Clients, partitions: int, steps: SimpleQueue[str]) -> None:
    """Copy `in` to `out` record by record, whatever fails on the way; tells its steps."""
    producer = clients.producer("copier", **NO_REBOOTSTRAP)
    while True:
        with closing(clients.consumer("copier")) as consumer:
            consumer.subscribe(["in"])
            try:
                return copy_to_the_end(consumer, producer, partitions, steps)
            except ck.KafkaException as caught:
                error = caught.args[0]
        # The next consumer begins where the group has committed.
        if error.txn_requires_abort():
            producer.abort_transaction(LATER)
        else:
            producer = clients.producer("copier", **NO_REBOOTSTRAP)


def copy_to_the_end(
    consumer: ck.Consumer, producer: ck.Producer, partitions: int, steps: SimpleQueue[str]
) -> None:
    ended: set[int | None] = set()
    while len(ended) < partitions:
        message = consumer.poll(LATER)
        assert message is not None
        error = message.error()
        if error is not None:
            if error.code() == ck.KafkaError._PARTITION_EOF:
                ended.add(message.partition())
            continue
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        assert offset is not None
        producer.begin_transaction()
        steps.put("produce")
        producer.produce("out", message.value(), partition=partition)
        steps.put("send offsets")
        producer.send_offsets_to_transaction(
            [ck.TopicPartition("in", partition, offset + 1)],
            consumer.consumer_group_metadata(),
            LATER,
        )
        steps.put("commit")
        producer.commit_transaction(LATER)
        steps.put("next")


@pytest.mark.parametrize(
    ("count", "kills"),
    [(30, 2), pytest.param(300, 10, marks=[pytest.mark.soak, pytest.mark.timeout(1_800)])],
)
def test_each_record_is_copied_once_and_in_order_through_kills_of_the_server(
    tmp_path: Path, count: int, kills: int
) -> None:
    with killed_server(tmp_path) as (server, clients), ThreadPoolExecutor(1) as threads:
        clients.create("in", "out", partitions=2)
        for partition in range(2):
            fill(clients, "in", count, partition)
        steps = SimpleQueue[str]()
        copied = threads.submit(copy, clients, 2, steps)
        # Each transaction has four steps, so kills come at any of them.
        begun = 0
        for kill in sorted(random.Random(1).sample(range(1, 8 * count), kills)):
            for _ in range(begun, kill):
                steps.get(timeout=LATER)
            begun = kill
            server.kill()
            server.start()
        copied.result(4 * LATER)
        for partition in range(2):
            expected = [str(number).encode() for number in range(count)]
            assert clients.values("in", partition) == expected
            assert clients.values("out", partition) == expected
