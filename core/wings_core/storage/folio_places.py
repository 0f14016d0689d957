"""Access to the stored bytes of folios, for backups."""

from collections.abc import Iterator, Mapping

import pyarrow as pa

from wings_core.errors import StorageCorrupt
from wings_core.storage.objects.interfaces import ObjectStore
from wings_core.storage.segment_objects import store_suffix


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
