"""DoPut, by a plain Flight client: atomic, idempotent, in order, and refused with a reason."""

import json
import threading
import time
from contextlib import suppress
from typing import Any

import grpc
import pyarrow as pa
import pyarrow.flight as flight
import pytest
from flight_calls import (
    Stream,
    act,
    code_of,
    create_topic,
    error_of,
    get,
    numbers,
    open_put,
    push,
    put_stream,
)
from fuzz import first_message, path_descriptor
from tables import each

from wings_server.testing import RunningServer

KEYED = pa.schema([("n", pa.int64()), ("key", pa.string())])


def keyed_rows(*rows: tuple[int, str | None]) -> pa.RecordBatch:
    arrays = [pa.array([n for n, _ in rows], pa.int64()), pa.array([k for _, k in rows])]
    return pa.RecordBatch.from_arrays([arrays[0], arrays[1].cast(pa.string())], schema=KEYED)


def committed(answer: dict[str, Any]) -> list[tuple[Any, int, int]]:
    return [
        (part["partition"], part["start_offset"], part["end_offset"])
        for part in answer["committed"]
    ]


def assert_refused(stream: Stream, batch: pa.RecordBatch, code: str, **metadata: Any) -> Any:
    """Push a batch that is refused: its answer says why, and the stream ends with the same."""
    answer = stream.push(batch, **metadata)
    assert answer["error"]["code"] == code, answer
    with pytest.raises(flight.FlightError) as caught:
        stream.close()
    assert code_of(caught.value) == code
    assert error_of(caught.value) == answer["error"]
    return answer


def test_batches_are_answered_in_order_with_their_offsets(
    client: flight.FlightClient, topic: str
) -> None:
    answers = push(client, topic, numbers(1, 2), numbers(3))
    assert [answer["batch"] for answer in answers] == [0, 1]
    assert [committed(answer) for answer in answers] == [[(None, 0, 1)], [(None, 2, 2)]]
    assert answers[0]["committed"][0]["timestamp"].endswith("Z")


def test_reading_does_not_wait_for_commits(client: flight.FlightClient, topic: str) -> None:
    with put_stream(client, numbers(0).schema, topic) as stream:
        for n in range(500):
            stream.send(numbers(n))
        answers = [stream.answer() for _ in range(500)]
    assert [committed(answer)[0][1] for answer in answers if answer] == list(range(500))


def test_rows_are_routed_by_key_and_answered_by_first_row(
    client: flight.FlightClient, keyed: str
) -> None:
    (answer,) = push(client, keyed, keyed_rows((1, "b"), (2, "a"), (3, "b")))
    assert committed(answer) == [("b", 0, 1), ("a", 0, 0)]
    assert get(client, topic=keyed, partition="b", offset=0).column("n") == [1, 3]


def test_an_empty_batch_commits_nothing(client: flight.FlightClient, topic: str) -> None:
    answers = push(client, topic, numbers(), numbers(4))
    assert [committed(answer) for answer in answers] == [[], [(None, 0, 0)]]


def test_a_full_topic_name_is_the_same_topic(client: flight.FlightClient, topic: str) -> None:
    push(client, f"tenants/default/namespaces/default/topics/{topic}", numbers(1))
    assert get(client, topic=topic, offset=0).column("n") == [1]


def test_a_command_may_name_the_partition(client: flight.FlightClient, keyed: str) -> None:
    (answer,) = push(client, keyed, keyed_rows((1, "a"), (2, "a")), partition="a")
    assert committed(answer) == [("a", 0, 1)]


def test_a_row_of_another_key_than_the_partition_named_is_refused(
    client: flight.FlightClient, keyed: str
) -> None:
    stream = Stream(client, KEYED, keyed, partition="a")
    assert_refused(stream, keyed_rows((1, "a"), (2, "b")), "INVALID_ARGUMENT")
    assert act(client, "partition-states", topic=keyed) == []


def test_a_batch_refused_between_two_good_ones(client: flight.FlightClient, topic: str) -> None:
    stream = Stream(client, numbers(0).schema, topic)
    stream.send(numbers(1))
    stream.send(numbers(2), expected_offset=99)
    try:
        stream.send(numbers(3))
    except flight.FlightError:
        pass  # The stream was refused by then, and the answers were lost with the write.
    else:
        first, second = stream.answer(), stream.answer()
        assert first is not None
        assert second is not None
        assert committed(first) == [(None, 0, 0)]
        assert second["error"]["code"] == "OFFSET_MISMATCH"
        assert second["error"]["next_offset"] == 1
    # The third is answered with the same error where it was read before the second was refused.
    with pytest.raises(flight.FlightError) as caught:
        stream.close()
    assert code_of(caught.value) == "OFFSET_MISMATCH"
    push(client, topic, numbers(4))
    assert get(client, topic=topic, offset=0).column("n") == [1, 4]


