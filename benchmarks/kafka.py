"""Kafka's protocol beside a Kafka: processor time of the servers, and rates; see `make kafka-java`.

Kafka 4.1 runs in a JVM of its own, once as it is delivered, which syncs nothing, and once syncing
each write, as Wings does. Both are warmed by a million records before anything counts.
"""

import asyncio
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

import wings_client
from benchmarks.harness import Row, at_most, compare, cpu_seconds
from wings_core.kafka_topics import BINARY_SCHEMA, PARTITION_COLUMN
from wings_server.testing import server_process

JARS = Path(sys.prefix) / "kafka-java"
JAVA = ["java", "-Xmx1g", "-Xms256m", "-cp", f"{JARS}/*"]
START_SECONDS = 240.0
VALUE = bytes(range(100))
WARM_RECORDS, BULK_RECORDS, JAVA_RECORDS, SINGLE_RECORDS = 1_000_000, 300_000, 200_000, 300
TAIL_RECORDS, TAIL_CONSUMERS = 100_000, 8
COLD_RECORDS, COLD_PAGE = 1_000_000, 100_000
IDLE_CONSUMERS, IDLE_SECONDS = 1_000, 10.0
"""Consumers that wait for 500 ms each time, as is the default of librdkafka and of Java."""


@dataclass(frozen=True, slots=True)
class Broker:
    """A server that speaks Kafka's protocol."""

    address: str
    pid: int


def run() -> Iterator[Row]:
    """Measure producing and consuming, in bulk and one at a time, and idle consumers."""
    if not JARS.is_dir() or shutil.which("java") is None:
        sys.stderr.write("without Kafka: it takes a JDK, and `make kafka-java`\n")
        return
    with ExitStack() as stack:
        kafka = stack.enter_context(kafka_process(syncs=False))
        syncing = stack.enter_context(kafka_process(syncs=True))
        server = stack.enter_context(server_process(flags=["--kafka", "127.0.0.1:0"]))
        wings = Broker(server.kafka, server.pid)
        for broker in (wings, kafka, syncing):
            _produce(broker, _topic(broker), WARM_RECORDS)

        def beside(
            name: str, bound: float, measured: Callable[[Broker], float], *, runs: int = 5
        ) -> Row:
            return compare(
                name,
                "µs of CPU a record",
                bound,
                lambda: measured(wings),
                lambda: measured(kafka),
                runs=runs,
                more_is_better=False,
            )

        yield beside("Kafka: produce in bulk by librdkafka's defaults", 2.0, _bulk_cpu)
        yield compare(
            "Kafka: produce in bulk by librdkafka's defaults, beside one that syncs",
            "records/s",
            0.8,
            lambda: _bulk_rate(wings),
            lambda: _bulk_rate(syncing),
            runs=5,
        )
        yield beside("Kafka: produce by Java's defaults, batches of 16 KiB", 2.0, _java_cpu)
        yield beside("Kafka: consume at the tail", 1.0, _tail_cpu)
        cold = {kafka: _topic(kafka), wings: _typed_topic(server.flight)}
        _produce(kafka, cold[kafka], COLD_RECORDS)
        yield beside(
            "Kafka: consume from the beginning, large pages",
            1.5,
            lambda broker: _cold_cpu(broker, cold[broker]),
        )
        yield compare(
            "Kafka: one record at a time, beside one that syncs",
            "records/s",
            0.5,
            lambda: _single_rate(wings),
            lambda: _single_rate(syncing),
            runs=5,
        )
        yield at_most(
            f"Kafka: {IDLE_CONSUMERS:,} consumers that poll an idle log",
            "% of a core",
            5.0,
            [_idle(wings) for _ in range(3)],
        )


@contextmanager
def kafka_process(*, syncs: bool) -> Generator[Broker]:
    """Run a Kafka of one node, in a directory of its own.

    Args:
        syncs: Whether it syncs each write, before it answers.
    """
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        port, controller = _free_port(), _free_port()
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(home / "log"),
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
        }
        if syncs:
            settings["log.flush.interval.messages"] = "1"
        file = home / "server.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        tool = ["kafka.tools.StorageTool", "format", "-t", "AAAAAAAAQACAAAAAAAAAAA", "-c"]
        subprocess.run([*JAVA, *tool, str(file)], check=True, capture_output=True)
        with (home / "output").open("wb") as output:
            child = subprocess.Popen(
                [*JAVA, "kafka.Kafka", str(file)], stdout=output, stderr=subprocess.STDOUT
            )
        stack.callback(child.wait, START_SECONDS)
        stack.callback(child.terminate)
        broker, ends = Broker(f"127.0.0.1:{port}", child.pid), time.monotonic() + START_SECONDS
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
            except ConnectionRefusedError:
                assert child.poll() is None, (home / "output").read_text()[-2_000:]
                assert time.monotonic() < ends, "Kafka does not answer"
                time.sleep(0.2)
            else:
                break
        yield broker


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def _topic(broker: Broker) -> str:
    """Create a topic of one partition; returns its name."""
    name = f"bench-{uuid4().hex}"
    admin = AdminClient({"bootstrap.servers": broker.address})
    for created in admin.create_topics([NewTopic(name, 1, 1)]).values():
        created.result()
    return name


