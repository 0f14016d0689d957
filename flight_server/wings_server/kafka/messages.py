"""Messages of Kafka's protocol: requests from bytes, responses from plain values.

The only module that reads and writes by kio. A response is given as a mapping by the names of
kio's fields, which are those of Kafka's specification. Fields that a version lacks are left out;
those that are not given have the value of nothing for their type. Times are milliseconds.

kio's reader reserves memory for the length that a list states, whatever follows, and refuses tags
that it does not know, which later clients may send. So the bytes of a request are walked before:
strings and records are skipped by their length, values of a fixed size together. An array of such
values is one step.
"""

import io
import struct
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from datetime import timedelta
from enum import IntEnum
from functools import cache
from typing import Any, NamedTuple, cast, get_args, get_origin

from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer
from kio.serial.errors import SerialError

Values = Mapping[str, Any]
"""The fields of a response, or of a structure within one."""

ENTRIES_MAX = 20_000
"""Most entries of all lists of a request together: what the event loop answers in a moment."""

_SIZES = {
    "bool": 1,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "timedelta_i32": 4,
    "timedelta_i64": 8,
    "uuid": 16,
}
"""Bytes of a value, by kio's name of its type; others begin with their length."""

_INT16 = struct.Struct(">h")

_INT32 = struct.Struct(">i")


class Api(IntEnum):
    """The requests that are served."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_CONFIGS = 32
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    INCREMENTAL_ALTER_CONFIGS = 44
    OFFSET_DELETE = 47
    DESCRIBE_CLUSTER = 60
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69


VERSIONS: Mapping[Api, tuple[int, int]] = {
    Api.PRODUCE: (3, 12),
    Api.FETCH: (4, 17),
    Api.LIST_OFFSETS: (1, 9),
    Api.METADATA: (0, 13),
    Api.OFFSET_COMMIT: (2, 9),
    Api.OFFSET_FETCH: (1, 9),
    Api.FIND_COORDINATOR: (0, 5),
    Api.JOIN_GROUP: (0, 9),
    Api.HEARTBEAT: (0, 4),
    Api.LEAVE_GROUP: (0, 5),
    Api.SYNC_GROUP: (0, 5),
    Api.DESCRIBE_GROUPS: (0, 5),
    Api.LIST_GROUPS: (0, 5),
    Api.SASL_HANDSHAKE: (0, 1),
    Api.API_VERSIONS: (0, 4),
    Api.CREATE_TOPICS: (2, 7),
    Api.DELETE_TOPICS: (1, 6),
    Api.DELETE_RECORDS: (0, 2),
    Api.INIT_PRODUCER_ID: (0, 5),
    Api.OFFSET_FOR_LEADER_EPOCH: (2, 4),
    Api.ADD_PARTITIONS_TO_TXN: (0, 3),
    Api.ADD_OFFSETS_TO_TXN: (0, 4),
    Api.END_TXN: (0, 4),
    Api.TXN_OFFSET_COMMIT: (0, 4),
    Api.DESCRIBE_CONFIGS: (1, 4),
    Api.SASL_AUTHENTICATE: (0, 2),
    Api.CREATE_PARTITIONS: (0, 3),
    Api.DELETE_GROUPS: (0, 2),
    Api.INCREMENTAL_ALTER_CONFIGS: (0, 1),
    Api.OFFSET_DELETE: (0, 0),
    Api.DESCRIBE_CLUSTER: (0, 1),
    Api.CONSUMER_GROUP_HEARTBEAT: (0, 1),
    Api.CONSUMER_GROUP_DESCRIBE: (0, 1),
}
"""The first and last version of each request; what is not here is not served."""


HEAD = struct.Struct(">hhi")
"""The fields that all versions of a request's header begin with: api, version, correlation id."""


_LENGTH = struct.Struct(">i")


_ID = struct.Struct(">i")


class BadRequest(Exception):  # noqa: N818 - never sent
    """A request that cannot be read or is not served; its connection is closed."""


class Head(NamedTuple):
    """The beginning of a request."""

    api: Api
    version: int
    correlation_id: int


