"""A bucket without notifications as a queue: each new object of its listing is a message.

Each `receive` continues the listing by a few pages: files are read while a large bucket is still
being listed, and memory holds one page. Objects have the same identities as in notifications, so a
source may change from one to the other.
"""

import threading
import time

from wings_core.queue.notifications import DedupKey, MessageKind, message_of
from wings_core.queue.sqlite import FoundQueue
from wings_spark.ingest.listing import Bucket, ListedObject
from wings_spark.ingest.settings import SourceSettings

PAGES_MAX = 10
"""Most pages that one `receive` lists."""

PAUSE_SECONDS = 0.5
"""Pause between two checks for messages that become visible again."""

_END = "\x01"
"""Separator of an object's key and state: sorts before all characters of longer keys."""

_AFTER_END = "\x02"


class ListingQueue(FoundQueue):
    """See `FoundQueue`. A listing begins at most every `list_seconds`.

    Args:
        settings: Settings of the source.

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
        """Last key of an unfinished listing."""

    def _look(self) -> bool:
        """List some pages, if due; returns whether the listing is unfinished."""
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
        """Announce the new objects of a page, and forget deleted ones.

        Args:
            page: The page that directly follows the last one; empty at the end of the listing.
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
