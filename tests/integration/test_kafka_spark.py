"""Spark's own source and sink of Kafka, unmodified; `make kafka-spark` brings them by Maven."""

import subprocess
import sys
from pathlib import Path

import pytest
from test_kafka_transactions import Clients, fill

from wings_server.testing import RunningServer

JARS = Path(sys.prefix) / "kafka-spark"
PROGRAM = Path(__file__).parent / "kafka_spark" / "copy_topic.py"
SECONDS_MAX = 500.0
PARTITIONS, RECORDS = 2, 1_000

pytestmark = [
    pytest.mark.server(kafka=True),
    pytest.mark.programs,
    pytest.mark.soak,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not JARS.is_dir(), reason="Spark's Kafka is missing: make kafka-spark"),
]


def test_a_topic_is_copied_in_batches_and_as_a_stream(
    server: RunningServer, new_topic_id: str, tmp_path: Path
) -> None:
    clients, target = Clients(server.kafka), f"{new_topic_id}-copy"
    clients.create(new_topic_id, target, partitions=PARTITIONS)
    for partition in range(PARTITIONS):
        fill(clients, new_topic_id, RECORDS, partition)
    arguments = [str(JARS), server.kafka, new_topic_id, target, str(tmp_path / "checkpoints")]
    ended = subprocess.run(
        [sys.executable, str(PROGRAM), *arguments],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-4_000:]
    for partition in range(PARTITIONS):
        found = clients.values(target, partition)
        assert found == 2 * clients.values(new_topic_id, partition)
