"""The `wings` command at a person's terminal: profiles, formats of lists, completion, questions."""

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from fix_commands import Command, Result

import wings_client
from wings_server.testing import RunningServer

Completions = Callable[..., list[str]]


@pytest.fixture
def topic(server: RunningServer, new_topic_id: str) -> str:
    """A topic of ten flights, five of each origin."""
    table = pa.table({"origin": ["JFK", "LAX"] * 5, "delay": list(range(10))})
    with wings_client.connect(server.flight) as client:
        client.create_topic(new_topic_id, table.schema, "origin")
        client.push(new_topic_id, table)
    return new_topic_id


@pytest.fixture
def profiles(
    tmp_path: Path, server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], None]:
    """Writes the file of profiles, `SERVER` being the server's address; nothing else is given."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("WINGS_ENDPOINT", "WINGS_PROFILE", "WINGS_TOKEN", "WINGS_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)

    def write(text: str) -> None:
        (tmp_path / "wings.toml").write_text(text.replace("SERVER", server.flight))

    return write


@pytest.fixture
def wings(command: Command, server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Calls the command in this process, its endpoint the module's server."""
    monkeypatch.setenv("WINGS_ENDPOINT", server.flight)
    return command


NOWHERE = '"grpc://127.0.0.1:1"'


# Profiles.


def test_a_flag_goes_before_the_environment_and_that_before_the_profile(
    profiles: Callable[[str], None],
    command: Command,
    topic: str,
    server: RunningServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    profiles(f'[default]\nendpoint = {NOWHERE}\n[here]\nendpoint = "SERVER"\n')
    assert "no server answers at grpc://127.0.0.1:1" in command("topic", "list").err
    assert topic in command("topic", "list", "--profile", "here").out
    monkeypatch.setenv("WINGS_PROFILE", "here")
    assert topic in command("topic", "list").out
    gathered = command("gather", topic, "--timeout", 5_000, "--max-replies", 1)
    assert gathered.err.startswith("max_messages")
    monkeypatch.setenv("WINGS_ENDPOINT", "grpc://127.0.0.1:1")
    assert command("topic", "list").status == 1
    assert topic in command("topic", "list", "--endpoint", server.flight).out


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('[default]\nendpont = "x"\n', "unknown key 'endpont'; did you mean 'endpoint'?"),
        ("[default]\nendpoint = 3\n", "key 'endpoint' must be a text"),
        ('default = "grpc://a:1"\n', "'default' must be a table"),
        ("[default\n", "is not TOML"),
    ],
)
def test_a_malformed_profile_is_an_error_that_names_the_key(
    profiles: Callable[[str], None], command: Command, text: str, problem: str
) -> None:
    profiles(text)
    listed = command("topic", "list")
    assert (listed.status, listed.err.count("\n")) == (1, 1)
    assert problem in listed.err
    profiles('[prod]\nendpoint = "SERVER"\n')
    missing = command("topic", "list", "--profile", "prd").err
    assert "no profile 'prd'" in missing
    assert "did you mean 'prod'?" in missing


def test_a_token_of_a_profile_goes_to_its_endpoint_alone_and_readers_are_warned_of(
    profiles: Callable[[str], None], command: Command, tmp_path: Path, server: RunningServer
) -> None:
    (tmp_path / "token").write_text("secret\n")
    (tmp_path / "token").chmod(0o644)
    profiles('[default]\nendpoint = "SERVER"\ntoken_file = "token"\n')
    assert f"other users can read the token in {tmp_path}/token" in command("topic", "list").err
    assert command("topic", "list", "--endpoint", server.flight).err.count("token") == 0
    shown = command("profile", "show", "--format", "csv").out
    keys = [("key", "value"), ("endpoint", server.flight), ("token_file", tmp_path / "token")]
    assert shown == "".join(f'"{key}","{value}"\n' for key, value in keys)
    listed = json.loads(command("profile", "list", "--format", "json").out)
    assert listed == [{"profile": "default", "endpoint": server.flight}]


# Formats.


def test_lists_and_descriptions_are_written_in_every_format(wings: Command, topic: str) -> None:
    listed = json.loads(wings("topic", "list", "--format", "json").out)
    (found,) = [each for each in listed if each["topic"] == topic]
    assert (found["partition_key"], found["columns"]) == ("origin", 2)
    partitions = wings("topic", "describe", topic, "--format", "csv").out.splitlines()
    assert partitions[0] == '"partition","start","next","bytes","last_message"'
    assert partitions[1].startswith('"JFK",0,5,')
    lines = wings("node", "list", "--format", "jsonl").out.splitlines()
    assert [json.loads(line)["kafka"] for line in lines] == [None]
    assert wings("share", "list", topic, "--format", "json") == (
        0,
        "[]\n",
        "no share groups; create one with `wings share create`\n",
    )
    endless = wings("tail", topic, "--format", "parquet")
    assert endless.status == 2
    assert "has an end: use arrow" in endless.error


# Where reads begin.


def test_consume_and_share_create_begin_at_the_last_of_each_partition(
    wings: Command, topic: str
) -> None:
    consume = ("consume", f"c-{topic}", topic, "--timeout", 500, "--format", "json")
    out = wings(*consume, "--from", -2).out
    assert sorted(json.loads(line)["delay"] for line in out.splitlines()) == [6, 7, 8, 9]
    assert wings(*consume, "--from", -2).out == ""
    created = wings("share", "create", "g", topic, "--from", -1)
    assert created.out.endswith("2 messages behind\n")
    assert wings("share", "create", "h", topic, "--from", -1, "--if-not-exists").status == 2
    moved = wings("share", "seek", "g", topic, "--to", -3, "--yes")
    assert moved.out.endswith("6 messages behind\n")
    moved = wings("share", "seek", "g", topic, "--to", -1, "--partition", "JFK", "--yes")
    assert moved.out.endswith("4 messages behind\n")
    unknown = wings("share", "seek", "g", topic, "--to", -1, "--partition", "XXX", "--yes")
    assert (unknown.status, "nothing was written to partition" in unknown.err) == (1, True)


