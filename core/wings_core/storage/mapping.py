"""Memory-mapped segment files: pages are read from the kernel's cache without a copy.

A map covers the greatest length that the file may reach, so one map serves a segment all its life.
Access past the file's end would kill the process with SIGBUS, so every read first checks the
file's actual length (0.5 µs).
"""

import mmap
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from wings_core.errors import Internal, StorageCorrupt
from wings_core.model import LOST_FOLIO, PageAddress
from wings_core.storage.files import Files
from wings_core.storage.lru import Lru

SEGMENT_NAME = re.compile(r"[0-9a-f]{16}-[0-9a-f]{8}\.segment", re.ASCII)
"""Pattern of segments' names: creation time and a random number."""


@dataclass(frozen=True, slots=True)
class _Map:
    file: mmap.mmap
    """The map, with a descriptor of its own to read the file's length."""
    buffer: pa.Buffer
    """The mapped bytes. Slices of it, hence returned rows, keep the map alive."""


class SegmentMaps:
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
