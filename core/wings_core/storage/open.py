"""Where the pages of a log are: in a data directory's segments, and maybe in an object store."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from wings_core.data_directory import DataDirectory
from wings_core.errors import InvalidArgument
from wings_core.limits import Limits
from wings_core.model import INLINE_SUFFIX, StoreRole
from wings_core.storage.folio_places import FolioPlaces
from wings_core.storage.folio_stores import FolioStores
from wings_core.storage.inline_folios import InlineFolios
from wings_core.storage.interfaces import FolioStore
from wings_core.storage.object_folios import FOLIO_SUFFIX, ObjectFolioStore
from wings_core.storage.objects import (
    ObjectStore,
    RetryBounds,
    bind_objects,
    is_relative,
    open_objects,
)
from wings_core.storage.objects.directory import DirectoryObjects
from wings_core.storage.page_cache import PageCache
from wings_core.storage.segment_objects import (
    HOT_SEGMENT_SUFFIX,
    LOCAL_SEGMENT_SUFFIX,
    SEGMENT_SUFFIX,
    SegmentObjects,
)
from wings_core.storage.segments import SegmentStore

START_SECONDS_MAX = 10.0
"""How long a start waits for an object store that does not answer, about."""

OBJECT_GRACE_SECONDS = 300.0
"""How old a folio in an object store is at least before it is deleted, so that the commit of
another node is not refused in vain. A later one is: see `OffsetRegistry.retire`."""


SEGMENT_GRACE_SECONDS = 3_600.0
"""How old a segment of merged pages is at least before it is deleted: older than one that is still
to be committed (see `tiering.COMMIT_SECONDS_MAX`), and than any read that located it."""


@dataclass(frozen=True, slots=True)
class Storage:
    """The pages of a log."""

    store: FolioStore
    cache: PageCache
    """Of what is read from object stores."""
    remote: SegmentObjects
    """Where merged pages go."""
    stores: Sequence[FolioStore]
    """All that `store` consists of."""
    objects: Mapping[str, ObjectStore] = field(default_factory=dict[str, ObjectStore])
    """By what they are for: `hot`, `remote`."""
    inline: InlineFolios | None = None
    """What metadata keeps."""
    places: FolioPlaces = field(default_factory=lambda: FolioPlaces(None, {}, frozenset()))
    """Where the bytes are, for those who copy them."""

    @property
    def lingers(self) -> bool:
        """Whether each flush is an object, and so is worth gathering batches for."""
        return "hot" in self.objects


def retry_bounds(limits: Limits) -> RetryBounds:
    """Return how long requests to object stores are tried."""
    return RetryBounds(
        seconds_max=limits.object_retry_seconds_max,
        attempt_seconds_max=limits.object_attempt_seconds_max,
    )


class StoreUrls(Protocol):
    """Remembers which object stores a log was first used with; a `DataDirectory` does."""

    def object_store(self, role: StoreRole, wanted: str | None) -> str | None:
        """Return where pages go: what is wanted, or what was used before.

        Raises:
            InvalidArgument: Another was used before.
        """
        ...

    def keep_object_store(self, role: StoreRole, url: str) -> None:
        """Note where pages go, durably, before the first of them does.

        Raises:
            InvalidArgument: Another node has just noted another place.
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
    """Open the pages of a data directory.

    Segments that are there stay readable where new pages go to an object store.

    Args:
        directory: Opened for its pages.
        limits: The bounds in force.
        hot_url: The object store that new pages go to; None for what the directory was used with
            before, which at first is its own segments.
        remote_url: The object store that old pages go to; None as above, at first the one of new
            pages, or the directory where they are in segments.
        inline: What metadata keeps; None: such pages cannot be read.
        store_id: Tells the id of the metadata that the pages belong to; None to read only.
        grace_seconds: How old a segment is at least before it is deleted.

    Raises:
        InvalidArgument: The URL cannot be used, or the directory or the objects there belong to
            something else.
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
    # Segments that were merged before a remote store was given stay where they are.
    merged = DirectoryObjects(directory.merged)
    if store_id is not None and directory.merged.is_dir():
        merged.check()  # Deletes what a crash left unfinished.
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
    """Open the pages of a log whose nodes keep nothing on their own disks; see `open_storage`.

    Raises:
        InvalidArgument: Or it was never said which object store new pages go to, or a directory is
            not named by its whole path.
    """
    for role, url in (("hot", hot_url), ("remote", remote_url)):
        if url is not None and is_relative(url):
            raise InvalidArgument(
                f"the nodes have one {role} store, and {url!r} is a directory of its own for each "
                "that starts elsewhere: name it by its whole path"
            )
    opened = _Opened(urls, limits, inline, store_id)
    hot = opened.open_hot(hot_url)
    if hot is None:
        raise InvalidArgument(
            "a node without a data directory needs an object store for its messages: give --hot"
        )
    return opened.finish(hot, remote_url)


class _Opened:
    """What is opened for a `Storage`, step by step."""

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
        """Open the object store of new pages, if they go to one."""
        objects = self._open("hot", wanted)
        if objects is None:
            return None
        self._hot = ObjectFolioStore(objects, self._cache, grace_seconds=OBJECT_GRACE_SECONDS)
        self._others[FOLIO_SUFFIX] = self._hot
        self._places[FOLIO_SUFFIX] = objects
        return self._hot

    def _open(self, role: StoreRole, wanted: str | None) -> ObjectStore | None:
        """Open the object store of a role, if there is one, and note where it is."""
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
        """Have merged pages go to a store, until another is added."""
        self._remote = SegmentObjects(objects, self._cache, suffix, SEGMENT_GRACE_SECONDS)
        self._others[suffix] = self._remote
        self._places[suffix] = objects

    def finish(
        self, first: FolioStore, remote_url: str | None, segments: ObjectStore | None = None
    ) -> Storage:
        """Open the object store of old pages, and return all."""
        if "hot" in self._objects:
            # Not in a directory: other nodes may not see it, and it may be less durable.
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
    """Open an object store, and make sure that it can be used and belongs to this metadata.

    Args:
        url: Where it is.
        limits: The bounds in force.
        store_id: Tells the id of the metadata; None to read only.
        is_new: Whether the log may be without it so far; see `bind_objects`.

    Raises: as `open_storage`.
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
