"""Routing rows to partitions."""

from typing import Any

import pyarrow as pa
import pytest
from fix_calls import Calls
from hypothesis import given
from hypothesis import strategies as st

from wings_core.errors import BatchTooLarge, InvalidArgument, PartitionRequired
from wings_core.ingest import route as routing
from wings_core.ingest.route import check_single_partition, route
from wings_core.model import Topic, TopicConfig
from wings_core.names import TopicName
from wings_core.partitions import Partition


def topic(key: pa.DataType | None) -> Topic:
    fields: list[pa.Field[Any]] = [pa.field("n", pa.int64())]
    if key is not None:
        fields.append(pa.field("key", key))
    name = TopicName.parse("orders")
    partition_key = None if key is None else "key"
    return Topic(name, "0" * 32, pa.schema(fields), partition_key, TopicConfig(), 0)


def batch(keys: list[object], key_type: pa.DataType) -> pa.RecordBatch:
    numbers = pa.array(range(len(keys)), pa.int64())
    return pa.record_batch({"n": numbers, "key": pa.array(keys, key_type)})


def routed(
    to: Topic, rows: pa.RecordBatch, partitions_max: int
) -> list[tuple[Partition, pa.RecordBatch]]:
    """Return the rows of each partition, as `route` orders them."""
    ordered, runs = route(to, rows, partitions_max)
    found: list[tuple[Partition, pa.RecordBatch]] = []
    first = 0
    for partition, count in runs:
        found.append((partition, ordered.slice(first, count)))
        first += count
    assert first == ordered.num_rows == rows.num_rows
    return found


def test_a_topic_without_a_key_has_the_one_partition_null() -> None:
    rows = pa.record_batch({"n": pa.array([1, 2])})
    assert route(topic(None), rows, 10) == (rows, ((Partition("null"), 2),))


def test_an_empty_batch_touches_no_partition() -> None:
    assert routed(topic(pa.string()), batch([], pa.string()), 10) == []
    assert routed(topic(None), pa.record_batch({"n": pa.array([], pa.int64())}), 10) == []


def test_a_batch_of_one_partition_is_not_copied() -> None:
    rows = batch(["a", "a"], pa.string())
    assert route(topic(pa.string()), rows, 10) == (rows, (('"a"', 2),))
    assert route(topic(pa.string()), rows, 10)[0] is rows


def test_partitions_come_by_first_row_and_keep_the_order_of_their_rows() -> None:
    rows = batch(["b", "a", "b", "c", "a"], pa.string())
    found = routed(topic(pa.string()), rows, 10)
    assert [(partition, part["n"].to_pylist()) for partition, part in found] == [
        ('"b"', [0, 2]),
        ('"a"', [1, 4]),
        ('"c"', [3]),
    ]


@pytest.mark.parametrize(
    ("key_type", "keys", "partitions"),
    [
        (pa.int8(), [-1, 7], ["-1", "7"]),
        (pa.uint64(), [2**64 - 1, 0], ["18446744073709551615", "0"]),
        (pa.large_string(), ["ä"], ['"ä"']),
        (pa.binary(), [b"\x00\xff"], ['"AP8="']),
        (pa.binary(2), [b"ab", b"cd"], ['"YWI="', '"Y2Q="']),
        (pa.bool_(), [True, False], ["true", "false"]),
    ],
)
def test_every_key_type_routes_to_its_json_value(
    key_type: pa.DataType, keys: list[object], partitions: list[str]
) -> None:
    found = routed(topic(key_type), batch(keys, key_type), 10)
    assert [partition for partition, _ in found] == partitions


def test_a_null_key_is_refused_and_its_row_named() -> None:
    with pytest.raises(PartitionRequired, match="row 1") as caught:
        route(topic(pa.string()), batch(["a", None], pa.string()), 10)
    assert caught.value.column == "key"


def test_too_many_partitions_are_refused() -> None:
    with pytest.raises(BatchTooLarge, match="touches 3 partitions, the limit is 2"):
        route(topic(pa.int32()), batch([1, 2, 3], pa.int32()), 2)


def test_too_many_partitions_are_refused_before_their_keys_are_looked_at(
    calls: Calls,
) -> None:
    looked_at = calls.heard(routing, "partitions_of_keys")
    with pytest.raises(BatchTooLarge) as caught:
        route(topic(pa.int32()), batch(list(range(1_000)), pa.int32()), 999)
    assert (caught.value.partitions, caught.value.partitions_max) == (1_000, 999)
    assert looked_at == []


def test_a_row_of_another_partition_than_the_one_named_is_refused() -> None:
    rows = batch(["a", "b"], pa.string())
    with pytest.raises(InvalidArgument, match='"b"'):
        check_single_partition(topic(pa.string()), rows, Partition('"a"'))
    check_single_partition(topic(pa.string()), rows.slice(0, 1), Partition('"a"'))


@given(st.lists(st.integers(0, 8), max_size=60), st.integers(0, 5))
def test_routing_only_rearranges(keys: list[int], skip: int) -> None:
    rows = batch(list(keys), pa.int32()).slice(min(skip, len(keys)))
    expected: dict[str, list[int]] = {}
    for row in rows.to_pylist():
        expected.setdefault(str(row["key"]), []).append(row["n"])
    found = routed(topic(pa.int32()), rows, 100)
    assert {partition: part["n"].to_pylist() for partition, part in found} == expected
    assert [partition for partition, _ in found] == list(expected)
