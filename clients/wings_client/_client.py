"""The client: one object for all calls, safe to share between threads."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Self, overload

import pyarrow as pa

from wings_client._access import Access, Pem
from wings_client._acquire import member_name, ticket_of
from wings_client._admin import TopicRef, check_which, name_of, which
from wings_client._batches import BATCH_ROWS, Data
from wings_client._consumer import Consumer, ConsumerEngine
from wings_client._consumer_offsets import Start
from wings_client._fetch import fetch, fetch_many
from wings_client._follow import Follow, ManyFollow, follow, follow_many
from wings_client._many import OffsetsValue, PartitionsValue
from wings_client._messages import OffsetValue, TimeValue
from wings_client._model import Chunk, FetchResult, PartitionValue, PushResult, Topic
from wings_client._producer import (
    APPENDED_BYTES,
    LINGER_MS,
    WINDOW_BATCHES_MAX,
    WINDOW_BYTES,
    Producer,
)
from wings_client._push import Identities, push
from wings_client._retry import Retry
from wings_client._scan import plan, scan
from wings_client._shards import ShardCalls
from wings_client._share import DELIVERY_MESSAGES, ShareCalls
from wings_client._share_consumer import ShareConsumer
from wings_client._share_engine import ShareEngine
from wings_client._sql import SqlParameters, SqlRead
from wings_client._sql import ticket_of as ticket_of_sql
from wings_client._stages import StageCalls
from wings_client._stream import Chunks
from wings_client._transport import Transport
from wings_client._worker import WorkerCalls
from wings_client.gather._gather import Gather, gather
from wings_client.gather._request import Request
from wings_client.gather._rules import Rules, Sentinel, Strategy, wait
from wings_core.contracts.many import ALL
from wings_core.contracts.tickets import ScanTicket
from wings_core.errors import InvalidTicket, PartitionRequired, SchemaMismatch, WingsError
from wings_core.partitions import any_partition_value

TIMEOUT_SECONDS = 30.0


def connect(
    endpoint: str | Sequence[str],
    *,
    timeout: float = TIMEOUT_SECONDS,
    retry: Retry | None = None,
    token: str | None = None,
    tls_ca: Pem | None = None,
    tls_cert: Pem | None = None,
    tls_key: Pem | None = None,
    discover: bool = True,
) -> "Client":
    """Return a client of a Wings server; the connection is made by the first call.

    Args:
        endpoint: Like `grpc://host:7777`, with TLS `grpc+tls://host:7777`. Of the nodes of a
            cluster, some or all: `grpc://a:7777,b:7777,c:7777`, or a list of addresses. A random
            one is used until it is unreachable; then repeatable calls go to the next. Scans read
            from all live nodes, whichever were named.
        timeout: Seconds that a call may take, its retries included (a long poll may wait beside
            it), and that a stream may stand still.
        retry: What is tried again, and how long.
        token: Presented with each call; None: that of the environment variable `WINGS_TOKEN`.
        tls_ca: A file in PEM, or as bytes what one holds: the authorities that servers are checked
            against; None: those that gRPC comes with.
        tls_cert: Likewise, this client's certificate, for mutual TLS.
        tls_key: Likewise, its private key.
        discover: Whether the other processes and nodes that serve the log are found when the first
            stream is opened, and used as if they had been named, as far as they answer. With a
            token, when the first scan begins.

    Raises:
        InvalidArgument: The timeout is not positive, or there is no address, or an empty one; a
            file cannot be read, or a certificate is without its key.
    """
    access = Access.of(token, tls_ca, tls_cert, tls_key)
    return Client(Transport(endpoint, timeout, retry or Retry(), access, discover=discover))


class Client(StageCalls, ShardCalls, ShareCalls, WorkerCalls):
    """A client of one server; made by `connect`, safe to share between threads.

    Every call raises errors of the tree under `WingsError`: the server's own, or `Unavailable`
    with the fact `connection`, which classifies the failure (see `Connection`).
    """

    def __init__(self, transport: Transport) -> None:
        super().__init__(transport)
        self._identities = Identities()

    @property
    def endpoint(self) -> str:
        """The address of the server; of several nodes, the one in use now."""
        return self._transport.endpoint

    def close(self) -> None:
        """Close all that this client opened: producers flush, consumers commit, reads end.

        Raises:
            WingsError: A producer's remaining batches were refused or could not be sent.
        """
        self._transport.close()

    def __enter__(self) -> Self:
        """Return the client itself."""
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the client; an error raised in the block takes precedence over one of `close`."""
        try:
            self.close()
        except WingsError:
            if error is None:
                raise

    # Writing.

    def push(
        self,
        topic: TopicRef,
        data: Data,
        *,
        partition: PartitionValue = None,
        timestamp: TimeValue | None = None,
        expected_offset: int | None = None,
        batch_rows: int = BATCH_ROWS,
    ) -> PushResult:
        """Push data and wait until all of it is durable.

        Columns are found by name and cast to the topic's types where no value changes. Data is cut
        into batches, sent one after another without waiting for each; a lost connection is resumed,
        and no row is written twice. A batch is atomic, a push of several batches is not.

        Args:
            topic: The topic; a `Topic` spares the call that asks for its schema.
            data: A table, a batch, a reader, a pandas or polars data frame, anything with the Arrow
                PyCapsule interface; a mapping of columns to values; or an iterable of tables,
                batches or rows (mappings). Readers and iterables are read as the push goes on.
            partition: Of all rows; None: by the key column, row by row.
            timestamp: The timestamp of all rows; None: the time of commit.
            expected_offset: Commit only if this is the partition's next offset; needs a single
                partition. Applies to the first of several batches.
            batch_rows: Most rows of one batch.

        Raises:
            SchemaMismatch: A column or value does not fit; fact `column` names it.
            OffsetMismatch: `expected_offset` is not the next one; fact `next_offset` is.
            WingsError: The error that a batch was refused with. Facts `rows_committed` and
                `batches_committed` count what was committed before it; that stays committed.
            TypeError: `data` is nothing that can be pushed.
        """
        return push(
            self._transport,
            self._identities,
            self._described(topic),
            data,
            partition=partition,
            timestamp=timestamp,
            expected_offset=expected_offset,
            batch_rows=batch_rows,
        )

    def producer(
        self,
        topic: TopicRef,
        *,
        producer_id: str | None = None,
        sequence: int = 0,
        partition: PartitionValue = None,
        batch_rows: int = BATCH_ROWS,
        window_batches: int = WINDOW_BATCHES_MAX,
        window_bytes: int = WINDOW_BYTES,
        linger_ms: float = LINGER_MS,
        batch_bytes: int = APPENDED_BYTES,
    ) -> Producer:
        """Open a producer: a stream that stays open, for many pushes to one topic.

        Args:
            topic: The topic.
            producer_id: The name under which the server counts its batches; None: a random one. To
                resume after a restart of the process, pass the same name and `sequence`.
            sequence: The sequence of the first batch: 0, or the `next_sequence` of the last
                `Committed` that the process stored together with its position in its source.
            partition: Of all rows; None: by the key column, row by row.
            batch_rows: Most rows of one batch.
            window_batches: Most batches without an answer, up to 64; `send` waits beyond it.
            window_bytes: Most bytes without an answer; one batch may exceed it.
            linger_ms: How long a row that was appended waits for others, in milliseconds.
            batch_bytes: Rows that were appended are sent at once when they have so many bytes.

        Raises:
            TopicNotFound: There is none of this name.
        """
        producer = Producer(
            self._transport,
            self._described(topic),
            producer_id=producer_id,
            sequence=sequence,
            partition=partition,
            batch_rows=batch_rows,
            window_batches=window_batches,
            window_bytes=window_bytes,
            linger_ms=linger_ms,
            batch_bytes=batch_bytes,
        )
        self._transport.add(producer)
        return producer

    # Reading.

    def fetch(
        self,
        topic: TopicRef,
        partition: PartitionValue = None,
        *,
        offset: OffsetsValue,
        partitions: PartitionsValue | None = None,
        min_messages: int | None = None,
        max_messages: int | None = None,
        timeout: float | None = None,
        columns: Sequence[str] | None = None,
        filter: str | None = None,  # noqa: A002 - the contract's word.
        system_columns: bool = False,
        schema_version: int | None = None,
    ) -> FetchResult:
        """Return messages from an offset, of one partition or many; waits until there are enough.

        Args:
            topic: The topic.
            partition: The partition value; None: `partitions`.
            offset: The first offset; of many partitions also one for each, by partition value,
                like `FetchResult.next_offsets`; those not in it are read from their start.
            partitions: `"all"`, those born meanwhile too, or a list of values; None: all. Limits
                and the wait are those of the whole fetch.
            min_messages: Wait until this many are committed; None: 1.
            max_messages: Return no more than this; None: 10,000.
            timeout: Seconds to wait at most, up to 300; None: 0.5. 0 returns what is there.
            columns: The columns wanted, in order; None: all.
            filter: A SQL predicate over the topic's columns; min and max count what passes it.
            system_columns: Append `__offset` and `__timestamp`; of many partitions, before them
                `__partition`, the value's JSON text.
            schema_version: Read the columns as an earlier version of the schema has them; None: as
                the last.

        Raises:
            TopicNotFound: There is no such topic, or it was deleted during the wait.
            OffsetOutOfRange: The offset is below the log's start; fact `log_start_offset`.
            InvalidTicket: A bound is out of range, or a column unknown.
            InvalidFilter: Not one boolean expression over the topic's columns.
        """
        keys: dict[str, Any] = {
            "min_messages": min_messages,
            "max_messages": max_messages,
            "columns": columns,
            "filter": filter,
            "system_columns": system_columns,
            "schema_version": schema_version,
        }
        name = name_of(topic)
        check_which(partition, partitions)
        keyed = isinstance(topic, Topic) and topic.partition_key is not None
        if partition is None and (partitions or keyed or isinstance(offset, Mapping)):
            return fetch_many(self._transport, name, partitions or ALL, offset, timeout, **keys)
        assert not isinstance(offset, Mapping)
        try:
            return fetch(self._transport, name, partition, offset, timeout, **keys)
        except SchemaMismatch:
            if schema_version is not None:
                raise
            # The schema has grown during the wait: another stream reads all of it.
            return fetch(self._transport, name, partition, offset, timeout, **keys)
        except PartitionRequired:  # Sooner known than by a look at the topic before each fetch.
            return fetch_many(self._transport, name, ALL, offset, timeout, **keys)

    def scan(
        self,
        topic: TopicRef,
        partition: PartitionValue = None,
        *,
        offset: OffsetValue = "earliest",
        end_offset: int | None = None,
        parallel: int = 1,
        partitions: PartitionsValue | None = None,
        columns: Sequence[str] | None = None,
        filter: str | None = None,  # noqa: A002 - the contract's word.
        system_columns: bool = False,
        schema_version: int | None = None,
    ) -> pa.RecordBatchReader:
        """Read what is committed now, of one partition or of many, batch by batch.

        The range is fixed by the call; rows are read as they are asked for. A reader that is
        garbage-collected before its end ends its streams on the server.

        Args:
            topic: The topic.
            partition: The partition value; None: `partitions`.
            offset: The first offset, in each partition.
            end_offset: The end, exclusive, in each partition; None: the end of the log now.
            parallel: How many streams to read at once, each on a thread. With 1, the rows of a
                partition come by offset; partitions are mixed. With more, batches come as they
                arrive: rows of one batch are in order of offset, batches are in none.
            partitions: `"all"` or a list of values; None: all. Few streams read many of them.
            columns: The columns wanted, in order; None: all.
            filter: A SQL predicate over the topic's columns.
            system_columns: Append `__offset` and `__timestamp`; of many partitions, before them
                `__partition`, the value's JSON text.
            schema_version: Read the columns as an earlier version of the schema has them; None: as
                the last.

        Raises:
            TopicNotFound: There is no such topic.
            OffsetOutOfRange: The offset is below a log's start; fact `log_start_offset`. Of many
                partitions read from `"earliest"`, what retention takes meanwhile is skipped.
            WingsError: Also while the reader is read.
        """
        return scan(
            self._transport,
            name_of(topic),
            partition,
            offset,
            end_offset,
            parallel,
            which(self, topic, partition, partitions),
            columns=columns,
            filter=filter,
            system_columns=system_columns,
            schema_version=schema_version,
        )

    def sql(
        self,
        text: str,
        parameters: SqlParameters = (),
        *,
        namespace: str | None = None,
        timeout: float | None = None,
    ) -> pa.RecordBatchReader:
        """Run one SQL statement over topics, and return its rows as they come.

        A topic is a table of its namespace, with `__partition`, `__offset` and `__timestamp` after
        its own columns. The statement reads what is committed when it starts. A reader that is
        garbage-collected before its end ends the statement on the server.

        Args:
            text: One statement that reads.
            parameters: Values of `?` and `$1`, in order, or of `$name`, by name.
            namespace: Of tables without a schema, by its full name; None: the default one.
            timeout: Seconds that it may take, its rows being read included; None: as long as the
                server lets any.

        Raises:
            InvalidSql: The statement cannot be run; fact `position`, where it is known, is the
                character that it is about, from 1 on. Also while the reader is read.
            TopicNotFound: There is no topic of a table's name.
            ResourceExhausted: It needs more time, memory or rows than it may, or too many run.
            WingsError: Also while the reader is read.
        """
        read = SqlRead(self._transport, ticket_of_sql(text, parameters, namespace, timeout))
        return pa.RecordBatchReader.from_batches(read.schema, read.batches())

    def scan_tickets(
        self,
        topic: TopicRef,
        partition: PartitionValue = None,
        *,
        offset: OffsetValue = "earliest",
        end_offset: int | None = None,
        splits: int = 1,
        columns: Sequence[str] | None = None,
        filter: str | None = None,  # noqa: A002 - the contract's word.
        system_columns: bool = False,
        schema_version: int | None = None,
    ) -> tuple[pa.Schema, list[ScanTicket]]:
        """Cut what is committed now into ranges, to be read with `read_ticket`.

        For engines that read with many processes. The ranges are fixed by the call, so all of them
        together read one state of the log.

        Args:
            topic: The topic.
            partition: The partition value; None: all partitions.
            offset: The first offset, in each partition.
            end_offset: The end, exclusive, in each partition; None: the end of the log now.
            splits: Cut each partition into this many near-equal ranges, at most one a row.
            columns: The columns wanted, in order; None: all.
            filter: A SQL predicate over the topic's columns.
            system_columns: Append `__offset` and `__timestamp`.
            schema_version: Read the columns as an earlier version of the schema has them; None: as
                the last.

        Returns:
            The schema of the rows, and the tickets by partition value and offset, each with
            numbers for `offset` and `end_offset`.

        Raises:
            TopicNotFound: There is no such topic.
            OffsetOutOfRange: The offset is below a log's start; fact `log_start_offset`.
            InvalidFilter: Not one boolean expression over the topic's columns.
        """
        schema, parts = plan(
            self._transport,
            name_of(topic),
            partition,
            offset,
            end_offset,
            splits=splits,
            columns=columns,
            filter=filter,
            system_columns=system_columns,
            schema_version=schema_version,
        )
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
        _, parts = plan(self._transport, found.name, value, "latest")
        return parts[0].locations

    def read_ticket(self, ticket: ScanTicket) -> Iterator[Chunk]:
        """Yield the chunks of one range, in order of offset; a lost connection is resumed.

        Leaving the loop ends the stream on the server too.

        Args:
            ticket: One of `scan_tickets`, or one like it: its `offset` is a number.

        Raises:
            OffsetOutOfRange: The range is below the log's start by now; fact `log_start_offset`.
            Unavailable: No server can be reached, or none knows of the log up to the range's end.
            WingsError: Whatever else the server refuses it with.
        """
        return iter(Chunks(self._transport, ticket))

    @overload
    def follow(
        self,
        topic: TopicRef,
        partition: PartitionValue = None,
        *,
        offset: OffsetValue = "earliest",
        timeout: float | None = None,
        columns: Sequence[str] | None = None,
        filter: str | None = None,
        system_columns: bool = False,
        schema_version: int | None = None,
    ) -> Follow: ...

    @overload
    def follow(
        self,
        topic: TopicRef,
        *,
        offset: OffsetsValue = "earliest",
        timeout: float | None = None,
        partitions: PartitionsValue,
        columns: Sequence[str] | None = None,
        filter: str | None = None,
        system_columns: bool = False,
        schema_version: int | None = None,
    ) -> ManyFollow: ...

    def follow(
        self,
        topic: TopicRef,
        partition: PartitionValue = None,
        *,
        offset: OffsetsValue = "earliest",
        timeout: float | None = None,
        partitions: PartitionsValue | None = None,
        columns: Sequence[str] | None = None,
        filter: str | None = None,  # noqa: A002 - the contract's word.
        system_columns: bool = False,
        schema_version: int | None = None,
    ) -> Follow | ManyFollow:
        """Read, and then go on as messages are committed: each once, in order in its partition.

        Args:
            topic: The topic.
            partition: The partition value; None: `partitions`.
            offset: The first offset; resolved by this call. Of many partitions also one for each,
                by partition value: those not in it are read from their start.
            timeout: Seconds after which the follow ends; None: never.
            partitions: `"all"`, those born later too, or a list of values, in one stream. None: of
                a topic with a key, all (a type checker knows of that where it is written out).
            columns: The columns wanted, in order; None: all.
            filter: A SQL predicate over the topic's columns.
            system_columns: Append `__offset` and `__timestamp`; of many partitions, before them
                `__partition`, the value's JSON text.
            schema_version: Read the columns as an earlier version of the schema has them; None: as
                the last.

        Returns:
            An iterator: of one partition of `(batch, start_offset, end_offset)`, of many of
            `(batch, ranges)`, whose ranges say which rows are of which partition. Leaving the loop
            ends it on the server too.

        Raises:
            TopicNotFound: There is no such topic; also while iterating.
            WingsError: Also while iterating.
        """
        keys: dict[str, Any] = {
            "columns": columns,
            "filter": filter,
            "system_columns": system_columns,
            "schema_version": schema_version,
        }
        name, many = name_of(topic), which(self, topic, partition, partitions)
        if many is not None:
            return follow_many(self._transport, name, many, offset, timeout, **keys)
        if isinstance(offset, Mapping):
            raise InvalidTicket("follow: offsets by partition are of many partitions")
        return follow(self._transport, name, partition, offset, timeout, **keys)

    def consumer(
        self,
        name: str,
        topic: TopicRef,
        *,
        partitions: Sequence[PartitionValue] | None = None,
        start: Start = "earliest",
        auto_commit: bool | float = True,
        timeout: float | None = None,
        columns: Sequence[str] | None = None,
        filter: str | None = None,  # noqa: A002 - the contract's word.
        system_columns: bool = False,
    ) -> Consumer:
        """Open a named consumer, which resumes at the last committed offsets of its name.

        Args:
            name: The name under which the server keeps its offsets. One consumer of a name reads a
                partition at a time; the server does not prevent a second from reading it too.
            topic: The topic.
            partitions: Those to read; None: all, including new ones as they appear. Many are read
                in one stream.
            start: Where to begin in a partition of which nothing was committed: `"earliest"`,
                `"latest"` or a time. Partitions born later are read from their start.
            auto_commit: True commits each batch once the next one is asked for, so that a batch
                whose processing failed is read again. A number does so at most every so many
                seconds. False leaves it to `Consumer.commit`.
            timeout: Seconds without a message after which iteration ends, once the server says that
                there is none; None: never.
            columns: The columns wanted, in order; None: all.
            filter: A SQL predicate over the topic's columns.
            system_columns: Append `__offset` and `__timestamp`; of many partitions, before them
                `__partition`, the value's JSON text.

        Returns:
            An iterator: of a single partition of `(batch, partition, start_offset, end_offset)`, of
            many of `(batch, ranges)`; see `Consumer`.

        Raises:
            TopicNotFound: There is no such topic; also while iterating.
            OffsetOutOfRange: A committed offset is below the log's start; while iterating.
        """
        described = self._described(topic)
        engine = ConsumerEngine(
            self._transport,
            self,
            name,
            described,
            partitions=partitions,
            start=start,
            auto_commit=auto_commit,
            timeout=timeout,
            columns=columns,
            filter=filter,
            system_columns=system_columns,
        )
        consumer = Consumer(engine)
        self._transport.add(consumer)
        return consumer

    def share_consumer(
        self,
        group: str,
        topic: TopicRef,
        *,
        member: str | None = None,
        partition: PartitionValue = None,
        max_messages: int = DELIVERY_MESSAGES,
        timeout: float | None = None,
        auto_renew: bool | float = True,
    ) -> ShareConsumer:
        """Join a share group as a member, which acquires messages and acknowledges each.

        Args:
            group: The name of an existing group; see `create_share_group`.
            topic: The topic of the group.
            member: This member's name; None: a random one. Two members of the same name can each
                acknowledge what the other holds.
            partition: Acquire messages of this partition alone; None: of any.
            max_messages: Acquire at most this many at once.
            timeout: Seconds without a delivery after which iteration ends; None: never. 0
                acquires only what is available.
            auto_renew: True renews what is held until it is acknowledged; a number does so for as
                many seconds of each delivery; False leaves it to `ShareConsumer.renew`.

        Raises:
            InvalidTicket: A name or number is out of range.
            TopicNotFound: While iterating: there is no such topic.
            GroupNotFound: While iterating: the topic has no such group.
        """
        name = member or member_name()
        ticket = ticket_of(group, name_of(topic), name, partition, max_messages)
        consumer = ShareConsumer(ShareEngine(self._transport, ticket, timeout, auto_renew))
        self._transport.add(consumer)
        return consumer

    def gather(
        self,
        requests: Iterable[Request],
        *,
        timeout: float | None = None,
        stall_timeout: float | None = None,
        max_messages: int | None = None,
        sentinel: Sentinel | None = None,
        on_error: Literal["end", "continue"] = "end",
        strategy: Strategy = wait,
    ) -> Gather:
        """Send one request to many partitions or servers, and yield the replies as they arrive.

        Args:
            requests: What to send, at once; see `wings_client.gather.Request`.
            timeout: Seconds to wait in all; None: the client's. Time that the caller spends with a
                reply does not count.
            stall_timeout: Seconds to wait for each reply but the first; None, less than a
                millisecond, or no less than `timeout`: as long as the rest of it.
            max_messages: End after this many replies.
            sentinel: A predicate, true to continue (the reply for which it is false is the last
                delivered), or `wings_client.gather.EMPTY`: an empty reply ends, undelivered.
            on_error: `"end"` ends with the first source that fails, `"continue"` goes on with the
                others.
            strategy: `wait`, `stall` or `first(n)` of `wings_client.gather`.

        Raises:
            InvalidArgument: An option is out of range, or there are no requests.
            InvalidTicket: A request is out of range.
        """
        rules = Rules.of(
            timeout=timeout,
            stall_timeout=stall_timeout,
            max_messages=max_messages,
            sentinel=sentinel,
            on_error=on_error,
            strategy=strategy,
            client_timeout=self._transport.timeout,
        )
        return gather(self._transport, requests, rules)