def test_a_bad_batch_among_small_ones_refuses_those_after_it_and_no_other_stream(
    client: flight.FlightClient, new_topic_id: str
) -> None:
    create_topic(client, new_topic_id, ["s: string"])
    good = pa.record_batch({"s": ["x"]})
    bad = pa.record_batch({"s": pa.array([b"\xff"], pa.binary()).view(pa.string())})
    stream = Stream(client, good.schema, new_topic_id)
    neighbour = Stream(client, good.schema, new_topic_id)
    for _ in range(100):
        neighbour.send(good)
        stream.send(good)
    stream.send(bad)
    for _ in range(101):
        neighbour.send(good)
    answers = [stream.answer() for _ in range(101)]
    assert [answer["batch"] for answer in answers if answer] == list(range(101))
    offsets = [committed(answer)[0][1] for answer in answers[:100] if answer]
    assert offsets == sorted(set(offsets))
    assert answers[100]
    assert answers[100]["error"]["code"] == "SCHEMA_MISMATCH"
    with pytest.raises(flight.FlightError):
        stream.close()
    others = [neighbour.answer() for _ in range(201)]
    offsets += [committed(answer)[0][1] for answer in others if answer]
    assert sorted(offsets) == list(range(301))
    neighbour.close()
    assert len(get(client, topic=new_topic_id, offset=0).column("s")) == 301


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        (pa.schema([("m", pa.int64())]), "n"),
        (pa.schema([("n", pa.int32())]), "n"),
        (pa.schema([("n", pa.int64()), ("x", pa.int64())]), "x"),
        (pa.schema([("n", pa.dictionary(pa.int32(), pa.int64()))]), "n"),
    ],
)
def test_a_stream_of_another_schema_is_the_refusal_of_its_first_batch(
    client: flight.FlightClient, topic: str, schema: pa.Schema, named: str
) -> None:
    stream = Stream(client, schema, topic)
    empty = [pa.array([], field.type) for field in schema]
    answer = assert_refused(
        stream, pa.RecordBatch.from_arrays(empty, schema=schema), "SCHEMA_MISMATCH"
    )
    assert answer["batch"] == 0
    assert named in answer["error"]["message"]


def test_a_null_where_none_may_be_names_the_column(
    client: flight.FlightClient, new_topic_id: str
) -> None:
    create_topic(client, new_topic_id, ["n: int64", "s: string not null"])
    schema = pa.schema([("n", pa.int64()), ("s", pa.string())])
    rows = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([None], pa.string())], schema=schema)
    answer = assert_refused(Stream(client, schema, new_topic_id), rows, "SCHEMA_MISMATCH")
    assert answer["error"]["column"] == "s"


def test_a_batch_too_large_is_refused(client: flight.FlightClient, new_topic_id: str) -> None:
    schema = {"fields": [{"name": "n", "type": "int64"}]}
    act(client, "create-topic", topic=new_topic_id, schema=schema, config={"batch_bytes_max": 64})
    stream = Stream(client, numbers(0).schema, new_topic_id)
    assert_refused(stream, numbers(*range(9)), "BATCH_TOO_LARGE")
    push(client, new_topic_id, numbers(*range(8)))


def test_more_than_ten_thousand_partitions_are_too_many(
    client: flight.FlightClient, new_topic_id: str
) -> None:
    create_topic(client, new_topic_id, ["n: int64"], "n")
    stream = Stream(client, numbers(0).schema, new_topic_id)
    assert_refused(stream, numbers(*range(10_001)), "BATCH_TOO_LARGE")
    (answer,) = push(client, new_topic_id, numbers(*range(10_000)))
    assert len(answer["committed"]) == 10_000


