"""Results in other tools, and as a notebook shows them, at a real server."""

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import dataset, flight

from wings_client import (
    InvalidArgument,
    InvalidSql,
    Topic,
    _results,
    connect,
    connect_async,
)
from wings_client._chunks import Chunks
from wings_server.testing import RunningServer

ROWS = [{"key": "a", "n": 1}, {"key": "<b>", "n": 2}]
SCHEMA = {"key": "string", "n": "int64"}


def html_of(shown: Any) -> str:
    """Return what a notebook shows."""
    return shown._repr_html_()


@pytest.fixture
def results(server: RunningServer, new_topic_id: str) -> Any:
    """By name, one result of each kind, all of the same two rows."""
    with connect(server.flight) as client:
        topic = client.create_topic(new_topic_id, SCHEMA)
        client.push(topic, ROWS)
        client.create_share_group("g", topic, {"start": "earliest"})
        with (
            client.follow(topic) as follow,
            client.consumer("one", topic) as consumer,
            client.share_consumer("g", topic) as share_consumer,
        ):
            yield {
                "FetchResult": client.fetch(topic, offset=0),
                "Chunk": next(follow),
                "ConsumedBatch": next(consumer),
                "Delivery": next(share_consumer),
                "RangesBatch": _of_many(client, new_topic_id),
                **{kind: read(client, topic) for kind, read in READS.items()},
            }


READS: dict[str, Callable[[Any, Topic], Any]] = {
    "scan": lambda client, topic: client.scan(topic),
    "statement": lambda client, topic: client.sql(f'SELECT key, n FROM "{topic.id}" ORDER BY n'),
    "snapshot": lambda client, topic: client.snapshot(topic),
    "follow": lambda client, topic: client.follow(topic, timeout=0.5),
}
"""Calls whose rows come as they are asked for."""


def _of_many(client: Any, topic_id: str) -> Any:
    topic = client.create_topic(f"{topic_id}-many", {"p": "int64", **SCHEMA}, "p")
    client.push(topic, [{"p": 0, **row} for row in ROWS])
    with client.follow(topic) as follow:
        return next(follow)


def test_every_result_becomes_a_table_or_a_data_frame(results: dict[str, Any]) -> None:
    pytest.importorskip("polars")
    pytest.importorskip("pandas")
    for name, result in results.items():
        for rows in (
            result.to_arrow().to_pylist(),
            result.to_pandas().to_dict("records"),
            result.to_polars().to_dicts(),
            result.to_duckdb().order("n").to_arrow_table().to_pylist(),
            pa.RecordBatchReader.from_stream(result).read_all().to_pylist(),
        ):
            assert [{"key": row["key"], "n": row["n"]} for row in rows] == ROWS, name


def test_every_result_goes_into_another_topic(results: dict[str, Any], server: Any) -> None:
    with connect(server.flight) as client:
        for name in ("FetchResult", "Chunk", "ConsumedBatch"):
            topic = client.create_topic(f"copy-of-{name.lower()}", SCHEMA)
            client.push(topic, results[name])
            client.push(topic, [results[name]])
            assert client.fetch(topic, offset=0).table.to_pylist() == 2 * ROWS
            client.delete_topic(topic)


def test_every_result_says_what_it_is_and_a_notebook_shows_its_rows(
    results: dict[str, Any],
) -> None:
    for name in ("FetchResult", "Chunk", "ConsumedBatch", "Delivery", "RangesBatch"):
        result = results[name]
        assert repr(result).startswith(f"{name}(2 rows, ")
        assert "offsets 0 to 1" in repr(result)
        shown = html_of(result)
        assert "<td>string</td>" in shown, name
        assert "&lt;b&gt;" in shown
        assert "<b>" not in shown
        assert "offsets 0 to 1" in shown


def test_a_notebook_shows_few_of_many_rows(server: RunningServer, new_topic_id: str) -> None:
    with connect(server.flight) as client:
        topic = client.create_topic(new_topic_id, {"n": "int64"})
        client.push(topic, {"n": range(2_000)})
        shown = html_of(client.fetch(topic, offset=0))
        assert "<td>9</td>" in shown
        assert "<td>10</td>" not in shown
        assert "1,990 more rows" in shown


