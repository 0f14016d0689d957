"""What metadata must do.

`Admin` is for names and schemas, `OffsetRegistry` and `Stages` are for the log, `Groups` for those
who share topics.

Every implementation is tried by one behaviour suite (`tests/unit/metadata`). All calls may come
from any thread. They block for the store's own time only, except `OffsetRegistry.wait`.
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import pyarrow as pa

from wings_core.metadata.maintenance import Maintenance
from wings_core.model import (
    Aborted,
    CommitBatch,
    CommitResult,
    ConsumerOffset,
    FlushId,
    Located,
    Namespace,
    Node,
    PartitionState,
    Position,
    Published,
    Shard,
    ShardClaim,
    ShardCounts,
    ShardProgress,
    ShardsPruned,
    ShardState,
    Stage,
    StoredPage,
    Topic,
    TopicConfig,
)
from wings_core.names import NamespaceName, TopicName
from wings_core.partitions import Partition
from wings_core.share.model import ShareConfig, ShareGroup
from wings_core.times import Deadline


class Admin(Protocol):
    """Namespaces and topics by name. A tenant comes into being with its first namespace."""

    def create_namespace(self, name: NamespaceName) -> Namespace:
        """Create a namespace.

        Raises:
            AlreadyExists: It is there.
        """
        ...

    def get_namespace(self, name: NamespaceName) -> Namespace:
        """Return a namespace.

        Raises:
            NamespaceNotFound: There is none of this name.
        """
        ...

    def delete_namespace(self, name: NamespaceName) -> Namespace:
        """Delete an empty namespace and return what it was.

        Raises:
            NamespaceNotFound: There is none of this name.
            NamespaceNotEmpty: It has topics.
        """
        ...

    def list_namespaces(self) -> list[Namespace]:
        """Return all namespaces, by name."""
        ...

    def create_topic(
        self,
        name: TopicName,
        schema: pa.Schema,
        partition_key: str | None = None,
        config: TopicConfig | None = None,
        *,
        if_not_exists: bool = False,
    ) -> Topic:
        """Create a topic; its schema must have passed `schemas.check_topic_schema`.

        With `if_not_exists`, a topic of this name with the same schema and partition key is
        returned as it is.

        Raises:
            NamespaceNotFound: The namespace does not exist.
            AlreadyExists: The topic exists (with `if_not_exists`: and differs in schema or key).
        """
        ...

    def get_topic(self, name: TopicName) -> Topic:
        """Return a topic.

        Raises:
            TopicNotFound: There is none of this name in the namespace.
            NamespaceNotFound: The namespace does not exist.
        """
        ...

    def list_topics(self, namespace: NamespaceName) -> list[Topic]:
        """Return the topics of a namespace, by name.

        Raises:
            NamespaceNotFound: The namespace does not exist.
        """
        ...

    def alter_topic(self, name: TopicName, config: TopicConfig) -> Topic:
        """Replace a topic's configuration and return the topic.

        Raises:
            TopicNotFound: There is none of this name in the namespace.
            NamespaceNotFound: The namespace does not exist.
        """
        ...

    def delete_topic(self, name: TopicName) -> Topic:
        """Delete a topic with its messages and consumers' offsets, and return what it was.

        It is gone for all readers and writers at once, and its waiters are woken; its pages are
        given back later, by `OffsetRegistry.purge`.

        Raises:
            TopicNotFound: There is none of this name in the namespace.
            NamespaceNotFound: The namespace does not exist.
        """
        ...


class OffsetRegistry(Protocol):
    """The log's index: which offsets of which partition lie where."""

    def commit(
        self, batches: Sequence[CommitBatch], flush_id: FlushId | None = None
    ) -> list[CommitResult]:
        """Assign offsets to the batches of one flush, in order, in one durable transaction.

        Each batch is judged against a state that includes the batches before it, and is accepted
        or rejected as a whole; a rejected batch rejects the later batches of its stream with the
        same error. Waiters of the partitions are woken after the transaction is durable.

        A batch's timestamp is raised to the partition's last one where it is earlier. One of a
        producer more than an hour ahead of the clock is rejected with `InvalidArgument`.

        A batch with a `stage` gets no offsets: its pages are kept for `Stages.publish`. Its first
        one begins the stage; see `metadata.stages` for who may add to it.

        Args:
            batches: Their pages are durable in storage.
            flush_id: Makes the commit idempotent: the writer's last flush again, whatever batches
                come with it, is answered with its first results and changes nothing.

        Returns:
            One result for each batch, in order. A batch can be rejected with `TopicNotFound`,
            `OutOfOrderSequence`, `OffsetMismatch` or `InvalidArgument`; a staged one also with
            `AlreadyExists`, `StageNotFound` or `BatchTooLarge`.

        Raises:
            Internal: The transaction failed; none of the batches is committed. Also for a flush
                before the writer's last one, which may come late and must not be committed then,
                and for one whose folio was given back meanwhile; see `retire`.
            ResourceExhausted: The same, because the disk is full.
            Unavailable: The same, because the store could not be reached in time.
        """
        ...

    def locate(
        self, topic_uuid: str, partition: Partition, offset: int, messages_max: int
    ) -> Located:
        """Find the pages that hold the messages from `offset` on; never waits.

        Args:
            topic_uuid: The topic.
            partition: One that need not have been written to yet.
            offset: First message wanted.
            messages_max: Stop once the pages hold this many messages from `offset` on; at least
                one. At most `LOCATIONS_MAX` pages are returned in any case.

        Raises:
            TopicNotFound: The topic was deleted.
            OffsetOutOfRange: `offset` is below the log's start.
        """
        ...

    def wait(
        self, positions: Sequence[Position], deadline: Deadline, wake: threading.Event
    ) -> None:
        """Block until any position has a message at or after its offset.

        Also returns when `wake` is set by somebody else, when the deadline passes, and when a
        topic among them is deleted. It may return early; callers look again with `locate`. The
        caller clears `wake` before it looks, so that no commit in between is missed.

        Args:
            positions: Waited for all at once.
            deadline: The end of the wait.
            wake: Set by commits to one of the positions, and by whoever wants the wait to end.

        Raises:
            ResourceExhausted: Too many wait already.
        """
        ...

    def watch(
        self, positions: Sequence[Position], callback: Callable[[], None]
    ) -> AbstractContextManager[None]:
        """Call back when any position has a message at or after its offset, and hold no thread.

        During the `with` block, `callback` is called after each commit that brings such a message,
        once however many of the positions it wrote to, and when a topic among them is deleted; and
        at once, on entering, where there is one already or a topic is gone. It is called from the
        committing thread, so it must be quick and must not raise; one call may still be under way
        when the block has ended. Over a network it is called a while after the commit (or after
        entering), commits that follow one another may share a call, and partitions need not.

        Args:
            positions: Watched all at once.
            callback: Only says that it is worth looking again with `locate`.

        Raises:
            ResourceExhausted: Too many wait already.
        """
        ...

    def partition_states(self, topic_uuid: str) -> list[PartitionState]:
        """Return the partitions written to so far, by value; an unpartitioned topic's one always.

        Raises:
            TopicNotFound: The topic was deleted.
        """
        ...

    def partition_state(self, topic_uuid: str, partition: Partition) -> PartitionState:
        """Return one partition's state; one never written to stands at 0.

        Raises:
            TopicNotFound: The topic was deleted.
        """
        ...

    def offset_for_timestamp(self, topic_uuid: str, partition: Partition, timestamp: int) -> int:
        """Return the offset of the first message at or after a time, else the next offset.

        Where that message is in a merged page, this is the first offset of the page: the timestamps
        of its rows are in the page itself (see `Fetcher.offset_for_timestamp`).

        Args:
            topic_uuid: The topic.
            partition: One that need not have been written to yet.
            timestamp: Microseconds since the epoch.

        Raises:
            TopicNotFound: The topic was deleted.
        """
        ...

    def commit_offsets(
        self, consumer: str, offsets: Sequence[tuple[Topic, Partition, int]]
    ) -> list[ConsumerOffset]:
        """Remember where a named consumer reads on, all entries in one transaction.

        Returns:
            What is remembered now, in the order given.

        Raises:
            TopicNotFound: One of the topics was deleted; nothing is remembered.
            InvalidArgument: An offset that no log can have; nothing is remembered.
        """
        ...

    def get_offsets(self, consumer: str, topic_uuid: str | None = None) -> list[ConsumerOffset]:
        """Return a named consumer's offsets, of one topic or of all, by topic and partition."""
        ...

    def list_consumers(self, consumers_max: int) -> list[str]:
        """Return the named consumers that read on somewhere, the first so many by name."""
        ...

    def purge(self, pages_max: int) -> bool:
        """Forget up to `pages_max` pages of deleted topics and stages, and what is out of date.

        Returns:
            True while there is more to forget.
        """
        ...

    def live_folios(self) -> set[str]:
        """Return the folios that at least one page still refers to, visible or staged."""
        ...

    def retire(self, folios: Sequence[str]) -> list[str]:
        """Let nothing refer to folios ever again, before they are deleted.

        A commit that names a retired folio is refused as a whole, however late it comes: so a
        folio may be deleted although a commit to it is still on its way. That holds for
        `folios.RETIRED_KEPT_US`. What is retired stays so; to ask again does no harm.

        Args:
            folios: At most `RETIRE_MAX`.

        Returns:
            Those that may be deleted now, in the order given: the ones to which no page refers,
            visible or staged.
        """
        ...


