"""Hostile input from a fixed seed: bytes, JSON, IPC messages and protobuf messages gone wrong."""

import json
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any, Literal

import pyarrow as pa
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

NUMBERS: Sequence[Any] = (
    *(0, 1, -1, 2, 255, 2**31 - 1, 2**31, -(2**31) - 1, 2**62, 2**63 - 1, -(2**63), 2**64 - 1),
    *(2**64, 10**400, 0.5, -0.0, 1e308, float("inf"), float("-inf"), float("nan")),
)
TEXTS = (
    "",
    "\0",
    "a\0b",
    "\ud800",
    "é" * 300,
    "x" * 70_000,
    "../../etc/passwd",
    "null",
    "-1",
    "🎉",
)
OTHERS: Sequence[Any] = (None, True, False, [], {}, [[]], [None], {"": None}, [[[[[[[[]]]]]]]])
DEEP = "[" * 20_000 + "]" * 20_000

VARINT, LENGTH = 0, 2
"""Wire types of protobuf."""


def mutated(random: Random, data: bytes) -> bytes:
    """Return bytes with a few changes: bits, cuts, insertions, repetitions."""
    found = bytearray(data)
    for _ in range(random.choice((1, 1, 1, 2, 5, 20))):
        at = random.randrange(len(found) + 1)
        match random.randrange(7):
            case 0 | 1 | 2 if at < len(found):
                found[at] ^= 1 << random.randrange(8)
            case 3:
                del found[at:]
            case 4:
                del found[at : at + random.randrange(1, 65)]
            case 5:
                found[at:at] = random.randbytes(random.randrange(1, 65))
            case _:
                word = random.choice(
                    (b"\0" * 8, b"\xff" * 8, b"\xff\xff\xff\x7f", b"\x00\x00\x00\x80")
                )
                found[at : at + len(word)] = word
    return bytes(found)


def mutated_json(random: Random, value: Any, names: Sequence[str]) -> bytes:
    """Return JSON with a few changes: other values, other types, keys more or fewer, or no JSON."""
    match random.randrange(12):
        case 0:
            return mutated(random, json.dumps(value).encode())
        case 1:
            return (
                DEEP.encode() if random.random() < 0.05 else b"" if random.random() < 0.5 else b"[]"
            )
        case _:
            for _ in range(random.choice((1, 1, 2, 3))):
                value = _changed(random, value, names)
            # Half surrogate pairs escaped or raw, numbers that no float holds, NaN.
            text = json.dumps(value, ensure_ascii=random.random() < 0.5)
            return text.replace("1e+308", "1e400").encode("utf-8", "surrogatepass")


def _changed(random: Random, value: Any, names: Sequence[str]) -> Any:
    if isinstance(value, dict) and value and random.random() < 0.85:
        key = random.choice(list(value))
        match random.randrange(6):
            case 0:
                return {name: each for name, each in value.items() if name != key}
            case 1:
                return {**value, random.choice(names): _nasty(random)}
            case _:
                return {**value, key: _changed(random, value[key], names)}
    if isinstance(value, list) and value and random.random() < 0.7:
        at = random.randrange(len(value))
        changed = _changed(random, value[at], names)
        return [*value[:at], changed, *value[at + random.randrange(2) :]]
    return _nasty(random)


def _nasty(random: Random) -> Any:
    return random.choice(random.choice((NUMBERS, TEXTS, OTHERS)))


def flight_messages(
    descriptor: bytes,
    batches: pa.Table,
    app_metadata: Sequence[bytes] = (),
    compression: Literal["lz4", "zstd"] | None = None,
) -> list[bytes]:
    """Return the `FlightData` messages of a DoPut, as their bytes.

    Args:
        descriptor: The message `FlightDescriptor`.
        batches: What is put.
        app_metadata: Of the messages from the first on.
        compression: Of the batches' buffers.
    """
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, batches.schema, options=options) as writer:
        writer.write_table(batches)
    found: list[bytes] = []
    reader = pa.ipc.MessageReader.open_stream(sink.getvalue())
    for number, message in enumerate(_messages(reader)):
        data = _field(1, descriptor) if number == 0 else b""
        data += _field(2, message.metadata.to_pybytes())
        if number < len(app_metadata):
            data += _field(3, app_metadata[number])
        body = b"" if message.body is None else message.body.to_pybytes()
        found.append(data + _field(1_000, body))
    return found


def path_descriptor(topic: str) -> bytes:
    """Return a `FlightDescriptor` of a path of one name."""
    return bytes([1 << 3 | VARINT, 1]) + _field(3, topic.encode())


def command_descriptor(command: bytes) -> bytes:
    """Return a `FlightDescriptor` of a command."""
    return bytes([1 << 3 | VARINT, 2]) + _field(2, command)


def first_message(descriptor: bytes) -> bytes:
    """Return a `FlightData` message of a descriptor alone."""
    return _field(1, descriptor)


def _messages(reader: pa.ipc.MessageReader) -> Iterator[pa.Message]:
    while True:
        try:
            message = reader.read_next_message()
        except StopIteration:
            return
        yield message


def _field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | LENGTH) + _varint(len(data)) + data


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


def made_up(
    random: Random, kind: type[Message], known: dict[str, Sequence[Any]], depth: int = 0
) -> Any:
    """Return a message whose fields are made up.

    Args:
        random: Chooses.
        kind: The message's type.
        known: Values that fields of a name may have besides: names and ids that exist.
        depth: How deep it is nested.
    """
    message = kind()
    for field in kind.DESCRIPTOR.fields:
        if random.random() < 0.15:
            continue
        values = [
            _value(random, field, known, depth)
            for _ in range(random.choice((0, 1, 1, 2, 5)) if field.is_repeated else 1)
        ]
        for value in values:
            if field.message_type is not None and not field.is_repeated:
                getattr(message, field.name).CopyFrom(value)
            elif field.is_repeated and not _is_map(field):
                getattr(message, field.name).append(value)
            elif not field.is_repeated:
                setattr(message, field.name, value)
    return message


def _is_map(field: Any) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _value(random: Random, field: Any, known: dict[str, Sequence[Any]], depth: int) -> Any:
    if field.message_type is not None:
        kind = GetMessageClass(field.message_type)
        return kind() if depth > 3 else made_up(random, kind, known, depth + 1)
    if field.name in known and random.random() < 0.7:
        return random.choice(known[field.name])
    return random.choice(_SCALARS.get(field.type, _SIGNED))


_SIGNED: Sequence[Any] = (0, 1, -1, 7, 2**62, 2**63 - 1, -(2**63))
_SCALARS: dict[int, Sequence[Any]] = {
    FieldDescriptor.TYPE_STRING: [text for text in TEXTS if text != "\ud800"],
    FieldDescriptor.TYPE_BYTES: (b"", b"\0", b"\xff\xfe", b"x" * 300, b"0123456789abcdef"),
    FieldDescriptor.TYPE_BOOL: (False, True),
    FieldDescriptor.TYPE_DOUBLE: (0.0, -1.0, 0.01, 1e308, float("inf"), float("nan")),
    FieldDescriptor.TYPE_ENUM: (0, 1, 2, 99),
    FieldDescriptor.TYPE_UINT64: (0, 1, 2**63, 2**64 - 1),
    FieldDescriptor.TYPE_UINT32: (0, 1, 2**31, 2**32 - 1),
    FieldDescriptor.TYPE_INT32: (0, 1, -1, 2**31 - 1, -(2**31)),
}
