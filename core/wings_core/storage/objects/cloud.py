"""Object stores of clouds: S3 and compatible stores, Google Cloud Storage, Azure.

Requests go through obstore (https://developmentseed.org/obstore/), which releases Python's global
lock while it waits; retries and the translation of errors are done here.
"""

import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

import obstore
import pyarrow as pa
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    PermissionDeniedError,
    UnauthenticatedError,
)
from obstore.store import ObjectStore as Client

from wings_core.errors import (
    AlreadyExists,
    Internal,
    InvalidArgument,
    PermissionDenied,
    StorageCorrupt,
    Unavailable,
    WingsError,
)
from wings_core.storage.objects.interfaces import (
    ObjectCounts,
    Operation,
    Parts,
    RetryBounds,
    StoredObject,
    check_name,
    cut_off,
    merge,
    pieces,
    retry,
)

LIST_OBJECTS = 1_000
"""Objects per list request."""

ALIGNMENT = 8
"""Alignment of Arrow's buffers, kept if the ranges of an object have it."""

_PUT_ATTRIBUTE = "wingsput"
"""Object metadata key for the random number of the put that created it. All clouds accept a name of
letters only."""

_STATUS = re.compile(r"status code: (\d{3})")
_EXPLANATION = re.compile(r"<Code>([^<]{1,100})</Code>|<Message>([^<]{1,300})</Message>")
_CAUSE = re.compile(r'(?:message|error): "([^"]{1,200})"')
_RETRIED_STATUS = {"408", "409", "425", "429"}
_MESSAGE_CHARACTERS_MAX = 300

T = TypeVar("T")


