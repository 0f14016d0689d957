"""Metadata that a service keeps: its interfaces over one connection.

Nodes, tokens and copies, of which each method is a call, stand here too.
"""

import os
from collections.abc import Callable, Generator, Iterable
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Self

from wings_core.errors import WingsError
from wings_core.metadata.checks import check_node
from wings_core.metadata.interfaces import Nodes, Tokens
from wings_core.metadata.remote.admin import RemoteAdmin, RemoteGroups, RemoteTopicCache
from wings_core.metadata.remote.channel import ServiceChannel
from wings_core.metadata.remote.maintenance import RemoteMaintenance, RemoteTables
from wings_core.metadata.remote.paging import BY_TEXT, listed
from wings_core.metadata.remote.registry import RemoteRegistry
from wings_core.metadata.remote.stages import RemoteShards, RemoteStages
from wings_core.metadata.remote.watches import Retries
from wings_core.model import Node
from wings_core.protocol import messages
from wings_core.protocol.v1 import admin_pb2 as admin_pb
from wings_core.protocol.v1 import copies_pb2 as copies_pb
from wings_core.protocol.v1 import tokens_pb2 as tokens_pb
from wings_core.protocol.v1.stubs import CopyServiceStub, NodeServiceStub, TokenServiceStub
from wings_core.security.peers import PeerAccess
from wings_core.security.quotas import Quotas
from wings_core.security.tokens import Token, check_token, no_token
from wings_core.times import now_us

RENEW_SECONDS_MAX = 5.0
"""How long the renewal of a lease may take: one that comes late is of no use."""


class RemoteNodes(Nodes):
    """See `Nodes`.

    Args:
        channel: To the service.
    """

    def __init__(self, channel: ServiceChannel) -> None:
        self._channel = channel
        self._stub = NodeServiceStub(channel.channel)
        self.refusal: str | None = None
        """Why the service wants no pushes, as of the last renewal; None: it takes them."""

    def renew(self, node: Node, seconds: float) -> list[Node]:
        """Register a node, or renew its lease; see `Nodes.renew`."""
        check_node(node, seconds)
        request = admin_pb.RenewNodeRequest(node=messages.NODE.fields(node), seconds=seconds)
        answer = self._channel.call(self._stub.RenewNode, request, RENEW_SECONDS_MAX)
        self.refusal = f"at the metadata service: {answer.refusal}" if answer.refusal else None
        return _nodes(answer.nodes)

    def leave(self, node_id: str) -> None:
        """Take a node out; see `Nodes.leave`."""
        request = admin_pb.DeleteNodeRequest(id=messages.text("the node's id", node_id))
        self._channel.call(self._stub.DeleteNode, request, RENEW_SECONDS_MAX)

    def live(self) -> list[Node]:
        """Return the nodes that are there; see `Nodes.live`."""
        return _nodes(self._channel.look(self._stub.ListNodes, admin_pb.ListNodesRequest()).nodes)


def _nodes(found: Iterable[admin_pb.Node]) -> list[Node]:
    return [messages.NODE.decode(node) for node in found]


CHANGES_SECONDS_MAX = 2.0
"""How long the question whether tokens changed may take: it is asked again soon."""


