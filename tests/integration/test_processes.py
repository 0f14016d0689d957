"""`wings serve --processes`: several processes of one server over one data directory."""

import os
import re
import signal
import socket
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from uuid import uuid4

import httpx
import pyarrow.flight as flight
import pytest
from fix_postgres import PostgresServer
from flight_calls import act, create_topic, get, numbers, push
from forked_commands import FORKED
from server_processes import children, is_running, serves, serving
from share_calls import Member, create_group
from waiting import until

import wings_client
from wings_core.data_directory import DataDirectory
from wings_core.errors import InvalidArgument, WingsError
from wings_core.metadata.remote import RemoteMetadata
from wings_server.metadata.process import MetadataServer
from wings_server.processes.parent import Processes
from wings_server.processes.siblings import merged
from wings_server.settings import Address, MetadataSettings, Settings
from wings_server.testing import ServerProcess, node_process, server_process

SECONDS = 30.0
LONG_MS = 30_000

LATE = """
import time
from wings_server.processes import child, siblings

siblings.LOOK_SECONDS, siblings.ANSWER_SECONDS_MAX = 1_000.0, 0.5

class Siblings(siblings.Siblings):
    def start(self, is_ready, metrics):
        at = time.monotonic() + 1.0
        super().start(lambda: is_ready() and time.monotonic() > at, metrics)

child.Siblings = Siblings
"""
"""What has some processes look at the others once, and too early."""


def status_of(server: ServerProcess, path: str) -> int:
    """Ask over HTTP; returns 0 where the process that took the connection was just killed."""
    try:
        return httpx.get(f"{server.http}{path}", timeout=SECONDS).status_code
    except httpx.TransportError:
        return 0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[ServerProcess]:
    with server_process(tmp_path_factory.mktemp("processes"), flags=["--processes", "2"]) as server:
        yield server


def nodes_of(server: ServerProcess) -> list[str]:
    return [each["flight"] for each in act(server.client(), "list-nodes")]


def test_all_processes_serve_one_log_and_name_each_other(
    server: ServerProcess, new_topic_id: str
) -> None:
    listed = act(server.client(), "list-nodes")
    assert len(listed) == 2
    assert server.flight in {each["flight"] for each in listed}
    assert {each["http"] for each in listed} == {server.http}
    assert all(each["since"] for each in listed)
    create_topic(server.client(), new_topic_id, ["n: int64"])
    for number, address in enumerate(nodes_of(server)):
        with flight.FlightClient(address) as client:
            push(client, new_topic_id, numbers(number))
            found = get(client, kind="scan", topic=new_topic_id)
            assert found.column("n") == [*range(number + 1)]

    def locations() -> set[str]:
        path = flight.FlightDescriptor.for_path(new_topic_id)
        (endpoint,) = server.client().get_flight_info(path).endpoints
        return {each.uri.decode() for each in endpoint.locations}

    until(lambda: locations() == set(nodes_of(server)))  # Each reads the list now and then.


def test_http_is_one_port_and_answers_for_all(server: ServerProcess, new_topic_id: str) -> None:
    create_topic(server.client(), new_topic_id, ["n: int64"])
    for address in nodes_of(server):
        with flight.FlightClient(address) as client:
            push(client, new_topic_id, numbers(1, 2, 3))
    text = httpx.get(f"{server.http}/metrics").text
    rows = re.findall(r'^wings_push_rows_total\{process="(\d)",.*?\} (\S+)$', text, re.MULTILINE)
    assert {process for process, _ in rows} == {"0", "1"}, text
    assert sum(float(count) for _, count in rows) >= 6
    heads = re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)
    assert len(heads) == len(set(heads))


def test_each_process_commits_to_the_tables_of_topics(
    server: ServerProcess, new_topic_id: str
) -> None:
    pytest.importorskip("pyiceberg")
    addresses = nodes_of(server)
    config = {"table": "iceberg", "tier_after_ms": 0}
    create_topic(server.client(), new_topic_id, ["n: int64"])
    act(server.client(), "alter-topic", topic=new_topic_id, config=config)
    for number, address in enumerate(addresses):
        with flight.FlightClient(address) as client:
            push(client, new_topic_id, numbers(number))
            assert act(client, "maintain", topic=new_topic_id)["failures"] == 0
            told = act(client, "describe-topic", topic=new_topic_id)["table"]
            assert (told["rows"], told["lag_rows"]) == (number + 1, 0)
    with wings_client.connect(addresses) as client:
        assert set(client.table(new_topic_id).scan().to_arrow()["n"].to_pylist()) == {0, 1}


