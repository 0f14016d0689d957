"""Streaming writes as Spark's data source API has them: exactly once for each batch of a query.

What a batch is published as is known to the tasks alone, so they tell it to the driver. After a
restart Spark repeats its last batch under the same number; the ledger knows whether it was
published.
"""

from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from wings_spark.ledger import Entry
from wings_spark.sink import Part, Sink, stages_of
from wings_spark.write_options import WriteOptions

QUERY_ID = "sql.streaming.queryId"
"""Of the query, the same after a restart from its checkpoint."""

BATCH_ID = "streaming.sql.batchId"


class WingsStreamWriter(DataSourceStreamArrowWriter):
    """Appends each batch of a query to a topic, all of it or nothing, and once.

    Args:
        options: Checked for a streaming write.
        schema: Of the rows.

    Raises:
        WingsError: There is no such topic, or the rows do not fit it.
    """

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._sink = Sink.find(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of one task."""
        return self._sink.stage(_entry_of_task(), iterator, repeated=True)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name.
        """Publish what the tasks of a batch staged."""
        entry = _entry_of(messages, batchId)
        if entry is not None:
            entry.publish(self._sink.endpoint, stages_of(messages))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name.
        """Delete what the tasks of a batch have staged so far, if it was not published.

        What is staged later, or where no task has ended well, goes when the batch, which comes
        again, is published; where the query is never started again, the server sweeps it.
        """
        entry = _entry_of(messages, batchId)
        if entry is not None:
            entry.abort(self._sink.endpoint)


def _entry_of_task() -> Entry:
    context = TaskContext.get()
    assert context is not None, "rows are staged in tasks"
    query, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
    assert query is not None, "Spark names the query of a streaming task"
    assert batch is not None, "Spark numbers the batch of a streaming task"
    return Entry(query, int(batch), f"spark.{query}.{batch}.")


def _entry_of(messages: Iterable[WriterCommitMessage | None], batch: int) -> Entry | None:
    """Return what all tasks of a batch say it is; None where no task has ended well."""
    entry = next((part.entry for part in messages if isinstance(part, Part)), None)
    assert entry is None or entry.batch == batch, "the tasks are of the batch that is committed"
    return entry
