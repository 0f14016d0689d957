"""Pages of object stores in memory, bounded by bytes."""

import itertools
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from wings_core.model import PageAddress
from wings_core.storage.held_page import HeldPage
from wings_core.storage.lru import Lru

WHOLE = -1
"""In a key: the whole page is held, not some of its columns."""


DECODED_SHARE = 4
"""Rows of compressed pages that are read again and again take up to this part of the cache."""

READ_ONCE_MAX = 1_024
"""Compressed pages of which it is remembered that they were read lately."""


class RowsKey(NamedTuple):
    """Rows of a compressed page: all columns, or some of them in an order."""

    folio: str
    position: int
    columns: tuple[int, ...] | None


class PageKey(NamedTuple):
    """What is held: a page, or those of its columns that `parts` says."""

    folio: str
    position: int
    length: int
    parts: int

    @classmethod
    def of(cls, address: PageAddress, parts: int) -> "PageKey":
        """Return the key of a page's parts, a bit mask as of `page.parts_of`, or `WHOLE`."""
        return cls(address.folio, address.position, address.length, parts)


@dataclass(slots=True)
class CacheCounts:
    """What readers found."""

    hits: int = 0
    """Pages that were there."""
    misses: int = 0


class PageCache:
    """Keeps what was read or written last; safe from many threads.

    Pages that were read together share memory, which is free only when the last of them is: so they
    are kept together and forgotten together, and the bound is on memory really held. Rows handed
    out keep theirs beyond it, for as long as their readers have them.

    Compressed pages are kept as they are stored. Rows of one that is read a second time soon are
    kept as well: many small fetches out of a large page would decode it each time. One long scan
    keeps none.

    Args:
        bytes_max: What all pages together take, about. What was put last is kept whatever its size.
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
        """The groups of each folio; a group is of one."""
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        """Of the three mappings; nothing else is locked under it."""
        self._counts = CacheCounts()

    @property
    def bytes(self) -> int:
        """What is held, about."""
        return self._groups.weight + self._rows.weight

    @property
    def counts(self) -> CacheCounts:
        """How often pages were found, and not."""
        return self._counts

    def get(self, address: PageAddress, parts: int) -> HeldPage | None:
        """Return a page that holds at least these parts, and count it as used; or None."""
        for key in (PageKey.of(address, WHOLE), PageKey.of(address, parts)):
            number = self._group_of.get(key)
            group = None if number is None else self._groups.get(number)
            if group is not None:
                self._counts.hits += 1  # Not exact where threads meet: it is shown to people.
                return group[key]
        self._counts.misses += 1
        return None

    def rows(self, key: RowsKey) -> pa.RecordBatch | None:
        """Return the rows of a compressed page, and count them as used; or None."""
        rows = self._rows.get(key)
        if rows is not None:
            self._counts.hits += 1
        return rows

    def keep_rows(self, key: RowsKey, rows: pa.RecordBatch) -> None:
        """Keep the rows of a compressed page, where it is not the first time."""
        size = rows.get_total_buffer_size()
        if size > self.bytes_max // DECODED_SHARE:
            return
        if not self._read_once.discard(key):
            self._read_once.put(key, None)
            return
        self._rows.put(key, rows, size)

    def put(self, pages: Mapping[PageKey, HeldPage], size: int) -> None:
        """Keep pages that were read together.

        Args:
            pages: By what is held of them; of one folio, at least one.
            size: Of the memory that they share, in bytes.
        """
        number = next(self._numbers)
        folio = next(iter(pages)).folio
        with self._lock:
            self._numbers_of.setdefault(folio, set()).add(number)
            self._keys_of[number] = tuple(pages)
            self._group_of.update(dict.fromkeys(pages, number))
        self._groups.put(number, pages, size)

    def discard_page(self, address: PageAddress, parts: int) -> None:
        """Forget what `get` would return, and the pages that share its memory."""
        for key in (PageKey.of(address, WHOLE), PageKey.of(address, parts)):
            number = self._group_of.get(key)
            if number is not None:
                self._groups.discard(number)
                self._forget(number)

    def discard(self, folio: str) -> None:
        """Forget the pages of a folio."""
        with self._lock:
            numbers = set(self._numbers_of.get(folio, ()))
        self._rows.discard_where(lambda key: key.folio == folio)
        for number in numbers:
            self._groups.discard(number)
            self._forget(number)

    def clear(self) -> None:
        """Forget everything."""
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
