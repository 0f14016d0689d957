"""The tables of the metadata in PostgreSQL, as numbered migrations.

A migration that was released is never changed; another is added. Each runs in a transaction of its
own, together with the row that says so, under a lock that all nodes take: of several that start at
once, one migrates.
"""

from collections.abc import Callable, Sequence
from typing import LiteralString

from psycopg import sql

from wings_core.errors import Internal
from wings_core.metadata.postgres.commit_function import COMMIT_FLUSH, COMMIT_PAGE
from wings_core.metadata.postgres.connections import Connection
from wings_core.metadata.postgres.database import PostgresDatabase
from wings_core.metadata.store.locks import Lock

MIGRATION_SECONDS_MAX = 3_600
"""How long a migration may take, which may look at every page: each of its statements at the
server, and all of it here."""

Migrations = Sequence[Sequence[LiteralString]]
"""Each is the statements that bring a schema to its next version."""

_INITIAL: Sequence[LiteralString] = (
    """
    -- A tenant is there while one of its namespaces is.
    CREATE TABLE namespaces (
        id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        tenant TEXT COLLATE "C" NOT NULL,
        name TEXT COLLATE "C" NOT NULL,
        created_at BIGINT NOT NULL,
        UNIQUE (tenant, name)
    )
    """,
    """
    -- A deleted topic has no namespace any more, which frees its name, and stays until its pages
    -- are purged. An id is never used again.
    CREATE TABLE topics (
        id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        uuid TEXT COLLATE "C" NOT NULL UNIQUE,
        namespace_id BIGINT,
        name TEXT COLLATE "C" NOT NULL,
        schema BYTEA NOT NULL, -- An Arrow IPC schema message.
        partition_key TEXT,
        config TEXT NOT NULL, -- JSON of TopicConfig.
        created_at BIGINT NOT NULL,
        deleted_at BIGINT,
        UNIQUE (namespace_id, name),
        CHECK ((namespace_id IS NULL) = (deleted_at IS NOT NULL))
    )
    """,
    """
    CREATE INDEX topics_deleted ON topics (deleted_at) WHERE deleted_at IS NOT NULL
    """,
    """
    -- A partition is there from its first commit on, for others than the transaction that makes it.
    -- Changed by every commit, in place: no index holds what changes, and there is room for it.
    CREATE TABLE partitions (
        id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        topic_id BIGINT NOT NULL,
        value TEXT COLLATE "C" NOT NULL, -- Canonical JSON.
        log_start_offset BIGINT NOT NULL DEFAULT 0,
        next_offset BIGINT NOT NULL DEFAULT 0,
        bytes BIGINT NOT NULL DEFAULT 0,
        last_timestamp BIGINT,
        UNIQUE (topic_id, value)
    ) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05)
    """,
    """
    -- Keyed by the inclusive end: the page that holds an offset is the first whose end is not
    -- below it, so finding it and reading on is one walk along the index, as quick in a long log
    -- as in a short one.
    CREATE TABLE pages (
        partition_id BIGINT NOT NULL,
        end_offset BIGINT NOT NULL,
        start_offset BIGINT NOT NULL,
        timestamp BIGINT NOT NULL,
        folio_id BIGINT NOT NULL,
        position BIGINT NOT NULL,
        length BIGINT NOT NULL,
        PRIMARY KEY (partition_id, end_offset)
    )
    """,
    """
    -- Only folios that pages refer to, with their number.
    CREATE TABLE folios (
        id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        name TEXT COLLATE "C" NOT NULL UNIQUE,
        pages BIGINT NOT NULL
    ) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05)
    """,
    """
    -- Kept as long as the topic.
    CREATE TABLE producers (
        topic_id BIGINT NOT NULL,
        producer_id BYTEA NOT NULL,
        next_sequence BIGINT NOT NULL DEFAULT 0,
        PRIMARY KEY (topic_id, producer_id)
    ) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05)
    """,
    """
    -- The last results of a producer, as a ring: a result takes the place of the one that many
    -- sequences before it.
    CREATE TABLE producer_results (
        topic_id BIGINT NOT NULL,
        producer_id BYTEA NOT NULL,
        slot INTEGER NOT NULL,
        sequence BIGINT NOT NULL,
        committed TEXT NOT NULL, -- JSON of the committed ranges.
        committed_at BIGINT NOT NULL,
        PRIMARY KEY (topic_id, producer_id, slot)
    ) WITH (autovacuum_vacuum_scale_factor = 0.05)
    """,
    """
    CREATE INDEX producer_results_by_age ON producer_results (committed_at)
    """,
    """
    CREATE TABLE consumer_offsets (
        consumer BYTEA NOT NULL,
        topic_id BIGINT NOT NULL,
        partition TEXT COLLATE "C" NOT NULL,
        "offset" BIGINT NOT NULL,
        committed_at BIGINT NOT NULL,
        PRIMARY KEY (consumer, topic_id, partition)
    ) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05)
    """,
    """
    CREATE INDEX consumer_offsets_by_topic ON consumer_offsets (topic_id)
    """,
    """
    -- A stage that was aborted or swept has no name any more, which frees it, and stays until its
    -- pages are purged. One of a deleted topic keeps its row, so that a publish can say why it
    -- fails; topics' ids are never used again.
    CREATE TABLE stages (
        id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        name TEXT COLLATE "C" UNIQUE,
        topic_id BIGINT NOT NULL,
        writing TEXT NOT NULL, -- Of the stream that writes it.
        rows BIGINT NOT NULL,
        bytes BIGINT NOT NULL,
        pages BIGINT NOT NULL,
        changed_at BIGINT NOT NULL
    )
    """,
    """
    CREATE INDEX stages_deleted ON stages (id) WHERE name IS NULL
    """,
    """
    CREATE INDEX stages_by_age ON stages (changed_at) WHERE name IS NOT NULL
    """,
    """
    CREATE INDEX stages_by_topic ON stages (topic_id)
    """,
    """
    -- Pages without offsets, in the order in which they came. Folios count them too.
    CREATE TABLE staged_pages (
        stage_id BIGINT NOT NULL,
        number BIGINT NOT NULL,
        partition TEXT COLLATE "C" NOT NULL, -- Canonical JSON.
        rows BIGINT NOT NULL,
        timestamp BIGINT, -- The producer's; else that of the publish.
        folio_id BIGINT NOT NULL,
        position BIGINT NOT NULL,
        length BIGINT NOT NULL,
        PRIMARY KEY (stage_id, number)
    )
    """,
    """
    -- The last batch of each writer has no successor, and is kept for good.
    CREATE TABLE publishes (
        writer BYTEA NOT NULL,
        batch BIGINT NOT NULL,
        committed TEXT NOT NULL, -- JSON of the published ranges.
        succeeded_at BIGINT,
        PRIMARY KEY (writer, batch)
    )
    """,
    """
    CREATE INDEX publishes_by_age ON publishes (succeeded_at) WHERE succeeded_at IS NOT NULL
    """,
    """
    -- The outcomes of transactions; see database.py.
    CREATE TABLE outcomes (
        id UUID PRIMARY KEY,
        committed BOOLEAN NOT NULL,
        decided_at TIMESTAMPTZ NOT NULL
    )
    """,
    """
    CREATE INDEX outcomes_by_age ON outcomes (decided_at)
    """,
    """
    -- Which data directory the pages are in, once one was used with it.
    CREATE TABLE store (
        id UUID NOT NULL DEFAULT gen_random_uuid(),
        directory UUID
    )
    """,
    """
    INSERT INTO store DEFAULT VALUES
    """,
    """
    INSERT INTO namespaces (tenant, name, created_at) VALUES ('default', 'default', %(now)s)
    """,
)

