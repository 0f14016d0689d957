"""Servers that kill themselves at a step of a merge or of a commit to a table; see `set_trap`."""

import os
import signal
from typing import Any

STEPS = {
    "replace": "a merged segment takes the place of its pages in metadata",
    "plan": "metadata has what the commit will do",
    "write": "the catalog's metadata file is written, which no table has yet",
    "commit": "the table has the snapshot",
    "confirm": "metadata knows that it has",
    "expire": "old snapshots are out of the table, and their files are there",
    "delete": "one object that nothing refers to is deleted",
    "release": "retention took files out of the table, and the log has them still",
    "forget": "the table of a deleted topic is dropped, and metadata has its files",
}
"""By name, what is done when a server that is killed after the step ends."""


def prepare() -> None:
    """Let leases of servers that were killed end soon, and snapshots too."""
    from wings_core.maintain import workers
    from wings_core.tables import catalog

    workers.LEASE_SECONDS = 1.0
    catalog.SNAPSHOTS_KEPT_SECONDS = 0.2


def set_trap(trap: str) -> None:
    """Let this process kill itself.

    Args:
        trap: A step, when, and how often it is done before: `commit before 3` ends it as it begins
            the third, `commit after 3` when it has done it.
    """
    from pyiceberg.catalog import MetastoreCatalog
    from pyiceberg.table.update.snapshot import ExpireSnapshots

    from wings_core.metadata.store.maintenance import DatabaseMaintenance
    from wings_core.metadata.store.tables import DatabaseTables
    from wings_core.storage.objects.directory import DirectoryObjects
    from wings_core.tables import Tables
    from wings_core.tables.catalog import Catalog

    owners: dict[str, tuple[Any, str]] = {
        "replace": (DatabaseMaintenance, "replace"),
        "plan": (DatabaseTables, "plan"),
        "write": (MetastoreCatalog, "_write_metadata"),
        "commit": (Catalog, "commit"),
        "confirm": (DatabaseTables, "confirm"),
        "expire": (ExpireSnapshots, "commit"),
        "delete": (DirectoryObjects, "delete"),
        "release": (Tables, "release"),
        "forget": (DatabaseTables, "forget"),
    }
    assert owners.keys() == STEPS.keys()
    step, when, number = trap.split()
    owner, method = owners[step]
    real = getattr(owner, method)
    left = int(number)

    def call(*arguments: Any, **named: Any) -> Any:
        nonlocal left
        left -= 1
        is_last = left == 0  # Other threads may go on counting.
        if is_last and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = real(*arguments, **named)
        if is_last:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    is_static = isinstance(vars(owner).get(method), staticmethod)
    setattr(owner, method, staticmethod(call) if is_static else call)
