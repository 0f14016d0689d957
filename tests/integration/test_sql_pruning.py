"""Conditions of SQL, made up: the rows are DuckDB's over all rows, and no other pages are read."""

import string
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import count
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from property_examples import examples

from wings_core.contracts.reads import ReadOptions
from wings_core.data_directory import DataDirectory
from wings_core.deployments import OneDirectory
from wings_core.fetch import chunks
from wings_core.fetch.cursors import PartitionCursor
from wings_core.fetch.fetcher import FEW_PARTITIONS, Cancel, Read
from wings_core.fetch.selection import Selection
from wings_core.ingest.pending import PushStream
from wings_core.ingest.prepare import Preparer, PushOptions
from wings_core.limits import Limits
from wings_core.log import Log
from wings_core.model import Location, Topic, TopicConfig
from wings_core.names import TopicName
from wings_core.partitions import Partition
from wings_core.schema_changes import SchemaChange
from wings_core.sql import Sql
from wings_core.storage.codecs import read_pages

NEVER = 1e6
KEYS = ("", "a", "b", "é'")
MANY_KEYS = tuple(f"{first}{second}" for first in "ab" for second in string.ascii_letters)
assert len(MANY_KEYS) > FEW_PARTITIONS

_numbers = count()

_Page = tuple[str, int]
"""The folio, and where in it the page begins."""


@dataclass(frozen=True)
class Condition:
    """One of those that are joined by AND."""

    text: str
    pruned: str = "true"
    """A condition on offset, time and key alone that all rows pass that are read for it."""


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Log]:
    """A log that is drained and maintained when a test says so."""
    root = tmp_path_factory.mktemp("pruning")
    with DataDirectory.open(root / "data") as directory:
        limits = Limits(maintenance_seconds=NEVER, inline_seconds=NEVER)
        with closing(Log.open(OneDirectory(directory, remote=str(root / "remote")), limits)) as log:
            yield log


@pytest.fixture(scope="module")
def sql(log: Log) -> Iterator[Sql]:
    with closing(Sql(log)) as sql:
        yield sql


pushes = st.lists(
    st.tuples(
        st.lists(
            st.tuples(st.sampled_from(KEYS), st.none() | st.integers(-3, 12)),
            min_size=1,
            max_size=8,
        ),
        st.sampled_from(["", "", "", "drain", "merge", "add", "widen"]),
    ),
    min_size=1,
    max_size=8,
)
"""Rows of a push, and what is done after it."""


class Topics:
    """A topic as it is made, with all its rows.

    Args:
        log: That has it.
        key: Its partition key, if it has one.
    """

    def __init__(self, log: Log, key: str | None) -> None:
        self._log = log
        self.name = f"t{next(_numbers)}"
        schema = pa.schema([("key", pa.string()), ("n", pa.int32()), ("s", pa.string())])
        config = TopicConfig(tier_after_ms=0, segment_bytes=1_000)
        self.topic = log.admin.create_topic(TopicName.parse(self.name), schema, key, config)

    def push(self, rows: Sequence[tuple[str, int | None]]) -> None:
        values: dict[str, list[Any]] = {
            "key": [key for key, _ in rows],
            "n": [n for _, n in rows],
            "s": [None if n is None else f"s{n % 3}" for _, n in rows],
            "added": [None if n is None else n / 2 for _, n in rows],
        }
        schema = self.topic.schema
        columns = [pa.array(values[field], schema.field(field).type) for field in schema.names]
        batch = pa.RecordBatch.from_arrays(columns, schema=schema)
        prepared = Preparer(self.topic, self._log.limits).prepare(batch, PushOptions())
        self._log.group_commit.submit(PushStream(), prepared, awaited=True).accepted()

    def then(self, what: str) -> None:
        """Do what comes after a push."""
        if what == "drain":
            assert self._log.drain is not None
            self._log.drain.run()
        elif what == "merge":
            self.then("drain")
            self._log.maintainer.run(self.topic)
        elif what in ("add", "widen"):
            added = pa.schema([("added", pa.float64())])
            wider = pa.schema([("n", pa.int64())])
            change = SchemaChange(add=added) if what == "add" else SchemaChange(widen=wider)
            self.topic = self._log.admin.alter_schema(self.topic.name, change)

    def rows(self) -> pa.Table:
        """Read all rows by fetch, as SQL shows them."""
        selection = Selection.of(self.topic, ReadOptions(system_columns=True))
        found: list[pa.Table] = []
        for state in self._log.registry.partition_states(self.topic.uuid):
            _, start, stop, *_ = state
            read = Read.of(self.topic, [PartitionCursor(state.partition, start, stop)], selection)
            for chunk in self._log.fetcher.scan(read, Cancel()):
                table = pa.Table.from_batches([chunk.batch], selection.schema)
                names = pa.array([str(state.partition)] * table.num_rows, pa.string())
                found.append(table.append_column("__partition", names))
        return pa.concat_tables(found)

    def pages(self, passed: set[tuple[str, int]]) -> set[_Page]:
        """Return the pages that hold one of some rows, by partition and offset."""
        return {
            _page(location)
            for partition in {partition for partition, _ in passed}
            for location in self._log.registry.locate(
                self.topic.uuid, Partition(partition), 0, 1 << 40
            ).locations
            if any(
                (partition, offset) in passed
                for offset in range(location.start_offset, location.end_offset + 1)
            )
        }


