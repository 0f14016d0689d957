"""Engines of SQL: a statement sees what it was given, and nothing of another one."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from wings_core.sql_process.interface import EngineFailed, View
from wings_core.sql_process.process import EngineBounds, StatementEngine

ONE = View("CREATE VIEW wings.main.one AS FROM __one", "DROP VIEW IF EXISTS wings.main.one")
TWO = View("CREATE VIEW wings.main.two AS FROM __two", "DROP VIEW IF EXISTS wings.main.two")

Tables = Mapping[str, pa.Table]


class Opened:
    """An engine, and the tables that it scans."""

    def __init__(self, bounds: EngineBounds, directory: Path) -> None:
        self.engine = StatementEngine(bounds, str(directory), self._open_scan)
        self._tables: Tables = {}

    def _open_scan(self, name: str, columns: Sequence[str], _: object) -> pa.RecordBatchReader:
        return self._tables[name].select(columns).to_reader()

    def prepare(
        self, tables: Tables, views: Sequence[View], text: str, sent: Tables | None = None
    ) -> pa.Schema | None:
        self._tables = tables
        schemas = {name: table.schema for name, table in tables.items()}
        return self.engine.prepare(schemas, sent or {}, views, text)

    def run(self, text: str) -> list[dict[str, Any]]:
        if self.prepare({}, [], text) is None:
            return []
        return [row for batch in self.engine.batches(1) for row in batch.to_pylist()]


def opened(path: Path, *, memory: int = 64, spill: int = 0, threads: int = 1) -> Opened:
    """Return an engine with so many MiB of memory and of disk."""
    return Opened(EngineBounds(memory << 20, spill << 20, threads), path)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Opened]:
    found = opened(tmp_path)
    yield found
    found.engine.close()


def rows(engine: Opened, view: View, name: str, *, sent: bool = False, **columns: Any) -> Any:
    """Return what a table has under the name of a view."""
    tables = {name: pa.table(columns)}
    text = f"from {name.removeprefix('__')}"
    schema = engine.prepare({} if sent else tables, [view], text, tables if sent else {})
    assert schema is not None
    found = [row for batch in engine.engine.batches(1_000) for row in batch.to_pylist()]
    assert all(list(row) == schema.names for row in found)
    engine.engine.release()
    return found


@pytest.mark.parametrize("sent", [False, True])
def test_each_statement_sees_its_own_table_under_the_same_name(engine: Opened, sent: bool) -> None:
    for columns in ({"n": 1}, {"n": 2}, {"n": "x"}, {"m": 3}):
        one = {name: [value] for name, value in columns.items()}
        assert rows(engine, ONE, "__one", sent=sent, **one) == [columns]


@pytest.mark.parametrize("sent", [False, True])
def test_a_statement_does_not_see_what_another_one_was_given(engine: Opened, sent: bool) -> None:
    assert rows(engine, ONE, "__one", sent=sent, n=[1])
    for unseen in ("one", "__one"):
        with pytest.raises(EngineFailed) as caught:
            engine.prepare({"__two": pa.table({"n": [2]})}, [TWO], f"from {unseen}")
        assert caught.value.harmless
    assert rows(engine, TWO, "__two", n=[2]) == [{"n": 2}]


def test_what_cannot_be_removed_goes_with_its_instance(engine: Opened) -> None:
    assert rows(engine, ONE, "__one", n=[1])
    engine.engine.close()  # So that nothing can be dropped there.
    assert rows(engine, TWO, "__two", n=[2]) == [{"n": 2}]
    with pytest.raises(EngineFailed):
        engine.prepare({"__two": pa.table({"n": [2]})}, [TWO], "from one")


SORTED = """select max(r), max(s) from (
    select row_number() over (order by hash(i)) r, i::varchar || '-------------------------------' s
    from range(2000000) t(i)
)"""
"""It has 80 MB to sort."""


@pytest.mark.parametrize("spill", [0, 16])
def test_what_is_spilled_is_bounded(tmp_path: Path, spill: int) -> None:
    engine = opened(tmp_path, memory=32, spill=spill, threads=2)
    with pytest.raises(EngineFailed, match="max_temp_directory_size"):
        engine.run(SORTED)
    engine.engine.close()


def test_what_memory_does_not_hold_is_spilled(tmp_path: Path) -> None:
    engine = opened(tmp_path, memory=32, spill=1 << 10, threads=2)
    (row,) = engine.run(SORTED)
    assert row["max(r)"] == 2_000_000
    engine.engine.close()


@pytest.mark.parametrize("threads", [1, 3])
def test_an_engine_has_the_threads_and_the_memory_that_it_was_given(
    tmp_path: Path, threads: int
) -> None:
    engine = opened(tmp_path, threads=threads)
    asked = "select current_setting('threads') threads, current_setting('memory_limit') memory"
    assert engine.run(asked) == [{"threads": threads, "memory": "64.0 MiB"}]
    engine.engine.close()


OUTSIDE = (
    "from read_csv('/etc/passwd')",
    "from '/etc/passwd'",
    "select content from read_text('/etc/passwd')",
    "copy (select 1) to '{path}/copied'",
    "attach '{path}/attached'",
    "install httpfs",
    "load httpfs",
    "set threads = 64",
    "set memory_limit = '1TB'",
    "set enable_external_access = true",
    "reset lock_configuration",
)


def test_an_engine_reaches_nothing_outside_and_keeps_its_settings(
    subtests: pytest.Subtests, tmp_path: Path
) -> None:
    """The list of allowed statements refuses these before: this is the wall behind it."""
    engine = opened(tmp_path / "spill")
    for text in OUTSIDE:
        with subtests.test(text), pytest.raises(EngineFailed):
            engine.run(text.format(path=tmp_path))
    assert not list(tmp_path.iterdir())
    engine.engine.close()
