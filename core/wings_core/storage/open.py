"""Where the pages of a log are: in a data directory's segments, and maybe in an object store."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from wings_core.data_directory import DataDirectory
from wings_core.limits import Limits
from wings_core.model import INLINE_SUFFIX
from wings_core.storage.folio_stores import FolioStores
from wings_core.storage.inline_folios import InlineFolios
from wings_core.storage.interfaces import FolioStore
from wings_core.storage.object_folios import FOLIO_SUFFIX, ObjectFolioStore
from wings_core.storage.objects import ObjectStore, RetryBounds, bind_objects, open_objects
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
    cache = PageCache(limits.page_cache_bytes_max)
    url = directory.hot_url(hot_url)
    segments = SegmentStore(
        directory.segments,
        segment_bytes_max=limits.segment_bytes_max,
        grace_seconds=grace_seconds,
    )
    others: dict[str, FolioStore] = {}
    if inline is not None:
        others[INLINE_SUFFIX] = inline
    objects: dict[str, ObjectStore] = {}
    hot: FolioStore = segments
    if url is not None:
        objects["hot"] = open_checked(url, limits, store_id)
        if store_id is not None:
            directory.keep_hot_url(url)
        hot = ObjectFolioStore(objects["hot"], cache, grace_seconds=OBJECT_GRACE_SECONDS)
        others[FOLIO_SUFFIX] = hot
    # Segments that were merged before a remote store was given stay where they are.
    merged = DirectoryObjects(directory.merged)
    if store_id is not None and directory.merged.is_dir():
        merged.check()  # Deletes what a crash left unfinished.
    remote = SegmentObjects(merged, cache, LOCAL_SEGMENT_SUFFIX, SEGMENT_GRACE_SECONDS)
    others[LOCAL_SEGMENT_SUFFIX] = remote
    if "hot" in objects:
        # Not in the directory: other nodes may not see it, and it may be less durable.
        remote = SegmentObjects(objects["hot"], cache, HOT_SEGMENT_SUFFIX, SEGMENT_GRACE_SECONDS)
        others[HOT_SEGMENT_SUFFIX] = remote
    url = directory.remote_url(remote_url)
    if url is not None:
        objects["remote"] = open_checked(url, limits, store_id)
        if store_id is not None:
            directory.keep_remote_url(url)
        remote = SegmentObjects(objects["remote"], cache, SEGMENT_SUFFIX, SEGMENT_GRACE_SECONDS)
        others[SEGMENT_SUFFIX] = remote
    store = FolioStores(segments, others, hot)
    return Storage(store, cache, remote, store.stores, objects, inline)


def open_checked(url: str, limits: Limits, store_id: Callable[[], str] | None) -> ObjectStore:
    """Open an object store, and make sure that it can be used and belongs to this metadata.

    Args:
        url: Where it is.
        limits: The bounds in force.
        store_id: Tells the id of the metadata; None to read only.

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
        bind_objects(first, store_id())
    return open_objects(url, bounds)
