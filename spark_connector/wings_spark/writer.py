"""Writes in Spark's data source API.

    planning          tasks                        driver
    check the topic ─▶ stage, each for itself ─▶ publish all at once
                                                   or abort

Spark pickles the writer at planning, and commits with a copy of it in another process.

The server remembers each writer's published batches. A repeated publish, after a crash or a lost
response, returns the first result, and the stages of the repetition are deleted.

Tasks that Spark kills or abandons leave stages unknown to the driver, some of them after the
commit. The ids of all stages of a batch therefore share a prefix: the driver deletes the
unpublished stages with that prefix, and a task that finishes later finds the batch published, or
its job closed, and deletes its own stage.
"""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self
from uuid import uuid4

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from wings_client import Client, Topic
from wings_core.arrow_types import fields_of
from wings_core.cast import Conversion, conversion, wanted_fields
from wings_core.contracts.messages import shortened
from wings_core.errors import SchemaMismatch, WingsError
from wings_core.type_names import type_name
from wings_spark.connection import ServerAccess, prepare_worker
from wings_spark.options import WriteOptions
from wings_spark.types import arrow_schema

STAGE_SECONDS_MAX = 24 * 3600.0
"""Longest time of a task: the default age at which a server sweeps abandoned stages."""

QUERY_ID = "sql.streaming.queryId"
"""Property with the query's id, the same after a restart from its checkpoint."""

BATCH_ID = "streaming.sql.batchId"


@dataclass(frozen=True, slots=True)
class BatchCommitter:
    """The committer of one batch of one writer, pickled to the tasks and back to the driver."""

    writer: str
    batch: int
    prefix: str
    """Prefix of the ids of all stages of this batch, and of no others."""

    def is_published(self, client: Client) -> bool:
        """Return whether the server has this batch; forgotten old batches count as unpublished.

        Blocks for one call.
        """
        return client.abort(self.writer, (), self.batch).published is True

    def publish(self, server: ServerAccess, stages: Sequence[str]) -> None:
        """Make the stages visible in one transaction, unless this batch was published before.

        Raises:
            PublishFenced: The writer has published a later batch, as after a checkpoint was reset
                to an earlier one.
            StageNotFound: A stage was aborted, or swept after its time limit.
            WingsError: The server rejected the call or could not be reached; a retry is safe.
        """
        prepare_worker()
        with server.connect() as client:
            client.publish(self.writer, self.batch, stages)
            # Published stages are unaffected; this deletes stages of other attempts and of
            # interrupted runs. If it fails, the server sweeps them.
            with contextlib.suppress(WingsError):
                client.abort(self.writer, (), prefix=self.prefix)

    def abort(self, server: ServerAccess) -> None:
        """Delete the unpublished stages of this batch: Spark may abort a committed batch.

        A concurrent publish, its response lost, either finds its stages or fails: the server
        serializes the two.
        """
        with server.connect() as client:
            client.abort(self.writer, (), prefix=self.prefix)

    def close(self, server: ServerAccess) -> None:
        """Publish an empty batch if none was published, so that later tasks find it closed."""
        with server.connect() as client:
            client.publish(self.writer, self.batch, ())


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
        _check_write_schema(arrow_schema(schema), topic)
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


