"""What maintenance did."""

from dataclasses import dataclass


@dataclass(slots=True)
class MaintenanceReport:
    """Counts of one pass, or of all passes of a process."""

    partitions: int = 0
    """Those that something was due in."""
    partitions_busy: int = 0
    """Those of them that another node works on, which were left to it."""
    failures: int = 0
    """Those of them where it failed; it is tried again at the next pass."""
    pages_expired: int = 0
    rows_expired: int = 0
    bytes_expired: int = 0

    def add(self, other: "MaintenanceReport") -> None:
        """Add another report's counts to these."""
        for name in MaintenanceReport.__dataclass_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))
