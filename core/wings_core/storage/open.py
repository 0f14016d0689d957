"""Opening the storage of a log: segments of a data directory, object stores, inline folios."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from wings_core.data_directory import DataDirectory
from wings_core.errors import InvalidArgument
from wings_core.limits import Limits
from wings_core.model import INLINE_SUFFIX, StoreRole
from wings_core.storage.folio_stores import (
    FOLIO_SUFFIX,
    HOT_SEGMENT_SUFFIX,
    LOCAL_SEGMENT_SUFFIX,
    SEGMENT_SUFFIX,
    FolioPlaces,
    FolioStores,
    ObjectFolioStore,
    SegmentObjects,
)
from wings_core.storage.inline_folios import InlineFolios
from wings_core.storage.interfaces import FolioStore
from wings_core.storage.objects import (
    ObjectStore,
    RetryBounds,
    bind_objects,
    is_relative,
    open_objects,
)
from wings_core.storage.objects.directory import DirectoryObjects
from wings_core.storage.page_cache import PageCache
from wings_core.storage.segments import SegmentStore

START_SECONDS_MAX = 10.0
"""Approximate time that a start waits for an unresponsive object store."""

OBJECT_GRACE_SECONDS = 300.0
"""Least age of a folio in an object store before it is deleted, so that another node's commit can
finish. A later commit is rejected: see `OffsetRegistry.retire`."""


SEGMENT_GRACE_SECONDS = 3_600.0
"""Least age of a merged segment before it is deleted: longer than until its commit (see
`tiering.COMMIT_SECONDS_MAX`), and than any read that located it."""


@dataclass(frozen=True, slots=True)
class Storage:
    """The stores of a log's pages."""

    store: FolioStore
    cache: PageCache
    """Cache of pages of object stores."""
    remote: SegmentObjects
    """Store that merged pages are written to."""
    stores: Sequence[FolioStore]
    """The stores that `store` consists of."""
    objects: Mapping[str, ObjectStore] = field(default_factory=dict[str, ObjectStore])
    """Object stores by role: `hot`, `remote`."""
    inline: InlineFolios | None = None
    """Folios in metadata."""
    places: FolioPlaces = field(default_factory=lambda: FolioPlaces(None, {}, frozenset()))
    """Stored bytes of folios, for backups."""

    @property
    def lingers(self) -> bool:
        """Whether flushes wait to gather more batches, as each becomes an object."""
        return "hot" in self.objects


def retry_bounds(limits: Limits) -> RetryBounds:
    """Return the retry bounds of requests to object stores."""
    return RetryBounds(
        seconds_max=limits.object_retry_seconds_max,
        attempt_seconds_max=limits.object_attempt_seconds_max,
    )


class StoreUrls(Protocol):
    """A durable record of the object stores of a log, as in a `DataDirectory`."""

    def object_store(self, role: StoreRole, wanted: str | None) -> str | None:
        """Return the URL for a role: `wanted`, or the one recorded.

        Raises:
            InvalidArgument: Another URL is recorded.
        """
        ...

    def keep_object_store(self, role: StoreRole, url: str) -> None:
        """Record a URL durably, before the first page is written there.

        Raises:
            InvalidArgument: Another node has just recorded another URL.
        """
        ...


def open_storage(
    directory: DataDirectory,
    limits: Limits,
    *,
    hot_url: str | None = None,
    remote_url: str | None = None,
    inline: InlineFolios | None = None,
    store_id: Callable[[], str] | None = None,
    grace_seconds: float = 0.0,
) -> Storage:
    """Open the storage of a data directory.

    Existing segments stay readable if new pages go to an object store.

    Args:
        directory: The data directory.
        limits: The bounds in force.
        hot_url: Object store for new pages; None for the recorded one, initially the directory's
            own segments.
        remote_url: Object store for old pages; None for the recorded one, initially that of new
            pages, or else the directory.
        inline: Folios in metadata; with None they cannot be read.
        store_id: Returns the id of the metadata that the pages belong to; None to read only.
        grace_seconds: Least age of a segment before it is deleted.

    Raises:
        InvalidArgument: The URL cannot be used, or the directory or the objects belong to another
            log.
        PermissionDenied: The credentials are wrong.
        Unavailable: The object store cannot be reached.
    """
    opened = _Opened(directory, limits, inline, store_id)
    segments = SegmentStore(
        directory.segments,
        segment_bytes_max=limits.segment_bytes_max,
        grace_seconds=grace_seconds,
    )
    opened.open_hot(hot_url)
    # Segments merged before a remote store was configured stay in place.
    merged = DirectoryObjects(directory.merged)
    if store_id is not None and directory.merged.is_dir():
        merged.check()  # Deletes files left unfinished by a crash.
    opened.add_merged(merged, LOCAL_SEGMENT_SUFFIX)
    return opened.finish(segments, remote_url, DirectoryObjects(directory.segments))


