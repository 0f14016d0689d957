"""The schema version of a request, on a node that may not know the latest version.

A node caches topics for a moment. A request that does not fit the cached schema may fit one that
another node has created since, so the topic is read afresh before a rejection.
"""

from collections.abc import Callable
from typing import TypeVar

from wings_core.errors import InvalidFilter, InvalidTicket, SchemaMismatch, WingsError
from wings_core.log import Log
from wings_core.model import Topic
from wings_core.names import TopicName

T = TypeVar("T")

_MAY_BE_NEWER: tuple[type[WingsError], ...] = (InvalidTicket, InvalidFilter, SchemaMismatch)
"""Errors of a request that may be for a later version."""


def with_topic(
    log: Log, name: TopicName, use: Callable[[Topic], T], version: int | None = None
) -> T:
    """Return `use(topic)`; on a schema error, tries again with the topic read afresh.

    Args:
        log: The log.
        name: Name of the topic.
        use: Called with the topic at the schema version; must have no effect if it raises.
        version: Schema version; None for the latest.

    Raises:
        TopicNotFound: No such topic.
        InvalidTicket: The schema has no such version.

    The errors of `use` are raised, too.
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
