"""The tables of the embedded metadata, as numbered migrations.

A migration that was released is never changed; another is added. Each runs in a transaction of its
own, together with the row that says so, so an interrupted start finishes at the next one.
"""

import sqlite3
from collections.abc import Callable, Sequence

from wings_core.errors import Internal
from wings_core.metadata.sqlite.connections import Connections
from wings_core.metadata.sqlite.integrity import CHECKSUMS

_INITIAL = (
    """
    -- A tenant is there while one of its namespaces is.
    CREATE TABLE namespaces (
        id INTEGER PRIMARY KEY,
        tenant TEXT NOT NULL,
        name TEXT NOT NULL,
        created_at INTEGER NOT NULL,
        UNIQUE (tenant, name)
    ) STRICT
    """,
    """
    -- A deleted topic has no namespace any more, which frees its name, and stays until its pages
    -- are purged. An id is never used again.
    CREATE TABLE topics (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        uuid TEXT NOT NULL UNIQUE,
        namespace_id INTEGER,
        name TEXT NOT NULL,
        schema BLOB NOT NULL, -- An Arrow IPC schema message.
        partition_key TEXT,
        config TEXT NOT NULL, -- JSON of TopicConfig.
        created_at INTEGER NOT NULL,
        deleted_at INTEGER,
        UNIQUE (namespace_id, name),
        CHECK ((namespace_id IS NULL) = (deleted_at IS NOT NULL))
    ) STRICT
    """,
    """
    CREATE INDEX topics_deleted ON topics (deleted_at) WHERE deleted_at IS NOT NULL
    """,
    """
    CREATE TABLE partitions (
        id INTEGER PRIMARY KEY,
        topic_id INTEGER NOT NULL,
        value TEXT NOT NULL, -- Canonical JSON.
        log_start_offset INTEGER NOT NULL,
        next_offset INTEGER NOT NULL,
        bytes INTEGER NOT NULL,
        last_timestamp INTEGER NOT NULL,
        UNIQUE (topic_id, value)
    ) STRICT
    """,
    """
    -- Keyed by the inclusive end: the page that holds an offset is the first whose end is not
    -- below it, so finding it and reading on is one walk along the tree, as quick in a long log
    -- as in a short one.
    CREATE TABLE pages (
        partition_id INTEGER NOT NULL,
        end_offset INTEGER NOT NULL,
        start_offset INTEGER NOT NULL,
        timestamp INTEGER NOT NULL,
        folio_id INTEGER NOT NULL,
        position INTEGER NOT NULL,
        length INTEGER NOT NULL,
        PRIMARY KEY (partition_id, end_offset)
    ) STRICT, WITHOUT ROWID
    """,
    """
    -- Only folios that pages refer to, with their number.
    CREATE TABLE folios (
        id INTEGER PRIMARY KEY,
        name TEXT NOT NULL UNIQUE,
        pages INTEGER NOT NULL
    ) STRICT
    """,
    """
    -- Kept as long as the topic.
    CREATE TABLE producers (
        topic_id INTEGER NOT NULL,
        producer_id TEXT NOT NULL,
        next_sequence INTEGER NOT NULL,
        PRIMARY KEY (topic_id, producer_id)
    ) STRICT, WITHOUT ROWID
    """,
    """
    -- The last results of a producer, as a ring: a result takes the place of the one that many
    -- sequences before it.
    CREATE TABLE producer_results (
        topic_id INTEGER NOT NULL,
        producer_id TEXT NOT NULL,
        slot INTEGER NOT NULL,
        sequence INTEGER NOT NULL,
        committed TEXT NOT NULL, -- JSON of the committed ranges.
        committed_at INTEGER NOT NULL,
        PRIMARY KEY (topic_id, producer_id, slot)
    ) STRICT, WITHOUT ROWID
    """,
    """
    CREATE INDEX producer_results_by_age ON producer_results (committed_at)
    """,
    """
    CREATE TABLE consumer_offsets (
        consumer TEXT NOT NULL,
        topic_id INTEGER NOT NULL,
        partition TEXT NOT NULL,
        offset INTEGER NOT NULL,
        committed_at INTEGER NOT NULL,
        PRIMARY KEY (consumer, topic_id, partition)
    ) STRICT, WITHOUT ROWID
    """,
    """
    CREATE INDEX consumer_offsets_by_topic ON consumer_offsets (topic_id)
    """,
    """
    -- Written after a commit that failed; see connections.py.
    CREATE TABLE fences (id INTEGER PRIMARY KEY, mark INTEGER NOT NULL) STRICT
    """,
    """
    INSERT INTO namespaces (tenant, name, created_at) VALUES ('default', 'default', :now)
    """,
)

