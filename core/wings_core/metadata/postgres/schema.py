"""The tables of the metadata in PostgreSQL, and how those of the last release become these.

`SCHEMA` is what a new database gets. A change of it gets the next version, and a migration from the
version before. Each runs in a transaction of its own, together with the row that says so, under a
lock that all nodes take: of several that start at once, one migrates.
"""

from collections.abc import Callable, Sequence

from psycopg import sql

from wings_core.errors import Internal
from wings_core.metadata.postgres.commit_function import COMMIT_FLUSH, SEQUENCE_TYPE, TYPES
from wings_core.metadata.postgres.connections import Connection
from wings_core.metadata.postgres.database import PostgresDatabase
from wings_core.metadata.store.database import Lock, Versions

MIGRATION_SECONDS_MAX = 3_600
"""How long a migration may take, which may look at every page: each of its statements at the
server, and all of it here."""

_CHANGED_OFTEN = "WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05)"

_INLINE_GOES: Sequence[str] = (
    # Bytes go with their folio, as by a foreign key, which would look the folio up again for each
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
)

_WRITERS: Sequence[str] = (
    """
    -- Writers that have begun transactions, and the epoch of their last beginning.
    CREATE TABLE writers (
        writer TEXT COLLATE "C" PRIMARY KEY,
        epoch BIGINT NOT NULL,
        begun_at BIGINT NOT NULL
    )
    """,
    "CREATE INDEX writers_by_age ON writers (begun_at)",
)

_TRANSACTIONS: Sequence[str] = (
    """
    -- The last life and the last transaction of each name.
    CREATE TABLE transactions (
        name TEXT COLLATE "C" PRIMARY KEY,
        producer_id BIGINT NOT NULL,
        epoch BIGINT NOT NULL,
        last_epoch BIGINT NOT NULL, -- Of the life whose holder got this one; else -1.
        state TEXT NOT NULL,
        timeout_ms BIGINT NOT NULL,
        deadline BIGINT, -- Of the open transaction; NULL where none is open.
        changed_at BIGINT NOT NULL
    )
    """,
    "CREATE INDEX transactions_by_age ON transactions (changed_at)",
    "CREATE INDEX transactions_open ON transactions (deadline) WHERE deadline IS NOT NULL",
    """
    -- Offsets that open transactions will commit.
    CREATE TABLE transaction_offsets (
        name TEXT COLLATE "C" NOT NULL, -- Of the transaction.
        consumer TEXT COLLATE "C" NOT NULL,
        topic_id BIGINT NOT NULL,
        partition TEXT COLLATE "C" NOT NULL,
        member TEXT COLLATE "C" NOT NULL, -- Of the consumer's group; empty for none.
        member_epoch BIGINT NOT NULL,
        "offset" BIGINT NOT NULL,
        note TEXT NOT NULL,
        PRIMARY KEY (name, consumer, topic_id, partition)
    )
    """,
    "CREATE INDEX transaction_offsets_pending ON transaction_offsets (consumer)",
)

_CONSUMER_GROUPS: Sequence[str] = (
    f"""
    -- Consumer groups, from the first member that joined on: the highest epoch that was given out.
    CREATE TABLE consumer_groups (
        consumer TEXT COLLATE "C" PRIMARY KEY, epoch BIGINT NOT NULL
    ) {_CHANGED_OFTEN}
    """,
    f"""
    CREATE TABLE consumer_group_members (
        consumer TEXT COLLATE "C" NOT NULL,
        member TEXT COLLATE "C" NOT NULL,
        state TEXT NOT NULL, -- JSON of GroupMember.
        PRIMARY KEY (consumer, member)
    ) {_CHANGED_OFTEN}
    """,
)

_SEQUENCES: Sequence[str] = (
    f"""
    -- The numbers that producers gave to the rows of their last batches in a partition.
    CREATE TABLE partition_sequences (
        topic_id BIGINT NOT NULL,
        partition TEXT COLLATE "C" NOT NULL,
        producer_id TEXT COLLATE "C" NOT NULL,
        state TEXT NOT NULL, -- JSON of `SequenceDraft`.
        committed_at BIGINT NOT NULL,
        PRIMARY KEY (topic_id, partition, producer_id)
    ) {_CHANGED_OFTEN}
    """,
    "CREATE INDEX partition_sequences_by_age ON partition_sequences (committed_at)",
)

