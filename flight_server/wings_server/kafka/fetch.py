"""`Fetch`: one read of many partitions within bounds of bytes, which waits without a thread.

    open ─▶ read the topics in turn, a share of each partition ─▶ too few: wait ─▶ read ─▶ answer

As `http.fetch`, but counted in bytes of record batches, which are encoded as they are read.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import numpy as np
import pyarrow as pa
from kio.schema.errors import ErrorCode

from wings_core.contracts.reads import ReadOptions
from wings_core.errors import OffsetOutOfRange, WingsError
from wings_core.fetch.chunks import FetchedChunk
from wings_core.fetch.cursors import PartitionCursor
from wings_core.fetch.fetcher import UNLIMITED, Read
from wings_core.fetch.selection import Selection
from wings_core.fetch.state import FetchState
from wings_core.model import Topic
from wings_core.partitions import Partition
from wings_core.security.principal import Principal
from wings_core.times import Deadline
from wings_server.kafka import json_records, topics
from wings_server.kafka.errors import KafkaError, code_of
from wings_server.kafka.messages import Request, Values
from wings_server.kafka.record_types import Records
from wings_server.kafka.records import encode, records_of, sizes_of
from wings_server.kafka.service import KafkaService
from wings_server.waiting import WaitingCall

TOPIC_IDS_FROM = 13
"""Version from which topics are named by their ids."""

WAIT_SECONDS_MAX = 300.0
_WITH_TIMES = ReadOptions(system_columns=True)
WaitsOf = Callable[[WaitingCall], None]


@dataclass(slots=True, eq=False)
class _Entry:
    """One partition of a request, and the batches read of it so far."""

    asked: Any
    cursor: PartitionCursor | None = None
    """None if it cannot be read at all."""
    topic: Topic | None = None
    batches: list[bytearray] = field(default_factory=list[bytearray])
    bytes: int = 0
    rows: int = 0
    is_paused: bool = False
    """True once it has its share of the response's bytes, and perhaps more rows."""
    share: int = 0
    """The share that it was read with last."""
    error: Exception | None = None

    @property
    def has_rows(self) -> bool:
        """Whether there may be more of it now."""
        cursor = self.cursor
        return cursor is not None and (self.is_paused or cursor.offset < cursor.stop)

    def bytes_max(self, share: int) -> int:
        """Return the most bytes of it, given its share of the response."""
        return min(share, self.asked.partition_max_bytes)

    def pause(self, offset: int, share: int) -> None:
        """Read no more of it at this share, and go on at an offset."""
        assert self.cursor is not None
        self.is_paused, self.share = True, share
        self.cursor.offset = self.cursor.stop = offset

    def resume(self, read: Read) -> None:
        """Read on, as its share of the bytes has grown."""
        assert self.cursor is not None
        self.is_paused = False
        read.rotation.extend(self.cursor, self.cursor.log_end)

    def values(self) -> Values:
        """Return its part of the response."""
        end = -1 if self.cursor is None else self.cursor.log_end
        start = -1 if self.cursor is None else self.cursor.log_start
        error = self.error
        if isinstance(error, OffsetOutOfRange):
            start = error.log_start_offset or start
        return {
            "partition_index": self.asked.partition,
            "error_code": ErrorCode.none if error is None else code_of(error),
            "high_watermark": end,
            "last_stable_offset": end,
            "log_start_offset": start,
            "records": b"".join(self.batches) if error is None else b"",
        }


@dataclass(slots=True, eq=False)
class _TopicRead:
    """The partitions of one topic, which are read together."""

    read: Read
    entries: dict[Partition, _Entry]


