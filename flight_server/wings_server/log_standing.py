"""The state of a log for scrapes and its health: large topics one by one, others as totals.

Reading it has a bounded cost, except for one statement over all partitions; for a large log the
last state is cached for a few seconds.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from wings_core.errors import NotFound, Unavailable
from wings_core.log import Log
from wings_core.model import CommittedOffset, LargestTopics, ShareGroup, SharePartitionState
from wings_core.names import TopicName
from wings_core.partitions import Partition

TOPICS_MAX = 100
"""Most topics with series of their own; one less if others are summed."""

GROUPS_MAX = 1_000
"""Most share groups read for one scrape."""

CONSUMERS_MAX = 1_000
"""Most named consumers whose lag is computed for one scrape."""

SMALL = 10_000
"""Most topics and partitions of a log whose state is read for each scrape."""

KEPT_SECONDS = 5.0
"""Time for which the state of a larger log is cached."""


@dataclass(slots=True)
class LogStanding:
    """State of the log at one moment."""

    largest: LargestTopics
    ends: dict[TopicName, dict[Partition, tuple[int, int]]] = field(
        default_factory=dict[TopicName, dict[Partition, tuple[int, int]]]
    )
    """Start and next offsets of partitions of the largest topics, and of topics with consumers;
    those deleted meanwhile are missing."""
    lags: list[tuple[str, CommittedOffset, int]] = field(
        default_factory=list[tuple[str, CommittedOffset, int]]
    )
    """Offsets of named consumers, and the messages behind each that are still kept."""
    groups: list[tuple[ShareGroup, list[SharePartitionState]]] = field(
        default_factory=list[tuple[ShareGroup, list[SharePartitionState]]]
    )


class Standings:
    """Reader of a log's state. Thread-safe.

    Args:
        log: The log.
        clock: Returns monotonic seconds.
    """

    def __init__(self, log: Log, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._kept: tuple[float, LogStanding] | None = None
        """Cached state and its time; replaced without a lock, so that it may be read twice."""

    def look(self) -> LogStanding:
        """Return the state of the log, up to a few seconds old if large; blocks for metadata."""
        kept = self._kept
        if kept is not None and self._clock() < kept[0]:
            return kept[1]
        standing = self._look()
        is_large = _size(standing.largest) > SMALL
        self._kept = (self._clock() + KEPT_SECONDS, standing) if is_large else None
        return standing

    def _look(self) -> LogStanding:
        largest = self._log.maintenance.largest_topics(TOPICS_MAX, GROUPS_MAX)
        standing = LogStanding(largest)
        for each in largest.topics:
            self._ends(standing, each.topic, each.topic_uuid)
        registry = self._log.registry
        for consumer in registry.list_consumers(CONSUMERS_MAX):
            for entry in registry.get_offsets(consumer):
                start, end = self._ends(standing, entry.topic).get(entry.partition, (0, 0))
                standing.lags.append((consumer, entry, max(0, end - max(entry.offset, start))))
        for topic in largest.grouped:
            standing.groups += self._groups(topic, GROUPS_MAX - len(standing.groups))
        return standing

    def _ends(
        self, standing: LogStanding, topic: TopicName, uuid: str | None = None
    ) -> dict[Partition, tuple[int, int]]:
        if topic not in standing.ends:
            standing.ends[topic] = {}
            with suppress(NotFound):
                states = self._log.registry.partition_states(
                    uuid or self._log.admin.get_topic(topic).uuid
                )
                standing.ends[topic] = {
                    state.partition: (state.log_start_offset, state.next_offset) for state in states
                }
        return standing.ends[topic]

    def _groups(
        self, topic: TopicName, most: int
    ) -> Iterator[tuple[ShareGroup, list[SharePartitionState]]]:
        shares = self._log.shares
        with suppress(NotFound):  # Deleted meanwhile.
            for group in shares.of_topic(topic)[:most]:
                # If no majority of the replicas responds, the other groups still have series.
                with suppress(Unavailable):
                    yield group, shares.coordinator.positions.describe(group)


def _size(largest: LargestTopics) -> int:
    topics = len(largest.topics) + largest.others
    named = sum(each.sums.partitions for each in largest.topics)
    return topics + named + largest.of_others.partitions
