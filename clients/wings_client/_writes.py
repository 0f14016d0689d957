"""Writing: the calls that push rows to a topic."""

from wings_client._admin import AdminCalls, TopicRef
from wings_client._arguments import checked
from wings_client._batches import BATCH_ROWS, Data
from wings_client._messages import TimeValue
from wings_client._model import PartitionValue, PushResult
from wings_client._producer import (
    APPENDED_BYTES,
    LINGER_MS,
    WINDOW_BATCHES_MAX,
    WINDOW_BYTES,
    Producer,
    close_at_exit,
)
from wings_client._push import Identities, push
from wings_client._transport import Transport


@checked
class WriteCalls(AdminCalls):
    """The calls of `Client` that push."""

    def __init__(self, transport: Transport) -> None:
        super().__init__(transport)
        self._identities = Identities()

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
                PyCapsule interface; a mapping of columns to values; a pydantic model, a dataclass
                or a NamedTuple as one row; or an iterable of these or of rows as mappings. Readers
                and iterables are read as the push goes on.
            partition: Partition of all rows; None: by the key column, row by row.
            timestamp: The timestamp of all rows; None: the time of commit.
            expected_offset: Commit only if this is the partition's next offset; needs a single
                partition. Applies to the first of several batches.
            batch_rows: Most rows of one batch.

        Raises:
            SchemaMismatch: A column or value does not fit; fact `column` names it.
            OffsetMismatch: `expected_offset` is not the next one; fact `next_offset` is.
            WingsError: The error that a batch was refused with. Facts `rows_committed` and
                `batches_committed` count what was committed before it; that stays committed.
            InvalidArgument: `data`, or an item of it, is nothing that can be pushed.
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

        One that is left open is closed at the end of the process, within 5 s for all of them; what
        cannot be sent until then is counted by a `ResourceWarning`.

        Args:
            topic: The topic.
            producer_id: The name under which the server counts its batches; None: a random one. To
                resume after a restart of the process, pass the same name and `sequence`.
            sequence: The sequence of the first batch: 0, or the `next_sequence` of the last
                `Committed` that the process stored together with its position in its source.
            partition: Partition of all rows; None: by the key column, row by row.
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
        close_at_exit(producer)
        return producer
