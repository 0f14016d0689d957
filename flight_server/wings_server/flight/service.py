"""The Flight service: every handler parses, calls one plain function, and translates.

pyarrow runs each call in a thread of its own, on C++ threads. `serve()` is never called: Python's
signal handlers would run only after the calls in flight end.
"""

import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.flight as flight

from wings_core import tracing
from wings_core.contracts.put import PutCommand
from wings_core.contracts.share import ShareEnd
from wings_core.contracts.sql import SqlTicket
from wings_core.contracts.tickets import AcquireTicket, BackupFiles, BackupRead, parse_ticket
from wings_core.errors import InvalidArgument, TopicNotFound, Unavailable, WingsError, suggested
from wings_core.fetch.fetcher import Cancel
from wings_core.log import Log
from wings_core.security.principal import Principal
from wings_core.security.quotas import CallUsage
from wings_core.times import Deadline
from wings_server import flight_sql
from wings_server.actions import ACTIONS, open_backup
from wings_server.flight.authentication import (
    MIDDLEWARE,
    Authentication,
    OpenHandshake,
    caller_of,
    room_of,
    span_of,
)
from wings_server.flight.boundary import flight_errors
from wings_server.flight.calls import ClientWatch, FlightConnections, Running
from wings_server.flight.do_get import (
    open_acquire,
    open_get,
    open_sql,
    stream,
    stream_acquired,
    stream_sql,
)
from wings_server.flight.do_put import Put, parse_descriptor, read
from wings_server.flight.info import get_info, get_schema, list_flights, parse_info_descriptor
from wings_server.flight.put_turns import Lookout
from wings_server.flight.share_ends import Admission, messages_of, open_stream, refuse
from wings_server.flight.share_loop import GroupLoops
from wings_server.flight.share_stream import ServedStream
from wings_server.flight_sql import is_flight_sql
from wings_server.gate import Gate, with_similar
from wings_server.metrics import Metrics
from wings_server.quotas import counted, using
from wings_server.resources import RPC_SHARE, connections_max
from wings_server.served_log import ServedLog, encoded
from wings_server.tls import Tls

if TYPE_CHECKING:
    from wings_server.flight_sql.ingest import PlainRows
    from wings_server.flight_sql.service import FlightSql

SHUTDOWN_SECONDS_MAX = 1.0
"""Longest wait for pyarrow's `shutdown`, which blocks while any stream is open."""

DRAIN_SECONDS_MAX = 2.0
"""How long a stop waits for members to acknowledge what they hold."""