@dataclass(frozen=True, slots=True)
class Request:
    """A request.

    Attributes:
        head: Its beginning.
        client_id: Name of the client, which it chose; may be empty.
        body: kio's entity of the request.
        throttled_ms: How long it waited at its principal's quotas, which its response tells.
    """

    head: Head
    client_id: str
    body: Any
    throttled_ms: int = 0

    def response(self, values: Values) -> bytes:
        """Return the frame of the response, with its length."""
        if self.throttled_ms:
            values = {"throttle_time": self.throttled_ms, **values}
        return _respond(self.head, values)


def head_of(frame: memoryview) -> Head:
    """Return the beginning of a request.

    Raises:
        BadRequest: The frame is too short, or the api is not served in this version; that of
            `API_VERSIONS` is always accepted.
    """
    if len(frame) < HEAD.size:
        raise BadRequest("a frame without a header")
    key, version, correlation_id = HEAD.unpack_from(frame)
    try:
        api = Api(key)
    except ValueError:
        raise BadRequest(f"api {key} is not served") from None
    first, last = VERSIONS[api]
    if not first <= version <= last and api is not Api.API_VERSIONS:
        raise BadRequest(f"version {version} of {api.name} is not served")
    return Head(api, version, correlation_id)


def parse(head: Head, frame: memoryview) -> Request:
    """Parse a request.

    Args:
        head: Its beginning.
        frame: All of it, read-only.

    Raises:
        BadRequest: It is not what its header says.
    """
    check, read_header, read_body = _readers(head.api, head.version)
    try:
        known, _ = check(frame)
        header, size = read_header(known, 0)
        body, _ = read_body(known, size)
    except (SerialError, ValueError, OverflowError, LookupError, struct.error) as error:
        raise BadRequest(f"{head.api.name} {head.version}: {error!s:.200}") from None
    return Request(head, header.client_id or "", body)


def api_versions(head: Head) -> bytes:
    """Return the response to `API_VERSIONS`.

    A version that is not served is answered in the form of version 0, which all clients read.
    """
    first, last = VERSIONS[Api.API_VERSIONS]
    served = first <= head.version <= last
    keys = [
        {"api_key": api.value, "min_version": oldest, "max_version": newest}
        for api, (oldest, newest) in VERSIONS.items()
    ]
    error = ErrorCode.none if served else ErrorCode.unsupported_version
    head = head if served else head._replace(version=0)
    return _respond(head, {"error_code": error, "api_keys": keys})


def answered_again(response: bytes, head: Head) -> bytes:
    """Return a response as that to another request of the same api and version."""
    again = bytearray(response)
    _ID.pack_into(again, _LENGTH.size, head.correlation_id)
    return bytes(again)


def _respond(head: Head, values: Values) -> bytes:
    write_header, write_body, build = _writers(head.api, head.version)
    out = io.BytesIO()
    out.write(bytes(_LENGTH.size))
    write_header(out, head.correlation_id)
    write_body(out, build(values))
    size = out.tell()
    out.seek(0)
    out.write(_LENGTH.pack(size - _LENGTH.size))
    return out.getvalue()


@cache
def _readers(api: Api, version: int) -> tuple[Callable[..., Any], ...]:
    """Return what checks a request, and reads its header and its body."""
    schema = load_request_schema(api.value, version)
    header = schema.__header_schema__
    return checker_of(header, schema), entity_reader(header), entity_reader(schema)


@cache
def _writers(
    api: Api, version: int
) -> tuple[Callable[[Any, int], None], Callable[..., None], Callable[[Values], Any]]:
    schema = load_response_schema(api.value, version)
    header = schema.__header_schema__
    write = entity_writer(header)

    def write_header(out: Any, correlation_id: int) -> None:
        write(out, cast("Any", header)(correlation_id=correlation_id))

    return write_header, entity_writer(schema), builder_of(schema)


