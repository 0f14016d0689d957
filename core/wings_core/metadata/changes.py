"""Changes of a topic that a reader of many partitions has not looked at yet."""

import threading
from collections.abc import Callable, Container, Mapping

from wings_core.partitions import Partition


class TopicChanges:
    """Gathers what `OffsetRegistry.watch_topic` tells; all methods from any thread.

    Bounded by the topic's partitions: of each, only the last next offset is kept.

    Args:
        wake: Called after each change that is gathered; must be quick.
        wanted: The partitions of interest; None: all.
    """

    def __init__(
        self, wake: Callable[[], None], wanted: Container[Partition] | None = None
    ) -> None:
        self._wake = wake
        self._wanted = wanted
        self._lock = threading.Lock()
        self._ends: dict[Partition, int] = {}
        self._everything = False

    def hear(self, ends: Mapping[Partition, int] | None) -> None:
        """Gather a change; the callback for `watch_topic`."""
        wanted = self._wanted
        if ends is None:
            with self._lock:
                self._everything = True
        else:
            with self._lock:
                found = [each for each in ends if wanted is None or each in wanted]
                for partition in found:
                    # Commits may be told of in another order than they were made in.
                    self._ends[partition] = max(ends[partition], self._ends.get(partition, 0))
            if not found:
                return
        self._wake()

    def take(self) -> Mapping[Partition, int] | None:
        """Return the next offsets of partitions that changed since the last call.

        None: any partition may have changed, or the topic was deleted.
        """
        with self._lock:
            ends, self._ends = self._ends, {}
            everything, self._everything = self._everything, False
        return None if everything else ends
