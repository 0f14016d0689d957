"""Versions of schemas that came after a reader looked its topic up."""

from collections.abc import Iterable
from dataclasses import replace

from wings_core.errors import StorageCorrupt, TopicNotFound
from wings_core.metadata.interfaces import Admin
from wings_core.model import Location, Topic
from wings_core.storage.lru import Lru

TOPICS_REMEMBERED_MAX = 1_024
"""Topics whose schema changed while they were read or written."""


class SchemaVersions:
    """Looks topics up again where a page is of a later version; all methods from any thread.

    A page of a version is committed only after the version is, so that one look is enough.

    Args:
        admin: Where topics are.
    """

    def __init__(self, admin: Admin) -> None:
        self._admin = admin
        self._newest: Lru[str, Topic] = Lru(TOPICS_REMEMBERED_MAX)
        """By UUID; the same objects for all readers: much is cached by a schema's identity."""

    def covering(self, topic: Topic, locations: Iterable[Location]) -> Topic:
        """Return a topic with its own schema that knows the versions of all pages.

        Raises:
            TopicNotFound: It was deleted.
            StorageCorrupt: A page is of a version that the topic never had.
        """
        known = topic.schema_versions
        last = max((location.schema_version for location in locations), default=1)
        if last <= known:
            return topic
        newest = self.at_least(topic, last)
        return replace(topic, later_schemas=newest.schemas[topic.schema_version :])

    def newest(self, topic: Topic, locations: Iterable[Location]) -> Topic:
        """Return a topic with a schema no earlier than that of any of the pages.

        Raises: as `covering`.
        """
        last = max((location.schema_version for location in locations), default=1)
        return topic if last <= topic.schema_version else self.at_least(topic, last)

    def at_least(self, topic: Topic, version: int) -> Topic:
        """Return a topic as it is by now, with a version of its schema.

        Raises: as `covering`.
        """
        newest = self._newest.get(topic.uuid)
        if newest is None or newest.schema_version < version:
            newest = self.look_again(topic)
        if newest.schema_version < version:
            raise StorageCorrupt(
                f"a page of {topic.name} is of version {version} of its schema, which has "
                f"{newest.schema_version}"
            )
        return newest

    def look_again(self, topic: Topic) -> Topic:
        """Return a topic as it is now, with its last schema.

        Raises:
            TopicNotFound: It was deleted.
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
