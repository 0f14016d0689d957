"""Maintenance: drains small pushes, tiers old messages, deletes expired ones."""

from wings_core.maintain.maintainer import Maintainer, TableCommits
from wings_core.maintain.tiering import Tiering
from wings_core.maintain.workers import MaintenanceReport

__all__ = ["Maintainer", "MaintenanceReport", "TableCommits", "Tiering"]
