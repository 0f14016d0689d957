"""Workers of SQL: the processes that parse and run statements."""

# Newer clients than those of CancelQuery cancel by Flight itself.
# pyright: reportDeprecated=false

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest
from breakable_proxy import breakable
from fix_calls import Calls
from waiting import until

import wings_client
from wings_client import InvalidSql, ResourceExhausted
from wings_core.errors import Unavailable
from wings_core.fetch.fetcher import Cancel
from wings_core.limits import Limits
from wings_core.protocol.flight_sql import flight_sql_pb2 as pb
from wings_core.sql import Query
from wings_core.sql.workers import BEYOND_BYTES, StatementWorker
from wings_core.sql_process.interface import Channel
from wings_server.flight.boundary import ClientGone
from wings_server.flight_sql.messages import Handle, pack, unpack_as
from wings_server.testing import RunningServer, running_server, server_process

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc tells of processes")

MEMORY_BYTES = 256 << 20

LARGE = """
with text as (select string_agg(i::varchar || 'xxxxxxxx', '') as t from range(600000) r(i))
select sum(length(t || j::varchar)) from text, range(1000000) s(j)
"""
"""A text of 8 MB, joined to a number in each row of a cross join."""

ENDLESS = "select sum(a.i * b.i) from range(10000000) a(i), range(10000000) b(i)"

WIDE = f"select * from (select {', '.join(['i'] * 4000)} from range(1) r(i))"
"""Its planning takes seconds."""


started: list[StatementWorker] = []


class RecordedWorker(StatementWorker):
    """One that `started` has too."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        started.append(self)


@pytest.mark.parametrize("has_run", [False, True])
def test_a_closed_log_refuses_sql_and_starts_no_worker(
    monkeypatch: pytest.MonkeyPatch, *, has_run: bool
) -> None:
    monkeypatch.setattr("wings_core.sql.workers.StatementWorker", RecordedWorker)
    before = workers()
    with running_server() as server:
        if has_run:
            opened(server, "select 1").close()
        server.stop()
        with pytest.raises(Unavailable, match="the log is closed"):
            opened(server, "select 1")
        assert workers() == before


@pytest.fixture(scope="module")
def bounded() -> Iterator[RunningServer]:
    """A server whose queries have 256 MiB."""
    limits = Limits(sql_memory_bytes_max=MEMORY_BYTES)
    with (
        pytest.MonkeyPatch.context() as patch,
        running_server(limits=limits) as server,
        wings_client.connect(server.flight) as client,
    ):
        patch.setattr("wings_core.sql.workers.StatementWorker", RecordedWorker)
        client.create_topic("places", {"id": "int64", "name": "string"})
        client.create_topic("visits", {"place": "int64", "n": "int64"})
        client.push("places", [{"id": n, "name": f"p{n}"} for n in range(100)])
        for first in range(0, 3_000, 1_000):
            rows = [{"place": n % 100, "n": n} for n in range(first, first + 1_000)]
            client.push("visits", rows)
        yield server


def opened(server: RunningServer, text: str, cancel: Cancel | None = None) -> Query:
    return server.server.log.sql.open(text, lambda _: None, cancel=cancel)


def workers() -> set[int]:
    """Return the workers of this process that have not ended."""
    return {worker.pid for worker in started if worker.alive}


def is_running(pid: int) -> bool:
    """Tell whether a process is there, and has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def children_of(pid: int) -> set[int]:
    paths = Path(f"/proc/{pid}/task").glob("*/children")
    return {int(child) for path in paths for child in path.read_text().split()}


def peak_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) << 10


@pytest.mark.usefixtures("started_anew")
def test_memory_that_duckdb_does_not_count_is_bounded(bounded: RunningServer) -> None:
    query = opened(bounded, LARGE)
    (worker,) = workers()
    most, done = [0], threading.Event()

    def look() -> None:
        while not done.wait(0.005):
            try:
                most[0] = max(most[0], peak_bytes(worker))
            except (OSError, StopIteration):
                return  # It ended.

    watch = threading.Thread(target=look)
    watch.start()
    with pytest.raises(ResourceExhausted, match="memory"):
        list(query.batches())
    done.set()
    watch.join()
    # What it has at its start is below 256 MiB.
    assert MEMORY_BYTES < most[0] < BEYOND_BYTES + 2 * MEMORY_BYTES
    assert answers(bounded)