_NOTHING: Mapping[str, Any] = {
    "string": "",
    "bytes": b"",
    "records": None,
    "uuid": None,
    "bool": False,
    "error_code": ErrorCode.none,
    "timedelta_i32": timedelta(0),
    "timedelta_i64": timedelta(0),
    "datetime_i64": None,
}
"""Values of fields that are not given, by kio's name of the type; 0 for numbers."""


@cache
def builder_of(entity: type) -> Callable[[Values], Any]:
    """Return a function that makes an entity of the values of its fields."""
    steps = [(field.name, *_step(field)) for field in fields(entity)]

    def build(values: Values) -> Any:
        return entity(
            **{
                name: convert(values[name]) if name in values else nothing
                for name, convert, nothing in steps
            }
        )

    return build


def _step(field: Any) -> tuple[Callable[[Any], Any], Any]:
    """Return how a field's value is converted, and its value if none is given."""
    kind, is_nullable = without_null(field.type)
    is_list = get_origin(kind) is tuple
    element = get_args(kind)[0] if is_list else kind
    convert: Callable[[Any], Any] = _same
    if is_dataclass(element):
        convert = builder_of(cast("type", element))
    elif str(field.metadata.get("kafka_type")).startswith("timedelta"):
        convert = _milliseconds
    if is_list:
        convert = _each(convert)
    nothing = field.default
    if nothing is MISSING:
        kafka_type = field.metadata.get("kafka_type")
        nothing = () if is_list else _NOTHING.get(kafka_type, 0)
        if is_nullable and (is_dataclass(element) or kafka_type == "string"):
            nothing = None
    return _unless_none(convert), nothing


def _same(value: Any) -> Any:
    return value


def _milliseconds(value: int) -> timedelta:
    return timedelta(milliseconds=value)