def test_a_group_that_exists_with_other_settings_is_told_of(wings: Command, topic: str) -> None:
    create = ("share", "create", "g", topic, "--if-not-exists", "--delivery-limit", 3, "--dlq")
    assert wings(*create, f"{topic}-dead", "--lock", "5s").err == ""
    assert wings(*create, f"{topic}-dead", "--lock", "5s").err == ""
    told = wings(*create, "others", "--lock", "7s")
    assert told.status == 0
    assert told.err == (
        "it existed, with another lock_duration_ms, dlq_topic; `wings share alter` changes it\n"
    )


# Completion.


@pytest.fixture
def complete(wings: Command, monkeypatch: pytest.MonkeyPatch) -> Completions:
    """Completes the last of some words as bash would."""

    def call(*words: str) -> list[str]:
        monkeypatch.setenv("_WINGS_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", " ".join(["wings", *words]))
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        done = wings()
        assert (done.status, done.err) == (0, "")
        return done.out.split()

    return call


def test_the_shell_completes_what_the_server_knows(
    complete: Completions, wings: Command, topic: str, server: RunningServer
) -> None:
    with wings_client.connect(server.flight) as client:
        client.create_share_group(f"g-{topic}", topic)
        client.commit_offsets(f"c-{topic}", topic, {"JFK": 1})
    assert complete("top") == ["topic"]
    assert topic in complete("fetch", topic[:-1])
    assert f"g-{topic}" in complete("share", "describe", "g-")
    assert f"c-{topic}" in complete("consume", "c-")
    assert complete("fetch", topic, "--columns", "delay,or") == ["delay,origin"]


def test_completion_without_a_server_offers_nothing(
    complete: Completions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WINGS_ENDPOINT", "grpc://127.0.0.1:1")
    assert complete("fetch", "t") == []


# Questions.


def at_a_terminal(server: RunningServer, answer: str, *arguments: str) -> Result:
    """Call the command as a process whose terminal answers its question."""
    terminal, given = pty.openpty()
    with os.fdopen(terminal, "wb", buffering=0) as keys:
        keys.write(f"{answer}\n".encode())
        done = subprocess.run(
            [sys.executable, "-m", "wings_client.cli", *arguments],
            env={**os.environ, "WINGS_ENDPOINT": server.flight},
            stdin=given,
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
        )
        os.close(given)
    return Result(done.returncode, done.stdout, done.stderr)


def test_a_deletion_at_a_terminal_asks_first(
    wings: Command, server: RunningServer, topic: str
) -> None:
    refused = at_a_terminal(server, "n", "topic", "delete", topic)
    assert (refused.status, refused.out.strip()) == (1, "")
    assert refused.err.startswith(f"Delete {topic} with 10 messages? [y/N]:")
    assert topic in wings("topic", "list").out
    agreed = at_a_terminal(server, "y", "topic", "delete", topic)
    assert (agreed.status, agreed.out.lstrip()) == (0, f"{topic} is deleted\n")
    assert topic not in wings("topic", "list").out


def test_dry_runs_of_a_reset_and_of_a_prune_change_nothing(
    wings: Command, server: RunningServer, topic: str, tmp_path: Path
) -> None:
    group = f"g-{topic}"
    with wings_client.connect(server.flight) as client:
        client.commit_offsets(group, topic, {"JFK": 2, "LAX": 2})
        before = client.committed_offsets(group, topic)
        reset = wings("group", "reset", group, topic, "--to", "latest", "--dry-run")
        assert reset.out == f"would reset {group} to latest (now 0 members, 6 messages behind)\n"
        assert client.committed_offsets(group, topic) == before
    for _ in range(2):
        assert wings("backup", str(tmp_path)).status == 0
    backups = ("backup", "list", str(tmp_path), "--format", "json")
    first, _ = json.loads(wings(*backups).out)
    pruned = wings("backup", "prune", str(tmp_path), "--keep", 1, "--dry-run")
    assert pruned.out == f"would delete {first['backup']}\n"
    assert len(json.loads(wings(*backups).out)) == 2


def test_without_a_terminal_nothing_is_deleted_or_moved_unless_yes_is_given(
    wings: Command, server: RunningServer, topic: str, tmp_path: Path
) -> None:
    with wings_client.connect(server.flight) as client:
        client.commit_offsets(f"g-{topic}", topic, {"JFK": 2})
    assert wings("share", "create", "g", topic, "--dlq", f"{topic}-dead").status == 0
    assert wings("backup", str(tmp_path)).status == 0
    for arguments in (
        ("topic", "delete", topic),
        ("group", "reset", f"g-{topic}", topic, "--to", "latest"),
        ("share", "seek", "g", topic, "--to", "earliest"),
        ("share", "purge", "g", topic),
        ("share", "delete", "g", topic),
        ("share", "dlq", "redrive", f"{topic}-dead"),
        ("token", "revoke", "nobody"),
        ("backup", "prune", str(tmp_path), "--keep", 1),
    ):
        refused = wings(*arguments)
        assert (refused.status, refused.out) == (2, "")
        assert "--yes: no terminal to ask for confirmation" in refused.error