_STAGES = (
    """
    -- A stage that was aborted or swept has no name any more, which frees it, and stays until its
    -- pages are purged. One of a deleted topic keeps its row, so that a publish can say why it
    -- fails; topics' ids are never used again.
    CREATE TABLE stages (
        id INTEGER PRIMARY KEY,
        name TEXT UNIQUE,
        topic_id INTEGER NOT NULL,
        writing TEXT NOT NULL, -- Of the stream that writes it.
        rows INTEGER NOT NULL,
        bytes INTEGER NOT NULL,
        pages INTEGER NOT NULL,
        changed_at INTEGER NOT NULL
    ) STRICT
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
        stage_id INTEGER NOT NULL,
        number INTEGER NOT NULL,
        partition TEXT NOT NULL, -- Canonical JSON.
        rows INTEGER NOT NULL,
        timestamp INTEGER, -- The producer's; else that of the publish.
        folio_id INTEGER NOT NULL,
        position INTEGER NOT NULL,
        length INTEGER NOT NULL,
        PRIMARY KEY (stage_id, number)
    ) STRICT, WITHOUT ROWID
    """,
    """
    -- The last batch of each writer has no successor, and is kept for good.
    CREATE TABLE publishes (
        writer TEXT NOT NULL,
        batch INTEGER NOT NULL,
        committed TEXT NOT NULL, -- JSON of the published ranges.
        succeeded_at INTEGER,
        PRIMARY KEY (writer, batch)
    ) STRICT, WITHOUT ROWID
    """,
    """
    CREATE INDEX publishes_by_age ON publishes (succeeded_at) WHERE succeeded_at IS NOT NULL
    """,
)

_FLUSHES = (
    """
    -- The last flush of each writer; see metadata/flushes.py.
    CREATE TABLE flushes (
        writer TEXT PRIMARY KEY,
        number INTEGER NOT NULL,
        results TEXT NOT NULL, -- JSON of the results.
        committed_at INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID
    """,
    """
    CREATE INDEX flushes_by_age ON flushes (committed_at)
    """,
)

_IDENTITY = (
    """
    -- Tells this metadata from any other, for those who keep its pages.
    CREATE TABLE identity (id TEXT PRIMARY KEY) STRICT, WITHOUT ROWID
    """,
    """
    INSERT INTO identity VALUES (lower(hex(randomblob(16))))
    """,
)

_RETIRED = (
    """
    -- Of a folio that is to be deleted, which has no pages then; see metadata/folios.py.
    ALTER TABLE folios ADD COLUMN retired_at INTEGER
    CONSTRAINT folios_retired_for_good CHECK (retired_at IS NULL OR pages = 0)
    """,
    """
    CREATE INDEX folios_retired ON folios (retired_at) WHERE retired_at IS NOT NULL
    """,
)

_GROUPS = (
    """
    CREATE TABLE share_groups (
        id INTEGER PRIMARY KEY,
        uuid TEXT NOT NULL UNIQUE,
        topic_id INTEGER NOT NULL,
        name TEXT NOT NULL,
        config TEXT NOT NULL, -- JSON of ShareConfig.
        created_at INTEGER NOT NULL,
        UNIQUE (topic_id, name)
    ) STRICT
    """,
)

