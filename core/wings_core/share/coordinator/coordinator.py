"""Coordinator: leases the messages of groups and takes their acknowledgements, on one node.

There is no leader: any coordinator leases any partition, and they agree through the replicas.
A call that waits for messages hears of commits by the registry's watch, of releases by a callback
of its own, and of locks and delays that end by the thread that counts their time.
"""

import logging
import random
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from wings_core.errors import GroupNotFound, StorageCorrupt, WingsError
from wings_core.fetch.fetcher import Cancel
from wings_core.metadata.interfaces import OffsetRegistry
from wings_core.model import (
    HeldRange,
    Lease,
    LeasedRange,
    PartitionState,
    ShareGroup,
    SharePartitionState,
)
from wings_core.partitions import Partition
from wings_core.share.clock import Clock, MonotonicClock
from wings_core.share.coordinator.acquires import Acquires
from wings_core.share.coordinator.core import CoordinatorCore, Told
from wings_core.share.coordinator.group_table import FindGroup, GroupTable
from wings_core.share.coordinator.housekeeping import Archiving, Loop, WakeUps
from wings_core.share.coordinator.partition_table import READ_PARTITIONS_MAX, key_of
from wings_core.share.coordinator.ready import WaitingMember
from wings_core.share.coordinator.settle import Settles
from wings_core.share.coordinator.starts import (
    FindOffsets,
    Finished,
    Position,
    Starts,
    finished_of,
)
from wings_core.share.counts import ShareCounts
from wings_core.share.model import (
    Acknowledgement,
    AcknowledgementResult,
    Acquired,
    AcquireRequest,
    DeadLetterSink,
    ReadTimes,
    ShareKey,
)
from wings_core.share.quorum.quorum import HoldQuorum
from wings_core.share.quorum.run import ReplicaLink, Runner
from wings_core.share.quorum.votes import UNTOUCHED, KnownPartition
from wings_core.share.replica.replica import Replica
from wings_core.share.replica.requests import LeaseEntry
from wings_core.share.replica.store import StoredPartition
from wings_core.times import Deadline

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Replicas:
    """The replicas of a coordinator."""

    links: Sequence[ReplicaLink] = ()
    """The way to each, closed with the coordinator; none: it serves no groups."""
    local: bool = False
    """Whether the only replica is in this process."""
    own: Replica | None = None
    """A replica that is closed with the coordinator."""


@dataclass(frozen=True, slots=True)
class ShareSource:
    """Parts of the log that a coordinator uses."""

    registry: OffsetRegistry
    dead_letters: DeadLetterSink | None = None
    """None: no dead letters are written, also where a group has a DLQ topic."""
    find_offsets: FindOffsets | None = None
    """None: the registry's, which find the page, and not the row of a merged one."""
    find_group: FindGroup | None = None
    """Looks at groups for changes by other nodes; None: there are no others."""
    times: ReadTimes | None = None
    """Reads the times of messages, for acquires that may block for the reads."""
    blame: Callable[[ShareGroup], object] = lambda _: None
    """Raises the cause for which a group is not found, where it is another."""


