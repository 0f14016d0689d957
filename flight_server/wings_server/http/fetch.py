"""`POST /v1/fetch`: one read of many partitions, under one budget and one deadline.

    open ─▶ read in turns, a slice of each ─▶ too few: wait once ─▶ read ─▶ … ─▶ answer

All but the wait runs on a few threads; a waiting call holds none of them. Messages become JSON only
at the end, all of a partition at once.
"""

import json
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, cast

import pyarrow as pa
from pydantic import JsonValue

from wings_core.errors import SchemaMismatch, WingsError
from wings_core.fetch.chunks import Chunk
from wings_core.fetch.fetcher import LOCATE_ROWS_MAX, Cursor, Fetcher
from wings_core.fetch.selection import Selection
from wings_core.fetch.state import FetchState
from wings_core.json_rows import EncodedRows, encode_rows_within
from wings_core.log import Log
from wings_core.model import Located, LocatedPartition, Position, Topic
from wings_core.names import TopicName
from wings_core.partitions import Partition, partition_of
from wings_core.times import Deadline
from wings_server.http.bodies import FetchRequest
from wings_server.http.together import Slice, may_share, read_together

_NONE = EncodedRows(b"", 0)

_OFFSETS_BYTES_MAX = 60
"""The most bytes by which offsets make a result longer than one without messages."""


@dataclass(slots=True)
class _Entry:
    """One partition of a request, and the chunks read of it so far."""

    topic: TopicName
    partition_value: JsonValue
    offset: int
    """The offset of the request."""
    cursor: Cursor | None = None
    """None once nothing more is read."""
    chunks: list[Chunk] = field(default_factory=list[Chunk])
    bytes: int = 0
    """Of the chunks, as Arrow data."""
    error: WingsError | None = None

    @property
    def has_rows(self) -> bool:
        """Whether the last read left messages."""
        return self.cursor is not None and self.cursor.has_rows


