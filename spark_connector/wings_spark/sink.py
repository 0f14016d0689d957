"""Sink: the topic that rows are written to, and how a task stages its part of them."""

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
from wings_spark.connection import Server
from wings_spark.to_spark_schema import arrow_schema
from wings_spark.worker import prepare_worker
from wings_spark.write_options import WriteOptions
from wings_spark.write_schema import check_write_schema

STAGE_SECONDS_MAX = 24 * 3600.0
"""How long a task may take; a server sweeps what was left for as long, unless set otherwise."""


@dataclass(frozen=True, slots=True)
class Part(WriterCommitMessage):
    """The commit message of one attempt of a task: what it staged, and for which batch."""

    committer: BatchCommitter
    stage: str | None
    """The stage's id; None if the task had no rows."""
    rows: int


@dataclass(frozen=True, slots=True)
class Sink:
    """The topic that rows are appended to; goes to the tasks pickled."""

    server: Server
    topic: Topic

    @classmethod
    def find(cls, options: WriteOptions, schema: StructType) -> Self:
        """Fetch the topic, and check the rows' schema against it.

        Raises:
            TopicNotFound: There is none of this name.
            SchemaMismatch: Columns are missing, not the topic's, or of a type that cannot become
                the topic's.
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
    ) -> Part:
        """Write the rows of this task to a stage of this attempt's own.

        Blocks until they are durable. An attempt that fails deletes its stage, as does one that
        finishes after its job.

        Args:
            committer: Of the batch that the rows belong to.
            batches: Of the schema that was checked.
            repeated: Whether the batch may have been published before this job began.
            job: Published empty when the job fails; None: `committer` itself.

        Raises:
            SchemaMismatch: A value does not fit the topic, such as a null in a required column.
            WingsError: The server refused the rows or could not be reached.
        """
        prepare_worker()
        with self.server.connect() as client:
            if repeated and committer.is_published(client):
                # All rows are published, but Spark's stateful operators must see the end.
                for _ in batches:
                    pass
                return Part(committer, None, 0)
            return self._stage(client, committer, job or committer, batches)

    def _stage(
        self,
        client: Client,
        committer: BatchCommitter,
        job: BatchCommitter,
        batches: Iterator[pa.RecordBatch],
    ) -> Part:
        first = next((batch for batch in batches if batch.num_rows), None)
        if first is None:
            return Part(committer, None, 0)
        # Left by an error, the stage is deleted.
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
            return Part(committer, None, 0)
        return Part(committer, stage.id, stage.rows)


def stage_id(committer: BatchCommitter) -> str:
    """Return a stage id that is unique to this attempt of a task."""
    context = TaskContext.get()
    assert context is not None, "rows are staged in tasks"
    return f"{committer.prefix}{context.partitionId()}.{context.attemptNumber()}.{uuid4()}"


def stages_of(parts: Iterable[WriterCommitMessage | None]) -> Sequence[str]:
    """Return the stage ids of a job in the order of its tasks, without tasks that staged none."""
    return [part.stage for part in parts if isinstance(part, Part) and part.stage is not None]
