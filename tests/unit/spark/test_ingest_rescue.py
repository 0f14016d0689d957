"""Rows that do not fit are kept as text; all others are as without that."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from wings_core.queue.journal import ClaimedFile
from wings_spark.ingest.files import FileError
from wings_spark.ingest.plan import FileSection
from wings_spark.ingest.read_file import FileReader, FileReading
from wings_spark.ingest.settings import SourceSettings

arrow: Any = pa


def read(path: Path, fields: dict[str, Any], *, rescues: bool) -> list[dict[str, Any]]:
    """Read a file for a topic with these columns, and one for what does not fit."""
    if rescues:
        fields = {**fields, "rescued": pa.string()}
    settings = SourceSettings.parse(
        {
            "name": "a",
            "checkpoint": "checkpoint",
            "queue": {"kind": "sqlite", "path": "queue"},
            "target": {"endpoint": "grpc://127.0.0.1:1", "topic": "a"},
            "files": {
                "allowed_prefixes": [str(path.parent)],
                "rescued_column": "rescued" if rescues else None,
            },
        },
        "test",
    )
    file = ClaimedFile(shard="a", uri=str(path))
    reader = FileReader(settings, arrow.schema(list(fields.items())), None)
    batches = list(reader.batches(FileSection(file=file, number=0), FileReading()))
    return [row for batch in batches for row in batch.to_pylist()]


@pytest.mark.parametrize(
    ("data_type", "text"),
    [
        (pa.int64(), " 1"),
        (pa.int64(), "1 "),
        (pa.int64(), "0x1f"),
        (pa.float64(), " 1.5"),
        (pa.float16(), "1.5"),
        (pa.bool_(), "True"),
        (pa.date32(), " 2024-01-02"),
        (pa.timestamp("s"), "2024-01-02T03:04:05.000"),
        (pa.timestamp("ms"), "2024-01-02T03:04:05.120000"),
        (pa.timestamp("us", "UTC"), "2024-01-02 03:04:05+02:00"),
        (pa.time32("s"), "03:04:05.000"),
        (pa.time64("us"), "03:04:05.123456"),
        (pa.decimal128(5, 2), " 1.5"),
        (pa.large_string(), ' "" \n, '),
    ],
)
def test_a_value_that_fits_is_read_the_same_whether_or_not_others_are_rescued(
    data_type: Any, text: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.csv"
    quoted = text.replace('"', '""')
    path.write_text(f'a,b\n"{quoted}","x"\n,\n"{quoted}",""\n')
    fields = {"a": data_type, "b": pa.string()}
    expected = [{**row, "rescued": None} for row in read(path, fields, rescues=False)]
    assert len(expected) == 3
    assert read(path, fields, rescues=True) == expected


def test_a_value_that_would_lose_something_is_kept_as_text(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a\n2024-01-02T03:04:05.123456\n2024-01-02T03:04:05.123\n")
    rows = read(tmp_path / "a.csv", {"a": pa.timestamp("ms")}, rescues=True)
    assert [row["rescued"] for row in rows] == ['{"a":"2024-01-02T03:04:05.123456"}', None]
    assert rows[0]["a"] is None
    assert rows[1]["a"] is not None


def test_columns_that_the_topic_has_not_fail_a_csv_file_or_are_kept_as_text(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b\n1,2\n")
    with pytest.raises(FileError, match="'b' is not a column of the topic"):
        read(tmp_path / "a.csv", {"a": pa.int64()}, rescues=False)
    rows = read(tmp_path / "a.csv", {"a": pa.int64()}, rescues=True)
    assert [(row["a"], row["rescued"]) for row in rows] == [(1, '{"b":"2"}')]


def test_a_number_that_no_double_is_near_to_is_rescued_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"a":1}\n{"a":1e400}\n{"a":2.5}\n')
    with pytest.raises(FileError, match=":2: column 'a'"):
        read(path, {"a": pa.float64()}, rescues=False)
    rows = read(path, {"a": pa.float64()}, rescues=True)
    assert [row["a"] for row in rows] == [1.0, None, 2.5]
    assert [row["rescued"] for row in rows] == [None, '{"a":1e400}', None]


def test_numbers_that_json_lacks_are_kept_by_name(tmp_path: Path) -> None:
    inf, nan = float("inf"), float("nan")
    rows = {
        "a": [0.5, 1.0, 0.5],
        "b": [nan, nan, 1.5],
        "c": [[inf], [1.0], [-inf, None]],
        "d": [{"e": -inf}, {"e": nan}, None],
    }
    pq.write_table(pa.table(rows), tmp_path / "a.parquet")
    found = read(tmp_path / "a.parquet", {"a": pa.int64()}, rescues=True)
    # What does not fit, and the columns that the topic has not of what does.
    assert [row["rescued"] for row in found] == [
        '{"a":0.5,"b":"NaN","c":["Infinity"],"d":{"e":"-Infinity"}}',
        '{"b":"NaN","c":[1.0],"d":{"e":"NaN"}}',
        '{"a":0.5,"b":1.5,"c":["-Infinity",null],"d":null}',
    ]
    rows = {"a": pa.array([7, 8]), "b": pa.array([nan, 0.5], pa.float16())}
    pq.write_table(pa.table(rows), tmp_path / "a.parquet")
    found = read(tmp_path / "a.parquet", {"a": pa.int64()}, rescues=True)
    assert [(row["a"], row["rescued"]) for row in found] == [(7, '{"b":"NaN"}'), (8, '{"b":0.5}')]
