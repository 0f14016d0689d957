"""kcat, unmodified, as people at a shell use it; Debian's package of this name has it."""

import json
import shutil
import subprocess
import time
from pathlib import Path

import pytest

import wings_client
from wings_server.testing import RunningServer

SECONDS_MAX = 60.0

pytestmark = [
    pytest.mark.server(kafka=True),
    pytest.mark.programs,
    pytest.mark.skipif(shutil.which("kcat") is None, reason="there is no kcat on the path"),
]


def kcat(server: RunningServer, *arguments: str, given: str = "") -> str:
    """Run kcat to its end; returns its output."""
    ended = subprocess.run(
        ["kcat", "-b", server.kafka, *arguments],
        input=given,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_records_of_lines_come_back(server: RunningServer, new_topic_id: str) -> None:
    lines = [f"key-{number % 7}:line {number}" for number in range(1_000)]
    to = ["-P", "-t", new_topic_id, "-K:", "-H", "a=1", "-H", "b=two"]
    kcat(server, *to, "-X", "enable.idempotence=true", "-z", "zstd", given="\n".join(lines))
    begin = ["-C", "-t", new_topic_id, "-o", "beginning", "-e", "-q"]
    assert kcat(server, *begin, "-K:").splitlines() == lines
    events = [json.loads(line) for line in kcat(server, *begin, "-J", "-c", "2").splitlines()]
    assert [event["payload"] for event in events] == ["line 0", "line 1"]
    assert events[1]["headers"] == ["a", "1", "b", "two"]
    assert kcat(server, "-C", "-t", new_topic_id, "-o", "-1", "-e", "-q") == "line 999\n"
    with wings_client.connect(server.flight) as client:
        values = client.scan(new_topic_id, partition=0).read_all()["value"].to_pylist()
    assert values == [f"line {number}".encode() for number in range(1_000)]


def test_topics_and_offsets_by_time_are_listed(server: RunningServer, new_topic_id: str) -> None:
    before = int(time.time() * 1_000) - 1
    kcat(server, "-P", "-t", new_topic_id, given="one\ntwo")
    after = int(time.time() * 1_000) + 1
    listed = json.loads(kcat(server, "-L", "-J", "-t", new_topic_id))
    (topic,) = listed["topics"]
    assert (topic["topic"], len(topic["partitions"])) == (new_topic_id, 1)
    assert [broker["name"] for broker in listed["brokers"]] == [server.kafka]
    for moment, offset in ((-2, 0), (before, 0), (-1, 2)):
        asked = f"{new_topic_id}:0:{moment}"
        assert f"[0] offset {offset}" in kcat(server, "-Q", "-t", asked)
    late = kcat(server, "-C", "-t", new_topic_id, "-o", f"s@{after + 60_000}", "-e", "-q")
    assert late == ""


def test_a_group_goes_on_where_it_committed(server: RunningServer, new_topic_id: str) -> None:
    group = ["-G", new_topic_id, "-q", "-X", "auto.offset.reset=earliest", "-c", "2"]
    kcat(server, "-P", "-t", new_topic_id, given="one\ntwo\nthree\nfour")
    assert kcat(server, *group, new_topic_id) == "one\ntwo\n"
    assert kcat(server, *group, new_topic_id) == "three\nfour\n"


def test_a_file_is_one_transaction(
    server: RunningServer, new_topic_id: str, tmp_path: Path
) -> None:
    file = tmp_path / "value"
    file.write_bytes(b"\0 whole \n file")
    transactional = ["-X", f"transactional.id={new_topic_id}"]
    kcat(server, "-P", "-t", new_topic_id, *transactional, str(file))
    found = kcat(server, "-C", "-t", new_topic_id, "-o", "beginning", "-e", "-q", "-D", "|")
    assert found == file.read_text() + "|"
