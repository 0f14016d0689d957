"""A cache of values derived from topics' schemas."""

from collections.abc import Callable
from typing import Generic, TypeVar

import pyarrow as pa

from wings_core.model import Topic
from wings_core.storage.lru import Lru

V = TypeVar("V")


class BySchema(Generic[V]):
    """Values derived from topics' schemas, recomputed when a schema is another object.

    Thread-safe; concurrent callers may compute the same value twice.

    Args:
        make: Computes the value for a topic.
        topics_max: Most topics and schema versions cached.
    """

    def __init__(self, make: Callable[[Topic], V], topics_max: int) -> None:
        self._make = make
        self._kept: Lru[tuple[str, int], tuple[pa.Schema, V]] = Lru(topics_max)
        self._last: tuple[Topic, V] | None = None
        """The last topic asked for, and its value: a stream asks for the same repeatedly."""

    def get(self, topic: Topic) -> V:
        """Return the value for a topic's schema."""
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
