"""The repair of a damaged directory: a new one, and what is lost."""

from wings_core.repair.directory import repair_directory
from wings_core.repair.report import RepairReport

__all__ = ["RepairReport", "repair_directory"]
