"""Fetch file: from wherever it is to this machine's disk, in the version that was told of."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wings_core.queue.claims import ClaimedFile
from wings_core.queue.notices import DedupKey
from wings_spark.ingest.settings import FileSettings, SourceSettings

if TYPE_CHECKING:
    from obstore.store import S3Store

_REGIONS = {"AWS_REGION", "AWS_DEFAULT_REGION"}

FETCH_BYTES = 8 * 1024 * 1024
"""How much is fetched at a time."""


class FileError(Exception):
    """A file cannot be read, or not all of it fits: it is tried again, and given up some time."""


class SupersededError(Exception):
    """There is another version of a file than the one that was told of, which is gone."""


def fetched(file: ClaimedFile, directory: Path, settings: SourceSettings) -> Path:
    """Return where a file's bytes are on this machine.

    Args:
        file: Which.
        directory: For what has to be written first.
        settings: Of the source.

    Raises:
        FileError: It is not there, or cannot be read.
        SupersededError: It is there in another version, and versions count.
    """
    versioned = settings.dedup_key is DedupKey.URI_AND_VERSION and file.version is not None
    if file.payload is not None:
        path = directory / "payload"
        path.write_text(file.payload, encoding="utf-8", errors="replace")
        return path
    if file.uri.startswith("s3://"):
        return _fetched_from_s3(file, directory, settings.files, versioned=versioned)
    path = Path(file.uri)
    try:
        status = path.stat()
    except OSError as error:
        raise FileError(f"{file.uri}: {error.strerror or error}") from None
    if not path.is_file():
        raise FileError(f"{file.uri} is not a file")
    if versioned and settings.queue.kind == "directory":
        found = f"{status.st_size}-{status.st_mtime_ns}"
        if found != file.version:
            raise SupersededError(f"{file.uri} was overwritten: {file.version} is {found} now")
    return path


def _fetched_from_s3(
    file: ClaimedFile, directory: Path, settings: FileSettings, *, versioned: bool
) -> Path:
    import obstore
    from obstore.exceptions import BaseError, PreconditionError

    bucket, _, key = file.uri.removeprefix("s3://").partition("/")
    options: Any = {}
    if versioned and file.version is not None:
        if file.version.startswith("etag:"):
            options["if_match"] = f'"{file.version.removeprefix("etag:")}"'
        else:
            options["version"] = file.version
    path = directory / Path(key).name
    try:
        found = obstore.get(s3_store(bucket, settings), key, options=options)
        with path.open("wb") as spooled:
            for part in found.stream(min_chunk_size=FETCH_BYTES):
                spooled.write(part)
    except PreconditionError:
        raise SupersededError(f"{file.uri} was overwritten: {file.version} is gone") from None
    except FileNotFoundError:
        raise FileError(f"{file.uri} is not there") from None
    except (BaseError, OSError) as error:
        raise FileError(f"{file.uri}: {str(error).splitlines()[0]:.300}") from None
    return path


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
    return S3Store(bucket, client_options=client, **config)