@each(
    ("command", "code"),
    [
        (b"{", "INVALID_ARGUMENT"),
        (b"[]", "INVALID_ARGUMENT"),
        ({}, "INVALID_ARGUMENT"),
        ({"topic": "known", "surprise": 1}, "INVALID_ARGUMENT"),
        ({"topic": "nobody"}, "TOPIC_NOT_FOUND"),
        ({"topic": "No"}, "INVALID_NAME"),
        ({"topic": "known", "partition": 1}, "PARTITION_NOT_ALLOWED"),
        ({"topic": "known-keyed", "partition": None}, "PARTITION_REQUIRED"),
        ({"topic": "known", "sequence": 0}, "INVALID_ARGUMENT"),
        ({"topic": "known", "producer_id": "p"}, "INVALID_ARGUMENT"),
        ({"topic": "known", "producer_id": "p", "sequence": -1}, "INVALID_ARGUMENT"),
        ({"topic": "known", "expected_offset": "0"}, "INVALID_ARGUMENT"),
        ({"topic": "known", "timestamp": "now"}, "INVALID_ARGUMENT"),
    ],
)
def test_a_bad_descriptor_fails_the_call_without_an_answer(
    client: flight.FlightClient, known: None, command: Any, code: str
) -> None:
    raw = command if isinstance(command, bytes) else json.dumps(command).encode()
    schema = numbers(0).schema
    writer, answers = open_put(client, flight.FlightDescriptor.for_command(raw), schema)

    def finish() -> None:
        # A stream that the server has ended shows in the next call of the client.
        writer.done_writing()
        assert answers.read() is None
        writer.close()

    with pytest.raises(flight.FlightError) as caught:
        finish()
    assert code_of(caught.value) == code


@pytest.fixture
def known(client: flight.FlightClient) -> None:
    schema = {"fields": [{"name": "n", "type": "int64"}]}
    act(client, "create-topic", topic="known", schema=schema, if_not_exists=True)
    keyed = {"topic": "known-keyed", "partition_key": "n"}
    act(client, "create-topic", **keyed, schema=schema, if_not_exists=True)


@pytest.mark.parametrize(
    "metadata", [b"{", b"[]", b'{"surprise": 1}', b'{"sequence": 0}', b'{"expected_offset": -1}']
)
def test_bad_batch_metadata_refuses_the_batch(
    client: flight.FlightClient, topic: str, metadata: bytes
) -> None:
    stream = Stream(client, numbers(0).schema, topic)
    stream.writer.write_with_metadata(numbers(1), pa.py_buffer(metadata))
    answer = stream.answer()
    assert answer is not None
    assert answer["error"]["code"] == "INVALID_ARGUMENT"
    with pytest.raises(flight.FlightError):
        stream.close()


def test_a_stream_that_ends_before_its_schema_is_refused(server: RunningServer, topic: str) -> None:
    with grpc.insecure_channel(server.flight.removeprefix("grpc://")) as channel:
        put = channel.stream_stream("/arrow.flight.protocol.FlightService/DoPut")
        with pytest.raises(grpc.RpcError, match="the stream cannot be read"):
            list(put(iter([first_message(path_descriptor(topic))]), timeout=20))


def test_a_message_without_a_batch_is_refused(client: flight.FlightClient, topic: str) -> None:
    stream = Stream(client, numbers(0).schema, topic)
    assert "committed" in stream.push(numbers(1))
    stream.writer.write_metadata(pa.py_buffer(b"{}"))
    answer = stream.answer()
    assert answer is not None
    assert (answer["batch"], answer["error"]["code"]) == (1, "INVALID_ARGUMENT")
    with pytest.raises(flight.FlightError):
        stream.close()


def test_a_repeated_sequence_is_answered_with_the_first_result(
    client: flight.FlightClient, topic: str
) -> None:
    first = push(client, topic, numbers(1), numbers(2), producer_id="p", sequence=0)
    again = push(client, topic, numbers(1), numbers(2), producer_id="p", sequence=0)
    assert again == first
    (third,) = push(client, topic, numbers(3), producer_id="p", sequence=2)
    assert committed(third) == [(None, 2, 2)]
    assert get(client, topic=topic, offset=0).column("n") == [1, 2, 3]


def test_each_of_many_numbered_batches_in_flight_gets_its_own_offsets_again_when_repeated(
    client: flight.FlightClient, topic: str
) -> None:
    def run(first: int, count: int) -> list[dict[str, Any]]:
        command = {"producer_id": "p", "sequence": first}
        with put_stream(client, numbers(0).schema, topic, **command) as stream:
            for n in range(first, first + count):
                stream.send(numbers(n))
            return [answer for _ in range(count) if (answer := stream.answer())]

    assert [committed(each)[0][1] for each in run(0, 300)] == list(range(300))
    # As after a lost connection: the last are pushed again, and new ones behind them.
    again = run(250, 100)
    assert [each["batch"] for each in again] == list(range(100))
    assert [committed(each)[0][1:] for each in again] == [(n, n) for n in range(250, 350)]
    assert get(client, topic=topic, offset=0).column("n") == list(range(350))


