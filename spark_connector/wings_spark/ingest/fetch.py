"""Fetching of a file, or of the bytes that a section needs, from anywhere, to this machine's disk.

All bytes are of one version: the announced one where versions count, else the current one when the
fetch begins.
"""

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

import pyarrow.parquet

from wings_client.files import formats
from wings_client.files.arrow_batches import groups_of
from wings_client.files.formats import FileFormat, Section, csv_ranges, format_by_name, line_ranges
from wings_core.queue.notifications import DedupKey, bucket_and_key, is_object
from wings_spark.ingest.files import UNREACHABLE_KEY, FileError, SupersededError, real_path
from wings_spark.ingest.plan import FileSection
from wings_spark.ingest.settings import FileSettings, SourceSettings
from wings_spark.ingest.stores import seen_version, store_errors, store_of

FETCH_BYTES = 8 * 1024 * 1024
"""Size of the chunks in which bytes are written."""

PARQUET_TAIL_BYTES = 64 * 1024
"""Size of the end of a Parquet file that is fetched first; usually holds the whole footer."""

_PARQUET_END_BYTES = 8
"""Size of the footer's length and the magic word at the end."""

SUFFIX_CHARACTERS_MAX = 32
"""Longest kept length of each of the last two suffixes of a file name, which give its format."""


@dataclass(frozen=True, slots=True)
class _Fetched:
    """A file on this machine's disk, or the part of it that a section needs."""

    path: Path
    section: Section | None = None
    """Section of the file; None for all rows."""
    seen: str | None = None
    """Version of the file, which differs from that of another file of the same name."""
    check: Callable[[], None] = lambda: None
    """Called after the read; raises if the file has changed since it was fetched."""


@contextmanager
def fetched_file(
    section: FileSection, directory: Path, settings: SourceSettings
) -> Generator[_Fetched]:
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
        yield _Fetched(path)
        return
    if is_object(file.uri):
        settings.places.check(file.uri)
        yield _fetch_object(section, directory / name_of(file.uri), settings)
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
        yield _Fetched(path, section.rows(), seen, check)


def _fetch_object(section: FileSection, path: Path, settings: SourceSettings) -> _Fetched:
    """Fetch an object, or the bytes that a section needs, into a sparse copy of it.

    Blocks until they are written.

    Args:
        section: The file, or section of one.
        path: Path of the copy.
        settings: Settings of the source.

    Raises:
        FileError: The object does not exist, or cannot be read.
        SupersededError: The announced version was overwritten.
        Unauthenticated: The store rejects the credentials.
        Unavailable: The store cannot be reached.
    """
    file = section.file
    if file.uri.endswith("/") and not file.size:
        path.touch()
        return _Fetched(path)  # Consoles create such objects to show a folder.
    versioned = settings.dedup_key is DedupKey.URI_AND_VERSION
    with store_errors(file.uri, file.version):
        found = FetchedObject(file.uri, file.version if versioned else None, settings.files)
        with path.open("wb") as spooled:
            spooled.truncate(found.size)
        if section.count == 1:
            found.fetch(path, 0, found.size)
            return _Fetched(path, None, found.seen)
        file_format = settings.files.format or format_by_name(path)
        if file_format is FileFormat.PARQUET:
            _fetch_groups(found, path, Section(section.index, section.count))
            return _Fetched(path, section.rows(), found.seen)
        _fetch_lines(found, path, section, is_csv=file_format is FileFormat.CSV)
        return _Fetched(path, section.rows(is_alone=True), found.seen)


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


