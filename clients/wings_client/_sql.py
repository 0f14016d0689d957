"""SQL over topics: a statement's rows, as they come."""

import base64
import datetime
import decimal
import math
import uuid
from collections.abc import Generator, Mapping, Sequence
from typing import Any, cast

import pyarrow as pa

from wings_client._arguments import build
from wings_client._cancellation import interruptible
from wings_client._errors import call_errors, client_closed, typed_error
from wings_client._results import Read
from wings_client._rows import frame_table, is_pandas
from wings_client._stream import OpenStream, Reading, StreamCancelled
from wings_client._transport import Transport
from wings_client.arrow import RecordBatch, RecordBatchReader
from wings_core.contracts.sql import SqlTicket
from wings_core.errors import InvalidArgument, InvalidTicket, ResourceExhausted

SqlParameters = Sequence[Any] | Mapping[str, Any]
"""Values by position, for `?` and `$1`, or by name, for `$name`."""

SqlTables = Mapping[str, Any]
"""Tables for a statement, by name: of Arrow, a data frame, columns by name, or rows as dicts."""

TABLES_BYTES_MAX = 3 << 20
"""Bytes of all tables of a statement, as they are sent."""

SECONDS_MAX = 86_400.0
"""How long a statement without a timeout may take here; the server's bound is shorter."""


class SqlRead(Read):
    """A statement that runs on the server.

    Args:
        transport: To the server.
        ticket: The statement.
    """

    kind = "statement"

    def __init__(self, transport: Transport, ticket: SqlTicket) -> None:
        self._transport = transport
        self._reading = Reading(transport)
        seconds = SECONDS_MAX if ticket.seconds_max is None else ticket.seconds_max

        def opened(left: float) -> OpenStream | ResourceExhausted:
            del left  # Of the call alone: the statement has a time of its own.
            try:
                return self._reading.open(ticket.to_bytes(), seconds + transport.timeout)
            except ResourceExhausted as error:
                return error  # It would be again: a statement that waited has waited long.

        try:
            found = transport.repeat(opened, repeatable=True)
        except StreamCancelled:
            raise client_closed(transport.endpoint) from None
        if isinstance(found, ResourceExhausted):
            raise found
        self._stream = found
        self.schema = self._stream.schema

    def batches(self) -> Generator[RecordBatch]:
        """Yield the rows; closing the generator ends the statement on the server.

        Raises:
            WingsError: What the statement failed with; `Unavailable` where the connection broke.
        """
        reader = self._stream.reader
        try:
            with interruptible(reader, waits_long=True) as read_chunk:
                while True:
                    self._transport.check_process()
                    try:
                        batch = cast("RecordBatch | None", read_chunk().data)
                    except StopIteration:
                        return
                    if batch is not None:
                        yield batch
        except call_errors() as error:
            if self._reading.is_cancelled:
                raise client_closed(self._stream.endpoint) from None
            raise typed_error(error, self._stream.endpoint) from error
        finally:
            self._reading.done()

    def cancel(self) -> None:
        """End the statement; from any thread."""
        self._reading.cancel()


def ticket_of(
    text: str,
    parameters: SqlParameters,
    namespace: str | None,
    timeout: float | None,
    tables: SqlTables | None = None,
) -> SqlTicket:
    """Return the ticket of a statement.

    Raises:
        InvalidTicket: A value is of a type that it cannot have, or the tables are too long.
        InvalidArgument: A table is none.
    """
    given: Any
    if isinstance(parameters, Mapping):
        given = {name: _wire(value) for name, value in parameters.items()}
    else:
        given = tuple(_wire(value) for value in parameters)
    keys: dict[str, Any] = {"namespace": namespace}
    if tables:
        keys["tables"] = {name: _stream(name, table) for name, table in tables.items()}
        if sum(map(len, keys["tables"].values())) > TABLES_BYTES_MAX:
            raise InvalidTicket(
                f"tables: together at most {TABLES_BYTES_MAX} bytes, compressed and in base64: "
                "push larger ones to a topic"
            )
    if timeout is not None:
        keys["timeout_ms"] = max(1, round(timeout * 1000))
    return build(SqlTicket, "sql", error=InvalidTicket, sql=text, parameters=given, **keys)


def _stream(name: str, table: Any) -> str:
    """Return a table as an IPC stream in base64."""
    try:
        if isinstance(table, Mapping):
            table = pa.table(cast("Any", table))
        elif is_pandas(table, "DataFrame"):
            table = frame_table(table)
        elif isinstance(table, list):
            table = pa.Table.from_pylist(cast("Any", table))
        reader = RecordBatchReader.from_stream(table)
    except (InvalidArgument, pa.ArrowException, AttributeError, TypeError, ValueError) as error:
        raise InvalidArgument(f"tables: {name!r:.80} is no table: {error!s:.200}") from None
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, reader.schema, options=options) as writer:
        for batch in reader:
            writer.write_batch(batch)
            if sink.tell() > TABLES_BYTES_MAX:
                break  # The caller refuses it.
    return base64.b64encode(sink.getvalue()).decode("ascii")


def _wire(value: Any) -> Any:
    """Return a value as JSON has it: what JSON lacks as a text, which SQL compares as the value."""
    if isinstance(value, datetime.datetime):
        return value.isoformat(" ")
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, (decimal.Decimal, uuid.UUID)):
        return str(value)
    if isinstance(value, (bytes, bytearray)):
        return "".join(f"\\x{byte:02X}" for byte in value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    raise InvalidArgument(f"a parameter cannot be {value!r:.80} ({type(value).__name__})")
