"""Maintenance: the thread that archives messages at the delivery limit."""

import logging
import threading

from wings_core.errors import WingsError
from wings_core.model import ShareGroup
from wings_core.share.coordinator.core import CoordinatorCore
from wings_core.share.coordinator.group_table import GroupTable
from wings_core.share.quorum.run import Runner
from wings_core.times import Deadline

MAINTENANCE_SECONDS = 1.0
"""Interval at which messages at the delivery limit are looked for, also without a call."""

SWEEP_SECONDS = 60.0
"""How often groups without waiting members are looked up, to forget deleted ones."""

SWEEP_MAX = 1_000
"""Groups looked at then: the first that are known, which make way for others when they are gone."""

_logger = logging.getLogger(__name__)


class Maintenance:
    """Maintains the groups that are used on this node.

    Args:
        groups: Those groups.
        core: Archives their messages.
        runner: Carries that out.
    """

    def __init__(self, groups: GroupTable, core: CoordinatorCore, runner: Runner) -> None:
        self._groups = groups
        self._core = core
        self._runner = runner
        self._lock = threading.Lock()
        self._called = threading.Event()
        self._is_stopped = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread, unless it runs."""
        with self._lock:
            if self._thread is None and not self._is_stopped:
                self._thread = threading.Thread(target=self._run, name="wings-share", daemon=True)
                self._thread.start()

    def call(self) -> None:
        """Archive now."""
        self._called.set()

    def stop(self) -> None:
        """End the thread; blocks for what it has begun."""
        self._is_stopped = True
        self._called.set()
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        sweep = Deadline.after(SWEEP_SECONDS)
        while True:
            self._called.wait(MAINTENANCE_SECONDS)
            self._called.clear()
            if self._is_stopped:
                return
            groups = self._groups.known()
            if sweep.passed:
                self._groups.watchers.look(groups[:SWEEP_MAX])
                self._groups.drop_unused()
                sweep = Deadline.after(SWEEP_SECONDS)
            for group in groups:
                self._archive(group)

    def _archive(self, known: ShareGroup) -> None:
        """Archive what expired at the delivery limit, also where no member acquires."""
        partitions = self._core.table.exhausted(known)
        if partitions:  # Archiving by an old configuration cannot be undone.
            self._groups.watchers.look([known])
        group = self._groups.get(known.uuid)
        if group is None:
            return
        for partition in partitions:
            try:
                bounds = self._groups.bounds(group, partition)
                if isinstance(bounds, WingsError):
                    raise bounds
                self._runner.run(self._core.leases.archive_exhausted(group, partition, bounds))
                self._groups.changed(group.uuid, partition)
            except WingsError as error:
                _logger.info("nothing was archived of %s: %s", group.name, error.message)
            except Exception:
                _logger.exception("archiving messages of %s failed", group.name)
