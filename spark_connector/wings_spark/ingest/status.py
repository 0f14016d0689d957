"""The state of a source: figures, files, redrive of dead files, and backfill; without Spark."""

from collections import deque
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

from wings_core.errors import InvalidArgument
from wings_core.model import Shard
from wings_core.queue.journal import (
    CLAIMS_KEPT_MAX,
    DEAD_FATES,
    Fate,
    FileOutcome,
    Journal,
    Outcome,
)
from wings_core.queue.notifications import (
    DedupKey,
    file_of_shard,
    is_object,
    is_of_message,
    message_of,
)
from wings_core.times import format_timestamp
from wings_spark.ingest.connections import open_queue
from wings_spark.ingest.files import RefusedError
from wings_spark.ingest.settings import FileSettings, SourceSettings

OUTCOMES_MAX = 100
"""Most batches that a status aggregates."""

PAGE = 1_000
"""Files per call."""


def figures(settings: SourceSettings) -> dict[str, Any]:
    """Return the figures of a source and of one pipeline of it, as JSON.

    Files are counted over all pipelines of the source. `pending_messages` are null if the queue has
    no count. `last_batches` are this pipeline's, at most `OUTCOMES_MAX`; files outside the places
    that the source may read are `refused_files`, and count as failures too.

    Raises:
        WingsError: The server, queue or journal cannot be reached.
    """
    with settings.target.server().connect() as client:
        files = client.count_shards(settings.name)
    with closing(open_queue(settings)) as queue:
        pending = queue.pending()
    outcomes = Journal(settings.journal_directory).outcomes(OUTCOMES_MAX)
    done = [file for outcome in outcomes for file in outcome.files]
    return {
        "source": settings.name,
        "files": {
            "open": files.open,
            "finished": files.finished,
            "dead": files.dead,
            "rows": files.position,
        },
        "pending_messages": pending,
        "last_batches": {
            "batches": len(outcomes),
            "rows": sum(file.rows for file in done),
            "bytes": sum(file.bytes for file in done),
            "rescued_rows": sum(file.rescued for file in done),
            "failures": sum(file.fate is Fate.FAILED or file.fate in DEAD_FATES for file in done),
            "refused_files": sum(file.fate is Fate.REFUSED for file in done),
            "last_published_at": (
                format_timestamp(outcomes[-1].published_at) if outcomes else None
            ),
        },
    }


def files_of_source(settings: SourceSettings, state: str | None) -> Iterator[Shard]:
    """Yield the files that a source remembers, by id.

    Raises:
        WingsError: The server cannot be reached.
    """
    with settings.target.server().connect() as client:
        after = ""
        while page := client.list_shards(settings.name, state, after=after, limit=PAGE):
            yield from page
            after = page[-1].shard


def history(settings: SourceSettings, limit: int) -> list[dict[str, Any]]:
    """Return the outcomes of files in the last batches, oldest first, as JSON.

    Args:
        settings: Settings of the source.
        limit: The most entries.

    Raises:
        WingsError: The server cannot be reached.
    """
    name = settings.history.topic
    if name is None:
        outcomes = Journal(settings.journal_directory).outcomes(CLAIMS_KEPT_MAX)
        found = [_entry(outcome, file) for outcome in outcomes for file in outcome.files]
        return found[-limit:]
    quoted = settings.name.replace("'", "''")
    last: deque[dict[str, Any]] = deque(maxlen=limit)
    with settings.target.server().connect() as client:
        for batch in client.scan(name, filter=f"source = '{quoted}'"):
            last.extend(_jsonable(row) for row in batch.to_pylist())
    return list(last)


def _entry(outcome: Outcome, file: FileOutcome) -> dict[str, Any]:
    return {
        "batch": outcome.number,
        "shard": file.shard,
        "outcome": file.fate.value,
        "rows": file.rows,
        "rescued_rows": file.rescued,
        "bytes": file.bytes,
        "failures": file.failures,
        "error": file.error,
        "published_at": format_timestamp(outcome.published_at),
    }


