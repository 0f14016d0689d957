"""The data directory of an embedded server: its layout, and the lock that keeps it to one.

    DIRECTORY/
      FORMAT            the version of this layout, written last when the directory is made
      LOCK              held with flock by the server that has it open; holds its process id
      METADATA.LOCK     the same, for the metadata alone
      STORE             the id of the metadata that the pages belong to
      HOT               where new pages go, if not into segments/: the URL of an object store
      metadata.sqlite   names and the index of offsets
      RESERVE           room that is released when the disk is full
      NOTES             where pages lie, a copy for a repair
      segments/         the pages

An embedded server holds both locks. A metadata service holds that of the metadata, and nodes on one
machine that share a directory hold LOCK together: so a directory of an embedded server can be taken
over by a service and nodes, and never be used by both.

The locks go with the process, however it ends, so a stale file never bars a start.
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
"""The layout that this version of Wings writes, and the newest that it reads."""

NAMES_SHOWN_MAX = 3
"""How many entries of a foreign directory an error names."""

RESTORING = "RESTORING"
"""In a directory that a restore has begun to fill, and not finished: it has no FORMAT yet."""

_FORMAT = "FORMAT"
_FORMAT_NEW = re.compile(r"FORMAT\.(?:[0-9a-f]+\.)?new", re.ASCII)
_LOCK = "LOCK"
_METADATA_LOCK = "METADATA.LOCK"
_STORE = "STORE"
_STORES: dict[StoreRole, str] = {"hot": "HOT", "remote": "REMOTE"}
"""The files that say where pages go, if that is not the directory itself."""

_FORMAT_TEXT = re.compile(r"wings data directory, format (\d{1,9})\n", re.ASCII)

_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK}
"""How a file system says that it has no hard links."""

_NOT_OURS_BUT_HARMLESS = {"lost+found"}
"""A volume mounted as the data directory begins with this entry."""


Use = Literal["all", "metadata", "pages"]


class DataDirectory:
    """A data directory, opened by `open` or `open_read_only`; a context manager that closes it.

    Attributes:
        path: The directory, absolute.
        metadata: The file of the metadata store.
        segments: The directory of the segment files.
        holds: The file of a replica of share groups' holds.
        reserve: Room for deletes on a full disk; see `storage.disk`.
        iceberg: The file of the SQL catalog of tables.
        notes: The file of notes of where pages lie; see `metadata.sqlite.notes`.
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
        """Open a directory for writing, and make it where it is missing or empty.

        Directories are made with mode 0700 and are durable when this returns. Never waits for the
        lock.

        Args:
            path: The directory.
            use: What of it: an embedded server uses all, a metadata service the metadata, and a
                node the pages, together with others.

        Raises:
            Unavailable: Another server has the directory open (fact `pid`, if it is known), or the
                file system refuses.
            InvalidArgument: It is something else, or of a format that this version cannot read.
        """
        path = Path(path).absolute()
        with _file_system_errors(path):
            make_directory(path)
            # Looked at before the lock is made as well, so that nothing is put into a directory
            # that is something else.
            _read_format(path)
            directory = cls(path, _take_locks(path, use))
            try:
                sync_directory(path)  # The start before this one may have failed to.
                if _read_format(path) is None:
                    with suppress(PermissionError):  # Of another's directory above.
                        sync_directory(path.parent)
                    _write_format(path)
                make_directory(directory.segments)
            except BaseException:
                directory.close()
                raise
        return directory

    @classmethod
    def open_read_only(cls, path: Path | str) -> Self:
        """Open a directory to read it; takes no lock, so a server may be writing to it meanwhile.

        Raises:
            InvalidArgument: There is no such directory, it is something else, or it is of a format
                that this version cannot read.
            Unavailable: The file system refuses.
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
        """Mark a directory that another program filled as one of Wings, durably.

        Raises:
            Unavailable: The file system refuses.
        """
        with _file_system_errors(path):
            make_directory(path / "segments")
            sync_directory(path)
            _write_format(path)

    def bind(self, store_id: str, *, own: bool = False) -> None:
        """Make sure that the pages here belong to a metadata store, and to no other from now on.

        Otherwise the space of every page that the metadata does not know would be freed.

        Args:
            store_id: The store's.
            own: Whether it lies in this directory: pages without an owner are its own then.

        Raises:
            InvalidArgument: They belong to another.
            Unavailable: The file system refuses.
        """
        with _file_system_errors(self.path):
            bound = self.bound_to
            if bound is None:
                if not own and any(self.segments.iterdir()):
                    raise InvalidArgument(
                        f"{self.path} holds messages, and nothing says whose: start nodes on an "
                        "empty directory"
                    )
                _create_durably(self.path, _STORE, f"{store_id}\n")
                bound = self.bound_to  # Another node may have been quicker.
        if bound != store_id:
            raise InvalidArgument(
                f"the messages in {self.path} belong to metadata {bound}, not to {store_id}, which "
                "this service holds"
            )

    def object_store(self, role: StoreRole, wanted: str | None) -> str | None:
        """Return where pages go: what is wanted, or what the directory was used with before.

        Pages in an object store stay there, so a directory keeps to the one it was first used with.

        Args:
            role: Which pages.
            wanted: The URL of an object store; None for that of before.

        Returns:
            None where they stay in the directory.

        Raises:
            InvalidArgument: It was used with another.
            Unavailable: The file system refuses.
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
        """Note where pages go, durably, before the first of them does.

        Raises:
            InvalidArgument: Another node has just noted another place.
            Unavailable: The file system refuses.
        """
        with _file_system_errors(self.path):
            _create_durably(self.path, _STORES[role], f"{url}\n")
        self.object_store(role, url)  # Another node may have been quicker, with another one.

    @property
    def merged(self) -> Path:
        """Where old pages go that have no object store to go to."""
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
            Unavailable: The file system refuses.
        """
        with _file_system_errors(self.path):
            try:
                os.close(_take_lock(self.path, _LOCK, fcntl.LOCK_EX))
            except Unavailable:
                return False
        return True

    def close(self) -> None:
        """Give the locks back; does nothing the second time."""
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
    """Return the directory's format, or None where it is empty or its making was cut short.

    Raises:
        InvalidArgument: It is something else, or too new.
    """
    text = _read_format_text(path)
    if text is None:
        found = _foreign(path)
        if not found:
            return None
        # Another node may have made it since: the format comes before all else that is ours.
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
    """Return the names of what the making of a data directory does not put there first."""
    ours = {_LOCK, _METADATA_LOCK} | _NOT_OURS_BUT_HARMLESS
    return sorted(
        name
        for name in {entry.name for entry in path.iterdir()} - ours
        if not _FORMAT_NEW.fullmatch(name)
    )


def _write_format(path: Path) -> None:
    """Mark the directory as ours, atomically, so that a crash leaves it unmarked or whole."""
    _create_durably(path, _FORMAT, f"wings data directory, format {FORMAT_VERSION}\n")


def _read_line(file: Path) -> str | None:
    try:
        return file.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return None


def open_private(path: Path) -> TextIO:
    """Open a file to write it anew, readable by its owner alone."""

    def opener(name: str, flags: int) -> int:
        return os.open(name, flags, 0o600)

    return open(path, "w", encoding="utf-8", opener=opener)


def _create_durably(path: Path, name: str, text: str) -> None:
    """Write a file whole, unless it is there: of several who do at once, one has its way."""
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
            new.replace(path / name)  # Of several at once, the last has its way there.
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
            with suppress(OSError):  # A full disk is no reason not to start.
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
