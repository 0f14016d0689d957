"""Which pages are read together, and what there is of them meanwhile."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import pyarrow as pa

from wings_core.errors import StorageCorrupt
from wings_core.model import PageAddress
from wings_core.storage.held_page import HeldPage
from wings_core.storage.objects.ranges import MERGE_GAP_BYTES
from wings_core.storage.page_cache import WHOLE, PageKey, RowsKey

WHOLE_PAGE_BYTES = 256 * 1024
"""A page no larger is read whole, whatever columns are wanted: one request instead of two."""

GROUP_BYTES = 8 * 1024 * 1024
"""Neighbouring pages are read together up to so many bytes, and at least one."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a reader wants of each page."""

    topic_uuid: str
    schema: pa.Schema
    columns: tuple[int, ...] | None
    parts: int

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        names = self.schema.names
        return names if self.columns is None else [names[column] for column in self.columns]

    def key(self, address: PageAddress) -> PageKey:
        """Say what is read of a page: all, where that costs little more."""
        few = self.columns is not None and 2 * len(set(self.columns)) < len(self.schema)
        pruned = few and address.length > WHOLE_PAGE_BYTES
        return PageKey.of(address, self.parts if pruned else WHOLE)

    def rows_key(self, address: PageAddress) -> RowsKey:
        """Say which rows of a page are wanted."""
        return RowsKey(address.folio, address.position, self.columns)


Loaded = Mapping[PageKey, "HeldPage | StorageCorrupt"]


class Step:
    """Some pages of a scan: those whose rows were there, their bytes, or that are being read."""

    def __init__(self, group: Sequence[PageAddress], wanted: Wanted) -> None:
        self.size = sum(address.length for address in group)
        self.group = group
        self.wanted = wanted
        self.rows: dict[PageKey, pa.RecordBatch] = {}
        self.held: dict[PageKey, HeldPage] = {}
        self.loading: dict[PageKey, Future[Loaded]] = {}

    def held_by_now(self, key: PageKey) -> HeldPage | None:
        """Return a page that is there, without waiting for it; None also where it is damaged."""
        loading = self.loading.get(key)
        if loading is None:
            return self.held.get(key)
        if not loading.done() or loading.exception() is not None:
            return None
        loaded = loading.result()[key]
        return None if isinstance(loaded, StorageCorrupt) else loaded


def groups_of(addresses: Sequence[PageAddress], wanted: Wanted) -> Iterator[list[PageAddress]]:
    """Yield neighbouring pages that are read whole together; others alone."""
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


def _joins(last: PageAddress, address: PageAddress, wanted: Wanted) -> bool:
    """Tell whether a page is read together with the one before it."""
    gap = address.position - last.position - last.length
    whole = wanted.key(last).parts == WHOLE == wanted.key(address).parts
    return whole and last.folio == address.folio and 0 <= gap <= MERGE_GAP_BYTES