_SHARDS = (
    """
    -- How far files and their like were read into the log, and by whom; see metadata/shards.py.
    CREATE TABLE shards (
        source TEXT NOT NULL,
        shard TEXT NOT NULL,
        token TEXT NOT NULL,
        position INTEGER NOT NULL,
        state TEXT NOT NULL, -- open, finished or dead.
        failures INTEGER NOT NULL,
        error TEXT, -- Of the last failure.
        opened_at INTEGER NOT NULL,
        updated_at INTEGER NOT NULL,
        PRIMARY KEY (source, shard)
    ) STRICT, WITHOUT ROWID
    """,
    """
    CREATE INDEX shards_by_age ON shards (source, state, updated_at)
    """,
    """
    -- When the shards of a source were last pruned.
    CREATE TABLE shard_prunings (
        source TEXT PRIMARY KEY,
        pruned_at INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID
    """,
)

_NODES = (
    """
    -- Flight nodes, each until its lease runs out.
    CREATE TABLE nodes (
        id TEXT PRIMARY KEY,
        address TEXT NOT NULL UNIQUE,
        expires_at INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID
    """,
)

_LEASES = (
    """
    -- Who works on something that one at a time may work on, and until when.
    CREATE TABLE leases (
        name TEXT PRIMARY KEY,
        holder TEXT NOT NULL,
        token INTEGER NOT NULL, -- Another one whenever it is taken anew.
        expires_at INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID
    """,
    """
    CREATE INDEX leases_by_age ON leases (expires_at)
    """,
)

_MERGED_PAGES = (
    """
    -- Of the first row of a page that holds a timestamp for each of its rows; `timestamp` is that
    -- of the last.
    ALTER TABLE pages ADD COLUMN first_timestamp INTEGER
    """,
)

_RECOGNISED = (
    """
    -- Tells a namespace from one of the same name before or after it.
    ALTER TABLE namespaces ADD COLUMN uuid TEXT
    """,
    """
    UPDATE namespaces SET uuid = lower(hex(randomblob(16)))
    """,
    """
    -- A topic without anything that belonged to it is remembered for a while, so that a
    -- creation whose response was lost does not create it again when it is retried.
    ALTER TABLE topics ADD COLUMN purged_at INTEGER
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
    ALTER TABLE partitions ADD COLUMN pages INTEGER NOT NULL DEFAULT 0
    """,
    "ALTER TABLE partitions ADD COLUMN merged_pages INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE partitions ADD COLUMN merged_rows INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE partitions ADD COLUMN merged_bytes INTEGER NOT NULL DEFAULT 0",
    """
    UPDATE partitions SET (pages, merged_pages, merged_rows, merged_bytes) = (
        SELECT count(*), count(first_timestamp),
            coalesce(
                sum(end_offset - start_offset + 1) FILTER (WHERE first_timestamp IS NOT NULL), 0
            ),
            coalesce(sum(length) FILTER (WHERE first_timestamp IS NOT NULL), 0)
        FROM pages WHERE partition_id = partitions.id
    )
    """,
)

_FORMATS = (
    """
    -- How the page holds its rows, by the number of `PageFormat`: as pushed, where nothing is said.
    ALTER TABLE pages ADD COLUMN format INTEGER NOT NULL DEFAULT 1
    """,
    """
    -- Until now the merged pages were those with a first timestamp.
    UPDATE pages SET format = 2 WHERE first_timestamp IS NOT NULL
    """,
)

_SLICES = (
    """
    -- Of rows that are a slice of their page: the first of them in it, and their share of its
    -- bytes. NULL: all of it.
    ALTER TABLE pages ADD COLUMN first_row INTEGER
    """,
    "ALTER TABLE pages ADD COLUMN slice_bytes INTEGER",
    "ALTER TABLE staged_pages ADD COLUMN first_row INTEGER",
    "ALTER TABLE staged_pages ADD COLUMN slice_bytes INTEGER",
)

_TOKENS = (
    """
    CREATE TABLE tokens (
        id TEXT PRIMARY KEY,
        name TEXT NOT NULL UNIQUE,
        digest BLOB NOT NULL UNIQUE, -- SHA-256 of the secret, which is not kept.
        grants TEXT NOT NULL, -- JSON: a list of RIGHT=PATTERN.
        created_at INTEGER NOT NULL,
        expires_at INTEGER
    ) STRICT, WITHOUT ROWID
    """,
    """
    -- One row, from the first token on: how often one was created or revoked. Servers look here for
    -- changes, and never take a log that had a token for one that is open to all.
    CREATE TABLE token_changes (
        id INTEGER PRIMARY KEY CHECK (id = 0),
        changes INTEGER NOT NULL
    ) STRICT
    """,
)

