"""The folios that pages refer to."""

from wings_core.metadata.store.database import Connection


def live_folios(connection: Connection, after: str | None, items_max: int | None) -> set[str]:
    """Return the folios that pages refer to; see `OffsetRegistry.live_folios`."""
    # A name is never empty.
    rows = connection.execute(
        "SELECT name FROM folios WHERE retired_at IS NULL AND name > %s::text "
        "ORDER BY name LIMIT %s::bigint",
        (after or "", items_max),
    ).fetchall()
    return {name for (name,) in rows}
