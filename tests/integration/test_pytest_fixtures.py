"""The fixtures that the package brings for tests of its users."""

import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

pytest_plugins = ["pytester"]

PAGE = Path(__file__).parents[2] / "docs" / "testing.md"

BEFORE = """
import json
import sys
import threading
import urllib.request

def test_nothing_is_imported_before_a_test_asks_for_it():
    assert not {"pyarrow", "wings_client", "wings_server"} & set(sys.modules)
"""
AFTER = """
def test_topics_of_other_tests_are_gone(wings, wings_server):
    assert list(wings.topics()) == []
    assert wings_server.http.startswith("http://127.0.0.1:")

def test_the_server_says_its_time(wings_server):
    from datetime import UTC, datetime, timedelta

    before = wings_server.now()
    wings_server.advance(3600)
    assert wings_server.now() - before >= timedelta(hours=1)
    assert wings_server.now() > datetime.now(UTC) + timedelta(minutes=59)

def test_retention_and_waiting_members_follow_the_time(wings, wings_server):
    day = 86_400
    wings.create_topic("jobs", {"n": "int64"}, config={"retention_ms": 3 * day * 1000})
    wings.create_share_group("work", "jobs", {"start": "earliest"})
    wings.push("jobs", {"n": [1]})
    with wings.share_consumer("work", topic="jobs", timeout=60) as consumer:
        consumer.release(next(iter(consumer)), delay=3600)
        waits = threading.Thread(target=lambda: consumer.accept(next(iter(consumer))))
        waits.start()
        wings_server.advance(3601)
        waits.join(30)
        assert not waits.is_alive()
    wings_server.advance(2 * day)
    wings.push("jobs", {"n": [2]})
    assert wings.read("jobs").to_arrow()["n"].to_pylist() == [1, 2]
    wings_server.advance(2 * day)
    assert wings.read("jobs").to_arrow()["n"].to_pylist() == [2]

def test_health_tells_trends_faults_and_groups_without_workers(wings, wings_server):
    def needs():
        health = json.load(urllib.request.urlopen(wings_server.http + "/v1/health"))
        return {each["kind"]: each for each in health["needs"]}

    log = wings_server.server.log
    numbers = {"n": list(range(10_000))}
    wings.create_topic("jobs", {"n": "int64"})
    wings.push("jobs", numbers)  # First: the server may look at any time, and remembers the lag.
    wings.create_share_group("work", "jobs", {"start": "earliest", "dlq_topic": "dead"})
    wings.commit_offsets("reader", "jobs", {None: 0})
    log.history.look()
    assert set(needs()) == {"consumer_lag"}, "its workers may be about to start"
    wings_server.advance(120)
    wings.push("jobs", numbers)
    if "no_workers" not in needs():  # The server may have looked by itself as the group was made.
        log.history.look()
        wings_server.advance(60)
    found = needs()
    assert set(found) == {"consumer_lag", "no_workers"}
    assert "takes the 20,000 messages that work has" in found["no_workers"]["message"]
    for each in found.values():
        assert 3_000 < each["per_minute"] <= 5_000
        assert "growing by" in each["message"]
    with wings.share_consumer("work", topic="jobs", timeout=60) as consumer:
        next(iter(consumer))
        assert "no_workers" not in needs(), "one holds messages"
    with wings.share_consumer("work", topic="jobs", timeout=60) as consumer:
        consumer.accept(next(iter(consumer)))
    assert "no_workers" not in needs(), "one has just finished some"
    wings.seek_share_group("work", "jobs", "latest")
    wings.push("jobs", {"n": [0]})
    with wings.share_consumer("work", topic="jobs", timeout=60) as consumer:
        consumer.release(next(iter(consumer)), delay=3600)
        waits = threading.Thread(target=lambda: consumer.reject(next(iter(consumer))))
        waits.start()
        for _ in range(3):
            wings_server.advance(100)
            log.history.look()
        assert "no_workers" not in needs(), "one waits for a message that is delayed"
        wings_server.advance(3600)
        waits.join(30)
    letters = needs()["dead_letters"]
    assert letters["per_hour"] == letters["count"] == 1
    assert "faults" not in needs()
    log.traffic.failed(fault=True)
    wings_server.advance(1800)
    assert needs()["faults"]["message"].endswith("1 time in the last hour")
    wings_server.advance(1801)
    log.history.look()
    assert "faults" not in needs()
    assert needs()["dead_letters"]["per_hour"] == 0
"""


def blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def test_the_tests_of_the_documentation_pass(pytester: pytest.Pytester) -> None:
    with_fixtures, with_address, _, _, with_time, with_now = blocks()
    pytester.makepyfile(BEFORE + with_fixtures + AFTER + with_address + with_time + with_now)
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=9)


def test_the_tests_of_the_documentation_that_start_servers_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Called here, they need no pytest of their own: of its fixtures they have the directory."""
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    _, _, with_process, with_token, _, _ = blocks()
    names: dict[str, Any] = {}
    exec(with_process + with_token, names)
    names["test_acknowledged_rows_survive_a_crash"](tmp_path)
    names["test_a_program_that_may_read_cannot_push"]()
