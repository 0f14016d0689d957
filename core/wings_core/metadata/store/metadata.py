"""A store of metadata over a database; nodes and tokens, each method one transaction."""

import json
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any, Self

from wings_core.errors import AlreadyExists, ResourceExhausted
from wings_core.metadata.checks import check_node, check_text
from wings_core.metadata.interfaces import (
    NODE_LEASE_SECONDS_MAX,
    NODES_MAX,
    SILENT_SECONDS,
    Nodes,
    Tokens,
)
from wings_core.metadata.store.consumers import DatabaseConsumerGroups
from wings_core.metadata.store.database import (
    Commits,
    Connection,
    Database,
    DatabasePart,
    Lock,
    Looks,
)
from wings_core.metadata.store.groups import DatabaseGroups
from wings_core.metadata.store.maintenance import DatabaseMaintenance
from wings_core.metadata.store.registry import DatabaseRegistry
from wings_core.metadata.store.shards import DatabaseShards
from wings_core.metadata.store.stages import DatabaseStages
from wings_core.metadata.store.tables import DatabaseTables
from wings_core.metadata.store.topics import DatabaseAdmin, TopicCache
from wings_core.metadata.store.transactions import DatabaseTransactions
from wings_core.metadata.waiting import Waiters
from wings_core.model import Node
from wings_core.security.quotas import NO_QUOTAS, Quotas
from wings_core.security.rights import Grant
from wings_core.security.tokens import Token, check_room, check_token, no_token

_NODES = "SELECT id, address, http, since, kafka FROM nodes"


class DatabaseNodes(DatabasePart, Nodes):
    """See `Nodes`."""

    def renew(self, node: Node, seconds: float) -> list[Node]:
        """Register a node, or renew its lease; see `Nodes.renew`."""
        check_node(node, seconds)

        def work(connection: Connection) -> list[Node]:
            connection.take_lock(Lock.NODES)
            now = self._database.lease_now(connection)
            connection.execute(
                "DELETE FROM nodes WHERE expires_at <= %s::bigint OR (address = %s AND id <> %s)",
                (now - round(SILENT_SECONDS * 1e6), node.address, node.id),
            )
            # No lease is longer: where one ends later, the clock was set back.
            latest = now + round(NODE_LEASE_SECONDS_MAX * 1e6)
            connection.execute(
                "UPDATE nodes SET expires_at = %(latest)s::bigint "
                "WHERE expires_at > %(latest)s::bigint",
                {"latest": latest},
            )
            connection.execute(
                "INSERT INTO nodes (id, address, http, since, kafka, expires_at) "
                "VALUES (%s, %s, %s, %s, %s, %s) ON CONFLICT (id) DO UPDATE SET "
                "address = excluded.address, http = excluded.http, since = excluded.since, "
                "kafka = excluded.kafka, expires_at = excluded.expires_at",
                (
                    *(node.id, node.address, node.http, node.since, node.kafka),
                    now + round(seconds * 1e6),
                ),
            )
            live = _live(connection, now)
            if len(live) > NODES_MAX:
                raise ResourceExhausted(f"there are {NODES_MAX} nodes already")
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

    def silent(self) -> list[Node]:
        """Return the nodes that stopped without leaving; see `Nodes.silent`."""

        def work(connection: Connection) -> list[Node]:
            now = self._database.lease_now(connection)
            rows = connection.execute(
                f"{_NODES} WHERE expires_at > %s::bigint AND expires_at <= %s::bigint "
                "ORDER BY address LIMIT %s",
                (now - round(SILENT_SECONDS * 1e6), now, NODES_MAX),
            ).fetchall()
            return [Node(*row) for row in rows]

        return self._database.read(work)


def _live(connection: Connection, now: int) -> list[Node]:
    rows = connection.execute(
        f"{_NODES} WHERE expires_at > %s::bigint ORDER BY address", (now,)
    ).fetchall()
    return [Node(*row) for row in rows]


_SELECT = "SELECT id, name, digest, grants, created_at, expires_at, quotas FROM tokens"


