"""The data directory of an embedded server: its layout, and its locks.

    DIRECTORY/
      FORMAT            the version of this layout, written last when the directory is created
      LOCK              held with flock by the server that has it open; holds its process id
      METADATA.LOCK     the same, for the metadata only
      STORE             the id of the metadata that the pages belong to
      HOT               the URL of the object store for new pages, if not segments/
      metadata.sqlite   topics and the index of offsets
      RESERVE           space that is released when the disk is full
      NOTES             a copy of pages' locations, for a repair
      segments/         the pages

An embedded server holds both locks. A metadata service holds METADATA.LOCK, and nodes on one
machine that share a directory hold LOCK together. So a service and nodes can take over the
directory of an embedded server, but never use it at the same time.

The locks end with the process, so a stale file never prevents a start.
"""

import errno
import fcntl
import os
import re
import secrets
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, Self, TextIO

from wings_core.errors import InvalidArgument, Unavailable
from wings_core.model import STORE_MESSAGES, StoreRole
from wings_core.storage.files import make_directory, sync_directory

FORMAT_VERSION = 1
"""Layout that this version of Wings writes, and the latest that it reads."""

NAMES_SHOWN_MAX = 3
"""Most entries of a foreign directory that an error names."""

RESTORING = "RESTORING"
"""Name of the file that marks a directory with an unfinished restore, without FORMAT."""

_FORMAT = "FORMAT"
_FORMAT_NEW = re.compile(r"FORMAT\.(?:[0-9a-f]+\.)?new", re.ASCII)
_LOCK = "LOCK"
_METADATA_LOCK = "METADATA.LOCK"
_STORE = "STORE"
_STORES: dict[StoreRole, str] = {"hot": "HOT", "remote": "REMOTE"}
"""Files with the URLs of object stores, by role."""

_FORMAT_TEXT = re.compile(r"wings data directory, format (\d{1,9})\n", re.ASCII)

_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK}
"""Errors of file systems without hard links."""

_NOT_OURS_BUT_HARMLESS = {"lost+found"}
"""Entries of an empty volume, which may be mounted as the data directory."""


Use = Literal["all", "metadata", "pages"]


