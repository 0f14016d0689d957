"""`wings serve` as a real process: its start, its refusals, its drain and its end."""

import ctypes
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pyarrow as pa
import pyarrow.flight as flight
import pytest
from fix_postgres import PASSWORD, PostgresServer
from flight_calls import Stream, create_topic, get, numbers, push
from forked_commands import FORKED, ForkingPopen
from share_calls import ShareStreamCall, create_group

from wings_core import memory
from wings_core.data_directory import DataDirectory
from wings_core.deployments import OneDirectory
from wings_core.errors import Unavailable
from wings_core.log import Log
from wings_server.flight import service
from wings_server.process import Server
from wings_server.settings import Address, Settings
from wings_server.testing import RunningServer, running_server, server_process

as_a_shell_does = pytest.mark.usefixtures("started_anew")
"""The others fork what they start, as all tests do."""

READY = re.compile(r"wings ready flight=grpc://127\.0\.0\.1:(\d+) http=http://127\.0\.0\.1:(\d+)\n")
ANY_PORT = Address("127.0.0.1", 0)
WAIT_SECONDS = 120


def serve_command(data_dir: Path, *flags: str) -> list[str]:
    command = [sys.executable, "-m", "wings_client.cli", "serve", "--data-dir", str(data_dir)]
    return [*command, "--flight", "127.0.0.1:0", "--http", "127.0.0.1:0", *flags]


def refused(data_dir: Path, *flags: str) -> "subprocess.CompletedProcess[str]":
    """Run a server that must not start, to its end."""
    return subprocess.run(
        serve_command(data_dir, *flags),
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=False,
    )


@contextmanager
def stopping(server: RunningServer) -> Generator[None]:
    """Stop a server beside what is done in the `with`, which also waits for the stop's end."""
    stopper = threading.Thread(target=server.stop)
    stopper.start()
    try:
        yield
    finally:
        stopper.join()


