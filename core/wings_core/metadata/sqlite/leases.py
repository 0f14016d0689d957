"""Leases in SQLite: who works on something that one at a time may work on."""

import sqlite3

from wings_core.metadata.maintenance import Lease

LEASES_KEPT_US = 24 * 3600 * 1_000_000
"""A lease that ended is forgotten after this, in microseconds."""


def acquire(
    connection: sqlite3.Connection, name: str, holder: str, length_us: int, now: int
) -> int | None:
    """Take or prolong a lease; see `Maintenance.acquire_lease`."""
    row: tuple[int] | None = connection.execute(
        "INSERT INTO leases VALUES (:name, :holder, 1, :now + :length) "
        "ON CONFLICT (name) DO UPDATE SET token = token + "
        "(holder <> excluded.holder OR expires_at <= :now), "
        "holder = excluded.holder, expires_at = excluded.expires_at "
        "WHERE holder = excluded.holder OR expires_at <= :now RETURNING token",
        {"name": name, "holder": holder, "length": length_us, "now": now},
    ).fetchone()
    return None if row is None else row[0]


def release(connection: sqlite3.Connection, name: str, holder: str, now: int) -> None:
    """Give a lease back; see `Maintenance.release_lease`."""
    connection.execute(
        "UPDATE leases SET expires_at = ?1 WHERE name = ?2 AND holder = ?3 AND expires_at > ?1",
        (now, name, holder),
    )


def purge_leases(connection: sqlite3.Connection, rows_max: int, now: int) -> int:
    """Delete up to so many leases that ended long ago; return how many."""
    return connection.execute(
        "DELETE FROM leases WHERE name IN (SELECT name FROM leases WHERE expires_at <= ? LIMIT ?)",
        (now - LEASES_KEPT_US, max(0, rows_max)),
    ).rowcount


def is_held(connection: sqlite3.Connection, lease: Lease, now: int) -> bool:
    """Tell whether a lease has not ended since it was taken."""
    return (
        connection.execute(
            "SELECT 1 FROM leases WHERE name = ? AND holder = ? AND token = ? AND expires_at > ?",
            (lease.name, lease.holder, lease.token, now),
        ).fetchone()
        is not None
    )