_INLINE = (
    """
    -- The pages of a small flush, until they are drained: all bytes of their folio, which goes with
    -- them.
    CREATE TABLE inline_folios (
        folio_id INTEGER PRIMARY KEY,
        data BLOB NOT NULL
    ) STRICT
    """,
    """
    CREATE TRIGGER folios_inline AFTER DELETE ON folios BEGIN
        DELETE FROM inline_folios WHERE folio_id = OLD.id;
    END
    """,
    """
    -- What is to be drained: `PageFormat.INLINE`.
    CREATE INDEX pages_inline ON pages (partition_id, end_offset) WHERE format = 3
    """,
)

_CHECKSUMS = (
    # SQLite cannot add a column that it fills itself to a table, so the tables are made anew.
    f"""
    CREATE TABLE pages_checked (
        partition_id INTEGER NOT NULL,
        end_offset INTEGER NOT NULL,
        start_offset INTEGER NOT NULL,
        timestamp INTEGER NOT NULL,
        folio_id INTEGER NOT NULL,
        position INTEGER NOT NULL,
        length INTEGER NOT NULL,
        first_timestamp INTEGER, -- See _MERGED_PAGES.
        format INTEGER NOT NULL DEFAULT 1, -- See _FORMATS.
        first_row INTEGER, -- See _SLICES.
        slice_bytes INTEGER,
        checksum INTEGER NOT NULL GENERATED ALWAYS AS ({CHECKSUMS["pages"]}) STORED,
        PRIMARY KEY (partition_id, end_offset)
    ) STRICT, WITHOUT ROWID
    """,
    """
    INSERT INTO pages_checked (
        partition_id, end_offset, start_offset, timestamp, folio_id, position, length,
        first_timestamp, format, first_row, slice_bytes
    )
    SELECT partition_id, end_offset, start_offset, timestamp, folio_id, position, length,
        first_timestamp, format, first_row, slice_bytes
    FROM pages
    """,
    "DROP TABLE pages",
    "ALTER TABLE pages_checked RENAME TO pages",
    "CREATE INDEX pages_inline ON pages (partition_id, end_offset) WHERE format = 3",
    f"""
    -- SQLite compares the index of its values with `value`.
    CREATE TABLE partitions_checked (
        id INTEGER PRIMARY KEY,
        topic_id INTEGER NOT NULL,
        value TEXT NOT NULL, -- Canonical JSON.
        log_start_offset INTEGER NOT NULL,
        next_offset INTEGER NOT NULL,
        bytes INTEGER NOT NULL,
        last_timestamp INTEGER NOT NULL,
        pages INTEGER NOT NULL DEFAULT 0, -- See _TIERS.
        merged_pages INTEGER NOT NULL DEFAULT 0,
        merged_rows INTEGER NOT NULL DEFAULT 0,
        merged_bytes INTEGER NOT NULL DEFAULT 0,
        checksum INTEGER NOT NULL GENERATED ALWAYS AS ({CHECKSUMS["partitions"]}) STORED,
        UNIQUE (topic_id, value)
    ) STRICT
    """,
    """
    INSERT INTO partitions_checked (
        id, topic_id, value, log_start_offset, next_offset, bytes, last_timestamp, pages,
        merged_pages, merged_rows, merged_bytes
    )
    SELECT id, topic_id, value, log_start_offset, next_offset, bytes, last_timestamp, pages,
        merged_pages, merged_rows, merged_bytes
    FROM partitions
    """,
    "DROP TABLE partitions",
    "ALTER TABLE partitions_checked RENAME TO partitions",
    f"""
    -- SQLite compares the index by topic with the key.
    CREATE TABLE consumer_offsets_checked (
        consumer TEXT NOT NULL,
        topic_id INTEGER NOT NULL,
        partition TEXT NOT NULL,
        offset INTEGER NOT NULL,
        committed_at INTEGER NOT NULL,
        checksum INTEGER NOT NULL GENERATED ALWAYS AS ({CHECKSUMS["consumer_offsets"]}) STORED,
        PRIMARY KEY (consumer, topic_id, partition)
    ) STRICT, WITHOUT ROWID
    """,
    """
    INSERT INTO consumer_offsets_checked (consumer, topic_id, partition, offset, committed_at)
    SELECT consumer, topic_id, partition, offset, committed_at FROM consumer_offsets
    """,
    "DROP TABLE consumer_offsets",
    "ALTER TABLE consumer_offsets_checked RENAME TO consumer_offsets",
    "CREATE INDEX consumer_offsets_by_topic ON consumer_offsets (topic_id)",
    """
    -- Of the few rows with texts, a copy: SQLite compares an index with its table.
    CREATE INDEX namespaces_checked ON namespaces (uuid, created_at, tenant, name)
    """,
    """
    CREATE INDEX topics_checked ON topics (
        uuid, namespace_id, name, partition_key, config, schema, created_at, deleted_at, purged_at
    )
    """,
)

