"""What is made of a topic's schema, and kept for its next use."""

from collections.abc import Callable
from typing import Generic, TypeVar

import pyarrow as pa

from wings_core.model import Topic
from wings_core.storage.lru import Lru

V = TypeVar("V")


class BySchema(Generic[V]):
    """Makes something of a topic's schema once, as long as that is the same object.

    All methods may be called from any thread; what is made may be made twice.

    Args:
        make: Makes it.
        topics_max: For so many topics, and versions of their schemas, it is kept.
    """

    def __init__(self, make: Callable[[Topic], V], topics_max: int) -> None:
        self._make = make
        self._kept: Lru[tuple[str, int], tuple[pa.Schema, V]] = Lru(topics_max)
        self._last: tuple[Topic, V] | None = None
        """What was asked for last, as a stream asks for the same again and again."""

    def get(self, topic: Topic) -> V:
        """Return what was made of a topic's schema."""
        last = self._last
        if last is not None and last[0] is topic:
            return last[1]
        key = topic.uuid, topic.schema_version
        kept = self._kept.get(key)
        if kept is None or kept[0] is not topic.schema:
            kept = topic.schema, self._make(topic)
            self._kept.put(key, kept)
        self._last = topic, kept[1]
        return kept[1]
