"""Migrations 1 to 9; see `migrations.py`."""

from collections.abc import Sequence

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
)
