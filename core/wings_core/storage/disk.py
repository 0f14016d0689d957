"""DiskGuard: refuses pushes before the disk is full, and keeps a reserve for what must go on.

    free ≥ watermark           pushes are taken
    free < watermark           pushes are refused; reads, deletes, offsets, acknowledgements go on
    free near 0                and a step of the reserve is released for those, until it is used up

The reserve is a file of its own. Where the disk is full when a server starts, it is released before
anything is opened: SQLite makes files even to read.
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
"""So much is released at a time: all at once could be gone at once, where others write too."""

LOOK_SECONDS = 0.5
"""How often the free space is looked at."""

_MIB = 1024 * 1024
_logger = logging.getLogger(__name__)


def free_bytes(path: Path) -> int:
    """Return how many bytes this process may still write to the file system of a directory.

    Raises:
        OSError: It cannot be told.
    """
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


class DiskGuard:
    """Watches the disk of one directory, from its construction on; all methods from any thread.

    Args:
        path: A data directory that is locked, so that one process has its reserve.
        free_bytes_min: The watermark; 0: pushes are never refused.
        reserve: The file of the reserve; None: another process has it.
        free: Tells the free bytes, for tests.
        elsewhere: Tells why pushes are refused for the sake of another disk; None: they are not.
    """

    def __init__(
        self,
        path: Path,
        free_bytes_min: int,
        reserve: Path | None,
        free: Callable[[Path], int] = free_bytes,
        elsewhere: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._path = path
        self._free_bytes_min = free_bytes_min
        self._reserve = reserve
        self._free = free
        self._elsewhere = elsewhere
        self._lock = threading.Lock()
        """Nothing else is locked under it."""
        self._refusal: str | None = None
        self.free_bytes = 0
        """Free on the disk at the last look, less what its reserve was filled up with."""
        self._stopped = threading.Event()
        self.look()
        self._thread = threading.Thread(target=self._run, name="wings-disk", daemon=True)
        self._thread.start()

    @property
    def refusal(self) -> str | None:
        """Why pushes are refused now, None: they are not; as of the last look."""
        return self._refusal or self._elsewhere()

    def check(self) -> None:
        """Make sure that pushes are taken.

        Raises:
            ResourceExhausted: They are not.
        """
        refusal = self.refusal
        if refusal is not None:
            raise ResourceExhausted(refusal)

    def look(self) -> None:
        """Look at the disk now: release of the reserve, or make it, and take pushes or refuse."""
        with self._lock:
            try:
                free = self._free(self._path)
                if self._reserve is not None:
                    free = self._adjust(self._reserve, free)
            except OSError as error:
                _logger.warning("the disk of %s cannot be looked at: %s", self._path, error)
                return
            self.free_bytes = free
            self._judge(free)

    def close(self) -> None:
        """Stop looking; the reserve stays for the next start."""
        self._stopped.set()
        self._thread.join()

    # Inside; the lock is held but by `_run`.

    def _run(self) -> None:
        while not self._stopped.wait(LOOK_SECONDS):
            self.look()

    def _judge(self, free: int) -> None:
        before = self._refusal
        if free >= self._free_bytes_min:
            self._refusal = None
            if before is not None:
                _logger.warning("pushes are taken again: the disk has %d MiB free", free // _MIB)
            return
        self._refusal = (
            f"pushes are refused: the disk has {free // _MIB} MiB free, less than the "
            f"{self._free_bytes_min // _MIB} MiB of limits.disk_free_bytes_min"
        )
        if before is None:
            _logger.warning("%s", self._refusal)

    def _adjust(self, reserve: Path, free: int) -> int:
        """Release steps of the reserve until some space is free, or make it; return what is."""
        held = reserve.stat().st_size if reserve.exists() else 0
        # Not before most of the last step is used.
        while free < RESERVE_STEP_BYTES // 4 and held:
            held = max(0, held - RESERVE_STEP_BYTES)
            _logger.warning("the disk is full: %d MiB of the reserve are left", held // _MIB)
            os.truncate(reserve, held)
            free = self._free(self._path)
        if held < RESERVE_BYTES and free >= self._free_bytes_min + RESERVE_BYTES:
            _allocate(reserve, RESERVE_BYTES)
            free = self._free(self._path)
        return free


def _allocate(path: Path, size: int) -> None:
    """Give a file real blocks, without writing them where the file system can do that."""
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, 0, size)
        else:  # On macOS: written, as a hole would keep no room.
            written = 0
            while written < size:
                written += os.write(descriptor, bytes(min(_MIB, size - written)))
    except OSError:
        with suppress(OSError):
            os.ftruncate(descriptor, 0)
        raise
    finally:
        os.close(descriptor)
