"""Segment files in memory: pages are read where the kernel caches them, without a copy.

A map of a file reaches as far as the file may grow, so one map serves a segment from its first page
to its last. Touching a map past the file's end would kill the process with SIGBUS, so the file's
real length is asked for on every read, before its bytes are looked at (0.5 µs).
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
"""Segments are the files of this name: the time of their beginning and a random number."""


@dataclass(frozen=True, slots=True)
class _Map:
    file: mmap.mmap
    """Holds a descriptor of its own, which tells the file's length at any time."""
    buffer: pa.Buffer
    """The bytes. Slices of it, and so the rows handed out, keep the map alive."""


class SegmentMaps:
    """The maps of the segments read last; safe from many threads.

    Args:
        directory: Where the segments are.
        maps_max: Most maps kept open. Each takes a file descriptor.
        on_forget: Called with a segment after its map was let go of, be it for a longer one, so
            that rows which are kept let go of it too; not by `clear`.
    """

    def __init__(
        self, directory: Path, maps_max: int, on_forget: Callable[[str], None] | None = None
    ) -> None:
        self._directory = directory
        self._on_forget = on_forget
        self._maps: Lru[str, _Map] = Lru(maps_max, on_forget)

    def page(self, address: PageAddress) -> pa.Buffer:
        """Return the bytes of a page, which may be anything.

        Raises:
            StorageCorrupt: The segment is missing, or ends before the page does.
            Internal: The segment cannot be opened.
        """
        return self.check(address).slice(address.position, address.length)

    def check(self, address: PageAddress) -> pa.Buffer:
        """Return the bytes of a whole segment, of which those of a page are there to be read.

        Raises: as `page`.
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
        """Map a segment that was just created, as long as it may become.

        Where that is not possible, nothing is done: reads map what there is when they need it.

        Args:
            folio: The segment, still empty, and empty again afterwards.
            descriptor: The segment's, to read and write; not kept.
            length: Bytes that the map covers.
            files: To change the file's length: Python does not map past a file's end.
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
        """Forget a segment's map; rows handed out keep it."""
        self._maps.discard(folio)
        self._forgotten(folio)

    def discard_where(self, condition: Callable[[str], bool]) -> None:
        """Forget the maps of some segments."""
        for folio in self._maps.discard_where(condition):
            self._forgotten(folio)

    def holds(self, folio: str, segment: pa.Buffer) -> bool:
        """Tell whether what `check` returned is still the segment's map."""
        found = self._maps.get(folio)
        return found is not None and found.buffer is segment

    def clear(self) -> None:
        """Forget all maps; rows handed out keep theirs."""
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
