"""TopicPartitions: where the log stands in the partitions that somebody acquires from."""

import threading
from collections import OrderedDict
from dataclasses import dataclass

from wings_core.metadata.interfaces import OffsetRegistry
from wings_core.model import PartitionState, Topic
from wings_core.partitions import UNPARTITIONED, Partition
from wings_core.times import Deadline

PARTITIONS_SECONDS = 0.5
"""How often a wait for any partition of a partitioned topic looks for new ones."""

TOPICS_MAX = 1_000
"""Partitioned topics whose partitions are remembered for a moment."""


@dataclass(slots=True)
class _Known:
    """The partitions of a topic, as last looked at."""

    states: list[PartitionState]
    deadline: Deadline
    """When to look again."""


class TopicPartitions:
    """Remembers the partitions of topics for a moment; all methods from any thread.

    Args:
        registry: The log's index.
    """

    def __init__(self, registry: OffsetRegistry) -> None:
        self._registry = registry
        self._lock = threading.Lock()
        self._topics: OrderedDict[str, _Known] = OrderedDict()

    def states(self, topic: Topic, partition: Partition | None) -> list[PartitionState]:
        """Return where the log stands in what is asked for; all partitions are a little old.

        Args:
            topic: Whose.
            partition: None for all.
        """
        if partition is None and topic.partition_key is None:
            partition = UNPARTITIONED
        if partition is not None:
            return [self._registry.partition_state(topic.uuid, partition)]
        known = self._topics.get(topic.uuid)
        if known is None or known.deadline.passed:
            states = self._registry.partition_states(topic.uuid)
            known = _Known(states, Deadline.after(PARTITIONS_SECONDS))
            with self._lock:
                self._topics[topic.uuid] = known
                while len(self._topics) > TOPICS_MAX:
                    self._topics.popitem(last=False)
        return known.states

    def forget(self, topic: Topic, partition: Partition | None) -> bool:
        """Forget what all partitions were; false where nothing was remembered."""
        if partition is not None or topic.partition_key is None:
            return False
        with self._lock:
            return self._topics.pop(topic.uuid, None) is not None
