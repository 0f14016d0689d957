"""The interface of object stores, whose objects are created once and never change.

Helpers of its implementations: counts of requests, names, ranges merged into requests, and retries
with back-off and full jitter, bounded in number and in time, after
https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/. The client library's own
retries are not used, so that a put whose response was lost is distinguished from another writer's,
and every attempt is counted.
"""

import logging
import random
import re
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal, Protocol, TypeVar

import pyarrow as pa

from wings_core import tracing
from wings_core.errors import (
    Internal,
    InvalidArgument,
    PermissionDenied,
    ResourceExhausted,
    StorageCorrupt,
    Unavailable,
    WingsError,
)
from wings_core.times import now_us

_logger = logging.getLogger(__name__)

Operation = Literal["put", "read", "head", "list", "delete"]


@dataclass(slots=True)
class OperationCount:
    """Counts of one kind of request."""

    requests: int = 0
    """Attempts, repeated ones included."""
    failures: int = 0
    """Failed attempts; most are retried."""
    bytes: int = 0
    """Bytes stored or read."""
    seconds: float = 0.0
    """Total time of attempts, over all threads."""


OUTAGE_SECONDS = 5.0
"""Time from which failures in a row are an outage."""

_REFUSALS = (PermissionDenied, ResourceExhausted)
_OUTAGES = (*_REFUSALS, InvalidArgument, Unavailable)
"""Errors of a store; others are of one object."""


@dataclass(frozen=True, slots=True)
class Outage:
    """A store that answers no request, or refuses each put."""

    since: int
    """Time of the first failure, in microseconds since the epoch."""
    error: WingsError
    """The last failure of a request of that kind."""
    size: int
    """Bytes of the largest request of that kind that failed."""