class RemoteTokens(Tokens):
    """See `Tokens`.

    Args:
        channel: To the service.
    """

    def __init__(self, channel: ServiceChannel) -> None:
        self._channel = channel
        self._stub = TokenServiceStub(channel.channel)

    def create(self, token: Token) -> Token:
        """Store a token; see `Tokens.create`. Repeated where the response was lost."""
        check_token(token)
        request = messages.TOKEN.encode(token)
        created = self._channel.call_repeatedly(self._stub.CreateToken, request)
        return messages.TOKEN.decode(created)

    def revoke(self, name: str, token_id: str | None = None) -> Token:
        """Delete a token; see `Tokens.revoke`. Repeated where the response was lost."""
        messages.text("the token's name", name)
        found = next((token for token in self.all() if token.name == name), None)
        if found is None or token_id not in {None, found.id}:
            raise no_token(name)
        request = tokens_pb.DeleteTokenRequest(name=name, id=found.id)
        gone = messages.TOKEN.encode(found)
        deleted = self._channel.call_repeatedly(self._stub.DeleteToken, request, gone)
        return messages.TOKEN.decode(deleted)

    def alter(self, name: str, quotas: Quotas, token_id: str | None = None) -> Token:
        """Replace a token's quotas; see `Tokens.alter`. Repeated where the response was lost."""
        messages.text("the token's name", name)
        quotas.check()
        request = tokens_pb.AlterTokenRequest(
            name=name, id=token_id or "", quotas=messages.QUOTAS.fields(quotas)
        )
        altered = self._channel.call_repeatedly(self._stub.AlterToken, request)
        return messages.TOKEN.decode(altered)

    def all(self, *, after: str | None = None, items_max: int | None = None) -> list[Token]:
        """Return the tokens by name; see `Tokens.all`."""
        return listed(
            self._channel,
            self._stub.ListTokens,
            tokens_pb.ListTokensRequest(),
            lambda page: [messages.TOKEN.decode(token) for token in page.tokens],
            BY_TEXT,
            after,
            items_max,
        )

    def changes(self) -> int:
        """Return how often tokens changed; see `Tokens.changes`."""
        request = tokens_pb.CountTokenChangesRequest()
        answer = self._channel.call(
            self._stub.CountTokenChanges, request, CHANGES_SECONDS_MAX, changes=False
        )
        return answer.changes


BEGIN_SECONDS_MAX = 3_600.0
"""How long the service may take to write a copy."""


@contextmanager
def copying(channel: ServiceChannel) -> Generator[Callable[[Path], None]]:
    """Have the service fix its state; see `Metadata.copying`. Blocks while it writes it down."""
    stub = CopyServiceStub(channel.channel)
    copy_id = channel.call(
        stub.BeginCopy, copies_pb.BeginCopyRequest(), BEGIN_SECONDS_MAX, changes=False
    ).copy_id
    try:
        yield partial(_read, channel, stub, copy_id)
    finally:
        with suppress(WingsError):  # The service ends it by itself, later.
            channel.look(stub.EndCopy, copies_pb.EndCopyRequest(copy_id=copy_id))


def _read(channel: ServiceChannel, stub: CopyServiceStub, copy_id: str, into: Path) -> None:
    at = 0
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with os.fdopen(os.open(into, flags, 0o600), "wb") as file:
        while True:
            request = copies_pb.ReadCopyRequest(copy_id=copy_id, start=at)
            data = channel.look(stub.ReadCopy, request).data
            if not data:
                return
            file.write(data)
            at += len(data)


class RemoteMetadata:
    """A `Metadata` at a service; may be used in a `with` statement.

    It connects when it is first asked something, and again by itself whenever the connection is
    lost.

    Args:
        target: The service's `HOST:PORT`.
        clock: Microseconds since the epoch, of this node; the service's may differ.
        access: What is presented to the service.
    """

    def __init__(
        self,
        target: str,
        *,
        clock: Callable[[], int] = now_us,
        access: PeerAccess | None = None,
    ) -> None:
        self._channel = ServiceChannel(target, access)
        self._retries = Retries()
        topics = RemoteTopicCache()
        self.admin = RemoteAdmin(self._channel, topics)
        self.registry = RemoteRegistry(self._channel, topics, self._retries, clock)
        self.stages = RemoteStages(self._channel)
        self.maintenance = RemoteMaintenance(self._channel)
        self.tables = RemoteTables(self._channel)
        self.groups = RemoteGroups(self._channel)
        self.shards = RemoteShards(self._channel)
        self.nodes = RemoteNodes(self._channel)
        self.tokens = RemoteTokens(self._channel)

    def store_id(self, seconds_max: float) -> str:
        """Return the id of the service's metadata.

        Blocks until the service is reachable, at most for so many seconds.

        Raises:
            Unavailable: It did not come.
            Internal: Something else is served there, or a service of an earlier version.
        """
        return self.admin.get_store(seconds_max)

    def copying(self) -> AbstractContextManager[Callable[[Path], None]]:
        """Have the service fix its state at one moment; see `Metadata.copying`."""
        return copying(self._channel)

    def close(self) -> None:
        """End the connection and the calls on it; later calls raise `Unavailable`."""
        self._retries.close()
        self._channel.close()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()
