"""Journal: the claims of a pipeline and their outcomes, in its checkpoint's directory.

    PIPELINE            the pipeline's token: names it as an owner of shards
    LOCK                held by the process that runs the pipeline
    claims/N.json       claim N, the files that a batch reads: durable before it is acted on, and
                        never changed
    claims/N.read       its files have been read; it is about to be published: their versions
    claims/N.done       its outcome: published, and its messages acknowledged

A pipeline plans only from the journal: its processes share no memory, and after a restart it
finishes open claims.
"""

import fcntl
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import IO, TypeVar
from uuid import uuid4

from pydantic import BaseModel, ConfigDict, ValidationError

from wings_core.errors import Internal, Unavailable
from wings_core.storage.files import sync_directory

CLAIMS_KEPT_MAX = 1_000
"""Finished claims that are kept; older ones are deleted."""

M = TypeVar("M", bound=BaseModel)


class _Stored(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ClaimedFile(_Stored):
    """A file, or the rest of one, that is to be read."""

    shard: str
    uri: str
    version: str | None = None
    size: int | None = None
    payload: str | None = None
    problem: str | None = None
    position: int = 0
    """Rows of it that are published."""
    failures: int = 0
    """Failed attempts at this position."""
    is_whole: bool = False
    """Whether the file must be read from first to last row, as it is indivisible."""


class ClaimedMessage(_Stored):
    """A message that announced claimed files."""

    id: str
    receipt: str
    shards: tuple[str, ...]
    """All files that it announced, the unclaimed ones too."""


class Claim(_Stored):
    """The input of one batch of a pipeline; numbers count up from 1, without gaps."""

    number: int
    files: tuple[ClaimedFile, ...]
    messages: tuple[ClaimedMessage, ...]


@dataclass(frozen=True, slots=True)
class FileResult:
    """The result of reading a claimed file, or a section of it."""

    shard: str
    stages: tuple[str, ...] = ()
    """Ids of the stages of its rows, in order; empty if it has no rows or failed."""
    rows: int = 0
    """Rows read, from its position on."""
    finished: bool = False
    """Whether the file, or the section, was read to its end."""
    rescued: int = 0
    """Rows that did not fit and were kept as text."""
    bytes: int = 0
    """Size of the rows as staged."""
    error: str | None = None
    """Error of a failed attempt, or None."""
    permanent: bool = False
    """Whether a retry would fail too."""
    refused: bool = False
    """Whether the source may not read it; implies `permanent`."""
    section: int = 0
    """Index of the section, from 0."""
    sections: int = 1
    """Count of the file's sections."""
    seen: str | None = None
    """Version of the file that was read: distinguishes it from another under the same name."""
    began_at: int | None = None
    """Start of the read, in microseconds since the epoch."""
    ended_at: int | None = None
    """Time at which all rows were staged or the read failed, in microseconds since the epoch."""
    superseded: bool = False
    """Whether another version replaced it, announced by a message of its own: no row is read."""
    is_whole: bool = False
    """Whether the file was found to be indivisible, and must still be read whole."""


class Fate(StrEnum):
    """The result of a claim for one file."""

    FINISHED = "finished"
    PARTIAL = "partial"
    """A part of it is published; the rest is read by later claims."""
    FAILED = "failed"
    """The file will be read again later."""
    DEAD = "dead"
    """The file failed permanently, or as often as allowed."""
    REFUSED = "refused"
    """Dead, as the source may not read it."""
    FENCED = "fenced"
    """Another pipeline took it over."""


DEAD_FATES = (Fate.DEAD, Fate.REFUSED)
"""Fates of files that are not read again."""


class FileOutcome(_Stored):
    """The result of a claim for one file, and its position since."""

    shard: str
    fate: Fate
    position: int
    rows: int = 0
    rescued: int = 0
    bytes: int = 0
    failures: int = 0
    error: str | None = None
    is_whole: bool = False
    """Whether the next attempt reads it from first to last row."""


class Outcome(_Stored):
    """The result of a claim."""

    number: int
    published_at: int
    """Time of the publish in microseconds since the epoch."""
    files: tuple[FileOutcome, ...]

    @property
    def rows(self) -> int:
        """Rows that it published."""
        return sum(file.rows for file in self.files)


@dataclass(frozen=True, slots=True)
class FileReport:
    """The result of a batch for one file, for the history."""

    file: ClaimedFile
    outcome: FileOutcome
    result: FileResult | None
    """Result of the read; None if the file was not read."""


def results_by_shard(results: Sequence[FileResult]) -> dict[str, FileResult]:
    """Return the results of a claim by shard, those of a file's sections merged."""
    sections: dict[str, list[FileResult]] = {}
    for result in results:
        sections.setdefault(result.shard, []).append(result)
    return {shard: _joined(each) for shard, each in sections.items()}


class Journal:
    """The journal in one directory, which is created if missing.

    Args:
        directory: Directory on a disk that outlives the pipeline's processes, reachable by all of
            them.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._claims = directory / "claims"
        self._claims.mkdir(parents=True, exist_ok=True)
        self._lock: IO[bytes] | None = None

    @property
    def token(self) -> str:
        """The pipeline's identity as an owner of shards; generated at its first start."""
        path = self.directory / "PIPELINE"
        if not path.exists():
            _write(path, uuid4().hex.encode())
        return path.read_text(encoding="utf-8").strip()

    def lock(self) -> None:
        """Lock the pipeline against other processes of this machine, until `unlock`.

        Raises:
            Unavailable: Another process holds the lock.
        """
        lock = (self.directory / "LOCK").open("ab")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            raise Unavailable(
                f"a pipeline runs already with the checkpoint {self.directory}"
            ) from None
        self._lock = lock
        for each in (self._claims, self.directory):  # A run before this one may have failed to.
            sync_directory(each)

    def unlock(self) -> None:
        """Release the lock, if it is held."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def add(self, claim: Claim) -> Claim:
        """Write a claim durably; returns the stored claim of its number, which may be older."""
        _write(self._path(claim.number, "json"), claim.model_dump_json().encode())
        found = self.claim(claim.number)
        assert found is not None
        return found

    def claim(self, number: int) -> Claim | None:
        """Return a claim; None if it was never written, or is deleted.

        Raises:
            Internal: The claim cannot be read.
        """
        return _load(self._path(number, "json"), Claim)

    def outcome(self, number: int) -> Outcome | None:
        """Return the outcome of a claim; None while it is not done."""
        return _load(self._path(number, "done"), Outcome)

    def mark_read(self, number: int, versions: Mapping[str, str] | None = None) -> None:
        """Record that the files of a claim have been read.

        Args:
            number: Number of the claim.
            versions: Versions read completely, by shard, recorded durably; None for those recorded
                before.
        """
        path = self._path(number, "read")
        if versions is None:
            path.touch()
        else:
            _write(path, json.dumps(versions).encode(), replace=True)

    def versions_read(self, number: int) -> dict[str, str]:
        """Return the versions that were recorded with `mark_read`, by shard."""
        try:
            text = self._path(number, "read").read_bytes()
        except FileNotFoundError:
            return {}
        return json.loads(text) if text else {}

    def is_read(self, number: int) -> bool:
        """Return whether the files of a claim have been read."""
        return self._path(number, "read").exists() or self.is_done(number)

    def mark_done(self, outcome: Outcome) -> None:
        """Record the outcome of a claim durably, and delete the oldest claim beyond those kept."""
        _write(self._path(outcome.number, "done"), outcome.model_dump_json().encode())
        self._path(outcome.number, "read").unlink(missing_ok=True)
        old = outcome.number - CLAIMS_KEPT_MAX
        for ending in ("json", "read", "done"):
            with suppress(OSError):
                self._path(old, ending).unlink(missing_ok=True)

    def is_done(self, number: int) -> bool:
        """Return whether a claim was published and acknowledged."""
        return self._path(number, "done").exists()

    @property
    def last(self) -> int:
        """The number of the last claim; 0 before the first."""
        numbers = [int(path.stem) for path in self._claims.glob("*.json") if path.stem.isdigit()]
        return max(numbers, default=0)

    @property
    def last_done(self) -> int:
        """The last finished claim, 0 before the first; at most one claim after it is open."""
        last = self.last
        return last if last == 0 or self.is_done(last) else last - 1

    def outcomes(self, outcomes_max: int) -> list[Outcome]:
        """Return the outcomes of the last claims, the oldest first."""
        last = self.last
        found = (self.outcome(number) for number in range(max(1, last - outcomes_max), last + 1))
        return [outcome for outcome in found if outcome is not None]

    def open_claims(self) -> list[Claim]:
        """Return the claims that are not done, in order."""
        last = self.last
        found = (
            self.claim(number)
            for number in range(max(1, last - CLAIMS_KEPT_MAX), last + 1)
            if not self.is_done(number)
        )
        return [claim for claim in found if claim is not None]

    def _path(self, number: int, ending: str) -> Path:
        return self._claims / f"{number}.{ending}"


def _joined(sections: list[FileResult]) -> FileResult:
    """Return the result of a file: all sections in order, or an error that discards them all."""
    sections.sort(key=lambda each: each.section)
    first = sections[0]
    if len(sections) == 1 and first.sections == 1:
        return first
    for special in (
        next((each for each in sections if each.superseded), None),
        next((each for each in sections if each.permanent), None),
        # Before errors: cutting an indivisible file into sections may cause those.
        next((FileResult(first.shard, is_whole=True) for each in sections if each.is_whole), None),
        next((each for each in sections if each.error is not None), None),
    ):
        if special is not None:
            return special
    if [each.section for each in sections] != list(range(first.sections)):
        return FileResult(first.shard, error="not all sections of it were read")
    if any(each.seen != first.seen for each in sections):
        return FileResult(first.shard, error="it changed while it was read")
    return FileResult(
        first.shard,
        tuple(stage for each in sections for stage in each.stages),
        sum(each.rows for each in sections),
        finished=all(each.finished for each in sections),
        rescued=sum(each.rescued for each in sections),
        bytes=sum(each.bytes for each in sections),
        seen=first.seen,
        began_at=min((each.began_at for each in sections if each.began_at), default=None),
        ended_at=max((each.ended_at for each in sections if each.ended_at), default=None),
    )


def _write(path: Path, data: bytes, *, replace: bool = False) -> None:
    """Write a file durably and atomically; an existing one is left as it is, or replaced."""
    temporary = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if replace:
            temporary.replace(path)
        else:
            with suppress(FileExistsError):
                os.link(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_directory(path.parent)


def _load(path: Path, model: type[M]) -> M | None:
    try:
        return model.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise Internal(f"the journal's {path} cannot be read: {str(error)[:200]}") from None