class DataDirectory:
    """A data directory, opened by `open` or `open_read_only`; a context manager that closes it.

    Attributes:
        path: The directory, absolute.
        metadata: File of the metadata store.
        segments: Directory of the segment files.
        holds: File of a replica of share groups' state.
        reserve: File that reserves space for deletes on a full disk; see `storage.disk`.
        iceberg: File of the SQL catalog of tables.
        notes: File of notes of pages' locations; see `metadata.sqlite.notes`.
    """

    def __init__(self, path: Path, locks: Sequence[int] = ()) -> None:
        self.path = path
        self.metadata = path / "metadata.sqlite"
        self.segments = path / "segments"
        self.holds = path / "holds.sqlite"
        self.reserve = path / "RESERVE"
        self.iceberg = path.absolute() / "iceberg.sqlite"
        self.notes = path / "NOTES"
        self._locks = tuple(locks)

    @classmethod
    def open(cls, path: Path | str, use: Use = "all") -> Self:
        """Open a directory for writing, creating it if it is missing or empty.

        Directories are created durably with mode 0700. Never waits for the lock.

        Args:
            path: The directory.
            use: The part to use: all by an embedded server, the metadata by a metadata service, the
                pages, shared with others, by a node.

        Raises:
            Unavailable: Another server has the directory open (fact `pid`, if known), or the file
                system fails.
            InvalidArgument: The path is not a data directory, or has a later format.
        """
        path = Path(path).absolute()
        with _file_system_errors(path):
            make_directory(path)
            # Also checked before the lock is created, so that nothing is written to a foreign
            # directory.
            _read_format(path)
            directory = cls(path, _take_locks(path, use))
            try:
                sync_directory(path)  # The previous start may have failed here.
                if _read_format(path) is None:
                    with suppress(PermissionError):  # The parent may belong to another user.
                        sync_directory(path.parent)
                    _write_format(path)
                make_directory(directory.segments)
            except BaseException:
                directory.close()
                raise
        return directory

    @classmethod
    def open_read_only(cls, path: Path | str) -> Self:
        """Open a directory for reading, without a lock; a server may be writing to it meanwhile.

        Raises:
            InvalidArgument: There is no such directory, it is not a data directory, or it has a
                later format.
            Unavailable: The file system fails.
        """
        path = Path(path).absolute()
        with _file_system_errors(path):
            if not path.exists():
                raise InvalidArgument(f"{path} does not exist")
            if _read_format(path) is None:
                raise InvalidArgument(f"{path} is not a data directory of Wings: it is empty")
        return cls(path)

    @staticmethod
    def complete(path: Path) -> None:
        """Mark a directory that a restore or repair has filled as complete, durably.

        Raises:
            Unavailable: The file system fails.
        """
        with _file_system_errors(path):
            make_directory(path / "segments")
            sync_directory(path)
            _write_format(path)

    def bind(self, store_id: str, *, own: bool = False) -> None:
        """Check that the pages here belong to a metadata store, or bind them to it.

        Otherwise pages unknown to the metadata would be deleted.

        Args:
            store_id: Id of the metadata store.
            own: Whether the metadata is in this directory: unbound pages then belong to it.

        Raises:
            InvalidArgument: The pages belong to another metadata store.
            Unavailable: The file system fails.
        """
        with _file_system_errors(self.path):
            bound = self.bound_to
            if bound is None:
                if not own and any(self.segments.iterdir()):
                    raise InvalidArgument(
                        f"{self.path} holds messages of unknown origin: start nodes on an "
                        "empty directory"
                    )
                _create_durably(self.path, _STORE, f"{store_id}\n")
                bound = self.bound_to  # Another node may have been quicker.
        if bound != store_id:
            raise InvalidArgument(
                f"the messages in {self.path} belong to metadata {bound}, not to {store_id} of "
                "this service"
            )

    def object_store(self, role: StoreRole, wanted: str | None) -> str | None:
        """Return the object store for a role: `wanted`, or the one recorded.

        Pages in an object store stay there, so a directory keeps its first one.

        Args:
            role: Role of the object store.
            wanted: URL of an object store; None for the one recorded.

        Returns:
            The URL; None if pages stay in the directory.

        Raises:
            InvalidArgument: Another URL is recorded.
            Unavailable: The file system fails.
        """
        with _file_system_errors(self.path):
            before = _read_line(self.path / _STORES[role])
        if wanted is not None and before is not None and wanted != before:
            raise InvalidArgument(
                f"{self.path} has its {STORE_MESSAGES[role]} messages at {before}, and cannot have "
                f"them at {wanted}"
            )
        return wanted or before

    def keep_object_store(self, role: StoreRole, url: str) -> None:
        """Record an object store durably, before the first page is written there.

        Raises:
            InvalidArgument: Another node has just recorded another URL.
            Unavailable: The file system fails.
        """
        with _file_system_errors(self.path):
            _create_durably(self.path, _STORES[role], f"{url}\n")
        self.object_store(role, url)  # Another node may have recorded another URL.

    @property
    def merged(self) -> Path:
        """Directory for merged pages without an object store."""
        return self.path / "merged"

    @property
    def bound_to(self) -> str | None:
        """The id of the metadata that the pages here belong to, None where nothing says so."""
        return _read_line(self.path / _STORE)

    @property
    def locked(self) -> bool:
        """Whether this object holds the directory's lock."""
        return bool(self._locks)

    def is_unused(self) -> bool:
        """Tell whether no process uses the pages here; False where this object was opened to.

        Raises:
            Unavailable: The file system fails.
        """
        with _file_system_errors(self.path):
            try:
                os.close(_take_lock(self.path, _LOCK, fcntl.LOCK_EX))
            except Unavailable:
                return False
        return True

    def close(self) -> None:
        """Release the locks. Idempotent."""
        locks, self._locks = self._locks, ()
        for lock in locks:
            os.close(lock)

    def __enter__(self) -> Self:
        """Return the directory."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the directory."""
        self.close()


@contextmanager
def _file_system_errors(path: Path) -> Generator[None]:
    try:
        yield
    except (FileExistsError, NotADirectoryError):
        raise InvalidArgument(f"{path} is not a directory") from None
    except OSError as error:
        raise Unavailable(f"{path} cannot be used: {error.strerror or error}") from error


