"""Coordinator: leases the messages of groups and takes their acknowledgements, on one node.

There is no leader: any coordinator leases any partition, and they agree through the replicas.
A call that waits for messages hears of commits by the registry's watch, of releases by a callback
of its own, and of locks and delays that end by the thread that counts their time.
"""

import logging
import random
from collections.abc import Callable, Collection, Container, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from wings_core.contracts.messages import MEMBER_CHARACTERS_MAX
from wings_core.errors import (
    GroupNotFound,
    InvalidArgument,
    OffsetOutOfRange,
    StorageCorrupt,
    WingsError,
)
from wings_core.fetch.fetcher import Cancel
from wings_core.metadata.interfaces import OffsetRegistry
from wings_core.model import (
    HeldRange,
    Lease,
    LeasedRange,
    PartitionState,
    ShareGroup,
)
from wings_core.partitions import UNPARTITIONED, Partition
from wings_core.share.coordinator.core import Archiving, CoordinatorCore, Loop
from wings_core.share.coordinator.groups import (
    READ_PARTITIONS_MAX,
    Bounds,
    FindGroup,
    ShareGroupTable,
)
from wings_core.share.coordinator.lease import Bundle
from wings_core.share.coordinator.positions import FindOffsets, Positions
from wings_core.share.coordinator.ready import ReadyPartitions, WaitingMember
from wings_core.share.coordinator.settle import Settles
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
from wings_core.share.progress import ShareCounts
from wings_core.share.quorum.quorum import HoldQuorum
from wings_core.share.quorum.run import Procedure, ReplicaLink, Runner
from wings_core.share.replica.replica import Replica
from wings_core.times import Deadline

