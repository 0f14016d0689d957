"""What the notes beside metadata say: topics, and where pages lie or lay."""

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wings_core.errors import Internal
from wings_core.metadata.sqlite.notes import COLUMNS, MOVED, PUSHED, read_notes
from wings_core.metadata.store.rows import location_of
from wings_core.model import Location
from wings_core.partitions import Partition
from wings_core.repair.catalog import as_int
from wings_core.repair.shapes import Row, Shape

_ADDED_COLUMNS = 1
"""At the end of the notes of a table, since the first version that wrote them."""


class Noted:
    """The notes of a directory; what of them is still true is for their reader to find out.

    Args:
        path: The file; need not be there.
        shapes: The tables.

    Raises:
        OSError: It cannot be read.
    """

    def __init__(self, path: Path, shapes: Mapping[str, Shape]) -> None:
        self._found: dict[str, dict[int, Row]] = defaultdict(dict)
        self._located: dict[tuple[int, Partition], list[Location]] = defaultdict(list)
        for table, rows in read_notes(path):
            for values in rows:
                row = _row(shapes, table, values)
                if row is None:
                    continue
                if table in (PUSHED, MOVED):
                    self._add_page(row)
                else:
                    self._found[table][as_int(row["id"])] = row
        self.partition_ids = self._found["partitions"]
        """Rows of partitions, without where they stand, by id."""

    def _add_page(self, row: Row) -> None:
        """Note a page of the partition and the file that had its ids then."""
        partition = self._found["partitions"].get(as_int(row["partition_id"]))
        folio = self._found["folios"].get(as_int(row["folio_id"]))
        if partition is None or folio is None:
            return
        location = _location(str(folio["name"]), row)
        if location is not None:
            key = as_int(partition["topic_id"]), Partition(str(partition["value"]))
            self._located[key].append(location)

    def topics(self) -> list[Row]:
        """Return the rows of topics that were not deleted, each with those of its namespace."""
        topics: list[Row] = []
        for row in self._found["topics"].values():
            namespace = None
            if row["namespace_id"] is not None:
                namespace = self._found["namespaces"].get(as_int(row["namespace_id"]))
            if row["deleted_at"] is None and namespace is not None:
                of_namespace = {
                    "tenant": namespace["tenant"],
                    "namespace": namespace["name"],
                    "namespace_uuid": namespace["uuid"],
                }
                topics.append({**row, **of_namespace})
        return topics

    def pages(self, topic_ids: Mapping[int, str]) -> dict[tuple[str, Partition], list[Location]]:
        """Return where pages lie or lay, by topic UUID and partition, the last noted first.

        Args:
            topic_ids: The UUIDs of topics by id; pages of others are left out.
        """
        return {
            (topic_ids[topic_id], value): locations[::-1]
            for (topic_id, value), locations in self._located.items()
            if topic_id in topic_ids
        }


def _location(folio: str, row: Row) -> Location | None:
    names = ("position", "length", "first_timestamp", "format", "first_row", "slice_bytes")
    values: list[Any] = [*(row.get(name) for name in names), row.get("schema_version", 1)]
    offsets = as_int(row["start_offset"]), as_int(row["end_offset"])
    try:
        return location_of(*offsets, as_int(row["timestamp"]), folio, *values)
    except Internal:
        return None


def _row(shapes: Mapping[str, Shape], table: object, values: object) -> Row | None:
    """Return a note as a row, None where it is none: of a version of other columns, say.

    One from before a column was added ends before it.
    """
    columns = COLUMNS.get(str(table))
    if columns is None or not isinstance(values, tuple):
        return None
    if not len(columns) - _ADDED_COLUMNS <= len(values) <= len(columns):
        return None
    row = dict(zip(columns, values, strict=False))
    shape = shapes["pages" if table in (PUSHED, MOVED) else str(table)]
    for column, kind, nullable in zip(shape.columns, shape.types, shape.nullable, strict=True):
        value = row.get(column)
        if column in row and type(value) is not kind and not (nullable and value is None):
            return None
    return row
