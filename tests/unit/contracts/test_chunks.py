"""The metadata of chunks, both ways."""

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wings_core.contracts.chunks import (
    ChunkEnd,
    ChunkRange,
    EndReason,
    ManyEnd,
    PartitionEnd,
    chunk_metadata,
    end_metadata,
    many_end_metadata,
    parse_chunk_metadata,
    parse_many_metadata,
    ranges_metadata,
)
from wings_core.partitions import partition_of_value

offsets = st.integers(0, (1 << 63) - 1)


@given(offsets, offsets)
def test_a_chunks_range_survives_its_metadata(start: int, end: int) -> None:
    raw = chunk_metadata(start, end)
    assert json.loads(raw) == {"start_offset": start, "end_offset": end}
    assert parse_chunk_metadata(raw) == ChunkRange(start, end)
    assert parse_chunk_metadata(pa.py_buffer(raw)) == ChunkRange(start, end)


@given(st.sampled_from(EndReason), offsets, offsets)
def test_the_end_of_a_stream_survives_its_metadata(
    reason: EndReason, next_offset: int, log_end_offset: int
) -> None:
    raw = end_metadata(reason, next_offset, log_end_offset)
    assert json.loads(raw) == {
        "end": str(reason),
        "next_offset": next_offset,
        "log_end_offset": log_end_offset,
    }
    assert parse_chunk_metadata(raw) == ChunkEnd(reason, next_offset, log_end_offset)


texts = st.text(st.characters(exclude_categories=["Cs"]))
values = st.none() | st.booleans() | st.integers() | texts


@given(st.lists(st.tuples(values, offsets, offsets, offsets)))
def test_the_ranges_of_many_partitions_survive_their_metadata(
    ranges: "list[tuple[Any, int, int, int]]",
) -> None:
    raw = ranges_metadata([(partition_of_value(each[0]), *each[1:]) for each in ranges])
    keys = ("partition", "start_offset", "end_offset", "rows")
    assert json.loads(raw) == {"ranges": [dict(zip(keys, each, strict=True)) for each in ranges]}
    assert parse_many_metadata(pa.py_buffer(raw)) == ranges


@given(st.sampled_from(EndReason), st.lists(st.tuples(values, offsets, offsets)))
def test_the_end_of_many_partitions_survives_its_metadata(
    reason: EndReason, ends: "list[tuple[Any, int, int]]"
) -> None:
    raw = many_end_metadata(reason, [(partition_of_value(each[0]), *each[1:]) for each in ends])
    keys = ("partition", "next_offset", "log_end_offset")
    assert json.loads(raw) == {
        "end": str(reason),
        "partitions": [dict(zip(keys, each, strict=True)) for each in ends],
    }
    assert parse_many_metadata(raw) == ManyEnd(reason, [PartitionEnd(*each) for each in ends])


def test_reasons_stand_in_the_order_in_which_they_hold() -> None:
    assert [str(reason) for reason in EndReason] == [
        "max_messages",
        "end_offset",
        "min_messages",
        "deadline",
    ]


@pytest.mark.parametrize("raw", [b"", b"{}", b'{"end": "else", "next_offset": 1}'])
def test_other_metadata_is_no_chunks(raw: bytes) -> None:
    with pytest.raises((ValueError, KeyError)):
        parse_chunk_metadata(raw)


@pytest.mark.parametrize(
    "raw", [b'{"end_offset":7,"start_offset":3}', b' {"start_offset": 3, "end_offset": 7, "x": 1}']
)
def test_a_range_written_in_another_way_is_read_as_well(raw: bytes) -> None:
    assert parse_chunk_metadata(raw) == ChunkRange(3, 7)
