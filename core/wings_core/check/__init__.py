"""The offline check: the databases of a directory, and every page of a log against metadata."""

from wings_core.check.directory import check_directory, check_nodes
from wings_core.check.log import check_log
from wings_core.check.report import PROBLEMS_MAX, CheckReport, Problem

__all__ = ["PROBLEMS_MAX", "CheckReport", "Problem", "check_directory", "check_log", "check_nodes"]
