"""Claims and their outcomes: which files a batch reads, and the result of each, as journaled."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from pydantic import BaseModel, ConfigDict


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
