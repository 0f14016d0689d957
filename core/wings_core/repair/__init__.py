"""The repair of a damaged directory: a new one, and what is lost."""

from wings_core.repair.directory import RepairReport, repair_directory

__all__ = ["RepairReport", "repair_directory"]
