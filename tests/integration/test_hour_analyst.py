"""An analyst's first hour: a CSV goes in, and SQL, pandas, Polars and DuckDB read it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fix_commands import Command

import wings_client
from wings_client import Client
from wings_server.testing import RunningServer

pytest.importorskip("pandas")
pl = pytest.importorskip("polars")
duckdb = pytest.importorskip("duckdb")

SALES = """\
Order No.,zip,Sold at,net €,select,note
1,01067,2026-03-01T09:30:00Z,12.50,true,"said ""hi"", twice"
2,80331,2026-03-01T10:00:00Z,,false,
3,01067,2026-03-02T08:15:00Z,7.25,,"two
lines"
"""
LATER = """\
Order No.,zip,Sold at,net €,select,note,Länder-Code
4,50667,2026-03-02T09:00:00Z,100,true,,DE
"""


@pytest.fixture
def wings(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Client]:
    """A client, beside a shell in a directory with the files."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WINGS_ENDPOINT", server.flight)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "sales.csv").write_text(SALES)
    (tmp_path / "later.csv").write_text(LATER)
    with wings_client.connect(server.flight) as client:
        yield client


def ran(command: Command, *arguments: object, status: int = 0) -> str:
    done = command(*arguments)
    assert done.status == status, done
    return done.out + done.err


def pushed_from_csv(command: Command) -> None:
    """Types are those that change no value: a postcode stays text."""
    created = ran(command, "push", "sales", "sales.csv", "--create")
    assert "zip string" in created
    assert "net € double" in created
    described = ran(command, "topic", "describe", "sales")
    for column in ("Order No.", "Sold at", "net €", "select"):
        assert column in described
    total = 'select zip, count(*) orders, sum("net €") net from sales group by zip order by zip'
    by_zip = ran(command, "sql", "--format", "csv", total).splitlines()
    assert by_zip == ['"zip","orders","net"', '"01067",2,19.75', '"80331",1,']
    chosen = ran(command, "sql", "--format", "csv", 'select "Order No." from sales where "select"')
    assert chosen.splitlines()[1:] == ["1"]


def in_a_notebook(wings: Client) -> None:
    """Every frame has the same rows; nulls and texts are as they were in the file."""
    sales = wings.read("sales")
    assert len(sales) == 3
    pandas, polars = sales.to_pandas(), sales.to_polars()
    assert pandas["zip"].tolist() == polars["zip"].to_list() == ["01067", "80331", "01067"]
    assert pandas["net €"].isna().tolist() == [False, True, False]
    assert polars["note"].to_list() == ['said "hi", twice', None, "two\nlines"]
    assert str(pandas["Sold at"].dt.date.max()) == "2026-03-02"
    assert sales.to_duckdb().filter('"net €" > 10').fetchall()[0][0] == 1
    expensive = wings.lazy("sales").filter(pl.col("net €") > 10).select("Order No.", "zip")
    assert expensive.collect().rows() == [(1, "01067")]
    topic: Any = wings.dataset("sales")
    by_day = 'SELECT CAST("Sold at" AS DATE) AS day, sum("net €") FROM topic GROUP BY 1 ORDER BY 1'
    assert [net for _, net in duckdb.sql(by_day).fetchall()] == [12.5, 7.25]
    assert wings.sql("SELECT count(*) FROM sales").to_polars().item() == 3
    assert topic.count_rows() == 3


def another_column(command: Command, wings: Client) -> None:
    """A new column is refused, with the option that adds it, null in earlier rows."""
    assert "--evolve adds it" in ran(command, "push", "sales", "later.csv", status=1)
    ran(command, "push", "sales", "later.csv", "--evolve")
    assert wings.topic("sales").schema.names[-1] == "Länder-Code"
    assert wings.read("sales").to_polars()["Länder-Code"].to_list() == [None, None, None, "DE"]


def exported_and_back(command: Command, wings: Client) -> None:
    """A file of Parquet is what the topic holds, for other programs and for another topic."""
    ran(command, "export", "sales", "sales.parquet")
    rows = wings.read("sales").to_arrow().to_pylist()
    assert (
        pq.read_table("sales.parquet").select(wings.topic("sales").schema.names).to_pylist() == rows
    )
    assert duckdb.sql("SELECT max(\"net €\") FROM 'sales.parquet'").fetchall() == [(100.0,)]
    ran(command, "push", "copy", "sales.parquet", "--create")
    copy = wings.read("copy").to_arrow()
    assert isinstance(copy, pa.Table)
    assert copy.to_pylist() == rows


def test_an_hour_of_an_analyst(wings: Client, command: Command) -> None:
    pushed_from_csv(command)
    in_a_notebook(wings)
    another_column(command, wings)
    exported_and_back(command, wings)
