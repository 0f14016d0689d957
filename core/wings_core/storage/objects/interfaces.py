"""What an object store must do: keep objects that are created once and never change."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from wings_core.storage.objects.counts import ObjectCounts

Parts = Sequence[bytes | memoryview]
"""What an object is made of, one after the other; must not change until it is stored."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object as a listing shows it."""

    name: str
    size: int
    """In bytes."""
    modified_at: float
    """When it was stored, in seconds since the epoch, by the store's clock."""


class ObjectStore(Protocol):
    """Keeps objects by name; all methods may be called from any thread, and block.

    Names are relative to the place that the store was opened at: parts of `[A-Za-z0-9._=-]`, of
    which none begins with a dot, joined by `/`. Every method tries again, with back-off, what may
    succeed then, within the store's `RetryBounds`.

    All methods raise:
        Unavailable: The store cannot be reached, or keeps failing.
        PermissionDenied: The credentials are wrong, or do not allow it.
        ResourceExhausted: There is no room.
        Internal: The store, or the disk, failed otherwise.

    Attributes:
        url: Where it is, to be shown: without credentials.
        counts: What was asked of it since it was opened.
    """

    url: str
    counts: ObjectCounts

    def put(self, name: str, parts: Parts) -> None:
        """Create an object; it is durable when this returns, and never seen in part.

        An object that is there is never overwritten. Where the answer to an attempt was lost, the
        object is recognised as the one of this very call. After an error the object may be there
        all the same, or appear later.

        Raises:
            AlreadyExists: Another writer created an object of this name.
        """
        ...

    def read(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[pa.Buffer]:
        """Return ranges of an object's bytes, in the order asked.

        Ranges that are close to one another are read in one request; their buffers then share
        memory, which is freed with the last of them.

        Args:
            name: The object.
            ranges: Each `(start, end)` in bytes from the object's first; `end` is exclusive and
                more than `start`.

        Raises:
            StorageCorrupt: The object is missing (its fact `missing` is true then), or ends before
                a range does.
        """
        ...

    def size(self, name: str) -> int:
        """Return an object's length in bytes.

        Raises:
            StorageCorrupt: The object is missing; its fact `missing` is true.
        """
        ...

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        """Yield the objects below a prefix, in no order that can be relied on.

        Args:
            prefix: Leading parts of names, whole, without a `/` at the end; empty for all objects.
        """
        ...

    def delete(self, name: str) -> None:
        """Delete an object; no error if it is gone."""
        ...

    def check(self, *, write: bool = True) -> None:
        """Make sure that the store can be used, in a few requests: for the start of a process.

        Args:
            write: Whether objects will be created too; then one is, and deleted again, which also
                shows whether the store really never overwrites.

        Raises:
            InvalidArgument: There is no such bucket or directory, or the store overwrites objects.
        """
        ...