def open_shared_storage(
    urls: StoreUrls,
    limits: Limits,
    *,
    hot_url: str | None,
    remote_url: str | None,
    inline: InlineFolios,
    store_id: Callable[[], str] | None,
) -> Storage:
    """Open the storage of a log whose nodes have no disks of their own; see `open_storage`.

    Raises:
        InvalidArgument: No object store for new pages is configured, or a directory is given by a
            relative path; also the cases of `open_storage`.
    """
    for role, url in (("hot", hot_url), ("remote", remote_url)):
        if url is not None and is_relative(url):
            raise InvalidArgument(
                f"all nodes share one {role} store, and {url!r} is a different directory for each "
                "working directory: give an absolute path"
            )
    opened = _Opened(urls, limits, inline, store_id)
    hot = opened.open_hot(hot_url)
    if hot is None:
        raise InvalidArgument(
            "a node without a data directory needs an object store for its messages: give --hot"
        )
    return opened.finish(hot, remote_url)


class _Opened:
    """The builder of a `Storage`, step by step."""

    def __init__(
        self,
        urls: StoreUrls,
        limits: Limits,
        inline: InlineFolios | None,
        store_id: Callable[[], str] | None,
    ) -> None:
        self._urls = urls
        self._limits = limits
        self._inline = inline
        self._store_id = store_id
        self._cache = PageCache(limits.page_cache_bytes_max)
        self._objects: dict[str, ObjectStore] = {}
        self._others: dict[str, FolioStore] = {}
        self._places: dict[str, ObjectStore] = {}
        self._remote: SegmentObjects | None = None
        self._hot: FolioStore | None = None
        if inline is not None:
            self._others[INLINE_SUFFIX] = inline

    def open_hot(self, wanted: str | None) -> FolioStore | None:
        """Open the object store of new pages, if there is one."""
        objects = self._open("hot", wanted)
        if objects is None:
            return None
        self._hot = ObjectFolioStore(objects, self._cache, grace_seconds=OBJECT_GRACE_SECONDS)
        self._others[FOLIO_SUFFIX] = self._hot
        self._places[FOLIO_SUFFIX] = objects
        return self._hot

    def _open(self, role: StoreRole, wanted: str | None) -> ObjectStore | None:
        """Open the object store of a role, if there is one, and record its URL."""
        url = self._urls.object_store(role, wanted)
        if url is None:
            return None
        is_new = self._urls.object_store(role, None) is None
        objects = open_checked(url, self._limits, self._store_id, is_new=is_new)
        self._objects[role] = objects
        if self._store_id is not None:
            self._urls.keep_object_store(role, url)
        return objects

    def add_merged(self, objects: ObjectStore, suffix: str) -> None:
        """Add a store of merged pages; new ones are written to the store added last."""
        self._remote = SegmentObjects(objects, self._cache, suffix, SEGMENT_GRACE_SECONDS)
        self._others[suffix] = self._remote
        self._places[suffix] = objects

    def finish(
        self, first: FolioStore, remote_url: str | None, segments: ObjectStore | None = None
    ) -> Storage:
        """Open the object store of old pages, and return the storage."""
        if "hot" in self._objects:
            # Not in the directory, which other nodes may not see, and which may be less durable.
            self.add_merged(self._objects["hot"], HOT_SEGMENT_SUFFIX)
        remote = self._open("remote", remote_url)
        if remote is not None:
            self.add_merged(remote, SEGMENT_SUFFIX)
        assert self._remote is not None
        store = FolioStores(first, self._others, self._hot)
        whole = frozenset(self._places) - {FOLIO_SUFFIX}
        places = FolioPlaces(segments, self._places, whole)
        return Storage(
            store,
            self._cache,
            self._remote,
            store.stores,
            self._objects,
            self._inline,
            places,
        )


def open_checked(
    url: str, limits: Limits, store_id: Callable[[], str] | None, *, is_new: bool
) -> ObjectStore:
    """Open an object store, and check that it is usable and belongs to this metadata.

    Args:
        url: URL of the store.
        limits: The bounds in force.
        store_id: Returns the id of the metadata; None to read only.
        is_new: Whether the log may not have used the store yet; see `bind_objects`.

    Raises: The errors of `open_storage`.
    """
    bounds = retry_bounds(limits)
    quick = RetryBounds(
        seconds_max=min(START_SECONDS_MAX, bounds.seconds_max),
        attempt_seconds_max=min(START_SECONDS_MAX, bounds.attempt_seconds_max),
    )
    first = open_objects(url, quick)
    first.check(write=store_id is not None)
    if store_id is not None:
        bind_objects(first, store_id(), is_new=is_new)
    return open_objects(url, bounds)
