"""Files as people have them: each cell is what pandas, DuckDB and pyarrow read of the same file."""

import datetime as dt
import json
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import httpx
import pandas  # pyright: ignore[reportMissingTypeStubs]
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from fix_client import Connect
from fix_commands import Command
from fix_ingest import MakeSource, Start
from http_calls import entry, fetch
from http_calls import push as push_rows

import wings_client
from wings_client import Client
from wings_core.queue.sqlite import SqliteQueue

if TYPE_CHECKING:
    from wings_server.testing import RunningServer

frames: Any = pandas  # Its stubs know of fewer arguments.

Columns = Mapping[str, Sequence[Any]]
"""The cells of a file by column."""

DATA = Path(str(files("vega_datasets"))) / "_data"
CSV = sorted(path.name for path in DATA.glob("*.csv"))
JSON = sorted(path.name for path in DATA.glob("*.json"))


@pytest.fixture
def connect() -> Connect:
    """The way to a client; one face will do."""
    return wings_client.connect


@pytest.fixture
def push(
    server: "RunningServer", monkeypatch: pytest.MonkeyPatch, command: Command, tmp_path: Path
) -> Callable[..., str]:
    """Calls `wings push` in this process, which must succeed; returns its standard error."""
    monkeypatch.setenv("WINGS_ENDPOINT", server.flight)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def call(*arguments: object) -> str:
        done = command("push", *arguments)
        assert done.status == 0, done.err
        return done.err

    return call


def columns_of(client: Client, topic: str) -> Columns:
    found: Columns = client.scan(topic).read_all().to_pydict()
    return found


def agrees(ours: Any, theirs: Any) -> bool:
    """Whether a cell is what another reader has: its value, or the text that it has of it."""
    if theirs is None or theirs is pandas.NaT or theirs is pandas.NA or theirs != theirs:
        return ours is None
    if isinstance(theirs, str) and not isinstance(ours, str):
        if isinstance(ours, int | float):
            return ours == type(ours)(theirs)
        return isinstance(ours, dt.date) and ours == dt.date.fromisoformat(theirs)
    if isinstance(ours, str) and isinstance(theirs, dt.date):
        return type(theirs).fromisoformat(ours.replace("/", "-")) == theirs
    return ours == theirs


def assert_agree(ours: Columns, theirs: Columns) -> None:
    assert list(ours) == list(theirs)
    for name, cells in theirs.items():
        assert len(ours[name]) == len(cells)
        differ = [
            (row, mine, cell)
            for row, (mine, cell) in enumerate(zip(ours[name], cells, strict=True))
            if not agrees(mine, cell)
        ]
        assert not differ, (name, differ[:5])


def readings(path: Path) -> dict[str, Columns]:
    """Return what others read of a CSV or JSON file, by their names."""
    place = str(path)
    if path.suffix == ".csv":
        return {
            "pandas": frames.read_csv(path, keep_default_na=False, na_values=[""]).to_dict("list"),
            "texts": frames.read_csv(path, dtype=str, keep_default_na=False, na_values=[""])
            .astype(object)
            .to_dict("list"),
            "duckdb": duckdb.read_csv(place).to_arrow_table().to_pydict(),
            "pyarrow": pyarrow.csv.read_csv(path).to_pydict(),
        }
    rows: list[dict[str, Any]] = json.loads(path.read_text())
    names = list(dict.fromkeys(name for row in rows for name in row))
    frame = frames.read_json(path, dtype=False, precise_float=True)
    return {
        "json": {name: [row.get(name) for row in rows] for name in names},
        "pandas": frame.to_dict("list"),
        "duckdb": duckdb.read_json(place).to_arrow_table().to_pydict(),
    }


@pytest.mark.parametrize("name", [*CSV, *JSON])
def test_a_real_file_is_pushed_as_others_read_it(
    wings: Client, push: Callable[..., str], new_topic_id: str, name: str
) -> None:
    push(new_topic_id, DATA / name, "--create")
    ours = columns_of(wings, new_topic_id)
    for theirs in readings(DATA / name).values():
        assert_agree(ours, theirs)


@pytest.mark.parametrize("name", ["cars.json", "burtin.json", "airports.csv", "us-employment.csv"])
def test_a_real_file_is_ingested_as_it_is_pushed(
    wings: Client,
    push: Callable[..., str],
    source: MakeSource,
    start: Start,
    new_topic_id: str,
    name: str,
    tmp_path: Path,
) -> None:
    push(f"{new_topic_id}-pushed", DATA / name, "--create")
    topic = wings.topic(f"{new_topic_id}-pushed")
    first = topic.schema.field(0)  # The file's other columns are added as they are met.
    wings.create_topic(new_topic_id, pa.schema([first]))
    queue = SqliteQueue(tmp_path / "queue.sqlite")
    queue.send([str(DATA / name)])
    queue.close()
    files = {"on_new_columns": "evolve", "allowed_prefixes": [str(DATA)]}
    start(source(files=files)).drain()
    assert wings.topic(new_topic_id).schema.equals(topic.schema)
    assert columns_of(wings, new_topic_id) == columns_of(wings, topic.name)


