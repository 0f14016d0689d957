"""Metadata at a service: its interfaces over one connection; nodes, tokens and copies."""

import os
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from wings_core.errors import WingsError
from wings_core.metadata.checks import check_node
from wings_core.metadata.interfaces import Nodes, Tokens
from wings_core.metadata.remote.admin import RemoteAdmin, RemoteGroups, RemoteTopicCache
from wings_core.metadata.remote.channel import ServiceChannel
from wings_core.metadata.remote.parts import (
    RemoteConsumerGroups,
    RemoteMaintenance,
    RemoteShards,
    RemoteStages,
    RemoteTables,
    RemoteTransactions,
)
from wings_core.metadata.remote.registry import RemoteRegistry
from wings_core.metadata.remote.rpc import (
    BY_TEXT,
    Calls,
    Field,
    Fields,
    Paged,
    RemotePart,
    Rpc,
    rpc,
)
from wings_core.metadata.remote.watches import Retries
from wings_core.model import Node
from wings_core.protocol import messages
from wings_core.protocol.v1 import admin_pb2 as admin_pb
from wings_core.protocol.v1 import copies_pb2 as copies_pb
from wings_core.security.quotas import Quotas
from wings_core.security.tokens import PeerAccess, Token, check_token, no_token
from wings_core.times import now_us

RENEW_SECONDS_MAX = 5.0
"""How long the renewal of a lease may take: one that comes late is of no use."""


_RENEW_NODE = admin_pb.DESCRIPTOR.services_by_name["NodeService"].methods_by_name["RenewNode"]


class RemoteNodes(RemotePart, Nodes):
    """See `Nodes`."""

    refusal: str | None = None
    """Why the service wants no pushes, as of the last renewal; None: it takes them."""

    def renew(self, node: Node, seconds: float) -> list[Node]:
        """Register a node, or renew its lease; see `Nodes.renew`."""
        check_node(node, seconds)
        request = admin_pb.RenewNodeRequest(node=messages.NODE.fields(node), seconds=seconds)
        answer = self._channel.call(self._channel.unary(_RENEW_NODE), request, RENEW_SECONDS_MAX)
        self.refusal = f"at the metadata service: {answer.refusal}" if answer.refusal else None
        return [messages.NODE.decode(each) for each in answer.nodes]

    leave = rpc(
        "NodeService.DeleteNode",
        Nodes.leave,
        Calls.ONCE,
        call_seconds=RENEW_SECONDS_MAX,
        node_id=Field("id"),
    )
    live = rpc("NodeService.ListNodes", Nodes.live, Calls.LOOK)
    silent = rpc("NodeService.ListSilentNodes", Nodes.silent, Calls.LOOK)


CHANGES_SECONDS_MAX = 2.0
"""Longest time of the look whether tokens changed: it is repeated soon."""


def _checked(quotas: Quotas) -> object:
    quotas.check()
    return messages.QUOTAS.fields(quotas)


_TOKEN_FIELDS = tuple(messages.TOKEN.message.DESCRIPTOR.fields_by_name)


def _checked_token(token: Token) -> Mapping[str, Any]:
    check_token(token)
    return messages.TOKEN.fields(token)


class RemoteTokens(RemotePart, Tokens):
    """See `Tokens`. Changes are repeated where their response is lost."""

    create = rpc(
        "TokenService.CreateToken",
        Tokens.create,
        Calls.REPEAT,
        token=Fields(_TOKEN_FIELDS, _checked_token, messages.TOKEN.decode),
    )
    alter = rpc(
        "TokenService.AlterToken",
        Tokens.alter,
        Calls.REPEAT,
        token_id=Field("id"),
        quotas=Field(None, _checked, messages.QUOTAS.decode),
    )
    all = rpc(
        "TokenService.ListTokens",
        Tokens.all,
        Calls.LOOK,
        paged=Paged(BY_TEXT, lambda token: token.name),
    )
    changes = rpc(
        "TokenService.CountTokenChanges",
        Tokens.changes,
        Calls.LOOK,
        call_seconds=CHANGES_SECONDS_MAX,
    )
    _revoke = Rpc(
        "TokenService.DeleteToken",
        Tokens.revoke,
        Calls.REPEAT,
        token_id=Field("id"),
    )

    def revoke(self, name: str, token_id: str | None = None) -> Token:
        """Delete a token; see `Tokens.revoke`."""
        messages.text("the token's name", name)
        found = next((token for token in self.all() if token.name == name), None)
        if found is None or token_id not in {None, found.id}:
            raise no_token(name)
        return self._revoke.call(self._channel, [name, found.id], {}, gone=found)


BEGIN_SECONDS_MAX = 3_600.0
"""How long the service may take to write a copy."""


@contextmanager
def copying(channel: ServiceChannel) -> Generator[Callable[[Path], None]]:
    """Have the service fix its state; see `Metadata.copying`. Blocks while it writes it down."""
    begin, read, end = (
        channel.unary(copies_pb.DESCRIPTOR.services_by_name["CopyService"].methods_by_name[name])
        for name in ("BeginCopy", "ReadCopy", "EndCopy")
    )
    copy_id = channel.call(
        begin, copies_pb.BeginCopyRequest(), BEGIN_SECONDS_MAX, changes=False
    ).copy_id

    def write(into: Path) -> None:
        at = 0
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with os.fdopen(os.open(into, flags, 0o600), "wb") as file:
            while True:
                request = copies_pb.ReadCopyRequest(copy_id=copy_id, start=at)
                data = channel.look(read, request).data
                if not data:
                    return
                file.write(data)
                at += len(data)

    try:
        yield write
    finally:
        with suppress(WingsError):  # The service ends it by itself, later.
            channel.look(end, copies_pb.EndCopyRequest(copy_id=copy_id))


class RemoteMetadata:
    """A `Metadata` at a service; may be used in a `with` statement.

    It connects when it is first asked something, and again by itself whenever the connection is
    lost.

    Args:
        target: The service's `HOST:PORT`.
        clock: Microseconds since the epoch, of this node; the service's may differ.
        access: Credentials presented to the service.
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
        self.transactions = RemoteTransactions(self._channel)
        self.maintenance = RemoteMaintenance(self._channel)
        self.tables = RemoteTables(self._channel)
        self.groups = RemoteGroups(self._channel)
        self.consumer_groups = RemoteConsumerGroups(self._channel)
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

    def end_retries(self) -> None:
        """Do nothing: a service that is away is tried once; see `Metadata.end_retries`."""

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