class FetchedObject:
    """One version of an object, with random access.

    Args:
        uri: URI of the object.
        version: The version; None for the current one.
        settings: Settings of the store.
    """

    def __init__(self, uri: str, version: str | None, settings: FileSettings) -> None:
        bucket, self._key = bucket_and_key(uri)
        if UNREACHABLE_KEY.search(self._key) is not None:
            raise FileError(
                f"{uri!a:.300}: files with control characters in their keys, and with empty parts, "
                "'.' or '..' between slashes, cannot be read"
            )
        self._store = store_of(bucket, settings)
        self._options: dict[str, Any] = {}
        if version is not None and version.startswith("etag:"):
            self._options["if_match"] = f'"{version.removeprefix("etag:")}"'
        elif version is not None:
            self._options["version"] = version
        self._place = 0
        try:
            about = self._get({"head": True}).meta
        except Exception:  # noqa: BLE001 - A HEAD request has no error code.
            about = self._about(uri)
        self.size: int = about["size"]
        tag: str | None = about.get("e_tag")
        self.seen = seen_version(about)
        if version is None and tag is not None:
            self._options["if_match"] = tag

    def _about(self, uri: str) -> Any:
        """Return the object's metadata.

        Raises:
            SupersededError: This version is gone, and another exists.
            Exception: An error of obstore.
        """
        import obstore

        try:
            return self._get({}).meta
        except FileNotFoundError:
            if "version" in self._options:
                seen = seen_version(obstore.head(self._store, self._key))
                message = f"{uri} was overwritten: {self._options['version']} is {seen} now"
                raise SupersededError(message) from None
            raise

    def seek(self, offset: int, /) -> None:
        """Set the position of the next `read`."""
        self._place = offset

    def read(self, size: int, /) -> bytes:
        """Return the next bytes, fewer than `size` only at the end."""
        end = min(self.size, self._place + size)
        if end <= self._place:
            return b""
        found = bytes(self._get({"range": (self._place, end)}).bytes())
        self._place += len(found)
        return found

    def fetch(self, path: Path, first: int, end: int) -> None:
        """Copy the bytes `[first, end)` to the same place of a file."""
        if end <= first:
            return
        with path.open("r+b") as spooled:
            spooled.seek(first)
            for part in self._get({"range": (first, end)}).stream(min_chunk_size=FETCH_BYTES):
                spooled.write(part)

    def _get(self, options: dict[str, Any]) -> Any:
        import obstore

        wanted: Any = self._options | options
        return obstore.get(self._store, self._key, options=wanted)


def _fetch_lines(found: FetchedObject, path: Path, section: FileSection, *, is_csv: bool) -> None:
    """Fetch the lines of a section, and the bytes that determine its bounds and columns."""
    wanted = Section(section.index, section.count)
    ranges = (csv_ranges if is_csv else line_ranges)(found, found.size, wanted)
    *names, (first, end) = ranges
    names_end = names[0][1] if names else 0
    if is_csv:
        found.fetch(path, 0, min(found.size, names_end + formats.SAMPLE_BYTES))
    if first == found.size:
        return  # The section has no lines.
    # From the byte where the section is cut, to include the end of the line before it.
    cut = names_end + wanted.of(found.size - names_end)[0]
    found.fetch(path, max(0, min(first, cut) - 1), end)


def _fetch_groups(found: FetchedObject, path: Path, section: Section) -> None:
    """Fetch the row groups of a section, and the footer."""
    tail = max(0, found.size - PARQUET_TAIL_BYTES)
    found.fetch(path, tail, found.size)
    with path.open("rb") as spooled:
        spooled.seek(max(0, found.size - _PARQUET_END_BYTES))
        about = int.from_bytes(spooled.read(4), "little") + _PARQUET_END_BYTES
    found.fetch(path, max(0, found.size - about), tail)
    metadata: Any = pyarrow.parquet.read_metadata(path)
    for group in groups_of(metadata, section):
        row_group = metadata.row_group(group)
        columns = [row_group.column(index) for index in range(row_group.num_columns)]
        begins = [
            min(place for place in (each.dictionary_page_offset, each.data_page_offset) if place)
            for each in columns
        ]
        ends = [
            begin + each.total_compressed_size for begin, each in zip(begins, columns, strict=True)
        ]
        found.fetch(path, min(begins, default=0), max(ends, default=0))


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
