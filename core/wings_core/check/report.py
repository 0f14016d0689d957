"""Reports of checks: the problems found, and where."""

from dataclasses import dataclass

from wings_core.errors import StorageCorrupt
from wings_core.model import Location, PageAddress, PageFormat, StoredPage, Topic
from wings_core.partitions import Partition

PROBLEMS_MAX = 1_000
"""Problems that a report describes; the others are only counted."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A fault, and its place; fields that do not apply are None."""

    message: str
    topic: str | None = None
    """The full name of the topic, or of the namespace whose topics cannot be listed."""
    partition: str | None = None
    """The partition value as JSON text."""
    start_offset: int | None = None
    end_offset: int | None = None
    """The last offset concerned."""
    folio: str | None = None
    """The file's name."""
    position: int | None = None
    """The first byte of the page in the file."""
    stage: str | None = None
    """The stage that the page is in, which is not published."""

    def __str__(self) -> str:
        """Say where and what in one line."""
        where = [self.topic or "metadata"]
        if self.stage is not None:
            where.append(f"stage {self.stage}")
        if self.partition is not None:
            where.append(f"partition {self.partition}")
        if self.start_offset is not None:
            where.append(f"offsets {self.start_offset} to {self.end_offset}")
        if self.folio is not None:
            at = "" if self.position is None else f" at byte {self.position}"
            where.append(f"file {self.folio}{at}")
        return f"{', '.join(where)}: {self.message}"


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The parts of a log that were checked, and the problems found."""

    topics: int = 0
    partitions: int = 0
    pages: int = 0
    rows: int = 0
    """Rows of the pages that could be read."""
    bytes: int = 0
    """Bytes of all pages."""
    stages: int = 0
    """Stages not published; their pages count as others do."""
    problems: tuple[Problem, ...] = ()
    """The first `PROBLEMS_MAX`."""
    problems_total: int = 0
    unreferenced_folios: tuple[str, ...] = ()
    """Files that no page refers to, by name: no error, a running server deletes them."""

    @property
    def ok(self) -> bool:
        """Whether no problem was found."""
        return self.problems_total == 0


@dataclass(frozen=True, slots=True)
class Page:
    """A page to be checked: in the log, or in a stage."""

    topic: Topic
    partition: Partition
    rows: int
    address: PageAddress
    start_offset: int | None = None
    """None in a stage, as is the next."""
    end_offset: int | None = None
    stage: str | None = None
    format: PageFormat = PageFormat.PLAIN
    first_row: int | None = None
    """The first row of a slice of a page, 0-based; None: all of it."""
    bytes: int = 0
    """Stored bytes of the rows."""
    schema_version: int = 1
    """The version of the schema in which it is written."""

    @property
    def written(self) -> Topic:
        """The topic, with the schema of the page.

        Raises:
            StorageCorrupt: The topic has no such version.
        """
        if not 1 <= self.schema_version <= self.topic.schema_versions:
            raise StorageCorrupt(
                f"it is of version {self.schema_version} of the schema, and the topic has "
                f"{self.topic.schema_versions}"
            )
        return self.topic.at(self.schema_version)

    @classmethod
    def of_location(cls, topic: Topic, partition: Partition, location: Location) -> "Page":
        """Return a page of the log."""
        return cls(
            topic,
            partition,
            location.rows,
            location.address,
            location.start_offset,
            location.end_offset,
            format=location.format,
            first_row=location.first_row,
            bytes=location.bytes,
            schema_version=location.schema_version,
        )

    @classmethod
    def staged(cls, topic: Topic, stage: str, page: StoredPage) -> "Page":
        """Return a page of a stage."""
        return cls(
            topic,
            page.partition,
            page.rows,
            page.address,
            stage=stage,
            first_row=page.first_row,
            bytes=page.bytes,
            schema_version=page.schema_version,
        )

    def problem(self, message: str) -> Problem:
        """Return a problem of this page."""
        return Problem(
            message,
            str(self.topic.name),
            self.partition,
            self.start_offset,
            self.end_offset,
            self.address.folio,
            self.address.position,
            self.stage,
        )
