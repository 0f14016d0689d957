"""A cache of pages of object stores, bounded in bytes, and the pages that it holds.

Pages are held whole or as some columns, verified once and decoded for their readers.
"""

import itertools
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import pyarrow as pa

from wings_core.errors import StorageCorrupt
from wings_core.model import PageAddress
from wings_core.storage.ipc import is_compressed, prune_metadata
from wings_core.storage.lru import Lru
from wings_core.storage.page import (
    PageHead,
    buffers_of,
    parts_of,
    read_head,
    read_page,
    shape_of_topic,
    verify_page,
)

DECODED_BUFFER_BYTES = 200
"""Approximate overhead of each buffer of a decoded batch."""


class HeldPage(Protocol):
    """A page in memory, readable without a request to the object store."""

    def read(
        self, topic_uuid: str, schema: pa.Schema, columns: Sequence[int] | None
    ) -> pa.RecordBatch:
        """Return rows, or some of their columns; see `FolioStore.read`.

        Raises:
            StorageCorrupt: A column not verified before is damaged, or the page belongs to another
                topic.
        """
        ...

    @property
    def extra_bytes(self) -> int:
        """Memory that the page takes in addition to the bytes read."""
        ...

    @property
    def is_compressed(self) -> bool:
        """Whether each read decodes the rows again."""
        ...


class WholePage:
    """All bytes of a page.

    Args:
        page: The page, with its padding.
        topic_uuid: The topic that it must belong to.
        schema: The topic's schema.
        parts: The parts to verify now, as a bit mask of `parts_of`.

    Raises:
        StorageCorrupt: One of `parts` is damaged.
    """

    def __init__(self, page: pa.Buffer, topic_uuid: str, schema: pa.Schema, parts: int) -> None:
        self._page = page
        self._topic_uuid = topic_uuid
        self._verified = parts
        head = verify_page(page, topic_uuid, schema, parts)
        self._rows: pa.RecordBatch | None = None
        """Decoded rows; None for compressed buffers, which each read decodes as needed."""
        self.is_compressed = is_compressed(head.metadata)
        if not self.is_compressed:
            self._rows = read_page(page, topic_uuid, schema)
        self.extra_bytes = buffers_of(topic_uuid, schema) * DECODED_BUFFER_BYTES

    def read(
        self, topic_uuid: str, schema: pa.Schema, columns: Sequence[int] | None
    ) -> pa.RecordBatch:
        """See `HeldPage.read`."""
        parts = parts_of(schema, columns)
        missing = parts & ~self._verified
        if missing or topic_uuid != self._topic_uuid:
            verify_page(self._page, topic_uuid, schema, missing)
            self._verified |= parts
        if self._rows is not None:
            return self._rows if columns is None else self._rows.select(list(columns))
        if columns is None:
            return read_page(self._page, topic_uuid, schema)
        if list(columns) == list(range(len(columns))):
            # pyarrow reads only as many columns as the schema has.
            return read_page(self._page, topic_uuid, pa.schema(list(schema)[: len(columns)]))
        head = read_head(memoryview(self._page), self._page.size, topic_uuid, schema)
        bytes_of: dict[int, pa.Buffer] = {}
        for column in set(columns):
            start, end = head.column(column)
            bytes_of[column] = self._page.slice(start, end - start)
        return PrunedPage(head, topic_uuid, schema, bytes_of).read(topic_uuid, schema, columns)


class WrittenPage:
    """An uncompressed page that this process has just written, for its first readers.

    Args:
        page: The page, with its padding.
    """

    def __init__(self, page: pa.Buffer) -> None:
        self._page = page
        self._rows: pa.RecordBatch | None = None
        self._topic_uuid = ""
        """UUID of the rows' topic."""
        self.extra_bytes = 0
        self.is_compressed = False

    def read(
        self, topic_uuid: str, schema: pa.Schema, columns: Sequence[int] | None
    ) -> pa.RecordBatch:
        """See `HeldPage.read`; verifies nothing, as the bytes never left memory."""
        if self._rows is None or topic_uuid != self._topic_uuid:
            self._rows = read_page(self._page, topic_uuid, schema)
            self._topic_uuid = topic_uuid
        return self._rows if columns is None else self._rows.select(list(columns))


