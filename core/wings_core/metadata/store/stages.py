"""Stages in a database: each method is one transaction, done by the module of its verb."""

from collections.abc import Sequence

from wings_core.metadata.interfaces import Stages
from wings_core.metadata.judge import check_publish, check_text
from wings_core.metadata.shards import check_progress
from wings_core.metadata.stages import ABORTED_MAX, after_prefix
from wings_core.metadata.store.database import Connection, Database, of_ends
from wings_core.metadata.store.publish import lock_stages, publish, was_published
from wings_core.model import Aborted, PageAddress, Published, ShardProgress, Stage, StoredPage
from wings_core.names import NamespaceName, TopicName


class DatabaseStages(Stages):
    """See `Stages`.

    Args:
        database: Where they are.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

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
            lambda connection: publish(self._database, connection, writer, batch, stages, shards),
            lambda outcome: of_ends(outcome.ends),
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
                published = was_published(connection, writer, batch)
            begun = [] if prefix is None else _of_prefix(connection, prefix)
            return Aborted(_delete(connection, [*stages, *begun]), published)

        return self._database.write(work)

    def sweep(self, seconds: float, stages_max: int) -> int:
        """Delete stages whose last batch is old; see `Stages.sweep`."""
        age_us = round(seconds * 1_000_000)

        def work(connection: Connection) -> int:
            # A stage that another transaction works on right now is not old.
            swept = connection.execute(
                "WITH old AS MATERIALIZED (SELECT id FROM stages "
                "WHERE name IS NOT NULL AND changed_at <= %s::bigint "
                "ORDER BY changed_at LIMIT %s::bigint FOR UPDATE SKIP LOCKED) "
                "UPDATE stages SET name = NULL WHERE id IN (SELECT id FROM old) RETURNING id",
                (self._database.lease_now(connection) - age_us, stages_max),
            ).fetchall()
            return len(swept)

        return self._database.write(work)

    def of_topic(
        self, topic_uuid: str, *, after: str | None = None, items_max: int | None = None
    ) -> list[Stage]:
        """Return a topic's stages; see `Stages.of_topic`."""
        check_text("after", after or "")
        # A name is never empty.
        rows = self._database.read(
            lambda connection: connection.execute(
                "SELECT stages.name, topics.uuid, stages.rows, stages.bytes, stages.pages, "
                "stages.changed_at FROM stages JOIN topics ON topics.id = stages.topic_id "
                "WHERE topics.uuid = %s AND topics.deleted_at IS NULL "
                "AND stages.name IS NOT NULL AND stages.name > %s::text "
                "ORDER BY stages.name LIMIT %s::bigint",
                (topic_uuid, after or "", items_max),
            ).fetchall()
        )
        return [
            Stage(name, uuid, count, size, pages, changed_at)
            for name, uuid, count, size, pages, changed_at in rows
        ]

    def topics(self, stages: Sequence[str], prefix: str | None = None) -> set[TopicName]:
        """Return the topics of stages; see `Stages.topics`."""
        for stage in (*stages, prefix or ""):
            check_text("the stage", stage)

        def work(connection: Connection) -> set[TopicName]:
            names = [*stages, *([] if prefix is None else _of_prefix(connection, prefix))]
            rows = connection.execute_rows(
                "SELECT DISTINCT namespaces.tenant, namespaces.name, topics.name FROM {given} "
                "JOIN stages ON stages.name = given.name "
                "JOIN topics ON topics.id = stages.topic_id "
                "JOIN namespaces ON namespaces.id = topics.namespace_id",
                {"name text": names},
            ).fetchall()
            return {
                TopicName(NamespaceName(tenant, namespace), topic)
                for tenant, namespace, topic in rows
            }

        return self._database.read(work)

    def pages(self, stage: str, first: int, pages_max: int) -> list[StoredPage]:
        """Return some of the pages of a stage; see `Stages.pages`."""
        check_text("the stage", stage)
        rows = self._database.read(
            lambda connection: connection.execute(
                "SELECT staged_pages.partition, staged_pages.rows, folios.name, "
                "staged_pages.position, staged_pages.length, staged_pages.first_row, "
                "staged_pages.slice_bytes, staged_pages.schema_version FROM stages "
                "JOIN staged_pages ON staged_pages.stage_id = stages.id "
                "LEFT JOIN folios ON folios.id = staged_pages.folio_id "
                "WHERE stages.name = %s AND staged_pages.number >= %s::bigint "
                "ORDER BY staged_pages.number LIMIT %s::bigint",
                (stage, first, pages_max),
            ).fetchall()
        )
        return [
            StoredPage(partition, count, PageAddress(folio, position, length), *rest)
            for partition, count, folio, position, length, *rest in rows
        ]


def _delete(connection: Connection, stages: Sequence[str]) -> tuple[str, ...]:
    """Take the names off stages, which makes their pages ready to be purged.

    Returns:
        Those that were there, in the order given.
    """
    found = lock_stages(connection, stages)
    connection.execute_rows(
        "UPDATE stages SET name = NULL WHERE id IN (SELECT id FROM {given})",
        {"id bigint": [stage.stage_id for stage in found.values()]},
    )
    return tuple(stage for stage in dict.fromkeys(stages) if stage in found)


def _of_prefix(connection: Connection, prefix: str) -> list[str]:
    """Return the stages whose ids begin with a prefix, by id, at most `ABORTED_MAX`."""
    rows = connection.execute(
        "SELECT name FROM stages WHERE name >= %s AND name < %s ORDER BY name LIMIT %s",
        (prefix, after_prefix(prefix), ABORTED_MAX),
    ).fetchall()
    return [name for (name,) in rows]
