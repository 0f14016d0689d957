"""Batch writes in Spark's data source API.

    planning          tasks                        driver
    check the topic ─▶ stage, each for itself ─▶ publish all at once
                                                   or abort

Spark pickles the writer at planning, and commits with a copy of it in another process.
"""

from collections.abc import Iterator
from uuid import uuid4

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from wings_spark.committer import BatchCommitter
from wings_spark.sink import Sink, stages_of
from wings_spark.write_options import WriteOptions


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
