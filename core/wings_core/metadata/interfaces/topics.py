"""Interfaces of namespaces, topics and share groups."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Protocol

import pyarrow as pa

from wings_core.errors import NotFound
from wings_core.model import NamespaceState, ShareConfig, ShareGroup, Topic, TopicConfig
from wings_core.names import NamespaceName, TopicName
from wings_core.schema_changes import SchemaChange


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
