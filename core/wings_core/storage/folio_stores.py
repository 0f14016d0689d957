"""Folios in object stores: those of flushes, segments of merged pages, and several stores as one.

Each folio is one immutable object. Pages are written to one store, and read from any.
"""

import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby

import pyarrow as pa

from wings_core.errors import Internal, StorageCorrupt
from wings_core.model import PageAddress
from wings_core.storage.interfaces import EncodedPage, FolioStore, addresses_of
from wings_core.storage.object_pages import ObjectPages
from wings_core.storage.objects.interfaces import ObjectStore, StoredObject
from wings_core.storage.page_cache import PageCache
from wings_core.storage.parquet_file import PARQUET_SUFFIX, is_parquet, parquet_problems
from wings_core.storage.segment_file import segment_problems

FOLIO_SUFFIX = ".folio"
"""Suffix of folios in object stores; segments on the local disk have another."""

KEPT_SHARE = 4
"""Divisor of the cache size: larger new folios are not cached for their first readers."""

_FOLIO_PREFIX = "folios"


class ObjectFolioStore(ObjectPages):
    """A `FolioStore` in an object store. Thread-safe, except `write`.

    Several nodes may store folios in one place, as names are random. No lock marks folios that are
    not committed yet. Instead, young folios are not listed, and a folio is retired in metadata
    before it is deleted, so that a late commit is rejected.

    Args:
        objects: Store of the folios; the caller closes it.
        cache: Cache of pages read and written.
        grace_seconds: Age below which a folio is not listed.
    """

    def __init__(self, objects: ObjectStore, cache: PageCache, *, grace_seconds: float) -> None:
        super().__init__(objects, cache)
        self._ages = Ages(grace_seconds)
        self._kept_bytes_max = cache.bytes_max // KEPT_SHARE
        self._last: str | None = None
        """Folio of the last flush, which may not be committed yet."""

    def write(self, pages: Sequence[EncodedPage]) -> list[PageAddress]:
        """See `FolioStore.write`.

        Raises:
            Unavailable: The object store could not be reached within the retry bounds. The folio
                may exist all the same; it is never committed, and deleted later.
            PermissionDenied: The credentials do not allow the write.
        """
        if not pages:
            return []
        folio = f"{_FOLIO_PREFIX}/{time.time_ns():016x}-{secrets.token_hex(8)}{FOLIO_SUFFIX}"
        self._last = folio
        # A copy: the buffers belong to the producers and are freed after the flush.
        data = pa.py_buffer(b"".join(part for page in pages for part in page.parts))
        self._objects.put(folio, [memoryview(data)])
        addresses = addresses_of(folio, pages)
        if data.size <= self._kept_bytes_max:
            self.keep(data, addresses)
        return addresses

    def folios(self) -> set[str]:
        """See `FolioStore.folios`; omits folios younger than `grace_seconds`."""
        last = self._last  # Read before the listing: later folios are young.
        names = self._ages.old(self._objects.list(_FOLIO_PREFIX))
        return {name for name in names if name.endswith(FOLIO_SUFFIX) and name != last}

    def check_rest(self, folio: str, pages: Sequence[tuple[int, int]]) -> Iterator[str]:
        """Yield nothing: a folio consists of its pages."""
        del folio, pages
        return iter(())

    def delete(self, folio: str) -> None:
        """See `FolioStore.delete`."""
        if not folio.startswith(f"{_FOLIO_PREFIX}/") or not folio.endswith(FOLIO_SUFFIX):
            raise Internal(f"{folio!r:.80} is not a folio that can be deleted")
        try:
            self._objects.delete(folio)
        finally:
            self.forget(folio)


SEGMENT_SUFFIX = ".arrow"
"""Suffix of segments, which are Arrow IPC (Feather) files, in a remote store."""

LOCAL_SEGMENT_SUFFIX = ".feather"
"""Suffix of segments in the data directory, written without a remote store; found there even
if one is configured later."""

HOT_SEGMENT_SUFFIX = ".ipc"
"""Suffix of segments in the hot object store, written without a remote store; nodes that share the
store need not share a directory."""

_SEGMENT_PREFIX = "segments"


def store_suffix(folio: str) -> str:
    """Return the suffix of a folio's name that selects its store (not a final `.parquet`).

    Other programs thus recognise Parquet files by their last suffix.
    """
    name = folio.removesuffix(PARQUET_SUFFIX)
    return name[name.rfind(".") :]


