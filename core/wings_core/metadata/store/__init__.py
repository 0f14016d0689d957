"""Metadata in a database: the interfaces of metadata, once, over SQLite and PostgreSQL alike.

Each method of a facade (`registry`, `stages`, …) checks its arguments and runs one function in one
transaction of a `Database`. Where both databases understand the same SQL, the function is here and
its SQL is PostgreSQL's; SQLite's connection runs it without casts and row locks, which it has no
use for (see `sqlite.connections`). Where statements, locks and plans differ (commits, look-ups of
pages, moving stages, purging), each database has its own, named by `Dialect`.
"""

from wings_core.metadata.store.metadata import DatabaseMetadata

__all__ = ["DatabaseMetadata"]
