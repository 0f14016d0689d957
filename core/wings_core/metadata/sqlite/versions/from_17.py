"""Migrations from 17 on; see `migrations.py`."""

from collections.abc import Sequence

from wings_core.metadata.sqlite.integrity import CHECKSUMS

ROW_CHECKSUMS = (
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

_SERIES: Sequence[str] = ()
"""From here on a row of `producer_results` may be of several batches, as `metadata.results` says:
earlier versions, which would answer one of them with the range of all, do not open it."""

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

_WITHOUT_JOURNAL = (
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
    # From here on all columns that an answer comes from are: as of _CHECKED, or by a checksum.
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

MIGRATIONS: Sequence[Sequence[str]] = (
    ROW_CHECKSUMS,
    _QUOTAS,
    _NODE_URLS,
    _SCHEMAS,
    _TABLES,
    _WRITERS,
    _CHECKED,
    _SERIES,
    _JOURNAL,
    _WITHOUT_JOURNAL,
    _ROWS_CHECKED,
)
