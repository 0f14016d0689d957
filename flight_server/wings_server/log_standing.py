"""Where a log stands at a scrape: its largest topics one by one, all others as sums.

What one look costs is bounded, but for one statement over all partitions; of a log that has many,
the last look is good for a few seconds.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from wings_core.errors import NotFound, Unavailable
from wings_core.log import Log
from wings_core.model import LargestTopics, ShareGroup, SharePartitionState
from wings_core.names import TopicName
from wings_core.partitions import Partition

TOPICS_MAX = 100
"""The most topics that have series of their own, one less where others are summed."""

GROUPS_MAX = 1_000
"""The most share groups that are looked at in one scrape."""

CONSUMERS_MAX = 1_000
"""The most named consumers whose lag is computed in one scrape."""

SMALL = 10_000
"""The most topics and partitions of a log that is looked at anew for each scrape."""

KEPT_SECONDS = 5.0
"""How long a look at a larger one is good for."""


@dataclass(slots=True)
class LogStanding:
    """The state of the log at one moment."""

    largest: LargestTopics
    ends: dict[TopicName, dict[Partition, int]] = field(
        default_factory=dict[TopicName, dict[Partition, int]]
    )
    """The next offsets of the partitions of the largest topics, and of those that consumers read;
    none of a topic that was deleted meanwhile."""
    lags: list[tuple[str, TopicName, Partition, int]] = field(
        default_factory=list[tuple[str, TopicName, Partition, int]]
    )
    groups: list[tuple[ShareGroup, list[SharePartitionState]]] = field(
        default_factory=list[tuple[ShareGroup, list[SharePartitionState]]]
    )


class Standings:
    """Looks at a log; safe for any thread.

    Args:
        log: Which.
        clock: In seconds, from any moment.
    """

    def __init__(self, log: Log, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._kept: tuple[float, LogStanding] | None = None
        """Replaced as a whole, without a lock: two who look at once both ask metadata."""

    def look(self) -> LogStanding:
        """Return where the log stands, of a large one a few seconds ago; blocks for metadata."""
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
                next_offset = self._ends(standing, entry.topic).get(entry.partition, 0)
                lag = max(0, next_offset - entry.offset)
                standing.lags.append((consumer, entry.topic, entry.partition, lag))
        for topic in largest.grouped:
            standing.groups += self._groups(topic, GROUPS_MAX - len(standing.groups))
        return standing

    def _ends(
        self, standing: LogStanding, topic: TopicName, uuid: str | None = None
    ) -> dict[Partition, int]:
        if topic not in standing.ends:
            standing.ends[topic] = {}
            with suppress(NotFound):
                states = self._log.registry.partition_states(
                    uuid or self._log.admin.get_topic(topic).uuid
                )
                standing.ends[topic] = {state.partition: state.next_offset for state in states}
        return standing.ends[topic]

    def _groups(
        self, topic: TopicName, most: int
    ) -> Iterator[tuple[ShareGroup, list[SharePartitionState]]]:
        shares = self._log.shares
        with suppress(NotFound):  # It was deleted meanwhile.
            for group in shares.of_topic(topic)[:most]:
                # Where no majority of the replicas answers, the other groups have series.
                with suppress(Unavailable):
                    yield group, shares.describe(group)


def _size(largest: LargestTopics) -> int:
    topics = len(largest.topics) + largest.others
    named = sum(each.sums.partitions for each in largest.topics)
    return topics + named + largest.of_others.partitions
