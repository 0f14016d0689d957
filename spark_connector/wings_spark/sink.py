"""Sink: the topic that rows are written to, and staging of a task's rows."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self
from uuid import uuid4

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from wings_client import Client, Topic
from wings_spark.committer import BatchCommitter
from wings_spark.connection import ServerAccess
from wings_spark.options import WriteOptions
from wings_spark.to_spark_schema import arrow_schema
from wings_spark.worker import prepare_worker
from wings_spark.write_schema import check_write_schema

STAGE_SECONDS_MAX = 24 * 3600.0
"""Longest time of a task: the default age at which a server sweeps abandoned stages."""


@dataclass(frozen=True, slots=True)
class StagedPart(WriterCommitMessage):
    """Commit message of one attempt of a task: its stage and batch."""

    committer: BatchCommitter
    stage: str | None
    """Id of the stage; None if the task had no rows."""
    rows: int


@dataclass(frozen=True, slots=True)
class Sink:
    """The topic that rows are appended to, pickled to the tasks."""

    server: ServerAccess
    topic: Topic

    @classmethod
    def find(cls, options: WriteOptions, schema: StructType) -> Self:
        """Fetch the topic, and check the rows' schema against it.

        Raises:
            TopicNotFound: The topic does not exist.
            SchemaMismatch: Columns are missing, unknown to the topic, or of a type that cannot be
                converted to the topic's.
        """
        prepare_worker()
        server = options.server
        with server.connect() as client:
            topic = client.topic(options.topic)
        check_write_schema(arrow_schema(schema), topic)
        return cls(server, topic)

    def stage(
        self,
        committer: BatchCommitter,
        batches: Iterator[pa.RecordBatch],
        *,
        repeated: bool,
        job: BatchCommitter | None = None,
    ) -> StagedPart:
        """Write the rows of this task to this attempt's own stage.

        Blocks until the rows are durable. An attempt that fails, or finishes after its job, deletes
        its stage.

        Args:
            committer: Committer of the rows' batch.
            batches: Rows in the checked schema.
            repeated: Whether the batch may have been published before this job began.
            job: Committer that is published empty if the job fails; None for `committer` itself.

        Raises:
            SchemaMismatch: A value does not fit the topic, such as a null in a required column.
            WingsError: The server rejected the rows or could not be reached.
        """
        prepare_worker()
        with self.server.connect() as client:
            if repeated and committer.is_published(client):
                # All rows are already published, but Spark's stateful operators must see the end.
                for _ in batches:
                    pass
                return StagedPart(committer, None, 0)
            return self._stage(client, committer, job or committer, batches)

    def _stage(
        self,
        client: Client,
        committer: BatchCommitter,
        job: BatchCommitter,
        batches: Iterator[pa.RecordBatch],
    ) -> StagedPart:
        first = next((batch for batch in batches if batch.num_rows), None)
        if first is None:
            return StagedPart(committer, None, 0)
        # On an error, the `with` statement deletes the stage.
        stage = client.stage(self.topic, stage_id(committer), seconds_max=STAGE_SECONDS_MAX)
        with stage:
            stage.write(first)
            for batch in batches:
                stage.write(batch)
            stage.close()
            # Spark cancels a task by ending its input, which looks like the end of the rows.
            over = {each for each in (committer, job) if each.is_published(client)}
        if over:
            client.abort(committer.writer, (stage.id,))
            return StagedPart(committer, None, 0)
        return StagedPart(committer, stage.id, stage.rows)


def stage_id(committer: BatchCommitter) -> str:
    """Return a stage id unique to this attempt of a task."""
    context = TaskContext.get()
    assert context is not None, "rows are staged in tasks"
    return f"{committer.prefix}{context.partitionId()}.{context.attemptNumber()}.{uuid4()}"


def stages_of(parts: Iterable[WriterCommitMessage | None]) -> Sequence[str]:
    """Return the stage ids of a job in the order of its tasks; tasks without rows have none."""
    return [part.stage for part in parts if isinstance(part, StagedPart) and part.stage is not None]
