"""Interfaces of stages, of shards (how far sources were read), and of transactions.

A transaction publishes rows of many streams and offsets of many consumers at once.
"""

from collections.abc import Sequence
from typing import Protocol

from wings_core.model import (
    AbortResult,
    CommittedOffset,
    ConsumerCommit,
    ProducerEpoch,
    PublishResult,
    Shard,
    ShardClaim,
    ShardCounts,
    ShardProgress,
    ShardsPruned,
    ShardState,
    StoredPage,
    Topic,
    Transaction,
    UnpublishedStage,
)
from wings_core.names import TopicName
from wings_core.partitions import Partition


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
        *,
        epoch: int | None = None,
        offsets: ConsumerCommit | None = None,
    ) -> PublishResult:
        """Make all pages of the stages visible, in one durable transaction.

        Offsets and timestamps are assigned now, by the rules of `OffsetRegistry.commit`: pages in
        the order of the stages named, those of a stage in the order in which they were staged. The
        stages are gone then. Waiters are woken after the transaction is durable.

        A batch that the writer published before is answered with its first result and changes
        nothing, whatever stages are named and whether they are there. A writer is forgotten
        `stages.WRITERS_KEPT_US` after its last publish: its next publish is its first then.

        Args:
            writer: Writer that counts the batches.
            batch: At least 0 and higher than any that the writer published, or one of those.
            stages: Each once; none are allowed too.
            shards: Each once: their progress, stored in the same transaction; see `Shards`.
            epoch: The writer's, of `begin`; None for a writer that has begun none.
            offsets: Offsets of a consumer, stored in the same transaction; see
                `OffsetRegistry.commit_offsets`.

        Returns:
            One range for each topic and partition, in the order of their first pages.

        Raises:
            StageNotFound: One does not exist (fact `stage`); nothing is published.
            TopicNotFound: The topic of one was deleted (fact `stage`); nothing is published.
            PublishFenced: The writer published a higher batch (fact `last_batch`), and this one
                never, or so long ago that its result is gone. Or a shard (facts `source`, `shard`)
                is not open, not owned by the token given, or stands at another position. Or the
                writer has begun another epoch (fact `epoch`); nothing is published.
            OffsetOutOfRange: A consumer's offset is past the end of its log.
            InvalidArgument: A writer, batch, stage or shard that cannot be stored, or a stage or
                shard named twice.
            BatchTooLarge: The stages have more pages than go into one transaction.
        """
        ...

    def begin(self, writer: str) -> int:
        """Begin the next epoch of a writer, durably, and return its number, from 1 on.

        Publishes of its earlier epochs, and those without one, are refused from now on; what one of
        them published already is still answered with its first result. An epoch is forgotten with
        its writer, `stages.WRITERS_KEPT_US` after it began and after the writer's last publish.

        Raises:
            InvalidArgument: A writer that cannot be stored.
        """
        ...

    def abort(
        self,
        writer: str,
        stages: Sequence[str],
        batch: int | None = None,
        prefix: str | None = None,
    ) -> AbortResult:
        """Delete the existing ones of the stages; published batches are not touched.

        All are gone at once; their pages are deleted later, by `OffsetRegistry.purge`.

        Args:
            writer: Writer of the batch.
            stages: Any ids, without the character NUL.
            batch: Asks whether the writer published this batch; changes nothing else.
            prefix: Names further stages: those whose ids begin with it, by id, at most
                `stages.ABORTED_MAX` at a time.

        Raises:
            InvalidArgument: A writer, batch or stage that cannot be stored.
        """
        ...

    def sweep(self, seconds: float, stages_max: int) -> int:
        """Delete stages whose last batch is older than this, as `abort` does.

        Returns:
            How many; if as many as `stages_max`, there may be more.
        """
        ...

    def of_topic(
        self, topic_uuid: str, *, after: str | None = None, items_max: int | None = None
    ) -> list[UnpublishedStage]:
        """Return a topic's stages, by id; none of a deleted one.

        Args:
            topic_uuid: Theirs.
            after: Only those whose id is greater; None: all.
            items_max: The first so many of them; None: all.
        """
        ...

    def topics(self, stages: Sequence[str], prefix: str | None = None) -> set[TopicName]:
        """Return the topics of the existing ones of the stages.

        Args:
            stages: Any ids, without the character NUL.
            prefix: Names further stages, as for `abort`.

        Raises:
            InvalidArgument: A stage that cannot be stored.
        """
        ...

    def pages(self, stage: str, first: int, pages_max: int) -> list[StoredPage]:
        """Return the pages of a stage, in order, from number `first` (from 0) on.

        None are returned at the end, and of a stage that is not there.
        """
        ...


