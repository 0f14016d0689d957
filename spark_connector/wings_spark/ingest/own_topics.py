"""Topics of a source's own: a row for each dead file, and for each file of each batch.

Their rows are published in the transaction that moves or ends the files.
"""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import uuid4

import pyarrow as pa

from wings_client import Client, Topic
from wings_core.queue.commit import DeadLetter
from wings_core.queue.journal import FileReport
from wings_core.times import now_us
from wings_spark.ingest.settings import SourceSettings

DEAD_LETTER_COLUMNS = {
    "source": "string not null",
    "uri": "string not null",
    "version": "string",
    "position": "int64 not null",
    "attempts": "int64 not null",
    "error": "string not null",
    "failed_at": "timestamp[us, tz=UTC] not null",
    "payload": "string",
}
"""Columns of a topic of dead letters."""

HISTORY_COLUMNS = {
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

_TIME = pa.timestamp("us", "UTC")


class _OwnTopic:
    """A topic of rows of the source itself, if the source names one."""

    def __init__(self, client: Client, name: str | None, columns: Mapping[str, str]) -> None:
        self._client = client
        self._name = name
        self._columns = columns

    def prepare(self) -> Topic | None:
        """Return the topic, created if missing; None if the source names none.

        Raises:
            WingsError: The topic exists with other columns, or the server failed.
        """
        if self._name is None:
            return None
        return self._client.create_topic(self._name, self._columns, if_not_exists=True)

    def _stage(self, stage_id: str, rows: dict[str, Any]) -> str | None:
        topic = self.prepare()
        if topic is None:
            return None
        with self._client.stage(topic, stage_id) as stage:
            stage.write(pa.table(rows))
        return stage.id


class DeadLetters(_OwnTopic):
    """A writer of dead letters to the topic that a source names, if any.

    Args:
        settings: Settings of the source.
        client: Client of the target's server.
    """

    def __init__(self, settings: SourceSettings, client: Client) -> None:
        super().__init__(client, settings.dead_letters.topic, DEAD_LETTER_COLUMNS)
        self._source = settings.name

    def stage(self, letters: Sequence[DeadLetter], prefix: str) -> str | None:
        """Stage a row for each; returns the stage's id, or None if the source names no topic.

        Args:
            letters: The dead files.
            prefix: Prefix of the stage's id.

        Raises:
            WingsError: The topic exists with other columns, or the server failed.
        """
        files = [letter.file for letter in letters]
        rows = {
            "source": [self._source] * len(files),
            "uri": [file.uri for file in files],
            "version": pa.array([file.version for file in files], pa.string()),
            "position": [file.position for file in files],
            "attempts": [letter.failures for letter in letters],
            "error": [letter.error for letter in letters],
            "failed_at": pa.array([now_us()] * len(files), _TIME),
            "payload": pa.array([file.payload for file in files], pa.string()),
        }
        return self._stage(f"{prefix}dead.{uuid4()}", rows)


class History(_OwnTopic):
    """A writer of history to the topic that a source names, if any.

    Args:
        settings: Settings of the source.
        client: Client of the target's server.
        token: Token of the pipeline.
    """

    def __init__(self, settings: SourceSettings, client: Client, token: str) -> None:
        super().__init__(client, settings.history.topic, HISTORY_COLUMNS)
        self._source = settings.name
        self._token = token

    def stage(self, batch: int, reports: Sequence[FileReport], prefix: str) -> str | None:
        """Stage a row for each file; returns the stage's id, or None if the source names no topic.

        Args:
            batch: The claim's number.
            reports: Reports on the claim's files.
            prefix: Prefix of the stage's id.

        Raises:
            WingsError: The topic exists with other columns, or the server failed.
        """
        outcomes = [each.outcome for each in reports]
        results = [each.result for each in reports]
        versions = [
            (None if each.result is None else each.result.seen) or each.file.version
            for each in reports
        ]
        rows = {
            "source": [self._source] * len(reports),
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
            "began_at": pa.array([each and each.began_at for each in results], _TIME),
            "ended_at": pa.array([each and each.ended_at for each in results], _TIME),
        }
        return self._stage(f"{prefix}history.{uuid4()}", rows)