def answers(server: RunningServer) -> bool:
    """Tell whether a worker answers."""
    batches = opened(server, "select 1 n union all select 2").batches()
    return sum(batch.num_rows for batch in batches) == 2


HOPELESS = "with a as (" * 12
"""What DuckDB's parser tries to read in so many ways that it would take hours."""


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(HOPELESS, id="hopeless"),
        # As many seconds of a core, by the same limit.
        pytest.param(f"select {'(' * 60_000}", id="deep", marks=pytest.mark.soak),
    ],
)
def test_a_text_that_takes_hours_to_parse_is_refused(bounded: RunningServer, text: str) -> None:
    with pytest.raises(ResourceExhausted, match="parsing the statement takes more time"):
        opened(bounded, text)
    assert answers(bounded)


def test_a_result_whose_columns_take_too_much_is_refused(bounded: RunningServer) -> None:
    text = f"select {', '.join(['s'] * 300)} from (select {{'{'x' * 60_000}': 1}} as s)"
    with pytest.raises(ResourceExhausted, match="the schema of a result"):
        opened(bounded, text)
    assert answers(bounded)


@pytest.fixture
def asked(calls: Calls) -> SimpleQueue[str]:
    """What processes are asked to do from now on: to `parse`, to `prepare`, and so on."""
    found: SimpleQueue[str] = SimpleQueue()

    def record(_: None, __: Channel, head: dict[str, Any], *___: object) -> None:
        found.put(next(iter(head)))

    calls.after(Channel, "send", record)
    return found


def test_parsing_is_cancelled(bounded: RunningServer, asked: SimpleQueue[str]) -> None:
    cancel = Cancel()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(opened, bounded, HOPELESS, cancel)
        assert asked.get(timeout=60) == "parse"
        waits = pool.submit(opened, bounded, "select 'another'", cancel)
        cancel.cancel(Unavailable("enough"))
        for each in (first, waits):
            with pytest.raises(Unavailable, match="enough"):
                each.result(30)
    assert answers(bounded)


def test_planning_is_cancelled(bounded: RunningServer, asked: SimpleQueue[str]) -> None:
    assert answers(bounded)
    before = workers()
    while not asked.empty():
        asked.get()
    cancel = Cancel()
    failed: list[BaseException] = []

    def run() -> None:
        try:
            opened(bounded, WIDE, cancel)
        except BaseException as error:  # noqa: BLE001 - looked at below.
            failed.append(error)

    planning = threading.Thread(target=run)
    planning.start()
    assert [asked.get(timeout=60) for _ in range(2)] == ["parse", "prepare"]
    cancel.cancel(Unavailable("the client has gone"))
    planning.join()
    assert isinstance(failed[0], Unavailable)
    assert before.isdisjoint(workers())
    assert answers(bounded)


