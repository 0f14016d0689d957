"""Topics that are Iceberg tables: any engine reads the same rows as Wings, each of them once."""

import json
import tempfile
from collections.abc import Collection
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import duckdb
import httpx
import polars as pl
import pyarrow as pa
import pyarrow.flight as flight
import pyarrow.parquet as pq
import pytest
from fix_commands import Command
from fix_postgres import PostgresServer
from flight_calls import act, error_of, numbers, push, ticket_of
from hypothesis import given, settings
from hypothesis import strategies as st
from property_examples import examples

import wings_client
from wings_core.check import check_directory
from wings_core.errors import InvalidArgument, Unavailable
from wings_core.limits import Limits
from wings_core.metadata.store.tables import DatabaseTables
from wings_core.model import Topic
from wings_core.names import DEFAULT_NAMESPACE
from wings_core.storage.table_layout import UNITS
from wings_core.tables import Tables
from wings_core.tables.catalog import Catalog, commit_of
from wings_server.testing import RunningServer, running_server, server_process

pytest.importorskip("pyiceberg")
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.expressions import EqualTo
from pyiceberg.table import StaticTable

TABLE = {"tier_after_ms": 0, "table": "iceberg", "segment_bytes": 1}
LIMITS = Limits(maintenance_seconds=100_000)
FIELDS = [{"name": "n", "type": "int64"}]


def create(client: flight.FlightClient, config: Any = TABLE, fields: Any = FIELDS) -> None:
    act(client, "create-topic", topic="t", schema={"fields": fields}, config=config)


def tables_of(server: RunningServer) -> Tables:
    tables = server.server.log.tables
    assert tables is not None
    return tables


def table_of(server: RunningServer) -> Any:
    return tables_of(server).catalog.catalog.load_table(("default", "t"))


def table_rows(server: RunningServer) -> pa.Table:
    return table_of(server).scan().to_arrow().sort_by("__offset")


def wings_rows(client: flight.FlightClient) -> pa.Table:
    return client.do_get(ticket_of(kind="scan", topic="t", system_columns=True)).read_all()


def assert_same(server: RunningServer, client: flight.FlightClient) -> None:
    """All rows of Wings are in the table, once, cell by cell, with their offsets and times."""
    wings, table = wings_rows(client), table_rows(server)
    assert table.to_pylist() == [
        {name: row[name] for name in table.column_names} for row in wings.to_pylist()
    ]


def test_a_table_has_the_rows_of_its_topic(tmp_path: Path) -> None:
    with running_server(tmp_path, limits=LIMITS) as server, server.client() as client:
        create(client)
        push(client, "t", numbers(1, 2, 3))
        act(client, "maintain", topic="t")
        assert_same(server, client)
        push(client, "t", numbers(4, 5))
        described = act(client, "describe-topic", topic="t")["table"]
        assert (described["identifier"], described["rows"], described["lag_rows"]) == (
            "default.t",
            3,
            2,
        )
        act(client, "maintain", topic="t")
        assert_same(server, client)
        described = act(client, "describe-topic", topic="t")["table"]
        assert (described["rows"], described["lag_rows"], described["lag_ms"]) == (5, 0, 0)
        assert described["snapshot_id"] == table_of(server).current_snapshot().snapshot_id
        paths = [task.file.file_path for task in table_of(server).scan().plan_files()]
        files = "select identifier, file, rows from system.files where removed is null"
        with closing(server.server.log.sql.open(files, lambda _: None)) as query:
            told = [row for batch in query.batches() for row in batch.to_pylist()]
        assert {row["identifier"] for row in told} == {"default.t"}
        assert sum(row["rows"] for row in told) == 5
        assert all(any(row["file"] in path for path in paths) for row in told)
        found = duckdb.sql(f"SELECT n FROM read_parquet({paths}) ORDER BY __offset")
        assert found is not None
        assert found.fetchall() == [(1,), (2,), (3,), (4,), (5,)]
        push(client, "t", numbers(6))
        assert (
            'wings_table_lag_rows{table="default.t"} 0.0'
            in httpx.get(f"{server.http}/metrics").text
        )
    assert check_directory(tmp_path).ok


