"""Groups of pages that are read together, and the state of reading them."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import pyarrow as pa

from wings_core.errors import StorageCorrupt
from wings_core.model import PageAddress
from wings_core.storage.held_page import HeldPage
from wings_core.storage.objects.interfaces import MERGE_GAP_BYTES
from wings_core.storage.page_cache import WHOLE, PageKey, RowsKey

WHOLE_PAGE_BYTES = 256 * 1024
"""Largest page that is read whole whatever columns are wanted: one request instead of two."""

GROUP_BYTES = 8 * 1024 * 1024
"""Most bytes of neighbouring pages in one group, which has at least one page."""


@dataclass(frozen=True, slots=True)
class PageWish:
    """The columns that a reader wants of each page."""

    topic_uuid: str
    schema: pa.Schema
    columns: tuple[int, ...] | None
    parts: int

    @property
    def names(self) -> list[str]:
        """Names of the columns."""
        names = self.schema.names
        return names if self.columns is None else [names[column] for column in self.columns]

    def key(self, address: PageAddress) -> PageKey:
        """Return the key of the parts to read of a page: the whole page if it is small."""
        few = self.columns is not None and 2 * len(set(self.columns)) < len(self.schema)
        pruned = few and address.length > WHOLE_PAGE_BYTES
        return PageKey.of(address, self.parts if pruned else WHOLE)

    def rows_key(self, address: PageAddress) -> RowsKey:
        """Return the key of the decoded rows of a page."""
        return RowsKey(address.folio, address.position, self.columns)


Loaded = Mapping[PageKey, "HeldPage | StorageCorrupt"]


class ReadStep:
    """The pages of a group in a scan: cached rows, cached bytes, and reads in progress."""

    def __init__(self, group: Sequence[PageAddress], wanted: PageWish) -> None:
        self.size = sum(address.length for address in group)
        self.group = group
        self.wanted = wanted
        self.rows: dict[PageKey, pa.RecordBatch] = {}
        self.held: dict[PageKey, HeldPage] = {}
        self.loading: dict[PageKey, Future[Loaded]] = {}

    def held_by_now(self, key: PageKey) -> HeldPage | None:
        """Return a page without waiting; None if it is not read yet, or damaged."""
        loading = self.loading.get(key)
        if loading is None:
            return self.held.get(key)
        if not loading.done() or loading.exception() is not None:
            return None
        loaded = loading.result()[key]
        return None if isinstance(loaded, StorageCorrupt) else loaded


def groups_of(addresses: Sequence[PageAddress], wanted: PageWish) -> Iterator[list[PageAddress]]:
    """Yield groups of neighbouring pages that are read whole; other pages form groups of one."""
    group: list[PageAddress] = []
    size = 0
    for address in addresses:
        if address.position < 0 or address.length <= 0:
            raise StorageCorrupt(
                f"page at byte {address.position} of {address.folio}: no page can have "
                f"{address.length} bytes there",
                folio=address.folio,
                position=address.position,
            )
        if group and not (_joins(group[-1], address, wanted) and size < GROUP_BYTES):
            yield group
            group, size = [], 0
        group.append(address)
        size += address.length
    if group:
        yield group


def _joins(last: PageAddress, address: PageAddress, wanted: PageWish) -> bool:
    """Return whether a page belongs to the same group as the one before it."""
    gap = address.position - last.position - last.length
    whole = wanted.key(last).parts == WHOLE == wanted.key(address).parts
    return whole and last.folio == address.folio and 0 <= gap <= MERGE_GAP_BYTES
