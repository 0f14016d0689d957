"""Flight SQL with a real driver: ADBC's, and what is built on it."""

# Newer clients than those of CancelQuery cancel by Flight itself.
# pyright: reportDeprecated=false

import base64
import json
import struct
from collections import deque
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any, cast

import adbc_driver_manager
import duckdb
import grpc
import pandas as pd  # pyright: ignore[reportMissingTypeStubs]
import polars as pl
import pyarrow as pa
import pyarrow.flight as flight
import pytest
from adbc_driver_flightsql import DatabaseOptions, dbapi
from fix_client import NewTopic
from flight_calls import code_of, create_topic, open_put
from fuzz import command_descriptor, first_message
from google.protobuf.any_pb2 import Any as AnyMessage
from token_calls import ROOT, client_of, new_token
from waiting import until

import wings_client
from wings_client import Client, TopicNotFound
from wings_core.protocol.flight_sql import flight_sql_pb2 as pb
from wings_core.sql.statement import FUNCTIONS
from wings_server.flight_sql.messages import pack, unpack_as
from wings_server.testing import RunningServer, running_server

pytestmark = pytest.mark.filterwarnings("ignore:Cannot disable autocommit")


def connected(url: str, **options: str) -> Any:
    return dbapi.connect(url.replace("grpc://", "grpc+tcp://"), db_kwargs=options)


@pytest.fixture
def connection(server: RunningServer) -> Iterator[Any]:
    with connected(server.flight) as opened:
        yield opened


@pytest.fixture
def cursor(connection: Any) -> Iterator[Any]:
    with closing(connection.cursor()) as opened:
        yield opened


@pytest.fixture
def wings(server: RunningServer) -> Iterator[Client]:
    with wings_client.connect(server.flight) as opened:
        yield opened


@pytest.fixture
def numbers(wings: Client, new_topic: NewTopic) -> str:
    """A topic of a hundred rows; returns its id."""
    topic = new_topic("n: int64", "text: string")
    wings.push(topic, {"n": list(range(100)), "text": [f"t{n}" for n in range(100)]})
    return topic.name.rpartition("/")[2]


def test_statements_are_run(cursor: Any, numbers: str) -> None:
    cursor.execute(f'select n, text, __offset from "{numbers}" where n < 3 order by n')
    assert cursor.fetchall() == [(0, "t0", 0), (1, "t1", 1), (2, "t2", 2)]
    cursor.execute(f'select count(*) as c from "{numbers}"')
    assert cursor.fetch_arrow_table().to_pydict() == {"c": [100]}
    assert cursor.adbc_execute_schema(f'select n from "{numbers}"') == pa.schema(
        [("n", pa.int64())]
    )


def test_parameters_are_bound_to_prepared_statements(cursor: Any, numbers: str) -> None:
    text = f'select text from "{numbers}" where n = ? or text = ?'
    assert len(cursor.adbc_prepare(text)) == 2
    for n in (7, 8):
        cursor.execute(text, (n, "t9"))
        assert sorted(cursor.fetchall()) == [(f"t{n}",), ("t9",)]
    with pytest.raises(adbc_driver_manager.Error, match="has no value"):
        cursor.execute(text, (7,))


@pytest.mark.parametrize(
    ("value", "data_type"),
    [
        (-(2**63), pa.int64()),
        (2.5, pa.float16()),
        (True, pa.bool_()),
        ("it's é", pa.large_string()),
        (b"\x00\xfe'", pa.binary()),
        (Decimal("-1.50"), pa.decimal128(38, 20)),
        (date(2020, 2, 29), pa.date64()),
        (time(1, 2, 3, 4), pa.time64("ns")),
        (datetime(2020, 1, 2, 3, 4, 5, 6), pa.timestamp("ns")),  # noqa: DTZ001 - of no zone.
        (datetime(2020, 1, 2, tzinfo=UTC), pa.timestamp("ms", "UTC")),
        (None, pa.null()),
    ],
)
def test_a_parameter_keeps_its_value(cursor: Any, value: object, data_type: pa.DataType) -> None:
    row = pa.record_batch([pa.array([value], data_type)], names=["1"])
    cursor.execute("select ? as v", row)
    assert cursor.fetchone() == (value,)