class PrunedPage:
    """Some columns of a page, as a message of its own.

    Args:
        head: Header and metadata of the page.
        topic_uuid: UUID of its topic.
        schema: The topic's whole schema.
        columns: Verified bytes of each column, by index.
    """

    def __init__(
        self, head: PageHead, topic_uuid: str, schema: pa.Schema, columns: dict[int, pa.Buffer]
    ) -> None:
        self._topic_uuid = topic_uuid
        kept = sorted(columns)
        self._place = {column: place for place, column in enumerate(kept)}
        self._schema = pa.schema([schema.field(column) for column in kept])
        shape = shape_of_topic(topic_uuid, schema)
        metadata = prune_metadata(head.metadata, shape, head.layout, kept)
        self._message = _joined([pa.py_buffer(metadata), *(columns[column] for column in kept)])
        self.is_compressed = is_compressed(head.metadata)
        self._rows = None if self.is_compressed else self._decode()
        buffers = sum(
            shape.first_buffers[column + 1] - shape.first_buffers[column] for column in kept
        )
        self.extra_bytes = len(metadata) + buffers * DECODED_BUFFER_BYTES

    def read(
        self, topic_uuid: str, schema: pa.Schema, columns: Sequence[int] | None
    ) -> pa.RecordBatch:
        """See `HeldPage.read`; `columns` must be among those held."""
        if topic_uuid != self._topic_uuid:
            raise StorageCorrupt(f"it belongs to topic {self._topic_uuid}, not to {topic_uuid}")
        assert columns is not None, "a read of all columns reads the whole page"
        rows = self._decode() if self._rows is None else self._rows
        return rows.select([self._place[column] for column in columns])

    def _decode(self) -> pa.RecordBatch:
        try:
            return pa.ipc.read_record_batch(self._message, self._schema)
        except MemoryError:
            raise  # StorageCorrupt is also an Arrow exception.
        except (pa.ArrowException, OSError) as error:
            raise StorageCorrupt(f"its rows cannot be read: {error}") from error


def _joined(parts: Sequence[pa.Buffer]) -> pa.Buffer:
    """Return a concatenated copy of all parts."""
    joined = pa.allocate_buffer(sum(part.size for part in parts))
    view = memoryview(joined).cast("B")
    position = 0
    for part in parts:
        view[position : position + part.size] = memoryview(part).cast("B")
        position += part.size
    return joined


WHOLE = -1
"""Value of `PageKey.parts` for a whole page."""


DECODED_SHARE = 4
"""Divisor of the cache size: the share for decoded rows of repeatedly read compressed pages."""

READ_ONCE_MAX = 1_024
"""Compressed pages remembered as read once recently."""


class RowsKey(NamedTuple):
    """Key of decoded rows of a compressed page, with their columns in order."""

    folio: str
    position: int
    columns: tuple[int, ...] | None


class PageKey(NamedTuple):
    """Key of a page, or of the columns of it in `parts`."""

    folio: str
    position: int
    length: int
    parts: int

    @classmethod
    def of(cls, address: PageAddress, parts: int) -> "PageKey":
        """Return the key for parts of a page: a bit mask of `page.parts_of`, or `WHOLE`."""
        return cls(address.folio, address.position, address.length, parts)


@dataclass(slots=True)
class CacheCounts:
    """Counts of hits and misses."""

    hits: int = 0
    """Pages found in the cache."""
    misses: int = 0


