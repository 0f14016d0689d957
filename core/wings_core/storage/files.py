"""The system calls of writing, as an interface, so that tests can inject failures."""

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Protocol


class Files(Protocol):
    """The calls that make folios durable; each may raise OSError."""

    def create(self, path: Path) -> int:
        """Create a file that must not exist and return its descriptor, to read and write."""
        ...

    def write(self, descriptor: int, buffers: Sequence[memoryview], position: int) -> int:
        """Write buffers in order; returns the number of bytes written, possibly fewer than given.

        Args:
            descriptor: A descriptor returned by `create`.
            buffers: At most `BUFFERS_MAX` buffers.
            position: Position of the first byte in the file.
        """
        ...

    def begin_sync(self, descriptor: int, position: int, length: int) -> None:
        """Start writing back bytes that `sync` will wait for. A hint; returns at once."""
        ...

    def sync(self, descriptor: int) -> None:
        """Make the file's bytes and length durable; blocks until they are."""
        ...

    def sync_directory(self, path: Path) -> None:
        """Make the directory's entries durable; blocks until they are."""
        ...

    def truncate(self, descriptor: int, length: int) -> None:
        """Truncate a file, or extend it with a hole."""
        ...


def sync_data(descriptor: int) -> None:
    """Make a file's bytes and length durable, flushing the disk's own cache too.

    macOS has no `fdatasync`, and its `fsync` leaves the bytes in the disk's cache.
    """
    if hasattr(os, "fdatasync"):
        os.fdatasync(descriptor)
        return
    fcntl = import_module("fcntl")  # The client imports this module too, on Windows.
    if hasattr(fcntl, "F_FULLFSYNC"):
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    else:
        os.fsync(descriptor)


def sync_directory(path: Path) -> None:
    """Make a directory's entries durable; blocks until they are."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(path: Path, sync: Callable[[Path], None] = sync_directory) -> None:
    """Create a directory and its parents durably; existing ones are left as they are.

    Args:
        path: The directory; its mode is 0700.
        sync: Makes the entries of a directory durable.

    Raises:
        OSError: The directory does not exist and cannot be created.
    """
    if path.is_dir():
        return
    make_directory(path.parent, sync)
    path.mkdir(mode=0o700, exist_ok=True)
    try:
        sync(path.parent)
    except OSError:
        with suppress(OSError):  # Otherwise the next caller would take it for durable.
            path.rmdir()
        raise


BUFFERS_MAX = min(1024, os.sysconf("SC_IOV_MAX")) if hasattr(os, "sysconf") else 1024
"""Most buffers in one `Files.write`, the kernel's limit."""


class SystemFiles:
    """The operating system's own calls."""

    def create(self, path: Path) -> int:
        """See `Files.create`."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def write(self, descriptor: int, buffers: Sequence[memoryview], position: int) -> int:
        """See `Files.write`."""
        return os.pwritev(descriptor, buffers, position)

    def begin_sync(self, descriptor: int, position: int, length: int) -> None:
        """See `Files.begin_sync`."""
        # On Linux the advice starts the write-back of dirty pages; being dirty, they stay cached.
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(descriptor, position, length, os.POSIX_FADV_DONTNEED)

    def sync(self, descriptor: int) -> None:
        """See `Files.sync`."""
        sync_data(descriptor)

    def sync_directory(self, path: Path) -> None:
        """See `Files.sync_directory`."""
        sync_directory(path)

    def truncate(self, descriptor: int, length: int) -> None:
        """See `Files.truncate`."""
        os.ftruncate(descriptor, length)