def _each(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda values: tuple([convert(value) for value in values])


def _unless_none(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    if convert is _same:
        return _same
    return lambda value: None if value is None else convert(value)


@dataclass(slots=True)
class _Walk:
    data: memoryview
    entries: int = 0
    """Entries that the lists so far state together."""
    cuts: list[tuple[int, int, bytes]] = field(default_factory=list[tuple[int, int, bytes]])
    """Where the bytes of unknown fields, and counts with them, begin and end, and what replaces
    them."""

    def count(self, entries: int) -> None:
        self.entries += entries
        if self.entries > ENTRIES_MAX:
            raise ValueError("too many entries")

    def known(self) -> memoryview:
        """Return the request without its unknown fields."""
        if not self.cuts:
            return self.data
        parts: list[bytes | memoryview] = []
        position = 0
        for begin, end, instead in sorted(self.cuts):
            parts += (self.data[position:begin], instead)
            position = end
        return memoryview(b"".join([*parts, self.data[position:]]))


_Skip = Callable[[_Walk, int], int]
"""Returns the position after a value; IndexError and struct.error where the bytes end."""


_Length = Callable[[memoryview, int], tuple[int, int]]
"""Returns the length that a value states, -1 for null, and the position after it."""


def checker_of(header: type, body: type) -> Callable[[memoryview], tuple[memoryview, int]]:
    """Return a function that checks the lists of a request.

    Args:
        header: kio's class of its header.
        body: kio's class of its body.

    Returns:
        A function of all of the request; it returns the request without unknown tagged fields, and
        the position where it ends in what is given. It raises ValueError where lists and tagged
        fields state more than `ENTRIES_MAX` entries together, a list is null that Kafka's
        specification has no null for, tags are not in order, or a length has more than 5 bytes;
        LookupError where the bytes end before, as struct.error.
    """
    steps = _entity(header), _entity(body)

    def check(frame: memoryview) -> tuple[memoryview, int]:
        walk, position = _Walk(frame), 0
        for step in steps:
            position = step(walk, position) if callable(step) else position + step
        return walk.known(), position

    return check


def _entity(entity: Any) -> int | _Skip:
    """Return the size of an entity, or what skips one whose size differs."""
    is_flexible = entity.__flexible__
    steps: list[tuple[int, _Skip]] = []  # Each after so many bytes of fixed size.
    tagged: dict[int, int | _Skip] = {}
    ahead = 0
    for each in fields(entity):
        # The header's text is of the old form in all versions.
        step = _field(each, is_flexible=is_flexible and each.name != "client_id")
        if "tag" in each.metadata:
            tagged[each.metadata["tag"]] = step
        elif callable(step):
            steps.append((ahead, step))
            ahead = 0
        else:
            ahead += step
    if not steps and not is_flexible:
        return ahead
    skip_tags = _tags(tagged)

    def skip(walk: _Walk, position: int) -> int:
        for before, step in steps:
            position = step(walk, position + before)
        position += ahead
        if not is_flexible:
            return position
        return skip_tags(walk, position) if walk.data[position] else position + 1

    return skip


def _field(given: Any, *, is_flexible: bool) -> int | _Skip:
    kind, is_nullable = without_null(given.type)
    is_list = get_origin(kind) is tuple
    element = get_args(kind)[0] if is_list else kind
    kafka_type = given.metadata.get("kafka_type")
    step: int | _Skip
    if is_dataclass(element):
        step = _entity(element)
    elif (size := _SIZES.get(kafka_type)) is not None:
        step = size
    elif is_flexible:
        step = _compact_bytes
    else:
        step = _bytes(_int16 if kafka_type == "string" else _int32)
    if not is_list:
        return step
    length = _compact if is_flexible else _int32
    return _list(given.name, length, step, is_nullable=is_nullable)


def _compact_bytes(walk: _Walk, position: int) -> int:
    size = walk.data[position]
    if size < 0x80:
        return position + (size or 1)
    size, position = _compact(walk.data, position)
    return position + max(0, size)


def _bytes(length: _Length) -> _Skip:
    def skip(walk: _Walk, position: int) -> int:
        size, position = length(walk.data, position)
        return position + max(0, size)

    return skip


def _list(name: str, length: _Length, element: int | _Skip, *, is_nullable: bool) -> _Skip:
    def skip(walk: _Walk, position: int) -> int:
        count, position = length(walk.data, position)
        if count < 0:
            if is_nullable:
                return position
            raise ValueError(f"{name} is null")
        walk.count(count)
        if not callable(element):
            return position + count * element
        for _ in range(count):
            position = element(walk, position)
        return position

    return skip


def _tags(tagged: dict[int, int | _Skip]) -> _Skip:
    """Return what skips the fields with tags; kio goes by their types, not by their lengths."""

    def skip(walk: _Walk, position: int) -> int:
        data, begin, before, known = walk.data, position, -1, 0
        count, position = _varint(data, position)
        first = position
        walk.count(count)
        for _ in range(count):
            at = position
            tag, position = _varint(data, position)
            size, position = _varint(data, position)
            if tag <= before:
                raise ValueError("tags are not in order")
            before, step = tag, tagged.get(tag)
            if step is None:
                position += size
                walk.cuts.append((at, position, b""))
                continue
            position = step(walk, position) if callable(step) else position + step
            known += 1
        if position > len(data):
            raise ValueError("a tagged field beyond the end")
        if known < count:
            walk.cuts.append((begin, first, bytes([known])))
        return position

    return skip


def _int16(data: memoryview, position: int) -> tuple[int, int]:
    return _INT16.unpack_from(data, position)[0], position + _INT16.size


def _int32(data: memoryview, position: int) -> tuple[int, int]:
    return _INT32.unpack_from(data, position)[0], position + _INT32.size


def _compact(data: memoryview, position: int) -> tuple[int, int]:
    found = data[position]
    if found < 0x80:
        return found - 1, position + 1
    found, position = _varint(data, position)
    return found - 1, position


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    found = 0
    for shift in range(0, 35, 7):
        byte = data[position]
        position += 1
        found |= (byte & 0x7F) << shift
        if byte < 0x80:
            return found, position
    raise ValueError("a length of more than 5 bytes")


def without_null(kind: Any) -> tuple[Any, bool]:
    """Return a field's type without null, and whether it may be null."""
    if get_origin(kind) is types.UnionType:
        (inner,) = [each for each in get_args(kind) if each is not types.NoneType]
        return inner, True
    return kind, False
