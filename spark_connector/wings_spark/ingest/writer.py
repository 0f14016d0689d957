"""The writer of a query: tasks read and stage files, the driver publishes and acknowledges."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from wings_core.errors import Internal
from wings_core.queue.commit import stage_prefix, writer_of
from wings_spark.ingest.connections import Connections
from wings_spark.ingest.dead_letters import DeadLetters
from wings_spark.ingest.settings import SourceSettings
from wings_spark.ingest.work import Done, carry_out, works_of


@dataclass
class TaskDone(WriterCommitMessage):
    """The commit message of one attempt of a task."""

    done: list[Done]


class IngestWriter(DataSourceStreamArrowWriter):
    """A writer whose tasks read and stage files, and that publishes and acknowledges on the driver.

    Args:
        settings: Settings of the source.
    """

    def __init__(self, settings: SourceSettings) -> None:
        self._settings = settings
        self._server = settings.target.server()  # For the tasks, which have no files of a token.

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Read and stage the files of one task."""
        return TaskDone(carry_out(self._settings, works_of(iterator), self._server))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name.
        """Publish a claim and acknowledge its messages."""
        del batchId
        done = _done(messages)
        if not done:
            return
        (number,) = {each.claim for each in done}
        with Connections(self._settings) as connections:
            claim = connections.journal.claim(number)
            if claim is None:
                raise Internal(f"claim {number} is not in the journal")
            dead_letters = DeadLetters(self._settings, connections.client)
            committer = connections.committer(dead_letters.stage)
            committer.commit(claim, [result for each in done for result in each.results])

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name.
        """Delete the unpublished stages of a batch's tasks, failed ones included."""
        del batchId
        claims = {each.claim for each in _done(messages)}
        if not claims:
            return
        with Connections(self._settings) as connections:
            for claim in claims:
                token = connections.journal.token
                prefix = stage_prefix(token, claim)
                connections.client.abort(writer_of(self._settings.name, token), (), prefix=prefix)


def _done(messages: Sequence[WriterCommitMessage | None]) -> list[Done]:
    return [each for part in messages if isinstance(part, TaskDone) for each in part.done]
