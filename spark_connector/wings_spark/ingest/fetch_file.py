"""Fetch file: from wherever it is to this machine's disk, in the version that was told of."""

import errno
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePath

import pyarrow as pa

from wings_client.files.sections import Section
from wings_core.errors import Unavailable
from wings_core.queue.notices import DedupKey
from wings_spark.ingest.plan import FileSection
from wings_spark.ingest.settings import SourceSettings

SUFFIX_CHARACTERS_MAX = 32
"""Of each of the last two endings of a file's name, which tell its format."""

_MACHINE_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.EROFS})
"""What a machine fails with whatever the file is."""


class FileError(Exception):
    """A file cannot be read, or not all of it fits: it is tried again, and given up some time."""


class SupersededError(Exception):
    """There is another version of a file than the one that was told of, which is gone."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """A file on this machine's disk, or the part of it that a section needs."""

    path: Path
    section: Section | None = None
    """Which rows of it; None: all."""
    seen: str | None = None
    """What tells it from another under the same name."""
    check: Callable[[], None] = lambda: None
    """Raises where the file changed since it was fetched, after it was read."""


def fetched(section: FileSection, directory: Path, settings: SourceSettings) -> Fetched:
    """Return where a file's bytes are on this machine.

    Args:
        section: Of which file, and which of its rows.
        directory: For what has to be written first.
        settings: Of the source.

    Raises:
        FileError: It is not there, or cannot be read.
        SupersededError: It is there in another version, and versions count.
        WingsError: Where it is cannot be reached, or does not know who asks.
    """
    file = section.file
    if file.payload is not None:
        path = directory / "payload"
        path.write_text(file.payload, encoding="utf-8", errors="replace")
        return Fetched(path)
    if file.uri.startswith("s3://"):
        from wings_spark.ingest.fetch_object import fetched_object

        return fetched_object(section, directory / name_of(file.uri), settings)
    path = Path(file.uri)
    version = settings.dedup_key is DedupKey.URI_AND_VERSION and settings.queue.kind == "directory"
    expected = file.version if version else None
    seen = _seen(path)
    if not path.is_file():
        raise FileError(f"{file.uri} is not a file")
    if expected is not None and seen != expected:
        raise SupersededError(f"{file.uri} was overwritten: {expected} is {seen} now")

    def check() -> None:
        now = _seen(path)
        if expected is not None and now != expected:
            raise SupersededError(f"{file.uri} was overwritten: {expected} is {now} now")
        if now != seen:
            raise FileError(f"{file.uri} changed while it was read: {seen} is {now} now")

    return Fetched(path, section_of(section), seen, check)


def is_of_machine(error: OSError, uri: str) -> bool:
    """Tell whether the machine that reads a file is to blame for an error, and not the file."""
    # What is elsewhere is read from a copy on the machine's own disk.
    is_copy = uri.startswith("s3://")
    return error.errno in _MACHINE_ERRORS or (is_copy and error.errno == errno.EIO)


@contextmanager
def blamed(uri: str) -> Generator[None]:
    """Tell a fault of a file from one of the machine that reads it.

    Args:
        uri: The file's.

    Raises:
        FileError: The file cannot be read.
        Unavailable: No file can: a disk is full or broken, or too many files are open.
    """
    try:
        yield
    except OSError as error:
        message = f"{uri}: {error!s:.300}"
        if is_of_machine(error, uri):
            raise Unavailable(message) from None
        raise FileError(message) from None
    except pa.ArrowException as error:
        raise FileError(f"{uri}: {error!s:.300}") from None


def section_of(section: FileSection, *, is_alone: bool = False) -> Section | None:
    """Return which rows of a file a section has; None: all."""
    if section.count == 1:
        return None
    return Section(section.index, section.count, is_alone)


def name_of(uri: str) -> str:
    """Return a name on a disk that tells a file's format, whatever its key is.

    A key may be longer than names are, end with a slash, or be `..`.
    """
    kept = ""
    for suffix in reversed(PurePath(uri).suffixes[-2:]):
        is_plain = len(suffix) <= SUFFIX_CHARACTERS_MAX and suffix.isascii()
        if not is_plain or not suffix.isprintable():
            break
        kept = suffix + kept
    return f"file{kept}"


def _seen(path: Path) -> str:
    try:
        status = path.stat()
    except (OSError, ValueError) as error:
        raise FileError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    return f"{status.st_size}-{status.st_mtime_ns}"