class Shards(Protocol):
    """The shards of sources, which many readers read into the log once between them.

    A shard is a file, or anything else that is announced at least once. The first reader to open it
    owns it by a token; its progress is published together with its rows (`Stages.publish`), only by
    its owner and only from its stored position. A stale owner is replaced by compare-and-set.
    A finished shard is remembered until it is pruned, so that it is not read again.
    """

    def open(self, source: str, token: str, shards: Sequence[str]) -> list[Shard]:
        """Create the missing shards, owned by `token`, and return all of them.

        Args:
            source: Source of the shards.
            token: Token of the reader; not empty.
            shards: Each once; up to `SHARDS_MAX`.

        Returns:
            One for each, in the order given. Existing ones are not changed.

        Raises:
            InvalidArgument: An id that is empty, too long or not text, or one named twice.
        """
        ...

    def acquire(
        self, source: str, token: str, claims: Sequence[ShardClaim], stale_seconds: float
    ) -> list[Shard]:
        """Take over open shards from stale owners, or renew the ownership of one's own.

        A shard becomes the token's if it is open, its owner is the one that the claim names, and
        that is the token itself, none, or one that has not renewed for `stale_seconds`.

        Args:
            source: Source of the shards.
            token: Token of the new owner; not empty.
            claims: For each shard once; up to `SHARDS_MAX`.
            stale_seconds: Age after which an owner is stale, by the clock of the metadata.

        Returns:
            The existing ones, in the order given, as they are now: `token` owns those that name it.

        Raises:
            InvalidArgument: An id that is empty, too long or not text, or one named twice.
        """
        ...

    def reset(self, source: str, shards: Sequence[str]) -> list[Shard]:
        """Open dead shards again, without an owner and without failures.

        Returns:
            Shards that were dead, as they are now, in the order given.

        Raises:
            InvalidArgument: An id that is empty, too long or not text, or one named twice.
        """
        ...

    def get(self, source: str, shards: Sequence[str]) -> list[Shard]:
        """Return the existing ones of the shards, in the order given.

        Raises:
            InvalidArgument: An id that is empty, too long or not text, or one named twice.
        """
        ...

    def of_source(
        self, source: str, state: ShardState | None, after: str, shards_max: int
    ) -> list[Shard]:
        """Return shards of a source, by id in UTF-8.

        Args:
            source: Source of the shards.
            state: Only those in this state; None: all.
            after: The first ones whose id is greater.
            shards_max: At most so many, and at most `SHARDS_MAX`.
        """
        ...

    def sources(self, sources_max: int, *, after: str | None = None) -> list[str]:
        """Return the sources that have shards, by name in UTF-8.

        Args:
            sources_max: The first so many.
            after: Only sources whose name is greater; None: all.
        """
        ...

    def count(self, source: str) -> ShardCounts:
        """Count the shards of a source."""
        ...

    def prune(
        self, source: str, age_seconds: float, count_max: int | None, interval_seconds: float
    ) -> ShardsPruned:
        """Delete shards that finished or died long ago, the oldest first.

        Does nothing where another pruning of the source began less than an interval ago, so that of
        many pipelines one prunes. An open shard is never deleted. At most `PRUNED_MAX` are deleted
        at once.

        Args:
            source: Source of the shards.
            age_seconds: Age since the last change at which a shard is deleted.
            count_max: Number of the newest ended shards that are kept; older ones are deleted
                whatever their age. None: no limit.
            interval_seconds: Between two prunings.
        """
        ...


