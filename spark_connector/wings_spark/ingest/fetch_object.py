"""Fetch object: a file in S3 to this machine's disk, or what a section of it needs.

All that is fetched of an object is of one version: the one that it has when its fetch begins.
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
from wings_core.queue.notices import DedupKey
from wings_spark.ingest.fetch_file import (
    Fetched,
    FileError,
    SupersededError,
    is_of_machine,
    section_of,
)
from wings_spark.ingest.plan import FileSection
from wings_spark.ingest.settings import FileSettings, SourceSettings

if TYPE_CHECKING:
    from obstore.store import S3Store

FETCH_BYTES = 8 * 1024 * 1024
"""How much is fetched at a time."""

RETRY = {"max_retries": 10, "retry_timeout": timedelta(seconds=180)}
"""What is done before S3 counts as out of reach."""

PARQUET_TAIL_BYTES = 64 * 1024
"""Of Parquet, what is fetched first: mostly all that tells where its rows are."""

_PARQUET_END_BYTES = 8
"""The length of what tells that, and a magic word."""

_UNREACHABLE_KEY = re.compile(r"(^|/)(\.{0,2})(/|$)|[\x00-\x1f\x7f]")
"""Keys that obstore refuses, or takes for others."""

_REFUSED = re.compile(r"status code: 4\d\d")
"""As obstore tells of it."""

_REGIONS = {"AWS_REGION", "AWS_DEFAULT_REGION"}

_UNKNOWN_CALLER = (
    "ExpiredToken", "InvalidAccessKeyId", "InvalidToken", "SignatureDoesNotMatch",
    "TokenRefreshRequired",
)  # fmt: skip
"""Answers of S3 that are no file's fault."""


def fetched_object(section: FileSection, path: Path, settings: SourceSettings) -> Fetched:
    """Fetch an object, or what a section of it needs, each byte to where it is in the object.

    Args:
        section: Of which file, and which of its rows.
        path: Where to.
        settings: Of the source.

    Raises:
        FileError: It is not there, or cannot be read.
        SupersededError: The version that was told of is gone.
        Unauthenticated: S3 does not know who asks.
        Unavailable: S3 cannot be reached.
    """
    file = section.file
    if file.uri.endswith("/") and not file.size:
        path.touch()
        return Fetched(path)  # What consoles make to show a folder.
    versioned = settings.dedup_key is DedupKey.URI_AND_VERSION
    with explained(file.uri, file.version):
        found = _Object(file.uri, file.version if versioned else None, settings.files)
        with path.open("wb") as spooled:
            spooled.truncate(found.size)
        if section.count == 1:
            found.fetch(path, 0, found.size)
            return Fetched(path, None, found.seen)
        file_format = settings.files.format or format_by_name(path)
        if file_format is FileFormat.PARQUET:
            _fetch_groups(found, path, Section(section.index, section.count))
            return Fetched(path, section_of(section), found.seen)
        _fetch_lines(found, path, section, is_csv=file_format is FileFormat.CSV)
        return Fetched(path, section_of(section, is_alone=True), found.seen)


def s3_store(bucket: str, settings: FileSettings) -> "S3Store":
    """Return a bucket of S3; credentials are those of the environment.

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


class _Object:
    """One version of an object, read from anywhere in it.

    Args:
        uri: Its own.
        version: Which; None: the one that is there now.
        settings: Of S3.
    """

    def __init__(self, uri: str, version: str | None, settings: FileSettings) -> None:
        bucket, _, self._key = uri.removeprefix("s3://").partition("/")
        if _UNREACHABLE_KEY.search(self._key) is not None:
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
        except Exception:  # noqa: BLE001 - Asked so, S3 does not say why it refuses.
            about = self._get({}).meta
        self.size: int = about["size"]
        tag: str | None = about.get("e_tag")
        self.seen: str = about.get("version") or tag or str(about["last_modified"])
        if version is None and tag is not None:
            self._options["if_match"] = tag

    def seek(self, offset: int, /) -> None:
        """Go to a byte."""
        self._place = offset

    def read(self, size: int, /) -> bytes:
        """Return as many bytes from there on, or as many as there are."""
        end = min(self.size, self._place + size)
        if end <= self._place:
            return b""
        found = bytes(self._get({"range": (self._place, end)}).bytes())
        self._place += len(found)
        return found

    def fetch(self, path: Path, first: int, end: int) -> None:
        """Write bytes to where they are in the object, if there are any."""
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
    """Fetch the lines of a section, and what tells which those are."""
    wanted = Section(section.index, section.count)
    ranges = (csv_ranges if is_csv else line_ranges)(found, found.size, wanted)
    *names, (first, end) = ranges
    names_end = names[0][1] if names else 0
    if is_csv:
        found.fetch(path, 0, min(found.size, names_end + SAMPLE_BYTES))
    if first == found.size:
        return  # There is none: what is fetched, or not there, says the same.
    # From the byte at which the section is cut, so that the line's end before it is there.
    cut = names_end + wanted.of(found.size - names_end)[0]
    found.fetch(path, max(0, min(first, cut) - 1), end)


def _fetch_groups(found: _Object, path: Path, section: Section) -> None:
    """Fetch the row groups of a section, and what tells where those are."""
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
def explained(uri: str, version: str | None) -> Generator[None]:
    """Say in our words what S3 refuses.

    Args:
        uri: What was asked for.
        version: Which one of it; None: whichever is there.
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
        # What S3 has looked at and refused would be refused again: that is no reason to wait.
        if isinstance(error, exceptions.GenericError) and _REFUSED.search(text) is None:
            raise Unavailable(message) from None
        raise FileError(message) from None