class Stages(Protocol):
    """Batches that are durable and invisible, by the id that they were staged under.

    They come by `OffsetRegistry.commit`. Ids are of the whole store, not of a topic; one that was
    published, aborted or swept is free again.
    """

    def publish(
        self,
        writer: str,
        batch: int,
        stages: Sequence[str],
        shards: Sequence[ShardProgress] = (),
    ) -> Published:
        """Make all pages of the stages visible, in one durable transaction.

        Offsets and timestamps are assigned now, by the rules of `OffsetRegistry.commit`: pages in
        the order of the stages named, those of a stage in the order in which they were staged. The
        stages are gone then. Waiters are woken after the transaction is durable.

        A batch that the writer published before is answered with its first result and changes
        nothing, whatever stages are named and whether they are there.

        Args:
            writer: Whose batches are counted.
            batch: At least 0 and higher than any that the writer published, or one of those.
            stages: Each once; none are allowed too.
            shards: Each once: what becomes of them in the same transaction; see `Shards`.

        Returns:
            One range for each topic and partition, in the order of their first pages.

        Raises:
            StageNotFound: One is not there (fact `stage`); nothing is published.
            TopicNotFound: The topic of one was deleted (fact `stage`); nothing is published.
            PublishFenced: The writer published a higher batch (fact `last_batch`), and this one
                never, or so long ago that its result is gone. Or a shard (facts `source`, `shard`)
                is not open, not owned by the token given, or stands at another position; nothing
                is published.
            InvalidArgument: A writer, batch or shard that cannot be, or a stage or shard named
                twice.
            BatchTooLarge: The stages have more pages than go into one transaction.
        """
        ...

    def abort(
        self,
        writer: str,
        stages: Sequence[str],
        batch: int | None = None,
        prefix: str | None = None,
    ) -> Aborted:
        """Delete those of the stages that are there; what was published is out of reach.

        All are gone at once; their pages are given back later, by `OffsetRegistry.purge`.

        Args:
            writer: Whose batch it was to be.
            stages: Any ids.
            batch: Asks whether the writer published this batch; changes nothing else.
            prefix: Names further stages: those whose ids begin with it, by id, at most
                `stages.ABORTED_MAX` at a time.

        Raises:
            InvalidArgument: A writer or batch that cannot be.
        """
        ...

    def sweep(self, seconds: float, stages_max: int) -> int:
        """Delete stages whose last batch is older than this, as `abort` does.

        Returns:
            How many; if as many as `stages_max`, there may be more.
        """
        ...

    def of_topic(self, topic_uuid: str) -> list[Stage]:
        """Return a topic's stages, by id; none of a deleted one."""
        ...

    def pages(self, stage: str, first: int, pages_max: int) -> list[StoredPage]:
        """Return the pages of a stage, in order, from number `first` (from 0) on.

        None are returned at the end, and of a stage that is not there.
        """
        ...


