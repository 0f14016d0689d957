"""`wings ingest`, but for the run itself, which needs Spark."""

import csv
import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fix_commands import Command
from fix_ingest import MakeSource, Pipeline, Start, numbers, write_jsonl

from wings_client import Client
from wings_core.queue.sqlite import SqliteQueue

if TYPE_CHECKING:
    from wings_server.testing import RunningServer

Call = Callable[..., tuple[int, list[Any], str]]


@pytest.fixture
def toml(server: "RunningServer", new_topic_id: str, tmp_path: Path) -> Path:
    """A source of the test's own."""
    toml = tmp_path / "source.toml"
    toml.write_text(
        f'name = "{new_topic_id}"\ncheckpoint = "checkpoint"\n'
        '[queue]\nkind = "sqlite"\npath = "queue.sqlite"\nwait_seconds = 0\n'
        f'[target]\nendpoint = "{server.flight}"\ntopic = "{new_topic_id}"\n'
        "[limits]\nmax_delivery_attempts = 1\n"
    )
    return toml


@pytest.fixture
def call(toml: Path, command: Command) -> Call:
    """Call a command on the source; returns status, what it wrote, and errors."""

    def run(subcommand: str, *arguments: str) -> tuple[int, list[Any], str]:
        status, out, err = command("ingest", subcommand, "--source", toml, *arguments)
        return status, [json.loads(line) for line in out.splitlines()], err

    return run


@pytest.fixture
def pipeline(source: MakeSource, start: Start) -> Pipeline:
    """A pipeline of the same source."""
    return start(source(limits={"max_delivery_attempts": 1}))


def test_files_are_listed_given_up_and_tried_again(
    wings: Client, call: Call, pipeline: Pipeline, new_topic_id: str, tmp_path: Path
) -> None:
    wings.create_topic(new_topic_id, {"n": "int64"})
    good, bad = tmp_path / "good.jsonl", tmp_path / "bad.jsonl"
    write_jsonl(good, range(3))
    bad.write_text('{"n": "x"}\n')
    queue = SqliteQueue(tmp_path / "queue.sqlite")
    queue.send([str(good), str(bad)])
    pipeline.drain()
    status, (figures,), _ = call("status")
    assert status == 0
    assert figures["files"] == {"open": 0, "finished": 1, "dead": 1, "rows": 3}
    assert figures["last_batches"]["failures"] == 1
    _, listed, _ = call("list")
    assert [each["shard"] for each in listed] == [str(bad), str(good)]
    _, listed, _ = call("list", "--state", "finished")
    assert [each["position"] for each in listed] == [3]
    _, (dead,), _ = call("dlq")
    assert (dead["shard"], dead["state"]) == (str(bad), "dead")
    assert ":1" in dead["error"]
    _, done, _ = call("history", "--last", "1")
    assert [(each["shard"], each["outcome"]) for each in done] == [(str(bad), "dead")]
    _, done, _ = call("history")
    assert [(each["rows"], each["outcome"]) for each in done] == [(3, "finished"), (0, "dead")]
    write_jsonl(bad, range(3, 5))
    status, found, err = call("retry", str(bad), str(good))
    assert (status, found) == (1, [{"shard": str(bad)}])
    assert f"{good} is not dead" in err
    pipeline.drain()
    assert numbers(wings, new_topic_id) == [0, 1, 2, 3, 4]
    assert call("dlq")[1] == []
    queue.close()


def test_files_are_listed_in_other_formats(
    wings: Client,
    toml: Path,
    command: Command,
    pipeline: Pipeline,
    new_topic_id: str,
    tmp_path: Path,
) -> None:
    def call(subcommand: str, wanted: str) -> tuple[str, str]:
        given = ("ingest", subcommand, "--source", toml, "--format", wanted)
        status, out, err = command(*given)
        assert status == 0
        return out, err

    for subcommand in ("list", "dlq", "history"):
        assert call(subcommand, "table") == ("", "there are none\n")
    wings.create_topic(new_topic_id, {"n": "int64"})
    file = tmp_path / "file.jsonl"
    write_jsonl(file, range(3))
    with closing(SqliteQueue(tmp_path / "queue.sqlite")) as queue:
        queue.send([str(file)])
    pipeline.drain()
    (listed,) = json.loads(call("list", "json")[0])
    assert (listed["shard"], listed["position"]) == (str(file), 3)
    (done,) = csv.DictReader(call("history", "csv")[0].splitlines())
    assert (done["outcome"], done["rows"]) == ("finished", "3")
    assert str(file) in call("list", "table")[0]
    figures = dict(csv.reader(call("status", "csv")[0].splitlines()))
    assert (figures["files.finished"], figures["last_batches.rows"]) == ("1", "3")


def test_what_is_in_a_directory_already_is_told_of_and_read_once(
    wings: Client, call: Call, pipeline: Pipeline, new_topic_id: str, tmp_path: Path
) -> None:
    wings.create_topic(new_topic_id, {"n": "int64"})
    files = tmp_path / "files" / "below"
    files.mkdir(parents=True)
    write_jsonl(files / "a.jsonl", range(2))
    write_jsonl(tmp_path / "files" / "b.jsonl", range(2, 4))
    write_jsonl(files / "_c.jsonl", range(4, 6))
    for _ in range(2):
        assert call("backfill", str(tmp_path / "files"))[:2] == (0, [{"files": 2}])
        pipeline.drain()
    assert numbers(wings, new_topic_id) == [0, 1, 2, 3]


def test_what_is_wrong_is_said_in_a_line(call: Call, tmp_path: Path) -> None:
    status, _, err = call("backfill", str(tmp_path / "nowhere"))
    assert (status, err.startswith("wings: there is no directory")) == (1, True)
    status, _, err = call("list", "--state", "closed")
    assert status == 1
    assert "'state'" in err
    status, _, err = call("setup")
    assert status == 1
    assert "needs no set-up" in err
    (tmp_path / "source.toml").write_text('name = "a"\ncolour = "red"\n')
    status, _, err = call("status")
    assert status == 1
    assert "source.toml: " in err