def _read_format(path: Path) -> int | None:
    """Return the directory's format; None if it is empty or was created only partly.

    Raises:
        InvalidArgument: The path is not a data directory, or has a later format.
    """
    text = _read_format_text(path)
    if text is None:
        found = _foreign(path)
        if not found:
            return None
        # Another node may have created it since; it writes the format before all else.
        text = _read_format_text(path)
        if text is None:
            if RESTORING in found:
                raise InvalidArgument(
                    f"a restore into {path} was not finished: run `wings restore` again"
                )
            shown = ", ".join(found[:NAMES_SHOWN_MAX])
            left = len(found) - NAMES_SHOWN_MAX
            more = f" and {left} more" if left > 0 else ""
            raise InvalidArgument(
                f"{path} is not a data directory of Wings, and not empty: it holds {shown}{more}"
            )
    match = _FORMAT_TEXT.fullmatch(text)
    if match is None:
        raise InvalidArgument(
            f"{path} is not a data directory of Wings: its {_FORMAT} file says {text[:40]!r}"
        )
    found = int(match[1])
    if not 1 <= found <= FORMAT_VERSION:
        raise InvalidArgument(
            f"{path} has format {found}, and this version of Wings reads up to {FORMAT_VERSION}",
            format=found,
        )
    return found


def _read_format_text(path: Path) -> str | None:
    try:
        return (path / _FORMAT).read_bytes().decode("utf-8", "replace")
    except FileNotFoundError:
        return None


def _foreign(path: Path) -> list[str]:
    """Return the names of entries that the creation of a data directory does not make first."""
    ours = {_LOCK, _METADATA_LOCK} | _NOT_OURS_BUT_HARMLESS
    return sorted(
        name
        for name in {entry.name for entry in path.iterdir()} - ours
        if not _FORMAT_NEW.fullmatch(name)
    )


def _write_format(path: Path) -> None:
    """Write the format atomically, so that a crash leaves the directory unmarked or complete."""
    _create_durably(path, _FORMAT, f"wings data directory, format {FORMAT_VERSION}\n")


def _read_line(file: Path) -> str | None:
    try:
        return file.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return None


def open_private(path: Path) -> TextIO:
    """Open a file for writing, truncated, readable only by its owner."""

    def opener(name: str, flags: int) -> int:
        return os.open(name, flags, 0o600)

    return open(path, "w", encoding="utf-8", opener=opener)


def _create_durably(path: Path, name: str, text: str) -> None:
    """Create a file atomically unless it exists; one of several concurrent callers succeeds."""
    if (path / name).exists():
        return
    new = path / f"{name}.{secrets.token_hex(8)}.new"
    try:
        with open_private(new) as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(new, path / name)
        except FileExistsError:
            pass
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            new.replace(path / name)  # Here the last of several concurrent callers succeeds.
    finally:
        new.unlink(missing_ok=True)
    sync_directory(path)


def _take_locks(path: Path, use: Use) -> list[int]:
    taken: list[int] = []
    try:
        if use != "pages":
            taken.append(_take_lock(path, _METADATA_LOCK, fcntl.LOCK_EX))
        if use != "metadata":
            shared = use == "pages"
            taken.append(_take_lock(path, _LOCK, fcntl.LOCK_SH if shared else fcntl.LOCK_EX))
    except BaseException:
        for lock in taken:
            os.close(lock)
        raise
    return taken


def _take_lock(path: Path, name: str, kind: int) -> int:
    descriptor = os.open(path / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        if kind == fcntl.LOCK_EX:
            with suppress(OSError):  # A full disk must not prevent a start.
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    except OSError as error:
        holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
        os.close(descriptor)
        if error.errno not in {errno.EAGAIN, errno.EACCES}:
            raise
        raise _held(path, holder) from None
    return descriptor


def _held(path: Path, holder: str) -> Unavailable:
    if holder.isdigit():
        return Unavailable(f"{path} is in use by another server, process {holder}", pid=int(holder))
    return Unavailable(f"{path} is in use by another server")
