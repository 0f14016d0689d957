"""SQL over topics: statements are parsed, checked, and run by DuckDB on the rows of the log."""

from wings_core.sql.query import Query, Sql

__all__ = ["Query", "Sql"]
