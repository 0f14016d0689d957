"""The store of merged pages: segments, each an immutable object."""

import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from wings_core.errors import Internal
from wings_core.model import PageAddress
from wings_core.storage.interfaces import EncodedPage
from wings_core.storage.object_pages import ObjectPages
from wings_core.storage.objects import ObjectStore
from wings_core.storage.objects.interfaces import StoredObject
from wings_core.storage.page_cache import PageCache
from wings_core.storage.parquet_file import (
    PARQUET_SUFFIX,
    is_parquet,
    parquet_problems,
)
from wings_core.storage.segment_file import segment_problems

SEGMENT_SUFFIX = ".arrow"
"""Suffix of segments, which are Arrow IPC (Feather) files, in a remote store."""

LOCAL_SEGMENT_SUFFIX = ".feather"
"""Suffix of segments in the data directory, written without a remote store; found there even
if one is configured later."""

HOT_SEGMENT_SUFFIX = ".ipc"
"""Suffix of segments in the hot object store, written without a remote store; nodes that share the
store need not share a directory."""

_PREFIX = "segments"


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
        return f"{_PREFIX}/{topic_uuid}/{number}{self._suffix}{suffix}"

    def write(self, pages: Sequence[EncodedPage]) -> list[PageAddress]:
        """Raise Internal: flushes go to the hot store."""
        del pages
        raise Internal("nothing is flushed to the remote store")

    def folios(self) -> set[str]:
        """See `FolioStore.folios`; omits segments younger than `grace_seconds`."""
        names = self._ages.old(self.objects.list(_PREFIX))
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
        if not folio.startswith(f"{_PREFIX}/") or store_suffix(folio) != self._suffix:
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