class SegmentObjects(ObjectPages):
    """A `FolioStore` of segments, which are stored as whole objects. Thread-safe.

    Args:
        objects: Store of the segments; the caller closes it.
        cache: Cache of pages read.
        suffix: Suffix of their names.
        grace_seconds: Age below which a segment is not listed, as it may not be committed yet.
    """

    def __init__(
        self, objects: ObjectStore, cache: PageCache, suffix: str, grace_seconds: float
    ) -> None:
        super().__init__(objects, cache)
        self.objects = objects
        self._suffix = suffix
        self._ages = Ages(grace_seconds)

    def name(self, topic_uuid: str, start_offset: int, suffix: str = "", mark: str = "") -> str:
        """Return a unique name for a new segment.

        Args:
            topic_uuid: UUID of the topic.
            start_offset: Offset of its first row.
            suffix: Suffix for the format of the file.
            mark: Mark of the table that it is written for.
        """
        number = f"{start_offset:020d}-{secrets.token_hex(4)}{mark}"
        return f"{_SEGMENT_PREFIX}/{topic_uuid}/{number}{self._suffix}{suffix}"

    def write(self, pages: Sequence[EncodedPage]) -> list[PageAddress]:
        """Raise Internal: flushes go to the hot store."""
        del pages
        raise Internal("nothing is flushed to the remote store")

    def folios(self) -> set[str]:
        """See `FolioStore.folios`; omits segments younger than `grace_seconds`."""
        names = self._ages.old(self.objects.list(_SEGMENT_PREFIX))
        return {name for name in names if store_suffix(name) == self._suffix}

    def check_rest(self, folio: str, pages: Sequence[tuple[int, int]]) -> Iterator[str]:
        """See `FolioStore.check_rest`; checks the parts of the file that other readers need."""
        problems = parquet_problems if is_parquet(folio) else segment_problems
        return problems(
            lambda start, end: self.objects.read(folio, [(start, end)])[0].to_pybytes(),
            self.objects.size(folio),
            pages,
        )

    def delete(self, folio: str) -> None:
        """See `FolioStore.delete`."""
        if not folio.startswith(f"{_SEGMENT_PREFIX}/") or store_suffix(folio) != self._suffix:
            raise Internal(f"{folio!r:.80} is not a segment that can be deleted")
        try:
            self.objects.delete(folio)
        finally:
            self.forget(folio)


OFF_SECONDS_MAX = 3_600.0
"""Greatest assumed clock error; also the bound for producers' timestamps in the future."""


class Ages:
    """Separates old objects from those that may not be committed yet. Thread-safe.

    The store stamps objects with its own clock. A node whose clock is ahead by more than the grace
    would treat objects that other nodes have just stored as old, and their commits would be
    rejected. So an object counts as old only if another was stored `grace_seconds` later, if this
    process has seen it for that long by a monotonic clock, or if it is older than any clock error.

    Args:
        grace_seconds: Age from which an object is old.
        clock: Returns this machine's time, in seconds since the epoch.
        monotonic: Returns seconds of its monotonic clock.
    """

    def __init__(
        self,
        grace_seconds: float,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._grace_seconds = grace_seconds
        self._clock = clock
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._first_seen: dict[str, float] = {}
        """Monotonic time of the first sight of objects that were young at the last listing."""

    def old(self, listed: Iterable[StoredObject]) -> set[str]:
        """Return the names of the old objects of a listing."""
        now, seen_at = self._clock(), self._monotonic()
        stored = [(each.name, each.modified_at) for each in listed]
        newest = max((modified_at for _, modified_at in stored), default=now)
        certain = max(min(now, newest), now - OFF_SECONDS_MAX) - self._grace_seconds
        possible = now - self._grace_seconds
        with self._lock:
            self._first_seen = {
                name: self._first_seen.get(name, seen_at)
                for name, modified_at in stored
                if modified_at > certain
            }
            old_enough = seen_at - self._grace_seconds
            seen_long = {name for name, first in self._first_seen.items() if first <= old_enough}
        return {
            name
            for name, modified_at in stored
            if modified_at <= certain or (modified_at <= possible and name in seen_long)
        }


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