class Poll:
    """One fetch. Its methods block for reads alone, and may run on any thread, one at a time.

    Args:
        service: The service.
        principal: The caller.
        request: The request.
        deadline: When it is answered with fewer bytes than it asks for.
    """

    def __init__(
        self, service: KafkaService, principal: Principal, request: Request, deadline: Deadline
    ) -> None:
        body = request.body
        self.deadline = deadline
        self._service = service
        self._fetcher = service.fetcher
        self._request = request
        self._bytes = 0
        self._bytes_min = body.min_bytes
        self._bytes_max = max(1, min(body.max_bytes, service.log.limits.http_bytes_max))
        self._named: list[tuple[Any, list[_Entry]]] = []
        self._reads: list[_TopicRead] = []
        self._state = FetchState(deadline, UNLIMITED, UNLIMITED)
        for each in body.topics:
            entries = [_Entry(part) for part in each.partitions]
            self._named.append((each, entries))
            self._open(principal, each, entries)

    def _open(self, principal: Principal, named: Any, entries: Sequence[_Entry]) -> None:
        """Find a topic and where its partitions stand."""
        service, of_partition = self._service, dict[Partition, _Entry]()
        topic: Topic | None = None
        for entry in entries:
            try:
                if topic is None:
                    topic = self._found(principal, named)
                partition = topics.partition_at(topic, entry.asked.partition)
                if partition in of_partition or entry.asked.fetch_offset < 0:
                    raise KafkaError(ErrorCode.offset_out_of_range, "no offset, or named twice")
                entry.topic = topic
                entry.cursor = PartitionCursor(partition, entry.asked.fetch_offset)
                of_partition[partition] = entry
            except (KafkaError, WingsError) as error:
                entry.error = error
                service.metrics.failed("kafka", code_of(error).name)
        if topic is not None and of_partition:
            cursors = [each.cursor for each in of_partition.values() if each.cursor is not None]
            selection = Selection.of(topic, _WITH_TIMES) if topics.is_json(topic) else None
            read = Read.of(topic, cursors, selection)
            read.failures = {}
            read.counted = len(cursors)
            self._reads.append(_TopicRead(read, of_partition))

    def _found(self, principal: Principal, named: Any) -> Topic:
        service = self._service
        if self._request.head.version < TOPIC_IDS_FROM:
            return service.topics.readable(service.gate, principal, named.topic)
        topic = service.topics.find_id(named.topic_id)
        service.gate.allow(principal, "read", str(topic.name))
        return topic

    def advance(self) -> bytes | None:
        """Read what is committed; return the response, or None where the caller is to wait."""
        for each in self._reads:
            self._fetcher.hear(each.read)
        self._read()
        is_done = (
            self._bytes >= self._bytes_min
            or self.deadline.passed
            or any(entry.error is not None or entry.is_paused for entry in self._entries)
            or not self._reads
        )
        return self._response() if is_done else None

    def watch(self, callback: Callable[[], None]) -> AbstractContextManager[None]:
        """Call back on commits that are worth another `advance`; see `Fetcher.watch`."""
        return self._fetcher.watch([each.read for each in self._reads], callback)

    @property
    def _entries(self) -> Iterator[_Entry]:
        return (entry for _, entries in self._named for entry in entries)

    def _read(self) -> None:
        """Read a slice of each partition at a time, up to its share of the bytes."""
        while self._bytes < self._bytes_max:
            live = [entry for entry in self._entries if entry.has_rows]
            share = self._bytes_max // max(1, len(live))
            for each in self._reads:
                for entry in each.entries.values():
                    if entry.is_paused and entry.bytes_max(share) > entry.bytes_max(entry.share):
                        entry.resume(each.read)
            ready = [each for each in self._reads if each.read.rotation.ready]
            if not ready:
                return
            for each in ready:
                self._turn(each, share)

    def _turn(self, some: _TopicRead, share: int) -> None:
        """Read a slice of the partitions of a topic, until one of them has its share."""
        read = some.read
        assert read.failures is not None
        try:
            with closing(self._fetcher.turn(read, self._state)) as chunks:
                for chunk in chunks:
                    if self._keep(some, chunk, share):
                        break
        except WingsError as error:
            self._reads.remove(some)
            for partition in some.entries:
                read.failures.setdefault(partition, error)
        for partition, entry in some.entries.items():
            cursor = entry.cursor
            error: Exception | None = read.failures.get(partition)
            if cursor is not None and cursor.stop == cursor.offset > cursor.log_end:
                error = KafkaError(ErrorCode.offset_out_of_range)
            # What was read before an error is delivered first.
            if error is not None and entry.error is None and not entry.batches:
                entry.error = error
                self._service.metrics.failed("kafka", code_of(error).name)

    def _keep(self, some: _TopicRead, chunk: FetchedChunk, share: int) -> bool:
        """Encode rows for the response; returns whether a partition has its share of the bytes."""
        at, is_paused = 0, False
        for partition, start_offset, _, count in chunk.ranges:
            entry = some.entries[partition]
            rows = chunk.batch.slice(at, count)
            kept = self._keep_rows(entry, rows, start_offset, share)
            at += count
            if kept < count:
                assert entry.cursor is not None
                entry.pause(start_offset + kept, share)
            elif entry.bytes >= entry.bytes_max(share) and entry.has_rows:
                entry.pause(start_offset + count, share)
            is_paused |= entry.is_paused
        return is_paused

    def _keep_rows(self, entry: _Entry, rows: pa.RecordBatch, offset: int, share: int) -> int:
        """Encode as many rows as fit; returns how many."""
        assert entry.topic is not None
        is_json = topics.is_json(entry.topic)
        kept = 0
        for found in json_records.records_of(rows) if is_json else (records_of(rows),):
            taken = self._keep_records(entry, found, offset + kept, share)
            kept += taken
            if taken < len(found.value):
                break
        return kept

    def _keep_records(self, entry: _Entry, found: Records, offset: int, share: int) -> int:
        """Encode as many records as fit; returns how many.

        One fits in any case if the response is empty, and if the partition has none yet as long as
        the response has room for it: a long record does not stop its consumer.
        """
        room = entry.bytes_max(share) - entry.bytes
        left = self._bytes_max - self._bytes
        sizes = np.cumsum(sizes_of(found))
        kept = int(np.searchsorted(sizes, min(room, left), side="right"))
        if not kept and not entry.bytes and (not self._bytes or sizes[0] <= left):
            kept = 1
        if kept:
            batch = encode(offset, Records(*[cast("Any", column)[:kept] for column in found]))
            entry.batches.append(batch)
            entry.bytes += len(batch)
            entry.rows += kept
            self._bytes += len(batch)
        return kept

    def _response(self) -> bytes:
        responses: list[Values] = []
        rows = 0
        for named, entries in self._named:
            name = getattr(named, "topic_id", None) or getattr(named, "topic", None)
            key = "topic_id" if self._request.head.version >= TOPIC_IDS_FROM else "topic"
            responses.append({key: name, "partitions": [entry.values() for entry in entries]})
            for entry in entries:
                rows += entry.rows
                if entry.topic is not None and entry.rows:
                    traffic = self._service.metrics.traffic
                    traffic.delivered(entry.topic.name, entry.rows, entry.bytes)
        self._service.metrics.delivered("kafka", rows, self._bytes)
        return self._request.response({"responses": responses})


async def fetch(
    service: KafkaService, principal: Principal, request: Request, waits: WaitsOf
) -> bytes:
    """Answer `Fetch`, waiting where there is too little; holds no thread meanwhile.

    Args:
        service: The service.
        principal: The caller.
        request: The request.
        waits: Called with the wait, to be ended if the client goes away.
    """
    seconds = min(request.body.max_wait.total_seconds(), WAIT_SECONDS_MAX)
    deadline = Deadline(time.monotonic() + seconds)
    service.metrics.fetch_begun("kafka")
    poll, answer = await service.read(partial(_begin, service, principal, request, deadline))
    if answer is not None:
        return answer
    with service.waiting.one(None, principal) as wake, ExitStack() as watch:
        waits(wake)
        await service.read(lambda: watch.enter_context(poll.watch(wake.notify)))
        while True:
            await wake.wait(deadline)
            answer = await service.read(poll.advance)
            if answer is not None:
                return answer


def _begin(
    service: KafkaService, principal: Principal, request: Request, deadline: Deadline
) -> tuple[Poll, bytes | None]:
    poll = Poll(service, principal, request, deadline)
    return poll, poll.advance()