@pytest.mark.parametrize("name", ["cars.json", "seattle-weather.csv"])
def test_columns_that_a_topic_lacks_are_rescued_of_a_real_file(
    wings: Client, source: MakeSource, start: Start, new_topic_id: str, name: str, tmp_path: Path
) -> None:
    theirs = next(iter(readings(DATA / name).values()))
    kept, *others = theirs
    is_text = isinstance(theirs[kept][0], str)
    wings.create_topic(new_topic_id, {kept: "string" if is_text else "double", "rest": "string"})
    queue = SqliteQueue(tmp_path / "queue.sqlite")
    queue.send([str(DATA / name)])
    queue.close()
    start(source(files={"rescued_column": "rest", "allowed_prefixes": [str(DATA)]})).drain()
    ours = columns_of(wings, new_topic_id)
    rescued = [json.loads(text) for text in ours["rest"]]
    found = {kept: ours[kept]} | {name: [row.get(name) for row in rescued] for name in others}
    assert {name: len(cells) for name, cells in found.items()} == dict.fromkeys(
        theirs, len(theirs[kept])
    )
    for each in others:
        assert all(
            agrees(mine, str(cell) if isinstance(mine, str) else cell)
            for mine, cell in zip(found[each], theirs[each], strict=True)
        ), each


@pytest.mark.parametrize("name", ["movies", "cars.json", "barley.json"])
def test_real_rows_go_in_and_come_out_over_http(
    wings: Client, http: httpx.Client, new_topic_id: str, name: str
) -> None:
    rows: list[dict[str, Any]]
    if name == "movies":  # As those of movies.json, which the package leaves out: a number's text.
        rows = [{"Title": "1776", "Gross": 1e6}, {"Title": "Pi ♥", "Gross": None}]
    else:
        rows = json.loads((DATA / name).read_text())
    columns = {
        key: "string"
        if any(isinstance(row[key], str) for row in rows)
        else "double"
        if any(isinstance(row[key], float) for row in rows)
        else "int64"
        for key in rows[0]
    }
    wings.create_topic(new_topic_id, columns)
    push_rows(http, {"topic": new_topic_id, "data": rows})
    (found,) = fetch(http, entry(new_topic_id), max_messages=len(rows))
    assert found["messages"] == rows


def features(count: int) -> list[dict[str, Any]]:
    """Return GeoJSON's features, with properties that are nested, missing and empty."""
    return [
        {
            "type": "Feature",
            "id": f"n{n}",
            "properties": {
                "name": f"Ort ü{n}",
                "people": None if n % 3 == 0 else n * 1000,
                "tags": ["a", "b"][: n % 3],
                "within": {"box": [n / 3, -n / 7], "owner": {"since": f"{1990 + n}-01-01"}},
            },
            "geometry": {"type": "Polygon", "coordinates": [[[0.5, n], [n, 0.25], [0.5, n]]]},
        }
        for n in range(count)
    ]


@pytest.mark.parametrize("name", ["a.geojson", "spread", "a.geojsonl", "array.json"])
def test_nested_geojson_is_pushed_as_it_is(
    wings: Client, push: Callable[..., str], new_topic_id: str, tmp_path: Path, name: str
) -> None:
    rows = features(9)
    path = tmp_path / name
    whole = {"type": "FeatureCollection", "bbox": [0, 1, 2, 3.5], "features": rows}
    texts = {
        "a.geojson": json.dumps(whole),
        "spread": json.dumps(whole, indent=1),  # No name tells what it is.
        "a.geojsonl": "".join(json.dumps(row) + "\n" for row in rows),
        "array.json": json.dumps(rows),
    }
    path.write_text(texts[name])
    push(new_topic_id, path, "--create")
    found = wings.scan(new_topic_id).read_all().to_pylist()
    if len(found) == 1:
        assert (found[0]["type"], found[0]["bbox"]) == ("FeatureCollection", [0, 1, 2, 3.5])
        found = found[0]["features"]
    text = json.dumps(found, default=dt.date.isoformat)
    assert json.loads(text) == rows


def test_geometries_of_several_kinds_are_kept_as_text_where_that_is_said(
    wings: Client,
    push: Callable[..., str],
    new_topic_id: str,
    tmp_path: Path,
) -> None:
    rows = features(3)
    rows[2]["geometry"] = {"type": "Point", "coordinates": [1, 2.5]}
    path = tmp_path / "a.geojsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(AssertionError) as failed:
        push(new_topic_id, path, "--create")
    told = str(failed.value)
    assert ":3" in told
    assert "--field geometry:string keeps whatever is there as text" in told
    push(new_topic_id, path, "--create", "--field", "geometry:string")
    found = columns_of(wings, new_topic_id)["geometry"]
    assert [json.loads(text) for text in found] == [row["geometry"] for row in rows]


