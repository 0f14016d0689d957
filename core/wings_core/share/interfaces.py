"""What the parts of share groups offer each other, and the server.

    server ─▶ ShareCoordinator ─▶ HoldQuorum ─▶ HoldReplica (one in process, or several over gRPC)
                     └──────────▶ DeadLetters (before the tombstone of an archived message)

There is no leader: any coordinator leases any partition, and they agree through the replicas.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from wings_core.errors import StorageCorrupt, WingsError
from wings_core.fetch.fetcher import Cancel
from wings_core.model import HeldRange, LeasedRange, ShareGroup, SharePartitionState
from wings_core.partitions import Partition
from wings_core.share.coordinator.starts import Position
from wings_core.share.counts import ShareCounts
from wings_core.share.model import (
    Acknowledgement,
    AcknowledgementResult,
    Acquired,
    AcquireRequest,
    DeadLetter,
)
from wings_core.share.replica.store import StoredPartition
from wings_core.times import Deadline


class PendingDeadLetters(Protocol):
    """Dead letters that were begun."""

    def finish(self) -> None:
        """Block until they are durable in the group's DLQ topic.

        Raises:
            WingsError: They are not; the messages stay held, and are tried again later.
        """
        ...


class DeadLetters(Protocol):
    """Writes the dead letters of groups that have a DLQ topic.

    The coordinator begins them before it proves its lease at the replicas (so the rows' fetch
    runs meanwhile), finishes them after, and only then writes the tombstone. A crash, or a
    replica that fails, in between makes it begin the same messages again, perhaps in other ranges
    and on another node: each message is written once, by its `dead_letter_id`.
    """

    def begin(self, group: ShareGroup, letters: Sequence[DeadLetter]) -> PendingDeadLetters:
        """Queue letters and start to fetch their rows; returns at once.

        Raises:
            WingsError: They cannot be written.
        """
        ...


class Watch(AbstractContextManager[None], Protocol):
    """A caller that is called back; see `ShareCoordinator.watch`."""

    def close(self) -> None:
        """Be called no more, but maybe once a moment later."""
        ...


class ShareCoordinator(Protocol):
    """Leases the messages of groups and takes their acknowledgements; all from any thread.

    Each call takes the group with its configuration as it is now, so a change holds from the next
    call on. Waiting calls are told of a change too: at once of one that is told here (`altered`,
    `delete`), and of another node's within about a second.

    "Blocks for the replicas" means: for RPCs and durable writes of a bounded number, not for
    messages; in process about as long as a sync of the disk.

    Where the only replica is damaged, every method that blocks for it raises `StorageCorrupt`.
    """

    @property
    def damage(self) -> StorageCorrupt | None:
        """What every call is refused with until the next start; None: nothing is damaged."""
        ...

    @property
    def is_local(self) -> bool:
        """Whether the only replica is in this process."""
        ...

    @property
    def counts(self) -> ShareCounts:
        """What was delivered and finished here since the start, by group."""
        ...

    def create(self, group: ShareGroup) -> None:
        """Put a new group at its start in every partition there is; blocks for the replicas.

        Call it before the group is made known; again is harmless until then.

        Raises:
            Unavailable: No majority of the replicas answered.
            TopicNotFound: The topic was deleted.
        """
        ...

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
        ...

    def delete(self, group: ShareGroup) -> None:
        """Forget a group that is not known any more; blocks for the replicas, wakes its waiters.

        Replicas out of reach keep a little garbage. Never raises for them.
        """
        ...

    def altered(self, group: ShareGroup) -> None:
        """Use a group's new configuration at once, also for calls waiting on this node."""
        ...

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
        ...

    def acquire_now(self, request: AcquireRequest) -> Acquired:
        """Lease what is available now; blocks for the replicas, never for messages.

        Raises:
            Unavailable: Nothing could be held because no majority of the replicas answered.
            TopicNotFound: The topic was deleted.
        """
        ...

    def following(
        self, group: ShareGroup, callback: Callable[[], None]
    ) -> AbstractContextManager[object]:
        """Follow a group during the block: calls in it use its configuration as it is by then.

        Calls back when the group or its topic is altered or deleted, from any thread, so the
        callback must be quick and must not raise. A call that waits, or a stream, follows its group
        from its beginning to its end.

        Raises:
            ResourceExhausted: Too many follow already.
        """
        ...

    def watch(self, request: AcquireRequest, callback: Callable[[], None]) -> Watch:
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
        ...

    def watch_idle(self, request: AcquireRequest, callback: Callable[[], None]) -> Watch | None:
        """Watch as by `watch` where there is nothing to acquire; no `acquire_now` need follow then.

        None where one might find some. Never blocks.
        """
        ...

    def has_ready(self, group: ShareGroup) -> bool:
        """Tell whether a partition may have something to acquire, as far as was told; never blocks.

        Where it is False an acquire may still find some, as of other nodes.
        """
        ...

    def wake_another(self, group: ShareGroup) -> None:
        """Call back another of those who wait, if something may be available.

        For one that was called by a `watch` and will not acquire. A watch that is left by an
        exception does so by itself.
        """
        ...

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
        ...

    def acknowledge_all(
        self, group: ShareGroup, requests: Sequence[tuple[str, Sequence[Acknowledgement]]]
    ) -> list[list[AcknowledgementResult]]:
        """Acknowledge the entries of several requests, which share what they wait for.

        Each request succeeds or fails as by `acknowledge`, as if they came at the same time.

        Args:
            group: Of all of them.
            requests: The member of each, and its entries.

        Returns:
            The results of each request, in the order given.
        """
        ...

    def settle(
        self,
        group: ShareGroup,
        requests: Sequence[tuple[str, Sequence[Acknowledgement]]],
        acquires: Sequence[AcquireRequest],
    ) -> tuple[list[list[AcknowledgementResult]], list[Acquired | WingsError]]:
        """Acknowledge as by `acknowledge_all`, and lease what is available now meanwhile.

        What is acknowledged is in flight still while it is acquired. An acquire that gets nothing
        might still get something by `acquire_now`, which looks further. Blocks for the replicas,
        never for messages.

        Returns:
            The results of the acknowledgements, and what each acquire got, in the order given, or
            why nothing could be held for it.
        """
        ...

    def release_undelivered(self, group: ShareGroup, leased: Sequence[LeasedRange]) -> None:
        """Release ranges, or parts of them, that never reached their member.

        They do not count as deliveries. What this fails for expires, and then counts. Blocks for
        the replicas.
        """
        ...

    def describe(self, group: ShareGroup) -> list[SharePartitionState]:
        """Return where the group stands in each partition written to, by value.

        Blocks for the replicas.

        Raises:
            Unavailable: No majority of the replicas answered.
            TopicNotFound: The topic was deleted.
        """
        ...

    def stored(self, group: ShareGroup) -> list[StoredPartition]:
        """Return what a majority of the replicas keeps of the group, of each partition written to.

        Blocks for the replicas.

        Raises:
            Unavailable: No majority of the replicas answered.
            TopicNotFound: The topic was deleted.
        """
        ...

    def held(self, group: ShareGroup) -> Mapping[Partition, Sequence[HeldRange]]:
        """Return what members of any node hold of a group, by partition, in order of offset.

        Of very many ranges some. Blocks for the replicas.

        Raises:
            Unavailable: No majority of the replicas answered.
        """
        ...

    def close(self) -> None:
        """End waiting calls with `Unavailable`, and end the threads."""
        ...
