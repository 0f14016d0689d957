"""`POST /v1/fetch`: one read of many partitions, under one budget and one deadline.

    open ─▶ read the topics in turn, a slice of each ─▶ too few: wait once ─▶ read ─▶ … ─▶ answer

All but the wait runs on a few threads; a waiting call holds none of them. Messages become JSON only
at the end, all of a partition at once.
"""

import json
import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import dataclass, field
from typing import Any, cast

import pyarrow as pa
from pydantic import JsonValue

from wings_core.errors import SchemaMismatch, WingsError
from wings_core.fetch.chunks import FetchedChunk
from wings_core.fetch.cursors import PartitionCursor
from wings_core.fetch.fetcher import Fetcher, Read
from wings_core.fetch.state import FetchState
from wings_core.json_rows import EncodedRows, encode_rows_within
from wings_core.log import Log
from wings_core.model import Topic
from wings_core.names import TopicName
from wings_core.partitions import Partition, partition_of
from wings_core.times import Deadline
from wings_server.http.bodies import FetchRequest

_NONE = EncodedRows(b"", 0)

_OFFSETS_BYTES_MAX = 60
"""The most bytes by which offsets make a result longer than one without messages."""


@dataclass(slots=True, eq=False)
class _Entry:
    """One partition of a request, and the rows read of it so far."""

    topic: TopicName
    partition_value: JsonValue
    offset: int
    """The offset of the request."""
    cursor: PartitionCursor | None = None
    """None where nothing more is read of it."""
    read: Read | None = None
    """The read that its cursor is of."""
    batches: list[pa.RecordBatch] = field(default_factory=list[pa.RecordBatch])
    bytes: int = 0
    """The size of the batches, as Arrow data."""
    is_paused: bool = False
    """Whether the read has its share of the response's bytes, and perhaps more rows to read."""
    error: WingsError | None = None

    @property
    def has_rows(self) -> bool:
        """Whether there may be more of it now."""
        cursor = self.cursor
        return cursor is not None and (self.is_paused or cursor.offset < cursor.stop)

    def keep(self, rows: pa.RecordBatch, share: int) -> int:
        """Keep rows for the answer, and pause once they reach a share; returns their bytes."""
        self.batches.append(rows)
        size = rows.nbytes  # Counted anew at each look.
        self.bytes += size
        if self.bytes >= share and self.cursor is not None and self.has_rows:
            self.is_paused = True
            self.cursor.stop = self.cursor.offset
        return size

    def resume(self) -> None:
        """Read on, as its share of the answer's bytes has grown."""
        assert self.cursor is not None
        assert self.read is not None
        self.is_paused = False
        self.read.rotation.extend(self.cursor, self.cursor.log_end)


@dataclass(slots=True, eq=False)
class _TopicRead:
    """The entries of one topic, which are read together."""

    read: Read
    entries: dict[Partition, _Entry]

    @classmethod
    def of(cls, topic: Topic, entries: Sequence[_Entry]) -> "_TopicRead":
        cursors = [each.cursor for each in entries if each.cursor is not None]
        read = Read.of(topic, cursors)
        for each in entries:
            each.read = read
        read.failures = {}
        read.counted = len(cursors)
        read.rotation.skip(random.randrange(len(cursors)))  # Where a budget is small, others begin.
        return cls(read, {c.partition: e for c, e in zip(cursors, entries, strict=True)})


