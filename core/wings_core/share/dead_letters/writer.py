"""Dead letters: archived messages of groups, as messages of an ordinary topic, each written once.

    begin ─▶ the rows' fetch, ahead ─▶ finish ─▶ one batch a letter ─▶ group commit ─▶ durable

Each letter is a batch of its own whose producer is the letter's id, at sequence 0. So
writing it again, after a crash or on another node, in whatever ranges, returns the first result.

A payload is the row as an Arrow IPC RecordBatch message. Such a message has no schema, and Arrow
reads it by any that it is given. So its metadata has a fingerprint of its schema, which readers
that do not know of it pass over.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import pyarrow as pa

from wings_core.errors import (
    AlreadyExists,
    BatchTooLarge,
    InvalidArgument,
    NotFound,
    OutOfOrderSequence,
    ResourceExhausted,
    SchemaMismatch,
    TopicNotFound,
    Unavailable,
)
from wings_core.fetch.selection import OFFSET_FIELD, TIMESTAMP_FIELD
from wings_core.ingest.group_commit import GroupCommit
from wings_core.ingest.pending import Pending, PushStream
from wings_core.ingest.prepare import PreparedBatch, Preparer, PushOptions
from wings_core.limits import Limits
from wings_core.metadata.interfaces import Admin
from wings_core.model import Rejected, ShareGroup, Topic
from wings_core.model import Sequence as ProducerSequence
from wings_core.names import TopicName
from wings_core.partitions import UNPARTITIONED
from wings_core.share.delivery.record_fetcher import FetchedRecords, RecordFetcher, rows_of
from wings_core.share.model import ArchivedRange, DeadLetterSink, PendingDeadLetters, dead_letter_id
from wings_core.share.state.ranges import merged
from wings_core.times import now_us

PIECE_MESSAGES = 500
"""Letters whose rows are in memory at once, for each of the fetches that run ahead."""

FLUSH_BYTES = 8 << 20
"""Letters are written together up to about so many bytes."""

AHEAD_MAX = 4
"""Fetches that run ahead of the letters being written."""

_FINGERPRINT = b"wings.schema"

_TIME = pa.timestamp("us", tz="UTC")

DEAD_LETTER_SCHEMA = pa.schema(
    [
        pa.field("dead_letter_id", pa.string(), nullable=False),
        pa.field("source_topic", pa.string(), nullable=False),
        pa.field("source_partition", pa.string(), nullable=False),
        pa.field("source_offset", pa.int64(), nullable=False),
        pa.field("share_group", pa.string(), nullable=False),
        pa.field("delivery_count", pa.int32(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("error", pa.string()),
        pa.field("message_timestamp", _TIME),
        pa.field("dead_lettered_at", _TIME, nullable=False),
        pa.field("payload", pa.binary()),
    ]
)
"""Columns of a topic of dead letters. `source_partition` is the value's JSON text; `reason` is
`rejected` or `delivery_limit`, `error` the text of the member that rejected it; `message_timestamp`
and `payload` (the row as an Arrow IPC RecordBatch message of the source topic's schema) are null
where the group copies no payloads and where the message was gone."""


def open_dead_letter_topic(admin: Admin, name: TopicName, source: TopicName) -> Topic:
    """Return the topic of dead letters of this name, created where there is none.

    Args:
        admin: Where topics are.
        name: Name of the topic.
        source: The topic whose messages become dead letters.

    Raises:
        InvalidArgument: It is the source itself.
        SchemaMismatch: There is a topic of this name that is none of dead letters.
        NamespaceNotFound: Its namespace does not exist.
    """
    if name == source:
        raise InvalidArgument(f"config: key 'dlq_topic': {name} cannot be its own")
    try:
        topic = admin.get_topic(name)
    except TopicNotFound:
        try:
            return admin.create_topic(name, DEAD_LETTER_SCHEMA, if_not_exists=True)
        except AlreadyExists:
            topic = admin.get_topic(name)
    require_dead_letters(topic)
    return topic


def is_of_dead_letters(topic: Topic) -> bool:
    """Return whether a topic holds dead letters."""
    return topic.partition_key is None and topic.schema.equals(DEAD_LETTER_SCHEMA)


def require_dead_letters(topic: Topic) -> None:
    """Make sure that a topic is one of dead letters.

    Raises:
        SchemaMismatch: It is not.
    """
    if not is_of_dead_letters(topic):
        raise SchemaMismatch(f"{topic.name} is no topic of dead letters: its columns are others")


def payload_of(row: pa.RecordBatch) -> bytes:
    """Return a batch as a payload."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, row.schema) as writer:
        writer.write_batch(row, custom_metadata={_FINGERPRINT: _fingerprint(row.schema)})
    messages = pa.ipc.MessageReader.open_stream(sink.getvalue())
    messages.read_next_message()  # The schema.
    return messages.read_next_message().serialize().to_pybytes()


def read_payload(
    payload: pa.Buffer, schemas: Sequence[pa.Schema], *, unmarked: bool
) -> tuple[pa.RecordBatch, int]:
    """Return the batch of a payload, and the number of its schema, from 1 on.

    Args:
        payload: A result of `payload_of`, or one without a fingerprint.
        schemas: The versions of its schema: it has the last that fits.
        unmarked: Whether one without a fingerprint has the first.

    Raises:
        InvalidArgument: It has none of them, or is damaged.
    """
    failure: InvalidArgument | None = None
    for version in range(len(schemas), 0, -1):
        try:
            batch = _read(payload, schemas[version - 1], unmarked=unmarked and version == 1)
        except InvalidArgument as error:
            failure = failure or error
        else:
            return batch, version
    assert failure is not None
    raise failure


@dataclass(frozen=True, slots=True, eq=False)
class DeadLetterWriter(DeadLetterSink):
    """See `DeadLetterSink`.

    Args:
        admin: Where topics are.
        group_commit: Writes the letters.
        limits: The bounds in force.
        records: Fetches the rows.
    """

    _admin: Admin
    _group_commit: GroupCommit
    _limits: Limits
    _records: RecordFetcher

    def begin(self, group: ShareGroup, letters: Sequence[ArchivedRange]) -> PendingDeadLetters:
        """Queue letters and start to fetch their rows; see `DeadLetterSink.begin`."""
        dlq = group.config.dlq
        if dlq is None:
            raise InvalidArgument(f"the group {group.name!r:.80} has no topic of dead letters")
        topic = open_dead_letter_topic(self._admin, dlq, group.topic.name)
        records = self._records if group.config.dlq_copy_payload else None
        preparer = Preparer(topic, self._limits)
        # Payloads have all columns that there are by now.
        group = replace(group, topic=self._newest(group.topic))
        return PendingLetters(group, letters, records, preparer, self._group_commit)

    def _newest(self, topic: Topic) -> Topic:
        try:
            newest = self._admin.get_topic(topic.name, fresh=True)
        except NotFound:
            return topic
        return newest if newest.uuid == topic.uuid else topic


_Row = tuple[int | None, pa.RecordBatch | None]
"""The timestamp and the topic's columns of a message; None where they are not known."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """Some of the letters, and the fetch of their rows; None where none are wanted."""

    letter: ArchivedRange
    records: "Future[FetchedRecords] | None"


class PendingLetters(PendingDeadLetters):
    """Letters that were begun: the first pieces' rows are being fetched."""

    def __init__(
        self,
        group: ShareGroup,
        letters: Sequence[ArchivedRange],
        records: RecordFetcher | None,
        preparer: Preparer,
        group_commit: GroupCommit,
    ) -> None:
        self._group = group
        self._preparer = preparer
        self._group_commit = group_commit
        self._pieces = (
            _Piece(
                each,
                records and records.begin(group.topic, each.partition, each.first, each.last),
            )
            for letter in _joined(letters)
            for each in _pieces(letter)
        )
        self._ahead = list(islice(self._pieces, AHEAD_MAX))

    def finish(self) -> None:
        """Block until all are durable; see `PendingDeadLetters.finish`."""
        prepared: list[PreparedBatch] = []
        size = 0
        while self._ahead:
            for batch in self._prepared(self._ahead.pop(0)):
                prepared.append(batch)
                size += batch.bytes
                if size >= FLUSH_BYTES:
                    self._commit(prepared)
                    prepared, size = [], 0
            self._ahead += islice(self._pieces, 1)
        self._commit(prepared)

    def _prepared(self, piece: _Piece) -> Iterator[PreparedBatch]:
        """Yield the letters of a piece; blocks for the fetch of its rows."""
        rows = _rows_by_offset(piece, self._group.topic)
        letter = piece.letter
        ids = [
            dead_letter_id(self._group.uuid, letter.partition, offset)
            for offset in range(letter.first, letter.last + 1)
        ]
        letters = self._letters(letter, ids, rows)
        for index, name in enumerate(ids):
            options = PushOptions(UNPARTITIONED, ProducerSequence(f"dead-letter-{name}", 0))
            try:
                yield self._preparer.prepare(letters.slice(index, 1), options)
            except BatchTooLarge:  # Beside its payload a letter is small.
                offset = letter.first + index
                alone = self._letters(replace(letter, first=offset, last=offset), [name], {})
                yield self._preparer.prepare(alone, options)

    def _commit(self, prepared: Sequence[PreparedBatch]) -> None:
        """Write letters in one flush, or a few; blocks until they are durable."""
        pending: list[Pending] = []
        try:
            for batch in prepared:
                # Awaited: below, as soon as all are submitted. Part of an acknowledgement, so it
                # goes on where the disk is nearly full.
                pending.append(  # noqa: PERF401 - those before one that is refused are awaited too.
                    self._group_commit.submit(PushStream(), batch, awaited=True, uses_reserve=True)
                )
        finally:
            results = [submitted.outcome() for submitted in pending]
        for result in results:
            # A repeat whose first result is no longer remembered was written all the same.
            if isinstance(result, Rejected) and not isinstance(result.error, OutOfOrderSequence):
                raise result.error

    def _letters(
        self, letter: ArchivedRange, ids: Sequence[str], rows: Mapping[int, _Row]
    ) -> pa.RecordBatch:
        """Return dead letters as a batch of a row each."""
        offsets = range(letter.first, letter.last + 1)
        found = [rows.get(offset, (None, None)) for offset in offsets]
        count = len(ids)
        columns: list[Sequence[Any]] = [
            ids,
            [str(letter.topic)] * count,
            [letter.partition] * count,
            offsets,
            [self._group.name] * count,
            [letter.delivery_count] * count,
            [letter.cause] * count,
            [letter.reason] * count,
            [timestamp for timestamp, _ in found],
            [now_us()] * count,
            [None if row is None else payload_of(row) for _, row in found],
        ]
        arrays = [
            pa.array(values, field.type)
            for values, field in zip(columns, DEAD_LETTER_SCHEMA, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=DEAD_LETTER_SCHEMA)


def _joined(letters: Iterable[ArchivedRange]) -> Iterator[ArchivedRange]:
    """Yield letters, neighbours that tell the same as one: so their rows are fetched together."""
    told = ((each.first, each.last, replace(each, first=0, last=0)) for each in letters)
    for first, last, letter in merged(told):
        yield replace(letter, first=first, last=last)


def _pieces(letter: ArchivedRange) -> Iterator[ArchivedRange]:
    """Cut a letter's range into pieces of a bounded number of messages."""
    for first in range(letter.first, letter.last + 1, PIECE_MESSAGES):
        yield replace(letter, first=first, last=min(letter.last, first + PIECE_MESSAGES - 1))


def _rows_by_offset(piece: _Piece, topic: Topic) -> dict[int, _Row]:
    """Return the rows of a topic that were found, by offset; blocks for their fetch.

    Raises:
        Unavailable: Some could not be read now; later they may be.
        ResourceExhausted: The same.
        SchemaMismatch: The same: the schema has grown since it was looked up.
    """
    if piece.records is None:
        return {}
    found = rows_of(piece.records)
    if isinstance(found.error, (Unavailable, ResourceExhausted, SchemaMismatch)):
        raise found.error
    names = topic.schema.names
    return {offset: row for batch in found.batches for offset, row in _each_row(batch, names)}


def _each_row(batch: pa.RecordBatch, names: Sequence[str]) -> Iterable[tuple[int, _Row]]:
    offsets: list[int] = batch.column(OFFSET_FIELD.name).to_pylist()  # pyright: ignore[reportAssignmentType] - none is null
    timestamps = batch.column(TIMESTAMP_FIELD.name).cast(pa.int64()).to_pylist()
    rows = batch.select(list(names))
    return (
        (offset, (timestamp, rows.slice(index, 1)))
        for index, (offset, timestamp) in enumerate(zip(offsets, timestamps, strict=True))
    )


def _read(payload: pa.Buffer, schema: pa.Schema, *, unmarked: bool) -> pa.RecordBatch:
    stream = pa.BufferOutputStream()
    stream.write(schema.serialize())
    stream.write(payload)
    try:
        with pa.ipc.open_stream(stream.getvalue()) as reader:
            found = reader.read_next_batch_with_custom_metadata()
    except (pa.ArrowInvalid, OSError, StopIteration) as error:
        raise InvalidArgument(f"its payload is damaged or has other columns: {error}") from None
    metadata = found.custom_metadata or {}
    fingerprint = metadata.get(_FINGERPRINT)
    fits = unmarked if fingerprint is None else fingerprint == _fingerprint(schema)
    if not fits:
        raise InvalidArgument("its payload has other columns, of a topic of the same name")
    return found.batch


def _fingerprint(schema: pa.Schema) -> bytes:
    columns = "\n".join(f"{field.name!r}: {field.type}" for field in schema)
    return hashlib.sha256(columns.encode()).hexdigest()[:32].encode()
