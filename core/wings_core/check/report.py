"""Reports of checks: the problems found, and their locations."""

from dataclasses import dataclass

from wings_core.errors import StorageCorrupt
from wings_core.model import Location, PageAddress, PageFormat, StoredPage, Topic
from wings_core.partitions import Partition

PROBLEMS_MAX = 1_000
"""Most problems that a report describes; further ones are only counted."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A fault, and its location; fields that do not apply are None."""

    message: str
    topic: str | None = None
    """Full name of the topic, or of the namespace whose topics cannot be listed."""
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
    """The unpublished stage of the page."""

    def __str__(self) -> str:
        """Return the location and the problem in one line."""
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
    """The totals of what was checked, and the problems found."""

    topics: int = 0
    partitions: int = 0
    pages: int = 0
    rows: int = 0
    """Rows of readable pages."""
    bytes: int = 0
    """Bytes of all pages."""
    stages: int = 0
    """Unpublished stages; their pages are counted in `pages`."""
    problems: tuple[Problem, ...] = ()
    """The first `PROBLEMS_MAX`."""
    problems_total: int = 0
    unreferenced_folios: tuple[str, ...] = ()
    """Names of files that no page refers to. Not an error: a running server deletes them."""

    @property
    def ok(self) -> bool:
        """Whether no problem was found."""
        return self.problems_total == 0


@dataclass(frozen=True, slots=True)
class Page:
    """A page to check, of the log or of a stage."""

    topic: Topic
    partition: Partition
    rows: int
    address: PageAddress
    start_offset: int | None = None
    """First offset; None in a stage."""
    end_offset: int | None = None
    stage: str | None = None
    format: PageFormat = PageFormat.PLAIN
    first_row: int | None = None
    """First row of a slice of a page, 0-based; None for a whole page."""
    bytes: int = 0
    """Stored bytes of the rows."""
    schema_version: int = 1
    """Schema version that the page is written in."""

    @property
    def written(self) -> Topic:
        """The topic, with the schema of the page.

        Raises:
            StorageCorrupt: The topic has no such version.
        """
        if not 1 <= self.schema_version <= self.topic.schema_versions:
            raise StorageCorrupt(
                f"it has schema version {self.schema_version}, and the topic has "
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
