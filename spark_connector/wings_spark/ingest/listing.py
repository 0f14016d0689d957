"""Listings of buckets, in the order of keys, with the versions that notifications have."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from wings_core.errors import InvalidArgument
from wings_core.queue.uris import bucket_and_key
from wings_spark.ingest.fetched import FileError
from wings_spark.ingest.settings import FileSettings
from wings_spark.ingest.stores import seen_version, store_errors, store_of

PAGE_OBJECTS = 1_000
"""Objects per request of a listing."""


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


def _state(found: Mapping[str, Any]) -> str:
    return f"{found.get('e_tag') or found['size']} {found['last_modified'].isoformat()}"