def test_a_duration_is_a_parameter(cursor: Any) -> None:
    text = "select timestamptz '2020-01-01' + ? as v"
    cursor.execute(text, pa.record_batch([pa.array([-90_000], pa.duration("ms"))], names=["1"]))
    assert cursor.fetchone() == (datetime(2019, 12, 31, 23, 58, 30, tzinfo=UTC),)


@pytest.mark.parametrize("data_type", [pa.timestamp("ns"), pa.time64("ns"), pa.list_(pa.int64())])
def test_a_parameter_that_would_lose_something_is_refused(
    cursor: Any, data_type: pa.DataType
) -> None:
    value = [1] if pa.types.is_list(data_type) else 1
    row = pa.record_batch([pa.array([value], data_type)], names=["1"])
    with pytest.raises(adbc_driver_manager.Error, match="parameter"):
        cursor.execute("select ? as v", row)


def _prepared(**keys: Any) -> pb.CommandPreparedStatementQuery:
    return pb.CommandPreparedStatementQuery(prepared_statement_handle=json.dumps(keys).encode())


def _bound(client: flight.FlightClient, *rows: pa.RecordBatch) -> None:
    """Send rows of parameters for a statement of one."""
    descriptor = flight.FlightDescriptor.for_command(pack(_prepared(sql="select ? as v")))
    writer, _ = open_put(client, descriptor, rows[0].schema)
    with writer:
        for batch in rows:
            writer.write_batch(batch)


def _of_lies() -> pa.RecordBatch:
    """Return one binary value that ends long after its bytes."""
    with pa.ipc.open_stream(_changed(pa.array([b"Q" * 16]), b"\x10", b"\xff")) as reader:
        return reader.read_next_batch()


def _changed(values: Any, before: bytes, after: bytes) -> bytes:
    """Return the IPC stream of a column, its last offset another."""
    batch = pa.RecordBatch.from_arrays([values], ["1"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    raw = sink.getvalue().to_pybytes()
    at = raw.rindex(before + bytes(3), 0, raw.rindex(b"QQQQ"))
    return raw[:at] + after + raw[at + 1 :]


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(_of_lies(), id="offsets"),
        pytest.param(
            pa.record_batch([pa.array([86_400_000], pa.int32()).view(pa.time32("ms"))], ["1"]),
            id="time",
        ),
        pytest.param(
            pa.record_batch([pa.array([2**60], pa.int64()).view(pa.date64())], ["1"]), id="date"
        ),
        pytest.param(
            pa.record_batch([pa.array([2**62], pa.int64()).view(pa.timestamp("us"))], ["1"]),
            id="timestamp",
        ),
        pytest.param(
            pa.record_batch([pa.array([1], pa.timestamp("us", "Not/AZone"))], ["1"]), id="zone"
        ),
        pytest.param(
            pa.record_batch(
                [cast("Any", pa).DictionaryArray.from_arrays([7], ["a"], safe=False)], ["1"]
            ),
            id="dictionary",
        ),
        pytest.param(pa.record_batch([pa.nulls(1, pa.struct([]))], ["1"]), id="struct"),
        pytest.param(pa.record_batch([pa.nulls(0, pa.int64())], ["1"]), id="none"),
        pytest.param(pa.record_batch([pa.nulls(2, pa.int64())], ["1"]), id="two"),
    ],
)
def test_parameters_may_hold_anything(client: flight.FlightClient, row: pa.RecordBatch) -> None:
    with pytest.raises(flight.FlightServerError) as caught:
        _bound(client, row)
    assert code_of(caught.value) == "INVALID_ARGUMENT"


def test_parameters_are_read_no_further_than_the_second_row(client: flight.FlightClient) -> None:
    one = pa.record_batch([pa.array([1])], ["1"])
    _bound(client, one.slice(0, 0), one)
    with pytest.raises(flight.FlightServerError, match="one row"):
        _bound(client, one, one)


