"""The folios that pages and tables refer to."""

from wings_core.metadata.store.database import Connection


def live_folios(connection: Connection, after: str | None, items_max: int | None) -> set[str]:
    """Return the folios that pages and tables refer to; see `OffsetRegistry.live_folios`."""
    # A name is never empty.
    rows = connection.execute(
        "SELECT name FROM folios WHERE retired_at IS NULL AND name > %(after)s::text "
        "UNION SELECT folio FROM table_segments WHERE folio > %(after)s::text "
        "ORDER BY name LIMIT %(most)s::bigint",
        {"after": after or "", "most": items_max},
    ).fetchall()
    return {name for (name,) in rows}
