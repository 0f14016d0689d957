"""The fallback cache: locations of pages, for when the metadata service cannot be reached.

Where messages lie changes only by maintenance, which leaves the old place for a while, so a node
that has heard of them reads them on without the service. The ends of the log are as of the last
answer.
"""

import math
import threading
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

from wings_core.model import Located, Location
from wings_core.partitions import Partition
from wings_core.storage.lru import Lru

LOCATIONS_KNOWN_MAX = 65_536
"""Locations that a node remembers; the partition unused for longest is forgotten (~20 MB)."""

PARTITION_LOCATIONS_MAX = 16_384
"""Locations of one partition; beyond it the older half is forgotten."""


@dataclass(slots=True)
class _Partition:
    """A partition; locations are in order, and may have gaps between them."""

    log_start_offset: int = 0
    log_end_offset: int = 0
    ends: list[int] = field(default_factory=list[int])
    """The end offsets of the locations."""
    locations: list[Location] = field(default_factory=list[Location])

    def replace(self, locations: Sequence[Location]) -> None:
        """Replace the locations of the same offsets, since pages may have moved."""
        first = bisect_left(self.ends, locations[0].start_offset)
        last = first
        while (
            last < len(self.ends) and self.locations[last].start_offset <= locations[-1].end_offset
        ):
            last += 1
        self.ends[first:last] = [location.end_offset for location in locations]
        self.locations[first:last] = locations


class LocationCache:
    """Locations by topic and partition; all methods from any thread.

    Its lock is held for list operations and never while anything is called, but for the memory's.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._partitions: Lru[tuple[str, Partition], _Partition] = Lru(LOCATIONS_KNOWN_MAX)

    def learn(self, topic_uuid: str, partition: Partition, located: Located) -> None:
        """Add what the service answered."""
        key = (topic_uuid, partition)
        with self._lock:
            known = self._partitions.get(key) or _Partition()
            known.log_start_offset = max(known.log_start_offset, located.log_start_offset)
            known.log_end_offset = max(known.log_end_offset, located.log_end_offset)
            if located.locations:
                known.replace(located.locations)
            if len(known.ends) > PARTITION_LOCATIONS_MAX:
                half = len(known.ends) // 2
                del known.ends[:half], known.locations[:half]
            self._partitions.put(key, known, 1 + len(known.ends))

    def locate(
        self, topic_uuid: str, partition: Partition, offset: int, messages_max: int, most: int
    ) -> Located | None:
        """Return the cached locations from an offset on, None where there are none.

        At the end of the log, as it is known, that is no location.

        Args:
            topic_uuid: The topic.
            partition: The partition.
            offset: First message wanted.
            messages_max: Stop once the pages hold this many messages.
            most: The most locations.
        """
        with self._lock:
            known = self._partitions.get((topic_uuid, partition))
            if known is None or offset < known.log_start_offset:
                return None
            found: list[Location] = []
            at = offset
            for index in range(bisect_left(known.ends, offset), len(known.ends)):
                location = known.locations[index]
                if location.start_offset > at or len(found) >= most:
                    break
                found.append(location)
                at = location.end_offset + 1
                if at >= offset + messages_max:
                    break
            if not found and offset < known.log_end_offset:
                return None
            return Located(
                tuple(found), known.log_start_offset, known.log_end_offset, asked_at=-math.inf
            )

    def forget(self, topic_uuid: str) -> None:
        """Drop the locations of a deleted topic."""
        with self._lock:
            self._partitions.discard_where(lambda key: key[0] == topic_uuid)
