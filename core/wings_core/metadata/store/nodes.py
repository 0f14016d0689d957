"""Flight nodes in a database."""

from wings_core.metadata.interfaces import Nodes
from wings_core.metadata.judge import check_text
from wings_core.metadata.nodes import check_node, check_room
from wings_core.metadata.store.database import Connection, Database
from wings_core.metadata.store.locks import Lock
from wings_core.model import Node


class DatabaseNodes(Nodes):
    """See `Nodes`.

    Args:
        database: Where they are.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def renew(self, node: Node, seconds: float) -> list[Node]:
        """Register a node, or renew its lease; see `Nodes.renew`."""
        check_node(node, seconds)

        def work(connection: Connection) -> list[Node]:
            connection.take_lock(Lock.NODES)
            now = self._database.lease_now(connection)
            connection.execute(
                "DELETE FROM nodes WHERE expires_at <= %s::bigint OR (address = %s AND id <> %s)",
                (now, node.address, node.id),
            )
            connection.execute(
                "INSERT INTO nodes (id, address, http, since, expires_at) "
                "VALUES (%s, %s, %s, %s, %s) ON CONFLICT (id) DO UPDATE SET "
                "address = excluded.address, http = excluded.http, since = excluded.since, "
                "expires_at = excluded.expires_at",
                (node.id, node.address, node.http, node.since, now + round(seconds * 1e6)),
            )
            live = _live(connection, now)
            check_room(len(live))
            return live

        return self._database.write(work, keeps_cache=True)

    def leave(self, node_id: str) -> None:
        """Deregister a node; see `Nodes.leave`."""
        check_text("a node's id", node_id)

        def work(connection: Connection) -> None:
            connection.take_lock(Lock.NODES)
            connection.execute("DELETE FROM nodes WHERE id = %s", (node_id,))

        self._database.write(work, keeps_cache=True)

    def live(self) -> list[Node]:
        """Return the registered nodes; see `Nodes.live`."""
        return self._database.read(
            lambda connection: _live(connection, self._database.lease_now(connection))
        )


def _live(connection: Connection, now: int) -> list[Node]:
    rows = connection.execute(
        "SELECT id, address, http, since FROM nodes WHERE expires_at > %s::bigint ORDER BY address",
        (now,),
    ).fetchall()
    return [Node(*row) for row in rows]
