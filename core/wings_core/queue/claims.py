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
    """What reading a claimed file came to."""

    shard: str
    stage: str | None = None
    """Where its rows are staged; None where there are none, or it failed."""
    next_position: int = 0
    """Rows that were read, those before its position included."""
    finished: bool = False
    """Whether that was all of it."""
    rescued: int = 0
    """Rows that did not fit and were kept as text."""
    bytes: int = 0
    """Of the rows, as they were staged."""
    error: str | None = None
    """Why it failed."""
    permanent: bool = False
    """Whether it will always fail so."""


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
    """Return the results of a claim, by shard."""
    return {result.shard: result for result in results}
