"""Leases: each names the one holder that may do some work."""

from wings_core.metadata.maintenance import KEEPS_FOLIOS, Lease
from wings_core.metadata.store.database import Connection

LEASES_KEPT_US = 24 * 3600 * 1_000_000
"""A lease that ended is deleted after this, in microseconds."""

_AFTER_KEEPS_FOLIOS = KEEPS_FOLIOS[:-1] + chr(ord(KEEPS_FOLIOS[-1]) + 1)
"""Greater than every name that begins so, and than no other greater one."""


def acquire(connection: Connection, name: str, holder: str, length_us: int, now: int) -> int | None:
    """Acquire or renew a lease; see `Maintenance.acquire_lease`."""
    row = connection.execute(
        "INSERT INTO leases (name, holder, token, expires_at) "
        "VALUES (%(name)s, %(holder)s, 1, %(now)s::bigint + %(length)s::bigint) "
        "ON CONFLICT (name) DO UPDATE SET token = leases.token + CASE WHEN "
        "leases.holder <> excluded.holder OR leases.expires_at <= %(now)s THEN 1 ELSE 0 END, "
        "holder = excluded.holder, expires_at = excluded.expires_at "
        "WHERE leases.holder = excluded.holder OR leases.expires_at <= %(now)s RETURNING token",
        {"name": name, "holder": holder, "length": length_us, "now": now},
    ).fetchone()
    return None if row is None else int(row[0])


def release(connection: Connection, name: str, holder: str, now: int) -> None:
    """Release a lease; see `Maintenance.release_lease`."""
    connection.execute(
        "UPDATE leases SET expires_at = %(now)s "
        "WHERE name = %(name)s AND holder = %(holder)s AND expires_at > %(now)s",
        {"name": name, "holder": holder, "now": now},
    )


def drop_all(connection: Connection, now: int) -> None:
    """End all leases, and those of nodes; see `DatabaseMaintenance.drop_leases`."""
    connection.execute(
        "UPDATE leases SET expires_at = %(now)s WHERE expires_at > %(now)s", {"now": now}
    )
    connection.execute("DELETE FROM nodes")


def keep_folios(connection: Connection, now: int) -> bool:
    """Tell whether folios are kept that nothing refers to, as some lease has not ended."""
    row = connection.execute(
        "SELECT 1 FROM leases WHERE name > %(first)s::text AND name < %(end)s::text "
        "AND expires_at > %(now)s::bigint LIMIT 1",
        {"first": KEEPS_FOLIOS, "end": _AFTER_KEEPS_FOLIOS, "now": now},
    ).fetchone()
    return row is not None


def purge_leases(connection: Connection, rows_max: int, now: int) -> int:
    """Delete up to so many leases that ended long ago; return how many."""
    rows = connection.execute(
        "WITH old AS MATERIALIZED (SELECT name FROM leases "
        "WHERE expires_at <= %s::bigint LIMIT %s::bigint FOR UPDATE SKIP LOCKED) "
        "DELETE FROM leases WHERE name IN (SELECT name FROM old) RETURNING token",
        (now - LEASES_KEPT_US, max(0, rows_max)),
    ).fetchall()
    return len(rows)


def is_held(connection: Connection, lease: Lease, now: int) -> bool:
    """Tell whether a lease has not ended since it was taken; it cannot be taken from here on.

    Its row is locked last of all, so this is called at the end of a transaction.
    """
    row = connection.execute(
        "SELECT 1 FROM leases WHERE name = %s AND holder = %s AND token = %s "
        "AND expires_at > %s::bigint FOR SHARE",
        (lease.name, lease.holder, lease.token, now),
    ).fetchone()
    return row is not None
