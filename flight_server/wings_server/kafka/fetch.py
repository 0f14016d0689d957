"""Reads of Kafka's clients: `Fetch`, and where partitions begin and end.

`Fetch` is one read of many partitions within bounds of bytes, which waits without a thread. Counted
in bytes of record batches, which are encoded as they are read.

`ListOffsets`; `OffsetForLeaderEpoch`, whose only epoch ends where the partition does; and
`DeleteRecords`, which has it begin later.
"""

import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from typing import Any, cast

import numpy as np
import pyarrow as pa
from kio.schema.errors import ErrorCode

from wings_core.contracts.reads import ReadOptions
from wings_core.errors import OffsetOutOfRange
from wings_core.fetch.cursors import PartitionCursor
from wings_core.fetch.fetcher import UNLIMITED
from wings_core.fetch.selection import Selection
from wings_core.fetch.state import FetchState
from wings_core.limits import MIB
from wings_core.metadata.deadlines import calls_until
from wings_core.model import Topic
from wings_core.partitions import Partition
from wings_core.security.principal import Principal, authorize
from wings_core.security.rights import Right
from wings_core.times import Deadline
from wings_server.flight.boundary import ClientGone
from wings_server.kafka import json_records, topics
from wings_server.kafka.errors import FAILURES, KafkaError, code_of
from wings_server.kafka.messages import HEAD, Head, Request, Values, answered_again
from wings_server.kafka.record_types import Records
from wings_server.kafka.records import TIMESTAMP_MAX, encode, ends_of, records_of
from wings_server.kafka.service import BEHIND_MAX, KafkaService, Result
from wings_server.shared_reads import (
    ReadEntry,
    SharedRead,
    TopicEntries,
    WaitingCall,
    answer_of,
    begun,
)

TOPIC_IDS_FROM = 13
"""Version from which topics are named by their ids."""

ZSTD_FROM = 10
"""Version from which clients know batches that are compressed by Zstandard."""

WAIT_SECONDS_MAX = 300.0

WAIT_BYTES_MAX = MIB
"""Most bytes that a fetch keeps while it waits for more; with these it is answered."""

KEPT_SECONDS = 60.0
"""Longest time for which a fetch that found nothing is kept, and says where the log begins."""

_WITH_TIMES = ReadOptions(system_columns=True)

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL = -1, -2, -3, -4
"""Values that stand in the place of a time."""

HIGH_WATERMARK = -1
"""Offset that stands for the end, where records are deleted."""

LEADER_EPOCH = 0
"""Epoch of each partition's leader, which never changes."""

_NOTHING = {"offset": -1, "timestamp": -1}


@dataclass(slots=True, eq=False, kw_only=True)
class _Asked(ReadEntry):
    """One partition of a request; its batches are encoded."""

    asked: Any
    topic: Topic | None = None
    rows: int = 0

    def bytes_max(self, share: int) -> int:
        """Return the most bytes of it, given its share of the response."""
        return min(share, self.asked.partition_max_bytes)

    def values(self) -> Values:
        """Return its part of the response."""
        cursor, error = self.cursor, self.error
        start = -1 if cursor is None else cursor.log_start
        # A client would take the end of a log that was not looked at for that of an empty one.
        end = -1 if cursor is None or start < 0 else cursor.log_end
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


