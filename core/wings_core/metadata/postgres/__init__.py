"""Metadata in PostgreSQL, for nodes on several machines; needs the extra `postgres`."""

from wings_core.metadata.postgres.connections import PostgresBounds
from wings_core.metadata.postgres.store import PostgresMetadata

__all__ = ["PostgresBounds", "PostgresMetadata"]