class Poll:
    """One fetch. Its methods block for reads alone and may run on any thread, one at a time.

    Args:
        log: The log.
        fetcher: Reads the log in chunks that are small against an answer.
        request: The partitions, offsets and bounds.
        deadline: When the fetch is answered with fewer than `min_messages`.

    Raises:
        NotFound: A topic or the namespace does not exist.
    """

    def __init__(
        self, log: Log, fetcher: Fetcher, request: FetchRequest, deadline: Deadline
    ) -> None:
        self.deadline = deadline
        self._fetcher = fetcher
        self._versions = log.versions
        self._bytes = 0
        self._bytes_max = log.limits.http_bytes_max
        topics: dict[TopicName, Topic] = {}
        for name in request.topics:
            if name not in topics:
                topics[name] = log.admin.get_topic(name)
        self._entries = _open_entries(topics, request)
        of_topics: dict[TopicName, list[_Entry]] = {}
        for entry in self._entries:
            if entry.cursor is not None:
                of_topics.setdefault(entry.topic, []).append(entry)
        self._reads = [_TopicRead.of(topics[name], some) for name, some in of_topics.items()]
        live = sum(len(each.entries) for each in self._reads)
        body = request.body
        self._state = FetchState(deadline, body.min_messages, body.max_messages, max(1, live))

    def advance(self) -> "Answer | None":
        """Read what is committed; return the answer, or None where the caller is to wait."""
        return self._answer() if self._read() else None

    def watch(self, callback: Callable[[], None]) -> AbstractContextManager[None]:
        """Call back on commits that are worth another `advance`; see `Fetcher.watch`."""
        return self._fetcher.watch([each.read for each in self._reads], callback)

    def _read(self) -> bool:
        """Read what is committed, within the budget; return whether the fetch is complete.

        A slice of the budget of each topic at a time, and none of its partitions exceeds its share
        of the bytes: no partition starves another. A partition that fails ends alone, with the
        messages before its error.
        """
        for each in self._reads:
            self._fetcher.hear(each.read)
        while not self._full:
            live = [entry for entry in self._entries if entry.has_rows]
            share = self._bytes_max // max(1, len(live))
            for entry in live:
                if entry.is_paused and entry.bytes < share:
                    entry.resume()
            ready = [each for each in self._reads if each.read.rotation.ready]
            if not ready:
                # What is paused has its share: more of it would not fit.
                break
            for each in random.sample(ready, len(ready)):
                if self._full:
                    break
                self._turn(each, share)
        return (
            self._full
            or any(entry.is_paused for entry in self._entries)
            or self._state.enough
            or self.deadline.passed
            or not self._reads
        )

    @property
    def _full(self) -> bool:
        # More Arrow data than this makes more JSON than an answer may have.
        return self._state.full or self._bytes >= self._bytes_max

    def _turn(self, some: _TopicRead, share: int) -> None:
        """Read a slice of the entries of a topic, until one of them has its share of the bytes."""
        read = some.read
        assert read.failures is not None
        try:
            with closing(self._fetcher.turn(read, self._state)) as chunks:
                for chunk in chunks:
                    if self._keep(some, chunk, share) or self._full:
                        break
        except WingsError as error:
            for partition in some.entries:
                read.failures.setdefault(partition, error)
        failed = [
            (some.entries.pop(partition), error)
            for partition, error in read.failures.items()
            if partition in some.entries
        ]
        read.failures.clear()
        self._fail(read.topic, failed)
        if not some.entries:
            self._reads.remove(some)

    def _keep(self, some: _TopicRead, chunk: FetchedChunk, share: int) -> bool:
        """Keep a chunk for the answer; return whether an entry has its share of the bytes."""
        at = 0
        paused = False
        for partition, _, _, rows in chunk.ranges:
            entry = some.entries[partition]
            self._bytes += entry.keep(chunk.batch.slice(at, rows), share)
            paused = paused or entry.is_paused
            at += rows
        return paused

    def _fail(self, topic: Topic, failed: Sequence[tuple[_Entry, WingsError]]) -> None:
        """End entries, or read on with what the topic's schema has become, looked up once."""
        newest = topic
        if any(isinstance(error, SchemaMismatch) and not entry.batches for entry, error in failed):
            with suppress(WingsError):
                newest = self._versions.look_again(topic)
        again: list[_Entry] = []
        for entry, error in failed:
            cursor, entry.cursor = entry.cursor, None
            entry.is_paused = False
            if entry.batches:
                continue
            is_newer = newest.schema_version != topic.schema_version
            if isinstance(error, SchemaMismatch) and cursor is not None and is_newer:
                entry.cursor = PartitionCursor(cursor.partition, entry.offset)
                again.append(entry)
            else:
                entry.error = error
        if again:
            self._reads.append(_TopicRead.of(newest, again))

    def _answer(self) -> "Answer":
        """Return the answer, its messages as JSON."""
        results: list[bytes] = []
        topics: list[tuple[TopicName, int, int]] = []
        messages = 0
        frame = sum(len(_result(entry, _NONE)) + _OFFSETS_BYTES_MAX for entry in self._entries)
        room = self._bytes_max - frame
        partitions = sum(1 for entry in self._entries if entry.batches)
        for entry in self._entries:
            encoded = _NONE
            if entry.batches:
                # Each gets an equal share of what is left; the first message of all always fits.
                encoded = _encode(entry, room // partitions, rows_min=0 if messages else 1)
                partitions -= 1
                room -= len(encoded.text)
                messages += encoded.rows
                topics.append((entry.topic, encoded.rows, len(encoded.text)))
            results.append(_result(entry, encoded))
        errors = tuple(entry.error.code for entry in self._entries if entry.error is not None)
        return Answer(
            b'{"topics": [' + b", ".join(results) + b"]}", messages, errors, tuple(topics)
        )


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a fetch."""

    body: bytes
    messages: int
    errors: tuple[str, ...]
    """The codes of the partitions that failed."""
    topics: tuple[tuple[TopicName, int, int], ...] = ()
    """The topic, the messages and the bytes of each partition that has any."""


def _open_entries(topics: dict[TopicName, Topic], request: FetchRequest) -> list[_Entry]:
    entries: list[_Entry] = []
    for name, asked in zip(request.topics, request.body.topics, strict=True):
        entry = _Entry(name, asked.partition_value, asked.offset)
        try:
            partition = partition_of(asked.partition_value, topics[name].key_type)
            entry.cursor = PartitionCursor(partition, asked.offset)
        except WingsError as error:
            entry.error = error
        entries.append(entry)
    return entries


def _encode(entry: _Entry, bytes_max: int, *, rows_min: int) -> EncodedRows:
    """Encode as many of an entry's messages as fit; one too long for JSON fails the entry."""
    if bytes_max <= 0 and rows_min == 0:
        return _NONE
    batches = entry.batches
    rows = batches[0] if len(batches) == 1 else cast("Any", pa).concat_batches(batches)
    try:
        return encode_rows_within(rows, bytes_max, rows_min=rows_min)
    except WingsError as error:
        entry.error = error
        return _NONE


def _result(entry: _Entry, encoded: EncodedRows) -> bytes:
    """Return one element of the answer's list."""
    name = {"topic": str(entry.topic), "partition_value": entry.partition_value}
    if entry.error is not None:
        error = {"message": entry.error.message, "code": entry.error.code}
        return json.dumps({"_tag": "error", **name, **error}).encode()
    end_offset = entry.offset + encoded.rows - 1
    fields = {
        "_tag": "success",
        **name,
        "start_offset": entry.offset,
        "end_offset": end_offset if encoded.rows else None,
        "next_offset": end_offset + 1,
    }
    return json.dumps(fields).encode()[:-1] + b', "messages": [' + encoded.text + b"]}"
