"""Segments: Arrow IPC files for everybody, pages with checksums for Wings."""

import uuid
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.dataset as dataset
import pytest
from arrow_strategies import batches
from hypothesis import HealthCheck, given, settings
from pages import decode_page
from property_examples import examples

from wings_core.errors import StorageCorrupt
from wings_core.storage.segment_file import (
    TIMESTAMP_FIELD,
    SegmentWriter,
    segment_problems,
    segment_schema,
)

TOPIC = str(uuid.uuid4())
SCHEMA = pa.schema([("n", pa.int64()), ("s", pa.string()), ("l", pa.list_(pa.int32()))])
ABOUT = {"wings.topic": "tenants/t/namespaces/n/topics/x", "wings.start_offset": "7"}


def timed(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows with a timestamp each."""
    times = pa.array(range(batch.num_rows), TIMESTAMP_FIELD.type)
    return pa.RecordBatch.from_arrays(
        [*batch.columns, times], schema=segment_schema(batch.schema.remove_metadata())
    )


def numbers(first: int, rows: int = 1_000) -> pa.RecordBatch:
    values = range(first, first + rows)
    return timed(
        pa.record_batch(
            [
                pa.array(values, pa.int64()),
                pa.array([f"value {value}" for value in values]),
                pa.array([[value] * (value % 3) for value in values], pa.list_(pa.int32())),
            ],
            schema=SCHEMA,
        )
    )


def written(*rows: pa.RecordBatch) -> tuple[pa.Buffer, list[tuple[int, int]]]:
    """Return a segment, and where its pages are."""
    writer = SegmentWriter(TOPIC, pa.schema(list(rows[0].schema)[:-1]), ABOUT)
    places = [writer.write(batch) for batch in rows]
    data = b"".join(writer.finish())
    assert len(data) == writer.length
    return pa.py_buffer(data), places


def test_pyarrow_opens_a_segment_as_a_file() -> None:
    rows = [numbers(0), numbers(1_000, 10), numbers(1_010)]
    data, _ = written(*rows)
    file = pa.ipc.open_file(data)
    assert file.num_record_batches == 3
    assert [file.get_batch(number) for number in (2, 0, 1)] == [rows[2], rows[0], rows[1]]
    table = file.read_all()
    table.validate(full=True)
    assert table.equals(pa.Table.from_batches(rows))
    assert file.schema.metadata == {key.encode(): text.encode() for key, text in ABOUT.items()}


def test_it_is_compressed() -> None:
    rows = numbers(0, 65_536)
    data, _ = written(rows)
    assert data.size < rows.nbytes / 3


def test_duckdb_reads_a_dataset_of_segments(tmp_path: Path) -> None:
    for first in (0, 1_000):
        data, _ = written(numbers(first))
        (tmp_path / f"{first}.arrow").write_bytes(data)
    files = dataset.dataset(tmp_path, format="ipc")
    assert files.count_rows() == 2_000
    with duckdb.connect() as connection:
        connection.register("files", files)
        found = connection.execute("SELECT count(*), sum(n) FROM files").fetchall()
    assert found == [(2_000, sum(range(2_000)))]


def test_each_page_is_read_at_its_address() -> None:
    rows = [numbers(0), numbers(1_000, 1), numbers(1_001)]
    data, places = written(*rows)
    for batch, (position, length) in zip(rows, places, strict=True):
        assert position % 64 == 0
        assert decode_page(data.slice(position, length), TOPIC, batch.schema) == batch
    assert decode_page(data.slice(*places[0]), TOPIC, rows[0].schema, [3, 0]) == rows[0].select(
        [3, 0]
    )


def test_a_flipped_byte_of_a_page_is_found_wherever_it_is() -> None:
    batch = numbers(0, 50)
    data, ((position, length),) = written(batch)
    for at in range(length):
        damaged = bytearray(data.slice(position, length).to_pybytes())
        damaged[at] ^= 1
        with pytest.raises(StorageCorrupt):
            decode_page(pa.py_buffer(bytes(damaged)), TOPIC, batch.schema)


def test_a_segment_without_pages_is_a_file_too() -> None:
    writer = SegmentWriter(TOPIC, SCHEMA, {})
    assert pa.ipc.open_file(pa.py_buffer(b"".join(writer.finish()))).read_all().num_rows == 0


@settings(max_examples=examples(8, 100), suppress_health_check=[HealthCheck.too_slow])
@given(batch=batches())
def test_rows_of_any_type_come_back_either_way(batch: pa.RecordBatch) -> None:
    rows = timed(batch)
    data, places = written(rows, rows)
    file = pa.ipc.open_file(data)
    for number, place in enumerate(places):
        page = decode_page(data.slice(*place), TOPIC, rows.schema)
        page.validate(full=True)
        assert page.equals(rows) or str(page) == str(rows)  # NaN is not equal to itself.
        assert str(file.get_batch(number)) == str(page)


def problems(data: bytes, places: list[tuple[int, int]]) -> list[str]:
    pages = [(position, position + length) for position, length in places]
    return list(segment_problems(lambda start, end: data[start:end], len(data), pages))


def test_a_segment_that_is_cut_off_anywhere_is_found() -> None:
    buffer, places = written(numbers(0), numbers(1_000, 10))
    data = buffer.to_pybytes()
    assert not problems(data, places)
    (_, first), end = places[0], places[-1][0] + places[-1][1]
    for length in [*range(0, first, 7), *range(end, len(data))]:
        assert problems(data[:length], places), length


def test_a_changed_byte_outside_the_pages_is_found_or_means_nothing() -> None:
    buffer, places = written(numbers(0), numbers(1_000, 10))
    data = buffer.to_pybytes()
    end = places[-1][0] + places[-1][1]
    found = 0
    outside = [*range(places[0][0]), *range(end, len(data))]
    for position in outside:
        damaged = bytearray(data)
        damaged[position] ^= 0x55
        if problems(bytes(damaged), places):
            found += 1
            continue
        file = pa.ipc.open_file(pa.py_buffer(damaged))
        assert file.schema.equals(pa.ipc.open_file(buffer).schema, check_metadata=True), position
        assert file.read_all() == pa.ipc.open_file(buffer).read_all(), position
    assert found > len(outside) / 2
