"""The rules of creating namespaces and topics that may exist already, the same in every store."""

from uuid import UUID, uuid4

import pyarrow as pa

from wings_core.errors import AlreadyExists, InvalidArgument
from wings_core.model import Topic
from wings_core.names import NamespaceName

DELETED_KEPT_US = 600 * 1_000_000
"""How long the UUID of a deleted and purged topic is remembered: much longer than any client
retries its creation."""


def chosen_uuid(given: str | None) -> str:
    """Return the UUID of a new namespace or topic, in lower case: `given`, or a random one.

    Raises:
        InvalidArgument: `given` is not a UUID.
    """
    if given is None:
        return str(uuid4())
    try:
        return str(UUID(given))
    except ValueError:
        raise InvalidArgument(f"{given[:80]!r} is not a UUID") from None


def existing_topic(
    topic: Topic, schema: pa.Schema, partition_key: str | None, *, if_not_exists: bool
) -> Topic:
    """Return an existing topic of the name to be created, where the request allows it.

    Raises:
        AlreadyExists: Without `if_not_exists`, or the schema or the partition key differ.
    """
    if not if_not_exists:
        raise AlreadyExists(f"there is a topic {topic.name} already")
    # A schema that has grown since is the topic's, for producers of its earlier versions too.
    known = any(each.equals(schema) for each in topic.schemas)
    if not known or topic.partition_key != partition_key:
        raise AlreadyExists(
            f"there is a topic {topic.name} already, with another schema or partition key"
        )
    return topic


def existing_namespace(name: NamespaceName) -> AlreadyExists:
    """Return the error of a namespace that is there already."""
    return AlreadyExists(f"there is a namespace {name} already")


def taken_uuid(uuid: str) -> AlreadyExists:
    """Return the error of a UUID that another topic has."""
    return AlreadyExists(f"there is another topic of the UUID {uuid} already")
