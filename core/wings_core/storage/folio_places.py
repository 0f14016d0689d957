"""The bytes of folios, as they are stored, for those who copy them."""

from collections.abc import Iterator, Mapping

import pyarrow as pa

from wings_core.errors import StorageCorrupt
from wings_core.storage.objects.interfaces import ObjectStore
from wings_core.storage.segment_objects import store_suffix


class FolioPlaces:
    """Where each folio is, told by the ending of its name; all methods from any thread.

    Args:
        first: Has the folios of any name that is none of the others'.
        others: By ending, with its dot.
        whole: The endings of folios that are files of a format of their own.
    """

    def __init__(
        self, first: ObjectStore | None, others: Mapping[str, ObjectStore], whole: frozenset[str]
    ) -> None:
        self._first = first
        self._others = others
        self._whole = whole

    def is_whole(self, folio: str) -> bool:
        """Whether a folio has an end of its own after its last page."""
        return store_suffix(folio) in self._whole

    def read(self, folio: str, start: int, end: int, step: int) -> Iterator[pa.Buffer]:
        """Yield bytes of a folio, up to `step` at a time; those to its end where it ends earlier.

        Args:
            folio: Its name.
            start: In bytes, from its first.
            end: Exclusive.
            step: In bytes.

        Raises:
            StorageCorrupt: It is missing, or ends too early for one that is not whole.
            WingsError: As `ObjectStore.read`.
        """
        objects = self._others.get(store_suffix(folio), self._first)
        if objects is None:
            raise StorageCorrupt(f"{folio} is missing: it is in no store of this log", folio=folio)
        if self.is_whole(folio):
            end = min(end, objects.size(folio))
        for at in range(start, end, step):
            yield objects.read(folio, [(at, min(at + step, end))])[0]
