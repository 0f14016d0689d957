"""Inline folios: pages of small flushes, stored in metadata until they are drained."""

import itertools
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa

from wings_core.errors import Internal, StorageCorrupt
from wings_core.model import INLINE_FOLIOS_MAX, INLINE_SUFFIX, InlineFolio, PageAddress
from wings_core.storage.interfaces import EncodedPage, addresses_of
from wings_core.storage.lru import Lru
from wings_core.storage.page import parts_of
from wings_core.storage.page_cache import HeldPage, WholePage, WrittenPage

KEPT_BYTES_MAX = 16 * 1024 * 1024
"""Bytes of decoded folios cached in memory."""

AHEAD_BYTES = 1024 * 1024
"""Bytes of pages whose folios one request to metadata reads ahead."""

FOLIO_BYTES = 1_280
"""Approximate overhead of a folio, and of each of its pages, once read."""


class _Folio:
    """The bytes of a folio, and its pages read so far."""

    __slots__ = ("data", "pages", "written")

    def __init__(self, data: bytes, *, written: bool) -> None:
        self.data = data
        self.written = written
        """Whether this process wrote the bytes, which then need no verification."""
        self.pages: dict[int, HeldPage] = {}


class InlineFolios:
    """A `FolioStore` of folios in metadata. Thread-safe.

    It writes nothing itself: `begin` makes a folio, which `OffsetRegistry.commit` stores.

    Args:
        read_inline: Reads the bytes of folios; see `OffsetRegistry.read_inline`.
        kept_bytes_max: Most bytes cached in memory.
    """

    def __init__(
        self,
        read_inline: Callable[[Sequence[str]], dict[str, bytes]],
        kept_bytes_max: int = KEPT_BYTES_MAX,
    ) -> None:
        self._read_inline = read_inline
        self._writer = secrets.token_hex(8)
        self._numbers = itertools.count()
        self._kept: Lru[str, _Folio] = Lru(kept_bytes_max)

    def begin(self, pages: Sequence[EncodedPage]) -> tuple[InlineFolio, list[PageAddress]]:
        """Make a folio of pages and cache it; returns it with the address of each page.

        A caller that does not commit it calls `forget`.
        """
        number = next(self._numbers)
        name = f"{time.time_ns():016x}-{self._writer}-{number:x}{INLINE_SUFFIX}"
        # A copy: the buffers belong to the producers and are freed after the flush.
        parts: Iterable[bytes | memoryview] = pages[0].parts
        if len(pages) > 1:  # Most flushes have one.
            parts = itertools.chain.from_iterable([page.parts for page in pages])
        data = b"".join(parts)
        self._keep(name, _Folio(data, written=True), len(pages))
        return InlineFolio(name, data), addresses_of(name, pages)

    def forget(self, folio: str) -> None:
        """Remove a folio from the cache."""
        self._kept.discard(folio)

    def write(self, pages: Sequence[EncodedPage]) -> list[PageAddress]:
        """Raise Internal: only a commit stores an inline folio."""
        del pages
        raise Internal("inline folios are written by commits")

    def read(
        self,
        address: PageAddress,
        topic_uuid: str,
        schema: pa.Schema,
        columns: Sequence[int] | None = None,
    ) -> pa.RecordBatch:
        """See `FolioStore.read`.

        Raises:
            StorageCorrupt: Also if the page was drained or deleted; the fact `missing` is true
                then.
        """
        folio = self._kept.get(address.folio) or self._load([address.folio]).get(address.folio)
        if folio is None:
            raise StorageCorrupt(
                f"folio {address.folio} is no longer in metadata",
                folio=address.folio,
                missing=True,
            )
        try:
            page = folio.pages.get(address.position)
            if page is None:
                page = _page(folio, address, topic_uuid, schema, columns)
                folio.pages[address.position] = page
            return page.read(topic_uuid, schema, columns)
        except StorageCorrupt as error:
            raise StorageCorrupt(
                f"page at byte {address.position} of {address.folio}: {error.message}",
                folio=address.folio,
                position=address.position,
            ) from error

    def read_all(
        self,
        addresses: Sequence[PageAddress],
        topic_uuid: str,
        schema: pa.Schema,
        columns: Sequence[int] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """See `FolioStore.read_all`; one request reads many folios."""
        for number, address in enumerate(addresses):
            if address.folio not in self._kept:
                missing = self._missing(itertools.islice(addresses, number, None))
                if missing:  # Another thread may have read it since.
                    self._load(missing)
            yield self.read(address, topic_uuid, schema, columns)

    def folios(self) -> set[str]:
        """Return an empty set: metadata deletes a folio with the last page that refers to it."""
        return set()

    def check_rest(self, folio: str, pages: Sequence[tuple[int, int]]) -> Iterator[str]:
        """Yield nothing: a folio consists of its pages."""
        del folio, pages
        return iter(())

    def delete(self, folio: str) -> None:
        """Remove a folio that metadata has deleted from the cache."""
        self.forget(folio)

    def close(self) -> None:
        """Empty the cache."""
        self._kept.clear()

    def _missing(self, addresses: Iterable[PageAddress]) -> Sequence[str]:
        """Return the first folios that are not cached, as many as one request reads."""
        names: dict[str, None] = {}
        size = 0
        for address in addresses:
            if address.folio not in self._kept:
                names[address.folio] = None
                size += address.length
                if size >= AHEAD_BYTES or len(names) == INLINE_FOLIOS_MAX:
                    break
        return list(names)

    def _load(self, names: Sequence[str]) -> dict[str, _Folio]:
        """Read folios from metadata, and cache those that exist."""
        found = self._read_inline(names)
        folios = {name: _Folio(data, written=False) for name, data in found.items()}
        for name, folio in folios.items():
            self._keep(name, folio, 1)
        return folios

    def _keep(self, name: str, folio: _Folio, pages: int) -> None:
        self._kept.put(name, folio, len(folio.data) + (1 + pages) * FOLIO_BYTES)


def _page(
    folio: _Folio,
    address: PageAddress,
    topic_uuid: str,
    schema: pa.Schema,
    columns: Sequence[int] | None,
) -> HeldPage:
    """Return a page of a folio with the wanted columns verified."""
    if not 0 <= address.position <= address.position + address.length <= len(folio.data):
        raise StorageCorrupt(f"it ends after the folio's {len(folio.data)} bytes")
    data = pa.py_buffer(folio.data).slice(address.position, address.length)
    if folio.written:
        return WrittenPage(data)
    return WholePage(data, topic_uuid, schema, parts_of(schema, columns))
