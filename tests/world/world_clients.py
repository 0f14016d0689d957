"""Clients of a world: each runs its operations one after another, and notes what it sees."""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa
import world_threads
from history import Look, Place, Push
from programs import KEYS, TOPICS, Operation
from world_threads import Crashed

from wings_core.errors import Internal, OffsetOutOfRange, ResourceExhausted, Unavailable
from wings_core.fetch.chunks import FetchedChunk
from wings_core.fetch.cursors import PartitionCursor
from wings_core.fetch.fetcher import UNLIMITED, Cancel, Read
from wings_core.fetch.state import FetchState
from wings_core.ingest.pending import Pending, PushStream
from wings_core.ingest.prepare import PreparedBatch, Preparer, PushOptions
from wings_core.log import Log
from wings_core.model import (
    Accepted,
    CommittedOffset,
    PartitionState,
    Rejected,
    StageEntry,
    Topic,
    shares,
)
from wings_core.model import Sequence as BatchSequence
from wings_core.names import TopicName
from wings_core.partitions import UNPARTITIONED, Partition
from wings_core.times import Deadline

if TYPE_CHECKING:
    from log_world import World

SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int64())])

ROWS_MAX = 1_000
"""Most rows of a push: its rows are numbered from a multiple of this on."""

SLACK_SECONDS = 0.5
"""A wait may end so long after its deadline, by the virtual clock, stalls apart."""

CALL_SLACK_SECONDS = 40.0
"""The same at a node, whose last look at its service may take as long as a call."""

TAIL_READS = 6

LOOKS = 10
"""Looks at each topic as a publish begins."""

LOOK_NS = 10**9
"""How long a client waits for a publish before it looks nevertheless."""

RETRY_SECONDS = 0.2

T = TypeVar("T")


def numbers_of(chunk: FetchedChunk) -> list[int]:
    """Return the numbers of a chunk's rows."""
    return chunk.batch.column("n").to_numpy().tolist()


def places_of(offsets: Sequence[CommittedOffset]) -> dict[Place, int]:
    """Return offsets by place."""
    return {(each.topic.topic, str(each.partition)): each.offset for each in offsets}


class LostError(Exception):
    """The machine crashed in a call, or could not be reached; whether it did it is unknown."""


class RefusedError(LostError):
    """The disk failed, or there was no connection, and it was not done."""


