"""Messages of Flight SQL on the wire, and the handles of statements in them.

A message is packed in an Any, which names its type. Handles are self-contained, so that any process
of the log can run them.

A handle includes the values of its parameters, and the types that drivers send them as.
"""

import base64
import secrets
import uuid
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Annotated, Any, TypeVar, cast

import pyarrow as pa
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import DecodeError
from google.protobuf.message import Message as ProtoMessage
from pydantic import Field

from wings_core.contracts.messages import JSON_BYTES_MAX, Message, to_bytes
from wings_core.errors import InvalidArgument
from wings_core.names import DEFAULT_NAMESPACE, NamespaceName
from wings_core.protocol.flight_sql import flight_sql_pb2 as pb
from wings_server.flight_sql import PREFIX

M = TypeVar("M", bound=ProtoMessage)

PARAMETER_BYTES_MAX = 1024 * 1024
"""Most bytes of the values of a statement's parameters, in Arrow."""

_MICROSECOND = timedelta(microseconds=1)

_READ: Mapping[str, Callable[[str], Any]] = {
    "NoneType": lambda _: None,
    "bool": lambda text: text == "True",
    "int": int,
    "float": float,
    "str": str,
    "bytes": base64.b64decode,
    "Decimal": Decimal,
    "datetime": datetime.fromisoformat,
    "date": date.fromisoformat,
    "time": time.fromisoformat,
    "timedelta": lambda text: int(text) * _MICROSECOND,
    "UUID": uuid.UUID,
}
"""Parsers of a parameter's text, by the name of its Python type."""


class Handle(Message):
    """A statement, its parameters, and its default namespace."""

    sql: str
    namespace: str | None = None
    parameters: Annotated[
        tuple[Annotated[tuple[str, str], Field(strict=False)], ...], Field(strict=False)
    ] = ()
    """Type and text of each value, in order. Not Arrow data, since a client may send any handle,
    and the size of compressed data is only known once it is decompressed."""
    run: str = Field(default_factory=lambda: secrets.token_hex(8))
    """Id of the run, by which it is cancelled."""

    @classmethod
    def of(cls, raw: bytes) -> "Handle":
        """Parse a handle.

        Raises:
            InvalidArgument: The bytes are not a handle.
        """
        return cls.parse(raw, InvalidArgument, "statement handle")

    @property
    def default_namespace(self) -> NamespaceName:
        """Namespace of unqualified tables."""
        if self.namespace is None:
            return DEFAULT_NAMESPACE
        return NamespaceName.parse(self.namespace)

    @property
    def values(self) -> list[Any]:
        """Values of the parameters, in order.

        Raises:
            InvalidArgument: The handle was not made by `bound`.
        """
        try:
            return [_READ[kind](text) for kind, text in self.parameters]
        except (ArithmeticError, LookupError, ValueError):
            raise InvalidArgument("statement handle: a bad value of a parameter") from None

    def bound(self, batches: Iterable[pa.RecordBatch]) -> "Handle":
        """Return a handle with the values of `batches`.

        Args:
            batches: A single row, in any number of untrusted batches; reading stops at a second
                row.

        Raises:
            InvalidArgument: The data is not a single row, too large, invalid, or of a type that a
                parameter cannot have; or a time is finer than microseconds, Python's resolution.
        """
        found: pa.RecordBatch | None = None
        for batch in batches:
            if batch.num_rows > (found is None):
                rows = batch.num_rows + (found is not None)
                raise InvalidArgument(f"a statement takes one row of parameters; got {rows}")
            found = batch if batch.num_rows else found
        if found is None:
            raise InvalidArgument("a statement takes one row of parameters; got 0")
        try:
            found.validate(full=True)  # Before counting its bytes, which reads its offsets.
            if found.nbytes > PARAMETER_BYTES_MAX:
                raise InvalidArgument(f"parameters have at most {PARAMETER_BYTES_MAX} bytes")
            values = tuple(_text(column) for column in cast("Any", found).columns)
        except (pa.ArrowException, ArithmeticError, LookupError, ValueError) as error:
            raise InvalidArgument(f"a parameter: {error!s:.200}; send it as a text") from None
        return self.model_copy(update={"parameters": values, "run": secrets.token_hex(8)})

    def to_bytes(self) -> bytes:
        """Return the handle's bytes for clients."""
        return self.model_dump_json(exclude_none=True).encode()


