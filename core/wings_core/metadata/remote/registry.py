"""The log's index at a metadata service; looks and waits share their calls.

A fallback cache has locations of pages, for when the service cannot be reached. They change only by
maintenance, which leaves the old place for a while, so a node that knows them reads on without the
service. The ends of the log are as of the last answer.
"""

import itertools
import math
import threading
import time
import uuid
from bisect import bisect_left
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice

from wings_core.errors import Unavailable
from wings_core.metadata.interfaces import LOCATIONS_MAX, MANY_LOCATIONS_MAX, OffsetRegistry
from wings_core.metadata.interfaces.offset_registry import ManyLocated, many_located
from wings_core.metadata.remote.admin import RemoteTopicCache
from wings_core.metadata.remote.channel import CALL_SECONDS, ServiceChannel, Stub, seconds_left
from wings_core.metadata.remote.deduplicate import CallOutcome, Deduplicate
from wings_core.metadata.remote.rpc import (
    BY_OFFSET,
    BY_PARTITION,
    BY_TEXT,
    Calls,
    Field,
    Fields,
    Paged,
    RemotePart,
    Rpc,
    StepSize,
    positions,
    rpc,
)
from wings_core.metadata.remote.watches import Retries, TopicWatches, Watches
from wings_core.model import (
    CommitBatch,
    CommitResult,
    CommittedOffset,
    FlushId,
    InlineFolio,
    Located,
    LocatedPartition,
    Location,
    PartitionState,
    Position,
    Rejected,
    SeriesResults,
)
from wings_core.partitions import Partition, partition_sort_key, sorted_by_partition
from wings_core.protocol import messages
from wings_core.protocol.v1 import offset_registry_pb2 as pb
from wings_core.storage.lru import Lru
from wings_core.times import Deadline, now_us

LOCATIONS_KNOWN_MAX = 65_536
"""Locations that a node remembers; the partition unused for longest is forgotten (~20 MB)."""

PARTITION_LOCATIONS_MAX = 16_384
"""Locations of one partition; beyond it the older half is forgotten."""


@dataclass(slots=True)
class _Partition:
    """A partition; locations are in order, and may have gaps between them."""

    log_start_offset: int = 0
    log_end_offset: int = 0
    ends: list[int] = field(default_factory=list[int])
    """The end offsets of the locations."""
    locations: list[Location] = field(default_factory=list[Location])

    def replace(self, locations: Sequence[Location]) -> None:
        """Replace the locations of the same offsets, since pages may have moved."""
        first = bisect_left(self.ends, locations[0].start_offset)
        last = first
        while (
            last < len(self.ends) and self.locations[last].start_offset <= locations[-1].end_offset
        ):
            last += 1
        self.ends[first:last] = [location.end_offset for location in locations]
        self.locations[first:last] = locations


