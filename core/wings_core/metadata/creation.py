"""What becomes of a topic that is to be created and is there already, whatever store it is in."""

import pyarrow as pa

from wings_core.errors import AlreadyExists
from wings_core.model import Topic


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