def _text(column: Any) -> tuple[str, str]:
    """Return the type and the text of a column's only value."""
    kind = column.type
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        kind = kind.value_type
    nested = pa.types.is_nested(kind) or isinstance(kind, pa.BaseExtensionType)
    if nested and kind != cast("Any", pa).uuid():
        raise ValueError(f"it cannot be of type {kind!s:.80}")
    value = _in_microseconds(column)[0].as_py()
    name = type(value).__name__
    if isinstance(value, bytes):
        return name, base64.b64encode(value).decode("ascii")
    if isinstance(value, (date, time)):
        return name, value.isoformat()
    return name, str(value // _MICROSECOND if isinstance(value, timedelta) else value)


def _in_microseconds(column: Any) -> Any:
    """Convert a column of times to microseconds, Python's resolution; others are unchanged."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        return column.cast(pa.timestamp("us", kind.tz))
    if pa.types.is_time(kind):
        return column.cast(pa.time64("us"))
    return column.cast(pa.duration("us")) if pa.types.is_duration(kind) else column


_DAY = date(2000, 1, 1)


_SAMPLES: dict[str, Any] = {
    "int64": 0,
    "double": 0.0,
    "bool": False,
    "string": "",
    "binary": b"",
    "date32[day]": _DAY,
    "time32[ms]": time(),
}


def sent_as(compared: pa.DataType) -> pa.DataType:
    """Return the type for values that are compared with a column of type `compared`.

    Arrow's JDBC driver converts to the given type silently, a long to int32 for example, so the
    types hold all values of JDBC's.
    """
    of = pa.types
    if of.is_integer(compared):
        return pa.int64()
    if of.is_decimal(compared):
        return compared if compared.scale else pa.int64()
    if of.is_floating(compared):
        return pa.float64()
    if of.is_boolean(compared):
        return pa.bool_()
    if of.is_binary(compared) or of.is_large_binary(compared):
        return pa.binary()
    if of.is_date(compared):
        return pa.date32()
    if of.is_time(compared):
        return pa.time32("ms")
    return pa.timestamp("ms", compared.tz) if of.is_timestamp(compared) else pa.string()


def sample_of(parameters: pa.Schema) -> pa.RecordBatch:
    """Return a row of sample values for these parameters."""
    values = [[_sample(field.type)] for field in parameters]
    arrays = [pa.array(each, field.type) for each, field in zip(values, parameters, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=parameters)


def _sample(kind: Any) -> Any:
    if pa.types.is_decimal(kind):
        return Decimal(0).scaleb(-kind.scale)
    if pa.types.is_timestamp(kind):
        zone = None if kind.tz is None else UTC
        return datetime.combine(_DAY, time(), zone)
    return _SAMPLES[str(kind)]


def unpack(raw: "bytes | pa.Buffer | None") -> ProtoMessage:
    """Return the message in an Any.

    Raises:
        InvalidArgument: The bytes are not such a message, or it is not supported, or too long.
    """
    if raw is not None and memoryview(raw).nbytes > JSON_BYTES_MAX:
        raise InvalidArgument(f"a message of Flight SQL has at most {JSON_BYTES_MAX} bytes")
    packed = AnyMessage()
    try:
        packed.ParseFromString(to_bytes(raw))
        name = packed.type_url.removeprefix(PREFIX)
        if name not in pb.DESCRIPTOR.message_types_by_name or name == packed.type_url:
            raise InvalidArgument(f"Flight SQL's {name!r:.80} is not supported")
        found: ProtoMessage = getattr(pb, name)()
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


def pack(message: ProtoMessage) -> bytes:
    """Return a message in an Any."""
    packed = AnyMessage()
    packed.Pack(message)
    return packed.SerializeToString()