class KafkaFetch(SharedRead[_Asked, bytes]):
    """One fetch; see `SharedRead`.

    Args:
        service: The service.
        principal: The caller.
        request: The request.
        arrived: When it arrived, by the monotonic clock.

    Attributes:
        nothing: Its response, if it waited in vain.
    """

    def __init__(
        self, service: KafkaService, principal: Principal, request: Request, arrived: float
    ) -> None:
        body, log = request.body, service.log
        bytes_max = max(1, min(body.max_bytes, log.limits.http_bytes_max))
        self._seconds = min(body.max_wait.total_seconds(), WAIT_SECONDS_MAX)
        self.nothing: bytes | None = None
        state = FetchState(Deadline(arrived + self._seconds), UNLIMITED, UNLIMITED)
        super().__init__(log, service.fetcher, state, bytes_max)
        self._service = service
        self._principal = principal
        self._request = request
        self._head = request.head
        self._named: list[tuple[Any, list[_Asked]]] = []
        for each in body.topics:
            entries = [_Asked(asked=part, offset=part.fetch_offset) for part in each.partitions]
            self._named.append((each, entries))
            self._entries += entries
            with calls_until(self.deadline):
                self._find(each, entries)

    @property
    def is_repeatable(self) -> bool:
        """Whether its response is that to the same request again, as long as nothing changes."""
        return self.nothing is not None and not self._request.throttled_ms

    def ask_again(self, head: Head, arrived: float) -> None:
        """Begin once more, after a wait in vain, for the same request."""
        self._head = head
        self.deadline = self._state.deadline = Deadline(arrived + self._seconds)

    def advance(self) -> bytes | None:
        """Read what is committed; see `SharedRead.advance`."""
        for entry in self._entries:
            try:
                self._take_kept(entry)
            except FAILURES as error:
                entry.error = error
        answer = super().advance()
        is_failed = any(entry.error is not None for entry in self._entries)
        is_vain = self.is_empty and bool(self._reads) and not is_failed
        self.nothing = answer if is_vain else None
        return answer

    def ended(self) -> bytes:
        """Return the response of a wait in vain."""
        if self.nothing is None:
            self.nothing = super().ended()
        return answered_again(self.nothing, self._head)

    def _find(self, named: Any, entries: Sequence[_Asked]) -> None:
        """Find a topic and where its partitions stand."""
        found: dict[Partition, _Asked] = {}
        topic: Topic | None = None
        for entry in entries:
            try:
                if topic is None:
                    topic = self._topic_of(named)
                partition = topics.partition_at(topic, entry.asked.partition)
                if partition in found or entry.offset < 0:
                    raise KafkaError(ErrorCode.offset_out_of_range, "no offset, or named twice")
                entry.topic = topic
                entry.cursor = PartitionCursor(partition, entry.offset)
                found[partition] = entry
            except FAILURES as error:
                entry.error = error
        if topic is not None:
            self._open(topic, list(found.values()))

    def _topic_of(self, named: Any) -> Topic:
        service = self._service
        if self._request.head.version < TOPIC_IDS_FROM:
            return service.topics.readable(service.gate, self._principal, named.topic)
        topic = service.topics.find_id(named.topic_id)
        service.gate.allow(self._principal, "read", str(topic.name))
        return topic

    def _selection(self, topic: Topic) -> Selection | None:
        return Selection.of(topic, _WITH_TIMES) if topics.is_json(topic) else None

    @property
    def _is_enough(self) -> bool:
        is_refused = any(entry.error is not None for entry in self._entries)
        return is_refused or self._bytes >= min(self._request.body.min_bytes, WAIT_BYTES_MAX)

    def _turn(self, some: TopicEntries[_Asked], share: int) -> None:
        super()._turn(some, share)
        for entry in some.of.values():
            cursor = entry.cursor
            if cursor is not None and cursor.stop == cursor.offset > cursor.log_end:
                entry.error = KafkaError(ErrorCode.offset_out_of_range)

    def _take_kept(self, entry: _Asked) -> None:
        """Take batches as they were produced, from where the entry stands on."""
        topic, cursor, kept = entry.topic, entry.cursor, self._service.kept
        if topic is None or cursor is None or entry.error is not None or entry.is_paused:
            return
        share = self._bytes_max // len(self._entries)
        batch = kept.at(topic.uuid, cursor.partition, cursor.offset)
        if batch is None:
            return
        with calls_until(self.deadline):
            state = self._service.log.registry.partition_state(topic.uuid, cursor.partition)
        if not state.log_start_offset <= cursor.offset < state.next_offset:
            return
        cursor.log_start, cursor.log_end = state.log_start_offset, state.next_offset
        takes_zstd = self._head.version >= ZSTD_FROM
        while batch is not None and (takes_zstd or not batch.is_zstd):
            if entry.bytes + len(batch.data) > entry.bytes_max(share):
                if entry.batches:
                    entry.pause(cursor.offset, share)
                return
            entry.batches.append(batch.data)
            entry.rows += batch.rows
            entry.bytes += len(batch.data)
            self._bytes += len(batch.data)
            cursor.offset += batch.rows
            batch = kept.at(topic.uuid, cursor.partition, cursor.offset)

    def _keep(self, entry: _Asked, rows: pa.RecordBatch, offset: int, share: int) -> int:
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

    def _keep_records(self, entry: _Asked, found: Records, offset: int, share: int) -> int:
        """Encode as many records as fit; returns how many.

        One fits in any case if the partitions before it have none, and if the partition has none
        yet as long as the response has room for it: a long record does not stop its consumer.
        """
        room = entry.bytes_max(share) - entry.bytes
        left = self._bytes_max - self._bytes
        ends = ends_of(found)
        kept = int(np.searchsorted(ends, min(room, left), side="right"))
        if not kept and not entry.bytes and (ends[0] <= left or self._is_first(entry)):
            kept = 1
        if kept:
            batch = encode(offset, Records(*[cast("Any", column)[:kept] for column in found]))
            assert entry.topic is not None
            assert entry.cursor is not None
            if entry.cursor.log_end - offset <= BEHIND_MAX and not topics.is_json(entry.topic):
                place = entry.topic.uuid, entry.cursor.partition, offset
                self._service.kept.keep(*place, batch, kept)
            entry.batches.append(batch)
            entry.bytes += len(batch)
            entry.rows += kept
            self._bytes += len(batch)
        return kept

    def _is_first(self, entry: _Asked) -> bool:
        """Return whether the response is not full, and has nothing of the partitions before it."""
        before = takewhile(lambda each: each is not entry, self._entries)
        return not self._is_full and not any(each.bytes for each in before)

    def _answer(self) -> bytes:
        responses: list[Values] = []
        rows = 0
        for named, entries in self._named:
            name = getattr(named, "topic_id", None) or getattr(named, "topic", None)
            key = "topic_id" if self._request.head.version >= TOPIC_IDS_FROM else "topic"
            responses.append({key: name, "partitions": [entry.values() for entry in entries]})
            for entry in entries:
                rows += entry.rows
                if entry.error is not None:
                    self._service.failed(entry.error)
                if entry.topic is not None and entry.rows:
                    traffic = self._service.metrics.traffic
                    traffic.delivered(entry.topic.name, entry.rows, entry.bytes)
        self._service.metrics.delivered("kafka", rows, self._bytes)
        return replace(self._request, head=self._head).response({"responses": responses})