class FlightService(flight.FlightServerBase):
    """A Flight server of a log, which serves from its construction on.

    Args:
        log: The log to serve; closed by its owner after `stop`.
        gate: Gate that checks the rights of callers.
        host: Address to listen on.
        port: Port to listen on; 0 for a free one, which `self.port` has.
        metrics: Counts what is done.
        addresses: Function that returns the `HOST:PORT` of all nodes of the log, this node first;
            none if it is the only one.
        tls: The certificate; None for no TLS on all nodes.
    """

    def __init__(
        self,
        log: ServedLog,
        gate: Gate,
        host: str,
        port: int,
        metrics: Metrics | None = None,
        addresses: Callable[[], Sequence[str]] = tuple,
        tls: Tls | None = None,
    ) -> None:
        self._log = log
        self._gate = gate
        self._scheme = "grpc" if tls is None else "grpc+tls"
        self._addresses = addresses
        self._metrics = metrics or Metrics()
        self._watch = ClientWatch()
        self._stopping = threading.Event()
        self._lookout = Lookout()
        self._share_streams = _ShareStreams()
        self._running = Running(log.limits.calls_running_max)
        self._failed = partial(self._metrics.failed, "flight")
        shown = f"[{host}]" if ":" in host else host
        super().__init__(
            f"{self._scheme}://{shown}:{port}",
            **({} if tls is None else tls.flight_options()),
            auth_handler=OpenHandshake(),
            middleware={MIDDLEWARE: Authentication(gate, log.memory, self._failed)},
        )
        self._connections = FlightConnections(
            self.port, connections_max(log.limits.flight_connections_max, RPC_SHARE)
        )

    def do_get(
        self, context: flight.ServerCallContext, ticket: flight.Ticket
    ) -> flight.FlightDataStream:
        """Stream the messages that a ticket reads or acquires."""
        with self._call("do_get", context) as (principal, _):
            if is_flight_sql(ticket.ticket):
                return self._run_flight_sql(ticket, context, principal)
            match parse_ticket(ticket.ticket):
                case SqlTicket() as asked:
                    return self._run_sql(asked, context, principal)
                case BackupFiles() | BackupRead() as asked:
                    self._gate.allow_backup(principal)
                    schema, opened = open_backup(self._log, asked)
                    chunks = self._stream(opened, principal, refuses=False)
                case AcquireTicket() as asked:
                    self._gate.allow(principal, "acquire", asked.topic)
                    acquire = open_acquire(self._log, asked)
                    schema = acquire.schema
                    opened = stream_acquired(acquire, context, self._watch, self._metrics)
                    # What was leased is sent, or its holder would wait for its lock to expire.
                    chunks = tracing.spread(
                        "stream", self._stream(opened, principal, refuses=False)
                    )
                case asked:
                    self._gate.allow(principal, "read", asked.topic)
                    get = open_get(self._log, asked)
                    schema = get.read.selection.schema
                    opened = stream(get, context, self._watch, self._metrics)
                    chunks = tracing.spread("stream", self._stream(opened, principal, refuses=True))
            return flight.GeneratorStream(schema, chunks)  # pyright: ignore[reportArgumentType] - the stubs know no metadata

    def do_put(
        self,
        context: flight.ServerCallContext,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.FlightMetadataWriter,
    ) -> None:
        """Commit a stream of batches, and answer each with a PutResult."""
        with self._call("do_put", context) as (principal, usage):
            if is_flight_sql(descriptor.command):
                named = caller_of(context).schema_name
                quotas = self._gate.push_quotas(principal, usage)

                def pushed(command: PutCommand, rows: "PlainRows", answers: Any) -> None:
                    put = Put(self._log, command, self._metrics, principal.ended, quotas)
                    put.run(rows, answers, self._stopping, room_of(context), self._lookout)

                bytes_max = self._log.limits.batch_bytes_max
                sent = (batch for batch, _, _ in read(reader, room_of(context), bytes_max))
                batches = (batch for batch in sent if batch is not None)
                answer = self._flight_sql.put(descriptor, reader, batches, principal, named, pushed)
                writer.write(pa.py_buffer(answer))
                return
            command = parse_descriptor(descriptor)
            self._gate.allow(principal, "push", command.topic)
            quotas = self._gate.push_quotas(principal, usage)
            uuid = caller_of(context).topic_uuid
            put = Put(self._log, command, self._metrics, principal.ended, quotas, uuid)
            put.run(reader, writer, self._stopping, room_of(context), self._lookout)

    def do_exchange(
        self,
        context: flight.ServerCallContext,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.MetadataRecordBatchWriter,
    ) -> None:
        """Deliver messages to a member of a share group, and take its acknowledgements."""
        with self._call("do_exchange", context) as (principal, usage):
            room_of(context).close()  # What comes after the first message is small.
            admission = Admission(
                lambda topic: self._gate.allow(principal, "acquire", topic), principal, usage
            )
            self._share_streams.serve(
                self._log, descriptor, reader, writer, self._metrics, admission
            )

    def get_flight_info(
        self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor
    ) -> flight.FlightInfo:
        """Return the tickets that read a topic."""
        with self._call("get_flight_info", context) as (principal, _):
            if is_flight_sql(descriptor.command):
                return self._sql_info(descriptor, context, principal)
            topic = parse_info_descriptor(descriptor).topic
            self._gate.allow(principal, "flight-info", topic)
            return get_info(self._log, descriptor, self._locations())

    def get_schema(  # pyright: ignore[reportIncompatibleMethodOverride] - the stubs say Schema
        self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor
    ) -> flight.SchemaResult:
        """Return a topic's schema."""
        with self._call("get_schema", context) as (principal, _):
            if is_flight_sql(descriptor.command):
                return flight.SchemaResult(self._sql_info(descriptor, context, principal).schema)
            topic = parse_info_descriptor(descriptor).topic
            self._gate.allow(principal, "schema", topic)
            return flight.SchemaResult(get_schema(self._log, descriptor))

    def list_flights(  # pyright: ignore[reportIncompatibleMethodOverride] - the stubs say str
        self, context: flight.ServerCallContext, criteria: bytes
    ) -> Iterator[flight.FlightInfo]:
        """Yield the topics that match the criteria, in order of name."""
        with self._call("list_flights", context) as (principal, _):
            found = list_flights(self._log, criteria, self._locations(), principal)
            return iter(list(found))

    def list_actions(  # pyright: ignore[reportIncompatibleMethodOverride] - the stubs say Action
        self, context: flight.ServerCallContext
    ) -> list[tuple[str, str]]:
        """Return the names of the actions and their descriptions."""
        ours = [(name, action.description) for name, action in ACTIONS.items()]
        return [*ours, *flight_sql.ACTIONS.items()]

    def do_action(
        self, context: flight.ServerCallContext, action: flight.Action
    ) -> Iterator[bytes]:
        """Run an action, and yield its answer as JSON."""
        with self._call("do_action", context) as (principal, _):
            if action.type in flight_sql.ACTIONS:
                raw, named = action.body.to_pybytes(), caller_of(context).schema_name
                with self._planning(context) as cancel:
                    result = self._flight_sql.act(action.type, raw, principal, named, cancel)
                return iter([result] if result else [])
            found = ACTIONS.get(action.type)
            if found is None:
                hint = suggested(action.type, ACTIONS)
                raise InvalidArgument(f"there is no action {action.type!r:.80}{hint}")
            body = found.body.parse_body(action.body.to_pybytes())
            answer = self._gate.run(principal, action.type, body, caller_of(context).secret)
            return iter([encoded(answer)])

    @property
    def calls_running(self) -> int:
        """Number of running calls, including waiting polls."""
        return self._running.calls

    def stop(self, drain_seconds: float) -> None:
        """Stop serving; blocks up to `drain_seconds`, and a little for the transport.

        New calls and batches are refused with UNAVAILABLE, waiting polls end with it, and calls
        that are under way are waited for. What was received is committed and acknowledged, or
        refused. A stream that is open and idle does not hold up the stop.
        """
        self._stopping.set()
        self._log.memory.stop(Unavailable("the server is stopping"))
        self._watch.stop(Unavailable("the server is stopping"))
        self._share_streams.stop(drain_seconds)
        self._running.drain(drain_seconds, lambda: self._log.group_commit.pending_bytes == 0)
        # Joined with a bound: an open, idle DoPut stream would hold it for ever (measured).
        closing = threading.Thread(target=self.shutdown, name="wings-shutdown", daemon=True)
        closing.start()
        closing.join(SHUTDOWN_SECONDS_MAX)
        self._watch.join()
        self._lookout.stop()
        self._connections.stop()

    @cached_property
    def _flight_sql(self) -> "FlightSql":
        from wings_server.flight_sql.service import FlightSql  # Loads Protocol Buffers.

        # One, though several first calls may get here: it knows what runs.
        return vars(self).setdefault("_flight_sql", FlightSql(self._log, self._gate))

    def _locations(self) -> list[str]:
        return [f"{self._scheme}://{address}" for address in self._addresses()]

    @contextmanager
    def _call(
        self, name: str, context: flight.ServerCallContext
    ) -> Generator[tuple[Principal, CallUsage | None]]:
        """Count a call and translate its errors; yields its principal, and the usage of quotas."""
        with flight_errors(name, self._failed), span_of(context):
            if self._stopping.is_set():
                raise Unavailable("the server is stopping")
            principal = caller_of(context).principal
            try:
                with self._running.one(), using(principal) as usage:
                    yield principal, usage
            except TopicNotFound as error:
                raise with_similar(self._log.admin, principal, error) from None

    @contextmanager
    def _planning(self, context: flight.ServerCallContext) -> Generator[Cancel]:
        """Watch the client while a statement waits or is planned, which may take seconds."""
        cancel = Cancel()
        with self._watch.watched(context, cancel):
            yield cancel

    def _sql_info(
        self,
        descriptor: flight.FlightDescriptor,
        context: flight.ServerCallContext,
        principal: Principal,
    ) -> flight.FlightInfo:
        named = caller_of(context).schema_name
        with self._planning(context) as cancel:
            return self._flight_sql.info(descriptor, principal, named, cancel)

    def _run_sql(
        self, asked: SqlTicket, context: flight.ServerCallContext, principal: Principal
    ) -> flight.FlightDataStream:
        allow = partial(self._gate.allow, principal, "sql")
        with self._planning(context) as cancel:
            query = open_sql(self._log, asked, allow, principal, cancel)
        opened = stream_sql(query, cancel, context, self._watch, self._metrics)
        chunks = tracing.spread("stream", self._stream(opened, principal, refuses=True))
        return flight.GeneratorStream(query.schema, chunks)  # pyright: ignore[reportArgumentType] - the stubs know no metadata

    def _run_flight_sql(
        self, ticket: flight.Ticket, context: flight.ServerCallContext, principal: Principal
    ) -> flight.FlightDataStream:
        with self._planning(context) as cancel:
            opened = self._flight_sql.open(ticket.ticket, principal, cancel)
        if isinstance(opened, pa.Table):
            return flight.RecordBatchStream(opened)
        rows = stream_sql(opened, cancel, context, self._watch, self._metrics)
        chunks = self._stream(rows, principal, refuses=True)
        return flight.GeneratorStream(opened.schema, chunks)  # pyright: ignore[reportArgumentType] - the stubs know no metadata

    def _stream(
        self,
        opened: Generator[tuple[pa.RecordBatch, bytes]],
        principal: Principal,
        *,
        refuses: bool,
    ) -> Iterator[tuple[pa.RecordBatch, bytes]]:
        # Counted here, as the stream outlives the handler.
        with (
            flight_errors("do_get", self._failed),
            self._running.one(),
            using(principal) as usage,
        ):
            self._metrics.fetch_begun("flight")
            # Closed with this generator, so that the call is no longer watched when it ends.
            with closing(opened) as chunks:
                if usage is None:
                    yield from chunks
                else:
                    yield from counted(chunks, usage, refuses=refuses)


