"""kill -9 of servers that merge and commit to tables under load: each row is in the table once."""

import random
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest
from fix_postgres import PostgresServer
from flight_calls import Stream, act, code_of, error_of, numbers, push, ticket_of
from forked_cluster import ForkedCluster, ForkedProcess, forked_cluster
from table_traps import STEPS

from wings_core.check import check_directory

pytest.importorskip("pyiceberg")
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchTableError

TABLE = {
    "tier_after_ms": 0,
    "table": "iceberg",
    "table_partition_by": "bucket(4, key), hour(__timestamp)",
}
SCHEMA = pa.schema(
    [pa.field("key", pa.string()), pa.field("producer", pa.int32()), pa.field("number", pa.int64())]
)
KEYS = ("a", "b", "c")
PRODUCERS = 2
BATCHES_A_TURN = 20
"""Of each producer, for each turn of maintenance."""
LONG = 600.0
"""How long a step may take on a busy machine."""
LIMITS = {"maintenance_seconds": 100_000}

At = tuple[str, int]
"""A row's partition and offset."""


@dataclass
class Producer:
    """Pushes numbered batches, each until it is acknowledged, through any server that is there."""

    producer: int
    acknowledged: int = 0

    def run(self, server: str, wanted: Callable[[], int]) -> None:
        """Push as many batches as are wanted in all; returns where a call fails."""
        command = {"producer_id": f"p{self.producer}", "sequence": self.acknowledged}
        with flight.FlightClient(server) as client:
            stream = Stream(client, SCHEMA, "t", **command)
            while self.acknowledged < wanted():
                stream.push(self._batch())
                self.acknowledged += 1
            stream.close()

    def _batch(self) -> pa.RecordBatch:
        number = self.acknowledged
        key = KEYS[(self.producer + number) % len(KEYS)]
        row = {"key": key, "producer": self.producer, "number": number}
        return pa.RecordBatch.from_pylist([row] * (1 + number % 4), SCHEMA)


@contextmanager
def gone_or_away() -> Generator[None]:
    """Pass over that a server was killed, and that metadata is busy."""
    try:
        yield
    except (flight.FlightError, pa.ArrowException, OSError) as error:
        if getattr(error, "extra_info", b"") and code_of(error) != "UNAVAILABLE":
            raise AssertionError(error_of(error)) from error


