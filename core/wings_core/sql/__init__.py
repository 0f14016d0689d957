"""SQL over topics: a statement is parsed, checked and run by DuckDB on what the log holds."""

from wings_core.sql.query import Query, Sql

__all__ = ["Query", "Sql"]