def _typed_topic(address: str) -> str:
    """Create a topic and push large pages of records to it over Flight; returns its name."""
    name = f"cold-{uuid4().hex}"
    with wings_client.connect(address) as client:
        config = {"kafka": {"partitions": 1, "value": "binary"}}
        topic = client.create_topic(name, BINARY_SCHEMA, PARTITION_COLUMN, config)
        columns = {
            "partition": pa.array([0] * COLD_PAGE, pa.int32()),
            "value": pa.array([VALUE] * COLD_PAGE, pa.binary()),
        }
        for _ in range(COLD_RECORDS // COLD_PAGE):
            client.push(topic, columns)
    return name


def _produce(broker: Broker, topic: str, records: int) -> tuple[float, float]:
    """Produce records as fast as possible; returns processor seconds of the server, and seconds."""
    producer = Producer({"bootstrap.servers": broker.address})
    started, cpu = time.perf_counter(), cpu_seconds(broker.pid)
    for _ in range(records):
        while True:
            try:
                producer.produce(topic, VALUE, partition=0)
                break
            except BufferError:
                producer.poll(0.01)
    assert producer.flush(120) == 0, "records are left"
    return cpu_seconds(broker.pid) - cpu, time.perf_counter() - started


def _bulk_cpu(broker: Broker) -> float:
    return 1e6 * _produce(broker, _topic(broker), BULK_RECORDS)[0] / BULK_RECORDS


def _bulk_rate(broker: Broker) -> float:
    return BULK_RECORDS / _produce(broker, _topic(broker), BULK_RECORDS)[1]


def _java_cpu(broker: Broker) -> float:
    topic, cpu = _topic(broker), cpu_seconds(broker.pid)
    program = ["org.apache.kafka.tools.ProducerPerformance", "--topic", topic, "--throughput", "-1"]
    amount = ["--num-records", str(JAVA_RECORDS), "--record-size", str(len(VALUE))]
    where = ["--producer-props", f"bootstrap.servers={broker.address}"]
    subprocess.run([*JAVA, *program, *amount, *where], check=True, capture_output=True)
    return 1e6 * (cpu_seconds(broker.pid) - cpu) / JAVA_RECORDS


def _consume(broker: Broker, topic: str, records: int, waiting: threading.Event) -> None:
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": uuid4().hex})
    consumer.assign([TopicPartition(topic, 0, 0)])
    records -= len(consumer.consume(1, 0.3))  # It fetches from now on.
    waiting.set()
    while records > 0:
        records -= len(consumer.consume(10_000, 0.5))
    consumer.close()


def _tail_cpu(broker: Broker) -> float:
    """Return what one more consumer of each record takes, while it is produced."""
    alone, _ = _produce(broker, _topic(broker), TAIL_RECORDS)
    topic, cpu, threads = _topic(broker), cpu_seconds(broker.pid), list[threading.Thread]()
    for _ in range(TAIL_CONSUMERS):
        waiting = threading.Event()
        thread = threading.Thread(target=_consume, args=(broker, topic, TAIL_RECORDS, waiting))
        thread.start()
        threads.append(thread)
        waiting.wait()
    _produce(broker, topic, TAIL_RECORDS)
    for thread in threads:
        thread.join()
    return 1e6 * (cpu_seconds(broker.pid) - cpu - alone) / (TAIL_RECORDS * TAIL_CONSUMERS)


def _cold_cpu(broker: Broker, topic: str) -> float:
    cpu = cpu_seconds(broker.pid)
    _consume(broker, topic, COLD_RECORDS, threading.Event())
    return 1e6 * (cpu_seconds(broker.pid) - cpu) / COLD_RECORDS


def _single_rate(broker: Broker) -> float:
    topic = _topic(broker)
    producer = Producer({"bootstrap.servers": broker.address, "linger.ms": 0})
    producer.produce(topic, VALUE, partition=0)
    producer.flush()
    started = time.perf_counter()
    for _ in range(SINGLE_RECORDS):
        producer.produce(topic, VALUE, partition=0)
        producer.flush()
    return SINGLE_RECORDS / (time.perf_counter() - started)


def _idle(broker: Broker) -> float:
    """Return what idle consumers, each on a connection of its own, take of a core."""
    return asyncio.run(_poll_idle(broker, _fetch_frame(_topic(broker))))


def _fetch_frame(topic: str) -> bytes:
    """Return a Fetch request of version 4 that waits for 500 ms."""
    name = struct.pack(">h", len(topic)) + topic.encode()
    head = struct.pack(">hhi", 1, 4, 1) + struct.pack(">h", -1)
    bounds = struct.pack(">iiiib", -1, 500, 1, 50 << 20, 0)
    partition = struct.pack(">iiqi", 1, 0, 0, 1 << 20)
    frame = head + bounds + struct.pack(">i", 1) + name + partition
    return struct.pack(">i", len(frame)) + frame


async def _poll_idle(broker: Broker, frame: bytes) -> float:
    host, port = broker.address.split(":")
    polling: list[asyncio.Task[None]] = []

    async def poll() -> None:
        reader, writer = await asyncio.open_connection(host, int(port))
        while True:
            writer.write(frame)
            await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))

    async with asyncio.TaskGroup() as group:
        polling += [group.create_task(poll()) for _ in range(IDLE_CONSUMERS)]
        await asyncio.sleep(2.0)
        started, cpu = time.perf_counter(), cpu_seconds(broker.pid)
        await asyncio.sleep(IDLE_SECONDS)
        taken = (cpu_seconds(broker.pid) - cpu) / (time.perf_counter() - started)
        for task in polling:
            task.cancel()
    return 100 * taken
