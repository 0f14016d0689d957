"""Engines of SQL: a statement sees what it was given, and nothing of another one."""

import gc
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from wings_core.sql.engines import Watch
from wings_core.sql_process.engine import Engine, EngineBounds, EngineFailed, View

ONE = View("CREATE VIEW wings.main.one AS FROM __one", "DROP VIEW IF EXISTS wings.main.one")
TWO = View("CREATE VIEW wings.main.two AS FROM __two", "DROP VIEW IF EXISTS wings.main.two")

ENDLESS = "select count(*) from range(100000000) a, range(100000000) b"


@pytest.fixture
def engine() -> Iterator[Engine]:
    opened = Engine(EngineBounds(64 << 20, 0, 1))
    yield opened
    opened.close()


def dataset(**columns: list[Any]) -> Any:
    return ds.dataset(pa.table(columns))


def rows(engine: Engine, text: str, view: View, name: str, table: Any) -> list[dict[str, Any]]:
    schema = engine.prepare({name: table}, [view], text)
    assert schema is not None
    found = [row for batch in engine.batches(1_000) for row in batch.to_pylist()]
    assert all(list(row) == schema.names for row in found)
    engine.release()
    return found


def test_each_statement_sees_its_own_table_under_the_same_name(engine: Engine) -> None:
    for value in (1, 2):
        assert rows(engine, "from one", ONE, "__one", dataset(n=[value])) == [{"n": value}]
    for table, found in ((dataset(n=["x"]), {"n": "x"}), (dataset(m=[3]), {"m": 3})):
        assert rows(engine, "from one", ONE, "__one", table) == [found]


def test_a_statement_does_not_see_what_another_one_was_given(engine: Engine) -> None:
    assert rows(engine, "from one", ONE, "__one", dataset(n=[1]))
    for unseen in ("one", "__one"):
        with pytest.raises(EngineFailed) as caught:
            engine.prepare({"__two": dataset(n=[2])}, [TWO], f"from {unseen}")
        assert caught.value.harmless
    assert rows(engine, "from two", TWO, "__two", dataset(n=[2])) == [{"n": 2}]


def test_what_cannot_be_removed_goes_with_its_instance(engine: Engine) -> None:
    assert rows(engine, "from one", ONE, "__one", dataset(n=[1]))
    engine.connection.close()  # So that nothing can be dropped there.
    assert rows(engine, "from two", TWO, "__two", dataset(n=[2])) == [{"n": 2}]
    with pytest.raises(EngineFailed):
        engine.prepare({"__two": dataset(n=[2])}, [TWO], "from one")


def test_a_table_is_let_go_with_its_statement(engine: Engine) -> None:
    table = dataset(n=[1])
    known = weakref.ref(table)
    assert rows(engine, "from one", ONE, "__one", table)
    del table
    until = time.monotonic() + 60
    while known() is not None:  # A thread of Arrow's or DuckDB's may let go of it last.
        assert time.monotonic() < until
        gc.collect()


SORTED = """select max(r), max(s) from (
    select row_number() over (order by hash(i)) r, i::varchar || '-------------------------------' s
    from range(2000000) t(i)
)"""
"""It has 80 MB to sort."""


@pytest.mark.parametrize("spill_bytes", [0, 16 << 20])
def test_what_is_spilled_is_bounded(spill_bytes: int) -> None:
    engine = Engine(EngineBounds(32 << 20, spill_bytes, 2))
    assert engine.prepare({}, [], SORTED) is not None
    with pytest.raises(EngineFailed, match="max_temp_directory_size"):
        list(engine.batches(1))
    engine.close()


def test_what_memory_does_not_hold_is_spilled() -> None:
    engine = Engine(EngineBounds(32 << 20, 1 << 30, 2))
    assert engine.prepare({}, [], SORTED) is not None
    (batch,) = engine.batches(1)
    assert batch.column(0).to_pylist() == [2_000_000]
    engine.close()


@pytest.mark.parametrize("threads", [1, 3])
def test_an_engine_has_the_threads_and_the_memory_that_it_was_given(threads: int) -> None:
    engine = Engine(EngineBounds(64 << 20, 0, threads))
    asked = "select current_setting('threads') threads, current_setting('memory_limit') memory"
    assert engine.prepare({}, [], asked) is not None
    (batch,) = engine.batches(1)
    assert batch.to_pylist() == [{"threads": threads, "memory": "64.0 MiB"}]
    engine.close()


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


def run(engine: Engine, text: str) -> None:
    if engine.prepare({}, [], text) is not None:
        list(engine.batches(1))


def test_an_engine_reaches_nothing_outside_and_keeps_its_settings(
    engine: Engine, subtests: pytest.Subtests, tmp_path: Path
) -> None:
    """The list of allowed statements refuses these before: this is the wall behind it."""
    for text in OUTSIDE:
        with subtests.test(text), pytest.raises(EngineFailed):
            run(engine, text.format(path=tmp_path))
    assert not list(tmp_path.iterdir())


def test_a_watch_interrupts_what_is_to_end_and_has_not_left(engine: Engine) -> None:
    def run() -> None:
        engine.prepare({}, [], ENDLESS)
        list(engine.batches(1))

    watch = Watch()
    watch.enter(engine, lambda: True)
    with pytest.raises(EngineFailed, match="Interrupt"):
        run()
    watch.leave(engine)
    assert engine.prepare({}, [], "select 1") is not None
    watch.close()