class ObjectCounts:
    """Counts of the requests to one store, and its outage, logged once. Thread-safe.

    Args:
        url: URL of the store, for messages.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._lock = threading.Lock()
        self._counts: dict[Operation, OperationCount] = {}
        self._failing: dict[Operation, Outage] = {}
        self._is_logged = False

    @contextmanager
    def counted(self, operation: Operation, size: int = 0) -> Generator[None]:
        """Trace and count one attempt in the `with`; `size` is in bytes."""
        started = time.monotonic()
        failure: BaseException | None = None
        try:
            with tracing.span(f"object.{operation}"):
                yield
        except BaseException as error:
            failure = error
            raise
        finally:
            with self._lock:
                count = self._counts.setdefault(operation, OperationCount())
                count.requests += 1
                count.failures += failure is not None
                count.bytes += 0 if failure is not None else size
                count.seconds += time.monotonic() - started
                self._note(operation, failure, size)

    def note_room(self, size: int) -> None:
        """Note that there is space for puts of so many bytes."""
        with self._lock:
            self._note("put", None, size)

    def _note(self, operation: Operation, failure: BaseException | None, size: int) -> None:
        """Begin or end outages; called with the lock held."""
        if isinstance(failure, _OUTAGES):
            known = self._failing.get(operation) or Outage(now_us(), failure, size)
            outage = Outage(known.since, failure, max(size, known.size))
            self._failing = {**self._failing, operation: outage}
        elif failure is None and self._failing:
            self._failing = {
                kind: outage
                for kind, outage in self._failing.items()
                if kind == "put"
                and isinstance(outage.error, _REFUSALS)
                # Where there is little space, small objects find some.
                and (
                    operation != "put"
                    or (isinstance(outage.error, ResourceExhausted) and size < outage.size)
                )
            }
        outage = self.outage
        if outage is not None and not self._is_logged:
            _logger.warning("the object store %s fails: %s", self._url, outage.error)
            self._is_logged = True
        elif self._is_logged and not self._failing:
            _logger.warning("the object store %s works again", self._url)
            self._is_logged = False

    @property
    def outage(self) -> Outage | None:
        """The outage that began first; None if the store works."""
        first = min(self._failing.values(), key=lambda each: each.since, default=None)
        lasts = first is not None and now_us() - first.since >= OUTAGE_SECONDS * 1_000_000
        return first if lasts else None

    @property
    def refuses_puts(self) -> bool:
        """Whether a put failed, after which only a put may tell that the store takes puts."""
        return "put" in self._failing

    def snapshot(self) -> dict[Operation, OperationCount]:
        """Return the counts by operation, without operations never requested."""
        with self._lock:
            return {operation: replace(count) for operation, count in self._counts.items()}


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
        counts: Counts of the requests since it was opened, and its outage.
    """

    url: str
    counts: ObjectCounts

    def put(self, name: str, parts: Parts) -> None:
        """Create an object atomically; durable on return.

        An existing object is never overwritten. If the response to an attempt was lost, the object
        is recognised as created by this call. After an error the object may exist all the same, or
        appear later.

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


MERGE_GAP_BYTES = 64 * 1024
"""Largest gap between ranges that one request reads: at 100 MB/s a request's latency of 10 ms costs
as much as a megabyte, but a gap is also held in memory and discarded."""

Range = tuple[int, int]
"""A pair `(start, end)` in bytes; the end is exclusive."""


def merge(ranges: Sequence[Range]) -> list[Range]:
    """Return the ranges to request: sorted, with neighbouring ones merged."""
    merged: list[Range] = []
    for start, end in sorted(ranges):
        if not 0 <= start < end:
            raise Internal(f"[{start}, {end}) is not a range of bytes")
        if merged and start - merged[-1][1] <= MERGE_GAP_BYTES:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def pieces(
    ranges: Sequence[Range], merged: Sequence[Range], read: Sequence[pa.Buffer]
) -> list[pa.Buffer]:
    """Return the bytes of each range, as slices of the merged ranges read."""
    places = list(zip(merged, read, strict=True))
    return [
        next(
            buffer.slice(start - first, end - start)
            for (first, last), buffer in places
            if first <= start and end <= last
        )
        for start, end in ranges
    ]


def cut_off(name: str, size: int, end: int) -> StorageCorrupt:
    """Return the error of an object that ends within a range."""
    return StorageCorrupt(
        f"object {name} has {size} bytes, and should have at least {end}", folio=name
    )


NAME_BYTES_MAX = 512

_NAME = re.compile(r"[A-Za-z0-9_=-][A-Za-z0-9._=-]*(/[A-Za-z0-9_=-][A-Za-z0-9._=-]*)*", re.ASCII)


def check_name(name: str) -> str:
    """Return a name after validating it.

    Names come from metadata, so one that leads out of the store is rejected.

    Raises:
        StorageCorrupt: The name is invalid.
    """
    if len(name) > NAME_BYTES_MAX or _NAME.fullmatch(name) is None:
        raise StorageCorrupt(f"{name!r:.80} is not the name of an object")
    return name


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RetryBounds:
    """Bounds of retries: `seconds_max`, and the time of one further attempt."""

    attempts_max: int = 12
    seconds_max: float = 60.0
    """Time after which no further attempt begins."""
    attempt_seconds_max: float = 30.0
    """Timeout of one attempt."""
    pause_seconds: float = 0.05
    """Upper bound of the first, random pause; it doubles with each attempt."""
    pause_seconds_max: float = 5.0


def retry(attempt: Callable[[], T], bounds: RetryBounds) -> T:
    """Call `attempt` until it does not raise Unavailable, within `bounds`.

    Raises:
        Unavailable: The last attempt failed.
    """
    ends_at = time.monotonic() + bounds.seconds_max
    pause_max = bounds.pause_seconds
    for number in range(1, bounds.attempts_max + 1):
        try:
            return attempt()
        except Unavailable as error:
            pause = random.uniform(0, pause_max)
            if number == bounds.attempts_max or time.monotonic() + pause >= ends_at:
                attempts = "once" if number == 1 else f"{number} times"
                raise Unavailable(f"{error.message} (tried {attempts})") from error
        time.sleep(pause)
        pause_max = min(2 * pause_max, bounds.pause_seconds_max)
    raise AssertionError("at least one attempt is made")
