"""Handles of statements: all that is known of one, so that any process of the log can run it."""

import base64
import secrets
from typing import Any, cast

import pyarrow as pa
from pydantic import Field

from wings_core.contracts.messages import Message
from wings_core.errors import InvalidArgument
from wings_core.names import DEFAULT_NAMESPACE, NamespaceName

PARAMETER_BYTES_MAX = 1024 * 1024
"""Bytes of the values of a statement's parameters, as Arrow has them."""


class Handle(Message):
    """A statement, what its parameters stand for, and where its tables are looked for."""

    sql: str
    namespace: str | None = None
    parameters: str | None = None
    """A batch of one row in base64, as an IPC stream."""
    run: str = Field(default_factory=lambda: secrets.token_hex(8))
    """Which run of it, to cancel it by."""

    @classmethod
    def of(cls, raw: bytes) -> "Handle":
        """Parse a handle.

        Raises:
            InvalidArgument: It is none.
        """
        return cls.parse(raw, InvalidArgument, "statement handle")

    @property
    def default_namespace(self) -> NamespaceName:
        """The namespace of tables named without a schema."""
        if self.namespace is None:
            return DEFAULT_NAMESPACE
        return NamespaceName.parse(self.namespace)

    @property
    def values(self) -> list[Any]:
        """The values of the parameters, in order.

        Raises:
            InvalidArgument: A time is finer than microseconds, which Python's are not.
        """
        if self.parameters is None:
            return []
        with pa.ipc.open_stream(base64.b64decode(self.parameters)) as reader:
            table = reader.read_all()
        try:
            return [_in_microseconds(column)[0].as_py() for column in cast("Any", table).columns]
        except pa.ArrowInvalid as error:
            raise InvalidArgument(f"a parameter: {error!s:.200}; send it as a text") from None

    def bound(self, rows: pa.Table) -> "Handle":
        """Return the handle of the statement with these values.

        Raises:
            InvalidArgument: They are not one row, or too many bytes.
        """
        if rows.num_columns == 0:
            return self
        if rows.num_rows != 1:
            raise InvalidArgument(f"a statement takes one row of parameters; got {rows.num_rows}")
        if rows.nbytes > PARAMETER_BYTES_MAX:
            raise InvalidArgument(f"parameters have at most {PARAMETER_BYTES_MAX} bytes")
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_table(rows)
        text = base64.b64encode(sink.getvalue().to_pybytes()).decode("ascii")
        return self.model_copy(update={"parameters": text, "run": secrets.token_hex(8)})

    def to_bytes(self) -> bytes:
        """Return the handle as a client keeps it."""
        return self.model_dump_json(exclude_none=True).encode()


def _in_microseconds(column: Any) -> Any:
    """Return a column of times as Python has them, any other as it is."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        return column.cast(pa.timestamp("us", kind.tz))
    if pa.types.is_time(kind):
        return column.cast(pa.time64("us"))
    return column.cast(pa.duration("us")) if pa.types.is_duration(kind) else column
