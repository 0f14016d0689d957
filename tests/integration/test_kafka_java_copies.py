"""Java programs that copy from topic to topic, unmodified, through kills; see `make kafka-java`.

Kafka's TransactionalMessageCopier, Kafka Streams, Connect and MirrorMaker 2.
"""

import json
import os
import random
import re
import shutil
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import confluent_kafka as ck
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from benchmarks.kafka import kafka_process
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from held_address import held_address
from test_kafka_java import JARS, QUICK
from test_kafka_transactions import Clients, fill, killed_server
from waiting import until

import wings_client
from wings_server.testing import server_process

SECONDS_MAX = 240.0
PARTITIONS = 2
COMPOSE = Path(__file__).parents[2] / "deploy/compose/connect.yaml"
FLAGS = ("--kafka", "127.0.0.1:0")

pytestmark = [
    pytest.mark.programs,
    pytest.mark.soak,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not any(JARS.glob("kafka-streams-*.jar")),
        reason="Kafka's programs are missing: make kafka-java",
    ),
    pytest.mark.skipif(shutil.which("java") is None, reason="there is no Java on the path"),
]


class Program:
    """A program in Java that is started again whenever it ends.

    Args:
        output: File of its output.
        arguments: Those of `java` after the classpath.
    """

    def __init__(self, output: Path, arguments: Sequence[str]) -> None:
        self.output = output
        self._command = ["java", "-Xmx256m", "-cp", f"{JARS}/*", *arguments]
        self.starts = 0
        self._process: subprocess.Popen[bytes] | None = None

    def keep_up(self) -> None:
        """Start it unless it runs."""
        if self._process is not None and self._process.poll() is None:
            return
        environment = os.environ | {"JDK_JAVA_OPTIONS": QUICK}
        with self.output.open("ab") as output:
            self._process = subprocess.Popen(
                self._command, stdout=output, stderr=output, env=environment
            )
        self.starts += 1

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


@contextmanager
def programs(folder: Path, *every: Sequence[str]) -> Generator[list[Program]]:
    """Run programs, which the caller keeps up, until the end of the block."""
    with ExitStack() as stack:
        started: list[Program] = []
        for number, arguments in enumerate(every):
            program = Program(folder / f"output-{number}", arguments)
            program.keep_up()
            stack.callback(program.kill)
            started.append(program)
        yield started


def kept_up(every: Sequence[Program], holds: Callable[[], bool]) -> Callable[[], bool]:
    """Return a look at whether something holds, which keeps programs up meanwhile."""

    def look() -> bool:
        for program in every:
            program.keep_up()
        time.sleep(0.5)
        return holds()

    return look


def committed(clients: Clients, group: str, topic: str, partitions: int) -> int:
    """Return how many records of a topic a group has committed; waits for no transaction."""
    with closing(clients.consumer(group)) as consumer:
        asked = [ck.TopicPartition(topic, partition) for partition in range(partitions)]
        return sum(max(0, each.offset) for each in consumer.committed(asked, SECONDS_MAX))


@pytest.mark.parametrize("mode", ["assigned", "group"])
def test_a_copier_that_aborts_at_random_copies_each_record_once(tmp_path: Path, mode: str) -> None:
    """Run a copier for each partition, through kills of them and of the server."""
    count, chance = 4_000, random.Random(2)
    with killed_server(tmp_path / "log") as (server, clients):
        clients.create("in", "out", partitions=PARTITIONS)
        for partition in range(PARTITIONS):
            fill(clients, "in", count, partition)
        common = ["org.apache.kafka.tools.TransactionalMessageCopier", "--broker-list"]
        common += [clients.config["bootstrap.servers"], "--input-topic", "in"]
        common += ["--output-topic", "out", "--consumer-group", "copiers", "--enable-random-aborts"]
        common += ["--transaction-size", "50", "--use-group-metadata"]
        common += ["--group-mode"] if mode == "group" else []
        copiers = [
            [*common, "--input-partition", str(number), "--transactional-id", f"copier-{number}"]
            for number in range(PARTITIONS)
        ]
        with programs(tmp_path, *copiers) as started:
            for kill in range(1, 7):
                share = kill * PARTITIONS * count // 8
                until(
                    kept_up(
                        started,
                        lambda at=share: committed(clients, "copiers", "in", PARTITIONS) >= at,
                    ),
                    SECONDS_MAX,
                )
                if kill % 2:
                    server.kill()
                    server.start()
                else:
                    chance.choice(started).kill()
            whole = PARTITIONS * count
            done = kept_up(
                started, lambda: committed(clients, "copiers", "in", PARTITIONS) == whole
            )
            until(done, SECONDS_MAX)
        for partition in range(PARTITIONS):
            expected = [str(number).encode() for number in range(count)]
            assert clients.values("out", partition) == expected


