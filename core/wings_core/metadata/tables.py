"""What metadata keeps of topics that are tables: which segments belong to which commit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from wings_core.metadata.maintenance import Lease
from wings_core.partitions import Partition


@dataclass(frozen=True, slots=True)
class TableSegment:
    """A file of a table."""

    folio: str
    partition: Partition
    end_offset: int
    """The last of its rows, inclusive."""
    rows: int
    added: int
    """The number of the commit that puts it into the table."""
    removed: int | None = None
    """Of the one that takes it out; None: it stays."""


class TableStates(Protocol):
    """Remembers the files of tables, and keeps those from being deleted, until it is told else.

    A commit has its number here before it is made, so that after a crash the next node makes the
    same one again, or finds it made.
    """

    def tables(self) -> Mapping[str, str]:
        """Return the identifier of each table, by the UUID of its topic, deleted ones too."""
        ...

    def begin(self, topic_uuid: str, identifier: str) -> int:
        """Remember that a topic is a table; return the last commit known to be made, 0 for none."""
        ...

    def segments(self, topic_uuid: str) -> list[TableSegment]:
        """Return what is known of the files of a table, by name."""
        ...

    def plan(
        self,
        topic_uuid: str,
        number: int,
        add: Sequence[TableSegment],
        remove: Sequence[str],
        lease: Lease,
    ) -> bool:
        """Say what the commit of a number will do, in one transaction.

        Returns:
            False where nothing was changed: the lease was lost, or a file to add is no longer one
            of the log's.
        """
        ...

    def confirm(self, topic_uuid: str, number: int) -> None:
        """Say that a commit is made: files that it took out may be deleted."""
        ...

    def adopt(
        self, topic_uuid: str, number: int, segments: Sequence[TableSegment], lease: Lease
    ) -> bool:
        """Replace all that is known of a table's files; False where the lease was lost.

        Args:
            topic_uuid: Whose table.
            number: Of its last commit.
            segments: What it has.
            lease: Under which it was looked at.
        """
        ...

    def forget(self, topic_uuid: str) -> None:
        """Forget a table and its files."""
        ...