class Client:
    """One client.

    Args:
        world: Its world.
        number: Its number in the world.
    """

    def __init__(self, world: "World", number: int) -> None:
        self._world = world
        self._scheduler = world.scheduler
        self._history = world.history
        self._number = number
        self._sequences = 0
        self._batches = 0
        self._positions: dict[Place, int] = {}

    def run(self, operations: Sequence[Operation]) -> None:
        """Do all operations, one after another."""
        for each in operations:
            self._world.doing[self._number] = each, self._scheduler.now_ns
            getattr(self, each.kind)(each)
        self._world.doing.pop(self._number, None)

    # Operations. ##################################################################################

    def push(self, operation: Operation) -> None:
        """Push `rows` rows as an idempotent producer, again until it is acknowledged."""
        self._push([self._new(operation, f"p{self._number}")])

    def burst(self, operation: Operation) -> None:
        """Push some batches on one stream, none of which waits for the one before it."""
        self._push([self._new(operation, f"p{self._number}") for _ in range(4)])

    def send(self, operation: Operation) -> None:
        """Push without a sequence, once, whatever comes of it."""
        push = self._new(operation, None)
        try:
            self._call(self._try, [(push, None)])
        except RefusedError:
            push.refused = True
        except LostError:
            pass

    def publish(self, operation: Operation) -> None:
        """Stage a batch in each topic and publish both at once; again until that is known."""
        name = f"w{self._number}-{self._batches}"
        pushes = [self._new(operation._replace(topic=topic), None) for topic in TOPICS]
        for push in pushes:
            push.together = name
        tries = 0
        while self._again(self._stage, f"{name}-{tries}", pushes):
            tries += 1
        stages = [f"{name}-{tries}-{push.topic}" for push in pushes]

        def publish(log: Log) -> None:
            self._world.call_lookers()
            found = log.stages.publish(f"w{self._number}", self._batches, stages)
            for push in pushes:
                push.acknowledge(
                    {
                        str(each.partition): each.start_offset
                        for each in found.committed
                        if each.topic.topic == push.topic
                    },
                    self._scheduler.now_ns,
                )

        while self._again(publish):
            pass
        self._batches += 1

    def fetch(self, operation: Operation) -> None:
        """Read on in a partition: wait until `rows` rows are there, or a deadline."""
        self._read(operation, operation.rows, operation.rows)

    def tail(self, operation: Operation) -> None:
        """Wait for the next row some times, each until a deadline."""
        for _ in range(TAIL_READS):
            self._read(operation, 1, operation.rows)

    def follow(self, operation: Operation) -> None:
        """Read on in a partition until a deadline."""
        self._read(operation, UNLIMITED, UNLIMITED)

    def scan(self, operation: Operation) -> bool:
        """Read all of a topic, every partition to its end; returns whether no machine was lost."""

        def scan(log: Log) -> None:
            topic = self._topic(log, operation.topic)
            for other in TOPICS:  # Before it: what a publish shows there is to be seen here too.
                if other != operation.topic:
                    self._look(log, other)
            states = self._look(log, operation.topic)
            cursors = [
                PartitionCursor(
                    each.partition, each.log_start_offset, each.next_offset, clamps=True
                )
                for each in states
            ]
            found: dict[Place, int] = {
                (operation.topic, str(each.partition)): each.log_start_offset for each in states
            }
            for chunk in log.fetcher.scan(Read.of(topic, cursors), Cancel()):
                for partition, start, *_ in chunk.ranges:  # What is deleted meanwhile is left out.
                    place = operation.topic, str(partition)
                    if found[place] < start <= self._history.deleted.get(place, 0):
                        found[place] = start
                self._see(operation.topic, chunk, found)
            for each in states:
                place = operation.topic, str(each.partition)
                end = max(found[place], self._history.deleted.get(place, 0))
                assert end >= each.next_offset, f"a scan ends at {end}, before {each.next_offset}"

        try:
            self._call(scan)
        except LostError:
            return False
        return True

    def look(self, _: Operation) -> None:
        """Look where all partitions stand as a publish begins, while other clients are at work."""

        def look(log: Log) -> None:
            for _ in range(LOOKS):
                for topic in TOPICS:
                    self._look(log, topic)

        while any(each.kind != "look" for each, _ in self._world.doing.values()):
            self._world.lookers.append(self._scheduler.current)
            self._scheduler.wait(self._scheduler.now_ns + LOOK_NS)
            with suppress(LostError):
                self._call(look)

    def commit(self, operation: Operation) -> None:
        """Commit the offset read so far, by a consumer of its own; it never goes back."""
        place, partition = self._place(operation)
        offset, consumer = self._positions.get(place, 0), f"c{self._number}"

        def commit(log: Log) -> None:
            topic = self._topic(log, operation.topic)
            found = log.registry.get_offsets(consumer)
            self._history.see_offsets(consumer, places_of(found))
            self._history.offered[consumer, place] = offset
            log.registry.commit_offsets(consumer, [(topic, partition, offset)])
            self._history.committed[consumer, place] = offset

        with suppress(LostError):
            self._call(commit)

    def delete(self, operation: Operation) -> None:
        """Delete what is before an offset of a partition."""
        place, partition = self._place(operation)
        ends = self._history.ends_of(place)
        limit = ends[len(ends) * min(operation.rows, 4) // 5] if ends else 0
        self._history.deleted[place] = max(limit, self._history.deleted.get(place, 0))

        def delete(log: Log) -> None:
            topic = self._topic(log, operation.topic)
            log.maintainer.delete_before(topic, partition, limit)

        with suppress(LostError):
            self._call(delete)

    def drain(self, _: Operation) -> None:
        """Move inline pages to storage."""

        def drain(log: Log) -> None:
            assert log.drain is not None
            log.drain.run()

        with suppress(LostError):
            self._call(drain)

    def maintain(self, operation: Operation) -> None:
        """Do the maintenance of a topic."""

        def maintain(log: Log) -> None:
            log.maintainer.run(self._topic(log, operation.topic))

        with suppress(LostError):
            self._call(maintain)

    def reclaim(self, _: Operation) -> None:
        """Delete files that nothing refers to."""

        def reclaim(log: Log) -> None:
            log.reclaimer.run()

        with suppress(LostError):
            self._call(reclaim)

    def pause(self, operation: Operation) -> None:
        """Do nothing for a while."""
        world_threads.sleep(operation.milliseconds / 1_000)

    # Inside. ######################################################################################

    def _call(self, work: Callable[..., T], *arguments: object) -> T:
        """Call a log that is up.

        Raises:
            LostError: It went down, or cannot be reached.
        """
        machine = self._world.up(self._number)
        try:
            with self._scheduler.calling(machine.life):
                assert machine.log is not None
                return work(machine.log, *arguments)
        except Crashed:
            raise LostError from None
        except Unavailable as error:
            if not (self._world.has_nodes or self._world.disk_fails):
                raise AssertionError("unavailable, though nothing had failed") from error
            raise (LostError if error.facts.get("in_doubt") else RefusedError) from error
        except Internal as error:
            if not self._world.disk_fails:
                raise
            raise RefusedError from error
        except ResourceExhausted as error:
            # Small pushes wait for a drain, which asks a node's service.
            if not (self._world.disk_fails or self._world.has_nodes):
                raise
            raise RefusedError from error

    def _again(self, work: Callable[..., object], *arguments: object) -> bool:
        """Call a log; returns whether it was lost, after a pause."""
        try:
            self._call(work, *arguments)
        except LostError:
            world_threads.sleep(RETRY_SECONDS)
            return True
        return False

    def _new(self, operation: Operation, producer: str | None) -> Push:
        first = len(self._history.pushes) * ROWS_MAX
        rows: dict[str, list[int]] = {}
        for number in range(first, first + operation.rows):
            key = KEYS[number % len(KEYS)] if operation.milliseconds % 2 else operation.partition
            partition = f'"{key}"' if operation.topic == "keyed" else str(UNPARTITIONED)
            rows.setdefault(partition, []).append(number)
        push = Push(operation.topic, rows, producer)
        self._history.pushes.append(push)
        return push

    def _push(self, pushes: Sequence[Push]) -> None:
        waiting = [(push, self._sequences + index) for index, push in enumerate(pushes)]
        self._sequences += len(pushes)
        while waiting:
            if self._again(self._try, waiting):
                waiting = [each for each in waiting if each[0].placed is None]
            else:
                waiting = []

    def _stage(self, log: Log, name: str, pushes: Sequence[Push]) -> None:
        for push in pushes:
            entry = StageEntry(f"{name}-{push.topic}", name, first=True)
            prepared = self._prepare(log, push, None, entry)
            result = log.group_commit.submit(PushStream(), prepared, awaited=True).outcome()
            if isinstance(result, Rejected):
                raise result.error

    def _try(self, log: Log, pushes: Sequence[tuple[Push, int | None]]) -> None:
        """Push on one stream and wait for all outcomes, in order."""
        stream = PushStream()
        sent: dict[Pending, list[Push]] = {}
        for push, number in pushes:
            batch = self._prepare(log, push, number)
            pending = log.group_commit.submit(stream, batch, awaited=len(pushes) == 1)
            sent.setdefault(pending, []).append(push)
        for pending, joined in sent.items():
            results = pending.outcomes()
            if len(results) == 1 and len(joined) > 1 and isinstance(results[0], Accepted):
                rows = [sum(map(len, push.rows.values())) for push in joined]
                ranges = shares(results[0].committed, rows)  # Each is of one partition.
                results = tuple(Accepted((each,)) for each in ranges)
            for push, result in zip(joined, results * len(joined), strict=False):
                if isinstance(result, Rejected):
                    raise result.error
                assert isinstance(result, Accepted)
                for part in result.committed:
                    push.times[str(part.partition)] = part.timestamp
                placed = {str(part.partition): part.start_offset for part in result.committed}
                push.acknowledge(placed, self._scheduler.now_ns)

    def _prepare(
        self, log: Log, push: Push, sequence: int | None, stage: StageEntry | None = None
    ) -> PreparedBatch:
        topic = self._topic(log, push.topic)
        keys = [part.strip('"') for part, numbers in push.rows.items() for _ in numbers]
        numbers = [number for some in push.rows.values() for number in some]
        columns = [pa.array(keys, pa.string()), pa.array(numbers, pa.int64())]
        batch = pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
        numbered = None
        if sequence is not None and push.producer is not None:
            numbered = BatchSequence(push.producer, sequence)
        return Preparer(topic, log.limits).prepare(
            batch, PushOptions(sequence=numbered, stage=stage)
        )

    def _topic(self, log: Log, topic: str) -> Topic:
        return log.admin.get_topic(TopicName.parse(topic))

    def _place(self, operation: Operation) -> tuple[Place, Partition]:
        partition = UNPARTITIONED
        if operation.topic == "keyed":
            partition = Partition(f'"{operation.partition}"')
        return (operation.topic, str(partition)), partition

    def _look(self, log: Log, topic: str) -> Sequence[PartitionState]:
        """Return where the partitions of a topic stand, at one moment."""
        began = self._scheduler.now_ns
        states = log.registry.partition_states(self._topic(log, topic).uuid)
        ends = {(topic, str(each.partition)): each.next_offset for each in states}
        self._history.looks.append(Look(ends, began, self._scheduler.now_ns, topic))
        return states

    def _read(self, operation: Operation, least: int, most: int) -> None:
        """Read on in a partition, and check what was read and how long it took."""
        place, partition = self._place(operation)
        stalled = self._scheduler.stalled_ns
        slack = CALL_SLACK_SECONDS if self._world.has_nodes else SLACK_SECONDS
        seconds = operation.milliseconds / 1_000
        faults = self._world.wire.faults
        start = self._positions.get(place, 0)
        at = {place: start}

        def due() -> int:
            """Return by when what a read brings now, at the latest, had become visible."""
            stalls = self._scheduler.stalled_ns - stalled
            return self._scheduler.now_ns - stalls - int(slack * 1e9)

        def read(log: Log) -> None:
            cursor = PartitionCursor(partition, start)
            reads = Read.of(self._topic(log, operation.topic), [cursor])
            began = self._scheduler.now_ns
            state = FetchState(Deadline.after(seconds), least, most)
            for chunk in log.fetcher.read(reads, state, Cancel()):
                if due() > began:  # So long nothing came: nothing was there.
                    self._history.looks.append(Look(dict(at), due(), self._scheduler.now_ns))
                self._see(operation.topic, chunk, at)
            ended, rows = self._scheduler.now_ns, at[place] - start
            stalls = self._scheduler.stalled_ns - stalled
            enough = self._history.acked_at(place, start + least, began)
            bound = min(seconds * 1e9, math.inf if enough is None else enough - began)
            took = ended - began
            assert took - stalls <= bound + slack * 1e9, f"{operation} took {took / 1e9} s"
            assert rows >= least or took >= seconds * 1e9 - 1, f"{operation} ended with {rows} rows"
            assert rows <= most, f"{operation} brought {rows} rows"
            # A node that cannot reach its service shows the log as it knows it.
            if rows < most and faults == self._world.wire.faults:
                self._history.looks.append(Look(at, max(began, due()), ended))

        try:
            self._call(read)
        except LostError:
            pass
        except OffsetOutOfRange as error:
            kept = error.log_start_offset
            if not at[place] < kept <= self._history.deleted.get(place, 0):
                raise
            at[place] = kept
        self._positions[place] = at[place]

    def _see(self, topic: str, chunk: FetchedChunk, at: dict[Place, int]) -> None:
        """Note a chunk, which must begin where each of its partitions was read to."""
        numbers = numbers_of(chunk)
        first = 0
        for partition, start, end, rows in chunk.ranges:
            place = topic, str(partition)
            want = at.setdefault(place, start)
            assert start == want, f"{place} was read up to {want}, then from {start}"
            assert rows == end - start + 1, f"{rows} rows at {start} to {end} of {place}"
            some = numbers[first : first + rows]
            self._history.see(place, start, some, self._scheduler.now_ns)
            at[place], first = end + 1, first + rows
        assert first == len(numbers), f"{len(numbers)} rows, not those of {chunk.ranges}"
