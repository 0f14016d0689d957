"""Traffic: what this process took in and sent out since its start, in all and by topic."""

import threading
from collections import OrderedDict
from dataclasses import dataclass, replace
from itertools import islice

from wings_core.names import TopicName
from wings_core.times import now_us

TOPICS_MAX = 10_000
"""Topics that are counted by themselves; beyond that the one that was quiet for longest is not."""


@dataclass(slots=True)
class TrafficCounts:
    """Rows and bytes: in by pushes, out by reads; bytes are of Arrow data, or of JSON sent."""

    rows_in: int = 0
    bytes_in: int = 0
    rows_out: int = 0
    bytes_out: int = 0
    since: int = 0
    """When the counting began, in microseconds since the epoch."""

    def copy(self) -> "TrafficCounts":
        """Return equal counts that no longer change."""
        return replace(self)


class Traffic:
    """Counts rows and bytes; all methods may be called from any thread, and none blocks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._topics: OrderedDict[TopicName, TrafficCounts] = OrderedDict()
        self._all = TrafficCounts(since=now_us())
        self._last_name: TopicName | None = None
        """The last of `_topics`,"""
        self._last = self._all
        """and its counts."""

    def pushed(self, topic: TopicName, rows: int, size: int) -> None:
        """Count rows that a push committed, of so many bytes."""
        with self._lock:
            for counts in (self._all, self._of(topic)):
                counts.rows_in += rows
                counts.bytes_in += size

    def delivered(self, topic: TopicName, rows: int, size: int) -> None:
        """Count rows that a read sent, of so many bytes."""
        with self._lock:
            for counts in (self._all, self._of(topic)):
                counts.rows_out += rows
                counts.bytes_out += size

    def _of(self, topic: TopicName) -> TrafficCounts:
        """Return the counts of a topic that something happens to now; under the lock."""
        if topic is self._last_name:  # To hash a name takes longer than all else here.
            return self._last
        found = self._topics.get(topic)
        if found is None:
            if len(self._topics) >= TOPICS_MAX:
                self._topics.popitem(last=False)
            found = self._topics[topic] = TrafficCounts(since=now_us())
        else:
            self._topics.move_to_end(topic)
        self._last_name, self._last = topic, found
        return found

    def all(self) -> TrafficCounts:
        """Return the counts of all topics together."""
        with self._lock:
            return self._all.copy()

    def of(self, topic: TopicName) -> TrafficCounts:
        """Return a topic's counts, zeros where none are known."""
        with self._lock:
            found = self._topics.get(topic)
            return TrafficCounts(since=self._all.since) if found is None else found.copy()

    def latest(self, topics_max: int) -> list[TopicName]:
        """Return the topics of the last events, the last first."""
        with self._lock:
            return list(islice(reversed(self._topics), topics_max))

    def topics(self) -> int:
        """Return how many topics have counts."""
        with self._lock:
            return len(self._topics)
