"""Share groups on the wire: what their actions take, and what they answer."""

import json
from typing import Any

import pytest

from wings_core.contracts.chunks import EndReason
from wings_core.contracts.share import (
    ACKNOWLEDGEMENTS_MAX,
    DELAY_MS_MAX,
    Acknowledge,
    AcquiredChunk,
    AcquireEnd,
    CreateGroup,
    ListGroups,
    acquire_end_metadata,
    acquired_metadata,
    parse_acquired_metadata,
)
from wings_core.errors import InvalidArgument
from wings_core.model import LeasedRange, ShareConfig
from wings_core.partitions import Partition

ENTRY = {"partition": None, "first": 1, "last": 2, "lease": "l", "type": "accept"}
GOOD: dict[str, list[Any]] = {
    "lock_duration_ms": [1_000, 30_000, 43_200_000],
    "delivery_limit": [1, 5, 100],
    "in_flight_max": [1, 2_000, 1_000_000],
    "start": ["latest", "earliest", {"timestamp": "2026-11-20T12:00:00.000000Z"}],
    "dlq_topic": [None, "dead", "tenants/t/namespaces/n/topics/dead"],
    "dlq_copy_payload": [True, False],
    "acquire_mode": ["record_limit", "batch_optimized"],
    "ordering": ["none", "partition"],
    "deliver_at_column": [None, "at"],
}
BAD: dict[str, list[Any]] = {
    "lock_duration_ms": [999, 43_200_001, 1.5, "1000", True],
    "delivery_limit": [0, 101, 1.0, "5"],
    "in_flight_max": [0, 1_000_001],
    "start": ["first", 0, {"timestamp": "x"}, {"time": "2026-11-20T12:00:00Z"}, []],
    "dlq_topic": ["", "Not A Name", "a/b", 1],
    "dlq_copy_payload": [0, "true"],
    "acquire_mode": ["exact"],
    "ordering": ["key", True],
    "deliver_at_column": ["", 1],
    "x": [1],
}


def create(config: object) -> CreateGroup:
    body = {"group": "g", "topic": "t", "config": config}
    return CreateGroup.parse_body(json.dumps(body).encode())


def acknowledge(*acks: object) -> Acknowledge:
    body = {"group": "g", "topic": "t", "member": "m", "acks": list(acks)}
    return Acknowledge.parse_body(json.dumps(body).encode())


def test_the_time_of_a_start_is_told_in_utc() -> None:
    start = {"timestamp": "2020-01-01T02:00:00+02:00"}
    found = create({"start": start}).config.model_dump(mode="json")["start"]
    assert found == {"timestamp": "2020-01-01T00:00:00.000000Z"}


GOOD_VALUES = [(key, value) for key, values in GOOD.items() for value in values]


def test_a_configuration_has_these_keys(subtests: pytest.Subtests) -> None:
    for key, value in GOOD_VALUES:
        with subtests.test(f"{key!r:.60} {value!r:.60}"):
            found = create({key: value}).config.model_dump(mode="json")[key]
            assert found == (
                "tenants/default/namespaces/default/topics/dead" if value == "dead" else value
            )


BAD_VALUES = [(key, value) for key, values in BAD.items() for value in values]


def test_a_configuration_out_of_bounds_is_refused_by_its_key(subtests: pytest.Subtests) -> None:
    for key, value in BAD_VALUES:
        with subtests.test(f"{key!r:.60} {value!r:.60}"):
            with pytest.raises(InvalidArgument, match=rf"config\.{key}") as caught:
                create({key: value})
            assert len(caught.value.message) <= 512


def test_what_is_absent_or_null_in_a_configuration_has_the_designs_default() -> None:
    assert create(dict.fromkeys(GOOD)).config == create({}).config
    assert create({}).config.model_dump() == {
        "lock_duration_ms": 30_000,
        "delivery_limit": 5,
        "in_flight_max": 2_000,
        "start": "latest",
        "dlq_topic": None,
        "dlq_copy_payload": True,
        "acquire_mode": "record_limit",
        "ordering": "none",
        "deliver_at_column": None,
    }


