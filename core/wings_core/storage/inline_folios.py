"""Folios that metadata keeps itself: the pages of small flushes, until they are drained."""

import itertools
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa

from wings_core.errors import Internal, StorageCorrupt
from wings_core.model import INLINE_FOLIOS_MAX, INLINE_SUFFIX, InlineFolio, PageAddress
from wings_core.storage.held_page import HeldPage, WholePage, WrittenPage
from wings_core.storage.interfaces import EncodedPage, addresses_of
from wings_core.storage.lru import Lru
from wings_core.storage.page import parts_of

KEPT_BYTES_MAX = 16 * 1024 * 1024
"""Bytes of folios that are kept in memory, decoded, for their next readers."""

AHEAD_BYTES = 1024 * 1024
"""Metadata is asked at once for the folios of pages of so many bytes that are read next."""

FOLIO_BYTES = 512
"""What a folio and each of its pages takes beside its bytes, about."""


class _Folio:
    """The bytes of a folio, and those of its pages that were read."""

    __slots__ = ("data", "pages", "written")

    def __init__(self, data: bytes, *, written: bool) -> None:
        self.data = data
        self.written = written
        """Whether this process made the bytes, so that there is nothing to verify."""
        self.pages: dict[int, HeldPage] = {}


class InlineFolios:
    """A `FolioStore` of what metadata keeps; all methods may be called from any thread.

    Nothing is written by itself: `begin` makes a folio, which `OffsetRegistry.commit` keeps.

    Args:
        read_inline: Asks metadata for the bytes of folios; see `OffsetRegistry.read_inline`.
        kept_bytes_max: Most bytes kept in memory.
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
        """Return a folio of the pages, and where each lies; it is kept for its first readers.

        A caller that does not commit it calls `forget`.
        """
        number = next(self._numbers)
        name = f"{time.time_ns():016x}-{self._writer}-{number:x}{INLINE_SUFFIX}"
        # A copy: what a flush refers to belongs to its producers, and is let go of with it.
        parts: Iterable[bytes | memoryview] = pages[0].parts
        if len(pages) > 1:  # Most flushes have one.
            parts = itertools.chain.from_iterable([page.parts for page in pages])
        data = b"".join(parts)
        self._keep(name, _Folio(data, written=True), len(pages))
        return InlineFolio(name, data), addresses_of(name, pages)

    def forget(self, folio: str) -> None:
        """Let go of a folio in memory."""
        self._kept.discard(folio)

    def write(self, pages: Sequence[EncodedPage]) -> list[PageAddress]:
        """Refuse: only a commit keeps an inline folio."""
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
            StorageCorrupt: Also where the page was drained or deleted; its fact `missing` is true
                then.
        """
        folio = self._kept.get(address.folio) or self._load([address.folio]).get(address.folio)
        if folio is None:
            raise StorageCorrupt(
                f"folio {address.folio} is not in metadata any more",
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
        """See `FolioStore.read_all`; metadata is asked for many folios at once."""
        for number, address in enumerate(addresses):
            if address.folio not in self._kept:
                missing = self._missing(itertools.islice(addresses, number, None))
                if missing:  # Another thread may have read it since.
                    self._load(missing)
            yield self.read(address, topic_uuid, schema, columns)

    def folios(self) -> set[str]:
        """Return none: metadata deletes a folio itself, with the last page that refers to it."""
        return set()

    def check_rest(self, folio: str, pages: Sequence[tuple[int, int]]) -> Iterator[str]:
        """Yield nothing: a folio is its pages."""
        del folio, pages
        return iter(())

    def delete(self, folio: str) -> None:
        """Let go of a folio that metadata has deleted."""
        self.forget(folio)

    def close(self) -> None:
        """Let go of everything."""
        self._kept.clear()

    def _missing(self, addresses: Iterable[PageAddress]) -> Sequence[str]:
        """Return the first folios that are not in memory, as many as are asked for at once."""
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
        """Ask metadata for folios, and keep those that are there for their next readers."""
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
    """Return a page of a folio, of which the columns wanted are verified."""
    if not 0 <= address.position <= address.position + address.length <= len(folio.data):
        raise StorageCorrupt(f"it ends after the folio's {len(folio.data)} bytes")
    data = pa.py_buffer(folio.data).slice(address.position, address.length)
    if folio.written:
        return WrittenPage(data)
    return WholePage(data, topic_uuid, schema, parts_of(schema, columns))