class Coordinator:
    """Leases the messages of groups and takes their acknowledgements; all from any thread.

    Each call takes the group with its configuration as it is now, so a change holds from the next
    call on. Waiting calls are told of a change too: at once of one that is told here (`altered`,
    `delete`), and of another node's within about a second.

    "Blocks for the replicas" means: for RPCs and durable writes of a bounded number, not for
    messages; in process about as long as a sync of the disk.

    Where the only replica is damaged, every method that blocks for it raises `StorageCorrupt`.

    Args:
        replicas: The replicas.
        source: The log.
        clock: Counts leases.

    Attributes:
        is_local: Whether the only replica is in this process.
        counts: Messages delivered and finished here since the start, by group.
    """

    def __init__(self, replicas: Replicas, source: ShareSource, clock: Clock | None = None) -> None:
        clock, rng = clock or MonotonicClock(), random.Random()
        self.is_local = local = replicas.local
        self._quorum = quorum = HoldQuorum(max(1, len(replicas.links)), clock, rng, local=local)
        self.counts = ShareCounts()
        self._core = core = CoordinatorCore(
            quorum,
            source.dead_letters,
            clock,
            rng,
            Told(
                self._changed,
                self._count_archived,
                lambda: self._maintenance.call(),
            ),
        )
        self._replicas, self._source = replicas, source
        self._runner = runner = Runner(replicas.links)
        self._registry = registry = source.registry
        self._starts = Starts(registry, source.find_offsets)
        self._groups = groups = GroupTable(
            core.table,
            registry,
            clock,
            local=local,
            find_group=source.find_group,
            used=self._start,
            sooner=lambda: self._wake_ups.call(),
        )
        if not replicas.links:
            groups.refusal = "this node knows no replicas of holds, so it serves no share groups"
        self._wake_ups = Loop("wings-share-wake", WakeUps(groups.wake_due).step)
        self._looks = Loop("wings-share-groups", groups.look_at_followed)
        self._maintenance = Loop("wings-share", Archiving(groups, core, runner).step)
        self._acquires = Acquires(groups, core, runner, registry, self.counts, local=local)
        self._settles = Settles(groups, core.table, core.settling, runner, self.counts)

    @property
    def damage(self) -> StorageCorrupt | None:
        """The error of every call until the next start; None: nothing is damaged."""
        return None if self._replicas.own is None else self._replicas.own.damage

    # Groups.

    def create(self, group: ShareGroup) -> None:
        """Put a new group at its start in every partition there is; blocks for the replicas.

        Call it before the group is made known; again is harmless until then.

        Raises:
            Unavailable: No majority of the replicas answered.
            TopicNotFound: The topic was deleted.
        """
        self._groups.refuse()
        self._begin(group, self._starts.of(group.topic, group.config.start))

    def create_moved(
        self, group: ShareGroup, anew: ShareGroup, to: Position, partition: Partition | None
    ) -> None:
        """Put a new group at a position; blocks for the replicas.

        Call it before the new group is made known in place of the other.

        Args:
            group: Where the partitions are taken from that are not moved.
            anew: The new one, of the same topic.
            to: Where it begins.
            partition: In this one, and in the others where `group` is; None: in all.

        Raises:
            Unavailable: No majority of the replicas answered.
            OffsetOutOfRange: There is no such offset.
            InvalidArgument: Nothing was written to the partition yet.
            TopicNotFound: The topic was deleted.
        """
        self._groups.refuse()
        if partition is None:
            self._begin(anew, self._starts.of(group.topic, to))
            return
        finished = {partition: self._starts.of_one(group.topic, to, partition)}
        logs = self._registry.partition_states(group.topic.uuid)
        others = [state.partition for state in logs if state.partition != partition]
        known = self._read(group, others)
        finished |= {each: finished_of(known[each]) for each in others}
        self._begin(anew, finished)

    def delete(self, group: ShareGroup) -> None:
        """Forget a group that is not known any more; blocks for the replicas, wakes its waiters.

        Replicas out of reach keep a little garbage. Never raises for them.
        """
        self._groups.forget(group)
        if self._replicas.links:
            self._runner.run(self._quorum.forget(group.uuid))

    def altered(self, group: ShareGroup) -> None:
        """Use a group's new configuration at once, also for calls waiting on this node."""
        self._groups.altered(group)

    def acquire(
        self, request: AcquireRequest, deadline: Deadline, cancel: Cancel
    ) -> list[LeasedRange]:
        """Wait until messages are available, and lease them.

        Blocks until the deadline at most, plus the replicas; a deadline in the past looks once.

        Args:
            request: Which messages, for which member.
            deadline: The end of the wait.
            cancel: Ends the wait with its error.

        Returns:
            Ranges by partition and offset; each was held at a majority. None at the deadline.

        Raises:
            Unavailable: Nothing could be held because no majority of the replicas answered.
            ResourceExhausted: Too many wait already.
            GroupNotFound: The group was deleted.
            TopicNotFound: The topic was deleted.
            WingsError: What it was cancelled with.
        """
        acquired = self.acquire_now(request)
        if acquired.ranges or deadline.passed:
            return list(acquired.ranges)
        with self.following(request.group, cancel.wake.set):
            while not acquired.ranges and not deadline.passed:
                # Entered anew each time: who waits longest is woken first.
                with self.watch(request, cancel.wake.set):
                    cancel.wake.clear()
                    cancel.check()
                    acquired = self.acquire_now(request)
                    if not acquired.ranges:
                        cancel.wake.wait(deadline.remaining())
                        cancel.check()
                if acquired.ranges:
                    if cancel.wake.is_set():
                        self.wake_another(request.group)
                elif cancel.wake.is_set() or not deadline.passed:
                    acquired = self.acquire_now(request)  # It was woken, and no other for it.
        return list(acquired.ranges)

    def acquire_now(self, request: AcquireRequest) -> Acquired:
        """Lease what is available now; blocks for the replicas, never for messages.

        Raises:
            Unavailable: Nothing could be held because no majority of the replicas answered.
            TopicNotFound: The topic was deleted.
        """
        with self._blaming(request.group):
            return self._acquires.now(request, self._source.times)

    def settle(
        self,
        group: ShareGroup,
        requests: Sequence[tuple[str, Sequence[Acknowledgement]]],
        acquires: Sequence[AcquireRequest],
    ) -> tuple[list[list[AcknowledgementResult]], list[Acquired | WingsError]]:
        """Acknowledge the entries of several requests, and lease what is available now meanwhile.

        Each request succeeds or fails as by `acknowledge`, as if they came at the same time; they
        share what they wait for.

        What is acknowledged is in flight still while it is acquired. An acquire that gets nothing
        might still get something by `acquire_now`, which looks further. Blocks for the replicas,
        never for messages.

        Returns:
            The results of the acknowledgements, and what each acquire got, in the order given, or
            why nothing could be held for it.
        """
        with self._blaming(group):
            group = self._groups.check(group)
            begun = self._acquires.begin(group, acquires) if acquires else None
            beside = [] if begun is None else begun.procedures
            results, outcomes = self._settles.take(group, requests, beside)
        return results, [] if begun is None else self._acquires.finish(begun, outcomes)

    @contextmanager
    def following(self, group: ShareGroup, callback: Callable[[], None]) -> Generator[None]:
        """Follow a group during the block: calls in it use its configuration as it is by then.

        Calls back when the group or its topic is altered or deleted, from any thread, so the
        callback must be quick and must not raise. A call that waits, or a stream, follows its group
        from its beginning to its end.

        Raises:
            ResourceExhausted: Too many follow already.
        """
        with self._blaming(group):
            current = self._groups.check(group)
        if self._source.find_group is not None:
            self._looks.start()
        with self._groups.followed(current, callback):
            yield

    def watch(self, request: AcquireRequest, callback: Callable[[], None]) -> WaitingMember:
        """Call back when there may be something to acquire by a request, until it is closed.

        After commits, releases and rejections seen by this process, when locks and delays end, and
        when the group is altered here. Begin it while the group is followed. Of those who wait as
        many are called as there are messages for, the longest waiting first; one that acquires some
        is followed by the next. Called from any thread, so it must be quick and must not raise.
        Begin the watch first and call `acquire_now` second, at once; close it before working with
        what was acquired. A caller that was called back, at the latest as the block of a watch is
        left, calls `acquire_now` after it, or `wake_another`: no other is called for the same
        messages.
        """
        with self._blaming(request.group):
            index = self._groups.index(self._groups.check(request.group))
        return index.waiting(request.partition, request.messages_max, callback)

    def watch_idle(
        self, request: AcquireRequest, callback: Callable[[], None]
    ) -> WaitingMember | None:
        """Watch as by `watch` where there is nothing to acquire; no `acquire_now` need follow then.

        None where one might find some. Never blocks.
        """
        if not self.is_local:
            return None  # Over a network, commits are told of a while later.
        index = self._groups.index(self._groups.check(request.group))
        watch = index.waiting(request.partition, request.messages_max, callback)
        if not index.has_ready:
            return watch
        watch.close()
        return None

    def has_ready(self, group: ShareGroup) -> bool:
        """Tell whether a partition may have something to acquire, as far as was told; never blocks.

        Where it is False an acquire may still find some, as of other nodes.
        """
        return self._groups.has_ready(group)

    def wake_another(self, group: ShareGroup) -> None:
        """Call back another of those who wait, if something may be available.

        For one that was called by a `watch` and will not acquire. A watch that is left by an
        exception does so by itself.
        """
        self._groups.wake_another(group)

    def acknowledge(
        self, group: ShareGroup, member: str, entries: Sequence[Acknowledgement]
    ) -> list[AcknowledgementResult]:
        """Acknowledge messages; durable on return; blocks for the replicas, and for dead letters.

        The entries of one partition succeed or fail together. What lies below the log's start
        succeeds. Entries of a partition that overlap each other fail.

        Returns:
            One result for each entry, in the order given. Errors are `InvalidRecordState` (some
            entry of the partition is not held by this member with this lease; nothing of the
            partition was changed), `InvalidArgument`, `Unavailable` (it is unknown whether it was
            done: the messages may or may not be delivered again) or what a dead letter failed
            with.
        """
        (results,), _ = self.settle(group, [(member, entries)], ())
        return results

    def release_undelivered(self, group: ShareGroup, leased: Sequence[LeasedRange]) -> None:
        """Release ranges, or parts of them, that never reached their member.

        They do not count as deliveries. What this fails for expires, and then counts. Blocks for
        the replicas.
        """
        indexes: dict[Partition, list[LeaseEntry]] = {}
        for each in leased:
            entry = LeaseEntry(each.start_offset, each.end_offset, Lease.parse(each.lease))
            indexes.setdefault(each.partition, []).append(entry)
        for partition, entries in indexes.items():
            try:
                self._runner.run(self._core.table.load(group, [partition]))
                self._runner.run(self._core.leases.release_undelivered(group, partition, entries))
            except WingsError as error:
                _logger.info("messages of %s expire: %s", group.name, error.message)

    def describe(self, group: ShareGroup) -> list[SharePartitionState]:
        """Return where the group stands in each partition written to, by value.

        Blocks for the replicas.

        Raises:
            Unavailable: No majority of the replicas answered.
            TopicNotFound: The topic was deleted.
        """
        self._groups.check(group)
        logs = self._registry.partition_states(group.topic.uuid)
        known = self._read(group, [state.partition for state in logs])
        return [_describe(state, known[state.partition]) for state in logs]

    def stored(self, group: ShareGroup) -> list[StoredPartition]:
        """Return what a majority of the replicas keeps of the group, of each partition written to.

        Blocks for the replicas.

        Raises:
            Unavailable: No majority of the replicas answered.
            TopicNotFound: The topic was deleted.
        """
        logs = self._registry.partition_states(self._groups.check(group).topic.uuid)
        return [
            StoredPartition(
                ShareKey(group.uuid, group.topic.uuid, partition),
                known.start_offset,
                [(each.first, each.last, 0) for each in known.finished],
                [(each.first, each.last, each.count) for each in known.counts],
            )
            for partition, known in self._read(group, [each.partition for each in logs]).items()
        ]

    def held(self, group: ShareGroup) -> Mapping[Partition, Sequence[HeldRange]]:
        """Return what members of any node hold of a group, by partition, in order of offset.

        Of very many ranges some. Blocks for the replicas.

        Raises:
            Unavailable: No majority of the replicas answered.
        """
        with self._blaming(group):
            return self._runner.run(self._quorum.held(self._groups.check(group).uuid))

    def close(self) -> None:
        """End waiting calls with `Unavailable`, and end the threads."""
        self._groups.close()
        self._looks.stop()
        self._wake_ups.stop()
        self._maintenance.stop()
        self._runner.close()
        if self._replicas.own is not None:
            self._replicas.own.close()

    # Inside.

    @contextmanager
    def _blaming(self, group: ShareGroup) -> Generator[None]:
        """Raise the cause for which a group is not found, where it is another."""
        try:
            yield
        except GroupNotFound:
            self._source.blame(group)
            raise

    def _read(
        self, group: ShareGroup, partitions: Sequence[Partition]
    ) -> dict[Partition, KnownPartition]:
        """Return what a majority knows of partitions, in requests of a bounded number each."""
        known: dict[Partition, KnownPartition] = {}
        for at in range(0, len(partitions), READ_PARTITIONS_MAX):
            some = partitions[at : at + READ_PARTITIONS_MAX]
            known |= self._runner.run(self._quorum.read(group.uuid, group.topic.uuid, some))
        return known

    def _begin(self, group: ShareGroup, finished: Finished) -> None:
        """Make a group that is not known yet begin where so much is finished of partitions."""
        begun = [(partition, ranges) for partition, ranges in finished.items() if ranges]
        for at in range(0, len(begun), READ_PARTITIONS_MAX):
            outcomes = self._runner.run_all(
                [
                    self._quorum.repair(key_of(group, partition), ranges)
                    for partition, ranges in begun[at : at + READ_PARTITIONS_MAX]
                ]
            )
            for outcome in outcomes:
                if isinstance(outcome, WingsError):
                    raise outcome

    def _changed(self, group_uuid: str, partition: Partition) -> None:
        self._groups.changed(group_uuid, partition)

    def _count_archived(self, group_uuid: str, messages: int) -> None:
        group = self._groups.get(group_uuid)
        if group is not None:
            self.counts.add(group, dead_lettered=messages)

    def _start(self) -> None:
        """Start the threads before anything is leased that they are to look after."""
        self._maintenance.start()
        self._wake_ups.call()


def _describe(log: PartitionState, known: KnownPartition) -> SharePartitionState:
    if known is UNTOUCHED:
        start, end = log.log_start_offset, log.next_offset
        return SharePartitionState(log.partition, start, 0, end - start)
    start = max(known.start_offset, log.log_start_offset)
    above = sum(
        tomb.last - max(tomb.first, start) + 1 for tomb in known.finished if tomb.last >= start
    )
    lag = max(0, log.next_offset - start - above)
    return SharePartitionState(log.partition, start, known.in_flight, lag)