class _ShareStreams:
    """The share streams of a server; all methods from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: set[ServedStream] = set()
        self._loops = GroupLoops()

    def serve(
        self,
        log: Log,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.MetadataRecordBatchWriter,
        metrics: Metrics,
        admission: Admission,
    ) -> None:
        """Serve a stream until its client has ended its side; blocks for as long as that takes."""
        try:
            opened = open_stream(log, descriptor, admission)
        except WingsError as error:
            metrics.failed("flight", error.code)
            refuse(writer, error)
        else:
            with self._loops.joined(log.shares.coordinator, opened.group) as loop:
                stream = ServedStream(log, opened, writer, metrics, admission, loop)
                with self._lock:
                    self._open.add(stream)
                try:
                    stream.run(reader)
                finally:
                    with self._lock:
                        self._open.discard(stream)
        for _ in messages_of(reader):
            pass  # It waits for the client to end its side.

    def stop(self, drain_seconds: float) -> None:
        """End all streams in order; their clients are told, and what they hold is released.

        Before that nothing more is delivered, and their members have `drain_seconds`, at most
        `DRAIN_SECONDS_MAX`, to acknowledge what they hold. Blocks meanwhile.
        """
        with self._lock:
            streams = list(self._open)
        for each in streams:
            each.drain()
        deadline = Deadline.after(min(drain_seconds, DRAIN_SECONDS_MAX))
        for each in streams:
            each.wait_until_free(deadline)
        for each in streams:
            each.end(ShareEnd(None, "the server is stopping"))