def test_over_postgresql_the_catalog_is_in_it(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {"WINGS_METADATA_URL": postgres.new_database()}
    with (
        server_process(tmp_path, environment=environment) as server,
        flight.FlightClient(server.flight) as client,
    ):
        create(client)
        push(client, "t", numbers(1, 2, 3))
        act(client, "maintain", topic="t")
        location = act(client, "describe-topic", topic="t")["table"]["metadata_location"]
        assert not (tmp_path / "iceberg.sqlite").exists()
        monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")  # Its own is another package.
        found = pl.scan_iceberg(StaticTable.from_metadata(location)).collect()
        assert found["n"].to_list() == [1, 2, 3]


def test_small_segments_are_replaced_in_the_table_as_wholes(tmp_path: Path) -> None:
    with running_server(tmp_path, limits=LIMITS) as server, server.client() as client:
        create(client, {"tier_after_ms": 0, "table": "iceberg"})
        for start in range(0, 120, 8):
            push(client, "t", numbers(*range(start, start + 8)))
            act(client, "maintain", topic="t")
            if start % 40 == 0:
                assert_same(server, client)
        assert_same(server, client)
        assert 1 < len(list(table_of(server).scan().plan_files())) < 15
        assert len(list(tmp_path.rglob("*.metadata.json"))) <= 11
    assert check_directory(tmp_path).ok


def test_commands_say_how_far_the_table_is(tmp_path: Path, command: Command) -> None:
    with running_server(tmp_path, limits=LIMITS) as server, server.client() as client:
        act(client, "create-topic", topic="plain", schema={"fields": FIELDS})
        with (
            wings_client.connect(server.flight) as reader,
            pytest.raises(InvalidArgument) as refused,
        ):
            reader.table("plain")
        assert """wings topic alter plain --set 'table="iceberg"'""" in str(refused.value)
        create(client)
        push(client, "t", numbers(1, 2, 3))

        def wings(*arguments: str) -> str:
            found = command(*arguments, "--endpoint", server.flight)
            assert found.status == 0, found
            return found.out

        assert "Iceberg table: default.t, 0 rows\n" in wings("topic", "describe", "t")
        said = wings("maintain", "t")
        snapshot = table_of(server).current_snapshot().snapshot_id
        assert f"t: snapshot {snapshot} of its table, which has 3 rows\n" in said
        act(client, "alter-topic", topic="t", config={"tier_after_ms": 3_600_000})
        push(client, "t", numbers(4, 5))
        said = wings("maintain", "t")
        expected = "t: no new snapshot of its table, which has 3 rows; 2 are not in it yet: the "
        assert said.startswith(f"{expected}oldest is ")
        assert "s old, and due at 20" in said
        shown = wings("topic", "describe", "t")
        assert f"  snapshot_id: {snapshot}\n  rows that are not in it yet: 2, the oldest " in shown
        described = json.loads(wings("topic", "describe", "t", "--format", "json"))
        assert described["table"]["snapshot_id"] == snapshot
        assert described["config"]["table"] == "iceberg"
        asked = wings("topic", "alter", "t", "--set", "table=null", "--dry-run")
        assert asked == "would change t and delete its Iceberg table\n"
        assert [each["next_offset"] for each in described["partitions"]] == [5]
        assert {each["tier"]: each["rows"] for each in described["tiers"]} == {
            "hot": 2, "remote": 3
        }  # fmt: skip


@pytest.mark.parametrize("before", [{}, {"segment_format": "parquet"}])
def test_older_segments_are_written_anew_for_the_table(
    tmp_path: Path, before: dict[str, Any]
) -> None:
    with running_server(tmp_path, limits=LIMITS) as server, server.client() as client:
        create(client, {"tier_after_ms": 0, **before})
        for start in (0, 10, 20):
            push(client, "t", numbers(*range(start, start + 10)))
            act(client, "maintain", topic="t")
        act(client, "alter-topic", topic="t", config=TABLE)
        act(client, "maintain", topic="t")
        assert_same(server, client)
        assert act(client, "describe-topic", topic="t")["table"]["lag_rows"] == 0


def test_the_table_follows_the_schema(tmp_path: Path) -> None:
    fields = [
        {"name": "n", "type": "int32", "nullable": False},
        {"name": "at", "type": "timestamp[ms, tz=Europe/Berlin]"},
        {"name": "place", "type": "struct<x: int16, tags: list<item: string>>"},
        {"name": "price", "type": "decimal128(9, 2)"},
    ]
    with running_server(tmp_path, limits=LIMITS) as server, server.client() as client:
        create(client, fields=fields)
        batch = pa.RecordBatch.from_pylist(
            [{"n": 1, "at": None, "place": {"x": 2, "tags": ["a", None]}, "price": None}],
            schema=scan_schema(client),
        )
        push(client, "t", batch)
        act(client, "maintain", topic="t")
        change = {
            "add": [
                {"name": "more", "type": "map<string, struct<y: int8>>"},
                {"name": "last", "type": "string"},
            ],
            "widen": [{"name": "n", "type": "int64"}],
            "nullable": ["n"],
        }
        act(client, "alter-topic", topic="t", schema=change)
        # pyiceberg reads a null map as an empty one.
        rows = [{"n": None, "more": [("k", {"y": 3})], "last": "z"}, {"n": 1 << 40, "more": []}]
        push(client, "t", pa.RecordBatch.from_pylist(rows, schema=scan_schema(client)))
        act(client, "maintain", topic="t")
        table = table_rows(server)
        assert_same(server, client)
        names = ["n", "at", "place", "price", "__offset", "__timestamp", "more", "last"]
        assert table.column_names == names
        assert table.column("n").to_pylist() == [1, None, 1 << 40]
        with pytest.raises(pa.ArrowException) as caught:
            act(client, "alter-topic", topic="t", schema={"add": [{"name": "u", "type": "uint64"}]})
        assert error_of(caught.value)["column"] == "u"


def scan_schema(client: flight.FlightClient) -> pa.Schema:
    return client.do_get(ticket_of(kind="scan", topic="t")).schema


STEPS = [
    (owner, name, after)
    for owner, name in (
        (DatabaseTables, "plan"),
        (Catalog, "commit"),
        (DatabaseTables, "confirm"),
    )
    for after in (False, True)
]


@pytest.mark.parametrize(("owner", "name", "after"), STEPS)
def test_after_a_crash_at_any_step_no_row_is_missing_and_none_is_there_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: type, name: str, after: bool
) -> None:
    """A call that fails after it was done is also a commit whose answer was lost."""
    with running_server(tmp_path, limits=LIMITS) as server, server.client() as client:
        create(client)
        push(client, "t", numbers(1, 2))
        act(client, "maintain", topic="t")
        push(client, "t", numbers(3))
        whole = getattr(owner, name)

        def crash(*args: Any, **kwargs: Any) -> None:
            if after:
                whole(*args, **kwargs)
            raise Unavailable("it crashed")

        with monkeypatch.context() as patch:
            patch.setattr(owner, name, crash)
            assert act(client, "maintain", topic="t")["failures"] == 1
    with running_server(tmp_path, limits=LIMITS) as server, server.client() as client:
        push(client, "t", numbers(4))
        act(client, "maintain", topic="t")
        assert wings_rows(client).column("n").to_pylist() == [1, 2, 3, 4]
        assert_same(server, client)
        act(client, "maintain", topic="t")
        assert_same(server, client)


