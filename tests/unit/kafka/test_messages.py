"""Requests of Kafka's protocol in all versions, and what is wrong with some."""

import io
import resource
import struct
import uuid
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, get_args, get_origin

import pytest
from kio.index import load_request_schema
from kio.serial import entity_writer

from wings_server.kafka.messages import (
    ENTRIES_MAX,
    VERSIONS,
    Api,
    BadRequest,
    builder_of,
    checker_of,
    head_of,
    parse,
    without_null,
)


def full(entity: Any) -> dict[str, Any]:
    """Return values for the fields of an entity that have no fixed size, or a tag."""
    found: dict[str, Any] = {}
    for field in fields(entity):
        kind, _ = without_null(field.type)
        is_list = get_origin(kind) is tuple
        element = get_args(kind)[0] if is_list else kind
        value: Any = None
        if is_dataclass(element):
            value = full(element)
        match field.metadata.get("kafka_type"):
            case "string":
                value = "ab"
            case "bytes" | "records":
                value = b"x" * 200
            case "uuid":
                value = uuid.UUID(int=5)
            case "int32" if is_list or "replica" in field.name:
                value = 5
            case _:
                pass
        if value is not None:
            found[field.name] = [value, value] if is_list else value
    return found


def request(api: Api, version: int, values: dict[str, Any]) -> tuple[bytes, int]:
    """Return a request, and where its body begins."""
    schema = load_request_schema(api.value, version)
    header = schema.__header_schema__
    named = {"request_api_key": api.value, "request_api_version": version, "client_id": "me"}
    out = io.BytesIO()
    entity_writer(header)(out, builder_of(header)(named))
    begin = out.tell()
    entity_writer(schema)(out, builder_of(schema)(values))
    return out.getvalue(), begin


@cache
def full_requests() -> list[tuple[Any, bytes, int]]:
    """Return class, bytes and begin of the body of a request of each version that is served."""
    schemas = [
        (api, version, load_request_schema(api.value, version))
        for api, (first, last) in VERSIONS.items()
        for version in range(first, last + 1)
    ]
    return [(schema, *request(api, version, full(schema))) for api, version, schema in schemas]


def test_the_lists_of_every_request_are_walked_to_its_end() -> None:
    for schema, frame, _ in full_requests():
        data = memoryview(frame)
        assert parse(head_of(data), data).client_id == "me"
        known, end = checker_of(schema.__header_schema__, schema)(data)
        assert (known is data, end) == (True, len(frame)), schema


def test_unknown_tagged_fields_are_skipped_at_every_place() -> None:
    unknown = b"\x01\x09\x03any"  # One field, of tag 9 and 3 bytes.
    partition = struct.pack(">iiqiqi", 5, 0, 6, -1, -1, 7)
    topic = uuid.UUID(int=4).bytes + b"\x02" + partition + unknown + unknown
    state = struct.pack(">iq", 8, 9) + unknown
    tagged = b"\x04\x00\x03\x03us" + b"\x01" + bytes([len(state)]) + state
    frame = (
        struct.pack(">hhih2s", Api.FETCH, 17, 3, 2, b"me") + unknown
        + struct.pack(">iiibii", 1, 2, 3, 0, 0, -1) + b"\x02" + topic + b"\x01\x01"
        + tagged + b"\x08\x00" + b"\xff\xff\x03\x02zz"
    )  # fmt: skip
    data = memoryview(frame)
    found = parse(head_of(data), data)
    (read,) = found.body.topics
    assert (found.client_id, found.body.cluster_id, read.topic_id.int) == ("me", "us", 4)
    assert (found.body.replica_state.replica_epoch, read.partitions[0].fetch_offset) == (9, 6)
    for end in range(len(frame)):
        with pytest.raises(BadRequest):
            parse(head_of(memoryview(frame)), data[:end])
    again = memoryview(frame.replace(b"\x08\x00\xff", b"\x01\x00\xff"))
    with pytest.raises(BadRequest, match="not in order"):
        parse(head_of(again), again)


@pytest.mark.parametrize("stated", [b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff\x7f"])
def test_no_length_that_a_request_states_takes_memory(stated: bytes) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _, frame, begin in full_requests():
        for position in range(begin, len(frame)):
            for end in (position + 1, position + len(stated)):
                changed = memoryview(frame[:position] + stated + frame[end:])
                with suppress(BadRequest):
                    parse(head_of(changed), changed)
    # In KiB; the length is near 2 GiB.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 256 * 1024


def test_the_lists_of_a_request_are_bounded_together() -> None:
    def metadata(names: int, each: int) -> memoryview:
        topics = [{"name": "a", "partition_indexes": [0] * each}] * names
        return memoryview(request(Api.OFFSET_FETCH, 7, {"group_id": "g", "topics": topics})[0])

    fits = metadata(100, ENTRIES_MAX // 100 - 1)
    assert len(parse(head_of(fits), fits).body.topics) == 100
    beyond = metadata(100, ENTRIES_MAX // 100)
    with pytest.raises(BadRequest, match="too many entries"):
        parse(head_of(beyond), beyond)


@pytest.mark.parametrize(
    ("api", "version", "name", "is_read"),
    [
        (Api.METADATA, 1, "topics", True),
        (Api.METADATA, 9, "topics", True),
        (Api.DESCRIBE_GROUPS, 0, "groups", False),
        (Api.DESCRIBE_GROUPS, 5, "groups", False),
    ],
)
def test_a_list_is_null_only_where_kafka_has_null(
    api: Api, version: int, name: str, *, is_read: bool
) -> None:
    frame, begin = request(api, version, {name: []})  # Its first field.
    is_flexible = load_request_schema(api.value, version).__flexible__
    length = b"\x01" if is_flexible else bytes(4)
    assert frame[begin:].startswith(length)
    null = b"\0" if is_flexible else b"\xff" * 4
    data = memoryview(frame[:begin] + null + frame[begin + len(length) :])
    if is_read:
        assert parse(head_of(data), data).body.topics is None
    else:
        with pytest.raises(BadRequest, match="groups is null"):
            parse(head_of(data), data)
