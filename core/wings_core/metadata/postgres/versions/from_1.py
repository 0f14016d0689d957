"""Migrations 1 to 9; see `migrations.py`."""

from collections.abc import Sequence
from typing import LiteralString

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
)
