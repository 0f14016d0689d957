"""Look-up of schema versions newer than a reader's topic."""

from collections.abc import Iterable
from dataclasses import replace

from wings_core.errors import StorageCorrupt, TopicNotFound
from wings_core.metadata.interfaces import Admin
from wings_core.model import Location, Topic
from wings_core.storage.lru import Lru

TOPICS_REMEMBERED_MAX = 1_024
"""Most topics cached whose schema changed while they were read or written."""


class SchemaVersions:
    """Topics looked up again when a page has a later schema version. Thread-safe.

    A version is committed before its first page, so one look-up is enough.

    Args:
        admin: Looks up topics.
    """

    def __init__(self, admin: Admin) -> None:
        self._admin = admin
        self._newest: Lru[str, Topic] = Lru(TOPICS_REMEMBERED_MAX)
        """Topics by UUID; shared by all readers, as caches use a schema's identity."""

    def covering(self, topic: Topic, locations: Iterable[Location]) -> Topic:
        """Return a topic at its present version that knows the versions of all pages.

        Raises:
            TopicNotFound: The topic was deleted.
            StorageCorrupt: A page has a version that the topic never had.
        """
        known = topic.schema_versions
        last = max((location.schema_version for location in locations), default=1)
        if last <= known:
            return topic
        newest = self.at_least(topic, last)
        return replace(topic, later_schemas=newest.schemas[topic.schema_version :])

    def newest(self, topic: Topic, locations: Iterable[Location]) -> Topic:
        """Return a topic at a version no earlier than those of the pages.

        Raises: The errors of `covering`.
        """
        last = max((location.schema_version for location in locations), default=1)
        return topic if last <= topic.schema_version else self.at_least(topic, last)

    def at_least(self, topic: Topic, version: int) -> Topic:
        """Return a topic, read afresh if needed, that has at least schema `version`.

        Raises: The errors of `covering`.
        """
        newest = self._newest.get(topic.uuid)
        if newest is None or newest.schema_version < version:
            newest = self.look_again(topic)
        if newest.schema_version < version:
            raise StorageCorrupt(
                f"a page of {topic.name} has version {version} of the schema, which has "
                f"{newest.schema_version}"
            )
        return newest

    def look_again(self, topic: Topic) -> Topic:
        """Read a topic afresh, at its latest schema version.

        Raises:
            TopicNotFound: The topic was deleted.
        """
        newest = self._admin.get_topic(topic.name, fresh=True)
        if newest.uuid != topic.uuid:
            raise TopicNotFound("the topic was deleted")
        known = self._newest.get(topic.uuid)
        if known is not None and known.schema_version >= newest.schema_version:
            newest = replace(known, config=newest.config)
        else:
            self._newest.put(topic.uuid, newest)
        return newest
