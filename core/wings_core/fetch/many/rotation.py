"""The rotation: which partition of many is read next, so that none starves."""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from wings_core.partitions import Partition


@dataclass(slots=True, eq=False)
class Place:
    """Where the read of one partition stands."""

    partition: Partition
    offset: int
    """Where to read on."""
    stop: int
    """Where to stop for now, exclusive: a scan's end, else where the log is known to end."""
    log_end: int
    """The next offset to be assigned, as of the last look."""
    clamps: bool
    """Whether what retention takes is skipped; else it is an error."""
    is_born: bool = True
    """Whether anything was ever written to it."""
    moves: int = 0
    """How often its page was looked for again since it last moved."""
    queued: bool = False
    """Whether the rotation has it among those with rows."""

    @property
    def has_rows(self) -> bool:
        """Whether there is something to read."""
        return self.offset < self.stop


class Rotation:
    """The partitions of one read; those with rows take turns.

    A partition whose turn it was goes to the back if it has more, so every partition with rows has
    its turn after at most one turn of each other. For one thread.
    """

    def __init__(self, places: Iterable[Place] = ()) -> None:
        self._places: dict[Partition, Place] = {}
        self._ready: deque[Place] = deque()
        for place in places:
            self.add(place)

    @property
    def places(self) -> Iterable[Place]:
        """All partitions, in the order in which they came."""
        return self._places.values()

    @property
    def ready(self) -> int:
        """How many partitions have rows."""
        return len(self._ready)

    def find(self, partition: Partition) -> Place | None:
        """Return a partition's place, None where it is not read."""
        return self._places.get(partition)

    def add(self, place: Place) -> None:
        """Add a partition."""
        assert place.partition not in self._places
        self._places[place.partition] = place
        self._queue(place)

    def extend(self, place: Place, log_end: int) -> None:
        """Record that a partition's log ends at an offset, and read on to there."""
        if not place.is_born and log_end > 0:
            # It was born after the request came: it is read from its first message.
            place.is_born, place.clamps = True, True
            place.offset = 0
        place.log_end = max(place.log_end, log_end)
        place.stop = max(place.stop, log_end)
        self._queue(place)

    def skip(self, places: int) -> None:
        """Begin with another partition: so many of those with rows go to the back."""
        self._ready.rotate(-places)

    def turn(self, rows_each: int, rows_max: int, places_max: int) -> Sequence[Place]:
        """Return the partitions whose turn it is, one at least where one has rows.

        Args:
            rows_each: How many rows of each are read in a turn, at most `rows_max`.
            rows_max: The most rows of all of them together.
            places_max: The most partitions.
        """
        taken: list[Place] = []
        for place in islice(self._ready, places_max):
            rows_max -= min(rows_each, place.stop - place.offset)
            if rows_max < 0:
                break
            taken.append(place)
        return taken

    def rotate(self, places: int, before: Sequence[int]) -> None:
        """End a turn.

        Args:
            places: How many of the partitions it came to, from the first on.
            before: The offsets at which they stood when it began: those that did not move stay in
                front, as they have not had their turn.
        """
        moved: list[Place] = []
        waiting: list[Place] = []
        for offset in before[:places]:
            place = self._ready.popleft()
            place.queued = False
            if place.offset > offset:
                place.moves = 0
            if place.has_rows:
                (moved if place.offset > offset else waiting).append(place)
        for place in reversed(waiting):
            place.queued = True
            self._ready.appendleft(place)
        for place in moved:
            self._queue(place)

    def _queue(self, place: Place) -> None:
        if place.has_rows and not place.queued:
            place.queued = True
            self._ready.append(place)
