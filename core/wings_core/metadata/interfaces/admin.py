"""Names and schemas."""

from typing import Protocol

import pyarrow as pa

from wings_core.model import Namespace, Topic, TopicConfig
from wings_core.names import NamespaceName, TopicName


class Admin(Protocol):
    """Namespaces and topics by name. A tenant comes into being with its first namespace."""

    def create_namespace(self, name: NamespaceName) -> Namespace:
        """Create a namespace.

        Raises:
            AlreadyExists: It is there.
        """
        ...

    def get_namespace(self, name: NamespaceName) -> Namespace:
        """Return a namespace.

        Raises:
            NamespaceNotFound: There is none of this name.
        """
        ...

    def delete_namespace(self, name: NamespaceName) -> Namespace:
        """Delete an empty namespace and return what it was.

        Raises:
            NamespaceNotFound: There is none of this name.
            NamespaceNotEmpty: It has topics.
        """
        ...

    def list_namespaces(self) -> list[Namespace]:
        """Return all namespaces, by name."""
        ...

    def create_topic(
        self,
        name: TopicName,
        schema: pa.Schema,
        partition_key: str | None = None,
        config: TopicConfig | None = None,
        *,
        if_not_exists: bool = False,
    ) -> Topic:
        """Create a topic; its schema must have passed `schemas.check_topic_schema`.

        With `if_not_exists`, a topic of this name with the same schema and partition key is
        returned as it is.

        Raises:
            NamespaceNotFound: The namespace does not exist.
            AlreadyExists: The topic exists (with `if_not_exists`: and differs in schema or key).
        """
        ...

    def get_topic(self, name: TopicName) -> Topic:
        """Return a topic.

        Raises:
            TopicNotFound: There is none of this name in the namespace.
            NamespaceNotFound: The namespace does not exist.
        """
        ...

    def list_topics(self, namespace: NamespaceName) -> list[Topic]:
        """Return the topics of a namespace, by name.

        Raises:
            NamespaceNotFound: The namespace does not exist.
        """
        ...

    def alter_topic(self, name: TopicName, config: TopicConfig) -> Topic:
        """Replace a topic's configuration and return the topic.

        Raises:
            TopicNotFound: There is none of this name in the namespace.
            NamespaceNotFound: The namespace does not exist.
        """
        ...

    def delete_topic(self, name: TopicName) -> Topic:
        """Delete a topic with its messages and consumers' offsets, and return what it was.

        It is gone for all readers and writers at once, and its waiters are woken; its pages are
        given back later, by `OffsetRegistry.purge`.

        Raises:
            TopicNotFound: There is none of this name in the namespace.
            NamespaceNotFound: The namespace does not exist.
        """
        ...
