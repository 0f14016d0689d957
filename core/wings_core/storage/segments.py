"""Folios on a local disk: flushes are appended to segment files, which readers map.

Only the process that created a segment writes to it, and never again after a failed write or sync:
after a failed sync the kernel may show bytes that are not on the disk. The file's length is always
that of the flushes written.

Several processes of one machine may share a directory. Each holds a lock (flock) on the segment
that it writes, from before the first byte until every flush in it is committed or rejected; the
lock is released when the process ends, and kept while it is only suspended. Locked segments are not
listed, so they are never deleted as unreferenced.

Pages are read from the kernel's cache without a copy. A map covers the greatest length that the
file may reach, so one map serves a segment all its life. Access past the file's end would kill the
process with SIGBUS, so every read first checks the file's actual length (0.5 µs).
"""

import contextlib
import errno
import fcntl
import mmap
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from wings_core.errors import Internal, ResourceExhausted, StorageCorrupt, Unavailable, WingsError
from wings_core.model import LOST_FOLIO, PageAddress
from wings_core.storage.files import BUFFERS_MAX, Files, SystemFiles, make_directory
from wings_core.storage.interfaces import EncodedPage, addresses_of
from wings_core.storage.lru import Lru
from wings_core.storage.page import buffers_of, parts_of, read_page, verify_page

SEGMENT_NAME = re.compile(r"[0-9a-f]{16}-[0-9a-f]{8}\.segment", re.ASCII)
"""Pattern of segments' names: creation time and a random number."""


@dataclass(frozen=True, slots=True)
class _Map:
    file: mmap.mmap
    """The map, with a descriptor of its own to read the file's length."""
    buffer: pa.Buffer
    """The mapped bytes. Slices of it, hence returned rows, keep the map alive."""


