"""Topics looked up lately."""

import threading

from wings_core.model import Topic
from wings_core.names import TopicName

TOPICS_CACHED_MAX = 4_096
"""How many topics a process remembers by name; then the one remembered longest is dropped."""


class TopicCache:
    """Topics by name, since every request looks its topic up.

    Only ever as new as the store: a topic read before a change and remembered after it is told by
    the generation and not kept.

    The registry looks topics up by UUID within its own statements, where a topic's deletion and its
    pages are seen at one moment, so they are not cached by it.

    Args:
        topics_max: How many to remember; 0 where another process may change them.
    """

    def __init__(self, topics_max: int) -> None:
        self._topics_max = topics_max
        self._lock = threading.Lock()
        self._topics: dict[TopicName, Topic] = {}
        self._generation = 0

    @property
    def generation(self) -> int:
        """A number to take before a topic is read from the store."""
        return self._generation

    def get(self, name: TopicName) -> Topic | None:
        """Return a topic if it is remembered."""
        return self._topics.get(name)

    def remember(self, topic: Topic, generation: int) -> None:
        """Keep a topic, unless something changed since `generation` was taken."""
        with self._lock:
            if generation != self._generation or self._topics_max == 0:
                return
            if len(self._topics) >= self._topics_max:
                del self._topics[next(iter(self._topics))]
            self._topics[topic.name] = topic

    def forget(self, name: TopicName) -> None:
        """Drop a topic that was changed; call it when the change is committed."""
        with self._lock:
            self._generation += 1
            self._topics.pop(name, None)
