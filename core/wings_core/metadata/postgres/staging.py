"""Stages in PostgreSQL: each method is one transaction, done by the module of its verb."""

from collections.abc import Callable, Sequence

from wings_core.metadata.interfaces import Stages
from wings_core.metadata.judge import check_publish
from wings_core.metadata.postgres import publish
from wings_core.metadata.postgres.connections import Connection
from wings_core.metadata.postgres.database import Database
from wings_core.metadata.postgres.lease_clock import LeaseClock
from wings_core.metadata.postgres.notices import Notice
from wings_core.metadata.postgres.stages import (
    delete_stages,
    pages_of_stage,
    stages_of_prefix,
    stages_of_topic,
    sweep,
)
from wings_core.metadata.shards import check_progress
from wings_core.model import Aborted, Published, ShardProgress, Stage, StoredPage


class PostgresStages(Stages):
    """See `Stages`.

    Args:
        database: Where they are.
        clock: Microseconds since the epoch.
        lease_clock: Owners of shards count as heard of, and stages as left alone, by it.
    """

    def __init__(
        self, database: Database, clock: Callable[[], int], lease_clock: LeaseClock
    ) -> None:
        self._database = database
        self._clock = clock
        self._lease_clock = lease_clock

    def publish(
        self,
        writer: str,
        batch: int,
        stages: Sequence[str],
        shards: Sequence[ShardProgress] = (),
    ) -> Published:
        """Make stages visible; see `Stages.publish`."""
        check_publish(writer, batch, stages)
        check_progress(shards)
        return self._database.write(
            lambda connection: publish.publish(
                connection, writer, batch, stages, shards, self._clock(), self._lease_clock
            ),
            lambda outcome: Notice(outcome.ends) if outcome.ends else None,
        ).published

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

        def work(connection: Connection) -> Aborted:
            published = None
            if batch is not None:
                published = publish.was_published(connection, writer, batch)
            begun = [] if prefix is None else stages_of_prefix(connection, prefix)
            return Aborted(delete_stages(connection, [*stages, *begun]), published)

        return self._database.write(work)

    def sweep(self, seconds: float, stages_max: int) -> int:
        """Delete stages that were left alone; see `Stages.sweep`."""
        age = round(seconds * 1_000_000)
        return self._database.write(
            lambda connection: sweep(connection, self._lease_clock(connection) - age, stages_max)
        )

    def of_topic(
        self, topic_uuid: str, *, after: str | None = None, items_max: int | None = None
    ) -> list[Stage]:
        """Return a topic's stages; see `Stages.of_topic`."""
        return self._database.read(
            lambda connection: stages_of_topic(connection, topic_uuid, after, items_max)
        )

    def pages(self, stage: str, first: int, pages_max: int) -> list[StoredPage]:
        """Return some of the pages of a stage; see `Stages.pages`."""
        return self._database.read(
            lambda connection: pages_of_stage(connection, stage, first, pages_max)
        )
