"""Batch writes in Spark's data source API.

    planning          tasks                        driver
    check the topic ─▶ stage, each for itself ─▶ publish all at once
                                                   or abort

Spark pickles the writer at planning, and commits with a copy of it in another process.
"""

from collections.abc import Iterable, Iterator
from uuid import uuid4

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from wings_spark.committer import BatchCommitter
from wings_spark.options import WriteOptions
from wings_spark.sink import Sink, StagedPart, stages_of


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


QUERY_ID = "sql.streaming.queryId"
"""Property with the query's id, the same after a restart from its checkpoint."""

BATCH_ID = "streaming.sql.batchId"


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
