"""Codec: conversion of a dataclass to a protobuf message and back, by derived functions.

A field maps to the message's field of the same name, or of that name with the suffix `_us`, by the
types of both:

    str, int, float, bool, bytes   unchanged; `X | None` to an optional field, absent for None
    str, in a field of bytes    UTF-8
    another dataclass           a nested message, by that dataclass's codec
    tuple[X, ...]               a repeated field
    types registered by `convert`   by their converter; a field's own converter takes precedence

The functions are generated as Python source and compiled on first use, as in `dataclasses`, which
avoids a loop over fields in frequent calls such as Commit.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, fields
from types import NoneType, UnionType
from typing import Any, Generic, Literal, NewType, TypeVar, get_args, get_origin, get_type_hints

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from wings_core.errors import InvalidArgument

ValueT = TypeVar("ValueT")
MessageT = TypeVar("MessageT", bound=Message)


@dataclass(frozen=True, slots=True)
class Convert:
    """Conversion of values other than None to and from a field; None for no conversion."""

    encode: Callable[[Any], Any] | None = None
    decode: Callable[[Any], Any] | None = None
    decode_message: Callable[[Any], Any] | None = None
    """Replaces `decode` if the value depends on other fields of the message."""


def text_of(data: bytes) -> str:
    """Decode a bytes field as UTF-8.

    Raises:
        InvalidArgument: The bytes are not UTF-8.
    """
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise InvalidArgument(f"{data[:80]!r} is not UTF-8") from None


_AS_IT_IS = Convert()
_UTF_8 = Convert(str.encode, text_of)
_by_type: dict[object, Convert] = {}
_by_dataclass: dict[type, "Codec[Any, Any]"] = {}


def convert(kind: type, encode: Callable[[Any], Any], decode: Callable[[Any], Any]) -> None:
    """Register the converter of a type; call it before a codec that needs it is used."""
    _by_type[kind] = Convert(encode, decode)


class Codec(Generic[ValueT, MessageT]):
    """Conversion between a dataclass or named tuple and its message. Thread-safe.

    Fields that a message of an older sender lacks have protobuf's defaults, nested messages too.
    Nothing else is checked; errors of converters are raised.

    Args:
        value: The dataclass.
        message: The message, each field of which must be in the dataclass.
        omit: Fields of the dataclass that are not sent; the last ones, with defaults.
        converters: Converters of single fields, by field name.
    """

    encode: Callable[[ValueT], MessageT]
    """Converts a value to a message.

    Raises ValueError for a number out of the field's range or invalid Unicode.
    """
    fields: Callable[[ValueT], Any]
    """Converts a value to a dictionary, in place of a nested message.

    A dictionary takes half the time: protobuf copies nested messages by serializing and parsing.
    """
    decode: Callable[[MessageT], ValueT]
    """Converts a message to a value; raises errors of converters."""

    def __init__(
        self,
        value: type[ValueT],
        message: type[MessageT],
        *,
        omit: Collection[str] = (),
        **converters: Convert,
    ) -> None:
        self.value = value
        self.message = message
        self._omit = omit
        self._converters = converters
        _by_dataclass[value] = self

    def __getattr__(self, name: Literal["encode", "fields", "decode"]) -> Callable[[Any], Any]:
        """Compile the functions on first use.

        Concurrent threads each compile them, with the same result: a lock could deadlock, since a
        codec uses those of nested values meanwhile.
        """
        if name not in ("encode", "fields", "decode"):
            raise AttributeError(name)
        self.encode, self.fields, self.decode = self._compiled()
        return getattr(self, name)

    def _compiled(self) -> tuple[Any, Any, Any]:
        """Return the functions of `encode`, `fields` and `decode`."""
        names: dict[str, Any] = {"message_type": self.message, "value_type": self.value}
        hints = get_type_hints(self.value)
        targets: dict[str, Any] = dict(self.message.DESCRIPTOR.fields_by_name)
        encoded: list[tuple[str, str]] = []
        decoded: list[str] = []
        for name in field_names(self.value):
            if name in self._omit:
                continue
            target = targets.pop(name, None) or targets.pop(f"{name}_us")
            converter = self._converters.get(name)
            encode, decode = _expressions(name, hints[name], target, converter, names)
            encoded.append((target.name, encode))
            decoded.append(decode)
        assert not targets, f"{self.value.__name__} lacks {sorted(targets)}"
        arguments = ", ".join(f"{name}={code}" for name, code in encoded)
        items = ", ".join(f"{name!r}: {code}" for name, code in encoded)
        source = (
            f"def encode(value): return message_type({arguments})\n"
            f"def fields(value): return {{{items}}}\n"
            f"def decode(message): return value_type({', '.join(decoded)})\n"
        )
        exec(compile(source, f"<codec of {self.value.__name__}>", "exec"), names)
        return names["encode"], names["fields"], names["decode"]


def field_names(kind: type[Any]) -> Sequence[str]:
    """Return the fields of a dataclass or a named tuple, in order."""
    return getattr(kind, "_fields", None) or [field.name for field in fields(kind)]


def _expressions(
    name: str,
    hint: Any,
    target: FieldDescriptor,
    converter: Convert | None,
    names: dict[str, Any],
) -> tuple[str, str]:
    """Return the code to encode a field of `value`, and the code to decode one of `message`."""
    optional = get_origin(hint) is UnionType
    if optional:
        (hint,) = (kind for kind in get_args(hint) if kind is not NoneType)
    repeated = get_origin(hint) is tuple
    if repeated:
        hint = get_args(hint)[0]
    nested = target.message_type is not None
    assert repeated == target.is_repeated, name
    assert optional == target.has_presence or (nested and not optional), name
    found = converter or converter_of(hint, target)

    def apply(function: Callable[[Any], Any] | None, operand: str) -> str:
        if function is None:
            return operand
        key = f"convert_{len(names)}"
        names[key] = function
        return f"{key}({operand})"

    value, message = f"value.{name}", f"message.{target.name}"
    if repeated:
        encode = f"[{apply(found.encode, 'each')} for each in {value}]"
        decode = f"tuple([{apply(found.decode, 'each')} for each in {message}])"
        return value if found.encode is None else encode, decode
    encode, decode = apply(found.encode, value), apply(found.decode, message)
    if found.decode_message is not None:
        decode = apply(found.decode_message, "message")
    if optional and found.encode is not None:
        encode = f"None if {value} is None else {encode}"
    if optional:
        decode = f"{decode} if message.HasField({target.name!r}) else None"
    return encode, decode


def codec_of(kind: object) -> "Codec[Any, Any] | None":
    """Return the codec of a dataclass."""
    return _by_dataclass.get(kind) if isinstance(kind, type) else None


def converter_of(hint: Any, target: FieldDescriptor) -> Convert:
    """Return the converter of a type for a field."""
    if hint in _by_type:
        return _by_type[hint]
    if hint in _by_dataclass:
        codec = _by_dataclass[hint]
        assert codec.message.DESCRIPTOR is target.message_type, target.full_name
        return Convert(codec.fields, codec.decode)
    kind = hint.__supertype__ if isinstance(hint, NewType) else hint
    assert kind in (str, int, float, bool, bytes), f"{target.full_name}: no converter for {kind}"
    return _UTF_8 if kind is str and target.type == target.TYPE_BYTES else _AS_IT_IS
