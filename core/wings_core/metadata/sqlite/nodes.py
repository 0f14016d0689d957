"""Flight nodes in SQLite."""

import sqlite3
from collections.abc import Callable

from wings_core.metadata.interfaces import Nodes
from wings_core.metadata.judge import check_text
from wings_core.metadata.nodes import check_node, check_room
from wings_core.metadata.sqlite.connections import Connections
from wings_core.model import Node


class SqliteNodes(Nodes):
    """See `Nodes`.

    Args:
        connections: To the database.
        clock: Microseconds since the epoch.
    """

    def __init__(self, connections: Connections, clock: Callable[[], int]) -> None:
        self._connections = connections
        self._clock = clock

    def renew(self, node: Node, seconds: float) -> list[Node]:
        """Register a node, or renew its lease; see `Nodes.renew`."""
        check_node(node, seconds)
        now = self._clock()
        # What commits remember is of other tables.
        with (
            self._connections.exclusive(committing=True) as writer,
            writer.transaction() as connection,
        ):
            connection.execute(
                "DELETE FROM nodes WHERE expires_at <= ? OR (address = ? AND id <> ?)",
                (now, node.address, node.id),
            )
            connection.execute(
                "INSERT INTO nodes VALUES (?, ?, ?) ON CONFLICT (id) DO UPDATE SET "
                "address = excluded.address, expires_at = excluded.expires_at",
                (node.id, node.address, now + round(seconds * 1e6)),
            )
            live = _live(connection, now)
            check_room(len(live))
        return live

    def leave(self, node_id: str) -> None:
        """Take a node out; see `Nodes.leave`."""
        check_text("a node's id", node_id)
        with (
            self._connections.exclusive(committing=True) as writer,
            writer.transaction() as connection,
        ):
            connection.execute("DELETE FROM nodes WHERE id = ?", (node_id,))

    def live(self) -> list[Node]:
        """Return the nodes that are there; see `Nodes.live`."""
        with self._connections.reading() as connection:
            return _live(connection, self._clock())


def _live(connection: sqlite3.Connection, now: int) -> list[Node]:
    rows = connection.execute(
        "SELECT id, address FROM nodes WHERE expires_at > ? ORDER BY address", (now,)
    )
    return [Node(*row) for row in rows]
