"""The pages that a damaged directory still has: looked at where what says so is not certain."""

from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import pyarrow as pa

from wings_core.check.log import FAULTS, problem_of
from wings_core.check.report import Page
from wings_core.data_directory import DataDirectory
from wings_core.limits import Limits
from wings_core.model import INLINE_SUFFIX, Location, Topic
from wings_core.partitions import UNPARTITIONED, Partition, partitions_of_keys
from wings_core.storage.codecs import CODECS
from wings_core.storage.inline_folios import InlineFolios
from wings_core.storage.interfaces import FolioStore
from wings_core.storage.mapping import SEGMENT_NAME
from wings_core.storage.open import open_storage
from wings_core.storage.parquet_file import is_parquet, read_footer
from wings_core.storage.segment_objects import LOCAL_SEGMENT_SUFFIX, store_suffix

_UUID_AT = slice(32, 48)
"""Of the topic, in the header of a page; see storage/page.py."""


class PageSource:
    """The files with pages of a directory; nothing of it is written.

    Args:
        directory: The damaged one.
        inline: The bytes of folios that metadata keeps, by name.
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
        """Return the file of a folio, None where it has none, or no name of one."""
        if SEGMENT_NAME.fullmatch(folio):
            return self._directory.segments / folio
        place = PurePosixPath(folio)
        is_within = not place.is_absolute() and ".." not in place.parts and "\0" not in folio
        if store_suffix(folio) == LOCAL_SEGMENT_SUFFIX and is_within:
            return self._directory.merged / folio
        return None

    def exists(self, folio: str) -> bool:
        """Tell whether there are bytes of a folio."""
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
        """Return the rows of a location; None where its page is damaged, or another's."""
        try:
            page = Page.of_location(topic, UNPARTITIONED, location)
            batch = CODECS[location.format].check(self._store, page.written, location.address)
            if location.first_row is not None:
                batch = batch.slice(location.first_row, location.rows)
        except FAULTS:
            return None
        return batch if batch.num_rows == location.rows else None

    def is_right(self, topic: Topic, partition: Partition, location: Location) -> bool:
        """Tell whether a location's page can be read, and is of this topic and partition."""
        batch = self.rows(topic, location)
        if batch is None:
            return False
        page = Page.of_location(topic, partition, location)
        try:
            return problem_of(batch, page) is None
        except FAULTS:
            return False

    def partition_of(self, topic: Topic, location: Location) -> Partition | None:
        """Return the partition whose rows lie at a location, by the rows themselves."""
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
        """Return the topic's UUID that the header of a page says, as 32 hexadecimal digits."""
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
    """Return the topic's UUID that the footer of a Parquet file says."""
    if path is None or not path.is_file():
        return None
    try:
        data = pa.py_buffer(path.read_bytes())
        footer = read_footer(lambda start, end: data.slice(start, end - start), data.size)
    except FAULTS:
        return None
    return footer.topic_uuid.replace("-", "")
