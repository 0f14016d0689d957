"""Folios in an object store: each flush is one immutable object."""

import secrets
import time
from collections.abc import Iterator, Sequence

import pyarrow as pa

from wings_core.errors import Internal
from wings_core.model import PageAddress
from wings_core.storage.interfaces import EncodedPage, addresses_of
from wings_core.storage.object_pages import ObjectPages
from wings_core.storage.objects import ObjectStore
from wings_core.storage.page_cache import PageCache
from wings_core.storage.segment_objects import Ages

FOLIO_SUFFIX = ".folio"
"""Suffix of folios in object stores; segments on the local disk have another."""

KEPT_SHARE = 4
"""Divisor of the cache size: larger new folios are not cached for their first readers."""

_PREFIX = "folios"


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
        folio = f"{_PREFIX}/{time.time_ns():016x}-{secrets.token_hex(8)}{FOLIO_SUFFIX}"
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
        names = self._ages.old(self._objects.list(_PREFIX))
        return {name for name in names if name.endswith(FOLIO_SUFFIX) and name != last}

    def check_rest(self, folio: str, pages: Sequence[tuple[int, int]]) -> Iterator[str]:
        """Yield nothing: a folio consists of its pages."""
        del folio, pages
        return iter(())

    def delete(self, folio: str) -> None:
        """See `FolioStore.delete`."""
        if not folio.startswith(f"{_PREFIX}/") or not folio.endswith(FOLIO_SUFFIX):
            raise Internal(f"{folio!r:.80} is not a folio that can be deleted")
        try:
            self._objects.delete(folio)
        finally:
            self.forget(folio)
