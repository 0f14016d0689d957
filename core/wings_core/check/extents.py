"""The byte ranges of pages in files, and a search for overlaps."""

from array import array
from collections.abc import Iterator

from wings_core.check.report import Page, Problem
from wings_core.model import Topic
from wings_core.partitions import Partition

_INT64_MAX = (1 << 63) - 1

_NUMBERS = 7
"""Integers per page: position, first row, rows, end, index of its owner, first and last offset."""

_ALL_ROWS = -1
"""First row of a whole page, as opposed to a slice."""

_NO_OFFSET = -1
"""Offset of pages in a stage, which have none."""

_Owner = tuple[Topic, Partition, str | None]
"""The owner of pages: a partition of a topic, or a stage of it."""


class Extents:
    """Byte ranges and their owners, by file; 56 bytes of memory a page or slice."""

    def __init__(self) -> None:
        self._owners: list[_Owner] = []
        self._indices: dict[tuple[str, Partition, str | None], int] = {}
        self._by_folio: dict[str, array[int]] = {}

    def add(self, page: Page) -> None:
        """Record the byte range and the owner of a page."""
        # Not keyed by the topic: hashing its schema for each page would be slow.
        key = (page.topic.uuid, page.partition, page.stage)
        owner = self._indices.get(key)
        if owner is None:
            owner = self._indices[key] = len(self._owners)
            self._owners.append((page.topic, page.partition, page.stage))
        address = page.address
        extents = self._by_folio.setdefault(address.folio, array("q"))
        extents.extend(
            (
                address.position,
                _ALL_ROWS if page.first_row is None else page.first_row,
                page.rows,
                min(address.position + max(0, address.length), _INT64_MAX),
                owner,
                _NO_OFFSET if page.start_offset is None else page.start_offset,
                _NO_OFFSET if page.end_offset is None else page.end_offset,
            )
        )

    def folios(self) -> set[str]:
        """Return the names of files with pages."""
        return set(self._by_folio)

    def pages_of(self, folio: str) -> tuple[Topic, list[tuple[int, int]]]:
        """Return the topic of a folio's first page, and each page's position and end, in order."""
        extents = self._by_folio[folio]
        pages = {(extents[at], extents[at + 3]) for at in range(0, len(extents), _NUMBERS)}
        return self._owners[extents[4]][0], sorted(pages)

    def overlaps(self) -> Iterator[Problem]:
        """Yield a problem for each page that overlaps the page before it.

        Slices of one page may share its bytes, but not its rows.
        """
        for folio, extents in sorted(self._by_folio.items()):
            reach, reached_by = 0, ""
            page, rows_reach = (_NO_OFFSET, _NO_OFFSET), 0
            for index in sorted(
                range(0, len(extents), _NUMBERS), key=lambda at: (extents[at], extents[at + 1])
            ):
                position, first_row, rows, end, owner, start_offset, end_offset = extents[
                    index : index + _NUMBERS
                ]
                topic, partition, stage = self._owners[owner]
                is_slice = first_row != _ALL_ROWS
                follows = is_slice and page == (position, end) and first_row >= rows_reach
                if position < min(reach, end) and not follows:
                    yield Problem(
                        f"it overlaps {reached_by}",
                        str(topic.name),
                        partition,
                        None if stage is not None else start_offset,
                        None if stage is not None else end_offset,
                        folio,
                        position,
                        stage,
                    )
                if is_slice:
                    rows_reach = max(rows_reach if page == (position, end) else 0, first_row + rows)
                    page = (position, end)
                if end > reach or follows:
                    reach = end
                    place = (
                        f"offsets {start_offset} to {end_offset}"
                        if stage is None
                        else f"of stage {stage}"
                    )
                    reached_by = (
                        f"the page at byte {position}, of {topic.name}, partition "
                        f"{partition}, {place}"
                    )
