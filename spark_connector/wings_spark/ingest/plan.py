"""The plan of a claim: which task reads which files and sections.

The claim and the settings determine the plan, so that a restarted pipeline makes the same one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from uuid import uuid4

from pydantic import BaseModel, ConfigDict

from wings_client.files.formats import FileFormat, Section, compression_of, format_by_name
from wings_core.queue.commit import mark_prefix
from wings_core.queue.journal import Claim, ClaimedFile
from wings_core.queue.notifications import is_object
from wings_spark.ingest.settings import SourceSettings

SECTIONS_MAX = 5_000
"""Most sections of all files of a claim, as a publish takes no more than 10,000 stages."""

COUNTED_SECTIONS_MAX = 4
"""Most sections of a file whose row numbers are wanted: each section counts the lines before it."""

_LINES = (FileFormat.JSONL, FileFormat.CSV)


class _Planned(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class FileSection(_Planned):
    """A file of a claim, or a section of one."""

    file: ClaimedFile
    number: int
    """Index of the file in its claim, from 0."""
    index: int = 0
    """Index of the section, from 0."""
    count: int = 1
    """Number of sections of the file."""

    def rows(self, *, is_alone: bool = False) -> Section | None:
        """Return the section of the file to read; None for the whole file.

        Args:
            is_alone: Whether the copy that is read lacks the bytes of other sections.
        """
        return None if self.count == 1 else Section(self.index, self.count, is_alone)


class PlannedWork(_Planned):
    """Input of a task, sent as JSON."""

    claim: int
    token: str
    """Token of the pipeline."""
    plan: str
    """A random id of this planning: attempts with one plan are of one run of the pipeline."""
    number: int
    """Index among the works of the plan."""
    works: int
    """Number of works of the plan."""
    sections: tuple[FileSection, ...]

    @property
    def marks(self) -> str:
        """The common prefix of the ids of this work's marks, which record earlier attempts."""
        return f"{mark_prefix(self.token, self.claim)}{self.number}-{self.works}."

    @property
    def begun_marks(self) -> str:
        """The common prefix of the marks of sections that an attempt began to read."""
        return f"{self.marks}begun."

    def mark(self, section: FileSection, ends: int) -> str:
        """Return an id for the mark of a section that is begun.

        Args:
            section: The section.
            ends: Count of the pipeline's runs that ended while it was read.
        """
        return self._mark("begun", section, ends, self.plan)

    def mark_of_end(self, section: FileSection, end: "End") -> str:
        """Return an id for the mark of an earlier attempt's end, for later attempts."""
        return self._mark("ended", section, end.ends, end.plan)

    def _mark(self, kind: str, section: FileSection, ends: int, plan: str) -> str:
        about = f"{section.number}.{section.index}.{ends}.{plan}"
        return f"{self.marks}{kind}.{about}.{uuid4().hex[:8]}"

    def ends(self, marks: Sequence[str]) -> "dict[FileSection, End]":
        """Return the sections at which earlier attempts at this work ended.

        These are the last section that an attempt began, since works read sections in order, and
        the sections recorded by that attempt.

        Args:
            marks: Ids of the marks that the last attempt left.
        """
        begun: dict[tuple[int, int], End] = {}
        ended: dict[tuple[int, int], End] = {}
        for mark in marks:
            kind, number, index, ends, plan, _ = mark.removeprefix(self.marks).split(".")
            found = begun if kind == "begun" else ended
            found[int(number), int(index)] = End(int(ends), plan)
        places = {(section.number, section.index): section for section in self.sections}
        last = max(begun.keys() & places.keys(), default=None)
        if last is not None:
            ended[last] = begun[last]
        return {places[place]: end for place, end in ended.items() if place in places}


@dataclass(frozen=True, slots=True)
class End:
    """End of an attempt while it read a section."""

    ends: int
    """Count of the pipeline's runs that had ended before while it was read."""
    plan: str
    """Plan of the attempt."""


def planned(
    claim: Claim, token: str, tasks_max: int, settings: SourceSettings
) -> list[PlannedWork]:
    """Divide a claim's files among tasks by size, largest first, with large files in sections.

    Args:
        claim: The claim.
        token: Token of the pipeline.
        tasks_max: Most tasks, at least 1.
        settings: Settings of the source.

    Returns:
        Works; each keeps its files in their order.
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
        PlannedWork(
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
    """Return the count of sections in which a file is read.

    Args:
        file: The file.
        settings: Settings of the source.
        section_bytes: Approximate size of a section.
    """
    size = 0 if file.size is None or file.payload is not None else file.size
    if size <= section_bytes or file.is_whole or file.position > 0:
        return 1
    name = PurePath(file.uri)
    if settings.limits.rows_per_file is not None or compression_of(name) is not None:
        return 1
    count = -(-size // section_bytes)
    file_format = settings.files.format or format_by_name(name)
    is_remote = is_object(file.uri)
    if file_format is FileFormat.CSV and not settings.files.is_plain_text:
        return 1
    if file_format in _LINES:
        if settings.files.lineage.offset is None:
            return count
        return 1 if is_remote else min(count, COUNTED_SECTIONS_MAX)
    if file_format is FileFormat.PARQUET or (file_format is FileFormat.ARROW and not is_remote):
        return count
    return 1