@pytest.mark.parametrize(
    "parameters",
    [
        base64.b64encode(_changed(pa.array([b"Q" * 16]), b"\x10", b"\xff")).decode(),
        [["int", "x"]],
        [["int"]],
        [["Decimal", "?"]],
        [["nothing", ""]],
        [["bytes", "a"]],
        [["timedelta", "9" * 40]],
        [["datetime", "2020-13-01"]],
    ],
)
def test_parameters_in_a_handle_may_hold_anything(
    client: flight.FlightClient, parameters: object
) -> None:
    handle = json.dumps({"sql": "select ? as v", "parameters": parameters}).encode()
    ticket = pack(pb.TicketStatementQuery(statement_handle=handle))
    with pytest.raises(flight.FlightServerError) as caught:
        client.do_get(flight.Ticket(ticket)).read_all()
    assert code_of(caught.value) == "INVALID_ARGUMENT"


def test_names_are_matched_by_patterns_at_once(client: flight.FlightClient) -> None:
    """A search of all ways to match this one would take longer than the sun shines."""
    create_topic(client, "a" * 63, ["n: int64"])

    def tables(pattern: str) -> list[Any]:
        command = pack(pb.CommandGetTables(table_name_filter_pattern=pattern))
        info = client.get_flight_info(flight.FlightDescriptor.for_command(command))
        return client.do_get(info.endpoints[0].ticket).read_all()["table_name"].to_pylist()

    assert tables("%a" * 31 + "b") == []
    assert tables("%a" * 31) == tables("%a_a%") == tables("a" * 63) == ["a" * 63]
    with pytest.raises(flight.FlightServerError, match="at most 1024"):
        tables("%" * 1_025)


TYPED = (
    ("n = ? and text <> ? and n in (1, ?)", ["int64", "string", "int64"]),
    ("n between ? and ? and n / 2 < ?", ["int64", "int64", "double"]),
    ("__timestamp > ? and n + ? > 1", ["timestamp[ms, tz=UTC]", "string"]),
    ("n = (select max(n) from {t} where text > ?)", ["string"]),
    ("true group by n, text having sum(n) > ? limit ?", ["int64", "int64"]),
    ("true and text in (select x from (select ? as x) where x = ?)", ["string", "string"]),
)


@pytest.mark.parametrize(("where", "types"), TYPED)
def test_parameters_are_of_the_types_that_they_are_compared_with(
    client: flight.FlightClient, numbers: str, where: str, types: list[str]
) -> None:
    table = f'"{numbers}"'
    asked = pb.ActionCreatePreparedStatementRequest(
        query=f"select n, text from {table} where {where.format(t=table)}"
    )
    (answer,) = client.do_action(flight.Action("CreatePreparedStatement", pack(asked)))
    prepared = unpack_as(answer.body, pb.ActionCreatePreparedStatementResult)
    parameters = pa.ipc.read_schema(pa.py_buffer(prepared.parameter_schema))
    assert [str(each) for each in parameters.types] == types
    assert pa.ipc.read_schema(pa.py_buffer(prepared.dataset_schema)).names == ["n", "text"]


def test_partitions_are_read_by_their_tickets(cursor: Any, numbers: str) -> None:
    partitions, schema = cursor.adbc_execute_partitions(f'select n from "{numbers}" where n < 2')
    assert schema == pa.schema([("n", pa.int64())])
    found: list[Any] = []
    for partition in partitions:
        cursor.adbc_read_partition(partition)
        found += cursor.fetchall()
    assert sorted(found) == [(0,), (1,)]