def test_streams_count_each_word_once(tmp_path: Path) -> None:
    """Count words exactly once, through kills of the program and of the server."""
    count, words = 1_500, ["ant", "bee", "cat", "dog", "elk"]
    with killed_server(tmp_path / "log") as (server, clients):
        clients.create("in", "out", partitions=PARTITIONS)
        source = str(Path(__file__).parent / "kafka_java" / "WordCount.java")
        arguments = [source, clients.config["bootstrap.servers"], str(tmp_path / "state")]
        with programs(tmp_path, arguments) as started:
            for part in range(3):
                producer = ck.Producer(clients.config)
                for number in range(count):
                    line = " ".join(words[: 1 + number % len(words)])
                    producer.produce("in", line, partition=number % PARTITIONS)
                assert producer.flush(SECONDS_MAX) == 0
                half = (2 * part + 1) * count * 3 // 2
                until(kept_up(started, lambda at=half: total(clients) >= at), SECONDS_MAX)
                if part:
                    started[0].kill()
                server.kill()
                server.start()
            until(kept_up(started, lambda: total(clients) >= 3 * count * 3), SECONDS_MAX)
        found = defaultdict[bytes | None, list[int]](list)
        for partition in range(PARTITIONS):
            for key, value in clients.records("out", partition):
                found[key].append(int(value))
        assert found == {
            word.encode(): list(range(1, 3 * (count // len(words)) * (len(words) - at) + 1))
            for at, word in enumerate(words)
        }


def total(clients: Clients, topic: str = "out") -> int:
    """Return how many records a topic has."""
    with closing(clients.consumer("nobody")) as consumer:
        return sum(
            consumer.get_watermark_offsets(ck.TopicPartition(topic, partition), SECONDS_MAX)[1]
            for partition in range(PARTITIONS)
        )


def written(file: Path, **settings: object) -> str:
    """Write a file of properties, whose names may have `_` for `.`; returns its path."""
    lines = (f"{name.replace('_', '.')}={value}\n" for name, value in settings.items())
    file.write_text("".join(lines))
    return str(file)


def test_connect_copies_a_file_once_into_a_topic_and_that_into_a_file(tmp_path: Path) -> None:
    """Run a worker of Connect, with an exactly-once source, through kills of it and the server.

    Its settings are those of the compose file, but for addresses, folders and shorter waits.
    """
    count, source, sink = 3_000, tmp_path / "source", tmp_path / "sink"
    lines = [f"line {number}" for number in range(count)]
    with killed_server(tmp_path / "log") as (server, clients), held_address() as rest:
        worker = written(
            tmp_path / "worker",
            **{
                **dict(re.findall(r"(?m)^ +([a-z.]+)=(.*)$", COMPOSE.read_text())),
                "bootstrap.servers": clients.config["bootstrap.servers"],
                "listeners": f"http://{rest}",
                "plugin.path": "",
                "plugin.discovery": "service_load",
                "offset.flush.interval.ms": 500,
                "session.timeout.ms": 6_000,
                "heartbeat.interval.ms": 2_000,
                "scheduled.rebalance.max.delay.ms": 1_000,
            },
        )
        connectors = {
            "source": {"connector.class": "FileStreamSource", "file": str(source), "topic": "out"},
            "sink": {"connector.class": "FileStreamSink", "file": str(sink), "topics": "out"},
        }
        clients.create("out")
        source.touch()
        arguments = ["org.apache.kafka.connect.cli.ConnectDistributed", worker]
        with programs(tmp_path, arguments) as started:
            for name, config in connectors.items():
                put = Request(
                    f"http://{rest}/connectors/{name}/config",
                    json.dumps({**config, "tasks.max": "1"}).encode(),
                    {"Content-Type": "application/json"},
                    method="PUT",
                )
                until(kept_up(started, lambda put=put: is_taken(put)), SECONDS_MAX)
            for part in range(3):
                with source.open("a") as file:
                    file.writelines(f"{line}\n" for line in lines[part::3])
                copied = (part + 1) * count // 3
                until(kept_up(started, lambda at=copied: has_lines(sink, at)), SECONDS_MAX)
                started[0].kill()
                server.kill()
                server.start()
        expected = [line.encode() for part in range(3) for line in lines[part::3]]
        assert clients.values("out") == expected
        assert set(sink.read_bytes().splitlines()) == set(expected)


def is_taken(put: Request) -> bool:
    """Return whether Connect takes a request now."""
    try:
        with urlopen(put, timeout=SECONDS_MAX) as response:
            return response.status < 300
    except (HTTPError, URLError, OSError):
        return False


def has_lines(file: Path, count: int) -> bool:
    """Return whether a file has so many different lines."""
    return file.exists() and len(set(file.read_bytes().splitlines())) >= count


def test_mirror_maker_copies_a_kafka_with_the_offsets_of_its_groups(tmp_path: Path) -> None:
    count, read = 5_000, 1_000
    with kafka_process(syncs=False) as kafka, server_process(flags=FLAGS) as server:
        old, new = Clients(kafka.address), Clients(server.kafka)
        orders = NewTopic("orders", PARTITIONS, 1, config={"retention.ms": "86400000"})
        admin = AdminClient(old.config)
        admin.create_topics([orders])["orders"].result(SECONDS_MAX)
        producer, now_ms = ck.Producer(old.config), int(time.time() * 1_000)
        for number in range(count):
            headers: dict[str, Any] = {"n": str(number)}
            key, place = f"key {number % 7}", number % PARTITIONS
            time_ms = now_ms - count + number
            producer.produce("orders", str(number), key, place, headers=headers, timestamp=time_ms)
        assert producer.flush(SECONDS_MAX) == 0
        with closing(old.consumer("readers")) as consumer:
            offsets = [ck.TopicPartition("orders", n, read) for n in range(PARTITIONS)]
            consumer.commit(offsets=offsets, asynchronous=False)
        settings = written(
            tmp_path / "settings",
            clusters="old,new",
            old_bootstrap_servers=kafka.address,
            new_bootstrap_servers=server.kafka,
            replication_factor=1,
            checkpoints_topic_replication_factor=1,
            heartbeats_topic_replication_factor=1,
            replication_policy_class="org.apache.kafka.connect.mirror.IdentityReplicationPolicy",
            **{
                "old->new.enabled": "true",
                "old->new.topics": "orders",
                "old->new.sync.group.offsets.enabled": "true",
                "old->new.sync.group.offsets.interval.seconds": 1,
                "old->new.emit.checkpoints.interval.seconds": 1,
                "old->new.refresh.groups.interval.seconds": 5,
                "offset-syncs.topic.replication.factor": 1,
                "offset.storage.replication.factor": 1,
                "status.storage.replication.factor": 1,
                "config.storage.replication.factor": 1,
            },
        )
        arguments = ["org.apache.kafka.connect.mirror.MirrorMaker", settings]
        with programs(tmp_path, arguments) as started:

            def is_done() -> bool:
                if "orders" not in AdminClient(new.config).list_topics(timeout=60).topics:
                    return False
                found = committed(new, "readers", "orders", PARTITIONS)
                return total(new, "orders") == count and found > 0

            until(kept_up(started, is_done), SECONDS_MAX)
            assert started[0].starts == 1
        for partition in range(PARTITIONS):
            assert new.records("orders", partition) == old.records("orders", partition)
        # Offsets are translated to earlier ones, never past what was read.
        assert committed(new, "readers", "orders", PARTITIONS) <= PARTITIONS * read
        with wings_client.connect(server.flight) as client:
            assert client.topic("orders").config["retention_ms"] == 86_400_000
            rows = client.scan("orders", partition=0).read_all()
        assert [row[0]["value"] for row in rows["headers"].to_pylist()] == [
            str(number).encode() for number in range(0, count, PARTITIONS)
        ]
        times = pc.cast(rows["timestamp"], pa.int64()).to_pylist()
        assert times == list(range(now_ms - count, now_ms, PARTITIONS))