class Transactions(Protocol):
    """Transactions by the name of their producer, of which one at a time is open.

    A transaction stages rows of any partitions, by any streams (`transactions.stage_entry` names
    the stage of a partition), and collects offsets of any consumers. Its end publishes all of them
    at once, or deletes them. What is open survives restarts, until its deadline.
    """

    def join(self, name: str, timeout_ms: int, held: ProducerEpoch | None = None) -> ProducerEpoch:
        """Begin the next life of a name's producer, durably; an open transaction is aborted.

        Earlier lives are fenced. A name is forgotten `stages.WRITERS_KEPT_US` after its last
        change.

        Args:
            name: At most 256 bytes.
            timeout_ms: Longest time that a transaction stays open; to `TIMEOUT_MS_MAX`.
            held: The life that the caller held so far; None: the caller has just begun. The same
                again is answered with the same life.

        Raises:
            PublishFenced: Another producer has joined since `held`.
            InvalidArgument: A name or time-out that cannot be.
        """
        ...

    def add_partitions(
        self, name: str, producer: ProducerEpoch, partitions: Sequence[tuple[Topic, Partition]]
    ) -> None:
        """Begin the stages of partitions, durably; opens a transaction where none is open.

        Partitions that it has already stay as they are.

        Args:
            name: The name.
            producer: Its producer.
            partitions: At most `PARTITIONS_MAX` in a transaction.

        Raises:
            PublishFenced: The producer is not the one that joined last; see `check_producer`.
            TopicNotFound: One of the topics was deleted; nothing is changed.
            InvalidArgument: There are too many, or a partition cannot be stored.
        """
        ...

    def add_offsets(self, name: str, producer: ProducerEpoch, offsets: ConsumerCommit) -> None:
        """Store offsets to be committed with the transaction; opens one where none is open.

        The last offset of a partition counts, for each consumer.

        Args:
            name: The name.
            producer: Its producer.
            offsets: May be none, which only opens the transaction.

        Raises:
            PublishFenced: As of `add_partitions`.
            FencedMember, OffsetOutOfRange, TopicNotFound, InvalidArgument: As of
                `OffsetRegistry.commit_offsets`; nothing is changed.
        """
        ...

    def end(self, name: str, producer: ProducerEpoch, *, commit: bool) -> PublishResult:
        """End the open transaction, in one durable transaction of metadata.

        A commit makes all its rows visible and commits all its offsets; what belongs to topics
        that were deleted meanwhile falls away. Waiters are woken afterwards. Repeated, it changes
        nothing, and its ranges are not remembered.

        Args:
            name: The name.
            producer: Its producer.
            commit: False: delete all instead.

        Raises:
            PublishFenced: As of `add_partitions`.
            StageNotFound: No transaction is open, and the last one ended otherwise.
            FencedMember: A member of a consumer's group lost one of the partitions; nothing is
                changed.
            BatchTooLarge: The rows have more pages than go into one transaction.
        """
        ...

    def expire(self, transactions_max: int) -> int:
        """Abort transactions past their deadline, and fence their producers, the oldest first.

        A fenced producer may join again as the holder of its epoch. Where the store's clock was set
        back, a transaction that is open gets its whole timeout anew.

        Returns:
            How many were looked at; if as many as `transactions_max`, there may be more.
        """
        ...

    def find(self, name: str) -> Transaction | None:
        """Return a name's last transaction; None where nobody has joined."""
        ...

    def pending(self, consumer: str) -> list[CommittedOffset]:
        """Return the offsets of a consumer that open transactions will commit."""
        ...