def test_the_catalog_is_described(connection: Any, wings: Client, numbers: str) -> None:
    wings.create_namespace("tenants/acme/namespaces/day")
    wings.create_topic("tenants/acme/namespaces/day/topics/hours", {"n": "int64"})
    found = connection.adbc_get_objects(depth="all").read_all().to_pylist()
    assert [catalog["catalog_name"] for catalog in found] == ["wings"]
    tables = {
        (schema["db_schema_name"], table["table_name"]): [
            column["column_name"] for column in table["table_columns"]
        ]
        for schema in found[0]["catalog_db_schemas"]
        for table in schema["db_schema_tables"]
    }
    system = ["__partition", "__offset", "__timestamp"]
    assert tables["default", numbers] == ["n", "text", *system]
    assert tables["acme/day", "hours"] == ["n", *system]
    named = connection.adbc_get_objects(depth="tables", table_name_filter="hou%").read_all()
    schemas = named.to_pylist()[0]["catalog_db_schemas"]
    assert [t["table_name"] for s in schemas for t in s["db_schema_tables"]] == ["hours"]
    assert connection.adbc_get_table_types() == ["SYSTEM TABLE", "TABLE"]
    assert tables["system", "nodes"] == ["flight", "http", "kafka", "since"]
    assert connection.adbc_get_info()["vendor_name"] == "Wings"
    assert connection.adbc_get_table_schema(numbers).names == ["n", "text", *system]


STRINGS, BOOLS, BIGINTS, BITMASKS, LISTS, MAPS = range(6)

SQL_INFO = {
    **dict.fromkeys([0, 1, 2, 6, 7, 504, 513, 514, 529, 530, 531], STRINGS),
    **dict.fromkeys([3, 4, 5, 9, 10, 11, 500, 501, 502, 506, 515, 516], BOOLS),
    **dict.fromkeys([518, 519, 520, 521, 523, 524, 527, 532, 536, 537, 539], BOOLS),
    **dict.fromkeys([556, 563, 565, 566, *range(572, 577)], BOOLS),
    **dict.fromkeys([*range(541, 556), *range(557, 562)], BIGINTS),
    # Ordinals, of which the drivers of JDBC and ODBC read bigints.
    **dict.fromkeys([503, 505, 507, 562], BIGINTS),
    **dict.fromkeys([8, 100, 101, 522, 525, 526, 528, 533, 534, 535, 538, 540], BITMASKS),
    **dict.fromkeys([564, *range(567, 572)], BITMASKS),
    **dict.fromkeys(range(508, 513), LISTS),
    517: MAPS,
}
"""Every number of the published `SqlInfo`, and the kind of its value in the union."""


def sql_info(client: flight.FlightClient, *numbers: int) -> pa.Table:
    command = pack(pb.CommandGetSqlInfo(info=numbers))
    info = client.get_flight_info(flight.FlightDescriptor.for_command(command))
    return client.do_get(info.endpoints[0].ticket).read_all()


def test_every_info_is_answered_with_its_kind(client: flight.FlightClient) -> None:
    assert SQL_INFO.keys() == set(pb.SqlInfo.values())
    found = sql_info(client)
    values: Any = found["value"].combine_chunks()
    kinds = values.type_codes.to_pylist()
    assert dict(zip(found["info_name"].to_pylist(), kinds, strict=True)) == SQL_INFO
    some = sql_info(client, 562, 9_999, 0)
    assert some.to_pylist() == [
        {"info_name": 562, "value": 0},
        {"info_name": 0, "value": "Wings"},
    ]


def test_the_functions_and_words_that_are_named_are_those_of_sql(
    client: flight.FlightClient,
) -> None:
    lists: Any = sql_info(client, *range(508, 513))["value"].to_pylist()
    words, *functions = lists
    assert {name.lower() for names in functions for name in names} <= FUNCTIONS
    query = "select keyword_name from duckdb_keywords() where keyword_category = 'reserved'"
    with duckdb.connect() as engine:
        reserved = {name for name, *_ in engine.execute(query).fetchall()}
    assert {word.lower() for word in words} <= reserved


@pytest.mark.parametrize(
    "condition",
    [
        "n = (select min(n) from {0})",
        "exists (select 1 from {0} as other where other.n = {0}.n and n = 0)",
        "n in (select 0)",
        "n = any (select 0)",
        "n <= all (select n from {0})",
    ],
)
def test_subqueries_are_served_as_is_said(cursor: Any, numbers: str, condition: str) -> None:
    table = f'"{numbers}"'
    cursor.execute(f"select n from {table} where {condition.format(table)}")
    assert cursor.fetchall() == [(0,)]


