"""Topics as Iceberg tables: maintenance commits their merged segments as a table's files."""

from wings_core.tables.catalog import Catalog, open_catalog
from wings_core.tables.tables import Tables, TableStatus

__all__ = ["Catalog", "TableStatus", "Tables", "open_catalog"]
