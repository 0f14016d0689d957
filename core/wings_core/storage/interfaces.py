"""The interface of storage: writes the pages of a flush durably, and reads their rows."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from wings_core.model import PageAddress


@dataclass(slots=True)  # Not frozen: construction would take three times as long.
class EncodedPage:
    """An encoded page: consecutive parts of `length` bytes together.

    Parts of a large page are the buffers of its rows, which must not change.
    """

    rows: int
    parts: tuple[bytes | memoryview, ...]
    """Header, message metadata, parts of the message's body, and padding."""
    length: int

    def message(self) -> bytes:
        """Return a copy of the page's Arrow IPC message."""
        return b"".join(self.parts[1:-1])


def addresses_of(folio: str, pages: Sequence[EncodedPage], position: int = 0) -> list[PageAddress]:
    """Return the addresses of consecutive pages in a folio, the first at `position`."""
    addresses: list[PageAddress] = []
    for page in pages:
        addresses.append(PageAddress(folio, position, page.length))
        position += page.length
    return addresses


class FolioStore(Protocol):
    """A store of folios: immutable objects that hold the pages of a flush."""

    def write(self, pages: Sequence[EncodedPage]) -> list[PageAddress]:
        """Write the pages of one flush; returns their addresses once all are durable.

        Called by one thread at a time. After a failure no page of the flush can be read, and a file
        whose sync failed is never written to again.

        Raises:
            ResourceExhausted: The disk is full; a later write may succeed.
            Unavailable: Storage cannot be reached, or the store is closed.
            Internal: The disk failed.
        """
        ...

    def read(
        self,
        address: PageAddress,
        topic_uuid: str,
        schema: pa.Schema,
        columns: Sequence[int] | None = None,
    ) -> pa.RecordBatch:
        """Read a page's rows, or some of its columns.

        The checksum of each column is verified on this process's first read of it. The batch refers
        to the page's bytes without a copy.

        Args:
            address: Address of the page, from metadata.
            topic_uuid: The topic that the page must belong to.
            schema: The topic's whole schema.
            columns: Indices into `schema`, in the order to return; None for all.

        Raises:
            StorageCorrupt: The page is truncated, damaged, or another topic's; the message names
                it.
            Unavailable: Storage cannot be reached.
        """
        ...

    def read_all(
        self,
        addresses: Sequence[PageAddress],
        topic_uuid: str,
        schema: pa.Schema,
        columns: Sequence[int] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of several pages of a topic, in the order given; see `read`.

        Pages are read ahead, within bounds, so that a scan does not wait for each in turn. An error
        is raised in the place of its page, after the pages before it.
        """
        ...

    def folios(self) -> set[str]:
        """Return the names of existing folios, except the one being written."""
        ...

    def check_rest(self, folio: str, pages: Sequence[tuple[int, int]]) -> Iterator[str]:
        """Yield the problems of a folio's bytes outside of pages.

        Args:
            folio: Name of the folio.
            pages: Position and end (exclusive), in bytes, of its pages in metadata, in order.

        Raises:
            StorageCorrupt: The folio is missing or truncated.
            Unavailable: Storage cannot be reached.
        """
        ...

    def delete(self, folio: str) -> None:
        """Delete a folio, if it exists; batches already read stay valid."""
        ...

    def close(self) -> None:
        """Finish the file being written; later writes fail. Batches already read stay valid."""
        ...
