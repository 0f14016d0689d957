"""The own tests of librdkafka, unmodified, against a server; see `make kafka-librdkafka`."""

import os
import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryFile

import pytest

from wings_server.testing import server_process

TESTS = Path(sys.prefix) / "kafka-librdkafka" / "tests"
SECONDS_MAX = 3_000.0
PARALLEL = 2
PASSED_MIN = 60

LEFT_OUT = {
    "0052": "makes its topics by Kafka's own scripts",
    "0077": "makes its topics by Kafka's own scripts; rows are never compacted",
    "0081": "makes access control lists",
    "0086": "holds 100 ms, which a busy machine does not",
    "0092": "asks by the old AlterConfigs",
    "0099": "commits texts with NUL, which PostgreSQL's have none of, past the end of a partition",
    "0103": "expects records of an open transaction below the high watermark",
    "0109": "makes access control lists by Kafka's own scripts",
    "0115": "makes access control lists by Kafka's own scripts",
    "0119": "makes access control lists by Kafka's own scripts",
    "0140": "commits an offset past the end of its partition",
}
"""Tests that expect something else of a Kafka, by number, and what."""

ALONE = {
    "0076": "a request for metadata failed in the runner's emulator of sockets, once",
    "0088": "the runner's emulator of sockets stood still beside other tests, once",
}
"""Tests that have the runner for themselves, by number, and why."""

pytestmark = [
    pytest.mark.programs,
    pytest.mark.soak,
    pytest.mark.timeout(SECONDS_MAX + 60),
    pytest.mark.skipif(
        not (TESTS / "test-runner").is_file(),
        reason="librdkafka's tests are missing: make kafka-librdkafka LIBRDKAFKA=its sources",
    ),
]


def test_librdkafka_passes_its_own_tests(tmp_path: Path) -> None:
    """Run those that need a broker; some skip themselves, as they are for several or for Java."""
    flags = ("--kafka", "127.0.0.1:0", "--kafka-partitions", "4")
    config = tmp_path / "test.conf"
    with server_process(tmp_path / "log", flags=flags) as server:
        config.write_text(f"bootstrap.servers={server.kafka}\ntest.timeout.multiplier=10\n")
        passed = run(config, TESTS_SKIP=",".join([*LEFT_OUT, *ALONE]))
        assert passed >= PASSED_MIN
        for number in ALONE:
            assert run(config, TESTS=number) == 1


def run(config: Path, **environment: str) -> int:
    """Run tests of the runner, none of which may fail; return how many passed."""
    with TemporaryFile() as output:
        ended = subprocess.run(
            ["./test-runner", f"-p{PARALLEL}", "-L", "-Q"],
            cwd=TESTS,
            env={
                **os.environ,
                "LD_LIBRARY_PATH": "../src:../src-cpp",
                "RDKAFKA_TEST_CONF": str(config),
                "TEST_KAFKA_VERSION": "4.0.0",
                **environment,
            },
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=SECONDS_MAX,
            check=False,
        )
        output.seek(0)
        text = re.sub(r"\x1b(\[[0-9;]*m|\(B)", "", output.read().decode(errors="replace"))
    failed = re.findall(r'### Test "[^#]*###\n.*', text)
    assert (ended.returncode, failed) == (0, []), text[-20_000:]
    return len(re.findall(r"= Test \S+ PASSED =", text))
