"""KafkaJS, unmodified; `make kafka-javascript` brings it by npm."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from wings_server.testing import running_server

MODULES = Path(sys.prefix) / "kafka-javascript" / "node_modules"
CLIENTS = Path(__file__).parent / "kafka_javascript" / "clients.js"
SECONDS_MAX = 300.0
RECORDS = 300

pytestmark = [
    pytest.mark.programs,
    pytest.mark.soak,
    pytest.mark.skipif(not MODULES.is_dir(), reason="KafkaJS is missing: make kafka-javascript"),
    pytest.mark.skipif(shutil.which("node") is None, reason="there is no Node on the path"),
]


@pytest.mark.timeout(400)
def test_a_copy_in_transactions_has_each_record_once(new_topic_id: str) -> None:
    with running_server(kafka=True) as server:
        ended = subprocess.run(
            ["node", str(CLIENTS), server.kafka, new_topic_id, f"{new_topic_id}-copy"],
            env={**os.environ, "NODE_PATH": str(MODULES)},
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
    assert ended.returncode == 0, ended.stderr
    seen = json.loads(ended.stdout)
    assert sorted(seen["found"], key=lambda each: each[1]) == [
        [f"key-{number % 7}", number, "odd" if number % 2 else "even"] for number in range(RECORDS)
    ]
    assert seen["committed"] == RECORDS