@dataclass(frozen=True, slots=True)
class _Found:
    """What was found of an entry's partition."""

    where: LocatedPartition
    offset: int
    """From where on."""
    asked_at: float
    """When, by the monotonic clock."""

    @property
    def located(self) -> Located:
        state = self.where.state
        return Located(
            self.where.locations, state.log_start_offset, state.next_offset, self.asked_at
        )


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
        self._registry = log.registry
        self._fetcher = fetcher
        self._many = log.many
        self._versions = log.versions
        self._bytes = 0
        self._bytes_max = log.limits.http_bytes_max
        self._entries = _open_entries(log, request)
        live = sum(1 for entry in self._entries if entry.cursor is not None)
        body = request.body
        self._state = FetchState(deadline, body.min_messages, body.max_messages, max(1, live))

    def advance(self) -> "Answer | None":
        """Read what is committed; return the answer, or None where the caller is to wait."""
        return self._answer() if self._read() else None

    def watch(self, callback: Callable[[], None]) -> AbstractContextManager[None]:
        """Call back on commits that are worth another `advance`; see `OffsetRegistry.watch`."""
        cursors = [entry.cursor for entry in self._entries if entry.cursor is not None]
        positions = [
            Position(cursor.topic.uuid, cursor.partition, cursor.offset) for cursor in cursors
        ]
        return self._registry.watch(positions, callback)

    def _read(self) -> bool:
        """Read what is committed, within the budget; return whether the fetch is complete.

        A slice of the budget of each at a time, those of one topic together, the others round-robin
        from a random first one, and none exceeds its share of the bytes: no partition starves
        another. A partition that fails ends alone, with the messages before its error.
        """
        moved, cut = True, False
        while moved and not self._full:
            live = self._live
            located = self._locate(live)
            share = self._bytes_max // max(1, sum(1 for entry in live if entry.has_rows))
            alone = self._read_together(live, share, located)
            moved, cut = len(alone) < len(live), False
            first = random.randrange(len(alone)) if alone else 0
            for entry in alone[first:] + alone[:first]:
                if self._full:
                    break
                if entry.bytes >= share:
                    cut = cut or entry.has_rows
                else:
                    moved = self._read_slice(entry, share, located.get(id(entry))) or moved
        return self._full or cut or self._state.enough or self.deadline.passed or not self._live

    def _answer(self) -> "Answer":
        """Return the answer, its messages as JSON."""
        results: list[bytes] = []
        topics: list[tuple[TopicName, int, int]] = []
        messages = 0
        frame = sum(len(_result(entry, _NONE)) + _OFFSETS_BYTES_MAX for entry in self._entries)
        room = self._bytes_max - frame
        partitions = sum(1 for entry in self._entries if entry.chunks)
        for entry in self._entries:
            encoded = _NONE
            if entry.chunks:
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

    @property
    def _live(self) -> list[_Entry]:
        return [entry for entry in self._entries if entry.cursor is not None]

    @property
    def _full(self) -> bool:
        # More Arrow data than this makes more JSON than an answer may have.
        return self._state.full or self._bytes >= self._bytes_max

    def _locate(self, live: Sequence[_Entry]) -> dict[int, _Found]:
        """Look where the entries of one topic stand, all with one call, a slice of each.

        Returns:
            By the entry's identity; without those that are looked at by themselves: of a topic with
            one entry alone, and what fails, so that it fails that entry.
        """
        topics: dict[str, list[tuple[_Entry, Cursor]]] = {}
        for entry in live:
            if entry.cursor is not None:
                topics.setdefault(entry.cursor.topic.uuid, []).append((entry, entry.cursor))
        wanted = max(1, self._state.max_messages - self._state.delivered)
        # The budget's slices: what is left, shared by those that still have rows.
        sharing = max(1, sum(1 for entry in live if entry.has_rows))
        each = max(1, min(LOCATE_ROWS_MAX, wanted // sharing))
        found: dict[int, _Found] = {}
        for uuid, entries in topics.items():
            if len(entries) == 1:
                continue
            asked_at = time.monotonic()
            positions = [(cursor.partition, cursor.offset) for _, cursor in entries]
            try:
                located = self._registry.locate_many(uuid, positions, each)
            except WingsError:
                continue
            for (entry, cursor), where in zip(entries, located, strict=False):
                if cursor.offset >= where.state.log_start_offset:
                    found[id(entry)] = _Found(where, cursor.offset, asked_at)
        return found

    def _read_together(
        self, live: Sequence[_Entry], share: int, located: Mapping[int, _Found]
    ) -> list[_Entry]:
        """Read slices of entries of one topic together; return those to be read by themselves."""
        alone: list[_Entry] = []
        groups: dict[tuple[str, int], dict[Partition, tuple[_Entry, Slice]]] = {}
        for entry in live:
            found, cursor = located.get(id(entry)), entry.cursor
            if found is not None and cursor is not None:
                part = Slice(cursor, found.where, share - entry.bytes)
                if may_share(part):
                    key = cursor.topic.uuid, cursor.topic.schema_version
                    groups.setdefault(key, {})[cursor.partition] = entry, part
                    continue
            alone.append(entry)
        for group in groups.values():
            slices = [part for _, part in group.values()]

            def deliver(
                partition: Partition,
                chunk: Chunk,
                group: Mapping[Partition, tuple[_Entry, Slice]] = group,
            ) -> None:
                self._take(group[partition][0], chunk)

            if len(slices) < 2 or not read_together(self._many, slices, self._state, deliver):
                alone += [entry for entry, _ in group.values()]
                continue
            for cursor, where, _ in slices:
                has_rows = cursor.offset < where.state.next_offset
                self._fetcher.count_rows(cursor, self._state, has_rows)
        return alone

    def _take(self, entry: _Entry, chunk: Chunk) -> None:
        """Keep a chunk for the answer."""
        entry.chunks.append(chunk)
        size = chunk.batch.nbytes  # Counted anew at each look.
        entry.bytes += size
        self._bytes += size

    def _read_slice(self, entry: _Entry, bytes_max: int, found: _Found | None) -> bool:
        """Read one slice, until the entry has so many bytes; return whether the cursor moved."""
        cursor = entry.cursor
        assert cursor is not None
        before = cursor.offset
        # What was read with others, up to where one of them failed, is looked up again.
        located = found.located if found is not None and found.offset == before else None
        try:
            for chunk in self._fetcher.take_slice(cursor, self._state, located):
                self._take(entry, chunk)
                if self._full or entry.bytes >= bytes_max:
                    break
        except WingsError as error:
            if isinstance(error, SchemaMismatch) and not entry.chunks and self._renew(cursor):
                return True
            entry.error = None if entry.chunks else error
            entry.cursor = None
            if cursor.has_rows:
                self._state.leave_rows()
        return cursor.offset != before

    def _renew(self, cursor: Cursor) -> bool:
        """Read on with what a topic's schema has become; False where it is the same."""
        try:
            newest = self._versions.look_again(cursor.topic)
        except WingsError:
            return False
        if newest.schema_version == cursor.topic.schema_version:
            return False
        cursor.topic, cursor.selection = newest, Selection.of(newest)
        return True


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a fetch."""

    body: bytes
    messages: int
    errors: tuple[str, ...]
    """The codes of the partitions that failed."""
    topics: tuple[tuple[TopicName, int, int], ...] = ()
    """The topic, the messages and the bytes of each partition that has any."""


def _open_entries(log: Log, request: FetchRequest) -> list[_Entry]:
    topics: dict[TopicName, Topic] = {}
    for name in request.topics:
        if name not in topics:
            topics[name] = log.admin.get_topic(name)
    selections = {name: Selection.of(topic) for name, topic in topics.items()}
    entries: list[_Entry] = []
    for name, asked in zip(request.topics, request.body.topics, strict=True):
        entry = _Entry(name, asked.partition_value, asked.offset)
        try:
            partition = partition_of(asked.partition_value, topics[name].key_type)
            entry.cursor = Cursor(topics[name], partition, asked.offset, selections[name])
        except WingsError as error:
            entry.error = error
        entries.append(entry)
    return entries


def _encode(entry: _Entry, bytes_max: int, *, rows_min: int) -> EncodedRows:
    """Encode as many of an entry's messages as fit; one too long for JSON fails the entry."""
    if bytes_max <= 0 and rows_min == 0:
        return _NONE
    batches = [chunk.batch for chunk in entry.chunks]
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
