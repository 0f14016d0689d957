"""Claims: which files a pipeline reads next, and what became of them; as they are journaled."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from pydantic import BaseModel, ConfigDict


class _Stored(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ClaimedFile(_Stored):
    """A file, or a part of one, that is to be read."""

    shard: str
    uri: str
    version: str | None = None
    size: int | None = None
    payload: str | None = None
    problem: str | None = None
    position: int = 0
    """How many of its rows are published."""
    failures: int = 0
    """How often it has failed at this position."""
    is_whole: bool = False
    """Whether it must be read from first to last row, as sections of it cannot be told."""


class ClaimedMessage(_Stored):
    """A message that told of claimed files."""

    id: str
    receipt: str
    shards: tuple[str, ...]
    """All files that it told of, the unclaimed ones too."""


class Claim(_Stored):
    """What one batch of a pipeline reads; numbers count up from 1, without gaps."""

    number: int
    files: tuple[ClaimedFile, ...]
    messages: tuple[ClaimedMessage, ...]


@dataclass(frozen=True, slots=True)
class FileResult:
    """What reading a claimed file, or a section of it, came to."""

    shard: str
    stages: tuple[str, ...] = ()
    """Where its rows are staged, in order; none where there are none, or it failed."""
    rows: int = 0
    """That were read, from its position on."""
    finished: bool = False
    """Whether that was all of it, or of the section."""
    rescued: int = 0
    """Rows that did not fit and were kept as text."""
    bytes: int = 0
    """Of the rows, as they were staged."""
    error: str | None = None
    """Why it failed."""
    permanent: bool = False
    """Whether it will always fail so."""
    section: int = 0
    """Which one, from 0."""
    sections: int = 1
    """How many there are."""
    seen: str | None = None
    """What told the file that was read from another under the same name."""
    superseded: bool = False
    """Whether another version took its place, which is told of itself: nothing of it is read."""
    is_whole: bool = False
    """Whether it turned out that it must not be read in sections: it is not read yet."""


class Fate(StrEnum):
    """What became of a claimed file."""

    FINISHED = "finished"
    PARTIAL = "partial"
    """A part of it is published; there is more."""
    FAILED = "failed"
    """It is to be tried again."""
    DEAD = "dead"
    """It failed for the last time."""
    FENCED = "fenced"
    """Another pipeline has it by now."""


class FileOutcome(_Stored):
    """What became of a claimed file, and where it stands."""

    shard: str
    fate: Fate
    position: int
    rows: int = 0
    rescued: int = 0
    bytes: int = 0
    failures: int = 0
    error: str | None = None
    is_whole: bool = False
    """Whether it is to be read from first to last row, next time."""


class Outcome(_Stored):
    """What became of a claim."""

    number: int
    published_at: int
    """Microseconds since the epoch."""
    files: tuple[FileOutcome, ...]

    @property
    def rows(self) -> int:
        """How many rows it published."""
        return sum(file.rows for file in self.files)


def results_by_shard(results: Sequence[FileResult]) -> dict[str, FileResult]:
    """Return the results of a claim, by shard, those of sections put together."""
    sections: dict[str, list[FileResult]] = {}
    for result in results:
        sections.setdefault(result.shard, []).append(result)
    return {shard: _joined(each) for shard, each in sections.items()}


def _joined(sections: list[FileResult]) -> FileResult:
    """Return the result of a file: its rows are all there, in order, or none is published."""
    sections.sort(key=lambda each: each.section)
    first = sections[0]
    if len(sections) == 1 and first.sections == 1:
        return first
    for special in (
        next((each for each in sections if each.superseded), None),
        next((each for each in sections if each.permanent), None),
        # Before errors: where rows cannot be told from sections, those may come of that alone.
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
    )
