"""Interfaces of namespaces, topics, groups, nodes and tokens, and of metadata as a whole."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from wings_core.errors import NotFound
from wings_core.metadata.interfaces.offset_registry import OffsetRegistry
from wings_core.metadata.interfaces.stages import Shards, Stages, Transactions
from wings_core.metadata.maintenance import Maintenance, MaintenanceLease, TableStates
from wings_core.model import (
    GroupChange,
    NamespaceState,
    Node,
    ShareConfig,
    ShareGroup,
    StoredGroup,
    Topic,
    TopicConfig,
)
from wings_core.names import NamespaceName, TopicName
from wings_core.schema_changes import SchemaChange
from wings_core.security.quotas import Quotas
from wings_core.security.tokens import Token


class Admin(Protocol):
    """Namespaces and topics by name. A tenant comes into being with its first namespace.

    A caller that chooses the UUID of what it creates, or names the UUID of what it changes, may
    retry where the response was lost: a creation is recognised by its UUID, and a later namespace
    or topic of the same name is not touched.
    """

    def create_namespace(self, name: NamespaceName, uuid: str | None = None) -> NamespaceState:
        """Create a namespace.

        Args:
            name: Its name.
            uuid: UUID of the new namespace; one with this name and UUID is returned as it is. None:
                any.

        Raises:
            AlreadyExists: Another namespace has the name.
            InvalidArgument: `uuid` is not a UUID.
        """
        ...

    def get_namespace(self, name: NamespaceName) -> NamespaceState:
        """Return a namespace.

        Raises:
            NamespaceNotFound: There is none of this name.
        """
        ...

    def delete_namespace(self, name: NamespaceName, uuid: str | None = None) -> NamespaceState:
        """Delete an empty namespace and return what it was.

        Args:
            name: Its name.
            uuid: Its UUID; None: whichever has the name.

        Raises:
            NamespaceNotFound: There is none of this name, or its UUID differs.
            NamespaceNotEmpty: It has topics.
        """
        ...

    def list_namespaces(
        self, *, after: NamespaceName | None = None, items_max: int | None = None
    ) -> list[NamespaceState]:
        """Return namespaces, by name.

        Args:
            after: Only those whose name is greater; None: all.
            items_max: The first so many of them; None: all.
        """
        ...

    def create_topic(
        self,
        name: TopicName,
        schema: pa.Schema,
        partition_key: str | None = None,
        config: TopicConfig | None = None,
        *,
        if_not_exists: bool = False,
        uuid: str | None = None,
    ) -> Topic:
        """Create a topic.

        Args:
            name: Its name.
            schema: One that has passed `schemas.check_topic_schema`.
            partition_key: The column by which it is partitioned, if it is.
            config: None: the default.
            if_not_exists: Return a topic of this name with the same schema and partition key as it
                is.
            uuid: UUID of the new topic; one with this name and UUID is returned as it is, or was:
                also where it was deleted since, within `checks.DELETED_KEPT_US`. None: any.

        Raises:
            NamespaceNotFound: The namespace does not exist.
            AlreadyExists: The topic exists (with `if_not_exists`: and differs in schema or key), or
                another has the UUID.
            InvalidArgument: `uuid` is not a UUID, or the partition key's name holds NUL.
        """
        ...

    def get_topic(self, name: TopicName, *, fresh: bool = False) -> Topic:
        """Return a topic.

        Args:
            name: Its name.
            fresh: Not as it was looked up before: it has changed since.

        Raises:
            TopicNotFound: There is none of this name in the namespace.
            NamespaceNotFound: The namespace does not exist.
        """
        ...

    def list_topics(
        self, namespace: NamespaceName, *, after: str | None = None, items_max: int | None = None
    ) -> list[Topic]:
        """Return the topics of a namespace, by name.

        Args:
            namespace: Namespace of the topics.
            after: Only those whose id is greater; None: all.
            items_max: The first so many of them; None: all.

        Raises:
            NamespaceNotFound: The namespace does not exist.
        """
        ...

    def alter_topic(self, name: TopicName, config: TopicConfig, uuid: str | None = None) -> Topic:
        """Change keys of a topic's configuration and return the topic.

        Args:
            name: Its name.
            config: The keys that are set in it are changed, also to their defaults.
            uuid: Its UUID; None: whichever has the name.

        Raises:
            TopicNotFound: There is none of this name in the namespace, or its UUID differs.
            NamespaceNotFound: The namespace does not exist.
        """
        ...

    def alter_schema(self, name: TopicName, change: SchemaChange, uuid: str | None = None) -> Topic:
        """Change a topic's schema, which gets another version, and return the topic.

        Where nothing is left to change, the topic is returned as it is. Pages keep the version
        that they were written in.

        Args:
            name: Its name.
            change: See `schema_changes.changed_schema`.
            uuid: Its UUID; None: whichever has the name.

        Raises:
            TopicNotFound: There is none of this name in the namespace, or its UUID differs.
            NamespaceNotFound: The namespace does not exist.
            InvalidSchema: Its schema cannot be changed so.
        """
        ...

    def delete_topic(self, name: TopicName, uuid: str | None = None) -> Topic:
        """Delete a topic with its messages and consumers' offsets, and return what it was.

        It is gone for all readers and writers at once, and its waiters are woken; its pages are
        deleted later, by `OffsetRegistry.purge`.

        Args:
            name: Its name.
            uuid: Its UUID; None: whichever has the name.

        Raises:
            TopicNotFound: There is none of this name in the namespace, or its UUID differs.
            NamespaceNotFound: The namespace does not exist.
        """
        ...


def all_topics(
    admin: Admin, sees: Callable[[NamespaceName], bool] = lambda _: True
) -> Iterator[Topic]:
    """Yield the topics of all namespaces, but of those that are deleted meanwhile.

    Args:
        admin: The namespaces and topics.
        sees: Tells whether to look into a namespace.
    """
    for namespace in admin.list_namespaces():
        if sees(namespace.name):
            with suppress(NotFound):
                yield from admin.list_topics(namespace.name)


class Groups(Protocol):
    """Share groups of topics: their names and configurations.

    A group belongs to one topic, and is deleted with it.
    """

    def create(self, group: ShareGroup, *, if_not_exists: bool = False) -> ShareGroup:
        """Create a group and return it.

        Args:
            group: With a name of 1 to 256 bytes and a UUID that no other group has; where the topic
                has it already, it is returned as it is.
            if_not_exists: Return a group of this name as it is, whatever its configuration.

        Raises:
            TopicNotFound: The topic was deleted.
            AlreadyExists: The topic has a group of this name.
            ResourceExhausted: The topic has as many groups as it may have.
            InvalidArgument: A name that cannot be stored.
        """
        ...

    def get(self, topic: Topic, name: str) -> ShareGroup:
        """Return a group.

        Raises:
            TopicNotFound: The topic was deleted.
            GroupNotFound: It has none of this name.
        """
        ...

    def of_topic(
        self, topic: Topic, *, after: str | None = None, items_max: int | None = None
    ) -> list[ShareGroup]:
        """Return a topic's groups, by name.

        Args:
            topic: Theirs.
            after: Only those whose name is greater; None: all.
            items_max: The first so many of them; None: all.

        Raises:
            TopicNotFound: The topic was deleted.
        """
        ...

    def alter(self, topic: Topic, name: str, changes: ShareConfig) -> ShareGroup:
        """Replace the keys of a group's configuration that were given in `changes`.

        Raises:
            TopicNotFound: The topic was deleted.
            GroupNotFound: It has no group of this name.
        """
        ...

    def restart(self, group: ShareGroup, uuid: str) -> ShareGroup:
        """Give a group another UUID, in one step: all that is known by the old one is void.

        Args:
            group: The group as it is now. One that has the new UUID already is returned as it is.
            uuid: New UUID, which no other group has.

        Raises:
            TopicNotFound: The topic was deleted.
            GroupNotFound: It has none of this name, or its UUID differs.
        """
        ...

    def delete(self, topic: Topic, name: str, uuid: str | None = None) -> ShareGroup:
        """Delete a group and return it as it was.

        Args:
            topic: The group's.
            name: Its name.
            uuid: Its UUID; None: whichever has the name.

        Raises:
            TopicNotFound: The topic was deleted.
            GroupNotFound: It has none of this name, or its UUID differs.
        """
        ...


class ConsumerGroups(Protocol):
    """The members of consumer groups, and the epochs that were given out.

    A group is known by the name of its consumer, from the first change that was saved on.
    """

    def load(self, consumer: str) -> StoredGroup:
        """Return a group as it was last saved; one that never was has epoch 0 and no members."""
        ...

    def save(self, lease: MaintenanceLease, consumer: str, change: GroupChange) -> bool:
        """Store a change of a group, durably and as a whole.

        Args:
            lease: The lease under which the change was decided, which must not have ended since.
            consumer: The group's.
            change: Changes since the group was loaded, or last saved.

        Returns:
            False: the lease was lost, and nothing is stored.
        """
        ...

    def names(self, names_max: int, *, after: str | None = None) -> list[str]:
        """Return the consumers that have a group, by name.

        Args:
            names_max: The first so many.
            after: Only those whose name is greater; None: all.
        """
        ...


NODES_MAX = 1_000
"""The most Flight nodes at once."""

SILENT_SECONDS = 86_400.0
"""Time for which a node that stopped without leaving is remembered."""

NODE_LEASE_SECONDS_MAX = 3_600.0
"""The longest lease of a node, in seconds."""


class Nodes(Protocol):
    """The Flight nodes that are registered, each by a lease that it renews while it runs."""

    def renew(self, node: Node, seconds: float) -> list[Node]:
        """Register a node, or renew its lease.

        Args:
            node: Its id and address; an earlier node of the same address is deregistered.
            seconds: How long the lease lasts from now on, by the store's clock, to
                `NODE_LEASE_SECONDS_MAX`.

        Returns:
            The nodes whose leases have not expired, this one among them, by address; at most
            `NODES_MAX`.

        Raises:
            InvalidArgument: An id or address that is empty, too long or not text, or a lease out of
                range.
            ResourceExhausted: There are `NODES_MAX` nodes already.
        """
        ...

    def leave(self, node_id: str) -> None:
        """Deregister a node, if it is registered.

        Raises:
            InvalidArgument: An id that is not text.
        """
        ...

    def live(self) -> list[Node]:
        """Return the nodes whose leases have not expired, by address."""
        ...

    def silent(self) -> list[Node]:
        """Return the nodes whose leases expired without `leave`, by address.

        At most `NODES_MAX`. A node of the same address takes its predecessor's place; one is
        forgotten `SILENT_SECONDS` after its lease expired.
        """
        ...


class Tokens(Protocol):
    """Tokens by name; their secrets are not kept."""

    def create(self, token: Token) -> Token:
        """Store a token and return it.

        Args:
            token: With a UUID that no other one has; where it is there already, it is returned as
                it is.

        Raises:
            AlreadyExists: There is a token of this name, or of this secret.
            ResourceExhausted: There are `TOKENS_MAX` tokens already.
            InvalidArgument: It cannot be stored; see `check_token`.
        """
        ...

    def revoke(self, name: str, token_id: str | None = None) -> Token:
        """Delete a token and return it as it was.

        Args:
            name: Its name.
            token_id: Its UUID; None: whichever has the name.

        Raises:
            TokenNotFound: There is none of this name, or its UUID differs.
        """
        ...

    def alter(self, name: str, quotas: Quotas, token_id: str | None = None) -> Token:
        """Replace a token's quotas and return it as it is then.

        Args:
            name: Its name.
            quotas: All that it has from now on.
            token_id: Its UUID; None: whichever has the name.

        Raises:
            TokenNotFound: There is none of this name, or its UUID differs.
            InvalidArgument: A quota is out of range.
        """
        ...

    def all(self, *, after: str | None = None, items_max: int | None = None) -> list[Token]:
        """Return the tokens, expired ones too, by name.

        Args:
            after: Only those whose name is greater; None: all.
            items_max: The first so many of them; None: all.
        """
        ...

    def changes(self) -> int:
        """Return how often a token was created, altered or revoked; 0: there was never any.

        Blocks for a few seconds at most, also where the store is out of reach.
        """
        ...


class Metadata(Protocol):
    """One store of metadata: its interfaces, opened and closed together."""

    @property
    def admin(self) -> Admin:
        """Namespaces and topics."""
        ...

    @property
    def registry(self) -> OffsetRegistry:
        """The log's index."""
        ...

    @property
    def stages(self) -> Stages:
        """Batches that were staged and not published yet."""
        ...

    @property
    def transactions(self) -> Transactions:
        """Transactions of named producers."""
        ...

    @property
    def groups(self) -> Groups:
        """Share groups."""
        ...

    @property
    def consumer_groups(self) -> ConsumerGroups:
        """Consumer groups."""
        ...

    @property
    def shards(self) -> Shards:
        """The progress of sources that are read into the log once."""
        ...

    @property
    def nodes(self) -> Nodes:
        """The registered Flight nodes."""
        ...

    @property
    def tokens(self) -> Tokens:
        """The tokens that principals present."""
        ...

    @property
    def maintenance(self) -> Maintenance:
        """Retention, merged pages and leases."""
        ...

    @property
    def tables(self) -> TableStates:
        """The files of topics that are tables."""
        ...

    def copying(self) -> AbstractContextManager[Callable[[Path], None]]:
        """Fix the state of the store at one moment; no writer waits for it.

        Returns:
            A context that yields a function, which writes that state into a new file: the SQLite
            database of an embedded server, of this code's version. It blocks while it writes.

        Raises:
            ResourceExhausted: There is no room for the file.
            WingsError: The store cannot be read.
        """
        ...

    def end_retries(self) -> None:
        """Have calls fail that find the store out of reach, from now on and those under way.

        So a stop does not wait for a store that is away.
        """
        ...

    def close(self) -> None:
        """Close the store once calls under way have ended; later calls raise `Unavailable`."""
        ...
