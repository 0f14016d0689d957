"""A topic whose schema grows, against a plain model: pushes and reads of all versions, mixed with
changes, maintenance, restarts, and with being an Iceberg table."""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest
from flight_calls import Stream, act, error_of, ticket_of
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)
from property_examples import examples

from wings_core.limits import Limits
from wings_server.testing import RunningServer, running_server

pytest.importorskip("pyiceberg")
from pyiceberg.exceptions import NoSuchTableError

LIMITS = Limits(wire_rows_max=20, segment_bytes_max=16 * 1024)
COLUMNS_MAX = 6
STEPS_TO_RESTART = 8
INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
FLOATS = (pa.float32(), pa.float64())


@dataclass(frozen=True)
class Column:
    """A column in one version: its type as a place in `INTEGERS` or `FLOATS`."""

    name: str
    is_float: bool
    width: int
    nullable: bool

    @property
    def type(self) -> pa.DataType:
        return (FLOATS if self.is_float else INTEGERS)[self.width]

    @property
    def is_widest(self) -> bool:
        return self.width == len(FLOATS if self.is_float else INTEGERS) - 1

    def values(self) -> st.SearchStrategy[float | None]:
        found: st.SearchStrategy[float | None]
        if self.is_float:
            # Halves are what they are in all floats; one that only a double holds.
            found = st.integers(-8, 8).map(lambda number: number / 2)
            found = found | st.just(1e300) if self.width else found
        else:
            most = (1 << (8 << self.width) - 1) - 1
            found = st.integers(-5, 5) | st.just(most)
        return found | st.none() if self.nullable else found

    def holds(self, value: float | None) -> bool:
        if value is None:
            return self.nullable
        if self.is_float:
            return self.width == 1 or value < 1e300
        return -(1 << (8 << self.width) - 1) <= value < 1 << (8 << self.width) - 1


Row = dict[str, float | None]