@pytest.mark.parametrize("call", ["do_get", "get_flight_info"])
def test_a_client_that_goes_away_ends_the_planning(
    bounded: RunningServer, asked: SimpleQueue[str], call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sql = bounded.server.log.sql
    failed: list[Exception] = []
    open_query = sql.open

    def recorded(*arguments: Any, **options: Any) -> Query:
        try:
            return open_query(*arguments, **options)
        except Exception as error:
            failed.append(error)
            raise

    monkeypatch.setattr(sql, "open", recorded)
    ticket = flight.Ticket(json.dumps({"kind": "sql", "sql": WIDE}).encode())
    command = pack(pb.CommandStatementQuery(query=WIDE))
    with (
        breakable(bounded.flight) as proxy,
        flight.FlightClient(proxy.endpoint) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        calls: dict[str, Callable[[], object]] = {
            "do_get": lambda: client.do_get(ticket),
            "get_flight_info": lambda: client.get_flight_info(
                flight.FlightDescriptor.for_command(command)
            ),
        }
        called = pool.submit(calls[call])
        assert [asked.get(timeout=60) for _ in range(2)] == ["parse", "prepare"]
        proxy.stop_listening()
        assert isinstance(called.exception(60), flight.FlightUnavailableError)
    until(lambda: bool(failed))
    assert isinstance(failed[0], ClientGone)
    assert answers(bounded)


def test_a_statement_is_cancelled_by_its_info_while_it_is_planned(
    bounded: RunningServer, asked: SimpleQueue[str]
) -> None:
    ticket = flight.Ticket(
        pack(pb.TicketStatementQuery(statement_handle=Handle(sql=WIDE).to_bytes()))
    )
    endpoint = flight.FlightEndpoint(ticket, [])
    descriptor = flight.FlightDescriptor.for_command(b"")
    info = flight.FlightInfo(pa.schema([]), descriptor, [endpoint], -1, -1)
    action = flight.Action("CancelQuery", pack(pb.ActionCancelQueryRequest(info=info.serialize())))
    client = bounded.client()
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit(lambda: client.do_get(ticket).read_all())
        assert [asked.get(timeout=60) for _ in range(2)] == ["parse", "prepare"]
        (answer,) = client.do_action(action)
        with pytest.raises(flight.FlightUnavailableError, match="cancelled"):
            read.result()
    outcome = unpack_as(answer.body, pb.ActionCancelQueryResult).result
    assert outcome == pb.ActionCancelQueryResult.CANCEL_RESULT_CANCELLED
    assert answers(bounded)


def test_a_worker_that_is_killed_fails_its_query_alone(bounded: RunningServer) -> None:
    assert answers(bounded)
    (worker,) = workers()
    query = opened(bounded, ENDLESS)
    os.kill(worker, signal.SIGKILL)
    with pytest.raises(ResourceExhausted):
        list(query.batches())
    assert answers(bounded)


def test_statements_that_fail_leave_their_worker(bounded: RunningServer) -> None:
    assert answers(bounded)
    before = workers()
    for text in ("select x from range(3) r(i)", "select 'a'::int from range(3) r(i)"):
        with pytest.raises(InvalidSql):
            list(opened(bounded, text).batches())
    assert answers(bounded)
    assert workers() == before


def test_a_query_that_is_left_ends_its_worker(bounded: RunningServer) -> None:
    assert answers(bounded)
    before = workers()
    opened(bounded, ENDLESS).close()  # Planned alone, so the worker stays.
    assert workers() == before
    batches = opened(bounded, "select i from range(100000000) r(i)").batches()
    next(batches)
    batches.close()
    assert before.isdisjoint(workers())
    assert bounded.server.log.sql.running == 0


@pytest.mark.parametrize("text", ["select n from visits", ENDLESS])
def test_a_query_that_is_never_begun_ends(bounded: RunningServer, text: str) -> None:
    query = opened(bounded, text)
    assert bounded.server.log.sql.running == 1
    del query
    assert bounded.server.log.sql.running == 0


@pytest.mark.usefixtures("started_anew")  # So that its processes are its children.
def test_no_process_outlives_a_server_that_is_killed() -> None:
    with server_process() as server, wings_client.connect(server.flight) as client:
        reader = client.sql("select i from range(100000000000) r(i)")
        reader.read_next_batch()
        processes = children_of(server.pid)
        assert len(processes) == 1
        server.kill()
        until(lambda: not any(map(is_running, processes)))


def test_a_join_reads_the_rows_that_its_conditions_leave(bounded: RunningServer) -> None:
    query = opened(
        bounded,
        "select name, sum(n) total from visits join places on place = id "
        "where id in (3, 5) and visits.__offset < 2000 group by 1 order by 1",
    )
    (batch,) = query.batches()
    assert batch.to_pylist() == [
        {"name": "p3", "total": sum(range(3, 2_000, 100))},
        {"name": "p5", "total": sum(range(5, 2_000, 100))},
    ]
    assert query.count.rows == 2_100  # Those of `visits` up to the offset, and all places.
