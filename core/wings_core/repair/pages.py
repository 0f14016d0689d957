"""Sources beside metadata: the pages of a damaged directory, and its notes."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa

from wings_core.check.log import FAULTS, problem_of
from wings_core.check.report import Page
from wings_core.data_directory import DataDirectory
from wings_core.errors import Internal
from wings_core.limits import Limits
from wings_core.metadata.sqlite.notes import COLUMNS, MOVED, PUSHED, read_notes
from wings_core.metadata.store.pages import location_of
from wings_core.model import INLINE_SUFFIX, Location, Topic
from wings_core.partitions import UNPARTITIONED, Partition, partitions_of_keys
from wings_core.repair.catalog import as_int
from wings_core.repair.salvage import Row, Shape
from wings_core.storage.codecs import CODECS
from wings_core.storage.folio_stores import LOCAL_SEGMENT_SUFFIX, store_suffix
from wings_core.storage.inline_folios import InlineFolios
from wings_core.storage.interfaces import FolioStore
from wings_core.storage.open import open_storage
from wings_core.storage.parquet_file import is_parquet, read_footer
from wings_core.storage.segments import SEGMENT_NAME

_UUID_AT = slice(32, 48)
"""Position of the topic's UUID in the header of a page; see storage/page.py."""


class PageSource:
    """The files with pages of a directory, opened read-only.

    Args:
        directory: The damaged directory.
        inline: The bytes of inline folios, by name.
    """

    def __init__(self, directory: DataDirectory, inline: dict[str, bytes]) -> None:
        self._directory = directory
        self._inline = inline
        self._store: FolioStore = open_storage(
            directory, Limits(), inline=InlineFolios(self._read_inline)
        ).store

    def close(self) -> None:
        """Close the files."""
        self._store.close()

    def _read_inline(self, folios: Sequence[str]) -> dict[str, bytes]:
        return {name: self._inline[name] for name in folios if name in self._inline}

    def path_of(self, folio: str) -> Path | None:
        """Return the path of a folio's file; None if it has none, or its name is invalid."""
        if SEGMENT_NAME.fullmatch(folio):
            return self._directory.segments / folio
        place = PurePosixPath(folio)
        is_within = not place.is_absolute() and ".." not in place.parts and "\0" not in folio
        if store_suffix(folio) == LOCAL_SEGMENT_SUFFIX and is_within:
            return self._directory.merged / folio
        return None

    def exists(self, folio: str) -> bool:
        """Return whether a folio's bytes exist."""
        path = self.path_of(folio)
        return folio in self._inline or (path is not None and path.is_file())

    def folios(self) -> set[str]:
        """Return the names of all files with pages."""
        found: set[str] = set()
        if self._directory.segments.is_dir():
            found |= {path.name for path in self._directory.segments.iterdir()}
        merged = self._directory.merged
        if merged.is_dir():
            found |= {
                path.relative_to(merged).as_posix()
                for path in merged.rglob(f"*{LOCAL_SEGMENT_SUFFIX}*")
            }
        return {name for name in found if self.path_of(name) is not None}

    def rows(self, topic: Topic, location: Location) -> pa.RecordBatch | None:
        """Return the rows at a location; None if the page is damaged or not the topic's."""
        try:
            page = Page.of_location(topic, UNPARTITIONED, location)
            batch = CODECS[location.format].check(self._store, page.written, location.address)
            if location.first_row is not None:
                batch = batch.slice(location.first_row, location.rows)
        except FAULTS:
            return None
        return batch if batch.num_rows == location.rows else None

    def is_right(self, topic: Topic, partition: Partition, location: Location) -> bool:
        """Return whether the page can be read and belongs to this topic and partition."""
        batch = self.rows(topic, location)
        if batch is None:
            return False
        page = Page.of_location(topic, partition, location)
        try:
            return problem_of(batch, page) is None
        except FAULTS:
            return False

    def partition_of(self, topic: Topic, location: Location) -> Partition | None:
        """Return the partition of a page, derived from its rows."""
        if topic.partition_key is None:
            return UNPARTITIONED
        batch = self.rows(topic, location)
        if batch is None:
            return None
        try:
            keys = partitions_of_keys(batch.column(topic.partition_key).unique())
        except FAULTS:
            return None
        return keys[0] if len(keys) == 1 else None

    def topic_uuid_of(self, location: Location) -> str | None:
        """Return the topic's UUID from the header of a page, as 32 hexadecimal digits."""
        address = location.address
        if is_parquet(address.folio):
            return _parquet_uuid(self.path_of(address.folio))
        data = b""
        if address.folio.endswith(INLINE_SUFFIX):
            data = self._inline.get(address.folio, b"")[address.position :]
        else:
            path = self.path_of(address.folio)
            if path is not None and path.is_file() and address.position >= 0:
                with path.open("rb") as file:
                    file.seek(address.position)
                    data = file.read(_UUID_AT.stop)
        return data[_UUID_AT].hex() if len(data) >= _UUID_AT.stop else None


def _parquet_uuid(path: Path | None) -> str | None:
    """Return the topic's UUID from the footer of a Parquet file."""
    if path is None or not path.is_file():
        return None
    try:
        data = pa.py_buffer(path.read_bytes())
        footer = read_footer(lambda start, end: data.slice(start, end - start), data.size)
    except FAULTS:
        return None
    return footer.topic_uuid.replace("-", "")


_ADDED_COLUMNS = 1
"""Columns added at the end of a table since notes are written."""


class Noted:
    """The notes of a directory; they may be outdated, so readers must verify them.

    Args:
        path: The file; may be missing.
        shapes: The tables, by name.

    Raises:
        OSError: The file cannot be read.
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
        """Rows of partitions by id, without their offsets."""

    def _add_page(self, row: Row) -> None:
        """Record a page with the partition and the file that had its ids at the time."""
        partition = self._found["partitions"].get(as_int(row["partition_id"]))
        folio = self._found["folios"].get(as_int(row["folio_id"]))
        if partition is None or folio is None:
            return
        location = _location(str(folio["name"]), row)
        if location is not None:
            key = as_int(partition["topic_id"]), Partition(str(partition["value"]))
            self._located[key].append(location)

    def topics(self) -> list[Row]:
        """Return the rows of topics that were not deleted, joined with their namespaces'."""
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
        """Return noted locations of pages by topic UUID and partition, the latest first.

        Args:
            topic_ids: UUIDs of topics by id; pages of others are left out.
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
    """Return a note as a row; None if it does not fit the table, for example by its version.

    A note from before a column was added ends before that column.
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
