"""Migrations 10 to 16; see `migrations.py`."""

from collections.abc import Sequence
from typing import LiteralString

TIERS = (
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

FORMATS = (
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
"""Columns of names that clients choose, kept as UTF-8 in BYTEA until the version of `TEXT`."""


def _as_text(table: LiteralString, column: LiteralString) -> LiteralString:
    return f"""
    ALTER TABLE {table} ALTER COLUMN {column} TYPE TEXT COLLATE "C" USING CASE
    WHEN position('\\x00'::bytea IN {column}) > 0 THEN encode({column}, 'escape')
    ELSE convert_from({column}, 'UTF8') END
    """


TEXT: Sequence[LiteralString] = (
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

MIGRATIONS: Sequence[Sequence[LiteralString]] = (
    TIERS,
    FORMATS,
    TEXT,
    _SLICES,
    _TOKENS,
    _INLINE,
    _QUOTAS,
)
