"""The remote store: segments of merged pages, each an object that is created once."""

import secrets
from collections.abc import Iterator, Sequence

from wings_core.errors import Internal
from wings_core.model import PageAddress
from wings_core.storage.interfaces import EncodedPage
from wings_core.storage.object_pages import ObjectPages
from wings_core.storage.objects import ObjectStore
from wings_core.storage.objects.ages import Ages
from wings_core.storage.page_cache import PageCache
from wings_core.storage.parquet_file import (
    PARQUET_SUFFIX,
    is_parquet,
    parquet_problems,
)
from wings_core.storage.segment_file import segment_problems

SEGMENT_SUFFIX = ".arrow"
"""Of the names of segments: they are Arrow IPC files, also known as Feather."""

LOCAL_SEGMENT_SUFFIX = ".feather"
"""Of those in the data directory, where no remote store was given: so they are found there also
when one is given later."""

HOT_SEGMENT_SUFFIX = ".ipc"
"""Of those in the store of new pages, where that is an object store and no remote store was given:
nodes that share it need not share a directory."""

_PREFIX = "segments"


def store_suffix(folio: str) -> str:
    """Return the end of a folio's name that says where it is: of a Parquet file, the last but one.

    So other programs know it for a Parquet file.
    """
    name = folio.removesuffix(PARQUET_SUFFIX)
    return name[name.rfind(".") :]


class SegmentObjects(ObjectPages):
    """A `FolioStore` of segments, which are put there as wholes; all methods from any thread.

    Args:
        objects: Where they are; the caller closes it.
        cache: What is read is kept here for its next readers.
        suffix: Of their names.
        grace_seconds: A segment younger than this is not listed: it may not be committed yet.
    """

    def __init__(
        self, objects: ObjectStore, cache: PageCache, suffix: str, grace_seconds: float
    ) -> None:
        super().__init__(objects, cache)
        self.objects = objects
        self._suffix = suffix
        self._ages = Ages(grace_seconds)

    def name(self, topic_uuid: str, start_offset: int, suffix: str = "", mark: str = "") -> str:
        """Return a name for a new segment, which no other has, and which ends so.

        Args:
            topic_uuid: Whose segment it is.
            start_offset: Of its first row.
            suffix: The end of its name.
            mark: Says of which table it is.
        """
        number = f"{start_offset:020d}-{secrets.token_hex(4)}{mark}"
        return f"{_PREFIX}/{topic_uuid}/{number}{self._suffix}{suffix}"

    def write(self, pages: Sequence[EncodedPage]) -> list[PageAddress]:
        """Refuse: what is pushed goes to the hot store."""
        del pages
        raise Internal("nothing is flushed to the remote store")

    def folios(self) -> set[str]:
        """See `FolioStore.folios`; without those that are younger than the grace."""
        names = self._ages.old(self.objects.list(_PREFIX))
        return {name for name in names if store_suffix(name) == self._suffix}

    def check_rest(self, folio: str, pages: Sequence[tuple[int, int]]) -> Iterator[str]:
        """See `FolioStore.check_rest`; a segment is a file of its format for its other readers."""
        problems = parquet_problems if is_parquet(folio) else segment_problems
        return problems(
            lambda start, end: self.objects.read(folio, [(start, end)])[0].to_pybytes(),
            self.objects.size(folio),
            pages,
        )

    def delete(self, folio: str) -> None:
        """See `FolioStore.delete`."""
        if not folio.startswith(f"{_PREFIX}/") or store_suffix(folio) != self._suffix:
            raise Internal(f"{folio!r:.80} is not a segment that can be deleted")
        try:
            self.objects.delete(folio)
        finally:
            self.forget(folio)
