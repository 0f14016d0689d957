"""What storage must do: keep the pages of a flush, durable, and hand back their rows."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from wings_core.model import PageAddress


@dataclass(slots=True)  # Not frozen, which would take three times as long to make.
class EncodedPage:
    """A page ready to be written: parts that follow one another, `length` bytes together.

    Parts of a large page are the buffers of its rows themselves, so they must not change.
    """

    rows: int
    parts: tuple[bytes | memoryview, ...]
    """The header, the message's metadata and parts of its body, the padding."""
    length: int

    def message(self) -> bytes:
        """Return a copy of its Arrow IPC message."""
        return b"".join(self.parts[1:-1])


def addresses_of(folio: str, pages: Sequence[EncodedPage], position: int = 0) -> list[PageAddress]:
    """Return where pages lie that follow one another in a folio, the first at `position`."""
    addresses: list[PageAddress] = []
    for page in pages:
        addresses.append(PageAddress(folio, position, page.length))
        position += page.length
    return addresses


class FolioStore(Protocol):
    """Keeps folios: objects that hold the pages of one flush and never change."""

    def write(self, pages: Sequence[EncodedPage]) -> list[PageAddress]:
        """Write the pages of one flush and return where each lies, once all are durable.

        Called by one thread at a time. After a failure nothing of the flush can be read, and the
        file whose sync failed is never written to again.

        Raises:
            ResourceExhausted: The disk is full; room may come back.
            Unavailable: Storage cannot be reached, or this store is closed.
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
        """Return a page's rows, or only some of its columns.

        The checksums of the columns asked for are verified on the process's first read of them.
        The batch refers to the page's bytes without a copy.

        Args:
            address: From metadata.
            topic_uuid: The topic that the page must belong to.
            schema: The topic's schema, whole.
            columns: Indices into `schema`, in the order wanted; None for all.

        Raises:
            StorageCorrupt: The page is cut off, damaged, or another topic's; names the page.
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

        Pages may be read ahead, within bounds, so that a scan does not wait for each in turn. An
        error is raised where its page would come; those before it were yielded.
        """
        ...

    def folios(self) -> set[str]:
        """Return the folios that are there, but for the one that is being written to."""
        ...

    def check_rest(self, folio: str, pages: Sequence[tuple[int, int]]) -> Iterator[str]:
        """Yield what is wrong with a folio in the bytes that no page has.

        Args:
            folio: Its name.
            pages: Position and end, in bytes, of those of its pages that metadata has, in order;
                the end is exclusive.

        Raises:
            StorageCorrupt: It is missing or cut off.
            Unavailable: Storage cannot be reached.
        """
        ...

    def delete(self, folio: str) -> None:
        """Delete a folio; readers that hold its rows keep them. No error if it is gone."""
        ...

    def close(self) -> None:
        """Finish the file being written to; later writes fail. Rows returned stay readable."""
        ...