_QUOTAS = (
    """
    -- JSON: the quotas of a token by name; NULL: none.
    ALTER TABLE tokens ADD COLUMN quotas TEXT
    """,
)

_NODE_URLS: Sequence[str] = (
    "ALTER TABLE nodes ADD COLUMN http TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE nodes ADD COLUMN since INTEGER NOT NULL DEFAULT 0",
)

_SCHEMAS = (
    """
    -- The schemas of the versions before that of `schema`, from version 1 on, as Arrow IPC messages
    -- one after another; NULL: none.
    ALTER TABLE topics ADD COLUMN earlier_schemas BLOB
    """,
    "DROP INDEX topics_checked",
    """
    CREATE INDEX topics_checked ON topics (
        uuid, namespace_id, name, partition_key, config, schema, created_at, deleted_at, purged_at,
        earlier_schemas
    )
    """,
    """
    -- The version of its topic's schema that a page is written in.
    ALTER TABLE pages ADD COLUMN schema_version INTEGER NOT NULL DEFAULT 1
    """,
    """
    -- In place of a checksum, which SQLite cannot be told to extend: it compares an index with its
    -- table, and most pages are of version 1.
    CREATE INDEX pages_later_versions ON pages (partition_id, end_offset, schema_version)
    WHERE schema_version <> 1
    """,
    "ALTER TABLE staged_pages ADD COLUMN schema_version INTEGER NOT NULL DEFAULT 1",
)

_TABLES: Sequence[str] = (
    """
    -- Topics that are tables, deleted ones too until their table is dropped.
    CREATE TABLE topic_tables (
        topic_uuid TEXT PRIMARY KEY,
        identifier TEXT NOT NULL,
        committed INTEGER NOT NULL -- The number of the last commit that is known to be made.
    ) STRICT, WITHOUT ROWID
    """,
    """
    -- The files of tables: which commit adds each, and which removes it.
    CREATE TABLE table_segments (
        topic_uuid TEXT NOT NULL,
        folio TEXT NOT NULL,
        partition TEXT NOT NULL,
        end_offset INTEGER NOT NULL,
        rows INTEGER NOT NULL,
        added INTEGER NOT NULL,
        removed INTEGER,
        PRIMARY KEY (topic_uuid, folio)
    ) STRICT, WITHOUT ROWID
    """,
    "CREATE INDEX table_segments_folio ON table_segments (folio)",
)

_WRITERS = (
    # From here on the last batch of a writer is kept for a time only; see metadata/stages.py.
    "ALTER TABLE publishes ADD COLUMN published_at INTEGER",
    "UPDATE publishes SET published_at = :now",
    """
    CREATE INDEX publishes_last_by_age ON publishes (published_at) WHERE succeeded_at IS NULL
    """,
)