class PageCache:
    """The most recently read or written pages. Thread-safe.

    Pages read together share memory that is freed with the last of them, so they are cached and
    evicted together, and the bound applies to the memory held. Batches in use by readers keep
    their memory beyond that.

    Compressed pages are cached as stored. The decoded rows of a page are cached as well when it is
    read a second time soon: many small fetches from a large page would decode it each time. A
    single long scan caches no rows.

    Args:
        bytes_max: Approximate memory of all pages. The group put last is kept whatever its size.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        decoded_bytes_max = bytes_max // DECODED_SHARE
        self._rows: Lru[RowsKey, pa.RecordBatch] = Lru(decoded_bytes_max)
        self._read_once: Lru[RowsKey, None] = Lru(READ_ONCE_MAX)
        self._groups: Lru[int, Mapping[PageKey, HeldPage]] = Lru(
            bytes_max - decoded_bytes_max, self._forget
        )
        self._group_of: dict[PageKey, int] = {}
        self._keys_of: dict[int, tuple[PageKey, ...]] = {}
        self._numbers_of: dict[str, set[int]] = {}
        """Numbers of the groups of each folio; a group has pages of one folio."""
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        """Guards the three mappings; a leaf lock."""
        self._counts = CacheCounts()

    @property
    def bytes(self) -> int:
        """Approximate memory held."""
        return self._groups.weight + self._rows.weight

    @property
    def counts(self) -> CacheCounts:
        """Hits and misses so far."""
        return self._counts

    def get(self, address: PageAddress, parts: int) -> HeldPage | None:
        """Return a page that holds at least `parts` and mark it as used; None if there is none."""
        for key in (PageKey.of(address, WHOLE), PageKey.of(address, parts)):
            number = self._group_of.get(key)
            group = None if number is None else self._groups.get(number)
            if group is not None:
                self._counts.hits += 1  # Not atomic: only shown to people.
                return group[key]
        self._counts.misses += 1
        return None

    def rows(self, key: RowsKey) -> pa.RecordBatch | None:
        """Return the rows of a compressed page and mark them as used; None if there are none."""
        rows = self._rows.get(key)
        if rows is not None:
            self._counts.hits += 1
        return rows

    def keep_rows(self, key: RowsKey, rows: pa.RecordBatch) -> None:
        """Cache the rows of a compressed page, unless this is its first read."""
        size = rows.get_total_buffer_size()
        if size > self.bytes_max // DECODED_SHARE:
            return
        if not self._read_once.discard(key):
            self._read_once.put(key, None)
            return
        self._rows.put(key, rows, size)

    def put(self, pages: Mapping[PageKey, HeldPage], size: int) -> None:
        """Cache pages that were read together.

        Args:
            pages: At least one page, all of one folio.
            size: Memory that they share, in bytes.
        """
        number = next(self._numbers)
        folio = next(iter(pages)).folio
        with self._lock:
            self._numbers_of.setdefault(folio, set()).add(number)
            self._keys_of[number] = tuple(pages)
            self._group_of.update(dict.fromkeys(pages, number))
        self._groups.put(number, pages, size)

    def discard_page(self, address: PageAddress, parts: int) -> None:
        """Drop the page that `get` would return, and the pages that share its memory."""
        for key in (PageKey.of(address, WHOLE), PageKey.of(address, parts)):
            number = self._group_of.get(key)
            if number is not None:
                self._groups.discard(number)
                self._forget(number)

    def discard(self, folio: str) -> None:
        """Drop the pages of a folio."""
        with self._lock:
            numbers = set(self._numbers_of.get(folio, ()))
        self._rows.discard_where(lambda key: key.folio == folio)
        for number in numbers:
            self._groups.discard(number)
            self._forget(number)

    def clear(self) -> None:
        """Drop everything."""
        with self._lock:
            self._group_of.clear()
            self._keys_of.clear()
            self._numbers_of.clear()
        self._groups.clear()
        self._rows.clear()
        self._read_once.clear()

    def _forget(self, number: int) -> None:
        with self._lock:
            keys = self._keys_of.pop(number, ())
            for key in keys:
                if self._group_of.get(key) == number:
                    del self._group_of[key]
            numbers = self._numbers_of.get(keys[0].folio) if keys else None
            if numbers is not None:
                numbers.discard(number)
                if not numbers:
                    del self._numbers_of[keys[0].folio]
