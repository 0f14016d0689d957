"""Stages in SQLite: each method is one transaction, done by the module of its verb."""

from collections.abc import Callable, Sequence

from wings_core.metadata.interfaces import Stages
from wings_core.metadata.judge import check_publish
from wings_core.metadata.sqlite import publish
from wings_core.metadata.sqlite.connections import Connections
from wings_core.metadata.sqlite.stages import (
    delete_stages,
    pages_of_stage,
    stages_of_prefix,
    stages_of_topic,
    sweep,
)
from wings_core.metadata.waiters import Waiters
from wings_core.model import Aborted, Published, ShardProgress, Stage, StoredPage


class SqliteStages(Stages):
    """See `Stages`.

    Args:
        connections: To the database.
        waiters: Woken by publishes.
        clock: Microseconds since the epoch.
    """

    def __init__(
        self, connections: Connections, waiters: Waiters, clock: Callable[[], int]
    ) -> None:
        self._connections = connections
        self._waiters = waiters
        self._clock = clock

    def publish(
        self,
        writer: str,
        batch: int,
        stages: Sequence[str],
        shards: Sequence[ShardProgress] = (),
    ) -> Published:
        """Make stages visible; see `Stages.publish`."""
        with self._connections.writing() as connection:
            now = self._clock()
            outcome = publish.publish(connection, writer, batch, stages, shards, now)
        self._waiters.notify(outcome.ends)
        return outcome.published

    def abort(
        self,
        writer: str,
        stages: Sequence[str],
        batch: int | None = None,
        prefix: str | None = None,
    ) -> Aborted:
        """Delete stages; see `Stages.abort`."""
        check_publish(
            writer, 0 if batch is None else batch, (*stages, *(() if prefix is None else (prefix,)))
        )
        with self._connections.writing() as connection:
            published = None
            if batch is not None:
                published = publish.was_published(connection, writer, batch)
            begun = [] if prefix is None else stages_of_prefix(connection, prefix)
            return Aborted(delete_stages(connection, [*stages, *begun]), published)

    def sweep(self, seconds: float, stages_max: int) -> int:
        """Delete stages that were left alone; see `Stages.sweep`."""
        changed_before = self._clock() - round(seconds * 1_000_000)
        with self._connections.writing() as connection:
            return sweep(connection, changed_before, stages_max)

    def of_topic(
        self, topic_uuid: str, *, after: str | None = None, items_max: int | None = None
    ) -> list[Stage]:
        """Return a topic's stages; see `Stages.of_topic`."""
        with self._connections.reading() as connection:
            return stages_of_topic(connection, topic_uuid, after, items_max)

    def pages(self, stage: str, first: int, pages_max: int) -> list[StoredPage]:
        """Return some of the pages of a stage; see `Stages.pages`."""
        with self._connections.reading() as connection:
            return pages_of_stage(connection, stage, first, pages_max)