def test_what_is_opened_says_what_it_is(server: RunningServer, new_topic_id: str) -> None:
    with connect(server.flight) as client:
        topic = client.create_topic(new_topic_id, {"k": "string not null"}, "k")
        name = f"tenants/default/namespaces/default/topics/{new_topic_id}"
        assert repr(client) == f"Client({server.flight!r})"
        assert repr(topic) == f"Topic({name!r}, k: string not null, partition_key='k')"
        assert "<td>string not null</td>" in html_of(topic)
        with client.producer(topic, producer_id="p") as producer:
            assert repr(producer) == f"Producer({name!r}, producer_id='p')"
        with client.consumer("c", topic) as consumer:
            assert repr(consumer) == f"Consumer('c', {name!r})"
        with client.share_consumer("g", topic, member="m") as member:
            assert repr(member) == f"ShareConsumer('g', {name!r}, member='m')"
        with client.follow(topic, "x") as follow:
            assert repr(follow) == "Follow(next_offset=0)"
        with client.follow(topic) as follow:
            assert repr(follow) == "ManyFollow(0 partitions)"


def test_a_read_is_shown_by_its_first_rows_which_it_still_has(results: dict[str, Any]) -> None:
    assert repr(results["scan"]) == "ReadResult(scan of 2 rows)"
    assert repr(results["statement"]) == "ReadResult(statement)"
    for name in ("scan", "statement", "snapshot"):
        result = results[name]
        for _ in range(2):
            assert "&lt;b&gt;" in html_of(result), name
        assert [batch.num_rows for batch in result] == [2]
        assert list(result) == []
        assert "&lt;b&gt;" not in html_of(result)
    assert "<td>string</td>" in html_of(results["follow"])


def test_a_read_has_a_length_where_it_is_known_before_its_end(results: dict[str, Any]) -> None:
    assert len(results["scan"]) == len(results["snapshot"]) == len(results["FetchResult"]) == 2
    with pytest.raises(TypeError, match=r"to_arrow\(\)"):
        len(results["statement"])
    assert results["statement"]
    results["statement"].to_arrow()
    assert len(results["statement"]) == 2


def test_what_takes_all_rows_keeps_them(results: dict[str, Any]) -> None:
    for name in ("scan", "statement", "snapshot"):
        table = results[name].read_all()
        assert results[name].to_arrow() is table
        assert pa.Table.from_batches(results[name]).equals(table)
        results[name].close()
        assert len(results[name].to_pandas()) == 2
    follow = results["follow"]
    assert follow.to_arrow() is follow.to_arrow()


def test_a_fetch_is_iterated_by_batch(results: dict[str, Any]) -> None:
    (batch,) = results["FetchResult"]
    assert batch.to_pylist() == ROWS


def test_a_read_goes_where_pyarrow_takes_its_own_readers_alone(
    server: RunningServer, new_topic_id: str, tmp_path: Path
) -> None:
    """Its code in C++ reads what was not read yet, and raises the errors of the read."""
    with connect(server.flight) as client:
        topic = client.create_topic(new_topic_id, {"n": "int64"})
        client.push(topic, {"n": range(150_000)})
        write: Any = dataset.write_dataset  # Its stub knows no `preserve_order`.
        write(client.scan(topic), tmp_path, format="parquet", preserve_order=True)
        assert dataset.dataset(tmp_path).to_table()["n"].to_pylist() == list(range(150_000))
        half = client.scan(topic, parallel=3)
        first = half.read_next_batch().num_rows
        assert half.cast(pa.schema([("n", pa.int32())])).read_all().num_rows == 150_000 - first
        flight.RecordBatchStream(client.sql("SELECT 1"))
        batches = [each.batch for each in client.scan(topic).iter_batches_with_custom_metadata()]
        assert sum(map(len, batches)) == 150_000
        fails = client.sql(
            f"SELECT CAST(x AS INT) FROM (SELECT concat('x', n) x FROM \"{topic.id}\")"
        )
        with pytest.raises(InvalidSql):
            fails.cast(fails.schema).read_all()


def test_a_read_that_is_closed_says_so(results: dict[str, Any]) -> None:
    for name in ("scan", "statement", "snapshot"):
        result = results[name]
        with result:
            pass
        for read in (result.read_all, result.read_next_batch, result.to_polars):
            with pytest.raises(InvalidArgument, match="closed"):
                read()