def test_rows_are_ingested_in_bulk(cursor: Any, wings: Client, numbers: str) -> None:
    made = f"{numbers}-made"
    rows = pa.table({"n": [100, 101], "text": ["a", None]})
    assert cursor.adbc_ingest(numbers, rows, mode="append") == 2
    assert wings.fetch(numbers, offset=100).table.drop_columns([]).to_pydict() == rows.to_pydict()
    assert cursor.adbc_ingest(made, rows, mode="create") == 2
    assert wings.topic(made).partition_key is None
    assert cursor.adbc_ingest(made, rows, mode="create_append") == 2
    assert wings.partitions(made)[0].next_offset == 4
    for table, data, mode in (
        (made, rows, "create"),
        (made, rows, "replace"),
        ("never-made", rows, "append"),
        (made, pa.table({"x": [1]}), "append"),
    ):
        with pytest.raises(adbc_driver_manager.Error):
            cursor.adbc_ingest(table, data, mode=mode)
    assert wings.partitions(made)[0].next_offset == 4
    with pytest.raises(TopicNotFound):
        wings.topic("never-made")


ENCODED: dict[str, Any] = {
    "text": pa.array(["a", None], pa.string_view()),
    "binary": pa.array([b"x", b"y"], pa.binary_view()),
    "category": pa.array(["u", "v"]).dictionary_encode(),
    "run": cast("Any", pa.RunEndEncodedArray).from_arrays([2], ["z"]),
    "list": pa.array([["q"], None], pa.list_(pa.string_view())),
    "uuid": cast("Any", pa.array([bytes(16), None], cast("Any", pa).uuid())),
}
PLAIN = {
    "text": pa.string(),
    "binary": pa.binary(),
    "category": pa.string(),
    "run": pa.string(),
    "list": pa.list_(pa.string()),
    "uuid": pa.binary(16),
}


def test_encoded_columns_are_ingested_as_plain_ones(
    cursor: Any, wings: Client, new_topic_id: str
) -> None:
    rows = pa.table(ENCODED)
    assert cursor.adbc_ingest(new_topic_id, rows, mode="create") == 2
    assert cursor.adbc_ingest(new_topic_id, rows, mode="append") == 2
    assert wings.topic(new_topic_id).schema.equals(pa.schema(PLAIN))
    expected = {name: column.to_pylist() for name, column in ENCODED.items()}
    expected["uuid"] = [bytes(16), None]
    assert wings.fetch(new_topic_id, offset=2).table.to_pydict() == expected


@pytest.mark.parametrize("times", [1, 2])
def test_data_frames_are_written(
    connection: Any, wings: Client, new_topic_id: str, times: int
) -> None:
    of_polars = pl.DataFrame(
        {"name": ["x", "y"], "kind": pl.Series(["a", "b"], dtype=pl.Categorical)}
    )
    of_pandas = pd.DataFrame({"name": ["x", "y"], "kind": pd.Categorical(["a", None])})
    for _ in range(times):
        of_polars.write_database(new_topic_id, connection, if_table_exists="append")
        of_pandas.to_sql(f"{new_topic_id}-2", connection, index=False, if_exists="append")
    rows = wings.scan(new_topic_id).read_all().to_pylist()
    assert rows == times * [{"name": "x", "kind": "a"}, {"name": "y", "kind": "b"}]
    rows = wings.scan(f"{new_topic_id}-2").read_all().to_pylist()
    assert rows == times * [{"name": "x", "kind": "a"}, {"name": "y", "kind": None}]


def test_ingested_columns_become_the_topics_where_no_value_changes(
    cursor: Any, wings: Client, new_topic: NewTopic
) -> None:
    topic = new_topic("n: int32 not null", "text: string", "at: timestamp[us]")
    rows = pa.table({"text": pa.array(["a"], pa.large_string()), "n": [7]})
    assert cursor.adbc_ingest(topic.id, rows, mode="append") == 1
    assert wings.scan(topic).read_all().to_pylist() == [{"n": 7, "text": "a", "at": None}]
    for wrong in ({"n": [1 << 40]}, {"text": ["a"]}, {"n": ["7"]}, {"n": [1], "more": [1]}):
        with pytest.raises(adbc_driver_manager.Error):
            cursor.adbc_ingest(topic.id, pa.table(wrong), mode="append")
    assert wings.partitions(topic)[0].next_offset == 1


