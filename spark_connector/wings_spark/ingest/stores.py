"""Object stores of files: their versions and errors, listings, and a listing as a queue.

A bucket without notifications is a queue: each new object of its listing is a message. Each
`receive` continues the listing by a few pages: files are read while a large bucket is still being
listed, and memory holds one page. Objects have the same identities as in notifications, so a source
may change from one to the other.
"""

import os
import re
import threading
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from wings_core.errors import InvalidArgument, Unauthenticated, Unavailable
from wings_core.queue.notifications import DedupKey, MessageKind, bucket_and_key, message_of
from wings_core.queue.sqlite import FoundQueue
from wings_core.runtime import OBSTORE_NEEDED, import_extra
from wings_spark.ingest.files import FileError, SupersededError, is_of_machine
from wings_spark.ingest.settings import FileSettings, SourceSettings

RETRY = {"max_retries": 10, "retry_timeout": timedelta(seconds=180)}
"""Retries until a store counts as unreachable."""

_REFUSED = re.compile(r"status code: 4\d\d")
"""Pattern of a rejection in obstore's messages."""

_REGIONS = {"AWS_REGION", "AWS_DEFAULT_REGION"}

_UNKNOWN_CALLER = (
    "AuthenticationFailed", "ExpiredToken", "InvalidAccessKeyId", "InvalidToken",
    "SignatureDoesNotMatch", "TokenRefreshRequired",
)  # fmt: skip
"""Error codes of S3 and Azure for bad credentials."""

PAGE_OBJECTS = 1_000
"""Objects per request of a listing."""

PAGES_MAX = 10
"""Most pages that one `receive` lists."""

PAUSE_SECONDS = 0.5
"""Pause between two checks for messages that become visible again."""

_END = "\x01"
"""Separator of an object's key and state: sorts before all characters of longer keys."""

_AFTER_END = "\x02"


def store_of(bucket: str, settings: FileSettings) -> Any:
    """Return a store of obstore, with the environment's credentials.

    Args:
        bucket: Name with its scheme, like `s3://BUCKET`.
        settings: Settings of the store.

    Raises:
        FileError: obstore is not installed.
    """
    stores: Any = import_extra("obstore.store", OBSTORE_NEEDED, "objects", FileError)
    scheme, _, name = bucket.partition("://")
    plain = (settings.endpoint or "").startswith("http:")
    common = {"client_options": {"allow_http": True} if plain else {}, "retry_config": RETRY}
    config: dict[str, Any] = {}
    if scheme == "gs":
        if settings.endpoint is not None:
            config["base_url"] = settings.endpoint
        return stores.GCSStore(name, **common, **config)
    if scheme == "abfss":
        container, _, host = name.partition("@")
        config["account_name"] = host.partition(".")[0]
        config["endpoint"] = settings.endpoint or f"https://{host.replace('.dfs.', '.blob.', 1)}"
        return stores.AzureStore(container, **common, **config)
    if settings.region is not None or not _REGIONS & os.environ.keys():
        config["region"] = settings.region or "us-east-1"
    if settings.endpoint is not None:
        config["endpoint"] = settings.endpoint
    return stores.S3Store(name, **common, **config)


def seen_version(about: Any) -> str:
    """Return the version in an object's metadata, in the form of notifications."""
    tag: str | None = about.get("e_tag")
    named: str | None = about.get("version")
    return named or (f"etag:{tag.strip(chr(34))}" if tag else str(about["last_modified"]))


@contextmanager
def store_errors(uri: str, version: str | None) -> Generator[None]:
    """Translate errors of an object store.

    Args:
        uri: URI of the object.
        version: The version; None for the current one.

    Raises:
        FileError: The object does not exist, was changed, or the store rejected the request.
        SupersededError: The object no longer has this version.
        Unauthenticated: The store rejects the credentials.
        Unavailable: The store or this machine's disk is temporarily unusable.
    """
    from obstore import exceptions

    try:
        yield
    except exceptions.PreconditionError:
        if version is None:
            raise FileError(f"{uri} changed while it was fetched") from None
        raise SupersededError(f"{uri} was overwritten: {version} is gone") from None
    except FileNotFoundError:
        raise FileError(f"{uri} is not there") from None
    except (exceptions.BaseError, OSError) as error:
        text = str(error)
        message = f"{uri}: {text.splitlines()[0]:.300}"
        if isinstance(error, OSError) and is_of_machine(error, uri):
            raise Unavailable(message) from None
        if any(code in text for code in _UNKNOWN_CALLER):
            raise Unauthenticated(message) from None
        # A retry of a rejected request would be rejected too.
        if isinstance(error, exceptions.GenericError) and _REFUSED.search(text) is None:
            raise Unavailable(message) from None
        raise FileError(message) from None


@dataclass(frozen=True, slots=True)
class ListedObject:
    """An object of a listing."""

    key: str
    size: int
    state: str
    """Text that changes when the object is written again."""


class Bucket:
    """A bucket, or a folder of one, to list.

    Args:
        settings: Settings of the store.
        place: `s3://BUCKET/PREFIX` or the like; a prefix that does not end with a slash may be a
            part of names.

    Attributes:
        name: Name of the bucket, with its scheme.

    Raises:
        FileError: obstore is not installed.
    """

    def __init__(self, settings: FileSettings, place: str) -> None:
        self._place = place
        self.name, self._prefix = bucket_and_key(place)
        self._store = store_of(self.name, settings)

    def pages(self, after: str | None = None) -> Iterator[list[ListedObject]]:
        """Yield objects, in the order of their keys' bytes.

        Args:
            after: The key after which to begin; None for the first.

        Raises:
            InvalidArgument: The bucket does not exist, or cannot be listed.
            Unauthenticated: The store rejects the credentials.
            Unavailable: The store cannot be reached.
        """
        import obstore

        try:
            with store_errors(self._place, None):
                listing = obstore.list(
                    self._store, self._prefix or None, offset=after, chunk_size=PAGE_OBJECTS
                )
                for page in listing:
                    yield [
                        ListedObject(found["path"], found["size"], _state(found)) for found in page
                    ]
        except FileError as error:
            raise InvalidArgument(str(error)) from None

    def version(self, key: str) -> str | None:
        """Return an object's version in the form of notifications; None if it is gone.

        A listing lacks versions.
        """
        import obstore

        try:
            with store_errors(f"{self.name}/{key}", None):
                return seen_version(obstore.head(self._store, key))
        except FileError:
            return None


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


def _state(found: Mapping[str, Any]) -> str:
    return f"{found.get('e_tag') or found['size']} {found['last_modified'].isoformat()}"