class Machine(RuleBasedStateMachine):
    data_dir: Path
    topics = 0

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.streams: dict[int, Stream] = {}
        self.rows: list[Row] = []
        self.versions: list[tuple[Column, ...]] = []
        self.steps = 0

    @initialize(nullable=st.booleans())
    def create(self, nullable: bool) -> None:
        Machine.topics += 1
        self.topic = f"topic-{Machine.topics}"
        self.start()
        columns = (Column("c1", False, 0, nullable), Column("c2", True, 0, True))
        self.versions.append(columns)
        fields = [
            {"name": each.name, "type": str(each.type), "nullable": each.nullable}
            for each in columns
        ]
        config = {"tier_after_ms": 0, "segment_bytes": 1}
        act(self.client, "create-topic", topic=self.topic, schema={"fields": fields}, config=config)

    def start(self) -> None:
        self.server: RunningServer = self.stack.enter_context(
            running_server(self.data_dir, limits=LIMITS)
        )
        self.client = self.server.client()

    def teardown(self) -> None:
        self.stack.close()

    def schema(self, version: int) -> pa.Schema:
        return pa.schema(
            [pa.field(each.name, each.type, each.nullable) for each in self.versions[version - 1]]
        )

    # Pushes.

    def batch(self, data: st.DataObject, version: int) -> pa.RecordBatch:
        columns = self.versions[version - 1]
        row = st.fixed_dictionaries({each.name: each.values() for each in columns})
        rows: list[Row] = data.draw(st.lists(row, min_size=1, max_size=6))
        self.rows += rows
        return pa.RecordBatch.from_pylist(rows, schema=self.schema(version))

    def drawn_version(self, data: st.DataObject) -> int:
        return data.draw(st.integers(1, len(self.versions)))

    @rule(data=st.data())
    def push(self, data: st.DataObject) -> None:
        self.steps += 1
        version = self.drawn_version(data)
        stream = Stream(self.client, self.schema(version), self.topic)
        assert "committed" in stream.push(self.batch(data, version))
        stream.close()

    @rule(data=st.data())
    def push_on_a_stream_that_stays_open(self, data: st.DataObject) -> None:
        version = self.drawn_version(data)
        if version not in self.streams:
            self.streams[version] = Stream(self.client, self.schema(version), self.topic)
        assert "committed" in self.streams[version].push(self.batch(data, version))

    # Changes.

    @rule(data=st.data())
    def grow(self, data: st.DataObject) -> None:
        columns = list(self.versions[-1])
        change: dict[str, list[Any]] = {"add": [], "widen": [], "nullable": []}
        for index, column in enumerate(columns):
            if not column.is_widest and data.draw(st.booleans()):
                column = Column(column.name, column.is_float, column.width + 1, column.nullable)
                change["widen"].append({"name": column.name, "type": str(column.type)})
            if not column.nullable and data.draw(st.booleans()):
                column = Column(column.name, column.is_float, column.width, True)
                change["nullable"].append(column.name)
            columns[index] = column
        if len(columns) < COLUMNS_MAX and data.draw(st.booleans()):
            column = Column(f"c{len(columns) + 1}", data.draw(st.booleans()), 0, True)
            change["add"].append({"name": column.name, "type": str(column.type)})
            columns.append(column)
        altered = act(self.client, "alter-topic", topic=self.topic, schema=change)
        assert act(self.client, "alter-topic", topic=self.topic, schema=change) == altered
        if tuple(columns) != self.versions[-1]:
            self.versions.append(tuple(columns))
        assert altered["schema_version"] == len(self.versions)

    # Reads.

    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        version = self.drawn_version(data)
        columns = list(self.versions[version - 1])
        ticket: dict[str, Any] = {"kind": "scan", "topic": self.topic, "schema_version": version}
        if data.draw(st.booleans()):
            columns = data.draw(
                st.lists(st.sampled_from(columns), min_size=1, unique_by=lambda each: each.name)
            )
            ticket["columns"] = [each.name for each in columns]
        many = data.draw(st.booleans())
        if many:
            ticket["partitions"] = "all"
        start = data.draw(st.integers(0, len(self.rows)))
        ticket["offset"] = start
        if not many and data.draw(st.booleans()):
            ticket["system_columns"] = True
        fits = [all(each.holds(row.get(each.name)) for each in columns) for row in self.rows]
        bad = next((index for index in range(start, len(fits)) if not fits[index]), None)
        reader = self.client.do_get(ticket_of(**ticket))
        expected_schema = [(each.name, each.type) for each in columns]
        names, types = reader.schema.names[: len(columns)], reader.schema.types[: len(columns)]
        assert list(zip(names, types, strict=True)) == expected_schema
        found: list[Row] = []
        code = None
        try:
            for batch in batches_of(reader):
                found += batch.select(names).to_pylist()
        except flight.FlightServerError as error:
            code = error_of(error)["code"]
        stop = start + len(found)
        if bad is None:
            assert (code, stop) == (None, len(self.rows))
        else:  # Of many partitions, up to the page of the first such row.
            assert code == "SCHEMA_MISMATCH"
            assert stop <= bad if many else stop == bad
        assert found == [{name: row.get(name) for name in names} for row in self.rows[start:stop]]

    @rule(bound=st.integers(-3, 3))
    def read_filtered(self, bound: int) -> None:
        names = [each.name for each in self.versions[-1]]
        ticket = ticket_of(kind="scan", topic=self.topic, filter=f"{names[-1]} > {bound}")
        table = self.client.do_get(ticket).read_all()
        assert table.to_pylist() == [
            {name: row.get(name) for name in names}
            for row in self.rows
            if (value := row.get(names[-1])) is not None and value > bound
        ]

    # Maintenance.

    @rule()
    def drain(self) -> None:
        drain = self.server.server.log.drain
        assert drain is not None
        drain.run()

    @rule(
        segments=st.sampled_from(
            [
                {"segment_format": "arrow", "table": None},
                {"segment_format": "parquet", "table": None},
                {"segment_format": None, "table": "iceberg"},
            ]
        ),
        segment_bytes=st.sampled_from([1, 64 * 1024]),
    )
    def merge(self, segments: dict[str, str | None], segment_bytes: int) -> None:
        config = {"tier_after_ms": 0, "segment_bytes": segment_bytes, **segments}
        act(self.client, "alter-topic", topic=self.topic, config=config)
        assert act(self.client, "maintain", topic=self.topic)["failures"] == 0
        if segments["table"]:
            self.read_table()

    def read_table(self) -> None:
        """The table has the last version of all rows, each once, as pyiceberg reads it."""
        tables = self.server.server.log.tables
        assert tables is not None
        try:
            table = tables.catalog.catalog.load_table(("default", self.topic))
        except NoSuchTableError:
            assert not self.rows
            return
        found = table.scan().to_arrow().sort_by("__offset")
        names = [each.name for each in self.versions[-1]]
        assert set(found.column_names) == {*names, "__offset", "__timestamp"}
        assert found["__offset"].to_pylist() == list(range(len(self.rows)))
        assert found.select(names).to_pylist() == [
            {name: row.get(name) for name in names} for row in self.rows
        ]

    @precondition(lambda self: self.steps >= STEPS_TO_RESTART)
    @rule()
    def restart(self) -> None:
        self.steps = 0
        for stream in self.streams.values():
            stream.close()
        self.streams.clear()
        self.stack.close()
        self.start()


def batches_of(reader: flight.FlightStreamReader) -> Iterator[pa.RecordBatch]:
    while True:
        try:
            batch = reader.read_chunk().data
        except StopIteration:
            return
        assert batch is not None
        yield batch


@pytest.mark.hypothesis
@pytest.mark.timeout(600)  # A failure takes minutes to be made small.
def test_a_topic_whose_schema_grows_reads_as_the_model_says(tmp_path: Path) -> None:
    def machine() -> Machine:
        shutil.rmtree(tmp_path / "data", ignore_errors=True)
        found = Machine()
        found.data_dir = tmp_path / "data"
        return found

    run_state_machine_as_test(
        machine,  # pyright: ignore[reportArgumentType] - a function does
        settings=settings(
            max_examples=examples(quick=6, thorough=100),
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        ),
    )