class _SegmentMaps:
    """The maps of recently read segments. Thread-safe.

    Args:
        directory: Directory of the segments.
        maps_max: Most open maps; each takes a file descriptor.
        on_forget: Called with a segment after its map was dropped or replaced by a longer one, so
            that cached rows drop it too; not called by `clear`.
    """

    def __init__(
        self, directory: Path, maps_max: int, on_forget: Callable[[str], None] | None = None
    ) -> None:
        self._directory = directory
        self._on_forget = on_forget
        self._maps: Lru[str, _Map] = Lru(maps_max, on_forget)

    def page(self, address: PageAddress) -> pa.Buffer:
        """Return the unverified bytes of a page.

        Raises:
            StorageCorrupt: The segment is missing, or ends before the page does.
            Internal: The segment cannot be opened.
        """
        return self.check(address).slice(address.position, address.length)

    def check(self, address: PageAddress) -> pa.Buffer:
        """Return the bytes of a whole segment, after checking that those of a page can be read.

        Raises: The errors of `page`.
        """
        end = address.position + address.length
        found = self._maps.get(address.folio)
        if found is None or end > found.buffer.size:
            found = self._open(address.folio)
        if address.position < 0 or address.length <= 0:
            raise StorageCorrupt(f"no page can have {address.length} bytes there")
        size = min(found.file.size(), found.buffer.size)
        if end > size:
            raise StorageCorrupt(f"it should end at byte {end}, but its file has {size} bytes")
        return found.buffer

    def add(self, folio: str, descriptor: int, length: int, files: Files) -> None:
        """Map a new segment at the greatest length that it may reach.

        If that fails, nothing happens: reads map the file when they need it.

        Args:
            folio: The segment; empty before and after.
            descriptor: Descriptor to read and write the segment; not kept.
            length: Bytes to map.
            files: Changes the file's length, as Python does not map past a file's end.
        """
        try:
            files.truncate(descriptor, length)
            try:
                file = mmap.mmap(descriptor, length, access=mmap.ACCESS_READ)
            finally:
                files.truncate(descriptor, 0)
        except (OSError, ValueError):
            return
        self._maps.put(folio, _Map(file, pa.py_buffer(file)))

    def discard(self, folio: str) -> None:
        """Drop a segment's map; returned rows keep it alive."""
        self._maps.discard(folio)
        self._forgotten(folio)

    def discard_where(self, condition: Callable[[str], bool]) -> None:
        """Drop the maps of segments that satisfy a condition."""
        for folio in self._maps.discard_where(condition):
            self._forgotten(folio)

    def holds(self, folio: str, segment: pa.Buffer) -> bool:
        """Return whether `segment`, a result of `check`, is still the segment's map."""
        found = self._maps.get(folio)
        return found is not None and found.buffer is segment

    def clear(self) -> None:
        """Drop all maps; returned rows keep theirs alive."""
        self._maps.clear()

    def _open(self, folio: str) -> _Map:
        if folio == LOST_FOLIO:
            raise StorageCorrupt("its messages were lost before the log was repaired")
        if SEGMENT_NAME.fullmatch(folio) is None:
            raise StorageCorrupt(f"{folio!r:.80} is not the name of a segment")
        try:
            descriptor = os.open(self._directory / folio, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise StorageCorrupt("its segment is missing", missing=True) from None
        except OSError as error:
            raise Internal(f"could not open segment {folio}: {error.strerror}") from error
        try:
            file = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
        except ValueError:
            raise StorageCorrupt("its segment is empty") from None
        except OSError as error:
            raise Internal(f"could not map segment {folio}: {error.strerror}") from error
        finally:
            os.close(descriptor)
        opened = _Map(file, pa.py_buffer(file))
        self._maps.put(folio, opened)
        self._forgotten(folio)
        return opened

    def _forgotten(self, folio: str) -> None:
        if self._on_forget is not None:
            self._on_forget(folio)


OPEN_SEGMENTS_MAX = 128
"""Most mapped segments; each takes one file descriptor."""

VERIFIED_PAGES_MAX = 65_536
"""Most pages whose verified parts are remembered (~20 MB); others are verified again."""

DECODED_BUFFERS_MAX = 131_072
"""Most buffers of pages that stay decoded as Arrow arrays over the map (~25 MB): decoding 100
columns takes as long as the rest of a read."""

DECODING_LOCKS = 64
"""Locks under which pages are decoded."""

WRITE_BYTES = 2 * 1024 * 1024
"""Size of the steps in which a larger flush is written."""

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


_PageKey = tuple[str, int]
"""Folio and position of a page."""


@dataclass(frozen=True, slots=True)
class _Decoded:
    """All rows of a page, with the `parts` verified so far."""

    rows: pa.RecordBatch
    length: int
    topic_uuid: str
    schema: pa.Schema
    parts: int

    def serves(self, address: PageAddress, topic_uuid: str, schema: pa.Schema, parts: int) -> bool:
        """Return whether `parts` are verified, for this topic and schema."""
        return (
            not parts & ~self.parts
            and self.schema is schema
            and self.topic_uuid == topic_uuid
            and self.length == address.length
        )


class SegmentStore:
    """A `FolioStore` of segment files in one directory. Reads are thread-safe.

    The directory need not exist before the first write, and reading never writes to it.

    Args:
        directory: Directory of the segments.
        segment_bytes_max: Length at which a segment is finished. A larger flush gets a segment of
            its own.
        open_segments_max: Most segments mapped for reading.
        files: The system calls of writing.
        grace_seconds: Age below which an unlocked segment is not listed: the commit of its last
            flush may still be in flight from a process that has ended. For a directory that
            several processes write to.
    """

    def __init__(
        self,
        directory: Path,
        *,
        segment_bytes_max: int,
        open_segments_max: int = OPEN_SEGMENTS_MAX,
        files: Files | None = None,
        grace_seconds: float = 0.0,
    ) -> None:
        self._directory = directory
        self._grace_seconds = grace_seconds
        self._segment_bytes_max = segment_bytes_max
        self._files = files or SystemFiles()
        self._maps = _SegmentMaps(directory, open_segments_max, self._forget)
        self._verified: Lru[_PageKey, int] = Lru(VERIFIED_PAGES_MAX)
        self._decoded: Lru[_PageKey, _Decoded] = Lru(
            DECODED_BUFFERS_MAX, group_of=lambda key: key[0]
        )
        """Decoded pages of open maps only, since rows hold their map and its descriptor."""
        self._decoding = [threading.Lock() for _ in range(DECODING_LOCKS)]
        """Held while a page is verified and decoded, one lock for some of all pages: readers that
        are woken together by a commit decode it once."""
        self._write_lock = threading.Lock()
        """Held while the active segment is written, finished or closed."""
        self._closed = False
        self._active: _Segment | None = None
        self._writing: str | None = None

    def write(self, pages: Sequence[EncodedPage]) -> list[PageAddress]:
        """See `FolioStore.write`."""
        length = sum(page.length for page in pages)
        if length == 0:
            return []
        with self._write_lock:
            if self._closed:
                raise Unavailable(f"the segments of {self._directory} are closed")
            return self._append(pages, length)

    def _append(self, pages: Sequence[EncodedPage], length: int) -> list[PageAddress]:
        segment = self._segment_for(length)
        start = segment.length
        try:
            segment.append(pages)
        except BaseException as error:
            self._abandon(segment)
            if isinstance(error, OSError):
                raise _error_of("write to", segment.name, error) from error
            raise
        return addresses_of(segment.name, pages, start)

    def read(
        self,
        address: PageAddress,
        topic_uuid: str,
        schema: pa.Schema,
        columns: Sequence[int] | None = None,
    ) -> pa.RecordBatch:
        """See `FolioStore.read`."""
        key = (address.folio, address.position)
        parts = parts_of(schema, columns)
        try:
            # Checked on every read: the file may have been truncated since the last one.
            segment = self._maps.check(address)
            page = self._decoded.get(key)
            if page is None or not page.serves(address, topic_uuid, schema, parts):
                with self._decoding[hash(key) % len(self._decoding)]:
                    page = self._decoded.get(key)  # Another reader may have been here meanwhile.
                    if page is None or not page.serves(address, topic_uuid, schema, parts):
                        page = self._decode(key, segment, address, topic_uuid, schema, parts)
            return page.rows if columns is None else page.rows.select(columns)
        except StorageCorrupt as error:
            raise StorageCorrupt(
                f"page at byte {address.position} of {address.folio}: {error.message}",
                folio=address.folio,
                position=address.position,
            ) from error

    def read_all(
        self,
        addresses: Sequence[PageAddress],
        topic_uuid: str,
        schema: pa.Schema,
        columns: Sequence[int] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """See `FolioStore.read_all`; the kernel reads ahead."""
        for address in addresses:
            yield self.read(address, topic_uuid, schema, columns)

    def _decode(
        self,
        key: "_PageKey",
        segment: pa.Buffer,
        address: PageAddress,
        topic_uuid: str,
        schema: pa.Schema,
        parts: int,
    ) -> "_Decoded":
        """Verify the parts of a page that were not verified yet, and decode it."""
        page = segment.slice(address.position, address.length)
        verified = self._verified.get(key) or 0
        missing = parts & ~verified
        if missing:
            verify_page(page, topic_uuid, schema, missing)
            verified |= parts
            self._verified.put(key, verified)
        rows = read_page(page, topic_uuid, schema)
        decoded = _Decoded(rows, address.length, topic_uuid, schema, verified)
        self._decoded.put(key, decoded, buffers_of(topic_uuid, schema))
        if not self._maps.holds(address.folio, segment):
            # The segment was deleted meanwhile, or mapped anew.
            self._decoded.discard(key)
        return decoded

    def _forget(self, folio: str) -> None:
        """Drop the decoded rows of a segment, which keep its map open."""
        self._decoded.discard_group(folio)

    def folios(self) -> set[str]:
        """See `FolioStore.folios`.

        No page is committed later to a folio listed here, so a caller that deletes unreferenced
        folios lists them first, then the references.
        """
        try:
            names = {path.name for path in self._directory.iterdir()}
        except FileNotFoundError:
            return set()
        except OSError as error:
            raise _error_of("list", str(self._directory), error) from error
        # In this order: a segment is being written to before its file is there.
        writing = self._writing
        names = {name for name in names if SEGMENT_NAME.fullmatch(name)}
        self._maps.discard_where(lambda folio: folio not in names)  # Deleted by another process.
        names.discard(writing or "")
        return {name for name in names if self._is_finished(name)}

    def _is_finished(self, folio: str) -> bool:
        """Return whether no process writes to a segment, and no commit to it is pending."""
        try:
            descriptor = os.open(self._directory / folio, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False  # Deleted meanwhile; a reader reports any other error.
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return time.time() - os.fstat(descriptor).st_mtime >= self._grace_seconds
        except OSError:
            return False
        finally:
            os.close(descriptor)

    def check_rest(self, folio: str, pages: Sequence[tuple[int, int]]) -> Iterator[str]:
        """Yield nothing: a folio consists of its pages."""
        del folio, pages
        return iter(())

    def delete(self, folio: str) -> None:
        """See `FolioStore.delete`.

        Raises:
            Internal: The folio is being written to, or the disk failed.
        """
        if SEGMENT_NAME.fullmatch(folio) is None or folio == self._writing:
            raise Internal(f"{folio!r:.80} is not a segment that can be deleted")
        try:
            # Not synced: an entry that reappears after a crash is found and deleted again.
            (self._directory / folio).unlink(missing_ok=True)
        except OSError as error:
            raise _error_of("delete", folio, error) from error
        finally:
            self._maps.discard(folio)

    def close(self) -> None:
        """See `FolioStore.close`."""
        with (
            self._write_lock
        ):  # Closing a descriptor in use could redirect a write to another file.
            self._closed = True
            self._finish()
        self._decoded.clear()
        self._maps.clear()

    def _segment_for(self, length: int) -> "_Segment":
        """Return the segment for the next flush, creating one if needed."""
        active = self._active
        if active is not None and active.length + length <= self._segment_bytes_max:
            return active
        self._finish()
        name = f"{time.time_ns():016x}-{secrets.token_hex(4)}.segment"
        self._writing = name
        try:
            segment = self._begin(name)
        except OSError as error:
            self._writing = None
            raise _error_of("create", name, error) from error
        self._maps.add(name, segment.descriptor, max(self._segment_bytes_max, length), self._files)
        self._active = segment
        return segment

    def _begin(self, name: str) -> "_Segment":
        make_directory(self._directory, self._files.sync_directory)
        path = self._directory / name
        # `create` fails if the file exists, for example as another process's segment.
        segment = _Segment(name, self._files.create(path), self._files)
        try:
            segment.lock()
            self._files.sync_directory(self._directory)
        except BaseException:
            segment.close()
            with contextlib.suppress(OSError):
                path.unlink()
            raise
        return segment

    def _finish(self) -> None:
        """Stop writing to the active segment, which is durable."""
        active, self._active, self._writing = self._active, None, None
        if active is not None:
            active.close()

    def _abandon(self, segment: "_Segment") -> None:
        """Stop writing to a failed segment, and truncate the last flush."""
        with contextlib.suppress(OSError):
            if segment.length == 0:
                self._maps.discard(segment.name)
                (self._directory / segment.name).unlink()
            else:
                self._files.truncate(segment.descriptor, segment.length)
        self._finish()


class _Segment:
    """A segment file being written; `length` covers its durable flushes."""

    def __init__(self, name: str, descriptor: int, files: Files) -> None:
        self.name = name
        self.descriptor = descriptor
        self.length = 0
        self._files = files

    def append(self, pages: Sequence[EncodedPage]) -> None:
        """Append pages; returns once they are durable, or raises OSError."""
        buffers = [memoryview(part) for page in pages for part in page.parts]
        end = self._write(buffers)
        self._files.sync(self.descriptor)
        self.length = end

    def lock(self) -> None:
        """Lock the segment, so that other processes do not treat it as abandoned.

        Raises OSError if another process deleted it between its creation and the lock.
        """
        fcntl.flock(self.descriptor, fcntl.LOCK_EX)
        if os.fstat(self.descriptor).st_nlink == 0:
            raise FileNotFoundError(errno.ENOENT, "another process deleted the new segment")

    def close(self) -> None:
        """Close the file; ignores errors, as every flush was synced."""
        with contextlib.suppress(OSError):
            # A map of the file holds the lock too, so closing alone would not release it.
            fcntl.flock(self.descriptor, fcntl.LOCK_UN)
            os.close(self.descriptor)

    def _write(self, buffers: list[memoryview]) -> int:
        """Write all buffers, in as many calls as needed; returns their end position.

        A large flush is written in steps, each written back while the next is copied, which makes
        it 1.5 times as fast (measured).
        """
        position, first = self.length, 0
        while first < len(buffers):
            some = _step(buffers, first)
            written = self._files.write(self.descriptor, some, position)
            if written <= 0:
                raise OSError(errno.EIO, "nothing was written")
            if len(some) < len(buffers):
                self._files.begin_sync(self.descriptor, position, written)
            position += written
            while first < len(buffers) and written >= len(buffers[first]):
                written -= len(buffers[first])
                first += 1
            if written:
                buffers[first] = buffers[first][written:]
        return position


def _step(buffers: list[memoryview], first: int) -> list[memoryview]:
    """Return the next buffers to write in one call."""
    size = 0
    for count in range(1, min(BUFFERS_MAX, len(buffers) - first) + 1):
        size += len(buffers[first + count - 1])
        if size >= WRITE_BYTES:
            return buffers[first : first + count]
    return buffers[first : first + BUFFERS_MAX]


def _error_of(operation: str, what: str, error: OSError) -> WingsError:
    reason = error.strerror or str(error)
    if error.errno in _NO_ROOM:
        return ResourceExhausted(f"the disk is full: could not {operation} {what}: {reason}")
    return Internal(f"could not {operation} {what}: {reason}")
