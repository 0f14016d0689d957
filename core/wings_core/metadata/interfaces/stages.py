"""Batches that were staged and not published yet."""

from collections.abc import Sequence
from typing import Protocol

from wings_core.model import Aborted, Published, ShardProgress, Stage, StoredPage
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
    ) -> Published:
        """Make all pages of the stages visible, in one durable transaction.

        Offsets and timestamps are assigned now, by the rules of `OffsetRegistry.commit`: pages in
        the order of the stages named, those of a stage in the order in which they were staged. The
        stages are gone then. Waiters are woken after the transaction is durable.

        A batch that the writer published before is answered with its first result and changes
        nothing, whatever stages are named and whether they are there. A writer is forgotten
        `stages.WRITERS_KEPT_US` after its last publish: its next publish is its first then.

        Args:
            writer: Whose batches are counted.
            batch: At least 0 and higher than any that the writer published, or one of those.
            stages: Each once; none are allowed too.
            shards: Each once: their progress, stored in the same transaction; see `Shards`.

        Returns:
            One range for each topic and partition, in the order of their first pages.

        Raises:
            StageNotFound: One does not exist (fact `stage`); nothing is published.
            TopicNotFound: The topic of one was deleted (fact `stage`); nothing is published.
            PublishFenced: The writer published a higher batch (fact `last_batch`), and this one
                never, or so long ago that its result is gone. Or a shard (facts `source`, `shard`)
                is not open, not owned by the token given, or stands at another position; nothing
                is published.
            InvalidArgument: A writer, batch, stage or shard that cannot be stored, or a stage or
                shard named twice.
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
        """Delete the existing ones of the stages; published batches are not touched.

        All are gone at once; their pages are deleted later, by `OffsetRegistry.purge`.

        Args:
            writer: Whose batch it was to be.
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
    ) -> list[Stage]:
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
