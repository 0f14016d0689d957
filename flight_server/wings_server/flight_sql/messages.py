"""Messages of Flight SQL on the wire, each packed in an Any, which names its type."""

from typing import TypeVar

import pyarrow as pa
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import DecodeError, Message

from wings_core.contracts.messages import JSON_BYTES_MAX, to_bytes
from wings_core.errors import InvalidArgument
from wings_core.protocol.flight_sql import flight_sql_pb2 as pb

_PREFIX = "type.googleapis.com/arrow.flight.protocol.sql."
_MARK = _PREFIX.encode()

M = TypeVar("M", bound=Message)


def is_flight_sql(raw: "bytes | pa.Buffer | None") -> bool:
    """Return whether a command or ticket is a message of Flight SQL instead of JSON."""
    # After the field's number and length.
    return raw is not None and bytes(memoryview(raw)[:80]).find(_MARK) in (2, 3)


def unpack(raw: "bytes | pa.Buffer | None") -> Message:
    """Return the message in an Any.

    Raises:
        InvalidArgument: The bytes are not such a message, or it is not supported, or too long.
    """
    if raw is not None and memoryview(raw).nbytes > JSON_BYTES_MAX:
        raise InvalidArgument(f"a message of Flight SQL has at most {JSON_BYTES_MAX} bytes")
    packed = AnyMessage()
    try:
        packed.ParseFromString(to_bytes(raw))
        name = packed.type_url.removeprefix(_PREFIX)
        if name not in pb.DESCRIPTOR.message_types_by_name or name == packed.type_url:
            raise InvalidArgument(f"Flight SQL's {name!r:.80} is not supported")
        found: Message = getattr(pb, name)()
        found.ParseFromString(packed.value)
    except DecodeError:
        raise InvalidArgument("this is not a message of Flight SQL") from None
    return found


def unpack_as(raw: "bytes | pa.Buffer | None", cls: type[M]) -> M:
    """Return the message of one type in an Any.

    Raises:
        InvalidArgument: The message has another type.
    """
    found = unpack(raw)
    if not isinstance(found, cls):
        raise InvalidArgument(f"expected {cls.__name__}; got {type(found).__name__}")
    return found


def pack(message: Message) -> bytes:
    """Return a message in an Any."""
    packed = AnyMessage()
    packed.Pack(message)
    return packed.SerializeToString()
