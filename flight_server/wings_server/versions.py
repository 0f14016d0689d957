"""Which version of a topic's schema a request is about, on a node that may not know the last one.

A node remembers topics for a moment. What does not fit the schema that it remembers may fit one
that another node has made since: so it looks again before it refuses.
"""

from collections.abc import Callable
from typing import TypeVar

from wings_core.errors import InvalidFilter, InvalidTicket, SchemaMismatch, WingsError
from wings_core.log import Log
from wings_core.model import Topic
from wings_core.names import TopicName

T = TypeVar("T")

_MAY_BE_NEWER: tuple[type[WingsError], ...] = (InvalidTicket, InvalidFilter, SchemaMismatch)
"""The refusal of a request that knows a later version."""


def with_topic(
    log: Log, name: TopicName, use: Callable[[Topic], T], version: int | None = None
) -> T:
    """Return what `use` makes of a topic; where it refuses its schema, of what that is by now.

    Args:
        log: The log.
        name: Of the topic.
        use: Takes the topic with the schema wanted; has no effect where it raises.
        version: Of the schema; None: the last.

    Raises:
        TopicNotFound: No such topic.
        InvalidTicket: Its schema has no such version.

    And what `use` raises.
    """
    topic = log.admin.get_topic(name)
    if version is not None and version > topic.schema_version:
        topic = log.versions.look_again(topic)
    if version is not None:
        return use(_at(topic, version))
    try:
        return use(topic)
    except _MAY_BE_NEWER:
        newest = log.versions.look_again(topic)
        if newest.schema_version == topic.schema_version:
            raise
    return use(newest)


def _at(topic: Topic, version: int) -> Topic:
    if not 1 <= version <= topic.schema_version:
        raise InvalidTicket(
            f"key 'schema_version': the schema of {topic.name} has versions 1 to "
            f"{topic.schema_version}; got {version}"
        )
    return topic.at(version)