@dataclass(slots=True, eq=False)
class _Call:
    """A fetch of a connection, under way or kept.

    Attributes:
        head: Beginning of the request.
        rest: Bytes of the request after it.
        wake: Notified of commits to its partitions.
        held: Its watch, and its place among the calls that wait.
        until: When it is kept no longer, by the monotonic clock.
        fetch: The read; None before it is opened.
    """

    head: Head
    rest: bytes
    wake: WaitingCall
    held: ExitStack
    until: float
    fetch: KafkaFetch | None = None

    def is_asked_by(self, head: Head, frame: memoryview) -> bool:
        """Tell whether a request is the same, but for its correlation id."""
        return (
            head[:2] == self.head[:2]
            and bytes(frame[HEAD.size :]) == self.rest
            and time.monotonic() < self.until
        )


class Fetches:
    """The fetches of one connection, which come one after another; for the event loop.

    An idle consumer asks the same again and again. A fetch that found nothing is kept with its
    watch, and the same request is answered by it: it is not parsed, looked up and written anew.

    Args:
        service: The service.
        principal: The caller.
    """

    def __init__(self, service: KafkaService, principal: Principal) -> None:
        self._service = service
        self._principal = principal
        self._under_way: _Call | None = None
        self._kept: _Call | None = None
        self._is_closed = False

    async def answer(
        self, head: Head, frame: memoryview, parsed: Callable[[], Awaitable[Request]]
    ) -> bytes:
        """Answer a request, waiting where there is too little; holds no thread meanwhile.

        Args:
            head: Its beginning.
            frame: All of it.
            parsed: Parses it.
        """
        self._service.metrics.fetch_begun("kafka")
        arrived = time.monotonic()
        call, self._kept = self._kept, None
        if call is not None and not call.is_asked_by(head, frame):
            call.held.close()
            call = None
        if call is None:
            wake, until = self._service.waiting.call(), arrived + KEPT_SECONDS
            call = _Call(head, bytes(frame[HEAD.size :]), wake, ExitStack(), until)
        self._under_way = call
        try:
            with call.held as held:
                answer = await self._answer(call, head, arrived, parsed)
                is_vain = call.fetch is not None and call.fetch.is_repeatable
                if is_vain and not self._is_closed:
                    call.held, self._kept = held.pop_all(), call
                return answer
        finally:
            self._under_way = None

    async def _answer(
        self, call: _Call, head: Head, arrived: float, parsed: Callable[[], Awaitable[Request]]
    ) -> bytes:
        if call.fetch is not None:
            call.fetch.ask_again(head, arrived)
            return await answer_of(call.fetch, call.wake, self._read)
        request = await parsed()
        opened = partial(KafkaFetch, self._service, self._principal, request, arrived)
        call.fetch, answer = await self._read(partial(begun, opened, call.wake, call.held))
        if answer is None or call.fetch.nothing is not None:
            call.held.enter_context(self._service.waiting.one(None, self._principal, call.wake))
        if answer is not None:
            return cast("bytes", answer)
        return await answer_of(call.fetch, call.wake, self._read)

    async def _read(self, work: Callable[[], Result]) -> Result:
        async with self._service.wire.answering():
            return await self._service.read(work)

    def forget(self) -> None:
        """End a kept fetch that was not asked for again in `KEPT_SECONDS`."""
        if self._kept is not None and time.monotonic() >= self._kept.until:
            self._drop_kept()

    def close(self) -> None:
        """End the fetch that is under way or kept, as its client has gone; no more is kept."""
        self._is_closed = True
        if self._under_way is not None:
            self._under_way.wake.set(ClientGone("the client has gone away"))
        self._drop_kept()

    def _drop_kept(self) -> None:
        if self._kept is not None:
            self._kept.held.close()
            self._kept = None


