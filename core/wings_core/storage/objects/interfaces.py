"""The interface of object stores, whose objects are created once and never change."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from wings_core.storage.objects.counts import ObjectCounts

Parts = Sequence[bytes | memoryview]
"""Consecutive parts of an object; must not change until it is stored."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object in a listing."""

    name: str
    size: int
    """Size in bytes."""
    modified_at: float
    """Time of storing, in seconds since the epoch by the store's clock."""


class ObjectStore(Protocol):
    """A store of objects by name. Thread-safe; all methods block.

    Names are relative to the store's URL: parts of `[A-Za-z0-9._=-]`, none of which begins with a
    dot, joined by `/`. Every method retries transient failures with back-off, within the store's
    `RetryBounds`.

    All methods raise:
        Unavailable: The store cannot be reached, or keeps failing.
        PermissionDenied: The credentials are wrong, or do not allow it.
        ResourceExhausted: There is no space.
        Internal: The store, or the disk, failed otherwise.

    Attributes:
        url: URL for messages, without credentials.
        counts: Counts of the requests since it was opened.
    """

    url: str
    counts: ObjectCounts

    def put(self, name: str, parts: Parts) -> None:
        """Create an object atomically; durable on return.

        An existing object is never overwritten. If the response to an attempt was lost, the object
        is
        recognised as created by this call. After an error the object may exist all the same, or
        appear
        later.

        Raises:
            AlreadyExists: Another writer created an object of this name.
        """
        ...

    def read(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[pa.Buffer]:
        """Return ranges of an object's bytes, in the order given.

        Neighbouring ranges are read in one request; their buffers then share memory, which is freed
        with the last of them.

        Args:
            name: The object.
            ranges: Pairs `(start, end)` in bytes, 0-based; `end` is exclusive and greater than
                `start`.

        Raises:
            StorageCorrupt: The object is missing (the fact `missing` is true then), or ends before
                a
                range does.
        """
        ...

    def size(self, name: str) -> int:
        """Return an object's length in bytes.

        Raises:
            StorageCorrupt: The object is missing; its fact `missing` is true.
        """
        ...

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        """Yield the objects below a prefix, in no particular order.

        Args:
            prefix: Whole leading parts of names, without a `/` at the end; empty for all objects.
        """
        ...

    def delete(self, name: str) -> None:
        """Delete an object, if it exists."""
        ...

    def check(self, *, write: bool = True) -> None:
        """Check with a few requests that the store is usable; called at the start of a process.

        Args:
            write: Whether to check writes too, by creating and deleting an object, which also shows
                that the store does not overwrite.

        Raises:
            InvalidArgument: There is no such bucket or directory, or the store overwrites objects.
        """
        ...
