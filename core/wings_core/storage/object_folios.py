"""Folios in an object store: each flush is one object, created once and never changed."""

import secrets
import time
from collections.abc import Iterator, Sequence

import pyarrow as pa

from wings_core.errors import Internal
from wings_core.model import PageAddress
from wings_core.storage.interfaces import EncodedPage, addresses_of
from wings_core.storage.object_pages import ObjectPages
from wings_core.storage.objects import ObjectStore
from wings_core.storage.objects.ages import Ages
from wings_core.storage.page_cache import PageCache

FOLIO_SUFFIX = ".folio"
"""Of the names of folios in object stores: segments on the local disk have another."""

KEPT_SHARE = 4
"""A folio is kept for its first readers where it takes no more than this part of the cache."""

_PREFIX = "folios"


class ObjectFolioStore(ObjectPages):
    """A `FolioStore` in an object store; all methods but `write` may be called from any thread.

    Several nodes may keep their folios at one place, as their names are random. There is no lock
    that tells which of them are still to be committed. A folio that is young is not listed, and a
    folio that is deleted is retired in metadata before, so that a commit that is late is refused.

    Args:
        objects: Where the folios are; the caller closes it.
        cache: What is read and written is kept here for its next readers.
        grace_seconds: A folio younger than this is not listed.
    """

    def __init__(self, objects: ObjectStore, cache: PageCache, *, grace_seconds: float) -> None:
        super().__init__(objects, cache)
        self._ages = Ages(grace_seconds)
        self._kept_bytes_max = cache.bytes_max // KEPT_SHARE
        self._last: str | None = None
        """The folio of the last flush, which may not be committed yet."""

    def write(self, pages: Sequence[EncodedPage]) -> list[PageAddress]:
        """See `FolioStore.write`.

        Raises:
            Unavailable: The object store could not be reached for as long as it is tried. The
                folio may be there all the same; it is not committed, and deleted some time.
            PermissionDenied: The credentials do not allow it any more.
        """
        if not pages:
            return []
        folio = f"{_PREFIX}/{time.time_ns():016x}-{secrets.token_hex(8)}{FOLIO_SUFFIX}"
        self._last = folio
        # A copy: what a flush refers to belongs to its producers, and is let go of with it.
        data = pa.py_buffer(b"".join(part for page in pages for part in page.parts))
        self._objects.put(folio, [memoryview(data)])
        addresses = addresses_of(folio, pages)
        if data.size <= self._kept_bytes_max:
            self.keep(data, addresses)
        return addresses

    def folios(self) -> set[str]:
        """See `FolioStore.folios`; without those that are younger than the grace."""
        last = self._last  # Before the listing: what is written after that is younger than it.
        names = self._ages.old(self._objects.list(_PREFIX))
        return {name for name in names if name.endswith(FOLIO_SUFFIX) and name != last}

    def check_rest(self, folio: str, pages: Sequence[tuple[int, int]]) -> Iterator[str]:
        """Yield nothing: a folio is its pages."""
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
