"""The tables of the embedded metadata, and how those of the last release become these.

`SCHEMA` is what a new database gets. A change of it gets the next version, and a migration from the
version before. Each runs in a transaction of its own, together with the row that says so, so an
interrupted start finishes at the next one.

Tables whose numbers say where messages are have a checksum of them, and other columns are in an
index that SQLite compares with its table; see `files`.
"""

import sqlite3
from collections.abc import Callable, Sequence

from wings_core.errors import Internal
from wings_core.metadata.sqlite.connections import SqliteConnections
from wings_core.metadata.sqlite.files import CHECKSUMS, add_row_checksum
from wings_core.metadata.store.database import Versions

_WRITERS: Sequence[str] = (
    """
    -- Writers that have begun transactions, and the epoch of their last beginning.
    CREATE TABLE writers (
        writer TEXT PRIMARY KEY,
        epoch INTEGER NOT NULL,
        begun_at INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID
    """,
    "CREATE INDEX writers_by_age ON writers (begun_at, epoch)",
)

_BROKERS_CHECKED: Sequence[str] = (
    "CREATE INDEX nodes_checked ON nodes (expires_at, http, since, kafka)",
)

_TRANSACTIONS: Sequence[str] = (
    """
    -- The last life and the last transaction of each name.
    CREATE TABLE transactions (
        name TEXT PRIMARY KEY,
        producer_id INTEGER NOT NULL,
        epoch INTEGER NOT NULL,
        last_epoch INTEGER NOT NULL, -- Of the life whose holder got this one; else -1.
        state TEXT NOT NULL,
        timeout_ms INTEGER NOT NULL,
        deadline INTEGER, -- Of the open transaction; NULL where none is open.
        changed_at INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID
    """,
    """
    CREATE INDEX transactions_by_age ON transactions (
        changed_at, producer_id, epoch, last_epoch, state, timeout_ms
    )
    """,
    "CREATE INDEX transactions_open ON transactions (deadline)",
    """
    -- Offsets that open transactions will commit.
    CREATE TABLE transaction_offsets (
        name TEXT NOT NULL, -- Of the transaction.
        consumer TEXT NOT NULL,
        topic_id INTEGER NOT NULL,
        partition TEXT NOT NULL,
        member TEXT NOT NULL, -- Of the consumer's group; empty for none.
        member_epoch INTEGER NOT NULL,
        offset INTEGER NOT NULL,
        note TEXT NOT NULL,
        PRIMARY KEY (name, consumer, topic_id, partition)
    ) STRICT, WITHOUT ROWID
    """,
    """
    CREATE INDEX transaction_offsets_pending ON transaction_offsets (
        consumer, member, member_epoch, offset, note
    )
    """,
)

_CONSUMER_GROUPS: Sequence[str] = (
    """
    -- Consumer groups, from the first member that joined on: the highest epoch that was given out.
    CREATE TABLE consumer_groups (
        consumer TEXT PRIMARY KEY, epoch INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID
    """,
    "CREATE INDEX consumer_groups_checked ON consumer_groups (epoch)",
    """
    CREATE TABLE consumer_group_members (
        consumer TEXT NOT NULL,
        member TEXT NOT NULL,
        state TEXT NOT NULL, -- JSON of GroupMember.
        PRIMARY KEY (consumer, member)
    ) STRICT, WITHOUT ROWID
    """,
    "CREATE INDEX consumer_group_members_checked ON consumer_group_members (state)",
)

_SEQUENCES: Sequence[str] = (
    """
    -- The numbers that producers gave to the rows of their last batches in a partition.
    CREATE TABLE partition_sequences (
        topic_id INTEGER NOT NULL,
        partition TEXT NOT NULL,
        producer_id TEXT NOT NULL,
        state TEXT NOT NULL, -- JSON of `SequenceDraft`.
        committed_at INTEGER NOT NULL,
        PRIMARY KEY (topic_id, partition, producer_id)
    ) STRICT, WITHOUT ROWID
    """,
    """
    CREATE INDEX partition_sequences_by_age ON partition_sequences (committed_at, state)
    """,
)

_NOTES: Sequence[str] = (
    "CREATE INDEX consumer_offsets_noted ON consumer_offsets (note) WHERE note <> ''",
)