def test_batches_of_a_named_partition_in_flight_are_each_checked(
    client: flight.FlightClient, keyed: str
) -> None:
    stream = Stream(client, KEYED, keyed, partition="a")
    for n in range(200):
        stream.send(keyed_rows((n, "a")))
    stream.send(keyed_rows((200, "b")))
    answers = [answer for _ in range(201) if (answer := stream.answer())]
    assert [committed(each)[0] for each in answers[:200]] == [("a", n, n) for n in range(200)]
    assert answers[200]["error"]["code"] == "INVALID_ARGUMENT"
    with suppress(flight.FlightError):  # The stream may be refused by now.
        for n in range(201, 206):
            stream.send(keyed_rows((n, "a")))
    with pytest.raises(flight.FlightError):
        stream.close()
    assert get(client, topic=keyed, partition="a", offset=0).column("n") == list(range(200))


def test_rows_in_flight_go_where_their_keys_say(client: flight.FlightClient, keyed: str) -> None:
    keys = [*"aaaabbaabbbbaa", "a"] * 10
    with put_stream(client, KEYED, keyed) as stream:
        for n, key in enumerate(keys):
            stream.send(keyed_rows((n, key)))
        answers = [answer for _ in keys if (answer := stream.answer())]
    assert [committed(each)[0][0] for each in answers] == keys
    for key in "ab":
        expected = [n for n, each in enumerate(keys) if each == key]
        assert get(client, topic=keyed, partition=key, offset=0).column("n") == expected


def test_a_sequence_may_come_with_the_batch(client: flight.FlightClient, topic: str) -> None:
    with put_stream(client, numbers(0).schema, topic, producer_id="p", sequence=0) as stream:
        stream.push(numbers(1))
        repeated = stream.push(numbers(1), sequence=0)
        assert committed(repeated) == [(None, 0, 0)]
        assert committed(stream.push(numbers(2))) == [(None, 1, 1)]


def test_compare_and_append(client: flight.FlightClient, topic: str) -> None:
    push(client, topic, numbers(1), expected_offset=0)
    stream = Stream(client, numbers(0).schema, topic, expected_offset=0)
    answer = assert_refused(stream, numbers(2), "OFFSET_MISMATCH")
    assert answer["error"]["next_offset"] == 1
    push(client, topic, numbers(2), numbers(3), expected_offset=1)
    assert get(client, topic=topic, offset=0).column("n") == [1, 2, 3]


def test_compare_and_append_is_for_one_partition(client: flight.FlightClient, keyed: str) -> None:
    stream = Stream(client, KEYED, keyed, expected_offset=0)
    assert_refused(stream, keyed_rows((1, "a"), (2, "b")), "INVALID_ARGUMENT")
    push(client, keyed, keyed_rows((1, "a")), expected_offset=0)