SCHEMA: Sequence[str] = (
    """
    -- A tenant is there while one of its namespaces is.
    CREATE TABLE namespaces (
        id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        tenant TEXT COLLATE "C" NOT NULL,
        name TEXT COLLATE "C" NOT NULL,
        created_at BIGINT NOT NULL,
        uuid TEXT, -- Tells a namespace from one of the same name before or after it.
        UNIQUE (tenant, name)
    )
    """,
    """
    INSERT INTO namespaces (tenant, name, created_at, uuid)
    VALUES ('default', 'default', %(now)s, gen_random_uuid()::text)
    """,
    """
    -- A deleted topic has no namespace any more, which frees its name, and stays until its pages
    -- are purged, and then for a while, so that a creation whose response was lost does not create
    -- it again. An id is never used again.
    CREATE TABLE topics (
        id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        uuid TEXT COLLATE "C" NOT NULL UNIQUE,
        namespace_id BIGINT,
        name TEXT COLLATE "C" NOT NULL,
        schema BYTEA NOT NULL, -- An Arrow IPC schema message.
        earlier_schemas BYTEA, -- Those of the versions before it, from 1 on, one after another.
        partition_key TEXT,
        config TEXT NOT NULL, -- JSON of TopicConfig.
        created_at BIGINT NOT NULL,
        deleted_at BIGINT,
        purged_at BIGINT,
        UNIQUE (namespace_id, name),
        CHECK ((namespace_id IS NULL) = (deleted_at IS NOT NULL))
    )
    """,
    """
    CREATE INDEX topics_deleted ON topics (deleted_at)
    WHERE deleted_at IS NOT NULL AND purged_at IS NULL
    """,
    "CREATE INDEX topics_purged ON topics (purged_at) WHERE purged_at IS NOT NULL",
    f"""
    -- A partition is there from its first commit on. Changed by every commit, in place: no index
    -- holds what changes, and there is room for it.
    CREATE TABLE partitions (
        id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        topic_id BIGINT NOT NULL,
        value TEXT COLLATE "C" NOT NULL, -- Canonical JSON.
        log_start_offset BIGINT NOT NULL DEFAULT 0,
        next_offset BIGINT NOT NULL DEFAULT 0,
        bytes BIGINT NOT NULL DEFAULT 0,
        last_timestamp BIGINT,
        -- Counted along, since counting them takes a look at every page.
        pages BIGINT NOT NULL DEFAULT 0,
        merged_pages BIGINT NOT NULL DEFAULT 0,
        merged_rows BIGINT NOT NULL DEFAULT 0,
        merged_bytes BIGINT NOT NULL DEFAULT 0,
        UNIQUE (topic_id, value)
    ) {_CHANGED_OFTEN}
    """,
    """
    -- Keyed by the inclusive end: the page that holds an offset is the first whose end is not
    -- below it, so finding it and reading on is one walk along the index, as quick in a long log
    -- as in a short one.
    CREATE TABLE pages (
        partition_id BIGINT NOT NULL,
        end_offset BIGINT NOT NULL,
        start_offset BIGINT NOT NULL,
        timestamp BIGINT NOT NULL, -- Of the last row, where each has its own.
        first_timestamp BIGINT, -- Of the first row of such a page.
        folio_id BIGINT NOT NULL,
        position BIGINT NOT NULL,
        length BIGINT NOT NULL,
        -- Of rows that are a slice of their page: the first of them in it, and their share of its
        -- bytes. NULL: all of it.
        first_row BIGINT,
        slice_bytes BIGINT,
        format SMALLINT NOT NULL DEFAULT 1, -- The number of `PageFormat`.
        schema_version INTEGER NOT NULL DEFAULT 1,
        PRIMARY KEY (partition_id, end_offset)
    )
    """,
    """
    -- What is to be drained: `PageFormat.INLINE`.
    CREATE INDEX pages_inline ON pages (partition_id, end_offset) WHERE format = 3
    """,
    f"""
    -- Folios that pages refer to, with their number, and folios that are to be deleted, which have
    -- no pages then; see metadata/checks.py.
    CREATE TABLE folios (
        id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        name TEXT COLLATE "C" NOT NULL UNIQUE,
        pages BIGINT NOT NULL,
        retired_at BIGINT CONSTRAINT folios_retired_for_good CHECK (retired_at IS NULL OR pages = 0)
    ) {_CHANGED_OFTEN}
    """,
    "CREATE INDEX folios_retired ON folios (retired_at) WHERE retired_at IS NOT NULL",
    """
    -- The pages of a small flush, until they are drained: all bytes of their folio.
    CREATE TABLE inline_folios (folio_id BIGINT PRIMARY KEY, data BYTEA NOT NULL)
    """,
    # They are Arrow's bytes of a moment: to compress them would cost more than it saves.
    "ALTER TABLE inline_folios ALTER COLUMN data SET STORAGE EXTERNAL",
    *_INLINE_GOES,
    f"""
    -- Kept as long as the topic.
    CREATE TABLE producers (
        topic_id BIGINT NOT NULL,
        producer_id TEXT COLLATE "C" NOT NULL,
        next_sequence BIGINT NOT NULL DEFAULT 0,
        PRIMARY KEY (topic_id, producer_id)
    ) {_CHANGED_OFTEN}
    """,
    """
    -- The last results of a producer, as a ring: a result takes the place of the one that many
    -- sequences before it.
    CREATE TABLE producer_results (
        topic_id BIGINT NOT NULL,
        producer_id TEXT COLLATE "C" NOT NULL,
        slot INTEGER NOT NULL,
        sequence BIGINT NOT NULL, -- The last of a series.
        committed TEXT NOT NULL, -- JSON of `Series`.
        committed_at BIGINT NOT NULL,
        PRIMARY KEY (topic_id, producer_id, slot)
    ) WITH (autovacuum_vacuum_scale_factor = 0.05)
    """,
    "CREATE INDEX producer_results_by_age ON producer_results (committed_at)",
    f"""
    CREATE TABLE consumer_offsets (
        consumer TEXT COLLATE "C" NOT NULL,
        topic_id BIGINT NOT NULL,
        partition TEXT COLLATE "C" NOT NULL,
        "offset" BIGINT NOT NULL,
        committed_at BIGINT NOT NULL,
        note TEXT NOT NULL DEFAULT '',
        PRIMARY KEY (consumer, topic_id, partition)
    ) {_CHANGED_OFTEN}
    """,
    "CREATE INDEX consumer_offsets_by_topic ON consumer_offsets (topic_id)",
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
    "CREATE INDEX stages_deleted ON stages (id) WHERE name IS NULL",
    "CREATE INDEX stages_by_age ON stages (changed_at) WHERE name IS NOT NULL",
    "CREATE INDEX stages_by_topic ON stages (topic_id)",
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
        first_row BIGINT,
        slice_bytes BIGINT,
        schema_version INTEGER NOT NULL DEFAULT 1,
        PRIMARY KEY (stage_id, number)
    )
    """,
    """
    -- The last batches of each writer; the last of them has no successor.
    CREATE TABLE publishes (
        writer TEXT COLLATE "C" NOT NULL,
        batch BIGINT NOT NULL,
        committed TEXT NOT NULL, -- JSON of the published ranges.
        succeeded_at BIGINT,
        published_at BIGINT DEFAULT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
        PRIMARY KEY (writer, batch)
    )
    """,
    "CREATE INDEX publishes_by_age ON publishes (succeeded_at) WHERE succeeded_at IS NOT NULL",
    "CREATE INDEX publishes_last_by_age ON publishes (published_at) WHERE succeeded_at IS NULL",
    *_WRITERS,
    *_TRANSACTIONS,
    f"""
    -- The last flush of each writer; see metadata/repeats.py.
    CREATE TABLE flushes (
        writer TEXT COLLATE "C" PRIMARY KEY,
        number BIGINT NOT NULL,
        results TEXT NOT NULL, -- JSON of the results.
        committed_at BIGINT NOT NULL
    ) {_CHANGED_OFTEN}
    """,
    "CREATE INDEX flushes_by_age ON flushes (committed_at)",
    """
    -- The outcomes of transactions; see database.py.
    CREATE TABLE outcomes (
        id UUID PRIMARY KEY,
        committed BOOLEAN NOT NULL,
        decided_at TIMESTAMPTZ NOT NULL,
        node TEXT -- That committed it and tells the others of it, where they are to know.
    )
    """,
    "CREATE INDEX outcomes_by_age ON outcomes (decided_at)",
    """
    -- Which data directory the pages are in, once one was used with it; and what nodes without one
    -- present to each other, where they are given no token of the cluster.
    CREATE TABLE store (
        id UUID NOT NULL DEFAULT gen_random_uuid(), directory UUID, node_token TEXT
    )
    """,
    "INSERT INTO store DEFAULT VALUES",
    """
    -- Of nodes without a data directory: where new pages go ('hot') and old ones ('remote').
    CREATE TABLE object_stores (role TEXT PRIMARY KEY, url TEXT NOT NULL)
    """,
    """
    CREATE TABLE share_groups (
        id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        uuid TEXT COLLATE "C" NOT NULL UNIQUE,
        topic_id BIGINT NOT NULL,
        name TEXT COLLATE "C" NOT NULL,
        config TEXT NOT NULL, -- JSON of ShareConfig.
        created_at BIGINT NOT NULL,
        UNIQUE (topic_id, name)
    )
    """,
    """
    -- How far files and their like were read into the log, and by whom; see metadata/stages.py.
    CREATE TABLE shards (
        source TEXT COLLATE "C" NOT NULL,
        shard TEXT COLLATE "C" NOT NULL,
        token TEXT COLLATE "C" NOT NULL,
        position BIGINT NOT NULL,
        state TEXT NOT NULL, -- open, finished or dead.
        failures BIGINT NOT NULL,
        error TEXT COLLATE "C", -- Of the last failure.
        opened_at BIGINT NOT NULL,
        updated_at BIGINT NOT NULL,
        PRIMARY KEY (source, shard)
    ) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05)
    """,
    "CREATE INDEX shards_by_age ON shards (source, state, updated_at)",
    """
    -- When the shards of a source were last pruned.
    CREATE TABLE shard_prunings (source TEXT COLLATE "C" PRIMARY KEY, pruned_at BIGINT NOT NULL)
    """,
    """
    -- Flight nodes, each until its lease runs out.
    CREATE TABLE nodes (
        id TEXT COLLATE "C" PRIMARY KEY,
        address TEXT COLLATE "C" NOT NULL UNIQUE,
        expires_at BIGINT NOT NULL,
        http TEXT NOT NULL DEFAULT '',
        since BIGINT NOT NULL DEFAULT 0,
        kafka TEXT NOT NULL DEFAULT ''
    ) WITH (fillfactor = 50)
    """,
    f"""
    -- Who works on something that one at a time may work on, and until when.
    CREATE TABLE leases (
        name TEXT COLLATE "C" PRIMARY KEY,
        holder TEXT NOT NULL,
        token BIGINT NOT NULL, -- Another one whenever it is taken anew.
        expires_at BIGINT NOT NULL
    ) {_CHANGED_OFTEN}
    """,
    "CREATE INDEX leases_by_age ON leases (expires_at)",
    """
    CREATE TABLE tokens (
        id TEXT COLLATE "C" PRIMARY KEY,
        name TEXT COLLATE "C" NOT NULL UNIQUE,
        digest BYTEA NOT NULL UNIQUE, -- SHA-256 of the secret, which is not kept.
        grants TEXT NOT NULL, -- JSON: a list of RIGHT=PATTERN.
        created_at BIGINT NOT NULL,
        expires_at BIGINT,
        quotas TEXT -- JSON: the quotas by name; NULL: none.
    )
    """,
    """
    -- One row, from the first token on: how often one was created or revoked. Servers look here for
    -- changes, and never take a log that had a token for one that is open to all.
    CREATE TABLE token_changes (id BIGINT PRIMARY KEY CHECK (id = 0), changes BIGINT NOT NULL)
    """,
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
    *_CONSUMER_GROUPS,
    *_SEQUENCES,
    *TYPES,
    SEQUENCE_TYPE,
    COMMIT_FLUSH,
)


_FROM_0_1_0: Sequence[Sequence[str]] = (
    ("ALTER TABLE outcomes ADD COLUMN node TEXT",),
    *[()] * 4,  # Functions that this version does not call.
    (
        *_INLINE_GOES,
        "ALTER TABLE inline_folios DROP CONSTRAINT inline_folios_folio_id_fkey",
        "ALTER TABLE pages DROP CONSTRAINT pages_of_one_timestamp",
    ),
    TYPES,
    _WRITERS,
    _CONSUMER_GROUPS,
    (
        *_SEQUENCES,
        "ALTER TABLE consumer_offsets ADD COLUMN note TEXT NOT NULL DEFAULT ''",
        SEQUENCE_TYPE,
        COMMIT_FLUSH,
    ),
    _TRANSACTIONS,
    ("ALTER TABLE nodes ADD COLUMN kafka TEXT NOT NULL DEFAULT ''",),
)

VERSIONS = Versions(SCHEMA, 22, _FROM_0_1_0)
"""Nodes of a version before, which may still run, go on to call functions that a new schema lacks.
"""

_UNHURRIED = """
SELECT set_config(name, CASE name WHEN 'statement_timeout' THEN %s ELSE '0' END, true)
FROM pg_settings WHERE name IN ('statement_timeout', 'transaction_timeout')
"""
"""Servers before 17 have no bound of a transaction; where there is one, 0 takes it off."""


def migrate(database: PostgresDatabase, schema: str, clock: Callable[[], int]) -> None:
    """Bring the schema to the version of this code, creating it at first.

    Raises:
        Internal: It is newer than this code or too old for it, or holds tables of something else.
    """
    while database.write(
        lambda connection: step(connection, schema, clock(), VERSIONS),
        seconds=MIGRATION_SECONDS_MAX,
    ):
        pass


def check_tables(connection: Connection, schema: str, versions: Versions | None = None) -> None:
    """Make sure that the tables that a connection sees are of this code's version.

    Args:
        connection: To the database.
        schema: Schema of the tables.
        versions: None: those of metadata.

    Raises:
        Internal: They are not there, newer or older, or of something else.
    """
    version = _version(connection, schema)
    if version is None:
        raise Internal(f"the database has no metadata of Wings: there is no schema {schema!r}")
    (versions or VERSIONS).check(version, read_only=True)


def has_schema(connection: Connection, schema: str) -> bool:
    """Tell whether a schema is there, with tables."""
    return bool(_version(connection, schema))


def step(connection: Connection, schema: str, now: int, versions: Versions) -> bool:
    """Create the schema, or apply the next migration; return whether there are more.

    Args:
        connection: In a transaction.
        schema: Created if it is not there.
        now: Bound in statements that name it.
        versions: Migrations to apply.

    Raises:
        Internal: The schema is newer than this code or too old for it, or holds tables of something
            else.
    """
    connection.take_lock(Lock.MIGRATIONS)
    version = _version(connection, schema)
    if version is None:
        connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
    if version:
        versions.check(version)
        if version == versions.newest:
            return False
    else:
        connection.execute(
            "CREATE TABLE IF NOT EXISTS migrations "
            "(version INTEGER PRIMARY KEY, applied_at BIGINT NOT NULL)"
        )
    statements, version = versions.step(version or 0)
    connection.execute(_UNHURRIED, (f"{MIGRATION_SECONDS_MAX}s",))
    for statement in statements:
        values = {"now": now} if "%(now)s" in statement else None
        connection.execute(statement.encode(), values)
    connection.execute(
        "INSERT INTO migrations (version, applied_at) VALUES (%s, %s)", (version, now)
    )
    return version < versions.newest


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
