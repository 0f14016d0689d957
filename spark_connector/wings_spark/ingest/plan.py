"""Plan: which task reads what of a claim.

It comes from the claim and the settings alone, so a pipeline that is started again plans the same.
"""

from collections.abc import Sequence
from pathlib import PurePath
from uuid import uuid4

from pydantic import BaseModel, ConfigDict

from wings_client.cli.files.formats import FileFormat, compression_of, format_by_name
from wings_core.queue.claims import Claim, ClaimedFile
from wings_core.queue.commit import mark_prefix
from wings_spark.ingest.settings import SourceSettings

SECTIONS_MAX = 5_000
"""Of all files of one claim, as a publish takes no more than 10,000 stages."""

COUNTED_SECTIONS_MAX = 4
"""Of lines whose numbers are wanted: each section counts those before it."""

_LINES = (FileFormat.JSONL, FileFormat.CSV)


class _Planned(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class FileSection(_Planned):
    """A file of a claim, or a section of one."""

    file: ClaimedFile
    number: int
    """The file's place in its claim, from 0."""
    index: int = 0
    """The section's, from 0."""
    count: int = 1
    """How many sections there are of the file."""


class Work(_Planned):
    """What a task does; goes to it as JSON."""

    claim: int
    token: str
    """The pipeline's."""
    plan: str
    """Made up for each planning: tries of one plan are of one run of the pipeline."""
    number: int
    """Among the works of its plan."""
    works: int
    """How many there are."""
    sections: tuple[FileSection, ...]

    @property
    def marks(self) -> str:
        """What the ids of the stages begin with that tell which sections were begun."""
        return f"{mark_prefix(self.token, self.claim)}{self.number}-{self.works}."

    def mark(self, section: FileSection, ends: int) -> str:
        """Return an id for the stage that tells that a section is begun.

        Args:
            section: Which.
            ends: How many runs of the pipeline ended while it was read.
        """
        about = f"{section.number}.{section.index}.{ends}.{self.plan}"
        return f"{self.marks}{about}.{uuid4().hex[:8]}"

    def last_begun(self, marks: Sequence[str]) -> tuple[FileSection, int, bool] | None:
        """Tell at what an earlier try of this work ended, as works go through sections in order.

        Args:
            marks: What earlier tries left behind.

        Returns:
            The section, how many runs had ended while it was read when the try began, and whether
            the try was of this plan; None where there was no try, or one of other sections.
        """
        found: dict[tuple[int, int], tuple[int, bool]] = {}
        for mark in marks:
            number, index, ends, plan, _ = mark.removeprefix(self.marks).split(".")
            found[int(number), int(index)] = (int(ends), plan == self.plan)
        for section in reversed(self.sections):
            about = found.get((section.number, section.index))
            if about is not None:
                return section, *about
        return None


def planned(claim: Claim, token: str, tasks_max: int, settings: SourceSettings) -> list[Work]:
    """Share out a claim's files to tasks by size, the largest first, large ones in sections.

    Args:
        claim: What is read.
        token: The pipeline's.
        tasks_max: At least 1.
        settings: Of the source.

    Returns:
        Works, in each of which files keep their order.
    """
    total = sum(file.size or 0 for file in claim.files)
    section_bytes = max(settings.limits.split_bytes, -(-total // SECTIONS_MAX))
    sections: list[FileSection] = []
    sizes: list[int] = []
    for number, file in enumerate(claim.files):
        count = section_count(file, settings, section_bytes)
        for index in range(count):
            sections.append(FileSection(file=file, number=number, index=index, count=count))
            sizes.append(max(1, (file.size or 1) // count))
    loads = [0] * max(1, min(tasks_max, len(sections)))
    shares: list[list[int]] = [[] for _ in loads]
    for place in sorted(range(len(sections)), key=lambda place: -sizes[place]):
        lightest = loads.index(min(loads))
        loads[lightest] += sizes[place]
        shares[lightest].append(place)
    plan = uuid4().hex[:12]
    return [
        Work(
            claim=claim.number,
            token=token,
            plan=plan,
            number=number,
            works=len(shares),
            sections=tuple(sections[place] for place in sorted(share)),
        )
        for number, share in enumerate(shares)
    ]


def section_count(file: ClaimedFile, settings: SourceSettings, section_bytes: int) -> int:
    """Return in how many sections a file is read.

    Args:
        file: Which.
        settings: Of the source.
        section_bytes: About how large a section is.
    """
    size = 0 if file.size is None or file.payload is not None else file.size
    if size <= section_bytes or file.is_whole or file.position > 0:
        return 1
    name = PurePath(file.uri)
    if settings.limits.rows_per_file is not None or compression_of(name) is not None:
        return 1
    count = -(-size // section_bytes)
    file_format = settings.files.format or format_by_name(name)
    is_remote = file.uri.startswith("s3://")
    if file_format in _LINES:
        if settings.files.lineage.offset is None:
            return count
        return 1 if is_remote else min(count, COUNTED_SECTIONS_MAX)
    if file_format is FileFormat.PARQUET or (file_format is FileFormat.ARROW and not is_remote):
        return count
    return 1