class LocationCache:
    """Locations by topic and partition; all methods from any thread.

    Its lock is held for list operations and never while anything is called, but for the memory's.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._partitions: Lru[tuple[str, Partition], _Partition] = Lru(LOCATIONS_KNOWN_MAX)

    def learn(self, topic_uuid: str, partition: Partition, located: Located) -> None:
        """Add what the service answered."""
        key = (topic_uuid, partition)
        with self._lock:
            known = self._partitions.get(key) or _Partition()
            known.log_start_offset = max(known.log_start_offset, located.log_start_offset)
            known.log_end_offset = max(known.log_end_offset, located.log_end_offset)
            if located.locations:
                known.replace(located.locations)
            if len(known.ends) > PARTITION_LOCATIONS_MAX:
                half = len(known.ends) // 2
                del known.ends[:half], known.locations[:half]
            self._partitions.put(key, known, 1 + len(known.ends))

    def locate(
        self, topic_uuid: str, partition: Partition, offset: int, messages_max: int, most: int
    ) -> Located | None:
        """Return the cached locations from an offset on, None where there are none.

        At the end of the log, as it is known, that is no location.

        Args:
            topic_uuid: The topic.
            partition: The partition.
            offset: First message wanted.
            messages_max: Stop once the pages hold this many messages.
            most: The most locations.
        """
        with self._lock:
            known = self._partitions.get((topic_uuid, partition))
            if known is None or offset < known.log_start_offset:
                return None
            found: list[Location] = []
            at = offset
            for index in range(bisect_left(known.ends, offset), len(known.ends)):
                location = known.locations[index]
                if location.start_offset > at or len(found) >= most:
                    break
                found.append(location)
                at = location.end_offset + 1
                if at >= offset + messages_max:
                    break
            if not found and offset < known.log_end_offset:
                return None
            return Located(
                tuple(found), known.log_start_offset, known.log_end_offset, asked_at=-math.inf
            )

    def forget(self, topic_uuid: str) -> None:
        """Drop the locations of a deleted topic."""
        with self._lock:
            self._partitions.discard_where(lambda key: key[0] == topic_uuid)


WAIT_SECONDS_MAX = 60.0
"""The longest that one `OffsetLocation` waits; a longer wait makes another."""

DEADLINE_MARGIN_SECONDS = 5.0
"""The gRPC deadline of a call lies so much behind the one in the request: the service answers first
unless it is gone, and a clock that differs does no harm, since gRPC sends the time that is left."""

COMMIT_WAIT_SECONDS_MAX = 60.0
"""How long a commit waits for the one before it."""

FOUND_SECONDS = 1.0
"""For how long what a look found serves requests that had come before it began: a thousand readers
woken at one tail take about as long to start, and would each look again."""

FOUND_LOCATIONS_MAX = 16_384
"""Locations of such looks."""

STATES_KNOWN_MAX = 4_096
"""Partitions whose last known state is remembered for when the service cannot be asked."""


@dataclass(frozen=True, slots=True)
class _Look:
    """Request of `locate`: the locations of so many messages from an offset on."""

    topic_uuid: str
    partition: Partition
    offset: int
    messages_max: int


def _locations_max(given: int) -> int:
    return min(given or MANY_LOCATIONS_MAX, MANY_LOCATIONS_MAX)


def _partition(state: PartitionState) -> Partition:
    return state.partition


def _by_partition(states: list[PartitionState]) -> list[PartitionState]:
    return sorted_by_partition(states, map(_partition, states))


def _in_order(entries: list[CommittedOffset]) -> list[CommittedOffset]:
    return sorted(entries, key=lambda entry: (entry.topic, partition_sort_key(entry.partition)))


class RemoteRegistry(RemotePart, OffsetRegistry):
    """See `OffsetRegistry`.

    Where the service cannot be reached, `locate` and `partition_state` answer from this node's
    fallback cache; all else raises `Unavailable`.

    Args:
        channel: To the service.
        topics: Told of topics that turn out to be gone.
        retries: Calls back after a pause.
        clock: Microseconds since the epoch, of this node.
    """

    def __init__(
        self,
        channel: ServiceChannel,
        topics: RemoteTopicCache,
        retries: Retries,
        clock: Callable[[], int] = now_us,
    ) -> None:
        super().__init__(channel)
        self._stub = Stub(channel.channel, "OffsetRegistryService")
        self._topics = topics
        self._clock = clock
        self._known = LocationCache()
        self._states: Lru[tuple[str, Partition], PartitionState] = Lru(STATES_KNOWN_MAX)
        self._looks: Deduplicate[_Look, Located] = Deduplicate(self._begin_look)
        self._found: Lru[_Look, Located] = Lru(FOUND_LOCATIONS_MAX)
        self._locations: Deduplicate[Position, Located] = Deduplicate(self._begin_location)
        self._watches = Watches(self._locations, retries)
        self._topic_watches = TopicWatches(self._stub)
        self._committing = threading.Lock()
        self._writer = uuid.uuid4().hex
        self._flushes = itertools.count()

    @property
    def waiting_calls(self) -> int:
        """How many long polls are under way at the service."""
        return len(self._locations)

    def commit(
        self,
        batches: Sequence[CommitBatch],
        flush_id: FlushId | None = None,
        inline: InlineFolio | None = None,
    ) -> list[CommitResult]:
        """Assign offsets to the batches of a flush; see `OffsetRegistry.commit`.

        A commit whose response is lost is retried under its flush's id, for up to
        `channel.DOUBT_SECONDS_MAX`. Where that brings no answer, `Unavailable` is raised with the
        fact `in_doubt`; the flush is not committed after the next one of this node.
        """
        # Of a series each by itself: a service of an earlier version would take it for one batch.
        sent = [each for batch in batches for each in (batch.each() if batch.series else (batch,))]
        encoded = [messages.COMMIT_BATCH.fields(batch) for batch in sent]
        if not self._committing.acquire(timeout=COMMIT_WAIT_SECONDS_MAX):
            raise Unavailable(f"a commit is under way for {COMMIT_WAIT_SECONDS_MAX:g} s already")
        try:
            # One at a time: by the number of the next, the service knows this one to be over.
            flush = flush_id or FlushId(self._writer, next(self._flushes))
            request = pb.CommitRequest(
                batches=encoded,
                flush_id=messages.FLUSH_ID.fields(flush),
                inline=None if inline is None else messages.INLINE_FOLIO.fields(inline),
            )
            response = self._channel.call_repeatedly(self._stub.Commit, request)
        finally:
            self._committing.release()
        results = messages.results_of(response.results, sent)
        for batch, result in zip(sent, results, strict=False):
            if isinstance(result, Rejected) and result.error.code == "TOPIC_NOT_FOUND":
                self._topics.forget_uuid(batch.topic_uuid)
        if len(sent) == len(batches):
            return results
        found = iter(results)
        return [
            SeriesResults(tuple(islice(found, len(batch.series)))) if batch.series else next(found)
            for batch in batches
        ]

    def locate(
        self,
        topic_uuid: str,
        partition: Partition,
        offset: int,
        messages_max: int,
        since: float | None = None,
    ) -> Located:
        """Find the pages from an offset on; see `OffsetRegistry.locate`."""
        offset, messages_max = messages.int64(offset), max(1, messages.int64(messages_max))
        key = _Look(topic_uuid, partition, offset, messages_max)
        arrived = time.monotonic()
        if since is not None:
            last = self._found.get(key)
            if last is not None and (last.asked_at or 0.0) >= max(since, arrived - FOUND_SECONDS):
                return last
        deadline = Deadline.after(CALL_SECONDS + DEADLINE_MARGIN_SECONDS)
        try:
            while True:
                look = self._looks.get(key, deadline)
                if look is None:
                    raise Unavailable(f"metadata did not answer in {CALL_SECONDS:g} s")
                # A look that began earlier may have missed what was committed since. The next one
                # cannot, and all who wait for it share it.
                if look.locations:
                    self._found.put(key, look, 1 + len(look.locations))
                    return look
                if (look.asked_at or arrived) >= arrived:
                    return look
        except Unavailable:
            known = self._known.locate(topic_uuid, partition, offset, messages_max, LOCATIONS_MAX)
            if known is None or self._channel.closed:
                raise
            return known
        except Exception as error:
            self._note_gone(topic_uuid, error)
            raise

    def locate_many(
        self,
        topic_uuid: str,
        positions: Sequence[tuple[Partition, int]],
        messages_max: int,
        locations_max: int = MANY_LOCATIONS_MAX,
    ) -> list[LocatedPartition]:
        """Find pages of many partitions; see `OffsetRegistry.locate_many`."""
        given = (topic_uuid, positions, messages_max, locations_max)
        try:
            return self._locate_many.call(self._channel, given, {})
        except Exception as error:
            self._note_gone(topic_uuid, error)
            raise

    def locate_slices(
        self,
        topic_uuid: str,
        positions: Sequence[tuple[Partition, int]],
        messages_max: int,
        locations_max: int = MANY_LOCATIONS_MAX,
    ) -> ManyLocated:
        """Find pages of many partitions, as columns; see `OffsetRegistry.locate_slices`."""
        found = self.locate_many(topic_uuid, positions, messages_max, locations_max)
        return many_located(found)

    def offset_location(
        self, topic_uuid: str, partition: Partition, offset: int, deadline: Deadline
    ) -> Located | None:
        """Return the first locations from an offset on, as soon as there is one.

        Blocks until then; concurrent calls for one place share one call of the service.

        Returns:
            None where the deadline passes before.

        Raises:
            TopicNotFound: The topic was deleted.
            OffsetOutOfRange: `offset` is below the log's start.
            Unavailable: The service cannot be reached.
        """
        while not deadline.passed:
            located = self._locations.get(Position(topic_uuid, partition, offset), deadline)
            if located is not None:
                return located
        return None

    @contextmanager
    def watch(self, positions: Sequence[Position], callback: Callable[[], None]) -> Generator[None]:
        """Call back when a position has data; see `OffsetRegistry.watch`.

        Called from the thread of the connection, also for data that is there on entering; commits
        that follow one another quickly may share a call.
        """
        with self._watches.watch(positions, callback):
            yield

    def watch_topic(
        self, topic_uuid: str, callback: Callable[[Mapping[Partition, int] | None], None]
    ) -> AbstractContextManager[None]:
        """Call back with what is committed to a topic; see `OffsetRegistry.watch_topic`."""
        return self._topic_watches.watch(topic_uuid, callback)

    def partition_state(self, topic_uuid: str, partition: Partition) -> PartitionState:
        """Return where a partition stands; see `OffsetRegistry.partition_state`."""
        key = (topic_uuid, partition)
        try:
            state = self._partition_state.call(self._channel, key, {})
        except Unavailable:
            known = self._states.get(key)
            if known is None or self._channel.closed:
                raise
            return known
        except Exception as error:
            self._note_gone(topic_uuid, error)
            raise
        self._states.put(key, state)
        return state

    partition_states = rpc(
        "OffsetRegistryService.ListPartitionStates",
        OffsetRegistry.partition_states,
        Calls.LOOK,
        paged=Paged(BY_PARTITION, _partition, arrange=_by_partition),
    )
    _partition_state = Rpc(
        "OffsetRegistryService.GetPartitionState", OffsetRegistry.partition_state, Calls.LOOK
    )
    _locate_many = Rpc(
        "OffsetRegistryService.LocateMany",
        OffsetRegistry.locate_many,
        Calls.LOOK,
        positions=positions("offsets"),
        messages_max=Field(encode=messages.int64),
        locations_max=Field(decode=_locations_max),
    )
    offset_for_timestamp = rpc(
        "OffsetRegistryService.OffsetForTimestamp",
        OffsetRegistry.offset_for_timestamp,
        Calls.LOOK,
        timestamp=Field("timestamp_us", messages.int64),
    )
    offsets_for_timestamps = rpc(
        "OffsetRegistryService.OffsetsForTimestamps",
        OffsetRegistry.offsets_for_timestamps,
        Calls.LOOK,
        positions=positions("timestamps_us"),
    )
    commit_offsets = rpc(
        "OffsetRegistryService.CommitOffsets",
        OffsetRegistry.commit_offsets,
        Calls.ONCE,
        offsets=Fields(
            ("offsets",),
            lambda offsets: {"offsets": messages.consumer_entries(offsets)},
            messages.consumer_offsets,
        ),
    )
    get_offsets = rpc(
        "OffsetRegistryService.ListConsumerOffsets",
        OffsetRegistry.get_offsets,
        Calls.LOOK,
        paged=Paged(BY_OFFSET, lambda entry: (entry.topic, entry.partition), arrange=_in_order),
    )
    forget_offsets = rpc(
        "OffsetRegistryService.ForgetOffsets", OffsetRegistry.forget_offsets, Calls.ONCE
    )
    list_consumers = rpc(
        "OffsetRegistryService.ListConsumers",
        OffsetRegistry.list_consumers,
        Calls.LOOK,
        paged=Paged(BY_TEXT, str),
    )
    purge = rpc(
        "OffsetRegistryService.Purge", OffsetRegistry.purge, Calls.ONCE, pages_max=StepSize()
    )
    live_folios = rpc(
        "OffsetRegistryService.ListLiveFolios",
        OffsetRegistry.live_folios,
        Calls.LOOK,
        paged=Paged(BY_TEXT, str, arrange=set),
    )
    retire = rpc("OffsetRegistryService.RetireFolios", OffsetRegistry.retire, Calls.ONCE)

    def read_inline(self, folios: Sequence[str]) -> dict[str, bytes]:
        """Return the bytes of inline folios; see `OffsetRegistry.read_inline`."""
        request = pb.ReadInlineFolioRequest(folio=folios[0], others=folios[1:])
        response = self._channel.look(self._stub.ReadInlineFolio, request)
        found = {each.name: each.data for each in response.others}
        return {folios[0]: response.data, **found} if response.HasField("data") else found

    def _begin_look(
        self, key: _Look, deadline: Deadline, done: Callable[[CallOutcome[Located]], None]
    ) -> Callable[[], None]:
        asked_at = time.monotonic()

        def convert(response: pb.OffsetLocationResponse) -> Located:
            located = messages.LOCATED.decode(response)
            self._known.learn(key.topic_uuid, key.partition, located)
            return replace(located, asked_at=asked_at)

        request = pb.OffsetLocationRequest(
            topic_uuid=key.topic_uuid,
            partition=key.partition,
            offset=key.offset,
            messages_max=key.messages_max,
        )
        seconds = seconds_left(deadline, CALL_SECONDS)
        return self._channel.begin(self._stub.OffsetLocation, request, seconds, convert, done)

    def _begin_location(
        self, key: Position, deadline: Deadline, done: Callable[[CallOutcome[Located]], None]
    ) -> Callable[[], None]:
        request = pb.OffsetLocationRequest(
            topic_uuid=key.topic_uuid,
            partition=key.partition,
            offset=messages.int64(key.offset),
            messages_max=1,
        )
        seconds = seconds_left(deadline, WAIT_SECONDS_MAX)
        now = self._clock()
        request.sent_at.FromMicroseconds(now)
        request.deadline.FromMicroseconds(now + round(seconds * 1e6))

        def convert(response: pb.OffsetLocationResponse) -> Located | None:
            located = messages.LOCATED.decode(response)
            self._known.learn(key.topic_uuid, key.partition, located)
            return located if located.locations else None

        return self._channel.begin(
            self._stub.OffsetLocation, request, seconds + DEADLINE_MARGIN_SECONDS, convert, done
        )

    def _note_gone(self, topic_uuid: str, error: Exception) -> None:
        if getattr(error, "code", None) == "TOPIC_NOT_FOUND":
            self._topics.forget_uuid(topic_uuid)
            self._known.forget(topic_uuid)
