"""Plan: which task reads what of a claim.

It comes from the claim and the settings alone, so a pipeline that is started again plans the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from uuid import uuid4

from pydantic import BaseModel, ConfigDict

from wings_client.files.formats import FileFormat, compression_of, format_by_name
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
        """What the ids of the stages begin with that tell how earlier tries went."""
        return f"{mark_prefix(self.token, self.claim)}{self.number}-{self.works}."

    @property
    def begun_marks(self) -> str:
        """What the ids of those of them begin with whose sections some try went on to read."""
        return f"{self.marks}begun."

    def mark(self, section: FileSection, ends: int) -> str:
        """Return an id for the stage that tells that a section is begun.

        Args:
            section: Which.
            ends: How many runs of the pipeline ended while it was read.
        """
        return self._mark("begun", section, ends, self.plan)

    def mark_of_end(self, section: FileSection, end: "End") -> str:
        """Return an id for the stage that tells later tries of the end of an earlier one."""
        return self._mark("ended", section, end.ends, end.plan)

    def _mark(self, kind: str, section: FileSection, ends: int, plan: str) -> str:
        about = f"{section.number}.{section.index}.{ends}.{plan}"
        return f"{self.marks}{kind}.{about}.{uuid4().hex[:8]}"

    def ends(self, marks: Sequence[str]) -> "dict[FileSection, End]":
        """Tell at which sections earlier tries of this work ended.

        That is the last one that a try began, as works go through sections in order, and what that
        try knew of those before it.

        Args:
            marks: What the last try left behind.
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
    """How a try ended while it read a section."""

    ends: int
    """How many runs of the pipeline had ended before while it was read."""
    plan: str
    """The try's."""


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