ROWS_UNFOLDED = 5_000
UNFOLDING: dict[str, Any] = {
    "dictionary": pa.DictionaryArray.from_arrays(
        pa.array([0] * ROWS_UNFOLDED, pa.int8()), pa.array(["x" * 1_000_000])
    ),
    "runs": cast("Any", pa.RunEndEncodedArray).from_arrays([ROWS_UNFOLDED], ["x" * 1_000_000]),
    "views": pa.Array.from_buffers(
        pa.string_view(),
        ROWS_UNFOLDED,
        [
            None,
            pa.py_buffer(struct.pack("<i4sii", 1_000_000, b"xxxx", 0, 0) * ROWS_UNFOLDED),
            pa.py_buffer(b"x" * 1_000_000),
        ],
    ),
    "lists": cast("Any", pa.Array).from_buffers(
        pa.list_view(pa.string()),
        ROWS_UNFOLDED,
        [
            None,
            pa.py_buffer(bytes(4 * ROWS_UNFOLDED)),
            pa.py_buffer(struct.pack("<i", 1) * ROWS_UNFOLDED),
        ],
        children=[pa.array(["x" * 1_000_000])],
    ),
}
"""Each of a megabyte, and of 5 GB once it is plain."""


@pytest.mark.parametrize("name", UNFOLDING)
def test_what_would_unfold_to_more_than_a_batch_may_have_is_refused_before_it_does(
    cursor: Any, wings: Client, new_topic: NewTopic, name: str
) -> None:
    topic = new_topic("x: list<item: string>" if name == "lists" else "x: string")
    column = UNFOLDING[name]
    assert column.nbytes < 16_000_000
    pool: Any = pa.default_memory_pool()
    most = max(pool.max_memory(), pool.bytes_allocated() + 100_000_000)
    with pytest.raises(adbc_driver_manager.Error, match="in plain types"):
        cursor.adbc_ingest(topic.id, pa.table({"x": column}), mode="append")
    assert pool.max_memory() <= most
    assert wings.partitions(topic)[0].next_offset == 0


def test_writes_by_sql_are_refused(cursor: Any, numbers: str) -> None:
    for text in (f'insert into "{numbers}" values (1, null)', f'delete from "{numbers}"'):
        with pytest.raises(adbc_driver_manager.Error, match="SQL reads topics"):
            cursor.execute(text)


def test_data_frames_are_read(connection: Any, numbers: str) -> None:
    text = f'select n from "{numbers}" where n < 3 order by n'
    assert pd.read_sql(text, connection)["n"].tolist() == [0, 1, 2]
    assert pl.read_database(text, connection)["n"].to_list() == [0, 1, 2]


ENDLESS = "select a.i + b.i as n from range(10000000) a(i), range(10000000) b(i)"


def test_a_cancelled_statement_ends_on_the_server(cursor: Any, server: RunningServer) -> None:
    cursor.execute(ENDLESS)
    reader = cursor.fetch_record_batch()
    reader.read_next_batch()
    cursor.adbc_cancel()
    with pytest.raises(OSError, match=r"(?i)cancel"):
        deque(reader, 0)
    server.wait_for_calls(0)
    until(lambda: server.server.log.sql.running == 0)


def test_a_query_is_cancelled_by_its_info(client: flight.FlightClient) -> None:
    command = pack(pb.CommandStatementQuery(query=ENDLESS))
    info = client.get_flight_info(flight.FlightDescriptor.for_command(command))
    body = pack(pb.ActionCancelQueryRequest(info=info.serialize()))

    def cancel() -> int:
        (result,) = client.do_action(flight.Action("CancelQuery", body))
        return unpack_as(result.body, pb.ActionCancelQueryResult).result

    assert cancel() == pb.ActionCancelQueryResult.CANCEL_RESULT_NOT_CANCELLABLE
    reader = client.do_get(info.endpoints[0].ticket)
    reader.read_chunk()
    assert cancel() == pb.ActionCancelQueryResult.CANCEL_RESULT_CANCELLED
    with pytest.raises(flight.FlightUnavailableError, match="cancelled"):
        reader.read_all()


