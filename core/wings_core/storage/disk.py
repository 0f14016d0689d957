"""DiskGuard: rejects pushes before the disk is full, and keeps a reserve for other writes.

    free ≥ watermark           pushes are accepted
    free < watermark           pushes are rejected; reads, deletes, offsets, acknowledgements work
    free near 0                a step of the reserve is released for those, until it is used up

The reserve is a file of its own. If the disk is full when a server starts, it is released before
anything is opened: SQLite creates files even to read.
"""

import logging
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from wings_core.errors import ResourceExhausted

RESERVE_BYTES = 16 * 1024 * 1024
RESERVE_STEP_BYTES = 4 * 1024 * 1024
"""Bytes released at a time; other programs could use up a reserve released all at once."""

LOOK_SECONDS = 0.5
"""Interval between checks of the free space."""

MERGE_SHARE = 16
"""Part of the room down to half of the watermark that one merge on a full disk may take."""

_MIB = 1024 * 1024
_logger = logging.getLogger(__name__)


def free_bytes(path: Path) -> int:
    """Return the bytes that this process may still write to the file system of a directory.

    Raises:
        OSError: The file system cannot be queried.
    """
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


class DiskGuard:
    """Watches the disk of one directory, from its construction on. Thread-safe.

    Args:
        path: A locked data directory, so that only one process manages its reserve.
        free_bytes_min: The watermark; with 0, pushes are never rejected.
        reserve: The file of the reserve; None if another process manages it.
        free: Returns the free bytes; replaced in tests.
        elsewhere: Returns why another disk rejects pushes, or None.
    """

    def __init__(
        self,
        path: Path,
        free_bytes_min: int,
        reserve: Path | None,
        free: Callable[[Path], int] = free_bytes,
        elsewhere: Callable[[], str | None] = lambda: None,
    ) -> None:
        self.path = path
        self.free_bytes_min = free_bytes_min
        self._reserve = reserve
        self._free = free
        self._elsewhere = elsewhere
        self._lock = threading.Lock()
        """A leaf lock."""
        self._refusal: str | None = None
        self.free_bytes = 0
        """Free bytes at the last check, minus those that the reserve took since."""
        self._stopped = threading.Event()
        self.look()
        self._thread = threading.Thread(target=self._run, name="wings-disk", daemon=True)
        self._thread.start()

    @property
    def refusal(self) -> str | None:
        """The reason why pushes are rejected, as of the last check; None if they are accepted."""
        return self._refusal or self._elsewhere()

    def may_merge(self, size: int) -> bool:
        """Return whether pages of so many bytes may be merged, which frees files that few use.

        Below the watermark a little may, for each of a few at a time, down to half of it.
        """
        if self.refusal is None:
            return True
        self.look()  # Merges since the last look took some.
        left = self.free_bytes - self.free_bytes_min // 2
        return self._elsewhere() is None and size * MERGE_SHARE <= left

    def check(self) -> None:
        """Check that pushes are accepted.

        Raises:
            ResourceExhausted: The disk is too full.
        """
        refusal = self.refusal
        if refusal is not None:
            raise ResourceExhausted(refusal)

    def look(self) -> None:
        """Check the disk now: adjust the reserve, and accept or reject pushes."""
        with self._lock:
            try:
                free = self._free(self.path)
                if self._reserve is not None:
                    free = self._adjust(self._reserve, free)
            except OSError as error:
                _logger.warning("the free space of %s cannot be read: %s", self.path, error)
                return
            self.free_bytes = free
            self._judge(free)

    def close(self) -> None:
        """Stop watching; the reserve stays for the next start."""
        self._stopped.set()
        self._thread.join()

    # Private; all but `_run` are called with the lock held.

    def _run(self) -> None:
        while not self._stopped.wait(LOOK_SECONDS):
            self.look()

    def _judge(self, free: int) -> None:
        before = self._refusal
        if free >= self.free_bytes_min:
            self._refusal = None
            if before is not None:
                _logger.warning("pushes are taken again: the disk has %d MiB free", free // _MIB)
            return
        self._refusal = (
            f"pushes are refused: the disk has {free // _MIB} MiB free, less than the "
            f"{self.free_bytes_min // _MIB} MiB of limits.disk_free_bytes_min"
        )
        if before is None:
            _logger.warning("%s", self._refusal)

    def _adjust(self, reserve: Path, free: int) -> int:
        """Release steps of the reserve until space is free, or refill it; returns free bytes."""
        held = reserve.stat().st_size if reserve.exists() else 0
        # Only once most of the last step is used.
        while free < RESERVE_STEP_BYTES // 4 and held:
            held = max(0, held - RESERVE_STEP_BYTES)
            _logger.warning("the disk is full: %d MiB of the reserve are left", held // _MIB)
            os.truncate(reserve, held)
            free = self._free(self.path)
        if held < RESERVE_BYTES and free >= self.free_bytes_min + RESERVE_BYTES:
            _allocate(reserve, RESERVE_BYTES)
            free = self._free(self.path)
        return free


def _allocate(path: Path, size: int) -> None:
    """Allocate blocks for a file, without writing them where the file system supports it."""
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, 0, size)
        else:  # On macOS: written, as a hole reserves no space.
            written = 0
            while written < size:
                written += os.write(descriptor, bytes(min(_MIB, size - written)))
    except OSError:
        with suppress(OSError):
            os.ftruncate(descriptor, 0)
        raise
    finally:
        os.close(descriptor)
