"""Requests that no node of ours sends: each is answered or refused, and none damages the store."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pytest
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from property_examples import examples
from tables import each

from wings_core.errors import Internal, InvalidArgument, WingsError
from wings_core.metadata.remote.channel import error_of
from wings_core.metadata.sqlite import SqliteMetadata
from wings_core.names import DEFAULT_NAMESPACE
from wings_core.partitions import UNPARTITIONED
from wings_core.protocol.v1 import (
    admin_pb2,
    groups_pb2,
    holds_pb2,
    maintenance_pb2,
    offset_registry_pb2,
    shards_pb2,
    tokens_pb2,
)
from wings_core.share.replica.replica import Replica
from wings_core.share.replica.sqlite_store import SqliteHoldStore
from wings_server.metadata.service import MetadataService
from wings_server.settings import Address

FILES = (
    admin_pb2, groups_pb2, holds_pb2, maintenance_pb2, offset_registry_pb2, shards_pb2, tokens_pb2,
)  # fmt: skip
METHODS: dict[str, MethodDescriptor] = {
    method.name: method
    for file in FILES
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}
INTEGERS = (-1, -(1 << 63), 1 << 31, 1 << 62, (1 << 63) - 1)
TEXTS = ("", "\0", "../../../../etc/passwd", "/etc/passwd", "a/../b", "x" * 100_000, "\ue000")
VALUES: dict[int, tuple[Any, ...]] = {
    FieldDescriptor.CPPTYPE_INT64: INTEGERS,
    FieldDescriptor.CPPTYPE_INT32: (-1, -(1 << 31), (1 << 31) - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, (1 << 64) - 1),
    FieldDescriptor.CPPTYPE_DOUBLE: (-1.0, 1e300, 5e9, float("nan"), float("inf"), -float("inf")),
    FieldDescriptor.CPPTYPE_STRING: TEXTS,
    FieldDescriptor.CPPTYPE_BOOL: (True, False),
    FieldDescriptor.CPPTYPE_ENUM: (0, 1, -5, 77),
}
BYTES = (b"", b"\xff\xfe", b"\0", b"x" * 100_000, b"{}", b"../../../../etc/passwd")


class Service:
    """The metadata service with a replica of holds, and a topic with a message in it."""

    def __init__(self, directory: Path) -> None:
        self._metadata = SqliteMetadata(directory / "metadata.db")
        self._replica = Replica(lambda: SqliteHoldStore(directory / "holds.db"))
        self._service = MetadataService(
            self._metadata, "store", Address("127.0.0.1", 0), holds=self._replica
        )
        self._service.start()
        self._channel = grpc.insecure_channel(str(self._service.address))
        self.topic = self._metadata.admin.create_topic(
            DEFAULT_NAMESPACE.topic("topic"), pa.schema([("n", pa.int64())])
        )
        self.call("Commit", batches=[self.batch()])

    def batch(self, **page: Any) -> dict[str, Any]:
        """Return a batch to commit, its page like no other where it says so."""
        address = {"folio": "folio", "position": 0, "length": 64} | page.pop("address", {})
        stored = {"partition": "null", "rows": 1, "address": address, **page}
        return {"topic_uuid": self.topic.uuid, "pages": [stored]}

    def send(self, method: MethodDescriptor, data: bytes) -> WingsError | None:
        """Send a message; returns the error that it is answered with."""
        path = f"/{method.containing_service.full_name}/{method.name}"
        decode = GetMessageClass(method.output_type).FromString
        try:
            if method.client_streaming:
                call = self._channel.stream_stream(path, response_deserializer=decode)
                list(call(iter([data]), timeout=30))
                return None
            if method.server_streaming:
                stream = self._channel.unary_stream(path, response_deserializer=decode)(data)
                next(iter(stream), None)
                stream.cancel()
                return None
            self._channel.unary_unary(path, response_deserializer=decode)(data, timeout=30)
        except grpc.RpcError as error:
            return error_of(error, "here")
        return None

    def call(self, name: str, /, **fields: Any) -> WingsError | None:
        method = METHODS[name]
        message = GetMessageClass(method.input_type)(**fields)
        return self.send(method, message.SerializeToString())

    def assert_sound(self) -> None:
        """Assert that the topic is there, and all that is stored of it can be read."""
        (state,) = self._metadata.registry.partition_states(self.topic.uuid)
        assert state.partition == UNPARTITIONED
        offset = state.log_start_offset
        while offset < state.next_offset:
            found = self._metadata.registry.locate(self.topic.uuid, UNPARTITIONED, offset, 1 << 40)
            for location in found.locations:
                assert location.start_offset == offset
                assert ".." not in location.address.folio
                assert 0 <= location.address.position < 1 << 54
                offset = location.end_offset + 1
        assert offset == state.next_offset < 1 << 40

    def close(self) -> None:
        self._channel.close()
        self._service.stop(0)
        self._replica.close()
        self._metadata.close()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    opened = Service(tmp_path_factory.mktemp("service"))
    yield opened
    opened.close()


KEY = {"group_uuid": "g", "topic_uuid": "t", "partition": "null"}
LEASE = {"coordinator": "c", "number": 1, "member_tag": "m"}
ENTRY = {"first": 0, "last": 0, "lease": LEASE, "count": 1}
HOLD = {"key": KEY, "ranges": [{"first": 0, "last": 1}], "lease": LEASE, "in_flight_max": 10}
LONG = 1 << 62


@each(
    ("method", "fields"),
    [
        ("Commit", {"address": {"folio": "../../../../etc/passwd"}}),
        ("Commit", {"address": {"folio": "/etc/passwd"}}),
        ("Commit", {"address": {"folio": ""}}),
        ("Commit", {"address": {"folio": "a/./b"}}),
        ("Commit", {"address": {"folio": "a\0"}}),
        ("Commit", {"address": {"folio": "x" * 10_000}}),
        ("Commit", {"address": {"position": -1}}),
        ("Commit", {"address": {"position": LONG}}),
        ("Commit", {"address": {"length": LONG}}),
        ("Commit", {"address": {"length": 0}}),
        ("Commit", {"rows": LONG}),
        ("Commit", {"rows": 1 << 31}),
        ("Commit", {"rows": 0}),
        ("Commit", {"first_row": LONG, "slice_bytes": 1}),
        ("Commit", {"first_row": 0, "slice_bytes": -1}),
        ("SweepStages", {"seconds": 1e300, "stages_max": 1}),
        ("SweepStages", {"seconds": float("nan"), "stages_max": 1}),
        ("RetireFolios", {"folios": ["../metadata.sqlite"]}),
        (
            "ExpirePages",
            {"topic_uuid": "t", "partition": "null", "age_us": -2 * LONG, "pages_max": 1},
        ),
        ("AcquireLease", {"name": "n", "holder": "h", "seconds": float("inf")}),
        ("RenewNode", {"node": {"id": "i", "address": "h:1"}, "seconds": 1e300}),
        ("Tombstone", {"key": KEY, "entries": [{**ENTRY, "last": (1 << 63) - 1}]}),
        ("Tombstone", {"key": KEY, "repair": [{"first": 0, "last": (1 << 63) - 1}]}),
        ("Tombstone", {"key": KEY, "entries": [{**ENTRY, "count": -1}]}),
        ("Tombstone", {"key": {**KEY, "group_uuid": "\0"}, "entries": [ENTRY]}),
        ("Hold", {**HOLD, "ttl_ms": 1 << 62}),
        ("Hold", {**HOLD, "ttl_ms": 1_000, "in_flight_max": -1}),
        ("Hold", {**HOLD, "ttl_ms": 1_000, "ranges": [{"first": -1, "last": 0}]}),
        ("Release", {"key": KEY, "entries": [{**ENTRY, "delay_ms": LONG}]}),
    ],
)
def test_a_request_that_cannot_be_meant_is_an_invalid_argument(
    service: Service, method: str, fields: dict[str, Any]
) -> None:
    wanted = {"batches": [service.batch(**fields)]} if method == "Commit" else fields
    assert isinstance(service.call(method, **wanted), InvalidArgument)
    service.assert_sound()


def request_of(service: Service, method: MethodDescriptor) -> Message:
    """Return a request with every field set, of the topic where it names one."""
    message = GetMessageClass(method.input_type)()
    fill(service, message)
    return message


def fill(service: Service, message: Any) -> None:
    known: dict[str, Any] = {
        "topic_uuid": service.topic.uuid, "partition": "null", "topic": str(service.topic.name),
        "parent": str(DEFAULT_NAMESPACE), "state": "open", "rows": 1, "length": 64, "last": 1,
        "ttl_ms": 1_000, "pages_max": 1, "schema": service.topic.schema.serialize().to_pybytes(),
        "config": "{}", "seconds": 1.0, "folio": "folio", "page_token": "",
    }  # fmt: skip
    for field in message.DESCRIPTOR.fields:
        if field.containing_oneof is not None and field.name == "stage":
            continue  # A staged batch has no other conditions.
        if field.message_type is not None:
            inner = getattr(message, field.name)
            if field.message_type.file.package == "wings.v1":
                fill(service, inner.add() if field.is_repeated else inner)
            continue
        default = known.get(field.name, 0 if field.cpp_type != field.CPPTYPE_STRING else "a")
        if field.type == field.TYPE_BYTES:
            default = known.get(field.name, b"a")
        if field.is_repeated:
            getattr(message, field.name).append(default)
        else:
            setattr(message, field.name, default)


def places(message: Any) -> Iterator[tuple[Any, FieldDescriptor]]:
    """Yield each plain field of a message and of those inside it."""
    for field in message.DESCRIPTOR.fields:
        if field.message_type is None:
            yield message, field
        elif field.is_repeated:
            for inner in getattr(message, field.name):
                yield from places(inner)
        elif message.HasField(field.name):
            yield from places(getattr(message, field.name))


def put(message: Any, field: FieldDescriptor, value: Any) -> None:
    if field.is_repeated:
        getattr(message, field.name)[:] = [value, value]
    else:
        setattr(message, field.name, value)


@pytest.mark.hypothesis
@each("name", sorted(METHODS))
def test_a_hostile_value_in_any_field_of_any_rpc_is_answered_or_refused(
    service: Service, name: str
) -> None:
    method = METHODS[name]
    chance = random.Random(name)
    for index, (_, field) in enumerate(places(request_of(service, method))):
        values = BYTES if field.type == field.TYPE_BYTES else VALUES[field.cpp_type]
        for value in chance.sample(values, min(len(values), examples(2, 9))):
            message = request_of(service, method)
            put(*list(places(message))[index], value)
            refused = service.send(method, message.SerializeToString())
            assert not isinstance(refused, Internal), (field.full_name, value, refused)
    if name != "DeleteTopic":
        service.assert_sound()


@pytest.mark.hypothesis
def test_messages_of_random_bytes_are_answered_or_refused(service: Service) -> None:
    chance = random.Random(19)
    for number in range(examples(500, 3_000)):
        method = METHODS[chance.choice(sorted(METHODS))]
        if method.name == "DeleteTopic":
            continue
        message = request_of(service, method)
        for each_place, field in list(places(message)):
            values = BYTES if field.type == field.TYPE_BYTES else VALUES[field.cpp_type]
            if chance.random() < 0.2:
                put(each_place, field, chance.choice(values))
        data = bytearray(message.SerializeToString())
        for _ in range(chance.randrange(4)):
            if data:
                data[chance.randrange(len(data))] = chance.randrange(256)
        try:
            type(message).FromString(bytes(data))
        except DecodeError:
            continue  # gRPC refuses it before any code of ours.
        refused = service.send(method, bytes(data))
        if isinstance(refused, Internal):  # A writer is told of its older flush so.
            assert "came after flush" in refused.message, (number, method.name, bytes(data))
    service.assert_sound()