_FLUSHES: Sequence[LiteralString] = (
    """
    -- The last flush of each writer; see metadata/flushes.py.
    CREATE TABLE flushes (
        writer BYTEA PRIMARY KEY,
        number BIGINT NOT NULL,
        results TEXT NOT NULL, -- JSON of the results.
        committed_at BIGINT NOT NULL
    ) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05)
    """,
    """
    CREATE INDEX flushes_by_age ON flushes (committed_at)
    """,
)

_RETIRED: Sequence[LiteralString] = (
    """
    -- Of a folio that is to be deleted, which has no pages then; see metadata/folios.py.
    ALTER TABLE folios ADD COLUMN retired_at BIGINT
    CONSTRAINT folios_retired_for_good CHECK (retired_at IS NULL OR pages = 0)
    """,
    """
    CREATE INDEX folios_retired ON folios (retired_at) WHERE retired_at IS NOT NULL
    """,
)

_GROUPS: Sequence[LiteralString] = (
    """
    CREATE TABLE share_groups (
        id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        uuid TEXT COLLATE "C" NOT NULL UNIQUE,
        topic_id BIGINT NOT NULL,
        name BYTEA NOT NULL, -- UTF-8, as TEXT cannot hold every character.
        config TEXT NOT NULL, -- JSON of ShareConfig.
        created_at BIGINT NOT NULL,
        UNIQUE (topic_id, name)
    )
    """,
)