def test_a_process_that_was_killed_serves_again_where_it_was(
    server: ServerProcess, new_topic_id: str
) -> None:
    before = nodes_of(server)
    create_topic(server.client(), new_topic_id, ["n: int64"])
    with wings_client.connect(before) as client:
        for number, pid in enumerate(serving(server.pid)):
            client.push(new_topic_id, {"n": [number]})
            os.kill(pid, signal.SIGKILL)
            until(lambda pid=pid: not is_running(pid))
            until(lambda: all(map(serves, before)), 4 * SECONDS)
            assert status_of(server, "/healthz") == 200
        assert client.scan(new_topic_id).read_all()["n"].to_pylist() == [0, 1]
    assert nodes_of(server) == before
    for address in before:
        with flight.FlightClient(address) as client:
            assert get(client, kind="scan", topic=new_topic_id).column("n") == [0, 1]


def test_a_spare_takes_the_place_of_a_process_that_was_killed(server: ServerProcess) -> None:
    until(lambda: len(children(server.pid)) == 3)
    one, other = serving(server.pid)
    (spare,) = set(children(server.pid)) - {one, other}
    os.kill(one, signal.SIGKILL)
    until(lambda: set(serving(server.pid)) == {other, spare}, 4 * SECONDS)
    until(lambda: len(children(server.pid)) == 3, 4 * SECONDS)
    (later,) = set(children(server.pid)) - {other, spare}
    os.kill(later, signal.SIGKILL)  # It is noticed where it is wanted.
    until(lambda: not is_running(later))
    os.kill(server.pid, signal.SIGSTOP)  # It starts none before that was seen.
    try:
        os.kill(other, signal.SIGKILL)
        until(lambda: status_of(server, "/readyz") == 503)
    finally:
        os.kill(server.pid, signal.SIGCONT)
    until(lambda: len(set(serving(server.pid)) - {other}) == 2, 4 * SECONDS)
    until(lambda: status_of(server, "/readyz") == 200, 4 * SECONDS)


def test_all_are_ready_once_the_line_says_so(tmp_path: Path) -> None:
    """One that looked at the others before those served looks again before the line is printed."""
    (tmp_path / "sitecustomize.py").write_text(FORKED + LATE)
    environment = {"PYTHONPATH": str(tmp_path)}
    flags = ["--processes", "3"]
    with (
        server_process(tmp_path / "data", flags=flags, environment=environment) as server,
        ThreadPoolExecutor(16) as pool,
    ):
        # Many at a time, by connections of their own, so that each process takes some.
        asked = [pool.submit(status_of, server, "/readyz") for _ in range(160)]
        assert {each.result() for each in asked} == {200}


def test_workers_at_different_processes_share_a_group(
    server: ServerProcess, new_topic_id: str
) -> None:
    one, other = (flight.FlightClient(each) for each in nodes_of(server))
    with one, other:
        create_topic(one, new_topic_id, ["n: int64"])
        push(one, new_topic_id, numbers(*range(4)))
        create_group(one, new_topic_id)
        mine, theirs = Member(one, new_topic_id), Member(other, new_topic_id, name="two")
        (first,) = mine.acquire(max_messages=2)
        (rest,) = theirs.acquire(timeout_ms=LONG_MS)
        assert (first.offsets, rest.offsets) == ([0, 1], [2, 3])


def test_a_stop_drains_all_and_the_directory_opens_without_processes(tmp_path: Path) -> None:
    with server_process(tmp_path, flags=["--processes", "2"]) as server:
        create_topic(server.client(), "t", ["n: int64"])
        push(server.client(), "t", numbers(1))
        started = children(server.pid)
        assert len(started) == 3  # And the spare.
        assert server.terminate() == 0
        assert not any(is_running(each) for each in started)
    with server_process(tmp_path) as server:
        assert get(server.client(), kind="scan", topic="t").column("n") == [1]
        (node,) = act(server.client(), "list-nodes")
        assert (node["flight"], node["http"]) == (server.flight, server.http)