def test_of_two_nodes_that_make_a_commit_at_once_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first lost its lease unnoticed, and the second has made the commit meanwhile."""
    commit = Catalog.commit

    def made_twice(catalog: Catalog, table: Any, *args: Any) -> None:
        again = catalog.catalog.load_table(("default", "t"))
        commit(catalog, again, *args)
        commit(catalog, table, *args)

    with running_server(tmp_path, limits=LIMITS) as server, server.client() as client:
        create(client)
        for number in range(3):
            push(client, "t", numbers(number))
            with monkeypatch.context() as patch:
                patch.setattr(Catalog, "commit", made_twice)
                act(client, "maintain", topic="t")
            assert_same(server, client)
            assert commit_of(table_of(server)) == number + 1


def test_a_commit_that_a_gateway_asks_the_catalog_for_twice_leaves_the_table_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is that of the second, which is refused, as the first was made."""
    commit = SqlCatalog.commit_table

    def twice(catalog: SqlCatalog, *args: Any) -> Any:
        commit(catalog, *args)
        return commit(catalog, *args)

    with running_server(tmp_path, limits=LIMITS) as server, server.client() as client:
        create(client)
        for number in range(3):
            push(client, "t", numbers(number))
            with monkeypatch.context() as patch:
                patch.setattr(SqlCatalog, "commit_table", twice)
                act(client, "maintain", topic="t")
            assert_same(server, client)
            act(client, "maintain", topic="t")
            assert_same(server, client)


