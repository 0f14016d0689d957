"""The embedded metadata: one SQLite database."""

from wings_core.metadata.sqlite.store import SqliteMetadata

__all__ = ["SqliteMetadata"]
