"""A bucket as a queue: each new object of its listing is a message, where nothing notifies.

A listing goes on where the last `receive` left it, a few pages at a time: files are read while a
large bucket is still listed, and memory holds a page. Objects have the identities that
notifications give them, so a source may change from one to the other.
"""

import threading
import time

from wings_core.queue.found import FoundQueue
from wings_core.queue.notifications import DedupKey, MessageKind, message_of
from wings_spark.ingest.listing import Bucket, ListedObject
from wings_spark.ingest.settings import SourceSettings

PAGES_MAX = 10
"""Pages that one `receive` lists."""

PAUSE_SECONDS = 0.5
"""Between two looks for messages that become visible again."""

_END = "\x01"
"""Between an object's key and its state: sorts before all that follows in longer keys."""

_AFTER_END = "\x02"


class ListingQueue(FoundQueue):
    """See `FoundQueue`. A listing begins at most every `list_seconds`.

    Args:
        settings: Of the source.

    Raises:
        FileError: obstore is not installed.
        Unavailable: The state cannot be opened.
    """

    def __init__(self, settings: SourceSettings) -> None:
        place = settings.queue.url
        assert place is not None, "the settings have been checked"
        state = settings.queue.state or settings.checkpoint / "listing.sqlite"
        self._bucket = Bucket(settings.files, f"{place.rstrip('/')}/")
        super().__init__(state, pause_seconds=PAUSE_SECONDS)
        self._takes = settings.patterns.takes
        self._versioned = settings.dedup_key is DedupKey.URI_AND_VERSION
        self._list_seconds = settings.queue.list_seconds
        self._listing = threading.Lock()
        self._listed_at: float | None = None
        self._after: str | None = None
        """The last key of a listing that goes on."""

    def _look(self) -> bool:
        """List some pages, if it is time; tells whether the listing goes on."""
        with self._listing:
            now = time.monotonic()
            if self._after is None:
                if self._listed_at is not None and now < self._listed_at + self._list_seconds:
                    return False
                self._listed_at = now
            pages = self._bucket.pages(self._after)
            for _ in range(PAGES_MAX):
                page = next(pages, None)
                if page == []:
                    continue
                self._add(page or [])
                if page is None:
                    self._after = None
                    return False
                self._after = page[-1].key
            return True

    def _add(self, page: list[ListedObject]) -> None:
        """Announce the new objects of a page, and forget those that are not there any more.

        Args:
            page: Follows the last one without a gap; empty: the listing has ended.
        """
        after = "" if self._after is None else self._after + _AFTER_END
        until = page[-1].key + _AFTER_END if page else None
        found = {f"{each.key}{_END}{each.state}": each for each in page}
        known = self.keys_between(after, until)
        new = [(key, self._message(each)) for key, each in found.items() if key not in known]
        self.announce((key, body) for key, body in new if body is not None)
        gone = known - found.keys()
        if gone:
            self.forget(gone)

    def _message(self, found: ListedObject) -> str | None:
        uri = f"{self._bucket.name}/{found.key}"
        if not self._takes(uri):
            return None
        version = self._bucket.version(found.key) if self._versioned else None
        if self._versioned and version is None:
            return None  # It was deleted since.
        return message_of(uri, version, found.size, MessageKind.URIS)
