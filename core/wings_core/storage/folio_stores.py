"""Several folio stores as one: pages are written to one of them, and read from any."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

import pyarrow as pa

from wings_core.errors import StorageCorrupt
from wings_core.model import PageAddress
from wings_core.storage.interfaces import EncodedPage, FolioStore
from wings_core.storage.objects.interfaces import ObjectStore
from wings_core.storage.segment_objects import store_suffix


class FolioStores:
    """A `FolioStore` that dispatches to others by the suffix of a folio's name.

    Args:
        first: The store of folios with any other suffix.
        others: Stores by suffix, with its dot. They are closed with this store, as is `first`.
        hot: The store that flushes go to; None for `first`.
    """

    def __init__(
        self, first: FolioStore, others: Mapping[str, FolioStore], hot: FolioStore | None = None
    ) -> None:
        self._first = first
        self._others = others
        self._hot = hot or first

    def write(self, pages: Sequence[EncodedPage]) -> list[PageAddress]:
        """See `FolioStore.write`."""
        return self._hot.write(pages)

    def read(
        self,
        address: PageAddress,
        topic_uuid: str,
        schema: pa.Schema,
        columns: Sequence[int] | None = None,
    ) -> pa.RecordBatch:
        """See `FolioStore.read`."""
        return self._store_of(address.folio).read(address, topic_uuid, schema, columns)

    def read_all(
        self,
        addresses: Sequence[PageAddress],
        topic_uuid: str,
        schema: pa.Schema,
        columns: Sequence[int] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """See `FolioStore.read_all`."""
        # Usually all are in one store; then only folios are looked up, not pages.
        stores = {folio: self._store_of(folio) for folio in {each.folio for each in addresses}}
        if len(set(stores.values())) == 1:
            yield from stores[addresses[0].folio].read_all(addresses, topic_uuid, schema, columns)
            return
        for store, some in groupby(addresses, lambda address: stores[address.folio]):
            yield from store.read_all(list(some), topic_uuid, schema, columns)

    @property
    def stores(self) -> tuple[FolioStore, ...]:
        """All stores, for callers that skip an unreachable one."""
        return tuple(dict.fromkeys((self._first, *self._others.values())))

    def folios(self) -> set[str]:
        """See `FolioStore.folios`; raises if one of the stores cannot be listed."""
        return set[str]().union(*(store.folios() for store in self.stores))

    def check_rest(self, folio: str, pages: Sequence[tuple[int, int]]) -> Iterator[str]:
        """See `FolioStore.check_rest`."""
        return self._store_of(folio).check_rest(folio, pages)

    def delete(self, folio: str) -> None:
        """See `FolioStore.delete`."""
        self._store_of(folio).delete(folio)

    def close(self) -> None:
        """See `FolioStore.close`."""
        for store in self.stores:
            store.close()

    def _store_of(self, folio: str) -> FolioStore:
        return self._others.get(store_suffix(folio), self._first)


class FolioPlaces:
    """The object store of each folio, by the suffix of its name. Thread-safe.

    Args:
        first: The store of folios with any other suffix.
        others: Stores by suffix, with its dot.
        whole: Suffixes of folios that are complete files of another format.
    """

    def __init__(
        self, first: ObjectStore | None, others: Mapping[str, ObjectStore], whole: frozenset[str]
    ) -> None:
        self._first = first
        self._others = others
        self._whole = whole

    def is_whole(self, folio: str) -> bool:
        """Return whether a folio has a footer after its last page."""
        return store_suffix(folio) in self._whole

    def read(self, folio: str, start: int, end: int, step: int) -> Iterator[pa.Buffer]:
        """Yield bytes of a folio, up to `step` at a time, as far as the folio reaches.

        Args:
            folio: Name of the folio.
            start: First byte, 0-based.
            end: End in bytes, exclusive.
            step: Most bytes per buffer.

        Raises:
            StorageCorrupt: The folio is missing, or shorter than `end` and not a complete file.
            WingsError: The errors of `ObjectStore.read`.
        """
        objects = self._others.get(store_suffix(folio), self._first)
        if objects is None:
            raise StorageCorrupt(f"{folio} is missing: it is in no store of this log", folio=folio)
        if self.is_whole(folio):
            end = min(end, objects.size(folio))
        for at in range(start, end, step):
            yield objects.read(folio, [(at, min(at + step, end))])[0]
