"""History: a row for each file of each batch, published in the transaction that moves the file."""

from collections.abc import Sequence
from uuid import uuid4

import pyarrow as pa

from wings_client import Client, Topic
from wings_core.queue.journal import FileReport
from wings_spark.ingest.settings import SourceSettings

COLUMNS = {
    "source": "string not null",
    "pipeline": "string not null",
    "batch": "int64 not null",
    "uri": "string not null",
    "version": "string",
    "outcome": "string not null",
    "first_row": "int64 not null",
    "rows": "int64 not null",
    "rescued_rows": "int64 not null",
    "bytes": "int64 not null",
    "failures": "int64 not null",
    "error": "string",
    "began_at": "timestamp[us, tz=UTC]",
    "ended_at": "timestamp[us, tz=UTC]",
}
"""Columns of a topic of history; `version` is the version read, else the announced one."""

TIME = pa.timestamp("us", "UTC")


class History:
    """A writer of history to the topic that a source names, if any.

    Args:
        settings: Settings of the source.
        client: Client of the target's server.
        token: Token of the pipeline.
    """

    def __init__(self, settings: SourceSettings, client: Client, token: str) -> None:
        self._settings = settings
        self._client = client
        self._token = token

    def prepare(self) -> Topic | None:
        """Return the topic of history, created if missing; None if the source names none.

        Raises:
            WingsError: The topic exists with other columns, or the server failed.
        """
        name = self._settings.history.topic
        if name is None:
            return None
        return self._client.create_topic(name, COLUMNS, if_not_exists=True)

    def stage(self, batch: int, reports: Sequence[FileReport], prefix: str) -> str | None:
        """Stage a row for each file; returns the stage's id, or None if the source names no topic.

        Args:
            batch: The claim's number.
            reports: Reports on the claim's files.
            prefix: Prefix of the stage's id.

        Raises:
            WingsError: The topic exists with other columns, or the server failed.
        """
        topic = self.prepare()
        if topic is None:
            return None
        with self._client.stage(topic, f"{prefix}history.{uuid4()}") as stage:
            stage.write(self._rows(batch, reports))
        return stage.id

    def _rows(self, batch: int, reports: Sequence[FileReport]) -> pa.Table:
        outcomes = [each.outcome for each in reports]
        results = [each.result for each in reports]
        versions = [
            (None if each.result is None else each.result.seen) or each.file.version
            for each in reports
        ]
        return pa.table(
            {
                "source": [self._settings.name] * len(reports),
                "pipeline": [self._token] * len(reports),
                "batch": [batch] * len(reports),
                "uri": [each.file.uri for each in reports],
                "version": pa.array(versions, pa.string()),
                "outcome": [each.fate.value for each in outcomes],
                "first_row": [each.file.position for each in reports],
                "rows": [each.rows for each in outcomes],
                "rescued_rows": [each.rescued for each in outcomes],
                "bytes": [each.bytes for each in outcomes],
                "failures": [each.failures for each in outcomes],
                "error": pa.array([each.error for each in outcomes], pa.string()),
                "began_at": pa.array([each and each.began_at for each in results], TIME),
                "ended_at": pa.array([each and each.ended_at for each in results], TIME),
            }
        )