@as_a_shell_does
def test_the_ready_line_is_all_that_is_printed_and_arrow_may_take_half_of_the_memory(
    tmp_path: Path,
) -> None:
    with subprocess.Popen(
        serve_command(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        ready = READY.fullmatch(child.stdout.readline())
        try:
            assert ready is not None
            assert 0 not in (int(ready[1]), int(ready[2]))
            with flight.FlightClient(f"grpc://127.0.0.1:{ready[1]}") as client:
                assert list(client.list_flights()) == []
            assert httpx.get(f"http://127.0.0.1:{ready[2]}/readyz").status_code == 200
            # Of Arrow, half of the machine's memory: one that is forked has none of its own.
            maps = Path(f"/proc/{child.pid}/maps").read_text(encoding="ascii").splitlines()
            ends = [[int(end, 16) for end in line.split()[0].split("-")] for line in maps]
            assert max(end - begin for begin, end in ends) >= memory.machine_bytes() // 2
        finally:
            child.terminate()
            rest, logs = child.communicate(timeout=WAIT_SECONDS)
    assert (child.returncode, rest) == (0, "")
    assert [json.loads(line)["event"] for line in logs.splitlines()] == [
        "serving",
        "stopping",
        "stopped",
    ]


def test_a_server_without_tables_does_not_import_what_they_need() -> None:
    code = """import sys
from wings_server.testing import running_server
for name in [each for each in sys.modules if each.startswith("pyiceberg")]:
    del sys.modules[name]  # Of the process that forks.
with running_server():
    print("pyiceberg" in sys.modules)
"""
    ran = subprocess.run(
        [sys.executable, "-c", FORKED + code], check=True, capture_output=True, text=True
    )
    assert ran.stdout == "False\n"


def test_an_ipv6_host_stands_in_brackets() -> None:
    with server_process(flags=["--flight", "[::1]:0", "--http", "[::1]:0"]) as server:
        assert re.fullmatch(r"grpc://\[::1\]:\d+", server.flight)
        assert httpx.get(f"{server.http}/healthz").status_code == 200
        for path in ("healthz", "readyz"):
            head = httpx.head(f"{server.http}/{path}")
            assert (head.status_code, head.content) == (200, b"")
        assert list(server.client().list_flights()) == []
        assert server.terminate() == 0


@pytest.mark.skipif(sys.platform != "linux", reason="threads are named as Linux does")
def test_a_signal_that_comes_to_another_thread_is_heard_as_well(tmp_path: Path) -> None:
    with server_process(tmp_path) as server:
        threads = [int(task.name) for task in Path(f"/proc/{server.pid}/task").iterdir()]
        tgkill = ctypes.CDLL(None).tgkill
        # To one thread of a process, as the kernel does when the main one is not free to take it.
        # Some end by themselves meanwhile.
        others = sorted((thread for thread in threads if thread != server.pid), reverse=True)
        assert any(tgkill(server.pid, another, signal.SIGTERM) == 0 for another in others)
        assert server.wait() == 0, server.stderr


def test_an_open_and_idle_push_does_not_hold_up_the_end() -> None:
    # The drain would last far longer than is waited for the end.
    with server_process(flags=["--drain-seconds", "600"]) as server:
        create_topic(server.client(), "t", ["n: int64"])
        stream = Stream(server.client(), numbers(0).schema, "t")
        stream.push(numbers(1))
        assert server.terminate() == 0, server.stderr
        with pytest.raises(flight.FlightUnavailableError):
            stream.close()


def test_new_calls_are_refused_while_it_drains_and_readiness_is_withdrawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(service, "DRAIN_SECONDS_MAX", 60.0)
    with running_server(drain_seconds=60.0) as server:
        client, other = server.client(), server.client()
        create_topic(client, "t", ["n: int64"])
        push(client, "t", numbers(1))
        create_group(client, "t")
        stream = ShareStreamCall(client, "t")
        leased = stream.delivery()
        with httpx.Client(base_url=server.http) as http:
            assert http.get("/readyz").status_code == 200
            with stopping(server):
                while (answer := http.get("/readyz")).status_code == 200:
                    pass
                assert answer.status_code == 503
                assert answer.json()["code"] == "UNAVAILABLE"
                assert http.get("/healthz").status_code == 200
                with pytest.raises(flight.FlightUnavailableError):
                    list(other.list_flights())
                stream.acknowledge(leased.ack("accept"))  # What the drain waits for.


@pytest.mark.usefixtures("preload_path")
def test_commands_are_forked_where_tests_of_spark_ran_before() -> None:
    command = [sys.executable, "-m", "wings_client.cli", "--version"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as child:
        assert isinstance(child, ForkingPopen)
        assert child.is_forked
    assert child.returncode == 0


@as_a_shell_does
def test_a_command_ends_by_itself_as_it_does_at_a_shell(server: RunningServer) -> None:
    create_topic(server.client(), "ends", ["n: int64"])
    push(server.client(), "ends", numbers(1, 2, 3))
    command = [sys.executable, "-m", "wings_client.cli", "tail", "ends", "--from", "earliest"]
    with subprocess.Popen(
        [*command, "--format", "json", "--endpoint", server.flight],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as child:
        assert child.stdout is not None
        assert json.loads(child.stdout.readline())["n"] == 1
        child.send_signal(signal.SIGINT)
        _, said = child.communicate(timeout=WAIT_SECONDS)
    assert child.returncode == 130
    (line,) = said.splitlines()
    assert line.startswith(b"stopped after ")


def test_a_second_signal_ends_it_at_once() -> None:
    with server_process() as server:
        os.kill(server.pid, signal.SIGSTOP)  # So that the first does not end it before the second.
        os.kill(server.pid, signal.SIGTERM)
        os.kill(server.pid, signal.SIGINT)
        os.kill(server.pid, signal.SIGCONT)
        assert server.wait() in {128 + signal.SIGTERM, 128 + signal.SIGINT}


def test_a_second_server_on_the_directory_is_refused_by_name(tmp_path: Path) -> None:
    with server_process(tmp_path) as server:
        result = refused(tmp_path)
        assert (result.returncode, result.stdout) == (1, "")
        assert result.stderr == (
            f"wings: {tmp_path} is in use by another server, process {server.pid}\n"
        )
        assert list(server.client().list_flights()) == []


def test_the_helper_shows_why_a_server_did_not_start(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").touch()
    with (
        pytest.raises(RuntimeError, match=r"status 1:\nwings: .* it holds mine\.txt"),
        server_process(tmp_path),
    ):
        pytest.fail("it started")


@pytest.mark.parametrize("listener", ["flight", "http"])
def test_a_port_in_use_is_named_and_nothing_is_left_open(listener: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = Address("127.0.0.1", taken.getsockname()[1])
        free = Settings(data_dir=tmp_path, flight=ANY_PORT, http=ANY_PORT)
        settings = free.model_copy(update={listener: address})
        with pytest.raises(Unavailable, match=f"^cannot listen on {address}: Address already in"):
            Server(settings).start()
    with running_server(tmp_path) as server:
        assert list(server.client().list_flights()) == []


def test_bad_settings_are_named_with_their_source(tmp_path: Path) -> None:
    config = tmp_path / "wings.toml"
    config.write_text("[limits]\nbatch_size = 3\n")
    data_dir = tmp_path / "data"
    result = refused(data_dir, "--config", str(config))
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith(
        f"wings: bad settings: {config}: limits.batch_size: there is no such setting"
    )
    assert result.stderr.count("\n") == 1
    assert not data_dir.exists()


def test_why_it_cannot_start_over_postgres_is_said_without_the_password(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own"
    with DataDirectory.open(own) as directory:
        Log.open(OneDirectory(directory)).close()
    wrong = f"mysql://wings:{PASSWORD}@127.0.0.1/db"
    for url, data_dir, reason in (
        (wrong, tmp_path / "new", "expected postgresql://"),
        (postgres.new_database(), own, "has its metadata in metadata.sqlite"),
    ):
        monkeypatch.setenv("WINGS_METADATA_URL", url)
        done = refused(data_dir)
        assert done.returncode != 0
        assert reason in done.stderr
        assert PASSWORD not in done.stdout + done.stderr


def test_settings_of_a_file_are_in_force(tmp_path: Path) -> None:
    config = tmp_path / "wings.toml"
    config.write_text('log_level = "error"\n[limits]\nbatch_bytes_max = 64\n')
    with server_process(tmp_path / "data", flags=["--config", str(config)]) as server:
        create_topic(server.client(), "t", ["n: int64"])
        stream = Stream(server.client(), numbers(0).schema, "t")
        assert stream.push(numbers(*range(9)))["error"]["code"] == "BATCH_TOO_LARGE"
        with pytest.raises(flight.FlightServerError):
            stream.close()
        assert server.terminate() == 0
        assert server.stderr == ""


def test_a_stop_in_this_process_leaves_the_directory_to_the_next(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        create_topic(server.client(), "t", ["n: int64"])
        push(server.client(), "t", numbers(1))
        server.stop()
        with pytest.raises(flight.FlightUnavailableError):
            list(server.client().list_flights())
        with running_server(tmp_path) as second:
            assert get(second.client(), topic="t", offset=0).column("n") == [1]


def test_a_temporary_directory_is_removed_at_the_end(server: RunningServer) -> None:
    assert server.data_dir.is_dir()
    with running_server() as own:
        data_dir = own.data_dir
        assert data_dir.is_dir()
        client = own.client()
        client.close()
    assert not data_dir.parent.exists()


def check(data_dir: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "wings_client.cli", "check", str(data_dir)],
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=False,
    )


def test_check_reads_a_directory_and_tells_that_all_is_right(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        create_topic(server.client(), "t", ["n: int64", "k: string"], "k")
        push(server.client(), "t", pa.record_batch({"n": [1, 2, 3], "k": ["a", "b", "a"]}))
        beside = check(tmp_path)
    for result in (beside, check(tmp_path)):
        assert (result.returncode, result.stderr) == (0, "")
        first, last = result.stdout.splitlines()
        assert first.startswith(f"{tmp_path}: 1 topic, 2 partitions, 2 pages, 3 rows, ")
        assert last == "all right"


@pytest.mark.usefixtures("pushes_to_storage")
def test_check_names_a_damaged_page_and_fails(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        create_topic(server.client(), "t", ["n: int64"])
        push(server.client(), "t", numbers(*range(1_000)))
    (segment,) = (file for file in (tmp_path / "segments").iterdir() if file.stat().st_size)
    content = bytearray(segment.read_bytes())
    content[5_000] ^= 0xFF
    segment.write_bytes(content)
    result = check(tmp_path)
    assert (result.returncode, result.stderr) == (1, "")
    _, problem, last = result.stdout.splitlines()
    assert problem.startswith("problem: tenants/default/namespaces/default/topics/t, ")
    assert segment.name in problem
    assert last == "1 problem found"


def test_check_says_why_it_cannot_check(tmp_path: Path) -> None:
    result = check(tmp_path / "none")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == f"wings: {tmp_path / 'none'} does not exist\n"
