"""What maintenance did."""

from dataclasses import dataclass


@dataclass(slots=True)
class MaintenanceReport:
    """Counts of one pass, or of all passes of a process."""

    passes: int = 0
    seconds: float = 0.0
    """That they took."""
    partitions: int = 0
    """Those that something was due in."""
    partitions_busy: int = 0
    """Those of them that another node works on, which were left to it; a table counts as one."""
    failures: int = 0
    """Those of them where it failed; it is tried again at the next pass."""
    pages_expired: int = 0
    rows_expired: int = 0
    bytes_expired: int = 0
    segments: int = 0
    """Written to the remote store."""
    segment_bytes: int = 0
    """Of those, as stored."""
    pages_merged: int = 0
    rows_merged: int = 0
    bytes_merged: int = 0
    """Of the pages that segments took the place of, as they were stored."""

    def add(self, other: "MaintenanceReport") -> None:
        """Add another report's counts to these."""
        for name in MaintenanceReport.__dataclass_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))
