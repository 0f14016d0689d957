"""The calls of Flight SQL: each unpacks its message, calls one plain function, and packs."""

# CancelQuery is deprecated: newer clients cancel by Flight itself.
# pyright: reportDeprecated=false

import contextlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

import pyarrow as pa
import pyarrow.flight as flight

from wings_core.contracts.put import PutCommand
from wings_core.errors import (
    InvalidArgument,
    InvalidSql,
    ResourceExhausted,
    SchemaMismatch,
    Unavailable,
)
from wings_core.fetch.fetcher import Cancel
from wings_core.names import NamespaceName, TopicName
from wings_core.protocol.flight_sql import flight_sql_pb2 as pb
from wings_core.security.principal import Principal
from wings_core.sql import Query
from wings_core.sql.statement import namespace_of
from wings_server.flight.do_put import schema_of
from wings_server.flight_sql.catalog import table_of
from wings_server.flight_sql.ingest import CountedRows, PlainRows, creation_of, ingest_topic
from wings_server.flight_sql.messages import Handle, pack, sample_of, sent_as, unpack, unpack_as
from wings_server.gate import Gate
from wings_server.served_log import ServedLog

PutRows = Callable[[PutCommand, PlainRows, Any], None]
"""Pushes rows; the last argument receives the results."""