SCHEMA: Sequence[str] = (
    # What tells this metadata from any other.
    "CREATE TABLE identity (id TEXT PRIMARY KEY) STRICT, WITHOUT ROWID",
    "CREATE INDEX identity_checked ON identity (id)",
    "INSERT INTO identity (id) VALUES (lower(hex(randomblob(16))))",
    # One row; see writer.py.
    "CREATE TABLE fences (id INTEGER PRIMARY KEY, mark INTEGER NOT NULL) STRICT",
    """
    -- A tenant is there while one of its namespaces is.
    CREATE TABLE namespaces (
        id INTEGER PRIMARY KEY,
        tenant TEXT NOT NULL,
        name TEXT NOT NULL,
        created_at INTEGER NOT NULL,
        uuid TEXT, -- Tells a namespace from one of the same name before or after it.
        UNIQUE (tenant, name)
    ) STRICT
    """,
    # Of the few rows with texts, a copy.
    "CREATE INDEX namespaces_checked ON namespaces (uuid, created_at, tenant, name)",
    """
    INSERT INTO namespaces (tenant, name, created_at, uuid)
    VALUES ('default', 'default', :now, lower(hex(randomblob(16))))
    """,
    """
    -- A deleted topic has no namespace any more, which frees its name, and stays until its pages
    -- are purged, and then for a while, so that a creation whose response was lost does not create
    -- it again. An id is never used again.
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
        purged_at INTEGER,
        earlier_schemas BLOB, -- Those of the versions before `schema`, one after another.
        UNIQUE (namespace_id, name),
        CHECK ((namespace_id IS NULL) = (deleted_at IS NOT NULL))
    ) STRICT
    """,
    """
    CREATE INDEX topics_checked ON topics (
        uuid, namespace_id, name, partition_key, config, schema, created_at, deleted_at, purged_at,
        earlier_schemas
    )
    """,
    """
    CREATE INDEX topics_deleted ON topics (deleted_at)
    WHERE deleted_at IS NOT NULL AND purged_at IS NULL
    """,
    "CREATE INDEX topics_purged ON topics (purged_at) WHERE purged_at IS NOT NULL",
    f"""
    -- A partition is there from its first commit on.
    CREATE TABLE partitions (
        id INTEGER PRIMARY KEY,
        topic_id INTEGER NOT NULL,
        value TEXT NOT NULL, -- Canonical JSON.
        log_start_offset INTEGER NOT NULL,
        next_offset INTEGER NOT NULL,
        bytes INTEGER NOT NULL,
        last_timestamp INTEGER NOT NULL,
        -- Counted along, since counting them takes a look at every page.
        pages INTEGER NOT NULL DEFAULT 0,
        merged_pages INTEGER NOT NULL DEFAULT 0,
        merged_rows INTEGER NOT NULL DEFAULT 0,
        merged_bytes INTEGER NOT NULL DEFAULT 0,
        checksum INTEGER NOT NULL GENERATED ALWAYS AS ({CHECKSUMS["partitions"]}) STORED,
        UNIQUE (topic_id, value)
    ) STRICT
    """,
    f"""
    -- Keyed by the inclusive end: the page that holds an offset is the first whose end is not
    -- below it, so finding it and reading on is one walk along the tree, as quick in a long log as
    -- in a short one.
    CREATE TABLE pages (
        partition_id INTEGER NOT NULL,
        end_offset INTEGER NOT NULL,
        start_offset INTEGER NOT NULL,
        timestamp INTEGER NOT NULL, -- Of the last row, where each has its own.
        folio_id INTEGER NOT NULL,
        position INTEGER NOT NULL,
        length INTEGER NOT NULL,
        first_timestamp INTEGER, -- Of the first row of such a page.
        format INTEGER NOT NULL DEFAULT 1, -- The number of `PageFormat`.
        -- Of rows that are a slice of their page: the first of them in it, and their share of its
        -- bytes. NULL: all of it.
        first_row INTEGER,
        slice_bytes INTEGER,
        checksum INTEGER NOT NULL GENERATED ALWAYS AS ({CHECKSUMS["pages"]}) STORED,
        schema_version INTEGER NOT NULL DEFAULT 1,
        PRIMARY KEY (partition_id, end_offset)
    ) STRICT, WITHOUT ROWID
    """,
    """
    -- What is to be drained: `PageFormat.INLINE`.
    CREATE INDEX pages_inline ON pages (partition_id, end_offset) WHERE format = 3
    """,
    """
    -- In place of a checksum, which SQLite cannot be told to extend: most pages are of version 1.
    CREATE INDEX pages_later_versions ON pages (partition_id, end_offset, schema_version)
    WHERE schema_version <> 1
    """,
    """
    -- Folios that pages refer to, with their number, and folios that are to be deleted, which have
    -- no pages then; see metadata/checks.py.
    CREATE TABLE folios (
        id INTEGER PRIMARY KEY,
        name TEXT NOT NULL UNIQUE,
        pages INTEGER NOT NULL,
        retired_at INTEGER CONSTRAINT folios_retired_for_good
            CHECK (retired_at IS NULL OR pages = 0)
    ) STRICT
    """,
    "CREATE INDEX folios_retired ON folios (retired_at) WHERE retired_at IS NOT NULL",
    """
    -- The pages of a small flush, until they are drained: all bytes of their folio.
    CREATE TABLE inline_folios (folio_id INTEGER PRIMARY KEY, data BLOB NOT NULL) STRICT
    """,
    """
    CREATE TRIGGER folios_inline AFTER DELETE ON folios
    BEGIN DELETE FROM inline_folios WHERE folio_id = OLD.id; END
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
    "CREATE INDEX producers_checked ON producers (next_sequence)",
    """
    -- The last results of a producer, as a ring: a result takes the place of the one that many
    -- sequences before it.
    CREATE TABLE producer_results (
        topic_id INTEGER NOT NULL,
        producer_id TEXT NOT NULL,
        slot INTEGER NOT NULL,
        sequence INTEGER NOT NULL, -- The last of a series.
        committed TEXT NOT NULL, -- JSON of `Series`.
        committed_at INTEGER NOT NULL,
        checksum INTEGER NOT NULL DEFAULT 0, -- See `integrity.row_checksum`.
        PRIMARY KEY (topic_id, producer_id, slot)
    ) STRICT, WITHOUT ROWID
    """,
    "CREATE INDEX producer_results_by_age ON producer_results (committed_at)",
    f"""
    CREATE TABLE consumer_offsets (
        consumer TEXT NOT NULL,
        topic_id INTEGER NOT NULL,
        partition TEXT NOT NULL,
        offset INTEGER NOT NULL,
        committed_at INTEGER NOT NULL,
        checksum INTEGER NOT NULL GENERATED ALWAYS AS ({CHECKSUMS["consumer_offsets"]}) STORED,
        note TEXT NOT NULL DEFAULT '',
        PRIMARY KEY (consumer, topic_id, partition)
    ) STRICT, WITHOUT ROWID
    """,
    "CREATE INDEX consumer_offsets_by_topic ON consumer_offsets (topic_id)",
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
    "CREATE INDEX stages_deleted ON stages (id) WHERE name IS NULL",
    """
    CREATE INDEX stages_by_age ON stages (changed_at, rows, bytes, pages) WHERE name IS NOT NULL
    """,
    "CREATE INDEX stages_by_topic ON stages (topic_id, writing)",
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
        first_row INTEGER,
        slice_bytes INTEGER,
        schema_version INTEGER NOT NULL DEFAULT 1,
        PRIMARY KEY (stage_id, number)
    ) STRICT, WITHOUT ROWID
    """,
    """
    CREATE INDEX staged_pages_checked ON staged_pages (
        timestamp, partition, rows, folio_id, position, length, first_row, slice_bytes,
        schema_version
    )
    """,
    """
    -- The last batches of each writer; the last of them has no successor.
    CREATE TABLE publishes (
        writer TEXT NOT NULL,
        batch INTEGER NOT NULL,
        committed TEXT NOT NULL, -- JSON of the published ranges.
        succeeded_at INTEGER,
        published_at INTEGER,
        PRIMARY KEY (writer, batch)
    ) STRICT, WITHOUT ROWID
    """,
    "CREATE INDEX publishes_by_age ON publishes (succeeded_at) WHERE succeeded_at IS NOT NULL",
    "CREATE INDEX publishes_last_by_age ON publishes (published_at) WHERE succeeded_at IS NULL",
    "CREATE INDEX publishes_checked ON publishes (committed, succeeded_at, published_at)",
    *_WRITERS,
    *_TRANSACTIONS,
    """
    -- The last flush of each writer; see metadata/repeats.py.
    CREATE TABLE flushes (
        writer TEXT PRIMARY KEY,
        number INTEGER NOT NULL,
        results TEXT NOT NULL, -- JSON of the results.
        committed_at INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID
    """,
    "CREATE INDEX flushes_by_age ON flushes (committed_at, number, results)",
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
    "CREATE INDEX share_groups_checked ON share_groups (config, created_at)",
    """
    -- How far files and their like were read into the log, and by whom; see metadata/stages.py.
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
    CREATE INDEX shards_by_age ON shards (
        source, state, updated_at, token, position, failures, error, opened_at
    )
    """,
    """
    -- When the shards of a source were last pruned.
    CREATE TABLE shard_prunings (
        source TEXT PRIMARY KEY, pruned_at INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID
    """,
    "CREATE INDEX shard_prunings_checked ON shard_prunings (pruned_at)",
    """
    -- Flight nodes, each until its lease runs out.
    CREATE TABLE nodes (
        id TEXT PRIMARY KEY,
        address TEXT NOT NULL UNIQUE,
        expires_at INTEGER NOT NULL,
        http TEXT NOT NULL DEFAULT '',
        since INTEGER NOT NULL DEFAULT 0,
        kafka TEXT NOT NULL DEFAULT ''
    ) STRICT, WITHOUT ROWID
    """,
    *_BROKERS_CHECKED,
    """
    -- Who works on something that one at a time may work on, and until when.
    CREATE TABLE leases (
        name TEXT PRIMARY KEY,
        holder TEXT NOT NULL,
        token INTEGER NOT NULL, -- Another one whenever it is taken anew.
        expires_at INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID
    """,
    "CREATE INDEX leases_by_age ON leases (expires_at, holder, token)",
    """
    CREATE TABLE tokens (
        id TEXT PRIMARY KEY,
        name TEXT NOT NULL UNIQUE,
        digest BLOB NOT NULL UNIQUE, -- SHA-256 of the secret, which is not kept.
        grants TEXT NOT NULL, -- JSON: a list of RIGHT=PATTERN.
        created_at INTEGER NOT NULL,
        expires_at INTEGER,
        quotas TEXT -- JSON: the quotas by name; NULL: none.
    ) STRICT, WITHOUT ROWID
    """,
    "CREATE INDEX tokens_checked ON tokens (grants, created_at, expires_at, quotas)",
    """
    -- One row, from the first token on: how often one was created or revoked. Servers look here for
    -- changes, and never take a log that had a token for one that is open to all.
    CREATE TABLE token_changes (
        id INTEGER PRIMARY KEY CHECK (id = 0), changes INTEGER NOT NULL
    ) STRICT
    """,
    "CREATE INDEX token_changes_checked ON token_changes (changes)",
    """
    -- Topics that are tables, deleted ones too until their table is dropped.
    CREATE TABLE topic_tables (
        topic_uuid TEXT PRIMARY KEY,
        identifier TEXT NOT NULL,
        committed INTEGER NOT NULL -- The number of the last commit that is known to be made.
    ) STRICT, WITHOUT ROWID
    """,
    "CREATE INDEX topic_tables_checked ON topic_tables (identifier, committed)",
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
    """
    CREATE INDEX table_segments_folio ON table_segments (
        folio, partition, end_offset, rows, added, removed
    )
    """,
    *_CONSUMER_GROUPS,
    *_SEQUENCES,
    *_NOTES,
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

_JOURNAL = (
    """
    -- Commits of one inline page each that the other tables lacked, for a while.
    CREATE TABLE journal (
        id INTEGER PRIMARY KEY,
        partition_id INTEGER NOT NULL,
        start_offset INTEGER NOT NULL,
        end_offset INTEGER NOT NULL,
        timestamp INTEGER NOT NULL,
        schema_version INTEGER NOT NULL,
        committed_at INTEGER NOT NULL,
        producer_id TEXT,
        sequence INTEGER,
        committed TEXT,
        folio TEXT NOT NULL,
        data BLOB NOT NULL
    ) STRICT
    """,
)

_WITHOUT_JOURNAL: Sequence[str] = (
    "INSERT INTO folios (name, pages) SELECT folio, 1 FROM journal ORDER BY id",
    """
    INSERT INTO inline_folios (folio_id, data)
    SELECT folios.id, data FROM journal JOIN folios ON folios.name = folio
    """,
    """
    INSERT INTO pages (
        partition_id, end_offset, start_offset, timestamp, folio_id, position, length, format,
        schema_version
    )
    SELECT partition_id, end_offset, start_offset, timestamp, folios.id, 0, length(data), 3,
        schema_version
    FROM journal JOIN folios ON folios.name = folio
    """,
    """
    UPDATE partitions SET
        next_offset = came.next_offset, bytes = bytes + came.size,
        last_timestamp = came.last_timestamp, pages = pages + came.count
    FROM (
        SELECT partition_id, max(end_offset) + 1 AS next_offset, sum(length(data)) AS size,
            max(timestamp) AS last_timestamp, count(*) AS count
        FROM journal GROUP BY partition_id
    ) AS came
    WHERE id = came.partition_id
    """,
    """
    INSERT INTO producers (topic_id, producer_id, next_sequence)
    SELECT topic_id, producer_id, max(sequence) + 1
    FROM journal JOIN partitions ON partitions.id = partition_id
    WHERE producer_id IS NOT NULL GROUP BY topic_id, producer_id
    ON CONFLICT DO UPDATE SET next_sequence = excluded.next_sequence
    """,
    """
    INSERT OR REPLACE INTO producer_results
        (topic_id, producer_id, slot, sequence, committed, committed_at)
    SELECT topic_id, producer_id, sequence % 64, sequence, committed, committed_at
    FROM journal JOIN partitions ON partitions.id = partition_id
    WHERE producer_id IS NOT NULL ORDER BY journal.id
    """,
    "DROP TABLE journal",
)

_ROWS_CHECKED = (
    # From here on all columns that an answer comes from are: by an index, or by a checksum.
    "ALTER TABLE producer_results ADD COLUMN checksum INTEGER NOT NULL DEFAULT 0",
    f"UPDATE producer_results SET checksum = {CHECKSUMS['producer_results']}",
    "DROP INDEX producer_results_by_age",
    "CREATE INDEX producer_results_by_age ON producer_results (committed_at)",
    "CREATE INDEX identity_checked ON identity (id)",
    "DROP INDEX stages_by_age",
    """
    CREATE INDEX stages_by_age ON stages (changed_at, rows, bytes, pages) WHERE name IS NOT NULL
    """,
    "DROP INDEX staged_pages_checked",
    """
    CREATE INDEX staged_pages_checked ON staged_pages (
        timestamp, partition, rows, folio_id, position, length, first_row, slice_bytes,
        schema_version
    )
    """,
    "DROP INDEX leases_by_age",
    "CREATE INDEX leases_by_age ON leases (expires_at, holder, token)",
    "CREATE INDEX nodes_checked ON nodes (expires_at, http, since)",
    "CREATE INDEX token_changes_checked ON token_changes (changes)",
)

VERSIONS = Versions(
    SCHEMA,
    22,
    (
        *(_CHECKED, (), _JOURNAL, _WITHOUT_JOURNAL, _ROWS_CHECKED, _WRITERS, _CONSUMER_GROUPS),
        (
            *_SEQUENCES,
            "ALTER TABLE consumer_offsets ADD COLUMN note TEXT NOT NULL DEFAULT ''",
            *_NOTES,
        ),
        _TRANSACTIONS,
        (
            "ALTER TABLE nodes ADD COLUMN kafka TEXT NOT NULL DEFAULT ''",
            "DROP INDEX nodes_checked",
            *_BROKERS_CHECKED,
        ),
        (),
    ),
)
"""From version 24 on a row of `producer_results` may be of several batches, from 33 on of
several partitions."""


def migrate(connections: SqliteConnections, clock: Callable[[], int]) -> None:
    """Bring the database to the version of this code, creating its tables at first.

    Raises:
        Internal: It is newer than this code or too old for it, or not a database of Wings.
    """
    writer = connections.acquire_writer()
    try:
        version = -1
        while version != VERSIONS.newest:
            with writer.transaction() as connection:
                add_row_checksum(connection)
                version = _version(connection)
                if version == 0:
                    connection.execute(
                        "CREATE TABLE IF NOT EXISTS migrations "
                        "(version INTEGER PRIMARY KEY, applied_at INTEGER NOT NULL) STRICT"
                    )
                else:
                    VERSIONS.check(version)
                if version != VERSIONS.newest:
                    version = _step(connection, version, clock())
    finally:
        connections.release_writer(writer)


def check_tables(connections: SqliteConnections) -> None:
    """Make sure that a database opened for reading only is of this code's version.

    Raises:
        Internal: It is newer or older, or not a database of Wings.
    """
    VERSIONS.check(connections.read(_version), read_only=True)


def _step(connection: sqlite3.Connection, version: int, now: int) -> int:
    """Bring the tables to the next version, and return it."""
    statements, version = VERSIONS.step(version)
    for statement in statements:
        connection.execute(statement, {"now": now} if ":now" in statement else ())
    connection.execute("INSERT INTO migrations (version, applied_at) VALUES (?, ?)", (version, now))
    return version


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