_SHARDS: Sequence[LiteralString] = (
    """
    -- How far files and their like were read into the log, and by whom; see metadata/shards.py.
    CREATE TABLE shards (
        source BYTEA NOT NULL,
        shard BYTEA NOT NULL,
        token BYTEA NOT NULL,
        position BIGINT NOT NULL,
        state TEXT NOT NULL, -- open, finished or dead.
        failures BIGINT NOT NULL,
        error BYTEA, -- Of the last failure, in UTF-8.
        opened_at BIGINT NOT NULL,
        updated_at BIGINT NOT NULL,
        PRIMARY KEY (source, shard)
    ) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05)
    """,
    """
    CREATE INDEX shards_by_age ON shards (source, state, updated_at)
    """,
    """
    -- When the shards of a source were last pruned.
    CREATE TABLE shard_prunings (
        source BYTEA PRIMARY KEY,
        pruned_at BIGINT NOT NULL
    )
    """,
)

_NODES: Sequence[LiteralString] = (
    """
    -- Flight nodes, each until its lease runs out.
    CREATE TABLE nodes (
        id TEXT COLLATE "C" PRIMARY KEY,
        address TEXT COLLATE "C" NOT NULL UNIQUE,
        expires_at BIGINT NOT NULL
    ) WITH (fillfactor = 50)
    """,
)

_LEASES: Sequence[LiteralString] = (
    """
    -- Who works on something that one at a time may work on, and until when.
    CREATE TABLE leases (
        name TEXT COLLATE "C" PRIMARY KEY,
        holder TEXT NOT NULL,
        token BIGINT NOT NULL, -- Another one whenever it is taken anew.
        expires_at BIGINT NOT NULL
    ) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05)
    """,
    """
    CREATE INDEX leases_by_age ON leases (expires_at)
    """,
)

_MERGED_PAGES: Sequence[LiteralString] = (
    """
    -- Of the first row of a page that holds a timestamp for each of its rows; `timestamp` is that
    -- of the last.
    ALTER TABLE pages ADD COLUMN first_timestamp BIGINT
    """,
)

_RECOGNISED: Sequence[LiteralString] = (
    """
    -- Tells a namespace from one of the same name before or after it.
    ALTER TABLE namespaces ADD COLUMN uuid TEXT
    """,
    """
    UPDATE namespaces SET uuid = gen_random_uuid()::text
    """,
    """
    -- A topic without anything that belonged to it is remembered for a while, so that a
    -- creation whose response was lost does not create it again when it is retried.
    ALTER TABLE topics ADD COLUMN purged_at BIGINT
    """,
    """
    CREATE INDEX topics_purged ON topics (purged_at) WHERE purged_at IS NOT NULL
    """,
    """
    DROP INDEX topics_deleted
    """,
    """
    CREATE INDEX topics_deleted ON topics (deleted_at)
    WHERE deleted_at IS NOT NULL AND purged_at IS NULL
    """,
)

_TIERS = (
    """
    -- How many pages a partition has, and how much in merged ones: counted along, since counting
    -- them takes a look at every page.
    ALTER TABLE partitions
        ADD COLUMN pages BIGINT NOT NULL DEFAULT 0,
        ADD COLUMN merged_pages BIGINT NOT NULL DEFAULT 0,
        ADD COLUMN merged_rows BIGINT NOT NULL DEFAULT 0,
        ADD COLUMN merged_bytes BIGINT NOT NULL DEFAULT 0
    """,
    """
    UPDATE partitions SET pages = counted.pages, merged_pages = counted.merged_pages,
        merged_rows = counted.merged_rows, merged_bytes = counted.merged_bytes
    FROM (
        SELECT partition_id, count(*) AS pages, count(first_timestamp) AS merged_pages,
            coalesce(sum(end_offset - start_offset + 1)
                FILTER (WHERE first_timestamp IS NOT NULL), 0) AS merged_rows,
            coalesce(sum(length) FILTER (WHERE first_timestamp IS NOT NULL), 0) AS merged_bytes
        FROM pages GROUP BY partition_id
    ) AS counted
    WHERE partitions.id = counted.partition_id
    """,
)