PEEK_PARTITIONS, PEEK_MIN = 16, 4
"""Ready partitions that an acquire looks at first, at most and at least; then at more."""

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
        positions: Where groups stand, and where they begin.
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
            changed=self._changed,
            archived=self._count_archived,
            met_limit=lambda: self._maintenance.call(),
        )
        self._replicas, self._source = replicas, source
        self._runner = runner = Runner(replicas.links)
        self._registry = registry = source.registry
        self._groups = groups = ShareGroupTable(
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
        self._wake_ups = Loop("wings-share-wake", groups.wake_due)
        self._looks = Loop("wings-share-groups", groups.look_at_followed)
        self._maintenance = Loop("wings-share", Archiving(groups, core, runner).step)
        self.positions = Positions(groups, registry, source.find_offsets, quorum, runner)
        self._settles = Settles(groups, core.table, core.settling, runner, self.counts)

    @property
    def damage(self) -> StorageCorrupt | None:
        """The error of every call until the next start; None: nothing is damaged."""
        return None if self._replicas.own is None else self._replicas.own.damage

    # Groups.

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
        _check_member(request)
        with self._blaming(request.group):
            group = self._groups.check(request.group)
            request = replace(request, group=group, times=request.times or self._source.times)
            index = self._groups.index(group)
            try:
                acquired = self._look_everywhere(index, request)
            except WingsError:
                index.took_some()  # It may have been woken for what another can get.
                raise
        if not acquired and request.partition is not None:
            index.found_none(request.partition)
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
        with self._blaming(group):
            group = self._groups.check(group)
            if not acquires:
                return self._settles.take(group, requests, ())[0], []
            index = self._groups.index(group)
            index.look()
            picked = self._pick(index, group, acquires, _peeked(acquires), recent=True)
            results, outcomes = self._settles.take(group, requests, picked.procedures)
        return results, self._hand_out(picked, outcomes)

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

    def clock_moved(self) -> None:
        """Look at once at what has become due by a clock that was moved."""
        self._wake_ups.call()

    def wake_another(self, group: ShareGroup) -> None:
        """Call back another of those who wait, if something may be available.

        For one that was called by a `watch` and will not acquire. A watch that is left by an
        exception does so by itself.
        """
        self._groups.wake_another(group)

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
            release = partial(self._core.leases.release_undelivered, group, partition)
            try:
                self._runner.run(self._core.table.load(group, [partition]))
                self._runner.run(release(Lease.parse(text), some))
            except WingsError as error:
                _logger.info("messages of %s expire: %s", group.name, error.message)

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

    def _look_everywhere(
        self, index: ReadyPartitions, request: AcquireRequest
    ) -> list[LeasedRange]:
        """Lease what is available for one request, in some partitions after others.

        Raises:
            WingsError: Nothing was leased.
        """
        group, only = request.group, _only_partition(request)
        index.look()
        if only is not None:
            index.note(self._registry.partition_state(group.topic.uuid, only))
        elif not self.is_local:
            index.look_again()  # Over a network, commits are told of a while later.
        most, tried = _peeked([request]), set[Partition]()
        recent = only is not None or not self.is_local
        while True:
            picked = self._pick(index, group, [request], most, tried, recent=recent)
            outcomes = self._runner.run_all(picked.procedures)
            (acquired,) = self._hand_out(picked, outcomes)
            if isinstance(acquired, WingsError):
                raise acquired
            if acquired or not picked.states:
                return acquired
            # Where others held all that was picked, the rest of the partitions were not looked at.
            tried.update(bundle.tracked.key.partition for bundle in picked.bundles)
            if not picked.bundles:
                tried.update(picked.states)
            most = READ_PARTITIONS_MAX

    def _pick(
        self,
        index: ReadyPartitions,
        group: ShareGroup,
        requests: Sequence[AcquireRequest],
        most: int,
        besides: Container[Partition] = (),
        *,
        recent: bool,
    ) -> "_Picked":
        """Pick messages of partitions that are ready; the procedures that hold them must be run.

        Args:
            index: The group's.
            group: The group as it is now.
            requests: At least one.
            most: Partitions to look at, at most.
            besides: Partitions to leave out.
            recent: Whether the place where a partition's log stood a moment ago is enough.
        """
        picked = _Picked(group, index, self._core.now(), [[] for _ in requests])
        wanting: dict[Partition | None, dict[int, AcquireRequest]] = {}
        for number, each in enumerate(requests):
            wanting.setdefault(_only_partition(each), {})[number] = each
        looked_at: list[list[PartitionState]] = []
        for wanted in wanting:
            found = index.peek(wanted, most, besides)
            for partition, generation in found:
                if partition not in picked.states:
                    state = self._groups.state(index, group, partition, recent=recent)
                    picked.states[partition] = state
                    picked.generations[partition] = generation
            looked_at.append([picked.states[partition] for partition, _ in found])
        error = self._prepare(group, picked.states.values())
        # Only now, as nothing may fail any more: what is picked is kept from all others.
        for of_partition, states in zip(wanting.values(), looked_at, strict=True):
            plan = self._core.leases.plan(group, of_partition, states, self._batch_end)
            for number in of_partition:
                failed = plan.errors.get(number, error)
                picked.leased[number] = [] if failed is None else failed
            picked.bundles += plan.bundles
        picked.procedures = [self._core.leases.hold(group, each) for each in picked.bundles]
        return picked

    def _prepare(self, group: ShareGroup, states: Collection[PartitionState]) -> WingsError | None:
        """Load partitions that are not known yet; blocks for the replicas then.

        Returns:
            The error for which some are not loaded.
        """
        table = self._core.table
        if self.is_local and all(
            table.is_loaded(group, state.partition) for state in states if state.next_offset
        ):
            return None
        return self._runner.run_all([self._core.leases.prepare(group, list(states))])[0]

    def _batch_end(self, group: ShareGroup, partition: Partition, offset: int) -> int:
        try:
            located = self._registry.locate(group.topic.uuid, partition, offset, 1)
        except OffsetOutOfRange:
            return offset  # Retention has just passed it.
        return located.locations[0].end_offset if located.locations else offset

    def _hand_out(
        self, picked: "_Picked", outcomes: Sequence[list[tuple[int, Leased]] | WingsError]
    ) -> list[Leased]:
        """Return what each request got, by the outcomes of the procedures."""
        group, table = picked.group, self._core.table
        leased = _gathered(picked, outcomes)
        if (self._core.now() - picked.begun_at) * 2_000 >= group.config.lock_duration_ms:
            # Other procedures took long, which all waited for: leases may be over by now.
            leased = [
                each
                if isinstance(each, WingsError)
                else [one for one in each if table.is_leased(group, one)]
                for each in leased
            ]
        ranges = [one for each in leased if not isinstance(each, WingsError) for one in each]
        if not self._groups.is_altered(group):  # Else who waits is woken to look anew.
            for partition, state in picked.states.items():
                self._looked_at(picked, partition, state, found=bool(ranges))
        if ranges:
            picked.index.took_some()
            self.counts.add(
                group,
                delivered=sum(each.messages for each in ranges),
                redelivered=sum(each.messages for each in ranges if each.delivery_count > 1),
            )
        return leased

    def _looked_at(
        self, picked: "_Picked", partition: Partition, state: PartitionState, *, found: bool
    ) -> None:
        """Take a partition out of the index where it has nothing, after an acquire.

        Also for a while where the acquire `found` nothing, as others held all that it asked for.
        """
        group, again = picked.group, None
        if state.next_offset:
            bounds = Bounds(state.log_start_offset, state.next_offset)
            again = self._core.table.look(group, partition, bounds)
        if again == 0 and not found:
            again = self._core.leases.retry_seconds(group, partition)
        picked.index.looked_at(partition, picked.generations[partition], state.next_offset, again)

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


@dataclass(slots=True)
class _Picked:
    """Pending messages for acquires of a group; all of the procedures are to be run."""

    group: ShareGroup
    index: ReadyPartitions
    begun_at: float
    leased: list[Leased]
    """The outcome of each request, so far."""
    bundles: list[Bundle] = field(default_factory=list[Bundle])
    procedures: list[Procedure[Any]] = field(default_factory=list[Procedure[Any]])
    """One for each bundle."""
    states: dict[Partition, PartitionState] = field(default_factory=dict[Partition, PartitionState])
    """Logs of the partitions looked at."""
    generations: dict[Partition, int] = field(default_factory=dict[Partition, int])
    """Generations as of which they were ready."""


def _check_member(request: AcquireRequest) -> None:
    if not 1 <= len(request.member) <= MEMBER_CHARACTERS_MAX:
        raise InvalidArgument(f"a member has 1 to {MEMBER_CHARACTERS_MAX} characters")
    assert request.messages_max >= 1
    assert request.rows_max >= 1


def _only_partition(request: AcquireRequest) -> Partition | None:
    """Return the one partition that a request may be served from; None: any."""
    if request.partition is None and request.group.topic.partition_key is None:
        return UNPARTITIONED
    return request.partition


def _peeked(requests: Sequence[AcquireRequest]) -> int:
    """Return the number of ready partitions to look at first: some have nothing."""
    messages = sum(each.messages_max for each in requests)
    return min(READ_PARTITIONS_MAX, PEEK_PARTITIONS * len(requests), max(PEEK_MIN, messages))


def _gathered(
    picked: _Picked, outcomes: Sequence[list[tuple[int, Leased]] | WingsError]
) -> list[Leased]:
    """Return the ranges that each request got of all bundles, or an error where it got none."""
    errors = [each if isinstance(each, WingsError) else None for each in picked.leased]
    ranges: list[list[LeasedRange]] = [[] for _ in errors]
    for bundle, outcome in zip(picked.bundles, outcomes, strict=True):
        of_bundle: list[tuple[int, Leased]]
        if isinstance(outcome, WingsError):
            of_bundle = [(each.number, outcome) for each in bundle.taken]
        else:
            of_bundle = outcome
        for number, leased in of_bundle:
            if isinstance(leased, WingsError):
                errors[number] = errors[number] or leased
            else:
                ranges[number] += leased
    return [found or error or [] for found, error in zip(ranges, errors, strict=True)]
