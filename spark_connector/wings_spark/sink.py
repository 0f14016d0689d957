"""Sink: the topic that rows are written to, and how a task stages its part of them."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self
from uuid import uuid4

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

import wings_client
from wings_client import Client, Topic
from wings_spark.conform import arrow_schema
from wings_spark.fit import check_fit
from wings_spark.ledger import Entry
from wings_spark.worker import prepare_worker
from wings_spark.write_options import WriteOptions

STAGE_SECONDS_MAX = 24 * 3600.0
"""How long a task may take; a server sweeps what was left for as long, unless set otherwise."""


@dataclass(frozen=True, slots=True)
class Part(WriterCommitMessage):
    """What one attempt of a task tells the driver: what it staged, and for which batch."""

    entry: Entry
    stage: str | None
    """The stage's id; None where there was nothing to stage."""
    rows: int


@dataclass(frozen=True, slots=True)
class Sink:
    """A topic to write to; goes to the tasks pickled."""

    endpoint: str
    topic: Topic

    @classmethod
    def find(cls, options: WriteOptions, schema: StructType) -> Self:
        """Ask the server for the topic, and see that the rows fit it.

        Raises:
            TopicNotFound: There is none of this name.
            SchemaMismatch: Columns are missing, not the topic's, or of a type that cannot become
                the topic's.
        """
        prepare_worker()
        with wings_client.connect(options.endpoint) as client:
            topic = client.topic(options.topic)
        check_fit(arrow_schema(schema), topic)
        return cls(options.endpoint, topic)

    def stage(
        self,
        entry: Entry,
        batches: Iterator[pa.RecordBatch],
        *,
        repeated: bool,
        job: Entry | None = None,
    ) -> Part:
        """Stage the rows of this task, by a stage of this attempt's own.

        Blocks until they are durable. An attempt that fails deletes its stage, as does one that
        ends after its job did.

        Args:
            entry: What they will be published as.
            batches: Of the schema that was checked.
            repeated: Whether the batch may have been published before this job began.
            job: What is published when the job has failed, if not the entry itself.

        Raises:
            SchemaMismatch: A value does not fit the topic, such as a null in a column without.
            WingsError: What the server refused, or that it could not be reached.
        """
        prepare_worker()
        with wings_client.connect(self.endpoint) as client:
            if repeated and entry.is_published(client):
                # All rows are there; but Spark's operators, which keep state, must see the end.
                for _ in batches:
                    pass
                return Part(entry, None, 0)
            return self._stage(client, entry, job or entry, batches)

    def _stage(
        self, client: Client, entry: Entry, job: Entry, batches: Iterator[pa.RecordBatch]
    ) -> Part:
        first = next((batch for batch in batches if batch.num_rows), None)
        if first is None:
            return Part(entry, None, 0)
        # Left by an error, the stage is deleted.
        stage = client.stage(self.topic, stage_id(entry), seconds_max=STAGE_SECONDS_MAX)
        with stage:
            stage.write(first)
            for batch in batches:
                stage.write(batch)
            stage.close()
            # Spark ends a task that it has given up on by ending its input, as if that were all.
            over = {each for each in (entry, job) if each.is_published(client)}
        if over:
            client.abort(entry.writer, (stage.id,))
            return Part(entry, None, 0)
        return Part(entry, stage.id, stage.rows)


def stage_id(entry: Entry) -> str:
    """Return an id for what this attempt of a task stages: no other attempt ever has the same."""
    context = TaskContext.get()
    assert context is not None, "rows are staged in tasks"
    return f"{entry.prefix}{context.partitionId()}.{context.attemptNumber()}.{uuid4()}"


def stages_of(parts: Iterable[WriterCommitMessage | None]) -> Sequence[str]:
    """Return the stages of a job in the order of its tasks; of those that failed there are none."""
    return [part.stage for part in parts if isinstance(part, Part) and part.stage is not None]