class CloudObjects:
    """An `ObjectStore` of a cloud.

    Args:
        client: Client for the bucket and the prefix, with its own retries disabled.
        url: URL for messages.
        bounds: Bounds of retries.
    """

    def __init__(self, client: Client, url: str, bounds: RetryBounds) -> None:
        self._client = client
        self._bounds = bounds
        self.url = url
        self.counts = ObjectCounts(url)

    def put(self, name: str, parts: Parts) -> None:
        """See `ObjectStore.put`."""
        check_name(name)
        buffers = [memoryview(part).cast("B") for part in parts if len(part)]
        # An object with this number was created by this call, even if the response was lost.
        number = secrets.token_hex(16)

        def attempt() -> None:
            try:
                obstore.put(
                    self._client,
                    name,
                    buffers,
                    mode="create",
                    use_multipart=False,
                    attributes={_PUT_ATTRIBUTE: number},
                )
            except AlreadyExistsError:
                if self._put_number(name) != number:
                    raise

        self._retry("put", name, attempt, size=sum(map(len, buffers)))

    def read(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[pa.Buffer]:
        """See `ObjectStore.read`."""
        check_name(name)
        merged = merge(ranges)
        starts, ends = [start for start, _ in merged], [end for _, end in merged]
        whole = sum(ends) - sum(starts)

        def attempt() -> list[pa.Buffer]:
            read = obstore.get_ranges(self._client, name, starts=starts, ends=ends, coalesce=0)
            return [_aligned(pa.py_buffer(each)) for each in read]

        try:
            buffers = self._retry("read", name, attempt, size=whole)
        except Internal:
            self._check_length(name, max(ends))  # The range is beyond the object's end.
            raise
        for buffer, (start, end) in zip(buffers, merged, strict=True):
            if buffer.size != end - start:
                raise cut_off(name, start + buffer.size, end)
        return pieces(ranges, merged, buffers)

    def size(self, name: str) -> int:
        """See `ObjectStore.size`."""
        check_name(name)
        return self._retry("head", name, lambda: obstore.head(self._client, name)["size"])

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        """See `ObjectStore.list`."""
        last: str | None = None
        while True:
            # An interrupted listing resumes after the last object seen.
            page = self._retry("list", prefix or self.url, partial(self._page, prefix, last))
            yield from page
            if len(page) < LIST_OBJECTS:
                return
            last = page[-1].name

    def _page(self, prefix: str, last: str | None) -> Sequence[StoredObject]:
        listed = obstore.list(self._client, prefix or None, offset=last, chunk_size=LIST_OBJECTS)
        return [
            StoredObject(found["path"], found["size"], found["last_modified"].timestamp())
            for found in next(iter(listed), [])
        ]

    def delete(self, name: str) -> None:
        """See `ObjectStore.delete`."""
        check_name(name)
        try:
            self._retry("delete", name, lambda: obstore.delete(self._client, name))
        except StorageCorrupt:
            return  # Some clouds report an error for a missing object.

    def check(self, *, write: bool = True) -> None:
        """See `ObjectStore.check`."""
        try:
            self._retry("list", self.url, lambda: self._page("", None))
            if write:
                self._check_writes(f"probe-{secrets.token_hex(8)}")
        except StorageCorrupt as error:
            raise InvalidArgument(f"{self.url} cannot be used: {error.message}") from error

    def _check_writes(self, probe: str) -> None:
        self.put(probe, [b"probe"])
        try:
            self.put(probe, [b"overwritten"])
        except AlreadyExists:
            return
        finally:
            self.delete(probe)
        raise InvalidArgument(f"{self.url} overwrites objects: it does not know conditional puts")

    def _put_number(self, name: str) -> str | None:
        """Return the number of the put that created an object; one attempt."""
        try:
            found = obstore.get(self._client, name, options={"head": True})
        except FileNotFoundError:
            raise Unavailable(
                f"{self.url} reports object {name} as existing and as missing"
            ) from None
        return found.attributes.get(_PUT_ATTRIBUTE)

    def _check_length(self, name: str, end: int) -> None:
        size = self.size(name)
        if size < end:
            raise cut_off(name, size, end)

    def _retry(self, operation: Operation, name: str, attempt: Callable[[], T], size: int = 0) -> T:
        def counted() -> T:
            with self.counts.counted(operation, size):
                try:
                    return attempt()
                except (BaseError, OSError) as error:
                    raise _error_of(operation, name, self.url, error) from error

        return retry(counted, self._bounds)


def _aligned(buffer: pa.Buffer) -> pa.Buffer:
    """Return bytes aligned for Arrow, copied if a small response was not aligned."""
    if buffer.address % ALIGNMENT == 0:
        return buffer
    aligned = pa.allocate_buffer(buffer.size)
    memoryview(aligned).cast("B")[:] = memoryview(buffer).cast("B")
    return aligned


def _error_of(operation: Operation, name: str, url: str, error: Exception) -> WingsError:
    if "<Code>NoSuchBucket</Code>" in str(error):
        return InvalidArgument(f"there is no bucket at {url}")
    if isinstance(error, FileNotFoundError):
        return StorageCorrupt(f"object {name} is missing", folio=name, missing=True)
    if isinstance(error, AlreadyExistsError):
        return AlreadyExists(f"object {name} exists already")
    status = _STATUS.search(str(error))
    what = url if name == url else f"{name} at {url}"
    message = f"could not {operation} {what}: {_reason(error)}"
    if isinstance(error, (PermissionDeniedError, UnauthenticatedError)):
        return PermissionDenied(message)
    if status is None or status[1].startswith("5") or status[1] in _RETRIED_STATUS:
        return Unavailable(message)
    if status[1] in {"401", "403"}:
        return PermissionDenied(message)
    if status[1] == "404":
        return InvalidArgument(message)
    return Internal(message)


def _reason(error: Exception) -> str:
    """Return a short reason without URLs, whose query may hold a signature."""
    text = str(error)
    status = _STATUS.search(text)
    explained = dict.fromkeys(code or message for code, message in _EXPLANATION.findall(text))
    if status is not None:
        return ": ".join([f"status {status[1]}", *explained])[:_MESSAGE_CHARACTERS_MAX]
    first = ": ".join([text.split("\n", 1)[0], *_CAUSE.findall(text)[-1:]])
    return re.sub(r"https?://\S+", "the store", first)[:_MESSAGE_CHARACTERS_MAX]