def _jsonable(row: dict[str, Any]) -> dict[str, Any]:
    return {
        name: _time(value) if isinstance(value, datetime) else value
        for name, value in row.items()
        if name != "source"
    }


def _time(value: datetime) -> str:
    return value.isoformat(timespec="microseconds").replace("+00:00", "Z")


def retry(settings: SourceSettings, shards: list[str] | None) -> list[str]:
    """Redrive dead files: only announces each again in the queue.

    The pipeline that receives the message reopens the file, if it died at the same time; until then
    the file remains dead. An interrupted call has announced some files, and loses none.

    Args:
        settings: Settings of the source.
        shards: Ids of the files; None for all.

    Returns:
        Ids of the announced files; the others are not dead.

    Raises:
        InvalidArgument: The source's messages announce no files.
        WingsError: The server or the queue cannot be reached; a retry is safe.
    """
    wanted = shards
    if wanted is None:
        wanted = [shard.shard for shard in files_of_source(settings, "dead")]
    kind = settings.queue.message_kind
    found: list[str] = []
    with closing(open_queue(settings)) as queue, settings.target.server().connect() as client:
        for first in range(0, len(wanted), PAGE):
            dead = [
                shard
                for shard in client.get_shards(settings.name, wanted[first : first + PAGE])
                if shard.state == "dead" and not is_of_message(shard.shard, kind)
            ]
            bodies: list[str] = []
            for shard in dead:
                uri, version = file_of_shard(shard.shard, settings.dedup_key)
                bodies.append(message_of(uri, version, None, kind, shard.updated_at))
            queue.send(bodies)
            found += [shard.shard for shard in dead]
    return found


def backfill(settings: SourceSettings, place: str) -> int:
    """Announce the files below a place that the source takes; files already read are skipped.

    Args:
        settings: Settings of the source.
        place: `s3://BUCKET/PREFIX` or the like, or a directory.

    Returns:
        The count of files.

    Raises:
        InvalidArgument: The place does not exist, the source may not read it, or its messages
            announce no files.
        Unauthenticated: The object store rejects the credentials.
        Unavailable: The store or the queue cannot be reached; some files may have been announced.
    """
    kind = settings.queue.message_kind
    if not is_object(place):
        place = str(Path(place).absolute())
    try:
        settings.places.check(f"{place.rstrip('/')}/")
    except RefusedError as error:
        raise InvalidArgument(str(error)) from None
    count = 0
    bodies: list[str] = []
    with closing(open_queue(settings)) as queue:
        for uri, version, size in _listed(settings, place):
            if not settings.patterns.takes(uri):
                continue
            bodies.append(message_of(uri, version, size, kind))
            count += 1
            if len(bodies) >= PAGE:
                queue.send(bodies)
                bodies = []
        queue.send(bodies)
    return count


def _listed(settings: SourceSettings, place: str) -> Iterator[tuple[str, str | None, int]]:
    versioned = settings.dedup_key is DedupKey.URI_AND_VERSION
    if is_object(place):
        yield from _listed_objects(settings.files, place, versioned=versioned)
        return
    directory = Path(place)
    if not directory.is_dir():
        raise InvalidArgument(f"there is no directory {place}")
    for path in sorted(directory.rglob("*")):
        parts = path.relative_to(directory).parts
        if path.is_file() and not any(part.startswith((".", "_")) for part in parts):
            status = path.stat()
            version = f"{status.st_size}-{status.st_mtime_ns}" if versioned else None
            yield path.as_posix(), version, status.st_size


def _listed_objects(
    files: FileSettings, place: str, *, versioned: bool
) -> Iterator[tuple[str, str | None, int]]:
    from wings_spark.ingest.stores import Bucket

    bucket = Bucket(files, place)
    for page in bucket.pages():
        for found in page:
            version = bucket.version(found.key) if versioned else None
            if version is not None or not versioned:  # Else it was deleted since.
                yield f"{bucket.name}/{found.key}", version, found.size