TAXI = pa.schema(
    [
        ("vendor", pa.int32()),
        ("picked_up", pa.timestamp("us", "America/New_York")),
        ("dropped_off", pa.timestamp("ms", "UTC")),
        ("logged", pa.timestamp("ns")),
        ("fare", pa.decimal128(8, 2)),
        ("total", pa.decimal128(28, 6)),
        ("payment", pa.dictionary(pa.int32(), pa.string())),
        ("kept", pa.bool_()),
        ("zones", pa.list_(pa.int16())),
        ("fees", pa.list_(pa.struct([("name", pa.string()), ("amount", pa.decimal128(6, 2))]))),
        ("notes", pa.map_(pa.string(), pa.int32())),
        ("day", pa.date32()),
        ("distance", pa.float32()),
        ("raw", pa.binary()),
    ]
)


def taxi(count: int) -> pa.Table:
    """Return trips over the hour that daylight saving leaves out, with nulls in all columns."""
    begin = dt.datetime(2024, 3, 10, 6, 30, tzinfo=dt.UTC)
    rows = [
        {
            "vendor": n % 3 or None,
            "picked_up": begin + dt.timedelta(seconds=37 * n),
            "dropped_off": None if n % 97 == 0 else begin + dt.timedelta(milliseconds=37_123 * n),
            "logged": dt.datetime(2024, 1, 1) + dt.timedelta(microseconds=n),  # noqa: DTZ001
            "fare": Decimal(n - 50) / 4,
            "total": None if n % 50 == 0 else Decimal(10**21 + n) / 10**6,
            "payment": [None, "Cash", "Ünknown"][n % 3],
            "kept": [None, True, False][n % 3],
            "zones": list(range(n % 4)) if n % 5 else None,
            "fees": [{"name": "tax", "amount": Decimal("0.50")}, None][: n % 3],
            "notes": [("a", n)] if n % 2 else [],
            "day": dt.date(2024, 1, 1 + n % 28),
            "distance": n / 7,
            "raw": bytes([n % 256, 0, 255]),
        }
        for n in range(count)
    ]
    return pa.Table.from_pylist(rows, TAXI)


def plain(table: pa.Table) -> pa.Table:
    """Return a table as a topic has it: without dictionaries."""
    index = table.schema.get_field_index("payment")
    return table.set_column(index, "payment", table["payment"].cast(pa.string()))


@pytest.mark.parametrize("way", ["push", "ingest"])
def test_parquet_with_types_of_all_kinds_is_read_as_others_read_it(
    wings: Client,
    push: Callable[..., str],
    source: MakeSource,
    start: Start,
    new_topic_id: str,
    tmp_path: Path,
    way: str,
) -> None:
    path = tmp_path / "taxi.parquet"
    pyarrow.parquet.write_table(taxi(500), path, row_group_size=120)
    table = plain(pyarrow.parquet.read_table(path))
    if way == "push":
        push(new_topic_id, path, "--create")
    else:
        wings.create_topic(new_topic_id, table.schema)
        queue = SqliteQueue(tmp_path / "queue.sqlite")
        queue.send([str(path)])
        queue.close()
        start(source()).drain()
    found = wings.scan(new_topic_id).read_all()
    assert found.schema.equals(table.schema)
    assert found.equals(table)
    theirs = duckdb.read_parquet(str(path)).to_arrow_table().to_pydict()
    assert_agree(found.to_pydict(), theirs)
    frame = frames.read_parquet(path, dtype_backend="pyarrow")
    for name in ("vendor", "fare", "total", "payment", "kept", "day", "picked_up"):
        assert_agree({name: found[name].to_pylist()}, {name: frame[name].tolist()})


def test_values_of_parquet_that_a_topic_cannot_take_are_named_by_row(
    wings: Client, push: Callable[..., str], new_topic_id: str, tmp_path: Path
) -> None:
    path = tmp_path / "taxi.parquet"
    pyarrow.parquet.write_table(taxi(500), path, row_group_size=120)
    narrow = TAXI.set(4, pa.field("fare", pa.decimal128(5, 2)))
    wings.create_topic(new_topic_id, plain(pa.Table.from_pylist([], narrow)).schema)
    wide = taxi(500).set_column(
        4, "fare", pa.array([Decimal(n) for n in range(501, 1001)], pa.decimal128(8, 2))
    )
    pyarrow.parquet.write_table(wide, path, row_group_size=120)
    with pytest.raises(AssertionError) as failed:
        push(new_topic_id, path)
    told = str(failed.value)
    assert "row 500" in told
    assert "'fare'" in told
    assert "nothing was pushed" in told
    assert wings.scan(new_topic_id).read_all().num_rows == 0
