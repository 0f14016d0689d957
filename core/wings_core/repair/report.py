"""What a repair kept, and what is lost."""

from dataclasses import dataclass
from pathlib import Path

from wings_core.check import Problem


@dataclass(frozen=True, slots=True)
class RepairReport:
    """What a repair kept, and what is lost."""

    path: Path
    """The new directory."""
    topics: int
    partitions: int
    pages: int
    rows: int
    """Of the pages that can be read."""
    found: tuple[str, ...]
    """What is wrong with the files of the old directory: no loss by itself."""
    rebuilt: tuple[str, ...]
    """What was lost and is there again."""
    lost: tuple[Problem, ...]
    """What is not."""

    @property
    def ok(self) -> bool:
        """Whether nothing is lost."""
        return not self.lost
