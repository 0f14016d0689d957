"""Repair of a damaged directory: builds a new directory, and reports the losses."""

from wings_core.repair.directory import RepairReport, repair_directory

__all__ = ["RepairReport", "repair_directory"]