class DatabaseTokens(DatabasePart, Tokens):
    """See `Tokens`."""

    def create(self, token: Token) -> Token:
        """Store a token; see `Tokens.create`."""
        check_token(token)

        def work(connection: Connection) -> Token:
            connection.take_lock(Lock.TOKENS)
            found = connection.execute(
                f"{_SELECT} WHERE name = %s OR id = %s OR digest = %s",
                (token.name, token.id, token.digest),
            ).fetchone()
            if found is not None:
                existing = _token(*found)
                if existing.id != token.id:
                    raise AlreadyExists(f"there is a token {existing.name!r} already")
                return existing
            counted = connection.execute("SELECT count(*) FROM tokens").fetchone()
            assert counted is not None
            check_room(counted[0])
            connection.execute(
                "INSERT INTO tokens (id, name, digest, grants, created_at, expires_at, quotas) "
                "VALUES (%s, %s, %s, %s, %s, %s, %s)",
                (
                    token.id,
                    token.name,
                    token.digest,
                    json.dumps([str(grant) for grant in token.grants]),
                    token.created_at,
                    token.expires_at,
                    _stored(token.quotas),
                ),
            )
            _count_change(connection)
            return token

        return self._database.write(work, keeps_cache=True)

    def revoke(self, name: str, token_id: str | None = None) -> Token:
        """Delete a token; see `Tokens.revoke`."""
        check_text("the token's name", name)

        def work(connection: Connection) -> Token:
            connection.take_lock(Lock.TOKENS)
            found = connection.execute(f"{_SELECT} WHERE name = %s", (name,)).fetchone()
            if found is None or token_id not in {None, found[0]}:
                raise no_token(name)
            connection.execute("DELETE FROM tokens WHERE id = %s", (found[0],))
            _count_change(connection)
            return _token(*found)

        return self._database.write(work, keeps_cache=True)

    def alter(self, name: str, quotas: Quotas, token_id: str | None = None) -> Token:
        """Replace a token's quotas; see `Tokens.alter`."""
        check_text("the token's name", name)
        quotas.check()

        def work(connection: Connection) -> Token:
            connection.take_lock(Lock.TOKENS)
            found = connection.execute(f"{_SELECT} WHERE name = %s", (name,)).fetchone()
            if found is None or token_id not in {None, found[0]}:
                raise no_token(name)
            token = _token(*found)
            if token.quotas != quotas:
                connection.execute(
                    "UPDATE tokens SET quotas = %s WHERE id = %s", (_stored(quotas), token.id)
                )
                _count_change(connection)
            return replace(token, quotas=quotas)

        return self._database.write(work, keeps_cache=True)

    def all(self, *, after: str | None = None, items_max: int | None = None) -> list[Token]:
        """Return the tokens by name; see `Tokens.all`."""
        check_text("after", after or "")

        def work(connection: Connection) -> list[Token]:
            # A name is never empty.
            rows = connection.execute(
                f"{_SELECT} WHERE name > %s::text ORDER BY name LIMIT %s::bigint",
                (after or "", items_max),
            )
            return [_token(*row) for row in rows.fetchall()]

        return self._database.read(work)

    def changes(self) -> int:
        """Return how often tokens changed; see `Tokens.changes`."""

        def work(connection: Connection) -> int:
            row = connection.execute("SELECT changes FROM token_changes").fetchone()
            return 0 if row is None else row[0]

        return self._database.read(work)


def _count_change(connection: Connection) -> None:
    connection.execute(
        "INSERT INTO token_changes (id, changes) VALUES (0, 1) "
        "ON CONFLICT (id) DO UPDATE SET changes = token_changes.changes + 1"
    )


def _stored(quotas: Quotas) -> str | None:
    return json.dumps(quotas.to_json()) if quotas else None


def _token(
    token_id: str,
    name: str,
    digest: Any,
    grants: str,
    created_at: int,
    expires_at: int | None,
    quotas: str | None,
) -> Token:
    parsed = tuple(Grant.parse(text) for text in json.loads(grants))
    bounds = Quotas.of(json.loads(quotas)) if quotas else NO_QUOTAS
    return Token(token_id, name, bytes(digest), parsed, created_at, expires_at, bounds)


class DatabaseMetadata(ABC):
    """A `Metadata` over one database, but for what is its own; may be used in a `with` statement.

    Args:
        database: Runs the transactions.
        looks: Its looks into the log's index.
        commits: Commits its flushes.
        waiters: Woken by what the database notifies of.
        topics: Topics looked up lately; of 0 where another process may change them.
    """

    def __init__(
        self,
        database: Database,
        looks: Looks,
        commits: Commits,
        waiters: Waiters,
        topics: TopicCache,
    ) -> None:
        self.admin = DatabaseAdmin(database, topics)
        self.registry = DatabaseRegistry(database, looks, commits, waiters)
        self.stages = DatabaseStages(database)
        self.transactions = DatabaseTransactions(database)
        self.maintenance = DatabaseMaintenance(database)
        self.groups = DatabaseGroups(database)
        self.consumer_groups = DatabaseConsumerGroups(database)
        self.shards = DatabaseShards(database)
        self.nodes = DatabaseNodes(database)
        self.tokens = DatabaseTokens(database)
        self.tables = DatabaseTables(database)

    @abstractmethod
    def close(self) -> None:
        """Close the store; see `Metadata.close`."""

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()
