"""The bytes of files that pages take: do any two share some?"""

from array import array
from collections.abc import Iterator

from wings_core.check.report import Problem
from wings_core.model import Location, PartitionState, Topic

_INT64_MAX = (1 << 63) - 1

_NUMBERS = 5
"""Of each page: position, end, index of its owner, first and last offset."""


class Extents:
    """Which bytes of which file belong to which page; 40 bytes a page."""

    def __init__(self) -> None:
        self._owners: list[tuple[Topic, PartitionState]] = []
        self._by_folio: dict[str, array[int]] = {}

    def add(self, topic: Topic, state: PartitionState, location: Location) -> None:
        """Remember a page; those of a partition come one after the other."""
        if not self._owners or self._owners[-1][1] is not state:
            self._owners.append((topic, state))
        address = location.address
        extents = self._by_folio.setdefault(address.folio, array("q"))
        extents.extend(
            (
                address.position,
                min(address.position + max(0, address.length), _INT64_MAX),
                len(self._owners) - 1,
                location.start_offset,
                location.end_offset,
            )
        )

    def folios(self) -> set[str]:
        """Return the files that pages lie in."""
        return set(self._by_folio)

    def overlaps(self) -> Iterator[Problem]:
        """Yield each page that begins before one that lies before it ends."""
        for folio, extents in sorted(self._by_folio.items()):
            reach, reached_by = 0, ""
            for index in sorted(range(0, len(extents), _NUMBERS), key=extents.__getitem__):
                position, end, owner, start_offset, end_offset = extents[index : index + _NUMBERS]
                topic, state = self._owners[owner]
                if position < min(reach, end):
                    yield Problem(
                        f"it overlaps {reached_by}",
                        str(topic.name),
                        state.partition,
                        start_offset,
                        end_offset,
                        folio,
                        position,
                    )
                if end > reach:
                    reach = end
                    reached_by = (
                        f"the page at byte {position}, of {topic.name}, partition "
                        f"{state.partition}, offsets {start_offset} to {end_offset}"
                    )
