"""Reading: the calls that fetch, scan, follow and query."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack, overload

from wings_client._admin import AdminCalls, TopicRef, check_which, is_from_end, name_of, which
from wings_client._arguments import OffsetValue, build, checked
from wings_client._chunks import Chunks, OnDataLoss, chunk_of
from wings_client._model import Chunk, FetchResult, PartitionValue, Topic
from wings_client._read_options import OffsetsValue, PartitionsValue, ReadKeywords, place
from wings_client._results import ReadResult
from wings_client._scan import Follow, ManyFollow, ScanRead, follow, plan
from wings_client._sql import SqlParameters, SqlRead, SqlTables
from wings_client._sql import ticket_of as ticket_of_sql
from wings_client._stream import TIMEOUT_MS_MIN, milliseconds, read_all
from wings_client._transport import Transport
from wings_client.arrow import Schema
from wings_core import tracing
from wings_core.contracts.info import InfoCommand
from wings_core.contracts.reads import ALL
from wings_core.contracts.tickets import (
    FETCH_TIMEOUT_SECONDS,
    FetchTicket,
    FollowTicket,
    ScanTicket,
)
from wings_core.errors import InvalidFilter, InvalidTicket, PartitionRequired, SchemaMismatch
from wings_core.partitions import any_partition_value
from wings_core.times import Deadline

if TYPE_CHECKING:
    from wings_client._lazy import Open


@checked
class ReadCalls(AdminCalls):
    """The calls of `Client` that read."""

    def fetch(
        self,
        topic: TopicRef,
        partition: PartitionValue = None,
        *,
        offset: OffsetsValue = "earliest",
        partitions: PartitionsValue | None = None,
        min_messages: int | None = None,
        max_messages: int | None = None,
        timeout: float | None = None,
        **options: Unpack[ReadKeywords],
    ) -> FetchResult:
        """Return messages from an offset, of one partition or many; waits until there are enough.

        Args:
            topic: The topic.
            partition: The partition value; None: `partitions`.
            offset: The first offset; a negative number counts from the end of each partition. Of
                many partitions also one for each, by partition value,
                like `FetchResult.next_offsets`; those not in it are read from their start.
            partitions: `"all"`, those born meanwhile too, or a list of values; None: all. Limits
                and the wait are those of the whole fetch.
            min_messages: Wait until this many are committed; None: 1.
            max_messages: Return no more than this; None: 10,000.
            timeout: Seconds to wait at most, up to 300; None: 0.5. 0 returns what is there.
            options: `columns`: names of the columns to return, in order, instead of all.
                `filter`: a SQL predicate over the topic's columns; the limits count the rows that
                pass it.
                `system_columns=True`: append `__offset` and `__timestamp`; of many partitions,
                before them `__partition`, the value's JSON text.
                `schema_version`: return the columns as in an earlier version of the schema.

        Raises:
            TopicNotFound: There is no such topic, or it was deleted during the wait.
            OffsetOutOfRange: The offset is below the log's start; fact `log_start_offset`.
            InvalidTicket: A bound is out of range, or a column unknown.
            InvalidFilter: Not one boolean expression over the topic's columns.
        """
        wait = FETCH_TIMEOUT_SECONDS if timeout is None else timeout

        def ticket(many: PartitionsValue | None) -> FetchTicket:
            return build(
                FetchTicket,
                "fetch",
                error=InvalidTicket,
                topic=name_of(topic),
                min_messages=min_messages,
                max_messages=max_messages,
                timeout_ms=ticket_timeout_ms(wait),
                **place(partition, many, offset),
                **options,
            )

        check_which(partition, partitions)
        if is_from_end(offset):
            many = which(self, topic, partition, partitions)

            def from_end(start: OffsetsValue) -> FetchResult:
                return self.fetch(
                    topic,
                    partition,
                    offset=start,
                    partitions=many,
                    min_messages=min_messages,
                    max_messages=max_messages,
                    timeout=timeout,
                    **options,
                )

            return self._begun((topic, partition, many, offset), from_end)
        keyed = isinstance(topic, Topic) and topic.partition_key is not None
        if partition is None and (partitions or keyed or isinstance(offset, Mapping)):
            return fetch(self._transport, ticket(partitions or ALL), wait)
        one = ticket(None)
        try:
            return fetch(self._transport, one, wait)
        except SchemaMismatch:
            if one.schema_version is not None:
                raise
            # The schema has grown during the wait: another stream reads all of it.
            return fetch(self._transport, one, wait)
        except PartitionRequired:  # Sooner known than by a look at the topic before each fetch.
            return fetch(self._transport, ticket(ALL), wait)

    def scan(
        self,
        topic: TopicRef,
        partition: PartitionValue = None,
        *,
        offset: OffsetValue = "earliest",
        end_offset: int | None = None,
        parallel: int = 1,
        partitions: PartitionsValue | None = None,
        **options: Unpack[ReadKeywords],
    ) -> ReadResult:
        """Read what is committed now, of one partition or of many, batch by batch.

        The range is fixed by the call; rows are read as they are asked for.

        Args:
            topic: The topic.
            partition: The partition value; None: `partitions`.
            offset: The first offset, in each partition; a negative number counts from its end.
            end_offset: The end, exclusive, in each partition; None: the end of the log now.
            parallel: How many streams to read at once, each on a thread. With 1, the rows of a
                partition come by offset; partitions are mixed. With more, batches come as they
                arrive: rows of one batch are in order of offset, batches are in none.
            partitions: `"all"` or a list of values; None: all. Few streams read many of them.
            options: `columns`: names of the columns to return, in order, instead of all.
                `filter`: a SQL predicate over the topic's columns.
                `system_columns=True`: append `__offset` and `__timestamp`; of many partitions,
                before them `__partition`, the value's JSON text.
                `schema_version`: return the columns as in an earlier version of the schema.

        Raises:
            TopicNotFound: There is no such topic.
            OffsetOutOfRange: The offset is below a log's start; fact `log_start_offset`. From
                `"earliest"` or a negative number on, what retention takes meanwhile is skipped.
            WingsError: Also while the result is read.
        """
        is_planned = not options.get("system_columns") and not is_from_end(offset)
        many = which(self, topic, partition, partitions, is_planned=is_planned)

        def planned(start: OffsetsValue) -> ReadResult:
            taken = many
            if isinstance(start, Mapping):
                # A plan takes no starts but those of a list.
                taken, start = (list(start), start) if start else (many, "earliest")
            command = scan_command(topic, place(partition, taken, start), end_offset, **options)
            return ReadResult(
                ScanRead(self._transport, command, parallel, skips_lost=is_from_end(offset))
            )

        return self._begun((topic, partition, many, offset), planned)

    def read(
        self,
        topic: TopicRef,
        offset: OffsetValue = "earliest",
        partition: PartitionValue = None,
        **options: Unpack[ReadKeywords],
    ) -> ReadResult:
        """Read from a start to what is committed now: the scan to begin with.

        `client.read("orders")` is all of it, `client.read("orders", -100)` the last 100 messages of
        each partition, `client.read("orders", "2026-11-20T12:00:00Z")` all from then on.

        Args:
            topic: The topic.
            offset: The first offset, in each partition.
            partition: The partition value; None: all.
            options: Options of `scan`.

        Raises:
            WingsError: As `scan`.
        """
        return self.scan(topic, partition, offset=offset, **options)

    def lazy(
        self,
        topic: TopicRef,
        offset: OffsetValue = "earliest",
        partition: PartitionValue = None,
        *,
        system_columns: bool = False,
    ) -> Any:
        """Return a lazy frame of Polars, which reads what a query needs when it is collected.

        Only the columns that it uses are sent, and of its predicates those that mean the same in
        SQL are evaluated on the server; Polars applies all of them again. Rows come batch by batch,
        and `head` ends the read. Each `collect` reads what is committed then, in the topic's
        present columns and types: a later value that these cannot hold is `SchemaMismatch`.

        Args:
            topic: The topic.
            offset: The first offset, as for `scan`.
            partition: The partition value; None: all.
            system_columns: Append `__offset` and `__timestamp`; of many partitions, before them
                `__partition`, the value's JSON text.

        Raises:
            ImportError: Polars is not installed.
            TopicNotFound: There is no such topic.
        """
        from wings_client._lazy import lazy_frame

        described, schema, open_scan = self._openable(topic, offset, partition, system_columns)
        return lazy_frame(described.id, schema, described.schema, open_scan)

    def dataset(
        self,
        topic: TopicRef,
        offset: OffsetValue = "earliest",
        partition: PartitionValue = None,
        *,
        system_columns: bool = False,
    ) -> Any:
        """Return a dataset of Arrow, of which DuckDB reads what a query needs.

        Give it a name, and use that as a table of `duckdb.sql`. Only the columns that a query uses
        are sent, and of its filter comparisons with numbers, texts and flags are evaluated on the
        server; Arrow applies all of it again. Each query reads what is committed then, like `lazy`
        in the topic's present columns and types.

        Args:
            topic: The topic.
            offset: The first offset, as for `scan`.
            partition: The partition value; None: all.
            system_columns: Append system columns, like `lazy`.

        Raises:
            TopicNotFound: There is no such topic.
        """
        from wings_client._dataset import TopicDataset

        described, schema, open_scan = self._openable(topic, offset, partition, system_columns)
        return TopicDataset(schema, described.schema, open_scan)

    def _openable(
        self, topic: TopicRef, offset: OffsetValue, partition: PartitionValue, system_columns: bool
    ) -> "tuple[Topic, Schema, Open]":
        """Return a topic, the schema of its rows, and what opens a scan for one query of them."""
        described = self.topic(name_of(topic))  # Anew: its schema may have grown.
        many = which(self, described, partition, None)
        where = place(partition, many, "latest")
        version = described.schema_version  # Rows that come later fit it, or are an error.
        command = scan_command(
            described, where, system_columns=system_columns, schema_version=version
        )
        schema, _ = plan(self._transport, command)

        def open_scan(columns: Sequence[str], where: str | None) -> ReadResult:
            # System columns come after all others, whichever of them are asked for.
            own = [name for name in columns if name in described.schema.names]

            def read(where: str | None) -> ReadResult:
                return self.read(
                    described,
                    offset,
                    partition,
                    columns=own or described.schema.names[:1],
                    filter=where,
                    system_columns=len(own) < len(columns),
                    schema_version=version,
                )

            try:
                return read(where)
            except InvalidFilter:
                # Too long, or of what only its caller can compare, who applies it in any case.
                return read(None)

        return described, schema, open_scan

    def sql(
        self,
        text: str,
        parameters: SqlParameters = (),
        *,
        namespace: str | None = None,
        timeout: float | None = None,
        tables: SqlTables | None = None,
    ) -> ReadResult:
        """Run one SQL statement over topics, and return its rows as they come.

        A topic is a table of its namespace, with `__partition`, `__offset` and `__timestamp` after
        its own columns. The statement reads what is committed when it starts.

        Args:
            text: One statement that reads.
            parameters: Values of `?` and `$1`, in order, or of `$name`, by name.
            namespace: Namespace of tables without a schema, by its full name; None: the default
                one.
            timeout: Seconds that it may take, its rows being read included; None: as long as the
                server lets any.
            tables: Tables for this statement alone, by name, about 3 MB together when compressed:
                of Arrow, data frames, columns by name, or lists of rows. One hides a topic of its
                name.

        Raises:
            InvalidArgument: A table is none, or they are too long.
            InvalidSql: The statement cannot be run; fact `position`, where it is known, is the
                character that it is about, from 1 on. Also while the result is read.
            TopicNotFound: There is no topic of a table's name.
            ResourceExhausted: It needs more time, memory or rows than it may, or too many run.
            WingsError: Also while the result is read.
        """
        ticket = ticket_of_sql(text, parameters, namespace, timeout, tables)
        return ReadResult(SqlRead(self._transport, ticket))

    def scan_tickets(
        self,
        topic: TopicRef,
        partition: PartitionValue = None,
        *,
        offset: OffsetValue = "earliest",
        end_offset: int | None = None,
        splits: int = 1,
        **options: Unpack[ReadKeywords],
    ) -> tuple[Schema, list[ScanTicket]]:
        """Cut what is committed now into ranges, to be read with `read_ticket`.

        For engines that read with many processes. The ranges are fixed by the call, so all of them
        together read one state of the log.

        Args:
            topic: The topic.
            partition: The partition value; None: all partitions.
            offset: The first offset, in each partition.
            end_offset: The end, exclusive, in each partition; None: the end of the log now.
            splits: Cut each partition into this many near-equal ranges, at most one a row.
            options: `columns`: names of the columns to return, in order, instead of all.
                `filter`: a SQL predicate over the topic's columns.
                `system_columns=True`: append `__offset` and `__timestamp`.
                `schema_version`: return the columns as in an earlier version of the schema.

        Returns:
            The schema of the rows, and the tickets by partition value and offset, each with
            numbers for `offset` and `end_offset`.

        Raises:
            TopicNotFound: There is no such topic.
            OffsetOutOfRange: The offset is below a log's start; fact `log_start_offset`.
            InvalidFilter: Not one boolean expression over the topic's columns.
        """
        where = place(partition, None, offset)
        command = scan_command(topic, where, end_offset, splits, **options)
        schema, parts = plan(self._transport, command)
        return schema, [part.ticket for part in parts]

    def locations(self, topic: TopicRef) -> tuple[str, ...]:
        """Return the addresses of all live nodes that serve a topic, as `connect` takes them.

        Empty for a single server.

        Raises:
            TopicNotFound: There is no such topic.
        """
        found = self.topic(topic) if isinstance(topic, str) else topic
        key = found.partition_key
        value = any_partition_value(None if key is None else found.schema.field(key).type)
        _, parts = plan(self._transport, scan_command(found, place(value, None, "latest")))
        return parts[0].locations

    def read_ticket(self, ticket: ScanTicket) -> Iterator[Chunk]:
        """Yield the chunks of one range, in order of offset; a lost connection is resumed.

        Leaving the loop ends the stream on the server too.

        Args:
            ticket: One of `scan_tickets`, or one like it: its `offset` is a number.

        Raises:
            OffsetOutOfRange: The range is below the log's start by now; fact `log_start_offset`.
            Unavailable: No server can be reached, or none knows of the log up to the range's end.
            WingsError: Any other refusal of the server.
        """
        return map(chunk_of, Chunks(self._transport, ticket))

    @overload
    def follow(
        self,
        topic: TopicRef,
        partition: PartitionValue = None,
        *,
        offset: OffsetValue = "earliest",
        timeout: float | None = None,
        on_data_loss: OnDataLoss = "error",
        **options: Unpack[ReadKeywords],
    ) -> Follow: ...

    @overload
    def follow(
        self,
        topic: TopicRef,
        *,
        offset: OffsetsValue = "earliest",
        timeout: float | None = None,
        partitions: PartitionsValue,
        on_data_loss: OnDataLoss = "error",
        **options: Unpack[ReadKeywords],
    ) -> ManyFollow: ...

    def follow(
        self,
        topic: TopicRef,
        partition: PartitionValue = None,
        *,
        offset: OffsetsValue = "earliest",
        timeout: float | None = None,
        partitions: PartitionsValue | None = None,
        on_data_loss: OnDataLoss = "error",
        **options: Unpack[ReadKeywords],
    ) -> Follow | ManyFollow:
        """Read, and then go on as messages are committed: each once, in order in its partition.

        Args:
            topic: The topic.
            partition: The partition value; None: `partitions`.
            offset: The first offset; resolved by this call. A negative number counts from the end
                of each partition. Of many partitions also one for each, by partition value: those
                not in it are read from their start.
            timeout: Seconds after which the follow ends; None: never.
            partitions: `"all"`, those born later too, or a list of values, in one stream. None: of
                a topic with a key, all (a type checker knows of that where it is written out).
            on_data_loss: `"skip"`: where retention has passed the place of the read, go on with
                what is kept, and log a warning. `"error"`: raise `OffsetOutOfRange`.
            options: `columns`: names of the columns to return, in order, instead of all.
                `filter`: a SQL predicate over the topic's columns.
                `system_columns=True`: append `__offset` and `__timestamp`; of many partitions,
                before them `__partition`, the value's JSON text.
                `schema_version`: return the columns as in an earlier version of the schema.

        Returns:
            An iterator: of one partition of `(batch, start_offset, end_offset)`, of many of
            `(batch, ranges)`, whose ranges say which rows are of which partition. Leaving the loop
            ends it on the server too.

        Raises:
            TopicNotFound: There is no such topic; also while iterating.
            OffsetOutOfRange: Retention has passed the place of the read, and that is an error; also
                while iterating. Of a read from `"earliest"` or a negative number, what it takes is
                skipped.
            WingsError: Also while iterating.
        """
        many = which(self, topic, partition, partitions)

        def opened(start: OffsetsValue) -> Follow | ManyFollow:
            ticket = build(
                FollowTicket,
                "follow",
                error=InvalidTicket,
                topic=name_of(topic),
                **place(partition, many, start),
                **options,
            )
            skips_lost = offset == "earliest" or is_from_end(offset)
            return follow(self._transport, ticket, timeout, on_data_loss, skips_lost=skips_lost)

        return self._begun((topic, partition, many, offset), opened)


def scan_command(
    topic: TopicRef,
    where: Mapping[str, Any],
    end_offset: int | None = None,
    splits: int | None = None,
    **options: Unpack[ReadKeywords],
) -> InfoCommand:
    """Return the command that plans a scan; `where` is the result of `place`."""
    return build(
        InfoCommand,
        "scan",
        topic=name_of(topic),
        end_offset=end_offset,
        splits=splits,
        **where,
        **options,
    )


def ticket_timeout_ms(seconds: float) -> int:
    """Return the wait of a fetch in milliseconds; a ticket's upper bound is left to its check."""
    return max(TIMEOUT_MS_MIN, round(seconds * 1000))


def fetch(transport: Transport, ticket: FetchTicket, wait: float) -> FetchResult:
    """Read one partition or many; blocks at most `wait` seconds, beside the client's timeout.

    A broken stream is opened again for the time that remains. See `Client.fetch`.
    """
    deadline = Deadline.after(wait)

    def call(seconds: float) -> FetchResult:
        left = milliseconds(deadline.remaining() or 0.0)
        return _read(transport, ticket.model_copy(update={"timeout_ms": left}), seconds)

    with tracing.client_span("fetch", {"messaging.destination.name": ticket.topic}, "consumer"):
        return transport.repeat(call, repeatable=True, timeout=wait + transport.timeout)


def _read(transport: Transport, ticket: FetchTicket, seconds: float) -> FetchResult:
    schema, chunks, end = read_all(transport, ticket, seconds)
    one = ticket.partitions is None
    return FetchResult(
        schema=schema,
        batches=tuple(chunk.batch for chunk in chunks),
        ranges=tuple(chunk.ranges for chunk in chunks),
        partitions=end.partitions,
        end=end.end,
        asked=ticket.offset if one and isinstance(ticket.offset, int) else None,
    )
