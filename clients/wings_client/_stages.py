"""Stages: the calls that stage rows first and publish or delete them later."""

from collections.abc import Iterable

from wings_client._admin import AdminCalls, TopicRef
from wings_client._arguments import checked_with, list_of
from wings_client._batches import BATCH_ROWS
from wings_client._messages import TimeValue, build
from wings_client._model import Aborted, PartitionValue, Published, Staged, parsed
from wings_client._stage import STAGE_SECONDS_MAX, Stage
from wings_core.contracts.actions import StageAbort, StagePublish
from wings_core.contracts.shards import ShardEntry
from wings_core.errors import InvalidArgument
from wings_core.model import ShardProgress


@checked_with(shards=list_of("ShardProgress", ShardProgress))
class StageCalls(AdminCalls):
    """The calls of `Client` that stage and publish."""

    def stage(
        self,
        topic: TopicRef,
        stage_id: str,
        *,
        partition: PartitionValue = None,
        timestamp: TimeValue | None = None,
        batch_rows: int = BATCH_ROWS,
        seconds_max: float = STAGE_SECONDS_MAX,
    ) -> Stage:
        """Open a stage: batches that are durable and stay invisible until they are published.

        A context manager: leaving the block closes the stage; leaving it by an error ends the
        stream and deletes the stage.

        Args:
            topic: The topic; a `Topic` spares the call that asks for its schema.
            stage_id: 1 to 128 letters, digits and `._:-`, used for one stage only: put a random
                part in it. A stage that fails is written again under another.
            partition: Partition of all rows; None: by the key column, row by row.
            timestamp: The timestamp of all rows; None: the time of the publish.
            batch_rows: Most rows of one batch.
            seconds_max: After which the stage fails, if it is still not closed.

        Raises:
            TopicNotFound: There is none of this name.
            InvalidArgument: The id has another form.
        """
        stage = Stage(
            self._transport,
            self._described(topic),
            stage_id,
            partition=partition,
            timestamp=timestamp,
            batch_rows=batch_rows,
            seconds_max=seconds_max,
        )
        self._transport.add_stream(stage)
        return stage

    def publish(
        self,
        writer: str,
        batch: int,
        stages: Iterable[str | Staged],
        shards: Iterable[ShardProgress] = (),
    ) -> Published:
        """Make all rows of stages visible at once, and at most once for each batch of a writer.

        Publish stages that are closed. The same writer and batch again change nothing and return
        the first result, whatever the stages.

        Args:
            writer: The name that batches are counted under, such as a streaming query's.
            batch: At least 0, and higher than any that the writer published, or its last one.
            stages: Their ids, or what closing them returned, in the order of their rows; may be
                empty.
            shards: Changes of shards in the same transaction; see `open_shards`.

        Raises:
            StageNotFound: One was never written, or was aborted or swept (fact `stage`); nothing
                is published.
            TopicNotFound: The topic of one was deleted (fact `stage`); nothing is published.
            PublishFenced: The writer published a higher batch (fact `last_batch`); or a shard
                (facts `source` and `shard`) has another owner or position.
            BatchTooLarge: More than 500,000 pages: a page is a batch's rows in one partition.
        """
        body = build(
            StagePublish,
            InvalidArgument,
            "publish",
            writer=writer,
            batch=batch,
            stages=_ids(stages),
            shards=tuple(ShardEntry.of(progress) for progress in shards),
        )
        return parsed(Published, self._act("stage-publish", body))

    def abort(
        self,
        writer: str,
        stages: Iterable[str | Staged],
        batch: int | None = None,
        *,
        prefix: str | None = None,
    ) -> Aborted:
        """Delete stages that are not published; unknown ones are no error.

        Args:
            writer: The writer of the stages.
            stages: Their ids, or what closing them returned.
            batch: A batch of the writer, to learn whether it was published.
            prefix: Delete also the stages whose ids begin with this, at most 10,000 at a time.
        """
        body = build(
            StageAbort,
            InvalidArgument,
            "abort",
            writer=writer,
            batch=batch,
            stages=_ids(stages),
            prefix=prefix,
        )
        return parsed(Aborted, self._act("stage-abort", body))


def _ids(stages: Iterable[str | Staged]) -> tuple[str, ...]:
    return tuple(stage.stage if isinstance(stage, Staged) else stage for stage in stages)
