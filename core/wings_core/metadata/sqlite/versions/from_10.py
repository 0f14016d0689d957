"""Migrations 10 to 16; see `migrations.py`."""

from collections.abc import Sequence

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

TIERS = (
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

FORMATS = (
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

MIGRATIONS: Sequence[Sequence[str]] = (
    _MERGED_PAGES,
    _RECOGNISED,
    TIERS,
    FORMATS,
    _SLICES,
    _TOKENS,
    _INLINE,
)