@dataclass
class Crashes:
    """A topic that is a table, whose servers are killed again and again.

    Args:
        cluster: Forks the servers.
        settings: Of each.
        catalog: Of pyiceberg's catalog.
        tables: Where the metadata of tables is.
        seed: Of the moments of the kills, as far as they can be told.
    """

    cluster: ForkedCluster
    settings: dict[str, Any]
    catalog: dict[str, str]
    tables: Path
    seed: int
    turns: int = 0
    """Of maintenance, by all servers."""
    seen: dict[At, dict[str, Any]] = field(default_factory=dict[At, dict[str, Any]])
    """Every row of the log that was ever read."""
    failures: list[BaseException] = field(default_factory=list[BaseException])

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._producers = [Producer(number) for number in range(PRODUCERS)]

    def start(self, trap: str = "") -> ForkedProcess:
        settings = {**self.settings, "limits": LIMITS, "log_level": "warning"}
        return self.cluster.start("node", **settings, trap=trap)

    def create(self) -> None:
        fields = [{"name": each.name, "type": str(each.type)} for each in SCHEMA]
        server = self.start()
        with flight.FlightClient(address_of(server)) as client:
            body: dict[str, Any] = {"schema": {"fields": fields}, "partition_key": "key"}
            act(client, "create-topic", topic="t", config=TABLE, **body)
        server.kill()

    @contextmanager
    def load(self, *servers: ForkedProcess) -> Generator[None]:
        """Push and maintain through servers during the block."""
        stop = threading.Event()
        calls = [
            (servers[number % len(servers)], partial(self._push, producer))
            for number, producer in enumerate(self._producers)
        ]
        calls += [(server, self._maintain) for server in servers]
        threads = [
            threading.Thread(target=self._repeat, args=(server, call, stop))
            for server, call in calls
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            stop.set()
            for thread in threads:
                thread.join(LONG)
                assert not thread.is_alive(), "a call to a killed server does not end"
        assert not self.failures, self.failures

    def _repeat(
        self, server: ForkedProcess, call: Callable[[str], None], stop: threading.Event
    ) -> None:
        """Call again and again, until told to stop or the server is gone."""
        try:
            while not stop.is_set() and not server.has_ended():
                with gone_or_away():
                    call(address_of(server))
        except Exception as error:  # noqa: BLE001 - told by the thread of the test.
            self.failures.append(error)

    def _push(self, producer: Producer, server: str) -> None:
        producer.run(server, lambda: BATCHES_A_TURN * (self.turns + 1))
        threading.Event().wait(0.01)

    def _maintain(self, server: str) -> None:
        """Maintain once; with other tables that come and go, retention, and new columns."""
        self.turns += 1
        turn = self.turns
        with flight.FlightClient(server) as client:
            if turn % 3 == 1:
                other = f"other-{turn}"
                schema = {"fields": [{"name": "n", "type": "int64"}]}
                act(client, "create-topic", topic=other, schema=schema, config=TABLE_OF_ONE)
                push(client, other, numbers(turn))
                act(client, "maintain", topic=other)
                act(client, "delete-topic", topic=other)
                act(client, "maintain")
            retention = {"retention_bytes": 1 if turn % 4 == 2 else None}
            act(client, "alter-topic", topic="t", config=retention)
            if turn in {5, 9}:
                change = {"add": [{"name": f"more{turn}", "type": "string"}]}
                act(client, "alter-topic", topic="t", schema=change)
            act(client, "maintain", topic="t")

    def kill(self, server: ForkedProcess, trap: str) -> None:
        """Wait until a server has killed itself, or for some turns of maintenance, and kill it."""
        if trap:
            self._wait(server.has_ended, f"it is not killed at: {trap}")
        else:
            self.wait_for_turns()
            server.kill()

    def wait_for_turns(self) -> None:
        """Wait for some turns of maintenance, and a part of the next."""
        wanted = self.turns + self._random.randint(1, 4)
        self._wait(lambda: self.turns >= wanted, "maintenance does not go on")
        threading.Event().wait(self._random.uniform(0, 0.2))

    def _wait(self, is_so: Callable[[], bool], problem: str) -> None:
        pause = threading.Event()
        until = time.monotonic() + LONG
        while not is_so():
            assert not self.failures, self.failures
            assert time.monotonic() < until, problem
            pause.wait(0.001)

    def table_rows(self) -> dict[At, dict[str, Any]]:
        """Return the rows of the table, as another program reads them, each of which is once."""
        with closing(load_catalog("wings", **self.catalog)) as catalog:
            try:
                table = catalog.load_table(("default", "t"))
            except NoSuchTableError:
                return {}
            return by_place(table.scan().to_arrow())

    def log_rows(self, client: flight.FlightClient) -> dict[At, dict[str, Any]]:
        """Return the rows of the log, which are as they ever were."""
        ticket = ticket_of(kind="scan", topic="t", partitions="all", system_columns=True)
        rows = by_place(client.do_get(ticket).read_all())
        for at, row in rows.items():
            # A column may have been added meanwhile.
            before = self.seen.get(at, row)
            assert before.items() <= row.items(), (before, row)
        self.seen |= rows
        numbers_of: dict[tuple[int, int], int] = {}
        for row in rows.values():
            number = (row["producer"], row["number"])
            numbers_of[number] = numbers_of.get(number, 0) + 1
        assert all(count <= 1 + number % 4 for (_, number), count in numbers_of.items())
        return rows

    def check(self, server: ForkedProcess, before: dict[At, dict[str, Any]]) -> None:
        """Check what a crash left: the table has rows of the log alone, as the log has them."""
        if not server.addresses:
            return
        with flight.FlightClient(address_of(server)) as client:
            rows = self.log_rows(client)
        for at, row in before.items():
            assert row.items() <= rows[at].items()

    def settle(self, server: ForkedProcess) -> None:
        """Maintain until the table has all that the log has, and compare the two."""
        until = time.monotonic() + LONG
        with flight.FlightClient(address_of(server)) as client:
            act(client, "alter-topic", topic="t", config={"retention_bytes": None})
            for topic in act(client, "list-topics"):
                if topic["topic"].rpartition("/")[2].startswith("other-"):
                    act(client, "delete-topic", topic=topic["topic"])
            while True:
                report = act(client, "maintain")
                told = act(client, "describe-topic", topic="t")["table"]
                is_done = not (told["lag_rows"] or report["failures"] or report["partitions_busy"])
                if is_done:
                    break
                assert time.monotonic() < until, (report, told)
            rows, table = self.log_rows(client), self.table_rows()
        names = next(iter(table.values())).keys() if table else ()
        assert table == {at: {name: row[name] for name in names} for at, row in rows.items()}
        assert told["rows"] == len(rows)
        with closing(load_catalog("wings", **self.catalog)) as catalog:
            assert catalog.list_tables("default") == [("default", "t")]
            self._check_metadata(catalog.load_table(("default", "t")))

    def _check_metadata(self, table: Any) -> None:
        """Nothing is left of commits that were not made, nor of tables that were dropped."""
        referred = {table.metadata_location}
        referred |= {each.metadata_file for each in table.metadata.metadata_log}
        for snapshot in table.snapshots():
            referred |= {snapshot.manifest_list}
            referred |= {each.manifest_path for each in snapshot.manifests(table.io)}
        found = {each.as_uri() for each in self.tables.rglob("*") if each.is_file()}
        # The very last ones were not old enough.
        assert referred <= found
        assert len(found - referred) <= 10, found - referred


TABLE_OF_ONE = {"tier_after_ms": 0, "table": "iceberg"}


def by_place(rows: pa.Table) -> dict[At, dict[str, Any]]:
    found = {(row["key"], row["__offset"]): row for row in rows.to_pylist()}
    for row in found.values():
        row.pop("__partition", None)
    assert len(found) == rows.num_rows, "a row is there twice"
    return found


def address_of(server: ForkedProcess) -> str:
    return f"grpc://{server.addresses['flight']}"


def crash_alone(directory: Path, traps: list[str], kills: int) -> None:
    """Kill the only server of a directory at steps, and at any moment."""
    data = directory / "data"
    with forked_cluster(directory / "forked") as cluster:
        catalog = {"type": "sql", "uri": f"sqlite:///{data / 'iceberg.sqlite'}"}
        settings = {"data_dir": str(data)}
        crashes = Crashes(cluster, settings, catalog, data / "merged" / "tables", kills)
        crashes.create()
        rounds = [*traps, *[""] * kills]
        random.Random(kills).shuffle(rounds)
        for trap in rounds:
            before = crashes.table_rows()
            server = crashes.start(trap)
            # It may end by what it deletes as it starts.
            with gone_or_away() if trap else nullcontext():
                crashes.check(server, before)
            with crashes.load(server):
                crashes.kill(server, trap)
        last = crashes.start()
        crashes.check(last, crashes.table_rows())
        crashes.settle(last)
        last.kill()
    report = check_directory(data)
    assert report.ok, report.problems


def traps_of(times: int) -> Iterator[str]:
    for number in range(1, times + 1):
        for step in STEPS:
            yield f"{step} before {number}"
            yield f"{step} after {number}"


# Any three of them each time; make soak has all.
SHORT = ["replace after 2", "write after 3", "commit after 2", "delete after 1", "release after 1"]


@pytest.mark.parametrize(
    ("traps", "kills"),
    [
        pytest.param(random.sample(SHORT, 3), 1, id="four"),
        pytest.param(
            [*traps_of(6)], 100, id="many", marks=[pytest.mark.soak, pytest.mark.timeout(7_200)]
        ),
    ],
)
def test_after_kills_of_its_only_server_a_table_has_each_row_once(
    tmp_path: Path, traps: list[str], kills: int
) -> None:
    crash_alone(tmp_path, traps, kills)


@pytest.mark.parametrize(
    ("traps", "kills"),
    [
        pytest.param(["commit after 2"], 0, id="one"),
        pytest.param(
            [*traps_of(3)], 50, id="many", marks=[pytest.mark.soak, pytest.mark.timeout(7_200)]
        ),
    ],
)
def test_while_one_of_two_nodes_is_killed_the_table_has_each_row_once(
    postgres: PostgresServer, tmp_path: Path, traps: list[str], kills: int
) -> None:
    url = postgres.new_database()
    settings = {
        "metadata_url": url,
        "hot": (tmp_path / "objects").as_uri(),
        "node_lease_seconds": 1.0,
        "drain_seconds": 0,
    }
    catalog = {"type": "sql", "uri": url.replace("postgresql://", "postgresql+psycopg://")}
    with forked_cluster(tmp_path / "forked") as cluster, ExitStack() as stack:
        crashes = Crashes(cluster, settings, catalog, tmp_path / "objects" / "tables", kills)
        crashes.create()
        other = crashes.start()
        stack.callback(lambda: other.kill())
        for trap in [*traps, *[""] * kills]:
            server, survivor = crashes.start(trap), other
            with crashes.load(server, survivor):
                crashes.kill(server, trap)
                # The other goes on, and what it commits is read meanwhile.
                crashes.wait_for_turns()
                crashes.table_rows()
            other = crashes.start()
            crashes.check(other, crashes.table_rows())
            survivor.kill()
        crashes.settle(other)
