"""The own tests of clients in Go, unmodified: franz-go's and segmentio's; see `make kafka-go`."""

import os
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from wings_server.testing import server_process

PROGRAMS = Path(sys.prefix) / "kafka-go"
SECONDS_MAX = 500.0
RECORDS = 5_000

SEGMENTIO_PORT = 9092
"""Where segmentio's tests look for their broker."""

LEFT_OUT = (
    # Kafka 4.1 fails them as well.
    "TestConn/test_(delete_topics|retrieve_controller)",
    "TestReaderConsumerGroup/consumer_group_rebalance$",
    "TestReaderConsumerGroup/(consumer_group_commits_on_close|verify_offset_committed)",
    # Requests that are not served: ACLs, quotas, SCRAM, moves of partitions, the old AlterConfigs.
    "ACL|Quota|Scram|PartitionReassignments|ElectLeaders|AlterConfigs|TestClientDescribeConfigs",
    "TestUnsupportedSASLMechanism|TestWriter/writing_a_message_with_SASL",  # At another port.
    # The broker has the number 1.
    "TestDialer|TestConn/(test_list_brokers|the_connection_advertises)",
    # A group without members and offsets is known; offsets past the end of a log are committed.
    "TestClientDeleteGroups|TestClientOffsetCommit|TestClientDeleteOffset",
    "TestReaderReadCompactedMessage",  # Rows are never compacted.
    # A batch is sent whole even where the client takes no bytes.
    "TestConn/read_a_batch_with_no_explicit",
)
"""Tests of segmentio's that expect something else of a Kafka."""

pytestmark = [
    pytest.mark.programs,
    pytest.mark.soak,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        not (PROGRAMS / "segmentio.test").is_file(),
        reason="Go's clients are missing: make kafka-go",
    ),
]


@pytest.mark.parametrize("test", ["TestGroupETL", "TestTxnEtl"])
def test_chains_of_groups_have_each_record_once(tmp_path: Path, test: str) -> None:
    """Run chains of groups of each kind and assignor, whose members come and go."""
    with server_process(tmp_path, flags=("--kafka", "127.0.0.1:0")) as server:
        printed = passed(
            "kgo.test",
            f"-test.run=^{test}$",
            KGO_SEEDS=server.kafka,
            KGO_TEST_RF="1",
            KGO_TEST_RECORDS=str(RECORDS),
        )
    assert f"--- PASS: {test}/cooperative-sticky " in printed


def test_a_client_passes_its_own_tests(tmp_path: Path) -> None:
    address = f"127.0.0.1:{SEGMENTIO_PORT}"
    with closing(socket.socket()) as probe:
        if probe.connect_ex(("127.0.0.1", SEGMENTIO_PORT)) == 0:
            pytest.skip(f"another server listens at {address}")
    flags = ("--kafka", address, "--kafka-advertised", f"localhost:{SEGMENTIO_PORT}")
    with server_process(tmp_path, flags=flags):
        printed = passed(
            "segmentio.test",
            f"-test.skip={'|'.join(LEFT_OUT)}",
            KAFKA_VERSION="4.0.0",
            KAFKA_SKIP_NETTEST="1",
        )
    assert printed.count("\n--- PASS: ") > 100


def passed(program: str, *flags: str, **environment: str) -> str:
    """Run tests of a client, which all pass; returns their output."""
    ended = subprocess.run(
        [str(PROGRAMS / program), "-test.v", *flags],
        cwd=PROGRAMS,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    lines = ended.stdout.splitlines()
    failed = [
        at for at, line in enumerate(lines) if line.lstrip().startswith(("--- FAIL", "panic"))
    ]
    shown = [line for at in failed for line in lines[max(0, at - 5) : at + 1]]
    assert ended.returncode == 0, "\n".join(shown)
    return ended.stdout