class WingsWriter(DataSourceArrowWriter):
    """A writer that appends the rows of one job to a topic, atomically.

    Args:
        options: Options, checked for a batch write.
        schema: Schema of the rows.

    Raises:
        WingsError: The topic does not exist, or the rows do not fit it.
    """

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._sink = Sink.find(options, schema)
        self._repeated = options.txn_app_id is not None
        job = uuid4()
        prefix = f"spark.{job}."
        self._job = self._committer = BatchCommitter(f"spark-job:{job}", 0, prefix)
        if options.txn_app_id is not None and options.txn_version is not None:
            # As in Delta Lake, an application counts its versions for each table by itself.
            writer = f"spark-app:{options.txn_app_id}:{self._sink.topic.uuid}"
            self._committer = BatchCommitter(writer, options.txn_version, prefix)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of one task."""
        return self._sink.stage(self._committer, iterator, repeated=self._repeated, job=self._job)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish the tasks' stages in one transaction."""
        self._committer.publish(self._sink.server, stages_of(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Delete the tasks' stages; tasks that still run find the job closed and delete theirs."""
        # In this order: the task of a stage that this abort misses sees the job closed.
        self._job.close(self._sink.server)
        self._committer.abort(self._sink.server)


class WingsStreamWriter(DataSourceStreamArrowWriter):
    """A writer that appends each batch of a query to a topic, atomically and exactly once.

    Args:
        options: Options, checked for a streaming write.
        schema: Schema of the rows.

    Raises:
        WingsError: The topic does not exist, or the rows do not fit it.
    """

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._sink = Sink.find(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of one task."""
        return self._sink.stage(_committer_of_task(), iterator, repeated=True)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name.
        """Publish the stages of a batch's tasks."""
        committer = _committer_of(messages, batchId)
        if committer is not None:
            committer.publish(self._sink.server, stages_of(messages))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name.
        """Delete the stages written so far by a batch's tasks, unless the batch was published.

        Stages written later, or of a batch without successful tasks, are deleted when the repeated
        batch is published; if the query never restarts, the server sweeps them.
        """
        committer = _committer_of(messages, batchId)
        if committer is not None:
            committer.abort(self._sink.server)


def _committer_of_task() -> BatchCommitter:
    context = TaskContext.get()
    assert context is not None, "rows are staged in tasks"
    query, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
    assert query is not None, "Spark names the query of a streaming task"
    assert batch is not None, "Spark numbers the batch of a streaming task"
    return BatchCommitter(query, int(batch), f"spark.{query}.{batch}.")


def _committer_of(
    messages: Iterable[WriterCommitMessage | None], batch: int
) -> BatchCommitter | None:
    """Return the committer that the tasks of a batch sent; None if no task succeeded."""
    committer = next((part.committer for part in messages if isinstance(part, StagedPart)), None)
    assert committer is None or committer.batch == batch, "tasks stage for the batch that commits"
    return committer


def stage_id(committer: BatchCommitter) -> str:
    """Return a stage id unique to this attempt of a task."""
    context = TaskContext.get()
    assert context is not None, "rows are staged in tasks"
    return f"{committer.prefix}{context.partitionId()}.{context.attemptNumber()}.{uuid4()}"


def stages_of(parts: Iterable[WriterCommitMessage | None]) -> Sequence[str]:
    """Return the stage ids of a job in the order of its tasks; tasks without rows have none."""
    return [part.stage for part in parts if isinstance(part, StagedPart) and part.stage is not None]


def _check_write_schema(schema: pa.Schema, topic: Topic) -> None:
    """Check that rows of a schema can be appended to a topic.

    Raises:
        SchemaMismatch: The rows do not fit; the message names every column at fault, the fact
            `column` the first.
    """
    names: list[str] = schema.names
    wanted = [field.name for field in wanted_fields(names, topic.schema)]
    twice = sorted({name for name in names if names.count(name) > 1})
    missing = [name for name in wanted if name not in names]
    extra = [name for name in names if name not in wanted]
    mistyped = dict(_mistyped(schema, topic.schema)) if not twice else {}
    problems = [
        f"{what}: {_shown(found)}"
        for what, found in (
            ("columns that are there twice", twice),
            ("columns that are missing", missing),
            ("columns that the topic does not have", extra),
            ("columns whose type cannot become the topic's", mistyped.values()),
        )
        if found
    ]
    if not problems:
        return
    if {name.lower() for name in topic.schema.names} & {name.lower() for name in extra}:
        problems.append("upper and lower case differ")
    raise SchemaMismatch(
        shortened(f"the rows do not fit topic {topic.id}: {'; '.join(problems)}"),
        column=[*twice, *missing, *extra, *mistyped][0],
    )


def _mistyped(schema: pa.Schema, wanted: pa.Schema) -> Iterator[tuple[str, str]]:
    """Yield name and description of each column whose type cannot be converted to the topic's."""
    found = {field.name: field for field in fields_of(schema)}
    for field in fields_of(wanted):
        source = found.get(field.name)
        if source is None:
            continue
        name = f"{field.name!r:.80}"
        if conversion(source.type, field.type) is Conversion.NONE:
            kinds = f"{type_name(source.type):.100}, the topic's {type_name(field.type):.100}"
            yield field.name, f"{name} ({kinds})"
        elif pa.types.is_null(source.type) and not field.nullable:
            yield field.name, f"{name} (nothing but nulls, the topic's has none)"


def _shown(found: Iterable[str]) -> str:
    return ", ".join(text if "(" in text else f"{text!r:.80}" for text in found)
