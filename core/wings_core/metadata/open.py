"""Where the metadata of a data directory is: in its own SQLite file, or in PostgreSQL.

The pages of a directory are worth nothing without their metadata, and a server that is started over
the wrong metadata would delete every page that is not in it. So the two are bound
to each other at the first start, each by an id of the other: the file METADATA of a directory holds
its own id, and that of the metadata in PostgreSQL once it is bound to it.
"""

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

from wings_core.data_directory import DataDirectory, open_private
from wings_core.errors import InvalidArgument, Unavailable
from wings_core.metadata.sqlite import SqliteMetadata
from wings_core.storage.files import sync_directory

if TYPE_CHECKING:
    from wings_core.metadata.postgres import PostgresMetadata

_FILE = "METADATA"
_TEXT = re.compile(
    r"postgresql directory=([0-9a-f-]{36})(?: metadata=([0-9a-f-]{36}))?\n", re.ASCII
)


def open_metadata(
    directory: DataDirectory, url: str | None = None, *, read_only: bool = False
) -> "SqliteMetadata | PostgresMetadata":
    """Open the metadata of a data directory.

    The lock of the directory proves that all processes before have ended: unless `read_only`, what
    they had leased is free.

    Args:
        directory: Locked by the caller for all of it, unless `read_only`.
        url: PostgreSQL's connection string; None for the directory's own file.
        read_only: Write nothing.

    Raises:
        InvalidArgument: The directory's metadata is somewhere else, or PostgreSQL's is of another
            directory; or the URL cannot be read, or PostgreSQL cannot be used by this installation.
        Unavailable: PostgreSQL cannot be reached.
        Internal: The metadata cannot be opened.
    """
    metadata = _open(directory, url, read_only=read_only)
    if not read_only:
        metadata.maintenance.drop_leases()
    return metadata


def _open(
    directory: DataDirectory, url: str | None, *, read_only: bool
) -> "SqliteMetadata | PostgresMetadata":
    bound = _read(directory)
    if url is None:
        if bound is not None:
            raise InvalidArgument(
                f"{directory.path} has its metadata in PostgreSQL: say where that is"
            )
        return SqliteMetadata(directory.metadata, read_only=read_only, notes=directory.notes)
    if bound is None:
        _check_empty(directory)
        if read_only:
            raise InvalidArgument(f"{directory.path} was never used with PostgreSQL")
    metadata = open_postgres(url, read_only=read_only)
    try:
        _bind(directory, bound, metadata, read_only=read_only)
    except BaseException:
        metadata.close()
        raise
    return metadata


def is_bound(path: Path) -> bool:
    """Tell whether a data directory, which need not be there, has its metadata in PostgreSQL."""
    return (path / _FILE).exists()


def has_metadata(directory: DataDirectory) -> bool:
    """Tell whether a directory has metadata, its own or in PostgreSQL."""
    return directory.metadata.exists() or _read(directory) is not None


def open_postgres(url: str, *, read_only: bool = False) -> "PostgresMetadata":
    """Open metadata in PostgreSQL.

    Raises:
        InvalidArgument: The URL cannot be read, or this installation cannot use PostgreSQL.
        Unavailable: It cannot be reached.
        Internal: What is there is no metadata, or of another version.
    """
    try:
        from wings_core.metadata.postgres import PostgresMetadata
    except ImportError as error:
        raise InvalidArgument(
            f"metadata in PostgreSQL needs psycopg: pip install 'wings-flight[postgres]' ({error})"
        ) from None
    return PostgresMetadata(url, read_only=read_only)


def _bind(
    directory: DataDirectory,
    bound: tuple[UUID, UUID | None] | None,
    metadata: "PostgresMetadata",
    *,
    read_only: bool,
) -> None:
    """Bind a directory and metadata to each other, or check that they are.

    A start that was cut short is completed by the next: the directory has its id before PostgreSQL
    stores it.
    """
    is_new = bound is None
    if bound is None:
        bound = (uuid4(), None)
        _write(directory, bound)
    own, theirs = bound
    if read_only:
        metadata.check_claim(own, theirs)
        return
    try:
        claimed = metadata.claim(own, theirs)
    except InvalidArgument:
        if is_new:  # A node that is started in its place would take the directory for its own.
            (directory.path / _FILE).unlink(missing_ok=True)
        raise
    if theirs is None:
        _write(directory, (own, claimed))


def _check_empty(directory: DataDirectory) -> None:
    """Check that a directory that is not bound to PostgreSQL has no metadata and no pages."""
    if directory.metadata.exists() or any(directory.segments.iterdir()):
        raise InvalidArgument(
            f"{directory.path} has its metadata in {directory.metadata.name}: it cannot be served "
            "with other metadata"
        )


def _read(directory: DataDirectory) -> tuple[UUID, UUID | None] | None:
    path = directory.path / _FILE
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Unavailable(f"{path} cannot be read: {error.strerror or error}") from error
    match = _TEXT.fullmatch(text)
    if match is None:
        raise InvalidArgument(f"{path} cannot be understood: it says {text[:80]!r}")
    return UUID(match[1]), UUID(match[2]) if match[2] else None


def _write(directory: DataDirectory, bound: tuple[UUID, UUID | None]) -> None:
    """Replace the file, atomically and durably."""
    own, theirs = bound
    new = directory.path / f"{_FILE}.new"
    text = f"postgresql directory={own}" + ("" if theirs is None else f" metadata={theirs}")
    try:
        with open_private(new) as file:
            file.write(f"{text}\n")
            file.flush()
            os.fsync(file.fileno())
        new.replace(directory.path / _FILE)
        sync_directory(directory.path)
    except OSError as error:
        raise Unavailable(f"{new} cannot be written: {error.strerror or error}") from error
