"""A cache of pages of object stores, bounded in bytes."""

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
