"""Fetching of a file in its announced version, from anywhere, to this machine's disk."""

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
"""Longest kept length of each of the last two suffixes of a file name, which give its format."""


@contextmanager
def fetched_file(
    section: FileSection, directory: Path, settings: SourceSettings
) -> Generator[Fetched]:
    """Yield the path of a file's bytes on this machine; copies objects and payloads.

    Blocks until they are copied.

    Args:
        section: The file, or section of one.
        directory: Directory for copies and links.
        settings: Settings of the source.

    Raises:
        RefusedError: The file is outside the places that the source may read.
        FileError: The file does not exist, or cannot be read.
        SupersededError: The file's version is not the announced one, and versions count.
        WingsError: The object store cannot be reached, or rejects the credentials.
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

        # A link to the open file, named for its format: the checked file is the one that is read.
        path = directory / name_of(file.uri)
        path.symlink_to(real_path(opened, file.uri))
        yield Fetched(path, section.rows(), seen, check)


def name_of(uri: str) -> str:
    """Return a file name with the URI's format suffixes, valid for any key.

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
    """Return the version of a local file, given by descriptor or path.

    Raises:
        FileError: The file's metadata cannot be read.
    """
    try:
        status = os.fstat(file) if isinstance(file, int) else file.stat()
    except (OSError, ValueError) as error:
        raise FileError(f"{uri}: {getattr(error, 'strerror', None) or error}") from None
    return f"{status.st_size}-{status.st_mtime_ns}"