def test_one_of_many_who_compare_and_append_wins(
    client: flight.FlightClient, server: RunningServer, topic: str
) -> None:
    outcomes: list[str] = []

    def race(n: int) -> None:
        with server.client() as own:
            stream = Stream(own, numbers(0).schema, topic, expected_offset=0)
            answer = stream.push(numbers(n))
            outcomes.append("lost" if "error" in answer else "won")
            if "error" in answer:
                with pytest.raises(flight.FlightError):
                    stream.close()
            else:
                stream.close()

    racers = [threading.Thread(target=race, args=(n,)) for n in range(8)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    assert sorted(outcomes) == ["lost"] * 7 + ["won"]
    assert get(client, topic=topic, offset=0).table.num_rows == 1


def test_timestamps_never_decrease_and_the_answer_says_which_was_used(
    client: flight.FlightClient, topic: str
) -> None:
    def used(timestamp: str) -> str:
        return push(client, topic, numbers(1), timestamp=timestamp)[0]["committed"][0]["timestamp"]

    assert used("2026-01-02T00:00:00+01:00") == "2026-01-01T23:00:00.000000Z"
    assert used("2026-01-01T00:00:00Z") == "2026-01-01T23:00:00.000000Z"
    assert used("2026-01-03T00:00:00.1234567Z") == "2026-01-03T00:00:00.123456Z"


def test_a_time_of_its_own_is_that_batchs_alone_among_others_in_flight(
    client: flight.FlightClient, topic: str
) -> None:
    own = "2020-01-01T00:00:00.000000Z"
    count = 60
    with put_stream(client, numbers(0).schema, topic, timestamp="2019-01-01T00:00:00Z") as stream:
        for number in range(count):
            stream.send(numbers(number), **({"timestamp": own} if number == count // 2 else {}))
        answers = [stream.answer() for _ in range(count)]
    committed = [answer["committed"][0] for answer in answers if answer is not None]
    assert [part["start_offset"] for part in committed] == list(range(count))
    # Those after it are raised to it: timestamps never decrease.
    assert [part["timestamp"] == own for part in committed] == [
        number >= count // 2 for number in range(count)
    ]


def test_concurrent_producers_read_back_their_own_rows_at_their_own_offsets(
    client: flight.FlightClient, server: RunningServer, keyed: str
) -> None:
    found: list[tuple[int, Any, int]] = []

    def produce(producer: int) -> None:
        with server.client() as own, put_stream(own, KEYED, keyed) as stream:
            for n in range(40):
                value = producer * 1_000 + n
                for partition, start, end in committed(
                    stream.push(keyed_rows((value, "even" if n % 2 == 0 else "odd")))
                ):
                    assert start == end
                    found.append((value, partition, start))

    producers = [threading.Thread(target=produce, args=(p,)) for p in range(8)]
    for producer in producers:
        producer.start()
    for producer in producers:
        producer.join()
    assert len(found) == 320
    for partition in ("even", "odd"):
        rows = get(client, kind="scan", topic=keyed, partition=partition).column("n")
        ours = {offset: value for value, where, offset in found if where == partition}
        assert rows == [ours[offset] for offset in range(160)]


def test_a_client_that_leaves_in_mid_put_loses_nothing_that_was_acknowledged(
    server: RunningServer, client: flight.FlightClient, topic: str
) -> None:
    leaving = server.client()
    stream = Stream(leaving, numbers(0).schema, topic)
    assert committed(stream.push(numbers(1))) == [(None, 0, 0)]
    stream.send(numbers(2))
    leaving.close()
    del stream
    server.wait_for_calls(0)
    rows = get(client, kind="scan", topic=topic).column("n")
    assert rows in ([1], [1, 2])
    push(client, topic, numbers(3))
    assert get(client, kind="scan", topic=topic).column("n") == [*rows, 3]


def test_answers_left_unread_do_not_hold_up_the_commits(
    client: flight.FlightClient, new_topic_id: str
) -> None:
    create_topic(client, new_topic_id, ["key: string"], "key")
    batches = 3_500  # More bytes of answers than gRPC takes before the writer blocks:
    one = pa.record_batch({"key": ["k" * 1_000]})  # each names the partition.
    stream = Stream(client, one.schema, new_topic_id)
    for _ in range(batches):
        stream.send(one)
    stream.writer.done_writing()
    while not (states := act(client, "partition-states", topic=new_topic_id)) or (
        states[0]["next_offset"] < batches
    ):
        time.sleep(0.02)
    assert stream.answer() is not None
    stream.close()


def test_every_supported_kind_of_column_comes_back_as_it_went(
    client: flight.FlightClient, new_topic_id: str
) -> None:
    rows = pa.record_batch(
        {
            "u8": pa.array([1, None], pa.uint8()),
            "f16": pa.array([1.5, None], pa.float16()),
            "text": pa.array(["ä", None], pa.large_string()),
            "raw": pa.array([b"ab", None], pa.binary(2)),
            "dec": pa.array([1, None], pa.decimal128(10, 2)),
            "when": pa.array([1, None], pa.timestamp("ns", tz="Europe/Zurich")),
            "day": pa.array([1, None], pa.date32()),
            "span": pa.array([1, None], pa.duration("ms")),
            "list": pa.array([[1, None], None], pa.list_(pa.int16())),
            "pair": pa.array([[1, 2], None], pa.list_(pa.int16(), 2)),
            "struct": pa.array(
                [{"a": 1, "b": ["x"]}, None],
                pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))]),
            ),
            "map": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())),
            "null": pa.array([None, None], pa.null()),
            "bool": pa.array([True, None]),
        }
    )
    fields = [f"{field.name}: {field.type}" for field in rows.schema]
    create_topic(client, new_topic_id, fields)
    push(client, new_topic_id, rows)
    back = get(client, topic=new_topic_id, offset=0).table
    assert back.schema.equals(rows.schema)
    assert back.equals(pa.Table.from_batches([rows]))
