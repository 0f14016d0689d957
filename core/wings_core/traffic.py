"""Traffic: rows and bytes received and sent, and errors answered, by this process."""

import threading
from collections import OrderedDict
from dataclasses import dataclass, replace
from itertools import islice

from wings_core.names import TopicName
from wings_core.times import now_us

TOPICS_MAX = 10_000
"""Most topics with counts of their own; the longest idle one is dropped beyond it."""


@dataclass(slots=True)
class TrafficCounts:
    """Rows and bytes pushed and delivered; bytes are those of Arrow data, or of JSON sent."""

    rows_in: int = 0
    bytes_in: int = 0
    rows_out: int = 0
    bytes_out: int = 0
    since: int = 0
    """Start of the counting, in microseconds since the epoch."""

    def copy(self) -> "TrafficCounts":
        """Return a snapshot of the counts."""
        return replace(self)


class Traffic:
    """Counts of rows and bytes. Thread-safe, never blocks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._topics: OrderedDict[TopicName, TrafficCounts] = OrderedDict()
        self._all = TrafficCounts(since=now_us())
        self._last_name: TopicName | None = None
        """The topic counted last."""
        self._last = self._all
        """The counts of that topic."""
        self._errors = self._faults = 0

    def pushed(self, topic: TopicName, rows: int, size: int) -> None:
        """Count `rows` of `size` bytes committed by a push."""
        with self._lock:
            for counts in (self._all, self._of(topic)):
                counts.rows_in += rows
                counts.bytes_in += size

    def delivered(self, topic: TopicName, rows: int, size: int) -> None:
        """Count `rows` of `size` bytes sent by a read."""
        with self._lock:
            for counts in (self._all, self._of(topic)):
                counts.rows_out += rows
                counts.bytes_out += size

    def failed(self, *, fault: bool) -> None:
        """Count an error answered; `fault`: one of the server itself."""
        with self._lock:
            self._errors += 1
            self._faults += fault

    def errors(self) -> tuple[int, int]:
        """Return the number of errors answered, and of the faults among them."""
        with self._lock:
            return self._errors, self._faults

    def _of(self, topic: TopicName) -> TrafficCounts:
        """Return the counts of a topic for an event now; called with the lock held."""
        if topic is self._last_name:  # Hashing a name takes longer than everything else here.
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
        """Return a topic's counts, zeros if there are none."""
        with self._lock:
            found = self._topics.get(topic)
            return TrafficCounts(since=self._all.since) if found is None else found.copy()

    def latest(self, topics_max: int) -> list[TopicName]:
        """Return the topics of the last events, the latest first."""
        with self._lock:
            return list(islice(reversed(self._topics), topics_max))

    def topics(self) -> int:
        """Return the number of topics with counts."""
        with self._lock:
            return len(self._topics)
