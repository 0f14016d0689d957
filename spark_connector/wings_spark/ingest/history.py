"""History: a row for each file of each batch, published in the transaction that moves the file."""

from collections.abc import Sequence
from uuid import uuid4

import pyarrow as pa

from wings_client import Client, Topic
from wings_core.queue.claims import FileReport
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
"""Of a topic of history. `version` is the one that was read, else the one that was announced."""

TIME = pa.timestamp("us", "UTC")


class History:
    """Writes history to the topic that a source names, if any.

    Args:
        settings: Of the source.
        client: Of the target's server.
        token: The pipeline's.
    """

    def __init__(self, settings: SourceSettings, client: Client, token: str) -> None:
        self._settings = settings
        self._client = client
        self._token = token

    def prepare(self) -> Topic | None:
        """Return its topic, created if missing; None if the source names none.

        Raises:
            WingsError: There is a topic of this name with other columns, or the server failed.
        """
        name = self._settings.history.topic
        if name is None:
            return None
        return self._client.create_topic(name, COLUMNS, if_not_exists=True)

    def stage(self, batch: int, reports: Sequence[FileReport], prefix: str) -> str | None:
        """Stage a row for each file, and return the stage's id; None if the source names no topic.

        Args:
            batch: The claim's number.
            reports: What it did with its files.
            prefix: Of the stage's id.

        Raises:
            WingsError: There is a topic of this name with other columns, or the server failed.
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
