"""Writing: the calls that push rows to a topic, over a producer that lives for one call."""

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from wings_client._admin import AdminCalls, TopicRef
from wings_client._arguments import TimeValue, checked
from wings_client._batches import BATCH_ROWS, Data
from wings_client._model import PartitionValue, PushResult, Topic
from wings_client._producer import (
    APPENDED_BYTES,
    LINGER_MS,
    WINDOW_BATCHES_MAX,
    WINDOW_BYTES,
    Producer,
    close_at_exit,
)
from wings_client._results import counted, in_notebook, rows_known
from wings_client._transport import Transport
from wings_core import tracing
from wings_core.errors import WingsError

TOPICS_MAX = 1_000
"""Topics for which identities are kept; the one pushed to longest ago goes first."""

IDENTITIES_MAX = 16
"""Identities kept for each topic; further concurrent pushes use fresh ones."""


@checked
class WriteCalls(AdminCalls):
    """The calls of `Client` that push."""

    def __init__(self, transport: Transport) -> None:
        super().__init__(transport)
        self._identities = _Identities()

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


@dataclass(frozen=True, slots=True)
class _Identity:
    """A producer id and its next sequence."""

    producer_id: str
    sequence: int


class _Identities:
    """Producer ids to push under, used again by later pushes.

    A server remembers each producer id for days, so a fresh one for each push would leave many
    behind. The id of a failed push is dropped: its next sequence is unknown.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: OrderedDict[str, list[_Identity]] = OrderedDict()

    def take(self, topic_uuid: str) -> _Identity:
        """Return an identity for exclusive use until it is released."""
        with self._lock:
            free = self._free.get(topic_uuid)
            return free.pop() if free else _Identity(uuid4().hex, 0)

    def release(self, topic_uuid: str, identity: _Identity) -> None:
        """Make an identity available to later pushes."""
        with self._lock:
            free = self._free.setdefault(topic_uuid, [])
            self._free.move_to_end(topic_uuid)
            if len(free) < IDENTITIES_MAX:
                free.append(identity)
            if len(self._free) > TOPICS_MAX:
                self._free.popitem(last=False)


def push(
    transport: Transport,
    identities: _Identities,
    topic: Topic,
    data: Data,
    *,
    timestamp: TimeValue | None,
    expected_offset: int | None,
    **options: Any,
) -> PushResult:
    """Push and wait until everything is durable; see `Client.push`."""
    about = {"messaging.destination.name": topic.name}
    with tracing.client_span("push", about, "producer"):
        identity = identities.take(topic.uuid)
        producer = Producer(
            transport,
            topic,
            producer_id=identity.producer_id,
            sequence=identity.sequence,
            **options,
        )
        transport.add_stream(producer)
        try:
            with producer:
                if in_notebook():
                    data = counted(producer.batches(data), f"push to {topic.id}", rows_known(data))
                sent = producer.send(data, timestamp=timestamp, expected_offset=expected_offset)
                try:
                    committed = sent.result()
                except WingsError:
                    raise
                except BaseException:  # Of a signal's handler, which ends the wait.
                    producer.cancel()
                    raise
        except WingsError as error:
            # Complete only now that every batch has a response.
            error.facts.update(
                rows_committed=producer.rows_committed, batches_committed=producer.batches_committed
            )
            raise
        identities.release(topic.uuid, _Identity(identity.producer_id, committed.next_sequence))
        return PushResult(committed.committed, committed.rows, committed.batches)
