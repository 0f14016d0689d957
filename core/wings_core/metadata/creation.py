"""What becomes of what is to be created and may be there already, whatever store it is in."""

from uuid import UUID, uuid4

import pyarrow as pa

from wings_core.errors import AlreadyExists, InvalidArgument
from wings_core.model import Topic
from wings_core.names import NamespaceName

DELETED_KEPT_US = 600 * 1_000_000
"""How long a topic that was deleted and purged is remembered by its UUID: much longer than anybody
asks for its creation again."""


def chosen_uuid(given: str | None) -> str:
    """Return the UUID of what is to be created: the one given, or a new one.

    Raises:
        InvalidArgument: What was given is none.
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
    """Return a topic that was to be created and is there, if that is what was asked for.

    Raises:
        AlreadyExists: It is not: a new topic was asked for, or one that differs.
    """
    if not if_not_exists:
        raise AlreadyExists(f"there is a topic {topic.name} already")
    if not topic.schema.equals(schema) or topic.partition_key != partition_key:
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
