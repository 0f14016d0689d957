"""Kafka's own programs in Java, unmodified; `make kafka-java` brings them by Maven."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import wings_client
from wings_server.testing import RunningServer

JARS = Path(sys.prefix) / "kafka-java"
SECONDS_MAX = 150.0

QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Each program lives for seconds, most of which it would spend on compiling itself well."""

pytestmark = [
    pytest.mark.server(kafka=True),
    pytest.mark.programs,
    pytest.mark.skipif(not JARS.is_dir(), reason="Kafka's programs are missing: make kafka-java"),
    pytest.mark.skipif(shutil.which("java") is None, reason="there is no Java on the path"),
]
# Clients of librdkafka and of Python show the same in `test_kafka_admin` and others: each program
# takes seconds to start Java, and one test of them will do before a merge.


def run(server: RunningServer, program: str, *arguments: str, given: str = "") -> list[str]:
    """Run a program to its end; returns the lines that it prints."""
    name = f"org.apache.kafka.tools.{program}"
    ended = subprocess.run(
        ["java", "-cp", f"{JARS}/*", name, "--bootstrap-server", server.kafka, *arguments],
        env=os.environ | {"JDK_JAVA_OPTIONS": QUICK},
        input=given,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()


def test_console_programs_create_produce_and_consume(
    server: RunningServer, new_topic_id: str
) -> None:
    topic = ["--topic", new_topic_id]
    run(server, "TopicCommand", "--create", *topic, "--partitions", "3")
    assert new_topic_id in run(server, "TopicCommand", "--list")
    lines = [f"line {number}" for number in range(1_000)]
    run(server, "ConsoleProducer", *topic, given="\n".join(lines))
    ends = ["--from-beginning", "--max-messages", "1000", "--group", new_topic_id]
    assert sorted(run(server, "consumer.ConsoleConsumer", *topic, *ends)) == sorted(lines)
    with wings_client.connect(server.flight) as client:
        states = client.partitions(new_topic_id)
        assert sum(state.next_offset for state in states) == 1_000


@pytest.mark.soak
def test_programs_of_administrators(server: RunningServer, new_topic_id: str) -> None:
    topic = ["--topic", new_topic_id]
    run(server, "TopicCommand", "--create", *topic, "--config", "retention.ms=60000")
    run(server, "TopicCommand", "--alter", *topic, "--partitions", "3")
    described = "\n".join(run(server, "TopicCommand", "--describe", *topic))
    assert "PartitionCount: 3" in described
    assert "retention.ms=60000" in described
    run(server, "ConsoleProducer", *topic, given="one\ntwo")
    ends = ["--from-beginning", "--max-messages", "2", "--group", new_topic_id]
    run(server, "consumer.ConsoleConsumer", *topic, *ends)
    groups, group = "consumer.group.ConsumerGroupCommand", ["--group", new_topic_id]
    assert new_topic_id in run(server, groups, "--list")
    lines = run(server, groups, "--describe", *group)
    rows = [line.split() for line in lines if line.startswith(new_topic_id)]
    ends = [(offset, end, lag) for _, name, _, offset, end, lag, *_ in rows if name == new_topic_id]
    assert sum(int(offset) for offset, _, _ in ends if offset != "-") == 2
    assert all(end == offset for offset, end, _ in ends if offset != "-")


@pytest.mark.soak
def test_records_are_deleted(server: RunningServer, new_topic_id: str, tmp_path: Path) -> None:
    run(server, "TopicCommand", "--create", "--topic", new_topic_id)
    run(server, "ConsoleProducer", "--topic", new_topic_id, given="one\ntwo\nthree")
    asked = {"partitions": [{"topic": new_topic_id, "partition": 0, "offset": -1}], "version": 1}
    file = tmp_path / "offsets.json"
    file.write_text(json.dumps(asked))
    lines = run(server, "DeleteRecordsCommand", "--offset-json-file", str(file))
    assert any("low_watermark: 3" in line for line in lines), lines
    with wings_client.connect(server.flight) as client:
        (state,) = client.partitions(new_topic_id)
        assert (state.log_start_offset, state.next_offset) == (3, 3)


@pytest.mark.soak
def test_verifiable_programs_agree_on_each_record(server: RunningServer, new_topic_id: str) -> None:
    topic = ["--topic", new_topic_id]
    run(server, "TopicCommand", "--create", *topic, "--partitions", "2")
    sent = run(server, "VerifiableProducer", *topic, "--max-messages", "2000", "--acks", "-1")
    placed = {
        (event["partition"], event["offset"]): event["value"]
        for event in map(json.loads, sent)
        if event["name"] == "producer_send_success"
    }
    assert len(placed) == 2_000
    for protocol in ("classic", "consumer"):
        group = ["--group-protocol", protocol, "--group-id", f"{new_topic_id}-{protocol}"]
        read = run(
            server, "VerifiableConsumer", *topic, *group, "--max-messages", "2000", "--verbose"
        )
        found = {
            (event["partition"], event["offset"]): event["value"]
            for event in map(json.loads, read)
            if event["name"] == "record_data"
        }
        assert found == placed