def list_offsets(service: KafkaService, principal: Principal, request: Request) -> Values:
    """Answer `ListOffsets`."""
    topic_of = service.topics.readable_by(service.gate, principal)
    return {
        "topics": [
            {"name": each.name, "partitions": _of_topic(service, topic_of, each)}
            for each in request.body.topics
        ]
    }


def _of_topic(
    service: KafkaService, topic_of: Callable[[str], Topic], asked: Any
) -> Sequence[Values]:
    found: list[Values] = []
    for part in asked.partitions:
        values: Values
        try:
            topic = topic_of(asked.name)
            partition = topics.partition_at(topic, part.partition_index)
            values = _offset_of(service, topic, partition, part.timestamp)
        except FAILURES as error:
            service.failed(error)
            values = {**_NOTHING, "error_code": code_of(error)}
        found.append({"partition_index": part.partition_index, **values})
    return found


def _offset_of(service: KafkaService, topic: Topic, partition: Partition, asked: int) -> Values:
    if TIMESTAMP_MAX >= asked >= 0:
        return _offset_at(service, topic, partition, asked)
    if asked > TIMESTAMP_MAX:
        return _NOTHING
    state = service.log.registry.partition_state(topic.uuid, partition)
    if asked == LATEST:
        return {"offset": state.next_offset, "timestamp": -1, "leader_epoch": LEADER_EPOCH}
    if asked in {EARLIEST, EARLIEST_LOCAL}:
        return {"offset": state.log_start_offset, "timestamp": -1, "leader_epoch": LEADER_EPOCH}
    raise KafkaError(ErrorCode.unsupported_version, f"no offset is known for {asked}")


def _offset_at(service: KafkaService, topic: Topic, partition: Partition, time: int) -> Values:
    """Return the first record whose own time is at or after one; of none, nothing."""
    found = service.fetcher.offset_at_time(topic, partition, time * 1_000)
    if found is None:
        return _NOTHING
    offset, found_time = found
    return {"offset": offset, "timestamp": found_time // 1_000, "leader_epoch": LEADER_EPOCH}


def leader_epochs(service: KafkaService, principal: Principal, request: Request) -> Values:
    """Answer `OffsetForLeaderEpoch`: the only epoch ends where the log does."""
    topic_of = service.topics.readable_by(service.gate, principal)
    return {
        "topics": [
            {
                "topic": each.topic,
                "partitions": [
                    _epoch_end(service, topic_of, each.topic, part) for part in each.partitions
                ],
            }
            for each in request.body.topics
        ]
    }


def _epoch_end(
    service: KafkaService, topic_of: Callable[[str], Topic], name: str, asked: Any
) -> Values:
    part: dict[str, Any] = {"partition": asked.partition}
    try:
        topic = topic_of(name)
        partition = topics.partition_at(topic, asked.partition)
        if asked.current_leader_epoch > LEADER_EPOCH:
            raise KafkaError(ErrorCode.unknown_leader_epoch)
        if asked.leader_epoch == LEADER_EPOCH:
            state = service.log.registry.partition_state(topic.uuid, partition)
            part |= {"leader_epoch": LEADER_EPOCH, "end_offset": state.next_offset}
    except FAILURES as error:
        part["error_code"] = code_of(error)
    return part


def delete_records(service: KafkaService, principal: Principal, request: Request) -> Values:
    """Answer `DeleteRecords`: a partition begins at the offset asked, or before a table."""
    return {
        "topics": [
            {
                "name": each.name,
                "partitions": [_deleted(service, principal, each.name, p) for p in each.partitions],
            }
            for each in request.body.topics
        ]
    }


def _deleted(service: KafkaService, principal: Principal, name: str, asked: Any) -> Values:
    part = {"partition_index": asked.partition_index}
    try:
        authorize(principal, Right.ADMIN, str(service.topics.wings_name(name)))
        topic = service.topics.find(name)
        partition = topics.partition_at(topic, asked.partition_index)
        end = service.log.registry.partition_state(topic.uuid, partition).next_offset
        offset = end if asked.offset == HIGH_WATERMARK else asked.offset
        if not 0 <= offset <= end:
            raise KafkaError(ErrorCode.offset_out_of_range)
        return {
            **part,
            "low_watermark": service.log.maintainer.delete_before(topic, partition, offset),
        }
    except FAILURES as error:
        return {**part, "low_watermark": -1, "error_code": code_of(error)}