def test_a_change_of_a_configuration_touches_the_keys_given() -> None:
    old = ShareConfig(delivery_limit=3, dlq_topic="dead")
    assert old.changed_by(ShareConfig(lock_duration_ms=1_000)) == ShareConfig(
        delivery_limit=3, dlq_topic="dead", lock_duration_ms=1_000
    )
    assert old.changed_by(ShareConfig(dlq_topic=None)).dlq is None


BAD_ACKNOWLEDGEMENTS = [
    {"first": -1}, {"first": 1.5}, {"first": None}, {"last": 0}, {"lease": ""}, {"lease": 1},
    {"type": "Accept"}, {"type": None}, {"x": 1}, {"delay_ms": 1}, {"reason": "r"},
    {"type": "release", "delay_ms": -1}, {"type": "release", "delay_ms": DELAY_MS_MAX + 1},
    {"type": "reject", "reason": 1}, {"type": "reject", "reason": "x" * 4_097},
    {"type": "renew", "delay_ms": 1}, {"counts": False}, {"type": "release", "counts": 1},
]  # fmt: skip


def test_a_bad_acknowledgement_fails_the_request(subtests: pytest.Subtests) -> None:
    for keys in BAD_ACKNOWLEDGEMENTS:
        with (
            subtests.test(f"{keys!r:.60}"),
            pytest.raises(InvalidArgument, match=r"acks\[1\]"),
        ):
            acknowledge(ENTRY, {**ENTRY, **keys})


def test_acknowledgements_are_of_four_types() -> None:
    entries = acknowledge(
        ENTRY,
        {**ENTRY, "type": "release", "delay_ms": 0},
        {**ENTRY, "type": "reject", "reason": ""},
        {**ENTRY, "type": "renew"},
    ).acks
    assert [entry.type for entry in entries] == ["accept", "release", "reject", "renew"]


def test_there_is_a_most_of_acknowledgements() -> None:
    with pytest.raises(InvalidArgument, match="at most"):
        acknowledge(*[ENTRY] * (ACKNOWLEDGEMENTS_MAX + 1))


def test_groups_are_listed_by_topic_or_by_namespace() -> None:
    with pytest.raises(InvalidArgument, match="exclude each other"):
        ListGroups.parse_body(b'{"topic": "t", "namespace": "tenants/a/namespaces/b"}')


@pytest.mark.parametrize("value", ["null", "7", '"JFK"', '"é\\""', "true"])
def test_the_metadata_of_a_chunk_is_read_as_it_was_written(value: str) -> None:
    raw = acquired_metadata(LeasedRange(Partition(value), 3, 9, "a.1.b", 2, 30_000))
    ordered = acquired_metadata(LeasedRange(Partition(value), 3, 9, "a.1.b", 2, 30_000, True))
    assert json.loads(ordered) == {**json.loads(raw), "ordering": "partition"}
    assert json.loads(raw) == {
        "partition": json.loads(value),
        "start_offset": 3,
        "end_offset": 9,
        "lease": "a.1.b",
        "delivery_count": 2,
        "lock_duration_ms": 30_000,
    }
    assert parse_acquired_metadata(raw) == AcquiredChunk(
        json.loads(value), 3, 9, "a.1.b", 2, 30_000
    )


@pytest.mark.parametrize("offsets", [(None, None), (3, 10)])
def test_the_last_chunk_says_why_it_is_the_last(offsets: tuple[Any, Any]) -> None:
    end = AcquireEnd(EndReason.MIN_MESSAGES, *offsets)
    raw = acquire_end_metadata(end)
    assert json.loads(raw)["end"] == "min_messages"
    assert parse_acquired_metadata(raw) == end