class Groups(Protocol):
    """Share groups of topics: what they are called, and their configuration.

    A group belongs to one topic, and is deleted with it.
    """

    def create(self, group: ShareGroup, *, if_not_exists: bool = False) -> ShareGroup:
        """Make a group known.

        Args:
            group: With a name of 1 to 256 bytes and a UUID that no other group has.
            if_not_exists: Return a group of this name as it is, whatever its configuration.

        Raises:
            TopicNotFound: The topic was deleted.
            AlreadyExists: The topic has a group of this name.
            ResourceExhausted: The topic has as many groups as it may have.
            InvalidArgument: A name that cannot be stored.
        """
        ...

    def get(self, topic: Topic, name: str) -> ShareGroup:
        """Return a group.

        Raises:
            TopicNotFound: The topic was deleted.
            GroupNotFound: It has none of this name.
        """
        ...

    def of_topic(self, topic: Topic) -> list[ShareGroup]:
        """Return a topic's groups, by name.

        Raises:
            TopicNotFound: The topic was deleted.
        """
        ...

    def alter(self, topic: Topic, name: str, changes: ShareConfig) -> ShareGroup:
        """Replace the keys of a group's configuration that were given in `changes`.

        Raises:
            TopicNotFound: The topic was deleted.
            GroupNotFound: It has no group of this name.
        """
        ...

    def delete(self, topic: Topic, name: str) -> ShareGroup:
        """Forget a group and return what it was.

        Raises:
            TopicNotFound: The topic was deleted.
            GroupNotFound: It has none of this name.
        """
        ...