def _page(location: Location) -> _Page:
    return location.address.folio, location.address.position


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def conditions(rows: pa.Table, key: str | None) -> st.SearchStrategy[Condition]:
    """Return conditions about rows: their columns, where they lie, and when they came."""
    offsets = st.integers(-1, rows.num_rows)
    stamps: list[Any] = rows.column("__timestamp").cast(pa.int64()).to_pylist()
    micros = st.builds(int.__add__, st.sampled_from(stamps), st.integers(-1, 1))
    times = micros.map(lambda each: f"make_timestamptz({each})")
    names: list[Any] = [*rows.column("__partition").to_pylist(), "null", "no JSON"]
    partitions = st.sampled_from(names)
    signs = st.sampled_from(["=", "<", "<=", ">", ">="])

    def exact(text: str) -> Condition:
        return Condition(text, text)

    def at(sign: str, offset: int) -> Condition:
        return exact(f"__offset {sign} {offset}")

    def between(first: int, last: int) -> Condition:
        return exact(f"__offset between {first} and {last}")

    def timed(sign: str, time: str) -> Condition:
        return exact(f"__timestamp {sign} {time}")

    def among(values: list[int]) -> Condition:
        listed = ", ".join(map(str, values))
        # One range of offsets is read.
        hull = f"__offset between {min(values)} and {max(values)}"
        return Condition(f"__offset in ({listed})", hull)

    def either(low: int, high: int) -> Condition:
        return Condition(
            f"(__offset < {low} or __offset = {high})", f"__offset <= {max(low, high)}"
        )

    def keyed(values: list[str]) -> Condition:
        text = f"key in ({', '.join(map(_text, values))})"
        return Condition(text, text if key else "true")

    return st.one_of(
        st.builds(at, signs, offsets),
        st.builds(between, offsets, offsets),
        st.builds(among, st.lists(offsets, min_size=1, max_size=3)),
        st.builds(either, offsets, offsets),
        st.builds(timed, signs, times),
        partitions.map(lambda name: exact(f"__partition = {_text(name)}")),
        st.lists(partitions, min_size=1, max_size=3).map(
            lambda names: exact(f"__partition in ({', '.join(map(_text, names))})")
        ),
        st.lists(st.sampled_from(["", "a", "b", "é'", "never"]), min_size=1, max_size=3).map(keyed),
        st.sampled_from(
            ["n > 3", "n in (1, 2, 5)", "s = 's1'", "n is null", "key is not null", "key < 'b'"]
        ).map(Condition),
        st.sampled_from(["n = 1 or __offset = 2", "s like 's%' or key = 'a'"]).map(
            lambda text: Condition(f"({text})")
        ),
    )


@settings(max_examples=examples(3, 200))
@given(st.data())
def test_made_up_conditions_read_what_they_allow_and_answer_as_duckdb(
    log: Log, sql: Sql, data: st.DataObject
) -> None:
    key = data.draw(st.sampled_from(["key", "key", None]), "key")
    topic = Topics(log, key)
    if key and data.draw(st.booleans(), "many partitions"):
        topic.push([(name, n % 5) for n, name in enumerate(MANY_KEYS)])
    for rows, then in data.draw(pushes, "pushes"):
        topic.push(rows)
        topic.then(then)
    everything = topic.rows()
    made_up = st.lists(conditions(everything, key), min_size=1, max_size=3)
    with duckdb.connect() as there:
        there.execute("SET TimeZone = 'UTC'")
        there.register("t", everything)
        for _ in range(3):
            check(sql, topic, there, data.draw(made_up, "conditions"))


def check(
    sql: Sql, topic: Topics, there: duckdb.DuckDBPyConnection, joined: Sequence[Condition]
) -> None:
    """Ask here and there, and hold what was read here against what the conditions allow."""
    where = " and ".join(each.text for each in joined)
    text = f"select * from {{}} where {where}"
    ordered = f"{text} order by __partition, __offset"
    shown = ", ".join([*topic.topic.schema.names, "__partition", "__offset", "__timestamp"])
    expected = there.sql(ordered.format("t").replace("*", shown, 1)).to_arrow_table()
    pruned = " and ".join(each.pruned for each in joined)
    allowed = f"select __partition, __offset from t where {pruned}"
    passed: set[tuple[str, int]] = set(there.execute(allowed).fetchall())
    read: list[Location] = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(chunks, "read_pages", _noting(read_pages, read))
        query = sql.open(ordered.format(f'"{topic.name}"'), lambda _: None)
        found = pa.Table.from_batches(list(query.batches()), query.schema)
        mixed_query = sql.open(text.format(f'"{topic.name}"'), lambda _: None)
        mixed = pa.Table.from_batches(list(mixed_query.batches()), mixed_query.schema)
    assert found.to_pylist() == expected.to_pylist()
    assert query.count.rows <= len(passed)
    assert mixed.sort_by([("__partition", "ascending"), ("__offset", "ascending")]) == found
    assert mixed_query.count.rows <= len(passed)
    assert {_page(location) for location in read} <= topic.pages(passed)
    query = sql.open(
        f'select count(*), max(__offset) from "{topic.name}" where {where}', lambda _: None
    )
    (counted,) = (row for batch in query.batches() for row in batch.to_pylist())
    numbers = expected.column("__offset").to_pylist()
    assert list(counted.values()) == [len(numbers), max(numbers, default=None)]


def _noting(call: Any, read: list[Location]) -> Any:
    def noting(store: Any, topic: Topic, locations: Sequence[Location], wanted: Any) -> Any:
        read.extend(locations)
        return call(store, topic, locations, wanted)

    return noting