_FORMATS = (
    """
    -- How the page holds its rows, by the number of `PageFormat`: as pushed, where nothing is said.
    ALTER TABLE pages ADD COLUMN format SMALLINT NOT NULL DEFAULT 1
    """,
    """
    -- Until now the merged pages were those with a first timestamp.
    UPDATE pages SET format = 2 WHERE first_timestamp IS NOT NULL
    """,
    """
    -- A process of the version before, which still runs, cannot merge: its pages would have no
    -- format, and could not be read.
    ALTER TABLE pages ADD CONSTRAINT pages_of_one_timestamp
    CHECK (format <> 1 OR first_timestamp IS NULL)
    """,
)

_NAMES: Sequence[tuple[LiteralString, LiteralString]] = (
    ("producers", "producer_id"),
    ("producer_results", "producer_id"),
    ("consumer_offsets", "consumer"),
    ("publishes", "writer"),
    ("flushes", "writer"),
    ("share_groups", "name"),
    ("shards", "source"),
    ("shards", "shard"),
    ("shards", "token"),
    ("shards", "error"),
    ("shard_prunings", "source"),
)
"""Columns of names that clients choose, kept as UTF-8 in BYTEA until the version of `_TEXT`."""


def _as_text(table: LiteralString, column: LiteralString) -> LiteralString:
    return f"""
    ALTER TABLE {table} ALTER COLUMN {column} TYPE TEXT COLLATE "C" USING CASE
    WHEN position('\\x00'::bytea IN {column}) > 0 THEN encode({column}, 'escape')
    ELSE convert_from({column}, 'UTF8') END
    """


_TEXT: Sequence[LiteralString] = (
    """
    -- Names hold no NUL any more, so they are text. Shards of earlier names with NUL, which can
    -- neither be text nor be asked for, go; other such names are kept escaped.
    DELETE FROM shards WHERE position('\\x00'::bytea IN source || shard || token) > 0
    """,
    *(_as_text(table, column) for table, column in _NAMES),
)

_SLICES = (
    """
    -- Of rows that are a slice of their page: the first of them in it, and their share of its
    -- bytes. NULL: all of it.
    ALTER TABLE pages ADD COLUMN first_row BIGINT, ADD COLUMN slice_bytes BIGINT
    """,
    "ALTER TABLE staged_pages ADD COLUMN first_row BIGINT, ADD COLUMN slice_bytes BIGINT",
)

_TOKENS: Sequence[LiteralString] = (
    """
    CREATE TABLE tokens (
        id TEXT COLLATE "C" PRIMARY KEY,
        name TEXT COLLATE "C" NOT NULL UNIQUE,
        digest BYTEA NOT NULL UNIQUE, -- SHA-256 of the secret, which is not kept.
        grants TEXT NOT NULL, -- JSON: a list of RIGHT=PATTERN.
        created_at BIGINT NOT NULL,
        expires_at BIGINT
    )
    """,
    """
    -- One row, from the first token on: how often one was created or revoked. Servers look here for
    -- changes, and never take a log that had a token for one that is open to all.
    CREATE TABLE token_changes (id BIGINT PRIMARY KEY CHECK (id = 0), changes BIGINT NOT NULL)
    """,
)

_INLINE = (
    """
    -- The pages of a small flush, until they are drained: all bytes of their folio, which goes with
    -- them.
    CREATE TABLE inline_folios (
        folio_id BIGINT PRIMARY KEY REFERENCES folios (id) ON DELETE CASCADE,
        data BYTEA NOT NULL
    )
    """,
    # They are Arrow's bytes of a moment: to compress them would cost more than it saves.
    "ALTER TABLE inline_folios ALTER COLUMN data SET STORAGE EXTERNAL",
    """
    -- What is to be drained: `PageFormat.INLINE`.
    CREATE INDEX pages_inline ON pages (partition_id, end_offset) WHERE format = 3
    """,
)

_QUOTAS: Sequence[LiteralString] = (
    """
    -- JSON: the quotas of a token by name; NULL: none.
    ALTER TABLE tokens ADD COLUMN quotas TEXT
    """,
)

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

MIGRATIONS: Sequence[Sequence[LiteralString]] = (
    _INITIAL,
    _FLUSHES,
    _RETIRED,
    _GROUPS,
    _SHARDS,
    _NODES,
    _LEASES,
    _MERGED_PAGES,
    _RECOGNISED,
    _TIERS,
    _FORMATS,
    _TEXT,
    _SLICES,
    _TOKENS,
    _INLINE,
    _QUOTAS,
    _NODES_ALONE,
    _NODE_URLS,
    _SCHEMAS,
    _ONE_CALL,
    _TABLES,
    _WRITERS,
    _TOLD_LATER,
    _ONE_PAGE,
)
"""Each brings the schema from the version before it (its index) to the next; `now` is bound."""


