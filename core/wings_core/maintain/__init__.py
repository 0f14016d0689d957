"""Maintenance: old messages move to the remote store, and go when their time is over."""

from wings_core.maintain.maintainer import Maintainer, TableCommits
from wings_core.maintain.report import MaintenanceReport
from wings_core.maintain.tiering import Tiering

__all__ = ["Maintainer", "MaintenanceReport", "TableCommits", "Tiering"]
