"""Coordinator: leases the messages of groups and takes their acknowledgements, on one node.

There is no leader: any coordinator leases any partition, and they agree through the replicas.

It has the groups that members use on this node, each with its index. A call that waits for messages
hears of commits by the registry's watch, of releases by a callback of its own, and of locks and
delays that end by the thread that counts their time.
"""

import logging
import random
import threading
import uuid
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from wings_core.errors import (
    GroupNotFound,
    OffsetOutOfRange,
    StorageCorrupt,
    Unavailable,
    WingsError,
)
from wings_core.fetch.fetcher import Cancel
from wings_core.metadata.interfaces import OffsetRegistry
from wings_core.model import HeldRange, Lease, LeasedRange, ShareGroup
from wings_core.partitions import Partition
from wings_core.share.coordinator.finalize import Finalizer
from wings_core.share.coordinator.followers import FindGroup, Followers
from wings_core.share.coordinator.lease import Acquires, Leases, peeked
from wings_core.share.coordinator.partitions import (
    PartitionTable,
    ReadyPartitions,
    WaitingMember,
)
from wings_core.share.coordinator.positions import FindOffsets, Positions
from wings_core.share.coordinator.settle import Settles, Settling
from wings_core.share.coordinator.upkeep import Archiving, Loop
from wings_core.share.model import (
    Acknowledgement,
    AcquireRequest,
    Clock,
    DeadLetterSink,
    Leased,
    MonotonicClock,
    OffsetRange,
    ReadTimes,
)
from wings_core.share.progress import GroupCounts
from wings_core.share.quorum.quorum import HoldQuorum, Runner
from wings_core.share.replica.replica import Replica
from wings_core.share.replica.requests import ReplicaLink
from wings_core.times import Deadline

UNUSED_SECONDS = 60.0
"""Time after which the index of a group that no member has asked for is dropped."""

WAKE_SECONDS_MIN = 0.005
"""Locks and delays that end within this time of each other wake members together."""

WAKE_SECONDS_MAX = 1.0
"""Longest wait for the next of them, also without a call."""

MAINTENANCE_SECONDS = 1.0
"""Interval at which messages at the delivery limit are looked for, also without a call."""

SWEEP_SECONDS = 60.0
"""Interval at which groups without waiting members are looked up, to forget deleted ones."""

COUNTED_MAX = 1_000
"""Groups that are counted at once; of more, the one that was counted longest begins again."""