def test_leases_of_processes_that_have_all_ended_are_free(tmp_path: Path) -> None:
    settings = MetadataSettings(data_dir=tmp_path, listen=Address("127.0.0.1", 0))

    def start() -> bool:
        """Start what serves their metadata; return whether a lease of before is free."""
        server = MetadataServer(settings, nodes_here=True)
        server.start()
        try:
            with closing(RemoteMetadata(str(server.address))) as metadata:
                return metadata.maintenance.acquire_lease("drain", uuid4().hex, 3_600) is not None
        finally:
            server.stop()

    assert start()
    with DataDirectory.open(tmp_path, "pages"):  # Of a process whose parent was killed.
        assert not start()
    assert start()


def test_processes_over_postgresql_and_an_object_store(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    url, hot = postgres.new_database(), (tmp_path / "objects").as_uri()
    with node_process(url, hot, flags=["--processes", "2"]) as server:
        create_topic(server.client(), "t", ["n: int64"])
        for number, address in enumerate(nodes_of(server)):
            with flight.FlightClient(address) as client:
                push(client, "t", numbers(number))
                assert get(client, kind="scan", topic="t").column("n") == [*range(number + 1)]


def settings(directory: Path, **others: object) -> Settings:
    given = {"flight": Address("127.0.0.1", 0), "http": Address("127.0.0.1", 0), **others}
    return Settings.model_validate({"data_dir": directory, "processes": 2, **given})


def test_ports_follow_the_one_named_and_one_that_is_taken_is_named(tmp_path: Path) -> None:
    for _ in range(20):
        with free_ports(2) as (first, _):
            pass
        processes = Processes(settings(tmp_path, flight=Address("127.0.0.1", first)))
        try:
            processes.start()
        except WingsError:
            continue  # Another program was quicker.
        try:
            assert processes.flight == [f"grpc://127.0.0.1:{first + each}" for each in range(2)]
        finally:
            processes.stop()
        with free_ports(2) as (before, taken):
            pass
        with socket.create_server(("127.0.0.1", taken)), pytest.raises(WingsError) as refused:
            Processes(settings(tmp_path, flight=Address("127.0.0.1", before))).start()
        if str(before) in str(refused.value):
            continue  # Another program was quicker.
        assert str(taken) in str(refused.value)
        return
    pytest.fail("no two ports were free")


@pytest.mark.usefixtures("started_anew")
def test_a_process_is_an_interpreter_of_its_own(tmp_path: Path) -> None:
    processes = Processes(settings(tmp_path, processes=1))  # All other tests have them forked.
    processes.start()
    try:
        assert serves(processes.flight[0])
    finally:
        processes.stop()


@contextmanager
def free_ports(count: int) -> Generator[Sequence[int]]:
    """Have so many ports that follow each other, for as long as the `with` lasts."""
    for _ in range(100):
        first = socket.create_server(("127.0.0.1", 0))
        port = first.getsockname()[1]
        opened = [first]
        try:
            opened += [socket.create_server(("127.0.0.1", port + each)) for each in range(1, count)]
        except OSError:
            continue
        else:
            yield [port + each for each in range(count)]
            return
        finally:
            for each in opened:
                each.close()
    raise AssertionError("no ports are free")


@pytest.mark.parametrize(
    ("others", "says"),
    [
        ({"metadata_url": "postgresql://host/db"}, "--hot"),
        ({"hold_replicas": "a:1,b:2,c:3"}, "--hold-replicas"),
        ({"flight": Address("127.0.0.1", 65_535)}, "there are not 2 ports"),
        (
            {"flight": Address("127.0.0.1", 7777), "http": Address("127.0.0.1", 7778)},
            "among the ports of Flight, 7777 to 7778",
        ),
    ],
)
def test_what_processes_cannot_share_is_refused_before_anything_is_made(
    others: dict[str, object], says: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidArgument, match=says):
        Processes(settings(tmp_path / "data", **others)).start()
    assert not (tmp_path / "data").exists()


def test_metrics_are_merged_by_family() -> None:
    one = b'# HELP a A.\n# TYPE a counter\na{x="1"} 1.0\na{x="}"} 2.0\n# TYPE b gauge\nb 3.0\n'
    other = b'# HELP a A.\n# TYPE a counter\na{x="1"} 4.0\n# TYPE c gauge\nc 5.0\n'
    assert merged({0: one, 3: other}).decode().splitlines() == [
        "# HELP a A.",
        "# TYPE a counter",
        'a{process="0",x="1"} 1.0',
        'a{process="0",x="}"} 2.0',
        'a{process="3",x="1"} 4.0',
        "# TYPE b gauge",
        'b{process="0"} 3.0',
        "# TYPE c gauge",
        'c{process="3"} 5.0',
    ]
