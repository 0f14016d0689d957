"""GetFlightInfo of many partitions, by a plain Flight client."""

import json
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest
from flight_calls import create_topic, error_of, push
from many_calls import ManyAnswer, read_many
from tables import each


@pytest.fixture
def topic(client: flight.FlightClient, new_topic_id: str) -> str:
    """A topic whose keys 1 to 4 have as many rows each, and no others any."""
    create_topic(client, new_topic_id, ["n: int64", "key: int64"], "key")
    push(client, new_topic_id, keyed([1, 4, 2, 4, 3, 4, 2, 3, 3, 4]))
    return new_topic_id


ROWS: dict[Any, list[int]] = {1: [0], 2: [2, 6], 3: [4, 7, 8], 4: [1, 3, 5, 9]}


def keyed(keys: list[int]) -> pa.RecordBatch:
    return pa.record_batch(
        {"n": pa.array(range(len(keys)), pa.int64()), "key": pa.array(keys, pa.int64())}
    )


def descriptor_of(command: dict[str, Any]) -> flight.FlightDescriptor:
    return flight.FlightDescriptor.for_command(json.dumps(command).encode())


def info_of(client: flight.FlightClient, topic: str, **command: Any) -> flight.FlightInfo:
    return client.get_flight_info(descriptor_of({"topic": topic, **command}))


def read_all(client: flight.FlightClient, info: flight.FlightInfo) -> list[ManyAnswer]:
    return [read_many(client.do_get(endpoint.ticket)) for endpoint in info.endpoints]


def merged(answers: list[ManyAnswer], column: str = "n") -> dict[Any, list[Any]]:
    found: dict[Any, list[Any]] = {}
    for answer in answers:
        for key, values in answer.column(column).items():
            found.setdefault(key, []).extend(values)
    return {key: values for key, values in found.items() if values}


@pytest.mark.parametrize(("splits", "sizes"), [(1, [10]), (3, [3, 3, 4]), (10, [1] * 10)])
def test_endpoints_are_as_many_as_asked_for_and_equal_in_rows(
    client: flight.FlightClient, topic: str, splits: int, sizes: list[int]
) -> None:
    info = info_of(client, topic, partitions="all", splits=splits)
    push(client, topic, keyed([1, 9]))  # The ranges are fixed: what comes now is in none.
    answers = read_all(client, info)
    assert sorted(answer.num_rows for answer in answers) == sizes
    assert merged(answers) == ROWS
    assert (info.total_records, info.total_bytes > 0) == (10, True)
    assert info.schema.names == ["n", "key"]


def test_no_more_endpoints_than_rows_and_none_without_partitions(
    client: flight.FlightClient, topic: str, new_topic_id: str
) -> None:
    assert len(info_of(client, topic, partitions="all", splits=50).endpoints) == 10
    create_topic(client, f"{new_topic_id}-empty", ["key: int64"], "key")
    info = info_of(client, f"{new_topic_id}-empty", partitions="all", splits=3)
    assert (info.endpoints, info.total_records, info.total_bytes) == ([], 0, 0)


def test_a_list_says_what_is_read_of_each_partition(
    client: flight.FlightClient, topic: str
) -> None:
    entries = [
        {"partition": 4, "offset": 1},
        3,
        7,
        {"partition": 2, "offset": "latest"},
        {"partition": 1, "offset": 0, "end_offset": 1},
    ]
    info = info_of(client, topic, partitions=entries, end_offset=3, splits=2)
    assert info.total_records == 6
    answers = read_all(client, info)
    assert sorted(answer.num_rows for answer in answers) == [3, 3]
    assert merged(answers) == {4: [3, 5], 3: [4, 7, 8], 1: [0]}
    # Also of a partition that has nothing to read, the end tells where it stands.
    stand = {key: end for answer in answers for key, end in answer.log_end_offsets.items()}
    assert stand == {4: 4, 3: 3, 7: 0, 2: 2, 1: 1}


def test_columns_a_filter_and_system_columns_are_in_every_ticket(
    client: flight.FlightClient, topic: str
) -> None:
    command = {
        "topic": topic, "partitions": "all", "splits": 2,
        "columns": ["n"], "filter": "n > 4", "system_columns": True,
    }  # fmt: skip
    info = client.get_flight_info(descriptor_of(command))
    schema: Any = client.get_schema(descriptor_of(command))
    assert info.schema == schema.schema
    assert info.schema.names == ["n", "__partition", "__offset", "__timestamp"]
    assert info.total_records == -1
    answers = read_all(client, info)
    assert merged(answers) == {2: [6], 3: [7, 8], 4: [5, 9]}
    assert merged(answers, "__offset") == {2: [1], 3: [1, 2], 4: [2, 3]}
    assert {answer.schema for answer in answers} == {info.schema}


def test_a_topic_without_a_key_is_one_partition(
    client: flight.FlightClient, new_topic_id: str
) -> None:
    create_topic(client, new_topic_id, ["n: int64"])
    (empty,) = read_all(client, info_of(client, new_topic_id, partitions="all"))
    assert (empty.num_rows, empty.next_offsets) == (0, {None: 0})
    push(client, new_topic_id, pa.record_batch({"n": pa.array(range(5), pa.int64())}))
    answers = read_all(client, info_of(client, new_topic_id, partitions="all", splits=2))
    assert [answer.column("n") for answer in answers] == [{None: [0, 1]}, {None: [2, 3, 4]}]


def test_there_is_an_endpoint_for_each_ten_thousand_partitions(
    client: flight.FlightClient, topic: str
) -> None:
    push(client, topic, keyed([*range(100, 10_100)]))
    info = info_of(client, topic, partitions="all")
    answers = read_all(client, info)
    assert [answer.num_rows for answer in answers] == [5_005, 5_005]
    assert len(merged(answers)) == 10_004
    assert len(info_of(client, topic, partitions="all", splits=5).endpoints) == 5


@each(
    ("command", "code"),
    [
        ({"partitions": "some"}, "INVALID_ARGUMENT"),
        ({"partitions": "all", "columns": ["nope"]}, "INVALID_ARGUMENT"),
        ({"partitions": "all", "filter": "nope > 1"}, "INVALID_FILTER"),
        ({"partitions": ["1"]}, "PARTITION_TYPE_MISMATCH"),
        ({"partitions": [None]}, "PARTITION_REQUIRED"),
        ({"partition": None}, "PARTITION_REQUIRED"),
    ],
)
def test_a_bad_command_is_refused(
    client: flight.FlightClient, topic: str, command: dict[str, Any], code: str
) -> None:
    with pytest.raises(flight.FlightError) as caught:
        info_of(client, topic, **command)
    assert error_of(caught.value)["code"] == code
