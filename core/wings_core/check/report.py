"""What a check found."""

from dataclasses import dataclass

from wings_core.model import Location, PartitionState, Topic

PROBLEMS_MAX = 1_000
"""Problems that a report describes; the others are only counted."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is wrong, and where; what does not apply is None."""

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
    """Where the page begins in the file, in bytes."""

    def __str__(self) -> str:
        """Say where and what in one line."""
        where = [self.topic or "metadata"]
        if self.partition is not None:
            where.append(f"partition {self.partition}")
        if self.start_offset is not None:
            where.append(f"offsets {self.start_offset} to {self.end_offset}")
        if self.folio is not None:
            where.append(f"file {self.folio} at byte {self.position}")
        return f"{', '.join(where)}: {self.message}"


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What was checked, and what is wrong with it."""

    topics: int
    partitions: int
    pages: int
    rows: int
    """Rows of the pages that could be read."""
    bytes: int
    """Bytes of all pages."""
    problems: tuple[Problem, ...]
    """The first `PROBLEMS_MAX`."""
    problems_total: int
    unreferenced_folios: tuple[str, ...]
    """Files that no page refers to, by name: no error, a running server deletes them."""

    @property
    def ok(self) -> bool:
        """Whether no problem was found."""
        return self.problems_total == 0


def page_problem(message: str, topic: Topic, state: PartitionState, location: Location) -> Problem:
    """Return a problem of one page."""
    return Problem(
        message,
        str(topic.name),
        state.partition,
        location.start_offset,
        location.end_offset,
        location.address.folio,
        location.address.position,
    )
