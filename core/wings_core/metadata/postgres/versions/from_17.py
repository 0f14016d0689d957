"""Migrations from 17 on; see `migrations.py`."""

from collections.abc import Sequence
from typing import LiteralString

from wings_core.metadata.postgres.commit_function import COMMIT_FLUSH, COMMIT_PAGE

_NODES_ALONE: Sequence[LiteralString] = (
    """
    -- Of nodes without a data directory: where new pages go ('hot') and old ones ('remote').
    CREATE TABLE object_stores (role TEXT PRIMARY KEY, url TEXT NOT NULL)
    """,
    # What such nodes present to each other, where they are given no token of the cluster.
    "ALTER TABLE store ADD COLUMN node_token TEXT",
)

_NODE_URLS: Sequence[LiteralString] = (
    "ALTER TABLE nodes ADD COLUMN http TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE nodes ADD COLUMN since BIGINT NOT NULL DEFAULT 0",
)

_SCHEMAS: Sequence[LiteralString] = (
    """
    -- The schemas of the versions before that of `schema`, from version 1 on, as Arrow IPC messages
    -- one after another; NULL: none.
    ALTER TABLE topics ADD COLUMN earlier_schemas BYTEA
    """,
    """
    -- The version of its topic's schema that a page is written in.
    ALTER TABLE pages ADD COLUMN schema_version INTEGER NOT NULL DEFAULT 1
    """,
    "ALTER TABLE staged_pages ADD COLUMN schema_version INTEGER NOT NULL DEFAULT 1",
)

_ONE_CALL: Sequence[LiteralString] = (
    """
    -- What a transaction that is one statement returned, for one whose answer was lost.
    ALTER TABLE outcomes ADD COLUMN result TEXT
    """,
    COMMIT_FLUSH,
)

_TABLES: Sequence[LiteralString] = (
    """
    -- Topics that are tables, deleted ones too until their table is dropped.
    CREATE TABLE topic_tables (
        topic_uuid TEXT PRIMARY KEY,
        identifier TEXT NOT NULL,
        committed BIGINT NOT NULL -- The number of the last commit that is known to be made.
    )
    """,
    """
    -- The files of tables: which commit adds each, and which removes it.
    CREATE TABLE table_segments (
        topic_uuid TEXT NOT NULL,
        folio TEXT NOT NULL,
        partition TEXT NOT NULL,
        end_offset BIGINT NOT NULL,
        rows BIGINT NOT NULL,
        added BIGINT NOT NULL,
        removed BIGINT,
        PRIMARY KEY (topic_uuid, folio)
    )
    """,
    "CREATE INDEX table_segments_folio ON table_segments (folio)",
)

_WRITERS: Sequence[LiteralString] = (
    # From here on the last batch of a writer is kept for a time only; see metadata/stages.py.
    # Nodes of the version before, which may go on meanwhile, do not set it.
    """
    ALTER TABLE publishes ADD COLUMN published_at BIGINT
        DEFAULT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
    """,
    "UPDATE publishes SET published_at = %(now)s",
    """
    CREATE INDEX publishes_last_by_age ON publishes (published_at) WHERE succeeded_at IS NULL
    """,
)

_TOLD_LATER: Sequence[LiteralString] = (
    """
    -- The node that committed it and tells the others of it afterwards, where they are to know.
    ALTER TABLE outcomes ADD COLUMN node TEXT
    """,
    COMMIT_FLUSH,
)

_ONE_PAGE: Sequence[LiteralString] = (COMMIT_FLUSH, COMMIT_PAGE)

_FEWER_STATEMENTS: Sequence[LiteralString] = (COMMIT_PAGE,)

_PLANNED_FOR_MANY: Sequence[LiteralString] = (COMMIT_FLUSH,)

_PLANNED_FOR_PRODUCERS: Sequence[LiteralString] = (COMMIT_FLUSH,)

_FEWER_CHECKS: Sequence[LiteralString] = (
    # Bytes go with their folio, as by the foreign key, which looked the folio up again for each
    # push: it has just been inserted. Those of all folios of a statement go at once, whatever
    # schema the session that deletes them is in.
    """
    CREATE FUNCTION delete_inline() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT
    AS $function$
    BEGIN
        DELETE FROM inline_folios WHERE folio_id = ANY (ARRAY(SELECT id FROM gone));
        RETURN NULL;
    END
    $function$
    """,
    """
    CREATE TRIGGER folios_inline AFTER DELETE ON folios REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION delete_inline()
    """,
    "ALTER TABLE inline_folios DROP CONSTRAINT inline_folios_folio_id_fkey",
    # It held off processes from before pages had a format, which none of these is; PostgreSQL
    # parses a check anew for each insert.
    "ALTER TABLE pages DROP CONSTRAINT pages_of_one_timestamp",
)

MIGRATIONS: Sequence[Sequence[LiteralString]] = (
    _NODES_ALONE,
    _NODE_URLS,
    _SCHEMAS,
    _ONE_CALL,
    _TABLES,
    _WRITERS,
    _TOLD_LATER,
    _ONE_PAGE,
    _FEWER_STATEMENTS,
    _PLANNED_FOR_MANY,
    _PLANNED_FOR_PRODUCERS,
    _FEWER_CHECKS,
)
