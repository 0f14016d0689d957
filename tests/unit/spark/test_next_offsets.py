"""Where a stream's batches end, over logs that grow, shrink and are replaced."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import wings_spark.stream_offsets
from wings_core.errors import InvalidArgument, OffsetOutOfRange
from wings_core.partitions import JsonScalar, Partition, partition_of_value
from wings_spark.options import SparkReadOptions
from wings_spark.stream_offsets import (
    Head,
    Heads,
    StreamOffset,
    TopicOffset,
    between,
    check_nothing_lost,
    next_offsets,
    still_kept,
)

VALUES: st.SearchStrategy[JsonScalar] = (
    st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.booleans()
    | st.none()
)

A, B = Partition('"a"'), Partition('"b"')
STRICT = SparkReadOptions.parse({"endpoint": "grpc://a:1", "topic": "t"})
LENIENT = SparkReadOptions.parse(
    {"endpoint": "grpc://a:1", "topic": "t", "failOnDataLoss": "false"}
)


def heads(kept: dict[Partition, tuple[int, int]], uuid: str = "1") -> Heads:
    return Heads({"t": Head(uuid, kept)})


def offset(offsets: dict[Partition, int], uuid: str = "1") -> StreamOffset:
    return StreamOffset({"t": TopicOffset(uuid, offsets)})


def test_offsets_survive_json() -> None:
    found = offset({A: 5, B: 0})
    assert StreamOffset.from_json(json.loads(json.dumps(found.to_json()))) == found
    packed: Any = {"partitions": 1, "messages": 1, "packed": "eJw="}
    for other in (
        {}, {"t": {}}, {"uuids": {"t": "1"}}, {"t": {"a": 1}, "uuids": {}},
        {"t": packed, "uuids": {"t": "1"}},
    ):  # fmt: skip
        with pytest.raises(InvalidArgument, match="not an offset of a stream of Wings"):
            StreamOffset.from_json(other)


@given(st.dictionaries(VALUES.map(partition_of_value), st.integers(0, (1 << 63) - 1), max_size=20))
def test_offsets_of_any_partitions_survive_being_packed(found: dict[Partition, int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wings_spark.stream_offsets, "PACKED_MIN", 1)
        packed = json.dumps(offset(found).to_json())
        backwards = offset(dict(reversed(found.items())))
        assert json.dumps(backwards.to_json()) == packed, "equal offsets are equal texts"
    assert StreamOffset.from_json(json.loads(packed)) == offset(found)


@pytest.mark.parametrize("name", ["{}", '"device-{:06}"'])
def test_offsets_of_many_partitions_are_small(name: str) -> None:
    found = offset({Partition(name.format(number)): number % 7 for number in range(10_000)})
    text = json.dumps(found.to_json())
    assert len(text) < 10_000
    assert StreamOffset.from_json(json.loads(text)) == found
    messages = sum(number % 7 for number in range(10_000))
    assert found.to_json(whole=False)["t"] == {"partitions": 10_000, "messages": messages}


def test_offsets_of_an_earlier_version_are_read() -> None:
    """As version 0.1 wrote them, of few partitions and of many."""
    text = '{"t": {"\\"JFK\\"": 120, "\\"LAX\\"": 80}, "uuids": {"t": "1"}}'
    jfk, lax = Partition('"JFK"'), Partition('"LAX"')
    assert StreamOffset.from_json(json.loads(text)) == offset({jfk: 120, lax: 80})
    many = ", ".join(f'"{number}": {number + 1}' for number in range(5_000))
    found = StreamOffset.from_json(json.loads(f'{{"t": {{{many}}}, "uuids": {{"t": "1"}}}}'))
    assert found == offset({Partition(str(number)): number + 1 for number in range(5_000)})
    assert StreamOffset.from_json(found.to_json()) == found


def test_nothing_new_is_the_same_offset() -> None:
    start = offset({A: 5})
    batch = next_offsets(start, heads({A: (0, 5), B: (0, 0)}), None, 100, STRICT)
    assert (batch.end, batch.rows) == (start, 0)


def test_a_new_partition_is_read_from_its_first_message() -> None:
    start = offset({A: 5})
    batch = next_offsets(start, heads({A: (0, 5), B: (0, 3)}), None, None, STRICT)
    assert batch.end == offset({A: 5, B: 3})
    (part,) = [each for each in between(start, batch.end) if each.rows]
    assert (part.partition, part.start_offset, part.end_offset) == (B, 0, 3)


def test_a_target_is_never_passed() -> None:
    target = offset({A: 5})
    batch = next_offsets(offset({A: 2}), heads({A: (0, 9), B: (0, 4)}), target, None, STRICT)
    assert (batch.end, batch.rows) == (offset({A: 5}), 3)


@given(
    st.dictionaries(st.sampled_from([A, B]), st.integers(0, 50), min_size=1),
    st.integers(1, 60),
)
def test_steps_within_a_limit_come_to_the_end_and_read_each_message_once(
    ends: dict[Partition, int], rows_max: int
) -> None:
    logs = heads({partition: (0, end) for partition, end in ends.items()})
    at, read = offset({}), list[tuple[Partition, int]]()
    for _ in range(sum(ends.values()) + 1):
        batch = next_offsets(at, logs, None, rows_max, STRICT)
        assert batch.rows <= rows_max
        for part in between(at, batch.end):
            read += [(part.partition, n) for n in range(part.start_offset, part.end_offset)]
        if batch.rows == 0:
            assert batch.end == at
            break
        at = batch.end
    assert sorted(read) == sorted((p, n) for p, end in ends.items() for n in range(end))


def test_retention_that_passes_a_query_is_an_error_or_skipped() -> None:
    start, logs = offset({A: 2}), heads({A: (4, 9)})
    with pytest.raises(OffsetOutOfRange, match="messages from 2 on are gone") as caught:
        next_offsets(start, logs, None, None, STRICT)
    assert caught.value.log_start_offset == 4
    batch = next_offsets(start, logs, None, 3, LENIENT)
    assert (batch.end, batch.rows) == (offset({A: 7}), 3)
    parts = list(still_kept(between(start, batch.end), logs, LENIENT))
    assert [(part.start_offset, part.end_offset) for part in parts] == [(4, 7)]


def test_a_topic_of_the_same_name_is_another_one() -> None:
    start, logs = offset({A: 2}), heads({A: (0, 9)}, uuid="2")
    with pytest.raises(OffsetOutOfRange, match="was deleted since the query read it"):
        next_offsets(start, logs, None, None, STRICT)
    batch = next_offsets(start, logs, None, None, LENIENT)
    assert batch.end == offset({A: 9}, uuid="2")
    assert [part.rows for part in between(start, batch.end)] == [9]
    # What was planned of the old one is not read of the new one.
    planned = offset({A: 5})
    with pytest.raises(OffsetOutOfRange, match="was deleted"):
        list(still_kept(between(start, planned), logs, STRICT))
    assert list(still_kept(between(start, planned), logs, LENIENT)) == []


def test_a_log_that_was_set_back_is_an_error_or_read_again() -> None:
    start, logs = offset({A: 7}), heads({A: (0, 3)})
    with pytest.raises(OffsetOutOfRange, match="ends at offset 3"):
        next_offsets(start, logs, None, None, STRICT)
    assert next_offsets(start, logs, None, None, LENIENT).end == offset({A: 3})


def test_a_batch_that_was_planned_of_a_longer_log_is_an_error_or_cut() -> None:
    start, planned, logs = offset({A: 2, B: 5}), offset({A: 9, B: 9}), heads({A: (0, 6), B: (0, 3)})
    with pytest.raises(OffsetOutOfRange, match="ends at offset 6, and the query has read to 9"):
        list(still_kept(between(start, planned), logs, STRICT))
    parts = list(still_kept(between(start, planned), logs, LENIENT))
    assert [(part.start_offset, part.end_offset) for part in parts] == [(2, 6), (3, 3)]


def test_an_end_that_was_found_without_its_start_is_checked_against_it() -> None:
    logs = heads({A: (0, 6)})
    check_nothing_lost(offset({A: 2}), offset({A: 6}), logs)
    # The first batch of a query that begins at the log's end, which moved on meanwhile.
    check_nothing_lost(offset({A: 6}), offset({A: 5}), logs)
    with pytest.raises(OffsetOutOfRange, match="ends at offset 6"):
        check_nothing_lost(offset({A: 7}), offset({A: 6}), logs)
    with pytest.raises(OffsetOutOfRange, match="was deleted"):
        check_nothing_lost(offset({A: 2}), offset({A: 6}, uuid="2"), heads({A: (0, 6)}, uuid="2"))


def test_a_topic_that_is_gone_keeps_its_place() -> None:
    start = StreamOffset({"t": TopicOffset("1", {A: 2}), "u": TopicOffset("9", {A: 4})})
    batch = next_offsets(start, heads({A: (0, 3)}), None, None, STRICT)
    assert batch.end.topics["u"] == TopicOffset("9", {A: 4})
