"""Segments that are Parquet files: read by Wings as its own, and by other programs."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.flight as flight
import pyarrow.parquet as pq
import pytest
from flight_calls import act, code_of, error_of, push, ticket_of

from wings_core.check import check_directory
from wings_core.limits import Limits
from wings_server.testing import running_server

PARQUET = {"tier_after_ms": 0, "segment_format": "parquet"}
BERLIN: Any = pa.timestamp("ms", "Europe/Berlin")
SCHEMA = [
    {"name": "n", "type": "int32"},
    {"name": "tags", "type": "list<item: string>"},
    {"name": "at", "type": "timestamp[ms, tz=Europe/Berlin]"},
]
LIMITS = Limits(maintenance_seconds=100_000)


def rows(start: int, count: int, **columns: Any) -> pa.RecordBatch:
    numbers = range(start, start + count)
    batch = {
        "n": pa.array(numbers, pa.int32()),
        "tags": pa.array([[f"t{n}", None] if n % 3 else None for n in numbers]),
        "at": pa.array([datetime(2026, 1, 1 + n % 20, tzinfo=UTC) for n in numbers], BERLIN),
    }
    return pa.record_batch({**batch, **columns})


def scan(client: flight.FlightClient, **ticket: Any) -> pa.Table:
    return client.do_get(ticket_of(kind="scan", topic="t", **ticket)).read_all()


def files(tmp_path: Path) -> list[Path]:
    return sorted(tmp_path.rglob("*.parquet"))


def test_parquet_segments_read_as_what_was_pushed_in_all_versions(tmp_path: Path) -> None:
    with running_server(tmp_path, limits=LIMITS) as server, server.client() as client:
        act(client, "create-topic", topic="t", schema={"fields": SCHEMA}, config=PARQUET)
        push(client, "t", rows(0, 40), rows(40, 30))
        act(client, "maintain", topic="t")
        change = {
            "add": [{"name": "place", "type": "struct<x: int16, y: list<item: int8>>"}],
            "widen": [{"name": "n", "type": "int64"}],
        }
        act(client, "alter-topic", topic="t", schema=change)
        places: Any = pa.array(
            [{"x": n, "y": [n % 100, None]} if n % 2 else None for n in range(50)],
            pa.struct([("x", pa.int16()), ("y", pa.list_(pa.int8()))]),
        )
        later = rows(70, 50, n=pa.array(range(70, 120), pa.int64()), place=places)
        push(client, "t", later)
        before = scan(client, system_columns=True)
        act(client, "maintain", topic="t")
        assert len(files(tmp_path)) == 2
        assert not list(tmp_path.rglob("*.feather"))
        table = scan(client, system_columns=True)
        assert table.drop_columns("__timestamp").equals(before.drop_columns("__timestamp"))
        assert table.column("n").to_pylist() == [*range(120)]
        assert table.column("place").to_pylist() == [None] * 70 + places.to_pylist()
        assert scan(client, schema_version=1).column("n").to_pylist() == [*range(120)]
        # By parts: columns, offsets, filters.
        assert scan(client, columns=["at", "n"], offset=65).column("n").to_pylist() == [
            *range(65, 120)
        ]
        assert scan(client, filter="n >= 60 AND n < 80").num_rows == 20
        assert scan(client, columns=["at"]).equals(table.select(["at"]))
    assert check_directory(tmp_path).ok
    # Other programs read the same values, and Parquet's own page checksums hold.
    first, second = (
        pq.ParquetFile(file, page_checksum_verification=True) for file in files(tmp_path)
    )
    assert first.schema_arrow.names == ["n", "tags", "at", "__offset", "__timestamp"]
    assert second.schema_arrow.names == [*first.schema_arrow.names, "place"]
    ids = [(field.metadata or {})[b"PARQUET:field_id"] for field in second.schema_arrow]
    assert ids == [b"1", b"2", b"3", b"4", b"5", b"7"]
    columns = ["__offset", "tags"]
    found = pl.concat(pl.read_parquet(file, columns=columns) for file in files(tmp_path))
    assert found["__offset"].to_list() == [*range(120)]
    assert found["tags"].to_list() == table.column("tags").to_pylist()
    stamps = second.read().column("__timestamp").to_pylist()
    assert stamps == table.column("__timestamp").slice(70).to_pylist()


def test_a_type_that_parquet_lacks_is_refused_by_its_column(tmp_path: Path) -> None:
    with running_server(tmp_path, limits=LIMITS) as server, server.client() as client:
        odd = {"fields": [{"name": "gap", "type": "month_day_nano_interval"}]}
        for call in (
            lambda: act(client, "create-topic", topic="odd", schema=odd, config=PARQUET),
            lambda: act(client, "alter-topic", topic="plain", config=PARQUET),
            lambda: act(client, "alter-topic", topic="t", schema={"add": odd["fields"]}),
        ):
            act(client, "create-topic", topic="plain", schema=odd, if_not_exists=True)
            fields = {"fields": SCHEMA}
            act(
                client, "create-topic", topic="t", schema=fields, config=PARQUET, if_not_exists=True
            )
            with pytest.raises(pa.ArrowException) as caught:
                call()
            error = error_of(caught.value)
            assert (error["code"], error["column"]) == ("INVALID_SCHEMA", "gap")


def test_rows_that_parquet_cannot_hold_become_an_arrow_segment(tmp_path: Path) -> None:
    with running_server(tmp_path, limits=LIMITS) as server, server.client() as client:
        act(client, "create-topic", topic="t", schema={"fields": SCHEMA}, config=PARQUET)
        far = rows(0, 5, at=pa.array([2**62, 1, 2, 3, 4]).cast(BERLIN))
        push(client, "t", far)
        act(client, "maintain", topic="t")
        assert len(list(tmp_path.rglob("*.feather"))) == 1
        assert scan(client).column("at").equals(pa.chunked_array([far.column("at")]))


def test_damage_is_told_for_the_rows_of_its_page_alone(tmp_path: Path) -> None:
    """A page of four, and columns that are not damaged, are read; the rest is STORAGE_CORRUPT."""
    with running_server(tmp_path, limits=LIMITS) as server, server.client() as client:
        act(client, "create-topic", topic="t", schema={"fields": SCHEMA}, config=PARQUET)
        # So much that they are merged into row groups of a file.
        for start in range(0, 200_000, 50_000):
            push(client, "t", rows(start, 50_000))
        act(client, "maintain", topic="t")
    (file,) = files(tmp_path)
    data = bytearray(file.read_bytes())
    metadata = pq.read_metadata(file)
    assert metadata.num_row_groups == 4
    chunk = metadata.row_group(1).column(1)
    at = chunk.data_page_offset + chunk.total_compressed_size // 2
    data[at] ^= 1
    file.write_bytes(data)
    with running_server(tmp_path, limits=LIMITS) as server, server.client() as client:
        assert scan(client, columns=["n"]).column("n").to_pylist() == [*range(200_000)]
        assert scan(client, offset=100_000).num_rows == 100_000
        reader = client.do_get(ticket_of(kind="scan", topic="t"))
        read = 0
        while read < 50_000:
            batch = reader.read_chunk().data
            assert batch is not None
            read += batch.num_rows
        with pytest.raises(pa.ArrowException) as caught:
            reader.read_chunk()
        assert (read, code_of(caught.value)) == (50_000, "STORAGE_CORRUPT")
    report = check_directory(tmp_path)
    assert len(report.problems) == 1
    assert "checksum of column 'tags'" in report.problems[0].message


def test_a_byte_changed_anywhere_in_a_file_is_found(tmp_path: Path) -> None:
    with running_server(tmp_path, limits=LIMITS) as server, server.client() as client:
        act(client, "create-topic", topic="t", schema={"fields": SCHEMA}, config=PARQUET)
        push(client, "t", rows(0, 20))
        act(client, "maintain", topic="t")
    (file,) = files(tmp_path)
    data = file.read_bytes()
    for at in range(0, len(data), 61):
        damaged = bytearray(data)
        damaged[at] ^= 16
        file.write_bytes(damaged)
        assert not check_directory(tmp_path).ok, at
    for length in range(1, len(data), 997):
        file.write_bytes(data[:length])
        assert not check_directory(tmp_path).ok, length
