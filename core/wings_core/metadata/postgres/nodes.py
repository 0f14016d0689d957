"""Flight nodes in PostgreSQL."""

from wings_core.metadata.interfaces import Nodes
from wings_core.metadata.judge import check_text
from wings_core.metadata.nodes import check_node, check_room
from wings_core.metadata.postgres import locks
from wings_core.metadata.postgres.connections import Connection
from wings_core.metadata.postgres.database import Database
from wings_core.metadata.postgres.lease_clock import LeaseClock
from wings_core.metadata.postgres.locks import Lock
from wings_core.model import Node


class PostgresNodes(Nodes):
    """See `Nodes`.

    Args:
        database: Where they are.
        clock: Leases count by it.
    """

    def __init__(self, database: Database, clock: LeaseClock) -> None:
        self._database = database
        self._clock = clock

    def renew(self, node: Node, seconds: float) -> list[Node]:
        """Register a node, or renew its lease; see `Nodes.renew`."""
        check_node(node, seconds)

        def work(connection: Connection) -> list[Node]:
            locks.take(connection, Lock.NODES)
            now = self._clock(connection)
            connection.execute(
                "DELETE FROM nodes WHERE expires_at <= %s::bigint OR (address = %s AND id <> %s)",
                (now, node.address, node.id),
            )
            connection.execute(
                "INSERT INTO nodes VALUES (%s, %s, %s) ON CONFLICT (id) DO UPDATE SET "
                "address = excluded.address, expires_at = excluded.expires_at",
                (node.id, node.address, now + round(seconds * 1e6)),
            )
            live = _live(connection, now)
            check_room(len(live))
            return live

        return self._database.write(work)

    def leave(self, node_id: str) -> None:
        """Take a node out; see `Nodes.leave`."""
        check_text("a node's id", node_id)

        def work(connection: Connection) -> None:
            locks.take(connection, Lock.NODES)
            connection.execute("DELETE FROM nodes WHERE id = %s", (node_id,))

        self._database.write(work)

    def live(self) -> list[Node]:
        """Return the nodes that are there; see `Nodes.live`."""
        return self._database.read(lambda connection: _live(connection, self._clock(connection)))


def _live(connection: Connection, now: int) -> list[Node]:
    rows = connection.execute(
        "SELECT id, address FROM nodes WHERE expires_at > %s::bigint ORDER BY address", (now,)
    ).fetchall()
    return [Node(*row) for row in rows]