def test_retention_takes_rows_out_of_the_table_before_their_files_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_server(tmp_path, limits=LIMITS) as server, server.client() as client:
        create(client)
        for number in range(4):
            push(client, "t", numbers(number))
            act(client, "maintain", topic="t")
        act(client, "alter-topic", topic="t", config={**TABLE, "retention_bytes": 1})

        def away(*_: object) -> None:
            raise Unavailable("the catalog is away")

        with monkeypatch.context() as patch:
            patch.setattr(Catalog, "commit", away)
            assert act(client, "maintain", topic="t")["failures"] >= 1
        assert wings_rows(client).num_rows == 4, "kept while the table may have them"
        act(client, "maintain", topic="t")
        assert wings_rows(client).column("n").to_pylist() == [3]
        assert_same(server, client)


def test_retention_keeps_what_another_commit_puts_into_the_table_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As another node may, between the commit that takes a file out and the end of its pages."""
    with running_server(tmp_path, limits=LIMITS) as server, server.client() as client:
        create(client)
        for number in range(3):
            push(client, "t", numbers(number))
            act(client, "maintain", topic="t")
        act(client, "alter-topic", topic="t", config={**TABLE, "retention_bytes": 1})

        def release(self: Tables, topic: Topic, folios: Collection[str]) -> bool:
            is_out = real_release(self, topic, folios)
            assert is_out
            assert table_of(server).scan().to_arrow()["n"].to_pylist() == [2]
            self.commit(topic)
            return is_out

        real_release = Tables.release
        with monkeypatch.context() as patch:
            patch.setattr(Tables, "release", release)
            assert act(client, "maintain", topic="t")["pages_expired"] == 0
        assert wings_rows(client).num_rows == 3
        assert_same(server, client)
        assert act(client, "maintain", topic="t")["pages_expired"] == 2
        assert wings_rows(client).column("n").to_pylist() == [2]
        assert_same(server, client)


def test_retention_takes_rows_of_all_partitions_out_of_the_table_at_once(tmp_path: Path) -> None:
    """Threads that work on partitions wait for one another's commits."""
    with running_server(tmp_path, limits=LIMITS) as server, server.client() as client:
        act(
            client,
            "create-topic",
            topic="t",
            partition_key="n",
            schema={"fields": FIELDS},
            config=TABLE,
        )
        for _ in range(3):
            push(client, "t", numbers(*range(8)))
            act(client, "maintain", topic="t")
        act(client, "alter-topic", topic="t", config={**TABLE, "retention_bytes": 1})
        assert act(client, "maintain", topic="t")["failures"] == 0
        states = act(client, "partition-states", topic="t")
        assert [each["log_start_offset"] for each in states] == [2] * 8
        assert table_of(server).scan().to_arrow().sort_by("n")["n"].to_pylist() == list(range(8))


NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def push_at(client: flight.FlightClient, batch: pa.RecordBatch, at: datetime) -> None:
    push(client, "t", batch, timestamp=at.isoformat())


def partitions_of(server: RunningServer) -> dict[str, list[tuple[Any, ...]]]:
    """Return what each file of the table is said to have, by file."""
    return {
        task.file.file_path: [tuple(task.file.partition)]
        for task in table_of(server).scan().plan_files()
    }


