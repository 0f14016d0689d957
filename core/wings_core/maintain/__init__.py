"""Maintenance: old messages go when their time is over."""

from wings_core.maintain.maintainer import Maintainer
from wings_core.maintain.report import MaintenanceReport

__all__ = ["Maintainer", "MaintenanceReport"]