SWEEP_MAX = 1_000
"""Groups looked at then: the first that are known, which make way for others when they are gone."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Replicas:
    """The replicas of a coordinator."""

    links: Sequence[ReplicaLink] = ()
    """The way to each that is elsewhere, closed with the coordinator."""
    own: Replica | None = None
    """The only one, in this process, closed with the coordinator. None, and no links: the
    coordinator serves no groups."""


@dataclass(frozen=True, slots=True)
class ShareSource:
    """Parts of the log that a coordinator uses."""

    registry: OffsetRegistry
    find_offsets: FindOffsets
    dead_letters: DeadLetterSink | None = None
    """None: no dead letters are written, also where a group has a DLQ topic."""
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
        positions: Where groups stand, and where they begin.
    """

    def __init__(self, replicas: Replicas, source: ShareSource, clock: Clock | None = None) -> None:
        self._clock = clock = clock or MonotonicClock()
        self._replicas, self._source, self._registry = replicas, source, source.registry
        self.is_local = local = replicas.own is not None
        self._lock = threading.Lock()
        self._groups: dict[str, ShareGroup] = {}
        """The groups, as they are now."""
        self._indexes: dict[str, ReadyPartitions] = {}
        """The indexes, by group."""
        self._counts: dict[tuple[str, str], dict[str, int]] = {}
        rng, name, changed = random.Random(), uuid.uuid4().hex, self._changed
        self._quorum = quorum = HoldQuorum(max(1, len(replicas.links)), clock, rng, local=local)
        self._runner = runner = Runner(replicas.links, replicas.own)
        self._wake_ups = Loop("wings-share-wake", self._wake_due)
        self._followers = Followers(source.find_group, self.altered, self._forget)
        self._maintenance = Loop("wings-share", self._maintain)
        self._table = table = PartitionTable(quorum, clock, name, self._maintenance.call)
        self._finalizer = finalizer = Finalizer(
            table, quorum, source.dead_letters, clock, rng, changed, self._count_archived
        )
        leases = Leases(table, quorum, finalizer, clock, rng, changed, self._batch_end)
        self._archiving = Archiving(table, quorum, leases, finalizer, clock, changed)
        self._acquires = Acquires(
            table, leases, finalizer, self._registry, runner, clock, local, self._groups
        )
        settling = Settling(name, table, finalizer, clock, changed)
        self._settles = Settles(self._registry, self._indexes, table, settling, runner)
        self.positions = Positions(
            self._refuse, self._check, self._registry, source.find_offsets, quorum, runner
        )
        self._sweep = Deadline.after(SWEEP_SECONDS)
        self._refusal: str | None = None
        """Why no group can be served; None: groups are served."""
        if not replicas.links and not local:
            self._refusal = "this node knows no replicas of holds, so it serves no share groups"

    @property
    def damage(self) -> StorageCorrupt | None:
        """The error of every call until the next start; None: nothing is damaged."""
        return None if self._replicas.own is None else self._replicas.own.damage

    @property
    def counts(self) -> Mapping[tuple[str, str], GroupCounts]:
        """Messages delivered and finished here since the start, by the names of topic and group."""
        with self._lock:
            return {names: GroupCounts(**counts) for names, counts in self._counts.items()}

    # Groups.

    def delete(self, group: ShareGroup) -> None:
        """Forget a group that is not known any more; blocks for the replicas, wakes its waiters.

        Replicas out of reach keep a little garbage. Never raises for them.
        """
        self._forget(group)
        if self._replicas.links or self.is_local:
            self._runner.run(self._quorum.forget(group.uuid))

    def altered(self, group: ShareGroup) -> None:
        """Use a group's new configuration at once, also for calls waiting on this node."""
        with self._lock:
            self._followers.hear(group)
            if group.uuid in self._groups:
                self._groups[group.uuid] = group
            index = self._indexes.get(group.uuid)
        self._followers.tell(group.uuid)
        if index is not None:
            index.wake_all()

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
        if acquired or deadline.passed:
            return acquired
        with self.following(request.group, cancel.wake.set):
            while not acquired and not deadline.passed:
                # Entered anew each time: who waits longest is woken first.
                with self.watch(request, cancel.wake.set):
                    cancel.wake.clear()
                    cancel.check()
                    acquired = self.acquire_now(request)
                    if not acquired:
                        cancel.wake.wait(deadline.remaining())
                        cancel.check()
                if acquired:
                    if cancel.wake.is_set():
                        self.wake_another(request.group)
                elif cancel.wake.is_set() or not deadline.passed:
                    acquired = self.acquire_now(request)  # It was woken, and no other for it.
        return acquired

    def acquire_now(self, request: AcquireRequest) -> list[LeasedRange]:
        """Lease what is available now; blocks for the replicas, never for messages.

        Raises:
            Unavailable: Nothing could be held because no majority of the replicas answered.
            TopicNotFound: The topic was deleted.
        """
        with self._blaming(request.group):
            group = self._check(request.group)
            index = self._index(group)
            try:
                acquired = self._acquires.everywhere(index, group, request, self._source.times)
            except WingsError:
                index.wake_next()  # It may have been woken for what another can get.
                raise
        if not acquired and request.partition is not None:
            index.wake_next(besides=request.partition)
        self._count_delivered(group, acquired)
        return acquired

    def settle(
        self,
        group: ShareGroup,
        requests: Sequence[tuple[str, Sequence[Acknowledgement]]],
        acquires: Sequence[AcquireRequest],
    ) -> tuple[list[list[WingsError | None]], list[Leased]]:
        """Acknowledge the entries of several requests, and lease what is available now meanwhile.

        Each request succeeds or fails as by `acknowledge`, as if they came at the same time; they
        share what they wait for.

        What is acknowledged is in flight still while it is acquired. An acquire that gets nothing
        might still get something by `acquire_now`, which looks further. Blocks for the replicas,
        never for messages.

        Returns:
            The error of each acknowledgement, or None, by request, and the outcome of each acquire,
            in the order given.
        """
        results, leased, picked = list[list[WingsError | None]](), list[Leased](), None
        with self._blaming(group):
            group = self._check(group)
            if acquires:
                index = self._index(group)
                index.look()
                picked = self._acquires.pick(index, group, acquires, peeked(acquires))
            beside = () if picked is None else picked.procedures
            if requests:
                results, outcomes = self._settles.take(group, requests, beside)
            else:
                outcomes = self._runner.run_all(beside)
            if picked is not None:
                leased = self._acquires.hand_out(picked, outcomes)
        accepted = sum(
            each.messages
            for (_, entries), errors in zip(requests, results, strict=True)
            for each, error in zip(entries, errors, strict=True)
            if error is None and each.type == "accept"
        )
        self._count(group, accepted=accepted)
        for each in leased:
            if not isinstance(each, WingsError):
                self._count_delivered(group, each)
        return results, leased

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
            current = self._check(group)
        with self._followers.following(current, callback):
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
            index = self._index(self._check(request.group))
        return index.waiting(request.partition, request.messages_max, callback)

    def watch_idle(
        self, request: AcquireRequest, callback: Callable[[], None]
    ) -> WaitingMember | None:
        """Watch as by `watch` where there is nothing to acquire; no `acquire_now` need follow then.

        None where one might find some. Never blocks.
        """
        if not self.is_local:
            return None  # Over a network, commits are told of a while later.
        index = self._index(self._check(request.group))
        watch = index.waiting(request.partition, request.messages_max, callback)
        if not index.has_ready:
            return watch
        watch.close()
        return None

    def has_ready(self, group: ShareGroup) -> bool:
        """Tell whether a partition may have something to acquire, as far as was told; never blocks.

        Where it is False an acquire may still find some, as of other nodes.
        """
        index = self._indexes.get(group.uuid)
        return index is None or index.has_ready

    def is_awaited(self, group: ShareGroup) -> bool:
        """Tell whether a member waits for messages at this node; never blocks."""
        index = self._indexes.get(group.uuid)
        return index is not None and not index.is_idle

    def clock_moved(self) -> None:
        """Look at once at what has become due by a clock that was moved."""
        self._wake_ups.call()

    def wake_another(self, group: ShareGroup) -> None:
        """Call back another of those who wait, if something may be available.

        For one that was called by a `watch` and will not acquire. A watch that is left by an
        exception does so by itself.
        """
        index = self._indexes.get(group.uuid)
        if index is not None:
            index.wake_next()

    def acknowledge(
        self, group: ShareGroup, member: str, entries: Sequence[Acknowledgement]
    ) -> list[WingsError | None]:
        """Acknowledge messages; durable on return; blocks for the replicas, and for dead letters.

        The entries of one partition succeed or fail together. What lies below the log's start
        succeeds. Entries of a partition that overlap each other fail.

        Returns:
            The error of each entry, or None, in the order given: `InvalidRecordState` (some
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
        ranges: dict[tuple[Partition, str], list[OffsetRange]] = {}
        for each in leased:
            of_lease = ranges.setdefault((each.partition, each.lease), [])
            of_lease.append(OffsetRange(each.start_offset, each.end_offset))
        for (partition, text), some in ranges.items():
            try:
                self._runner.run(self._table.load(group, [partition]))
                tracked, lease = self._table.get(group, partition), Lease.parse(text)
                self._runner.run(self._finalizer.release_undelivered(tracked, lease, some))
            except WingsError as error:
                _logger.info("messages of %s expire: %s", group.name, error.message)

    def held(self, group: ShareGroup) -> Mapping[Partition, Sequence[HeldRange]]:
        """Return what members of any node hold of a group, by partition, in order of offset.

        Of very many ranges some. Blocks for the replicas.

        Raises:
            Unavailable: No majority of the replicas answered.
        """
        with self._blaming(group):
            return self._runner.run(self._quorum.held(self._check(group).uuid))

    def close(self) -> None:
        """End waiting calls with `Unavailable`, and end the threads."""
        self._refusal = "the coordinator of share groups is closed"
        for index in list(self._indexes.values()):
            index.close()
        self._followers.close()
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

    def _refuse(self) -> None:
        """Raise `Unavailable` where no group can be served."""
        if self._refusal is not None:
            raise Unavailable(self._refusal)

    def _check(self, group: ShareGroup) -> ShareGroup:
        """Refuse what cannot be served any more; return and remember the group as it is now."""
        self._refuse()
        followed, known = self._followers.groups, self._groups.get(group.uuid)
        group = followed.get(group.uuid, group)
        if known is group:
            return group  # To compare them takes long, as they have a schema.
        with self._lock:
            group = followed.get(group.uuid, group)  # It may have been altered just now.
            self._table.require(group)
            self._groups[group.uuid] = group
        if known is None:  # Nothing is leased before the threads run that look after it.
            self._maintenance.start()
            self._wake_ups.call()
        return group

    def _index(self, group: ShareGroup) -> ReadyPartitions:
        """Return the index of a group, made where there is none."""
        index = self._indexes.get(group.uuid)
        if index is not None:
            return index
        topic_uuid = group.topic.uuid
        made = ReadyPartitions(
            self._clock.now,
            lambda: self._registry.partition_states(topic_uuid),
            lambda callback: self._registry.watch_topic(topic_uuid, callback),
            self._wake_ups.call,
            # Of what is held elsewhere a member must ask.
            partial(self._look, group.uuid) if self.is_local else None,
        )
        with self._lock:
            index = self._indexes.setdefault(group.uuid, made)
        if index is not made:
            made.close()
        return index

    def _look(self, group_uuid: str, partition: Partition, end: int) -> float | None:
        """Return in how many seconds a partition may have messages; see `PartitionTable.look`."""
        group = self._groups.get(group_uuid)
        return 0.0 if group is None else self._table.look(group, partition, 0, end)

    def _batch_end(self, group: ShareGroup, partition: Partition, offset: int) -> int:
        try:
            located = self._registry.locate(group.topic.uuid, partition, offset, 1)
        except OffsetOutOfRange:
            return offset  # Retention has just passed it.
        return located.locations[0].end_offset if located.locations else offset

    def _changed(self, group_uuid: str, partition: Partition) -> None:
        """Hear that something may have become available in a partition."""
        index = self._indexes.get(group_uuid)
        if index is not None:
            index.changed(partition)

    def _count_delivered(self, group: ShareGroup, leased: Sequence[LeasedRange]) -> None:
        again = sum(each.messages for each in leased if each.delivery_count > 1)
        messages = sum(each.messages for each in leased)
        self._count(group, delivered=messages, redelivered=again)

    def _count_archived(self, group_uuid: str, messages: int) -> None:
        group = self._groups.get(group_uuid)
        if group is not None:
            self._count(group, dead_lettered=messages)

    def _count(self, group: ShareGroup, **messages: int) -> None:
        """Add to what `counts` returns."""
        if not any(messages.values()):
            return
        names = (str(group.topic.name), group.name)
        with self._lock:
            if names not in self._counts and len(self._counts) >= COUNTED_MAX:
                del self._counts[next(iter(self._counts))]
            counts = self._counts.setdefault(names, {})
            for kind, more in messages.items():
                counts[kind] = counts.get(kind, 0) + more

    def _forget(self, group: ShareGroup) -> None:
        """Forget a group that was deleted, refuse it from now on, and wake its waiters."""
        with self._lock:
            self._table.forget(group)
            self._groups.pop(group.uuid, None)
            index = self._indexes.pop(group.uuid, None)
        if index is not None:
            index.close()
        self._followers.tell(group.uuid)

    # On the threads.

    def _wake_due(self) -> float:
        """Wake members for locks and delays that have ended; never blocks.

        Returns:
            The seconds to wait before the next call.
        """
        dues = [index.wake_due() for index in list(self._indexes.values())]
        soonest = min((due for due in dues if due is not None), default=WAKE_SECONDS_MAX)
        return min(WAKE_SECONDS_MAX, max(WAKE_SECONDS_MIN, soonest))

    def _maintain(self) -> float:
        """Archive messages; blocks for the replicas, and for dead letters."""
        with self._lock:
            groups = list(self._groups.values())
        if self._sweep.passed:
            self._followers.look_up(groups[:SWEEP_MAX])
            self._drop_unused()
            self._sweep = Deadline.after(SWEEP_SECONDS)
        for group in groups:
            self._archive(group)
        return MAINTENANCE_SECONDS

    def _drop_unused(self) -> None:
        """Drop the indexes of groups that no member has asked for in a while."""
        with self._lock:
            unused = [
                self._indexes.pop(group_uuid)
                for group_uuid, index in list(self._indexes.items())
                if index.is_idle and index.used_at + UNUSED_SECONDS < self._clock.now()
            ]
        for index in unused:
            index.close()

    def _archive(self, known: ShareGroup) -> None:
        """Archive what expired at the delivery limit, also where no member acquires."""
        partitions = self._table.exhausted(known)
        if partitions:  # Archiving by an old configuration cannot be undone.
            self._followers.look_up([known])
        group = self._groups.get(known.uuid)
        if group is None:
            return
        for partition in partitions:
            try:
                log = self._registry.partition_state(group.topic.uuid, partition)
                self._runner.run(self._archiving.archive(group, log))
                self._changed(group.uuid, partition)
            except WingsError as error:
                _logger.info("nothing was archived of %s: %s", group.name, error.message)
            except Exception:
                _logger.exception("archiving messages of %s failed", group.name)
