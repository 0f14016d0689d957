"""Dead letters: a row for each dead file, published in the transaction that ends the file."""

from collections.abc import Sequence
from uuid import uuid4

import pyarrow as pa

from wings_client import Client, Topic
from wings_core.queue.commit import DeadLetter
from wings_core.times import now_us
from wings_spark.ingest.settings import SourceSettings

COLUMNS = {
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


class DeadLetters:
    """A writer of dead letters to the topic that a source names, if any.

    Args:
        settings: Settings of the source.
        client: Client of the target's server.
    """

    def __init__(self, settings: SourceSettings, client: Client) -> None:
        self._settings = settings
        self._client = client

    def prepare(self) -> Topic | None:
        """Return the topic of dead letters, created if missing; None if the source names none.

        Raises:
            WingsError: The topic exists with other columns, or the server failed.
        """
        name = self._settings.dead_letters.topic
        if name is None:
            return None
        return self._client.create_topic(name, COLUMNS, if_not_exists=True)

    def stage(self, letters: Sequence[DeadLetter], prefix: str) -> str | None:
        """Stage a row for each; returns the stage's id, or None if the source names no topic.

        Args:
            letters: The dead files.
            prefix: Prefix of the stage's id.

        Raises:
            WingsError: The topic exists with other columns, or the server failed.
        """
        topic = self.prepare()
        if topic is None:
            return None
        files = [letter.file for letter in letters]
        rows = pa.table(
            {
                "source": [self._settings.name] * len(files),
                "uri": [file.uri for file in files],
                "version": pa.array([file.version for file in files], pa.string()),
                "position": [file.position for file in files],
                "attempts": [letter.failures for letter in letters],
                "error": [letter.error for letter in letters],
                "failed_at": pa.array([now_us()] * len(files), pa.timestamp("us", "UTC")),
                "payload": pa.array([file.payload for file in files], pa.string()),
            }
        )
        with self._client.stage(topic, f"{prefix}dead.{uuid4()}") as stage:
            stage.write(rows)
        return stage.id
