"""Interfaces of stages, and of shards: how far sources were read."""

from collections.abc import Sequence
from typing import Protocol

from wings_core.model import (
    AbortResult,
    ConsumerCommit,
    PublishResult,
    Shard,
    ShardClaim,
    ShardCounts,
    ShardProgress,
    ShardsPruned,
    ShardState,
    StoredPage,
    UnpublishedStage,
)
from wings_core.names import TopicName


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
