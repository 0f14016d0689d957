"""`wings share work`: real commands, started by a real process."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

import pytest
from server_processes import until

import wings_client
from wings_client import Client
from wings_server.testing import RunningServer

SECONDS = 150.0
"""Far beyond what any command takes: a busy machine is no failure."""


@pytest.fixture
def topic(server: RunningServer, client: Client, new_topic_id: str) -> str:
    """A topic keyed by `k`, of three messages `n` in partition `a b`, with a group `billing`."""
    client.create_topic(new_topic_id, {"k": "string", "n": "int64"}, "k")
    client.push(new_topic_id, {"k": ["a b"] * 3, "n": [0, 1, 2]})
    config = {"start": "earliest", "dlq_topic": f"{new_topic_id}-dead"}
    client.create_share_group(
        "billing", new_topic_id, {**config, "lock_duration_ms": 12 * 3_600_000}
    )
    return new_topic_id


@pytest.fixture
def client(server: RunningServer) -> Generator[Client]:
    with wings_client.connect(server.flight) as client:
        yield client


@contextmanager
def working(
    server: RunningServer, topic: str, *arguments: str
) -> Generator["subprocess.Popen[bytes]"]:
    """Start the command; kills it where the block fails."""
    child = subprocess.Popen(
        [sys.executable, "-m", "wings_client.cli", "share", "work", "billing", topic, *arguments],
        env={**os.environ, "WINGS_ENDPOINT": server.flight},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with child:
        try:
            yield child
        except BaseException:
            child.kill()
            raise


def ran(server: RunningServer, topic: str, *arguments: str) -> tuple[int, str, str]:
    """Return the status and output of the command, once it has ended."""
    with working(server, topic, *arguments) as child:
        out, err = child.communicate(timeout=SECONDS)
    return child.returncode, out.decode(), err.decode()


def state(client: Client, topic: str) -> tuple[int, int]:
    (partition,) = client.share_group("billing", topic).partitions
    return partition.lag, partition.in_flight


def output(child: "subprocess.Popen[bytes]") -> IO[bytes]:
    return cast("IO[bytes]", child.stdout)


def test_a_command_gets_the_row_and_where_it_is(
    server: RunningServer, client: Client, topic: str
) -> None:
    command = "cat; echo $WINGS_TOPIC,$WINGS_PARTITION,$WINGS_OFFSET,$WINGS_DELIVERY_COUNT"
    status, out, err = ran(server, topic, "--exec", command, "--limit", "3")
    lines = out.splitlines()
    assert [json.loads(line) for line in lines[::2]] == [{"k": "a b", "n": n} for n in range(3)]
    full = client.topic(topic).name
    assert lines[1::2] == [f"{full},a b,{n},1" for n in range(3)]
    assert (status, err) == (0, "3 accepted\n")
    assert state(client, topic) == (0, 0)


def test_a_large_row_reaches_a_command_that_reads_nothing(
    server: RunningServer, client: Client, topic: str
) -> None:
    large = f"{topic}-large"
    client.create_topic(large, {"text": "string"})
    client.create_share_group("billing", large, {"start": "earliest"})
    client.push(large, {"text": ["x" * 1_000_000]})
    assert ran(server, large, "--exec", "true", "--limit", "1") == (0, "", "1 accepted\n")


def test_the_exit_status_says_what_becomes_of_a_message(
    server: RunningServer, client: Client, topic: str
) -> None:
    command = """
        case $WINGS_OFFSET,$WINGS_DELIVERY_COUNT in
            0,*) echo hopeless >&2; echo >&2; exit 65;;
            1,1) echo begins >&2; printf 'not yet' >&2; exit 3;;
            1,2) kill -9 $$;;
        esac
    """
    client.alter_share_group("billing", topic, {"delivery_limit": 2})
    status, _, err = ran(server, topic, "--exec", command, "--limit", "4", "--backoff", "0.001")
    assert status == 0
    assert "message 1 of a b: exit status 3\n" in err
    assert "begins\nnot yet" in err, "what a command says is passed on"
    assert err.splitlines()[-1] == "1 accepted, 2 released, 1 rejected, 2 dead"
    letters = client.fetch(f"{topic}-dead", offset=0, timeout=0).table.to_pylist()
    assert [(each["source_offset"], each["reason"], each["error"]) for each in letters] == [
        (0, "rejected", "hopeless"),
        (1, "delivery_limit", "killed by SIGKILL"),
    ]
    assert state(client, topic) == (0, 0)


def test_another_status_may_reject(server: RunningServer, client: Client, topic: str) -> None:
    arguments = ("--exec", "exit 4", "--reject-status", "4", "--limit", "3")
    status, _, err = ran(server, topic, *arguments)
    assert (status, err.splitlines()[-1]) == (0, "0 accepted, 3 rejected, 3 dead")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_the_running_commands_finish(
    server: RunningServer, client: Client, topic: str, tmp_path: Path, number: int
) -> None:
    gate = tmp_path / "gate"
    command = f"echo begun; until [ -e {gate} ]; do sleep 0.05; done; echo done"
    with working(server, topic, "--exec", command, "--concurrency", "2") as child:
        assert [output(child).readline() for _ in range(2)] == [b"begun\n"] * 2
        child.send_signal(number)
        assert child.stderr is not None
        heeded = child.stderr.readline()
        assert heeded == b"waiting for the 2 commands that run; a second Ctrl-C kills\n"
        with client.share_consumer("billing", topic, timeout=SECONDS) as other:
            assert next(other).offsets == [2]
        assert child.poll() is None
        gate.touch()
        out, err = child.communicate(timeout=SECONDS)
    assert out == b"done\n" * 2
    assert err == b"2 accepted\n"
    assert child.returncode == (130 if number == signal.SIGINT else 0)
    assert state(client, topic) == (1, 0)


def test_a_second_ctrl_c_kills_the_commands_with_what_they_started(
    server: RunningServer, client: Client, topic: str
) -> None:
    command = "echo begun; sleep 3600 | cat; echo done"
    with working(server, topic, "--exec", command) as child:
        assert output(child).readline() == b"begun\n"
        child.send_signal(signal.SIGINT)
        assert child.stderr is not None
        assert child.stderr.readline().startswith(b"waiting for the command that runs")
        child.send_signal(signal.SIGINT)
        # The end of its output: all processes that hold it are gone.
        out, _ = child.communicate(timeout=SECONDS)
    assert (child.returncode, out) == (130, b"")
    until(lambda: state(client, topic) == (3, 0))  # The server has noticed that it is gone.


def test_a_group_that_is_not_there_is_one_line(server: RunningServer, topic: str) -> None:
    arguments = [sys.executable, "-m", "wings_client.cli", "share", "work", "none", topic]
    environment = {**os.environ, "WINGS_ENDPOINT": server.flight}
    done = subprocess.run(
        [*arguments, "--exec", "true"], env=environment, capture_output=True, timeout=SECONDS
    )
    assert (done.returncode, done.stderr.count(b"\n")) == (1, 1)
    assert b"has no group 'none'" in done.stderr


def test_with_each_batch_a_command_gets_the_rows_of_a_delivery(
    server: RunningServer, client: Client, topic: str
) -> None:
    command = 'echo "$WINGS_OFFSET $WINGS_END_OFFSET $WINGS_DELIVERY_COUNT"; cat'
    status, out, err = ran(
        server, topic, "--exec", command, "--each", "batch", "--max-messages", "2", "--limit", "3"
    )
    first, *rest = out.splitlines()
    assert (status, first) == (0, "0 1 1"), err
    assert [json.loads(line)["n"] for line in (*rest[:2], rest[3])] == [0, 1, 2]
    assert rest[2] == "2 2 1"
    assert err.splitlines()[-1] == "3 accepted"
    assert state(client, topic) == (0, 0)


def test_a_batch_whose_command_fails_is_released_as_one(
    server: RunningServer, client: Client, topic: str
) -> None:
    status, _, err = ran(
        server, topic, "--exec", "exit 65", "--each", "batch", "--limit", "3", "--prefetch"
    )
    told, logged, counts = err.splitlines()
    assert (status, told) == (0, "messages 0 to 2 of a b: exit status 65")
    assert logged.endswith("offset 0 to 2, delivery 1, now dead: exit status 65")
    assert counts == "0 accepted, 3 rejected, 3 dead"
    assert state(client, topic) == (0, 0)


def test_a_command_that_hangs_loses_its_message_where_renewals_end(
    server: RunningServer, client: Client, topic: str
) -> None:
    client.alter_share_group("billing", topic, {"lock_duration_ms": 5_000})
    hangs = 'test "$WINGS_OFFSET" != 0 || { echo hangs; exec sleep 1000; }'
    with working(server, topic, "--exec", hangs, "--renew", "0", "--limit", "3") as hanging:
        assert output(hanging).readline() == b"hangs\n"
        status, _, err = ran(server, topic, "--exec", "true", "--limit", "3")
        assert (status, err.splitlines()[-1]) == (0, "3 accepted")
        hanging.send_signal(signal.SIGTERM)
        assert b"waiting" in cast("IO[bytes]", hanging.stderr).readline()
        hanging.send_signal(signal.SIGTERM)  # Kills the command too.


def test_a_function_of_a_module_is_a_handler(
    server: RunningServer,
    client: Client,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "billing_rows.py").write_text(
        "from dataclasses import dataclass\n"
        "@dataclass\n"
        "class Order:\n    k: str\n    n: int\n"
        "def bill(order: Order) -> None:\n    print(order.k, order.n, flush=True)\n"
    )
    with monkeypatch.context() as patch:  # Elsewhere, commands start anew, for a second each.
        patch.chdir(tmp_path)
        status, out, err = ran(server, topic, "--python", "billing_rows:bill", "--limit", "3")
    assert (status, sorted(out.splitlines())) == (0, ["a b 0", "a b 1", "a b 2"]), err
    assert "3 accepted" in err
    assert state(client, topic) == (0, 0)
    for wrong in (
        ("--python", "json:no"),
        ("--python", "nothing"),
        (),
        ("--exec", "x", "--python", "y:z"),
    ):
        status, _, err = ran(server, topic, *wrong)
        assert status == 2, err