def test_a_read_that_has_failed_has_no_rows_but_its_error(
    server: RunningServer, new_topic_id: str
) -> None:
    """A second call, as of a cell of a notebook that is run again, is not that of an empty read."""
    with connect(server.flight) as client:
        topic = client.create_topic(new_topic_id, {"s": "string"})
        client.push(topic, {"s": ["1", "x"]})
        fails = "CAST(s AS INT) = 1"
        results: list[Any] = [
            client.scan(topic, filter=fails),
            client.scan(topic, parallel=2, filter=fails),
            client.follow(topic, timeout=10, filter=fails),
            client.sql(f'SELECT * FROM "{topic.id}" WHERE {fails}'),
        ]
        for result in results:
            for read in (result.to_arrow, result.to_polars, partial(list, result)):
                with pytest.raises(InvalidArgument, match="Could not convert string 'x'"):
                    read()


def test_an_interrupted_read_is_no_shorter_one(
    server: RunningServer, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connect(server.flight) as client:
        result = client.scan(topic)

        def interrupted(*_: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(Chunks, "where", interrupted)
            with pytest.raises(KeyboardInterrupt):
                result.to_arrow()
        with pytest.raises(InvalidArgument, match="begin another"):
            result.to_arrow()


def test_an_async_read_that_is_closed_or_cancelled_is_no_shorter_one(
    server: RunningServer, topic: Topic
) -> None:
    async def read() -> None:
        async with connect_async(server.flight) as client:
            async with await client.scan(topic) as closed:
                pass
            cancelled = await client.follow(topic, timeout=600)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(cancelled.to_arrow(), 0.5)
            for result in (closed, cancelled):
                with pytest.raises(InvalidArgument, match="closed"):
                    await result.to_arrow()
            empty = await client.scan(topic, offset="latest")
            assert [batch async for batch in empty] == []
            assert len(await empty.to_arrow()) == 0

    asyncio.run(read())


def test_a_follow_without_an_end_is_no_table(server: RunningServer, new_topic_id: str) -> None:
    with connect(server.flight) as client:
        topic = client.create_topic(new_topic_id, SCHEMA)
        with pytest.raises(InvalidArgument, match="timeout"):
            client.follow(topic).to_pandas()


@pytest.mark.parametrize("kind", READS)
def test_the_async_faces_have_the_same(server: RunningServer, new_topic_id: str, kind: str) -> None:
    async def read() -> Any:
        async with connect_async(server.flight) as client:
            topic = await client.create_topic(new_topic_id, SCHEMA)
            await client.push(topic, ROWS)
            result = await READS[kind](client, topic)
            assert (await result.to_pandas()).to_dict("records") == ROWS
            assert (await result.to_polars()).to_dicts() == ROWS
            assert (await result.to_duckdb()).to_arrow_table().to_pylist() == ROWS
            assert await result.to_arrow() is await result.to_arrow()
            return result

    result = asyncio.run(read())
    if kind != "follow":
        assert repr(result) == f"AsyncReadResult({kind} of 2 rows)"
        assert len(result) == 2
        assert "&lt;b&gt;" in html_of(result)


@pytest.fixture(params=[None, "key"])
def topic(request: Any, server: RunningServer, new_topic_id: str) -> Topic:
    with connect(server.flight) as client:
        made = client.create_topic(new_topic_id, SCHEMA, request.param)
        client.push(made, ROWS)
        return made


def test_other_tools_read_a_follow(server: RunningServer, topic: Topic) -> None:
    duckdb, pl = pytest.importorskip("duckdb"), pytest.importorskip("polars")
    with connect(server.flight) as client:
        follow = client.follow(topic, timeout=0.5)
        assert follow.schema == topic.schema
        found = duckdb.sql("SELECT key, n FROM follow ORDER BY n").fetchall()
        assert found == [("a", 1), ("<b>", 2)]
        nothing = client.follow(topic, offset="latest", timeout=0.01, columns=["n"])
        assert duckdb.from_arrow(nothing).sum("n").fetchall() == [(None,)]
        frame = pl.DataFrame(client.follow(topic, timeout=0.5, filter="n = 2"))
        assert frame.to_dicts() == ROWS[1:]
        assert duckdb.from_arrow(client.scan(topic)).count("*").fetchall() == [(2,)]


def test_a_tool_that_is_not_installed_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = pa.table({"n": [1]})
    monkeypatch.setitem(__import__("sys").modules, "polars", None)
    with pytest.raises(ImportError, match=r"to_polars.* needs polars: .*wings-flight\[polars\]"):
        _results.polars_of(table)

    def absent(name: str) -> None:
        del name

    monkeypatch.setattr(_results, "find_spec", absent)
    with pytest.raises(ImportError, match=r"to_pandas.* needs pandas: .*wings-flight\[pandas\]"):
        _results.pandas_of(table)
