"""The own tests of franz-go, a client in Go, unmodified; `make kafka-go` brings and builds them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from wings_server.testing import server_process

PROGRAM = Path(sys.prefix) / "kafka-go" / "kgo.test"
SECONDS_MAX = 500.0
RECORDS = 5_000

pytestmark = [
    pytest.mark.programs,
    pytest.mark.soak,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not PROGRAM.is_file(), reason="franz-go is missing: make kafka-go"),
]


@pytest.mark.parametrize("test", ["TestGroupETL", "TestTxnEtl"])
def test_chains_of_groups_have_each_record_once(tmp_path: Path, test: str) -> None:
    """Run chains of groups of each kind and assignor, whose members come and go."""
    with server_process(tmp_path, flags=("--kafka", "127.0.0.1:0")) as server:
        ended = subprocess.run(
            [str(PROGRAM), "-test.run", f"^{test}$", "-test.v"],
            env={
                **os.environ,
                "KGO_SEEDS": server.kafka,
                "KGO_TEST_RF": "1",
                "KGO_TEST_RECORDS": str(RECORDS),
            },
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
    assert ended.returncode == 0, ended.stdout[-4_000:]
    assert f"--- PASS: {test}/cooperative-sticky " in ended.stdout
