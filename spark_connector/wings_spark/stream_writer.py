"""Streaming writes in Spark's data source API: exactly once for each batch of a query.

Only the tasks know the query's id, so their commit messages carry the committer to the driver.
After a restart Spark repeats the last batch under the same number; the server knows whether it was
published.
"""

from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from wings_spark.committer import BatchCommitter
from wings_spark.sink import Part, Sink, stages_of
from wings_spark.write_options import WriteOptions

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
        batch
        is published; if the query never restarts, the server sweeps them.
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
    committer = next((part.committer for part in messages if isinstance(part, Part)), None)
    assert committer is None or committer.batch == batch, "tasks stage for the batch that commits"
    return committer