@pytest.mark.parametrize(
    "key",
    [
        "n: int64",
        "s: string",
        *(pytest.param(each, marks=pytest.mark.soak) for each in ("b: binary", "flag: bool")),
    ],
)
def test_a_table_is_partitioned_by_the_key_and_by_time(tmp_path: Path, key: str) -> None:
    """Each file has rows of one value, and the table is found by them."""
    name, data_type = key.split(": ")
    values: dict[str, Any] = {
        "n": [7, -8],
        "s": ["a", "ü"],
        "b": [b"\0", b"x"],
        "flag": [True, False],
    }
    by_key = f"identity({name})" if name == "flag" else f"bucket(16, {name})"
    with running_server(tmp_path, limits=LIMITS) as server, server.client() as client:
        act(
            client,
            "create-topic",
            topic="t",
            partition_key=name,
            schema={"fields": [{"name": name, "type": data_type}, {"name": "v", "type": "int64"}]},
            config={**TABLE, "table_partition_by": f"{by_key}, day(__timestamp)"},
        )
        schema = scan_all(client).schema
        for day in range(3):
            for value in values[name]:
                rows = [{name: value, "v": number} for number in range(3)]
                batch = pa.RecordBatch.from_pylist(rows, schema=schema)
                push_at(client, batch, NOON + timedelta(days=day))
            act(client, "maintain", topic="t")
        wings = scan_all(client, system_columns=True)
        table = table_of(server).scan().to_arrow()
        rows = [{n: row[n] for n in table.column_names} for row in wings.to_pylist()]
        assert sorted(map(str, table.to_pylist())) == sorted(map(str, rows))
        assert table_of(server).sort_order().fields[0].source_id == 3
        assert len(partitions_of(server)) == 6
        second = (NOON + timedelta(days=1)).replace(hour=0)
        asked = table_of(server).scan(
            row_filter=f"__timestamp >= '{second.isoformat()}' and "
            f"__timestamp < '{(second + timedelta(days=1)).isoformat()}'"
        )
        assert len(list(asked.plan_files())) == 2, "of the day's files"
        assert asked.to_arrow().num_rows == 6
        value = values[name][0]
        found = table_of(server).scan(row_filter=cast("Any", EqualTo)(name, value))
        assert found.to_arrow().num_rows == 9
        assert len(list(found.plan_files())) == 3, "of the key's files"
    assert check_directory(tmp_path).ok


def scan_all(client: flight.FlightClient, **keys: Any) -> pa.Table:
    return client.do_get(ticket_of(kind="scan", topic="t", partitions="all", **keys)).read_all()


@settings(max_examples=examples(4, 60), deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 20), st.booleans()), max_size=12),
    st.sampled_from(["hour", "day", "month", "year"]),
)
def test_files_end_with_the_hour_day_month_or_year(
    pushes: list[tuple[int, int, bool]], unit: str
) -> None:
    """Whatever came when, and however often it was merged meanwhile."""
    with (
        tempfile.TemporaryDirectory() as directory,
        running_server(Path(directory), limits=LIMITS) as server,
        server.client() as client,
    ):
        config = {
            "tier_after_ms": 0,
            "table": "iceberg",
            "table_partition_by": f"{unit}(__timestamp)",
        }
        create(client, config)
        at, total = NOON, 0
        step = {"hour": 0.1, "day": 3, "month": 70, "year": 1_000}[unit]
        for hours, rows, is_maintained in pushes:
            at += timedelta(hours=hours * step)
            push_at(client, numbers(*range(total, total + rows)), min(at, datetime.now(UTC)))
            total += rows
            if is_maintained:
                act(client, "maintain", topic="t")
        act(client, "maintain", topic="t")
        assert_same(server, client) if total else None
        described = act(client, "describe-topic", topic="t")["table"]
        assert described["lag_rows"] == 0
        if total:
            for path, ((value,),) in partitions_of(server).items():
                rows = pq.read_table(path.removeprefix("file://"))
                times: list[Any] = rows["__timestamp"].to_pylist()
                assert len({each.timetuple()[: UNITS.index(unit) + 1] for each in times}) == 1
                assert value is not None


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("day(n)", "day applies to __timestamp"),
        ("bucket(16, v)", "applies to the partition key"),
        ("bucket(n)", "take a width"),
        ("bucket(0, n)", "the width must be from 1"),
        ("identity(n), bucket(4, n)", "transforms a column twice"),
        ("weekly(n)", "is no transform"),
        ("", "is no transform such as"),
        ("day(__timestamp),", "is no transform such as"),
    ],
)
def test_what_a_table_cannot_be_partitioned_by_is_refused(
    tmp_path: Path, text: str, told: str
) -> None:
    with running_server(tmp_path, limits=LIMITS) as server, server.client() as client:
        with pytest.raises(pa.ArrowException) as caught:
            act(
                client,
                "create-topic",
                topic="t",
                partition_key="n",
                schema={"fields": [*FIELDS, {"name": "v", "type": "int64"}]},
                config={**TABLE, "table_partition_by": text},
            )
        assert error_of(caught.value)["code"] == "INVALID_ARGUMENT"
        assert told in error_of(caught.value)["message"]


