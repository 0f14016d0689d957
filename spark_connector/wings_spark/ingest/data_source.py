"""The pipeline as a data source of Spark: claims are its offsets, works its rows.

Spark makes the reader and the writer in several processes that share nothing. One on the driver
returns offsets for as long as the query runs: it receives, journals claims, and extends messages.
Planning reads the journal alone. Tasks read and stage. The commit runs in a process of its own for
each batch. Those that only pass the data source on import this module alone: all else is imported
on use.
"""

import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
)

from wings_core.errors import InvalidArgument, ResourceExhausted, Unavailable
from wings_spark.spark_versions import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from wings_spark.ingest.connections import Claiming
    from wings_spark.ingest.settings import SourceSettings

NAME = "wings-ingest"

SETTINGS = "settings"
"""Name of the option that holds the settings, as JSON."""

TASKS = "tasks"
"""Name of the option that holds the number of tasks of a batch."""

CLAIM = "claim"
"""Key in an offset: number of the last claim before it."""

UNREACHABLE_SECONDS_MAX = 600.0
"""Time after which a query fails while the queue or the server is unreachable."""

_WORK = "work"

_logger = logging.getLogger(__name__)


class IngestDataSource(DataSource):
    """One pipeline; made by `wings_spark.ingest.run` alone."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return NAME

    def schema(self) -> str:
        """Return the schema: one column of works as JSON."""
        return f"{_WORK} string"

    def streamReader(self, schema: "StructType") -> DataSourceStreamReader:  # noqa: N802
        """Return the reader, which claims files."""
        del schema
        return IngestReader(self.options[SETTINGS], int(self.options.get(TASKS) or 1))

    def streamWriter(  # noqa: N802 - Spark's name.
        self, schema: "StructType", overwrite: bool
    ) -> DataSourceStreamArrowWriter:
        """Return the writer, which reads, stages and commits files."""
        from wings_spark.ingest.writer import IngestWriter

        del schema, overwrite
        return IngestWriter(_parsed(self.options[SETTINGS]))


@dataclass
class WorkPartition(InputPartition):
    """A work, as JSON."""

    work: str


class IngestReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A reader whose offsets are claims of files.

    Args:
        settings: Settings of the source, as JSON.
        tasks: Number of tasks of one batch.
    """

    def __init__(self, settings: str, tasks: int) -> None:
        self._text = settings
        self._tasks = tasks
        self._is_once = False
        self._running: Claiming | None = None  # Opened where offsets are asked for, never pickled.

    @property
    def _settings(self) -> "SourceSettings":
        return _parsed(self._text)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name.
        """Return the offset of a new query: after the last finished claim."""
        from wings_core.queue.journal import Journal

        return {CLAIM: Journal(self._settings.journal_directory).last_done}

    def latestOffset(  # noqa: N802 - Spark's name.
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        """Make the claim of the next batch: returns `start` itself if no file is ready.

        Blocks for up to the queue's `wait_seconds` while no file is ready.

        Args:
            start: The batch's begin; None in Spark 4.1.
            limit: Ignored: the settings have limits of their own.

        Raises:
            WingsError: The queue or the server failed.
        """
        del limit
        if self._running is None:
            from wings_spark.ingest.connections import Claiming

            self._running = Claiming(self._settings)
        running = self._running
        last = running.journal.last_done if start is None else int(start[CLAIM])
        running.extender.check(UNREACHABLE_SECONDS_MAX)
        try:
            running.last_claim = running.claim(last)
        except (Unavailable, ResourceExhausted) as error:
            if self._is_once or running.failed_for() > UNREACHABLE_SECONDS_MAX:
                raise
            _logger.warning("nothing can be claimed now: %s", error)
            return {CLAIM: last}
        running.failed_since = None
        return {CLAIM: running.last_claim}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name.
        """Return no limit: the settings have limits of their own."""
        return ReadAllAvailable()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name.
        """Return the last claim, and counts of pending and lost messages, for the progress."""
        if self._running is None:
            return None
        running = self._running
        return {
            CLAIM: running.last_claim,
            "pending": running.pending,
            "lost": running.coordinator.lost,
        }

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name.
        """Make the query end once the queue is empty or cannot be reached."""
        self._is_once = True

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the works of a claim.

        Raises:
            InvalidArgument: The claim is not in the journal.
        """
        from wings_core.queue.journal import Journal
        from wings_spark.ingest.plan import planned

        first, last = int(start[CLAIM]) + 1, int(end[CLAIM])
        assert last <= first, "a batch is one claim"
        if last < first:
            return []
        journal = Journal(self._settings.journal_directory)
        claim = journal.claim(last)
        if claim is None:
            raise InvalidArgument(
                f"claim {last} is not in the journal {journal.directory}, which does not belong to "
                "Spark's checkpoint beside it: name another 'checkpoint'"
            )
        works = planned(claim, journal.token, self._tasks, self._settings)
        return [WorkPartition(work.model_dump_json()) for work in works]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """Yield one row, the work as JSON."""
        import pyarrow as pa

        assert isinstance(partition, WorkPartition), "Spark passes the reader's own partitions"
        yield pa.RecordBatch.from_arrays([pa.array([partition.work])], names=[_WORK])

    def stop(self) -> None:
        """Stop the visibility extender, and close the connections."""
        if self._running is not None:
            self._running.close()
            self._running = None


def _parsed(text: str) -> "SourceSettings":
    from wings_spark.ingest.settings import SourceSettings

    return SourceSettings.parse(json.loads(text), "settings")