class Shards(Protocol):
    """What is read into the log once by many readers, who know each other only from here.

    A shard is a file, or anything else that is told of at least once. Who opens it first owns it by
    a token; its progress is published together with its rows (`Stages.publish`), only by its owner
    and only from where it stands. An owner that is not heard of is replaced by compare-and-set.
    What is finished is remembered until it is pruned, so that it is not read again.
    """

    def open(self, source: str, token: str, shards: Sequence[str]) -> list[Shard]:
        """Create the shards that are not there, owned by a token, and return all as they are.

        Args:
            source: Whose they are.
            token: Of whoever wants to read them; not empty.
            shards: Each once; up to `SHARDS_MAX`.

        Returns:
            One for each, in the order given. Those that were there are not changed.

        Raises:
            InvalidArgument: An id that cannot be, or one named twice.
        """
        ...

    def acquire(
        self, source: str, token: str, claims: Sequence[ShardClaim], stale_seconds: float
    ) -> list[Shard]:
        """Take over open shards from owners that were not heard of, or say that one is alive.

        A shard becomes the token's if it is open, its owner is the one that the claim names, and
        that is the token itself, nobody, or one not heard of for so long.

        Args:
            source: Whose they are.
            token: Of the owner to be; not empty.
            claims: For each shard once; up to `SHARDS_MAX`.
            stale_seconds: By the clock of the metadata.

        Returns:
            Those that are there, in the order given, as they are now: who has `token` owns them.

        Raises:
            InvalidArgument: An id that cannot be, or one named twice.
        """
        ...

    def reset(self, source: str, shards: Sequence[str]) -> list[Shard]:
        """Open dead shards again, without an owner and without failures.

        Returns:
            Those that were dead, as they are now, in the order given.

        Raises:
            InvalidArgument: An id that cannot be, or one named twice.
        """
        ...

    def get(self, source: str, shards: Sequence[str]) -> list[Shard]:
        """Return those of the shards that are there, in the order given.

        Raises:
            InvalidArgument: An id that cannot be, or one named twice.
        """
        ...

    def of_source(
        self, source: str, state: ShardState | None, after: str, shards_max: int
    ) -> list[Shard]:
        """Return shards of a source, by id in UTF-8.

        Args:
            source: Whose they are.
            state: Only those in this state; None: all.
            after: The first ones whose id is greater.
            shards_max: At most so many, and at most `SHARDS_MAX`.
        """
        ...

    def count(self, source: str) -> ShardCounts:
        """Count the shards of a source."""
        ...

    def prune(
        self, source: str, age_seconds: float, count_max: int | None, interval_seconds: float
    ) -> ShardsPruned:
        """Forget shards that were finished or given up long ago, the oldest first.

        Does nothing where another pruning of the source began less than an interval ago, so that of
        many pipelines one prunes. An open shard is never forgotten. At most `PRUNED_MAX` are
        forgotten at once.

        Args:
            source: Whose they are.
            age_seconds: Those that have not changed for so long are forgotten.
            count_max: And those older than the newest so many; None: no matter how many.
            interval_seconds: Between two prunings.
        """
        ...


class Nodes(Protocol):
    """The Flight nodes that are there: each by a lease that it renews while it lives."""

    def renew(self, node: Node, seconds: float) -> list[Node]:
        """Register a node, or renew its lease.

        Args:
            node: Itself; of an address, the node that registered last counts.
            seconds: How long the lease lasts from now on, by the store's clock, to
                `NODE_LEASE_SECONDS_MAX`.

        Returns:
            The nodes whose leases have not run out, this one among them, by address; at most
            `NODES_MAX`.

        Raises:
            InvalidArgument: An id or address that cannot be, or a lease out of range.
            ResourceExhausted: There are `NODES_MAX` nodes already.
        """
        ...

    def leave(self, node_id: str) -> None:
        """Take a node out, if it is there."""
        ...

    def live(self) -> list[Node]:
        """Return the nodes as `renew` does."""
        ...


class Metadata(Protocol):
    """One store of metadata: its interfaces, opened and closed together."""

    @property
    def admin(self) -> Admin:
        """Namespaces and topics."""
        ...

    @property
    def registry(self) -> OffsetRegistry:
        """The log's index."""
        ...

    @property
    def stages(self) -> Stages:
        """What was staged."""
        ...

    @property
    def groups(self) -> Groups:
        """Share groups."""
        ...

    @property
    def shards(self) -> Shards:
        """What is read into the log once."""
        ...

    @property
    def nodes(self) -> Nodes:
        """The Flight nodes that are there."""
        ...

    @property
    def maintenance(self) -> Maintenance:
        """What moves old pages."""
        ...

    def close(self) -> None:
        """Let go of the store; later calls raise `Unavailable`."""
        ...


NODES_MAX = 1_000
"""The most Flight nodes at once."""

NODE_LEASE_SECONDS_MAX = 3_600.0
"""The longest that a node counts as live without a word of it."""

RETIRE_MAX = 1_000
"""The most folios that are retired in one transaction."""

LOCATIONS_MAX = 1_000
"""The most locations that one `locate` returns."""

OFFSET_MAX = (1 << 63) - 1
"""The largest integer that every store keeps; offsets asked for may be any integers."""
