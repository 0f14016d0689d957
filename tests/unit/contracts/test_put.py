"""DoPut's contracts: descriptors, metadata of batches, and results both ways."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tables import each

from wings_client import CommittedRange as ClientRange
from wings_core.contracts.put import (
    BatchMetadata,
    PutCommand,
    command_of,
    parse_batch_metadata,
    put_answer,
    result_to_json,
)
from wings_core.errors import InvalidArgument, OffsetMismatch, SchemaMismatch, error_from_json
from wings_core.model import Accepted, AssignedRange, Rejected, StagedBatch
from wings_core.partitions import partition_of_value, partition_value
from wings_core.times import TIMESTAMP_MAX, TIMESTAMP_MIN

INT64_MAX = (1 << 63) - 1
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TIME = "2026-11-20T12:00:00Z"
PRODUCER = {"topic": "t", "producer_id": "p", "sequence": 0}

BAD_NUMBERS: list[object] = [-1, INT64_MAX + 1, 1.0, "1", True, None, [], {}]
BAD_TIMES: list[object] = ["", "now", "2026-11-20T12:00:00", 0, True, None, {"timestamp": TIME}]
BAD_VALUES: dict[str, list[object]] = {
    "sequence": BAD_NUMBERS,
    "expected_offset": BAD_NUMBERS,
    "timestamp": BAD_TIMES,
}


def command(found: object) -> PutCommand:
    return command_of(PutCommand, None, json.dumps(found).encode(), "put command")


def metadata(found: object) -> BatchMetadata:
    return parse_batch_metadata(json.dumps(found).encode())


def test_a_command_says_what_its_keys_say() -> None:
    found = {**PRODUCER, "partition": "JFK", "expected_offset": 7, "timestamp": TIME}
    parsed = command(found)
    assert parsed.model_dump(exclude_unset=True) == found
    assert parsed.timestamp_us == 1_795_176_000_000_000
    assert command_of(PutCommand, None, parsed.to_bytes(), "put command") == parsed


@each("stage", ["a", "Q7.0:3_x-9", "x" * 128])
def test_a_command_may_name_a_stage(stage: str) -> None:
    parsed = command({"topic": "t", "stage": stage, "timestamp": TIME, "partition": 3})
    assert parsed.stage == stage
    assert command_of(PutCommand, None, parsed.to_bytes(), "put command") == parsed


@each("stage", ["", "a b", "-a", "a/b", "a\n", "x" * 129, 7, None])
def test_a_stage_that_cannot_be_one_is_refused(stage: object) -> None:
    with pytest.raises(InvalidArgument, match="key 'stage'"):
        command({"topic": "t", "stage": stage})


@each("key", ["producer_id", "sequence", "expected_offset"])
def test_a_stage_goes_with_no_condition(key: str) -> None:
    value = "p" if key == "producer_id" else 0
    with pytest.raises(InvalidArgument, match=f"key '{key}' cannot be combined with key 'stage'"):
        command({"topic": "t", "stage": "s", key: value})


def test_a_command_needs_a_topic_alone() -> None:
    parsed = command({"topic": "t"})
    assert parsed == command_of(PutCommand, [b"t"], None, "put command") == PutCommand(topic="t")
    assert parsed.timestamp_us is None
    assert parsed.to_bytes() == b'{"topic": "t"}'
    with pytest.raises(InvalidArgument, match="key 'topic' is required"):
        command({})


@each("key", ["stages", "kind", "columns", "offset", "Topic", "producer"])
def test_an_unknown_key_of_a_command_is_refused(key: str) -> None:
    with pytest.raises(InvalidArgument, match=f"unknown key '{key}'") as caught:
        command({"topic": "t", key: "x"})
    assert type(caught.value) is InvalidArgument


BAD_PAIRS = [(key, value) for key, values in BAD_VALUES.items() for value in values]


def test_a_bad_value_is_refused_in_a_command_and_with_a_batch(subtests: pytest.Subtests) -> None:
    for key, value in BAD_PAIRS:
        with subtests.test(f"{key!r:.60} {value!r:.60}"):
            with pytest.raises(InvalidArgument, match=f"key '{key}'") as caught:
                command({**PRODUCER, key: value})
            assert type(caught.value) is InvalidArgument
            with pytest.raises(InvalidArgument, match=f"key '{key}'") as caught:
                metadata({key: value})
            assert type(caught.value) is InvalidArgument


@each("value", ["", "x" * 256, 1, None, [], True])
def test_a_producer_has_a_name(value: object) -> None:
    with pytest.raises(InvalidArgument, match="key 'producer_id'"):
        command({**PRODUCER, "producer_id": value})


def test_a_sequence_needs_a_producer() -> None:
    with pytest.raises(InvalidArgument, match="'sequence' needs key 'producer_id'"):
        command({"topic": "t", "sequence": 0})


def test_a_producer_may_give_its_sequences_with_the_batches() -> None:
    assert command({"topic": "t", "producer_id": "p"}).sequence is None


@each("value", [None, 7, "x", True, 1.5, [], {"a": 1}])
def test_a_partition_is_handed_on_as_it_is(value: object) -> None:
    assert command({"topic": "t", "partition": value}).partition == value


@each("path", [[], [b"t", b"u"], [b"t", b""]])
def test_a_path_has_exactly_one_element(path: list[bytes]) -> None:
    with pytest.raises(InvalidArgument, match="a path descriptor is"):
        command_of(PutCommand, path, None, "put command")


def test_a_path_is_utf8() -> None:
    assert command_of(PutCommand, ["t"], None, "put command") == command_of(
        PutCommand, [b"t"], None, "put command"
    )
    with pytest.raises(InvalidArgument, match="not UTF-8"):
        command_of(PutCommand, [b"\xff"], None, "put command")


@each("raw", [b"", b"t", b"[]", b'{"topic": "t", "topic": "u"}', b"\xff"])
def test_what_is_no_strict_json_object_is_an_invalid_argument(raw: bytes) -> None:
    with pytest.raises(InvalidArgument) as caught:
        command_of(PutCommand, None, raw, "put command")
    assert type(caught.value) is InvalidArgument
    if raw:
        with pytest.raises(InvalidArgument):
            parse_batch_metadata(raw)


@each("raw", [None, b"", pa.py_buffer(b"")])
def test_a_batch_without_metadata_says_nothing(raw: Any) -> None:
    assert parse_batch_metadata(raw) == BatchMetadata()


def test_the_metadata_of_a_batch_says_what_its_keys_say() -> None:
    found = {"sequence": 3, "expected_offset": 0, "timestamp": TIME}
    assert metadata(found).model_dump() == found
    assert metadata(found).timestamp_us == 1_795_176_000_000_000
    buffer: Any = pa.py_buffer(b'{"sequence": 3}')
    assert parse_batch_metadata(buffer) == BatchMetadata(sequence=3)
    assert parse_batch_metadata(b"{}") == BatchMetadata()


@each("key", ["topic", "partition", "producer_id", "x"])
def test_an_unknown_key_of_a_batchs_metadata_is_refused(key: str) -> None:
    with pytest.raises(InvalidArgument, match=f"unknown key '{key}'"):
        metadata({key: 1})


# Results.

ranges = st.builds(
    AssignedRange,
    partition=st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(1 << 63), (1 << 64) - 1),
        st.text(st.characters(exclude_categories=["Cs"])),
    ).map(partition_of_value),
    start_offset=st.integers(0, INT64_MAX),
    end_offset=st.integers(0, INT64_MAX),
    timestamp=st.integers(TIMESTAMP_MIN, TIMESTAMP_MAX),
)


@given(st.integers(0, 1 << 40), st.lists(ranges, max_size=3).map(tuple))
def test_a_committed_batch_survives_its_result(
    batch: int, committed: tuple[AssignedRange, ...]
) -> None:
    raw = result_to_json(batch, Accepted(committed))
    answer = put_answer(raw)
    assert answer["batch"] == batch
    assert [ClientRange.from_json(each) for each in answer["committed"]] == [
        ClientRange(
            partition_value(each.partition),
            each.start_offset,
            each.end_offset,
            EPOCH + timedelta(microseconds=each.timestamp),
        )
        for each in committed
    ]


def test_a_result_is_what_the_contract_says() -> None:
    committed = AssignedRange(partition_of_value("JFK"), 5, 9, 1_795_176_000_000_000)
    assert json.loads(result_to_json(3, Accepted((committed,)))) == {
        "batch": 3,
        "committed": [
            {
                "partition": "JFK",
                "start_offset": 5,
                "end_offset": 9,
                "timestamp": "2026-11-20T12:00:00.000000Z",
            }
        ],
    }
    assert json.loads(result_to_json(0, Accepted(()))) == {"batch": 0, "committed": []}


def test_a_staged_batch_survives_its_result() -> None:
    staged = StagedBatch("q-1.0", rows=3, bytes=640)
    raw = result_to_json(1, staged)
    assert json.loads(raw) == {
        "batch": 1,
        "staged": {"stage": "q-1.0", "rows": 3, "bytes": 640},
    }


def test_a_repeat_is_answered_like_the_first_time() -> None:
    committed = (AssignedRange(partition_of_value(None), 0, 0, 0),)
    assert result_to_json(0, Accepted(committed, replayed=True)) == result_to_json(
        0, Accepted(committed)
    )


@each("wrap", [Rejected, lambda error: error])  # pyright: ignore[reportUnknownLambdaType]
def test_a_refused_batch_survives_its_result_with_its_error(wrap: Any) -> None:
    error = OffsetMismatch("expected 3, it is 7", next_offset=7)
    raw = result_to_json(2, wrap(error))
    assert json.loads(raw) == {
        "batch": 2,
        "error": {"code": "OFFSET_MISMATCH", "message": "expected 3, it is 7", "next_offset": 7},
    }
    again = error_from_json(put_answer(pa.py_buffer(raw))["error"])
    assert type(again) is OffsetMismatch
    assert again.next_offset == 7


def test_an_error_with_text_that_is_no_unicode_is_still_answered() -> None:
    raw = result_to_json(0, Rejected(SchemaMismatch("a\ud800", column="b\ud800")))
    assert json.loads(raw)["error"]["code"] == "SCHEMA_MISMATCH"
