"""An object store in a directory, on a local or network file system with hard links."""

import contextlib
import errno
import os
import secrets
import time
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from wings_core.errors import (
    AlreadyExists,
    Internal,
    InvalidArgument,
    PermissionDenied,
    ResourceExhausted,
    StorageCorrupt,
    WingsError,
)
from wings_core.storage.disk import free_bytes
from wings_core.storage.files import BUFFERS_MAX, SystemFiles, make_directory
from wings_core.storage.objects.interfaces import (
    ObjectCounts,
    Parts,
    StoredObject,
    check_name,
    cut_off,
    merge,
    pieces,
)

UNFINISHED_SECONDS_MAX = 86_400.0
"""Age from which `check` deletes the file of an unfinished put."""

CREATE_TRIES_MAX = 8
"""Most attempts to create a file's directory while other processes delete it."""

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}
_UNFINISHED = ".put-"


class DirectoryObjects:
    """An `ObjectStore` of files; the directory is created with the first object.

    An object is written to a temporary file, synced, and linked to its name, which fails if the
    name exists.

    Args:
        directory: Directory of the objects; `/` in names separates folders.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory.absolute()
        self._files = SystemFiles()
        self.url = self._directory.as_uri()
        self.counts = ObjectCounts(self.url)

    def put(self, name: str, parts: Parts) -> None:
        """See `ObjectStore.put`."""
        path = self._path(name)
        size = sum(map(len, parts))
        with self.counts.counted("put", size), _errors(f"store {name}"):
            unfinished = path.parent / f"{_UNFINISHED}{secrets.token_hex(8)}"
            is_new = True
            try:
                self._write(self._create(unfinished), parts)
                os.link(unfinished, path)
            except FileExistsError:
                is_new = False
            finally:
                unfinished.unlink(missing_ok=True)
            # The sync of an existing object or directory may have failed.
            for depth in range(name.count("/") + 1):
                self._files.sync_directory(path.parents[depth])
            if not is_new:
                raise AlreadyExists(f"object {name} exists already")

    def read(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[pa.Buffer]:
        """See `ObjectStore.read`."""
        merged = merge(ranges)
        with (
            self.counts.counted("read", sum(end - start for start, end in merged)),
            _errors(f"read {name}"),
        ):
            descriptor = self._open(name)
            try:
                buffers = [_read_range(descriptor, name, start, end) for start, end in merged]
            finally:
                os.close(descriptor)
        return pieces(ranges, merged, buffers)

    def size(self, name: str) -> int:
        """See `ObjectStore.size`."""
        path = self._path(name)
        with self.counts.counted("head"), _errors(f"look at {name}"):
            try:
                return path.stat().st_size
            except FileNotFoundError:
                raise _missing(name) from None

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        """See `ObjectStore.list`."""
        top = self._path(prefix) if prefix else self._directory
        with self.counts.counted("list"), _errors(f"list {self._directory}"):
            # Without a `Path` of each, which takes most of the time.
            start = len(str(self._directory)) + 1
            for parent, file in _files_below(top):
                if file.startswith("."):
                    continue
                with contextlib.suppress(FileNotFoundError):  # Deleted meanwhile.
                    path = f"{parent}/{file}"
                    found = os.stat(path)  # noqa: PTH116 - see above
                    yield StoredObject(path[start:], found.st_size, found.st_mtime)

    def delete(self, name: str) -> None:
        """See `ObjectStore.delete`; deletes folders that become empty, too."""
        path = self._path(name)
        with self.counts.counted("delete"), _errors(f"delete {name}"):
            # Not synced: an entry that reappears after a crash is found and deleted again.
            path.unlink(missing_ok=True)
        self._delete_empty(path.parent)

    def check(self, *, write: bool = True) -> None:
        """See `ObjectStore.check`; also deletes files of old unfinished puts."""
        with (
            self.counts.counted("put" if write else "list"),
            _errors(f"use {self._directory}"),
        ):
            if not write:
                if not self._directory.is_dir():
                    raise InvalidArgument(f"there is no directory {self._directory}")
                return
            try:
                make_directory(self._directory)
            except (FileExistsError, NotADirectoryError):
                raise InvalidArgument(f"{self._directory} is not a directory") from None
            probe = self._directory / f"{_UNFINISHED}{secrets.token_hex(8)}"
            self._write(self._create(probe), [b"probe"])
            probe.unlink()
            self.counts.note_room(free_bytes(self._directory))
            for parent, file in _files_below(self._directory):
                if file.startswith(_UNFINISHED):
                    _delete_old(Path(parent, file))

    def _path(self, name: str) -> Path:
        return self._directory / check_name(name)

    def _create(self, path: Path) -> int:
        """Create a file, and its missing parent directories."""
        for _ in range(CREATE_TRIES_MAX - 1):
            try:
                make_directory(path.parent)
                return self._files.create(path)
            except (FileNotFoundError, FileExistsError):
                continue  # A concurrent delete removed a directory, which it left empty.
        return self._files.create(path)

    def _delete_empty(self, folder: Path) -> None:
        """Delete a folder and its parents within the store, as far as they are empty."""
        while folder != self._directory:
            try:
                folder.rmdir()
            except OSError:
                return  # Not empty, or deleted already.
            folder = folder.parent

    def _write(self, descriptor: int, parts: Parts) -> None:
        """Write a new file, make its bytes durable, and close it."""
        buffers = [memoryview(part).cast("B") for part in parts if len(part)]
        try:
            position = 0
            while buffers:
                written = self._files.write(descriptor, buffers[:BUFFERS_MAX], position)
                if written <= 0:
                    raise OSError(errno.EIO, "nothing was written")
                position += written
                while buffers and written >= len(buffers[0]):
                    written -= len(buffers.pop(0))
                if written:
                    buffers[0] = buffers[0][written:]
            self._files.sync(descriptor)
        finally:
            os.close(descriptor)

    def _open(self, name: str) -> int:
        try:
            return os.open(self._path(name), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise _missing(name) from None


def _read_range(descriptor: int, name: str, start: int, end: int) -> pa.Buffer:
    size = os.fstat(descriptor).st_size
    if size < end:  # Checked first, as the range may have any length.
        raise cut_off(name, size, end)
    buffer = pa.allocate_buffer(end - start)
    view = memoryview(buffer).cast("B")
    done = 0
    while done < len(view):
        read = os.preadv(descriptor, [view[done:]], start + done)
        if read == 0:
            raise cut_off(name, start + done, end)
        done += read
    return buffer


def _files_below(directory: Path) -> Iterator[tuple[str, str]]:
    """Yield the folder and the name of each file."""

    def give_up(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise error

    for parent, _, files in os.walk(directory, onerror=give_up):
        for file in files:
            yield parent, file


def _delete_old(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        if time.time() - path.stat().st_mtime > UNFINISHED_SECONDS_MAX:
            path.unlink()


def _missing(name: str) -> StorageCorrupt:
    return StorageCorrupt(f"object {name} is missing", folio=name, missing=True)


@contextlib.contextmanager
def _errors(operation: str) -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise _error_of(operation, error) from error


def _error_of(operation: str, error: OSError) -> WingsError:
    reason = error.strerror or str(error)
    if error.errno in _NO_ROOM:
        return ResourceExhausted(f"the disk is full: could not {operation}: {reason}")
    if error.errno in _DENIED:
        return PermissionDenied(f"could not {operation}: {reason}")
    return Internal(f"could not {operation}: {reason}")