class FlightSql:
    """Flight SQL over a log. Thread-safe.

    Args:
        log: The log.
        gate: Authorizes callers.
    """

    def __init__(self, log: ServedLog, gate: Gate) -> None:
        self._log = log
        self._gate = gate
        self._runs: WeakValueDictionary[str, Cancel] = WeakValueDictionary()
        """Cancellations by run, planning included, while their calls hold them."""

    def info(
        self,
        descriptor: flight.FlightDescriptor,
        principal: Principal,
        schema_name: str | None,
        cancel: Cancel,
    ) -> flight.FlightInfo:
        """Return the ticket and the schema for a command.

        Args:
            descriptor: Descriptor with the command.
            principal: The caller.
            schema_name: The connection's default schema; None for that of the default namespace.
            cancel: Cancels the planning of a statement.
        """
        command = unpack(descriptor.command)
        table = table_of(command, self._log, principal)
        if table is not None:
            return _info(table.schema, descriptor, descriptor.command, table.num_rows)
        if isinstance(command, pb.CommandStatementQuery):
            _check_transaction(command)
            handle = Handle(sql=command.query, namespace=_namespace(schema_name))
        elif isinstance(command, pb.CommandPreparedStatementQuery):
            handle = Handle.of(command.prepared_statement_handle)
        else:
            raise InvalidArgument(f"{type(command).__name__} is not supported by GetFlightInfo")
        schema = self._schema(handle, principal, cancel)
        ticket = pack(pb.TicketStatementQuery(statement_handle=handle.to_bytes()))
        return _info(schema, descriptor, ticket, -1)

    def open(
        self, ticket: "bytes | pa.Buffer", principal: Principal, cancel: Cancel
    ) -> "Query | pa.Table":
        """Return a ticket's query, or its rows of the catalog.

        `CancelQuery` ends it through `cancel`, even during planning.
        """
        command = unpack(ticket)
        table = table_of(command, self._log, principal)
        if table is not None:
            return table
        if isinstance(command, pb.TicketStatementQuery):
            handle = Handle.of(command.statement_handle)
        else:
            prepared = unpack_as(ticket, pb.CommandPreparedStatementQuery)
            handle = Handle.of(prepared.prepared_statement_handle)
        self._runs[handle.run] = cancel
        return self._query(handle, principal, cancel)

    def act(
        self,
        name: str,
        body: bytes,
        principal: Principal,
        schema_name: str | None,
        cancel: Cancel,
    ) -> bytes:
        """Run one of `ACTIONS`; returns its result, empty for none."""
        if name == "CreatePreparedStatement":
            asked = unpack_as(body, pb.ActionCreatePreparedStatementRequest)
            _check_transaction(asked)
            return self._prepare(asked.query, principal, schema_name, cancel)
        if name == "ClosePreparedStatement":
            unpack_as(body, pb.ActionClosePreparedStatementRequest)
            return b""
        return self._cancel(unpack_as(body, pb.ActionCancelQueryRequest).info)

    def put(
        self,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        batches: Iterable[pa.RecordBatch],
        principal: Principal,
        schema_name: str | None,
        push: PutRows,
    ) -> bytes:
        """Bind parameters or push rows; returns the response.

        Args:
            descriptor: Descriptor with the command.
            reader: The call's stream.
            batches: Its batches, read lazily.
            principal: The caller.
            schema_name: See `info`.
            push: Pushes the rows of an ingest.

        Raises:
            InvalidSql: The statement would write.
        """
        command = unpack(descriptor.command)
        if isinstance(command, pb.CommandPreparedStatementQuery):
            handle = Handle.of(command.prepared_statement_handle)
            if schema_of(reader).names:
                handle = handle.bound(batches)
            answer = pb.DoPutPreparedStatementResult(prepared_statement_handle=handle.to_bytes())
            return answer.SerializeToString()
        if not isinstance(command, pb.CommandStatementIngest):
            raise InvalidSql("SQL reads topics: push rows, or ingest them in bulk")
        name = _namespace(schema_name)
        topic = ingest_topic(command, NamespaceName.parse(name or _DEFAULT))
        creation = creation_of(command, topic, schema_of(reader))
        if creation is not None:
            self._gate.run(principal, "create-topic", creation)
        self._gate.allow(principal, "push", str(topic))
        counted = CountedRows()
        push(PutCommand(topic=str(topic)), self._plain_rows(topic, reader), counted)
        return pb.DoPutUpdateResult(record_count=counted.rows).SerializeToString()

    def _plain_rows(self, name: TopicName, reader: flight.MetadataRecordBatchReader) -> PlainRows:
        topic, bytes_max = self._log.admin.get_topic(name), self._log.limits.batch_bytes_max
        try:
            return PlainRows(reader, topic.schema, bytes_max)
        except SchemaMismatch:
            # Another node may have created a later schema version.
            return PlainRows(reader, self._log.versions.look_again(topic).schema, bytes_max)

    def _query(self, handle: Handle, principal: Principal, cancel: Cancel) -> Query:
        allow = partial(self._gate.allow, principal, "sql")
        return self._log.sql.open(
            handle.sql,
            allow,
            handle.values,
            handle.default_namespace,
            cancel,
            principal=principal,
        )

    def _schema(self, handle: Handle, principal: Principal, cancel: Cancel) -> pa.Schema:
        with closing(self._query(handle, principal, cancel)) as query:
            return query.schema

    def _prepare(
        self, text: str, principal: Principal, schema_name: str | None, cancel: Cancel
    ) -> bytes:
        handle = Handle(sql=text, namespace=_namespace(schema_name))
        peers = self._log.sql.parameters(text, cancel)
        types = self._types([peer.query for peer in peers], handle, principal, cancel)
        parameters = pa.schema(
            [pa.field(peer.name, kind) for peer, kind in zip(peers, types, strict=True)]
        )
        result = pb.ActionCreatePreparedStatementResult(
            prepared_statement_handle=handle.to_bytes(),
            parameter_schema=parameters.serialize().to_pybytes(),
        )
        if peers:
            handle = handle.bound([sample_of(parameters)])
        # Sample values may be invalid for a statement, such as an empty time format.
        with contextlib.suppress(InvalidSql) if peers else contextlib.nullcontext():
            result.dataset_schema = self._schema(handle, principal, cancel).serialize().to_pybytes()
        return pack(result)

    def _types(
        self, queries: Sequence[str | None], of: Handle, principal: Principal, cancel: Cancel
    ) -> list[pa.DataType]:
        """Return the types for values that are compared with the column of each query."""
        known = list(dict.fromkeys(query for query in queries if query is not None))
        text = f"SELECT {', '.join(f'({query})' for query in known)}"
        found: dict[str | None, pa.DataType] = {}
        # For example a correlated query, or too many: values are then sent as texts.
        with contextlib.suppress(InvalidSql, ResourceExhausted):
            if known:
                schema = self._schema(of.model_copy(update={"sql": text}), principal, cancel)
                found = dict(zip(known, map(sent_as, schema.types), strict=True))
        return [found.get(query, pa.string()) for query in queries]

    def _cancel(self, raw: bytes) -> bytes:
        try:
            info = flight.FlightInfo.deserialize(raw)
        except (pa.ArrowException, ValueError):
            raise InvalidArgument("CancelQuery is of no FlightInfo") from None
        outcome = pb.ActionCancelQueryResult.CANCEL_RESULT_NOT_CANCELLABLE
        for endpoint in info.endpoints:
            ticket = unpack_as(endpoint.ticket.ticket, pb.TicketStatementQuery)
            cancel = self._runs.get(Handle.of(ticket.statement_handle).run)
            if cancel is not None:
                cancel.cancel(Unavailable("the query was cancelled"))
                outcome = pb.ActionCancelQueryResult.CANCEL_RESULT_CANCELLED
        return pack(pb.ActionCancelQueryResult(result=outcome))


_DEFAULT = "tenants/default/namespaces/default"


def _namespace(schema_name: str | None) -> str | None:
    """Return the full name of the namespace that a connection names, if it does."""
    if not schema_name:
        return None
    if schema_name.startswith("tenants/"):
        return str(NamespaceName.parse(schema_name))
    return str(namespace_of(schema_name))


def _check_transaction(command: Any) -> None:
    if command.HasField("transaction_id") and command.transaction_id:
        raise InvalidArgument("there are no transactions")


def _info(
    schema: pa.Schema,
    descriptor: flight.FlightDescriptor,
    ticket: "bytes | pa.Buffer | None",
    records: int,
) -> flight.FlightInfo:
    raw = ticket.to_pybytes() if isinstance(ticket, pa.Buffer) else ticket
    endpoint = flight.FlightEndpoint(flight.Ticket(raw or b""), [])
    return flight.FlightInfo(schema, descriptor, [endpoint], records, -1)