_CHECKED: Sequence[str] = (
    # SQLite compares an index with its table: the columns that nothing else tells are in one each,
    # where there is one already that a change of the row writes anyway.
    "CREATE INDEX producers_checked ON producers (next_sequence)",
    "CREATE INDEX publishes_checked ON publishes (committed, succeeded_at, published_at)",
    "CREATE INDEX staged_pages_checked ON staged_pages (timestamp, partition)",
    "CREATE INDEX share_groups_checked ON share_groups (config, created_at)",
    "CREATE INDEX tokens_checked ON tokens (grants, created_at, expires_at, quotas)",
    "CREATE INDEX shard_prunings_checked ON shard_prunings (pruned_at)",
    "CREATE INDEX topic_tables_checked ON topic_tables (identifier, committed)",
    "DROP INDEX producer_results_by_age",
    """
    CREATE INDEX producer_results_by_age ON producer_results (committed_at, sequence, committed)
    """,
    "DROP INDEX flushes_by_age",
    "CREATE INDEX flushes_by_age ON flushes (committed_at, number, results)",
    "DROP INDEX stages_by_topic",
    "CREATE INDEX stages_by_topic ON stages (topic_id, writing)",
    "DROP INDEX shards_by_age",
    """
    CREATE INDEX shards_by_age ON shards (
        source, state, updated_at, token, position, failures, error, opened_at
    )
    """,
    "DROP INDEX table_segments_folio",
    """
    CREATE INDEX table_segments_folio ON table_segments (
        folio, partition, end_offset, rows, added, removed
    )
    """,
)

MIGRATIONS: Sequence[Sequence[str]] = (
    _INITIAL,
    _STAGES,
    _FLUSHES,
    _IDENTITY,
    _RETIRED,
    _GROUPS,
    _SHARDS,
    _NODES,
    _LEASES,
    _MERGED_PAGES,
    _RECOGNISED,
    _TIERS,
    _FORMATS,
    _SLICES,
    _TOKENS,
    _INLINE,
    _CHECKSUMS,
    _QUOTAS,
    _NODE_URLS,
    _SCHEMAS,
    _TABLES,
    _WRITERS,
    _CHECKED,
)
"""Each brings the database from the version before it (its index) to the next; `:now` is bound."""


def migrate(connections: Connections, clock: Callable[[], int]) -> None:
    """Bring the database to the version of this code, creating its tables at first.

    Raises:
        Internal: It is newer than this code, or not a database of Wings.
    """
    writer = connections.acquire_writer()
    try:
        with writer.transaction() as connection:
            version = _version(connection)
            if version == 0:
                connection.execute(
                    "CREATE TABLE IF NOT EXISTS migrations "
                    "(version INTEGER PRIMARY KEY, applied_at INTEGER NOT NULL) STRICT"
                )
        _refuse_newer(version)
        for number, statements in enumerate(MIGRATIONS[version:], version + 1):
            with writer.transaction() as connection:
                now = clock()
                for statement in statements:
                    connection.execute(statement, {"now": now} if ":now" in statement else ())
                connection.execute(
                    "INSERT INTO migrations (version, applied_at) VALUES (?, ?)", (number, now)
                )
    finally:
        connections.release_writer(writer)


def check_version(connections: Connections) -> None:
    """Make sure that a database opened for reading only is of this code's version.

    Raises:
        Internal: It is newer or older, or not a database of Wings.
    """
    version = connections.read(_version)
    _refuse_newer(version)
    if version < len(MIGRATIONS):
        raise Internal(
            f"the metadata is of version {version}, this code reads {len(MIGRATIONS)}: "
            "start the server once, which brings it up to date"
        )


def _version(connection: sqlite3.Connection) -> int:
    tables = {
        name
        for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
    }
    if tables and "migrations" not in tables:
        raise Internal("the file is an SQLite database, but not metadata of Wings")
    if not tables:
        return 0
    ((version,),) = connection.execute("SELECT coalesce(max(version), 0) FROM migrations")
    return version


def _refuse_newer(version: int) -> None:
    if version > len(MIGRATIONS):
        raise Internal(
            f"the metadata is of version {version}, newer than {len(MIGRATIONS)}, which this code "
            "knows: it was written by a later Wings and needs one to be read"
        )