def test_what_is_not_served_is_refused(client: flight.FlightClient) -> None:
    for command in (
        pack(pb.CommandStatementUpdate(query="select 1")),
        pack(pb.CommandStatementQuery(query="select 1", transaction_id=b"x")),
        b"\x0a\x40type.googleapis.com/arrow.flight.protocol.sql.CommandNothing\x12",
        pack(pb.CommandStatementSubstraitPlan()),
        pack(pb.SubstraitPlan()),
        pack(pb.CommandPreparedStatementQuery(prepared_statement_handle=b"none")),
        pack(pb.TicketStatementQuery(statement_handle=b"x" * 5_000_000)),
        AnyMessage(
            type_url="type.googleapis.com/arrow.flight.protocol.sql.DESCRIPTOR"
        ).SerializeToString(),
    ):
        descriptor = flight.FlightDescriptor.for_command(command)
        with pytest.raises(flight.FlightServerError):
            client.get_flight_info(descriptor)
        with pytest.raises(flight.FlightServerError):
            client.do_get(flight.Ticket(command))
    body = pack(pb.ActionCancelQueryRequest(info=b"none"))
    with pytest.raises(flight.FlightServerError, match="FlightInfo"):
        list(client.do_action(flight.Action("CancelQuery", body)))


def test_a_put_without_a_schema_is_refused(server: RunningServer) -> None:
    for command in (pb.CommandStatementIngest(table="t"), _prepared(sql="select ?")):
        first = first_message(command_descriptor(pack(command)))
        with grpc.insecure_channel(server.flight.removeprefix("grpc://")) as channel:
            put = channel.stream_stream("/arrow.flight.protocol.FlightService/DoPut")
            with pytest.raises(grpc.RpcError, match="cannot be read"):
                list(put(iter([first]), timeout=20))


def test_a_connection_names_its_schema(server: RunningServer, wings: Client) -> None:
    wings.create_namespace("tenants/default/namespaces/night")
    wings.create_topic("tenants/default/namespaces/night/topics/hours", {"n": "int64"})
    header = {DatabaseOptions.RPC_CALL_HEADER_PREFIX.value + "schema": "night"}
    with connected(server.flight, **header) as opened, closing(opened.cursor()) as cursor:
        cursor.execute("select count(*) from hours")
        assert cursor.fetchall() == [(0,)]


def test_a_token_sees_and_reads_what_it_may() -> None:
    with running_server(root_token=ROOT) as server:
        with wings_client.connect(server.flight, token=ROOT) as operator:
            for topic in ("mine", "theirs"):
                operator.create_topic(topic, {"n": "int64"})
        with client_of(server.flight, ROOT) as root:
            grant = "read=tenants/default/namespaces/default/topics/mine"
            token = new_token(root, "analyst", grant)
        header = {DatabaseOptions.AUTHORIZATION_HEADER.value: f"Bearer {token}"}
        with connected(server.flight, **header) as opened, closing(opened.cursor()) as cursor:
            found = opened.adbc_get_objects(depth="tables").read_all().to_pylist()
            schemas = found[0]["catalog_db_schemas"]
            assert [
                table["table_name"]
                for schema in schemas
                for table in schema["db_schema_tables"]
                if schema["db_schema_name"] != "system"
            ] == ["mine"]
            cursor.execute("select count(*) from mine")
            assert cursor.fetchall() == [(0,)]
            rows = pa.table({"n": [1]})
            for refused in (
                lambda: cursor.execute("select * from theirs"),
                lambda: cursor.adbc_ingest("mine", rows, mode="append"),
                lambda: cursor.adbc_ingest("another", rows, mode="create"),
            ):
                with pytest.raises(adbc_driver_manager.Error, match="has no right"):
                    refused()