def test_a_table_that_is_partitioned_anew_is_made_anew(tmp_path: Path) -> None:
    by_day = {**TABLE, "table_partition_by": "day(__timestamp)"}
    with running_server(tmp_path, limits=LIMITS) as server, server.client() as client:
        create(client)
        for day in range(3):
            push_at(client, numbers(day), NOON + timedelta(days=day))
        act(client, "maintain", topic="t")
        with pytest.raises(pa.ArrowException) as caught:
            act(client, "alter-topic", topic="t", config=by_day)
        assert "set `table` to null first" in error_of(caught.value)["message"]
        act(client, "alter-topic", topic="t", config={"table": None})
        act(client, "maintain")
        act(client, "alter-topic", topic="t", config=by_day)
        act(client, "maintain", topic="t")
        assert_same(server, client)
        assert len(partitions_of(server)) == 3
        assert act(client, "describe-topic", topic="t")["table"]["lag_rows"] == 0
        off = act(client, "alter-topic", topic="t", config={"table": None})
        assert "table" not in off
        assert off["config"]["table_partition_by"] == by_day["table_partition_by"]
        act(client, "maintain")
        assert tables_of(server).catalog.catalog.list_tables("default") == []
        assert wings_rows(client).num_rows == 3
        act(client, "alter-topic", topic="t", config={"table": "iceberg"})
        act(client, "maintain", topic="t")
        assert len(partitions_of(server)) == 3
    assert check_directory(tmp_path).ok


def test_the_table_of_a_deleted_topic_is_dropped(tmp_path: Path) -> None:
    with running_server(tmp_path, limits=LIMITS) as server, server.client() as client:
        create(client)
        push(client, "t", numbers(1))
        act(client, "maintain")
        act(client, "delete-topic", topic="t")
        create(client, fields=[{"name": "s", "type": "string"}])
        push(client, "t", pa.record_batch({"s": ["new"]}))
        act(client, "maintain")
        assert table_rows(server).column("s").to_pylist() == ["new"]
        act(client, "delete-topic", topic="t")
        act(client, "maintain")
        assert tables_of(server).catalog.catalog.list_tables("default") == []


def test_a_table_that_metadata_has_forgotten_is_taken_over_as_it_is(tmp_path: Path) -> None:
    """Metadata was repaired, or restored from an earlier copy."""
    with running_server(tmp_path, limits=LIMITS) as server, server.client() as client:
        create(client)
        for number in range(3):
            push(client, "t", numbers(number))
            act(client, "maintain", topic="t")
        log = server.server.log
        topic = log.admin.list_topics(DEFAULT_NAMESPACE)[0]
        states = log.metadata.tables
        assert states is not None
        states.forget(topic.uuid)
        push(client, "t", numbers(3))
        act(client, "maintain", topic="t")
        assert_same(server, client)


def test_over_an_object_store_the_table_lies_in_it(tmp_path: Path, s3_url: str) -> None:
    with (
        server_process(tmp_path, flags=["--remote", s3_url]) as server,
        flight.FlightClient(server.flight) as plain,
        wings_client.connect(server.flight) as client,
    ):
        create(plain, {**TABLE, "table_partition_by": "day(__timestamp)"})
        push(plain, "t", numbers(1, 2, 3))
        act(plain, "maintain", topic="t")
        push(plain, "t", numbers(4))
        described = act(plain, "describe-topic", topic="t")["table"]
        assert described["metadata_location"].startswith(f"{s3_url}/")
        assert described["rows"] == 3
        snapshot = client.snapshot("t")
        assert set(snapshot.read_all()["n"].to_pylist()) == {1, 2, 3, 4}
        table = client.table("t")
        assert table.scan().to_arrow()["n"].to_pylist() == [1, 2, 3]
        act(plain, "delete-topic", topic="t")
        act(plain, "maintain")
