"""The fetch of a file in S3, or of the bytes that a section needs, to this machine's disk.

All bytes are of one version of the object: the one that it has when the fetch begins.
"""

import os
import re
from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet

from wings_client.files.arrow_batches import groups_of
from wings_client.files.formats import FileFormat, format_by_name
from wings_client.files.sections import SAMPLE_BYTES, Section, csv_ranges, line_ranges
from wings_core.errors import Unauthenticated, Unavailable
from wings_core.queue.notifications import DedupKey
from wings_spark.ingest.fetched import Fetched, FileError, SupersededError, is_of_machine
from wings_spark.ingest.places import UNREACHABLE_KEY
from wings_spark.ingest.plan import FileSection
from wings_spark.ingest.settings import FileSettings, SourceSettings

if TYPE_CHECKING:
    from obstore.store import S3Store

FETCH_BYTES = 8 * 1024 * 1024
"""Size of the chunks in which bytes are written."""

RETRY = {"max_retries": 10, "retry_timeout": timedelta(seconds=180)}
"""Retries before S3 counts as unreachable."""

PARQUET_TAIL_BYTES = 64 * 1024
"""The end of a Parquet file that is fetched first; mostly it holds the whole footer."""

_PARQUET_END_BYTES = 8
"""The footer's length, and a magic word."""

_REFUSED = re.compile(r"status code: 4\d\d")
"""In obstore's messages."""

_REGIONS = {"AWS_REGION", "AWS_DEFAULT_REGION"}

_UNKNOWN_CALLER = (
    "ExpiredToken", "InvalidAccessKeyId", "InvalidToken", "SignatureDoesNotMatch",
    "TokenRefreshRequired",
)  # fmt: skip
"""Error codes of S3 for credentials."""


def fetch_object(section: FileSection, path: Path, settings: SourceSettings) -> Fetched:
    """Fetch an object, or the bytes that a section needs, into a sparse copy of it.

    Blocks until they are written.

    Args:
        section: Of which file, and which of its rows.
        path: Of the copy.
        settings: Of the source.

    Raises:
        FileError: The object does not exist, or cannot be read.
        SupersededError: The announced version was overwritten.
        Unauthenticated: S3 does not know the caller.
        Unavailable: S3 cannot be reached.
    """
    file = section.file
    if file.uri.endswith("/") and not file.size:
        path.touch()
        return Fetched(path)  # Consoles create such objects to show a folder.
    versioned = settings.dedup_key is DedupKey.URI_AND_VERSION
    with s3_errors(file.uri, file.version):
        found = _Object(file.uri, file.version if versioned else None, settings.files)
        with path.open("wb") as spooled:
            spooled.truncate(found.size)
        if section.count == 1:
            found.fetch(path, 0, found.size)
            return Fetched(path, None, found.seen)
        file_format = settings.files.format or format_by_name(path)
        if file_format is FileFormat.PARQUET:
            _fetch_groups(found, path, Section(section.index, section.count))
            return Fetched(path, section.rows(), found.seen)
        _fetch_lines(found, path, section, is_csv=file_format is FileFormat.CSV)
        return Fetched(path, section.rows(is_alone=True), found.seen)


def s3_store(bucket: str, settings: FileSettings) -> "S3Store":
    """Return a bucket of S3, with the environment's credentials.

    Raises:
        FileError: obstore is not installed.
    """
    try:
        from obstore.store import S3Store
    except ImportError:
        raise FileError("files in S3 need obstore: pip install 'wings-flight[objects]'") from None
    config: dict[str, Any] = {}
    if settings.region is not None or not _REGIONS & os.environ.keys():
        config["region"] = settings.region or "us-east-1"
    if settings.endpoint is not None:
        config["endpoint"] = settings.endpoint
    plain = (settings.endpoint or "").startswith("http:")
    client: Any = {"allow_http": True} if plain else {}
    retry: Any = RETRY
    return S3Store(bucket, client_options=client, retry_config=retry, **config)


def seen_version(about: Any) -> str:
    """Return the version of an object, by its metadata, in the form of notifications."""
    tag: str | None = about.get("e_tag")
    named: str | None = about.get("version")
    return named or (f"etag:{tag.strip(chr(34))}" if tag else str(about["last_modified"]))


class _Object:
    """One version of an object, with random access.

    Args:
        uri: The object's.
        version: None: the current one.
        settings: Of S3.
    """

    def __init__(self, uri: str, version: str | None, settings: FileSettings) -> None:
        bucket, _, self._key = uri.removeprefix("s3://").partition("/")
        if UNREACHABLE_KEY.search(self._key) is not None:
            raise FileError(
                f"{uri!a:.300}: files with control characters in their keys, and with empty parts, "
                "'.' or '..' between slashes, cannot be read"
            )
        self._store = s3_store(bucket, settings)
        self._options: dict[str, Any] = {}
        if version is not None and version.startswith("etag:"):
            self._options["if_match"] = f'"{version.removeprefix("etag:")}"'
        elif version is not None:
            self._options["version"] = version
        self._place = 0
        try:
            about = self._get({"head": True}).meta
        except Exception:  # noqa: BLE001 - A HEAD request has no error code.
            about = self._get({}).meta
        self.size: int = about["size"]
        tag: str | None = about.get("e_tag")
        self.seen = seen_version(about)
        if version is None and tag is not None:
            self._options["if_match"] = tag

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


def _fetch_lines(found: _Object, path: Path, section: FileSection, *, is_csv: bool) -> None:
    """Fetch the lines of a section, and the bytes that determine its bounds and columns."""
    wanted = Section(section.index, section.count)
    ranges = (csv_ranges if is_csv else line_ranges)(found, found.size, wanted)
    *names, (first, end) = ranges
    names_end = names[0][1] if names else 0
    if is_csv:
        found.fetch(path, 0, min(found.size, names_end + SAMPLE_BYTES))
    if first == found.size:
        return  # The section has no lines.
    # From the byte at which the section is cut, so that the line's end before it is there.
    cut = names_end + wanted.of(found.size - names_end)[0]
    found.fetch(path, max(0, min(first, cut) - 1), end)


def _fetch_groups(found: _Object, path: Path, section: Section) -> None:
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


@contextmanager
def s3_errors(uri: str, version: str | None) -> Generator[None]:
    """Translate errors of S3.

    Args:
        uri: Of the object.
        version: None: the current one.

    Raises:
        FileError: The object does not exist, was changed, or S3 rejected the request.
        SupersededError: The object has not this version any more.
        Unauthenticated: S3 does not know the caller.
        Unavailable: S3, or this machine's disk, is not usable now.
    """
    from obstore import exceptions

    try:
        yield
    except exceptions.PreconditionError:
        if version is None:
            raise FileError(f"{uri} changed while it was fetched") from None
        raise SupersededError(f"{uri} was overwritten: {version} is gone") from None
    except FileNotFoundError:
        raise FileError(f"{uri} is not there") from None
    except (exceptions.BaseError, OSError) as error:
        text = str(error)
        message = f"{uri}: {text.splitlines()[0]:.300}"
        if isinstance(error, OSError) and is_of_machine(error, uri):
            raise Unavailable(message) from None
        if any(code in text for code in _UNKNOWN_CALLER):
            raise Unauthenticated(message) from None
        # A request that S3 rejected would be rejected again, so there is nothing to wait for.
        if isinstance(error, exceptions.GenericError) and _REFUSED.search(text) is None:
            raise Unavailable(message) from None
        raise FileError(message) from None