_UNHURRIED = """
SELECT set_config(name, CASE name WHEN 'statement_timeout' THEN %s ELSE '0' END, true)
FROM pg_settings WHERE name IN ('statement_timeout', 'transaction_timeout')
"""
"""Servers before 17 have no bound of a transaction; where there is one, 0 takes it off."""


def migrate(database: PostgresDatabase, schema: str, clock: Callable[[], int]) -> None:
    """Bring the schema to the version of this code, creating it at first.

    Raises:
        Internal: It is newer than this code, or holds tables of something else.
    """
    while database.write(
        lambda connection: step(connection, schema, clock()), seconds=MIGRATION_SECONDS_MAX
    ):
        pass


def check_version(database: PostgresDatabase, schema: str) -> None:
    """Make sure that a schema opened for reading only is of this code's version.

    Raises:
        Internal: It is not there, newer or older, or holds tables of something else.
    """
    database.read(lambda connection: check_tables(connection, schema))


def check_tables(connection: Connection, schema: str, migrations: Migrations | None = None) -> None:
    """Make sure that the tables that a connection sees are of this code's version.

    Args:
        connection: To the database.
        schema: Of the tables.
        migrations: None: those of metadata.

    Raises: as `check_version`.
    """
    migrations = MIGRATIONS if migrations is None else migrations
    version = _version(connection, schema)
    if version is None:
        raise Internal(f"the database has no metadata of Wings: there is no schema {schema!r}")
    _refuse_newer(version, len(migrations))
    if version < len(migrations):
        raise Internal(
            f"the metadata is of version {version}, this code reads {len(migrations)}: "
            "start the server once, which brings it up to date"
        )


def has_schema(connection: Connection, schema: str) -> bool:
    """Tell whether a schema is there, with tables."""
    return bool(_version(connection, schema))


def step(
    connection: Connection, schema: str, now: int, migrations: Migrations | None = None
) -> bool:
    """Apply the next migration, in the transaction of the caller; return whether there are more.

    Args:
        connection: In a transaction.
        schema: Created if it is not there.
        now: Bound in statements that name it.
        migrations: None: those of metadata.

    Raises:
        Internal: The schema is newer than this code, or holds tables of something else.
    """
    migrations = MIGRATIONS if migrations is None else migrations
    connection.take_lock(Lock.MIGRATIONS)
    version = _version(connection, schema)
    if version is None:
        connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
    if not version:
        version = 0
        connection.execute(
            "CREATE TABLE IF NOT EXISTS migrations "
            "(version INTEGER PRIMARY KEY, applied_at BIGINT NOT NULL)"
        )
    _refuse_newer(version, len(migrations))
    if version == len(migrations):
        return False
    connection.execute(_UNHURRIED, (f"{MIGRATION_SECONDS_MAX}s",))
    for statement in migrations[version]:
        connection.execute(statement, {"now": now} if "%(now)s" in statement else None)
    connection.execute(
        "INSERT INTO migrations (version, applied_at) VALUES (%s, %s)", (version + 1, now)
    )
    return version + 1 < len(migrations)


def _version(connection: Connection, schema: str) -> int | None:
    """Return the schema's version, 0 for an empty one, None where there is none."""
    tables = {
        name
        for (name,) in connection.execute(
            "SELECT relation.relname FROM pg_namespace AS namespace "
            "LEFT JOIN pg_class AS relation ON relation.relnamespace = namespace.oid "
            "AND relation.relkind = 'r' WHERE namespace.nspname = %s",
            (schema,),
        ).fetchall()
    }
    if not tables:
        return None
    tables -= {None}
    if not tables:
        return 0
    if "migrations" not in tables:
        raise Internal(f"the schema {schema!r} holds tables, but not metadata of Wings")
    row = connection.execute("SELECT coalesce(max(version), 0) FROM migrations").fetchone()
    assert row is not None
    return int(row[0])


def _refuse_newer(version: int, newest: int) -> None:
    if version > newest:
        raise Internal(
            f"the metadata is of version {version}, newer than {newest}, which this code knows: "
            "it was written by a later Wings and needs one to be read"
        )
