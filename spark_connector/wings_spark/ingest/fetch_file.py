"""The fetch of a file to this machine's disk, wherever it is, in the announced version."""

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path, PurePath

from wings_core.queue.notifications import DedupKey
from wings_core.queue.uris import is_object
from wings_spark.ingest.fetched import Fetched, FileError, SupersededError
from wings_spark.ingest.places import real_path
from wings_spark.ingest.plan import FileSection
from wings_spark.ingest.settings import SourceSettings

SUFFIX_CHARACTERS_MAX = 32
"""Of each of the last two suffixes of a file's name, which tell its format."""


@contextmanager
def fetched_file(
    section: FileSection, directory: Path, settings: SourceSettings
) -> Generator[Fetched]:
    """Yield the path of a file's bytes on this machine; copies those of objects and payloads.

    Blocks until they are copied.

    Args:
        section: Of which file, and which of its rows.
        directory: For copies, and links.
        settings: Of the source.

    Raises:
        RefusedError: It is not in what the source may read.
        FileError: It does not exist, or cannot be read.
        SupersededError: It has another version than the announced one, and versions count.
        WingsError: The object store cannot be reached, or does not know the caller.
    """
    file = section.file
    if file.payload is not None:
        path = directory / "payload"
        path.write_text(file.payload, encoding="utf-8", errors="replace")
        yield Fetched(path)
        return
    if is_object(file.uri):
        from wings_spark.ingest.fetch_object import fetch_object

        settings.places.check(file.uri)
        yield fetch_object(section, directory / name_of(file.uri), settings)
        return
    version = settings.dedup_key is DedupKey.URI_AND_VERSION and settings.queue.kind == "directory"
    expected = file.version if version else None
    with settings.places.opened(file.uri) as opened:
        seen = version_of(opened, file.uri)
        if expected is not None and seen != expected:
            raise SupersededError(f"{file.uri} was overwritten: {expected} is {seen} now")

        def check() -> None:
            now = version_of(Path(file.uri), file.uri)
            if expected is not None and now != expected:
                raise SupersededError(f"{file.uri} was overwritten: {expected} is {now} now")
            if now != seen:
                raise FileError(f"{file.uri} changed while it was read: {seen} is {now} now")

        # A name of the open file, whose format it tells: what is opened by it is what was judged.
        path = directory / name_of(file.uri)
        path.symlink_to(real_path(opened, file.uri))
        yield Fetched(path, section.rows(), seen, check)


def name_of(uri: str) -> str:
    """Return a file name that has the URI's format suffixes, and is valid whatever the key is.

    A key may be longer than names are, end with a slash, or be `..`.
    """
    kept = ""
    for suffix in reversed(PurePath(uri).suffixes[-2:]):
        is_plain = len(suffix) <= SUFFIX_CHARACTERS_MAX and suffix.isascii()
        if not is_plain or not suffix.isprintable():
            break
        kept = suffix + kept
    return f"file{kept}"


def version_of(file: int | Path, uri: str) -> str:
    """Return the version of a file of this machine, open or by its path.

    Raises:
        FileError: It cannot be looked at.
    """
    try:
        status = os.fstat(file) if isinstance(file, int) else file.stat()
    except (OSError, ValueError) as error:
        raise FileError(f"{uri}: {getattr(error, 'strerror', None) or error}") from None
    return f"{status.st_size}-{status.st_mtime_ns}"
