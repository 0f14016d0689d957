"""Workers of maintenance: tasks of bounded length, and the leases that they work under.

A lease lasts as long as the work under it, and expires soon after its node vanishes.
"""

import logging
import threading
import time
import uuid
from collections.abc import Callable, Generator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field

from wings_core.errors import Unavailable, WingsError
from wings_core.metadata.maintenance import Finished, Maintenance, MaintenanceLease
from wings_core.model import Expired, PartitionState, Topic

_logger = logging.getLogger(__name__)


WORKERS = 4
"""Partitions maintained at a time, by all passes together."""


@dataclass(slots=True)
class MaintenanceReport:
    """Counts of one pass, or of all passes of a process."""

    passes: int = 0
    seconds: float = 0.0
    """Duration in seconds."""
    partitions: int = 0
    """Partitions with due maintenance."""
    partitions_busy: int = 0
    """Due partitions left to another node; a table counts as one."""
    failures: int = 0
    """Due partitions whose maintenance failed; the next pass retries."""
    pages_expired: int = 0
    rows_expired: int = 0
    bytes_expired: int = 0
    segments: int = 0
    """Segments written to the remote store."""
    segment_bytes: int = 0
    """Stored bytes of these segments."""
    pages_merged: int = 0
    rows_merged: int = 0
    bytes_merged: int = 0
    """Stored bytes of the pages that segments replaced."""

    def add_expired(self, expired: Expired) -> None:
        """Add what a step deleted."""
        self.pages_expired += expired.pages
        self.rows_expired += expired.rows
        self.bytes_expired += expired.bytes

    def add(self, other: "MaintenanceReport") -> None:
        """Add another report's counts to this one's."""
        for name in MaintenanceReport.__dataclass_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass(slots=True)
class PartitionTask:
    """A task of bounded time on one partition."""

    topic: Topic
    state: PartitionState
    """State of the partition when the task was planned."""
    patient: bool
    finished: Finished | None = None
    """Messages finished by all groups, if the topic's configuration deletes them."""
    is_first: bool = True
    """Whether this is the partition's first task in its pass."""
    report: MaintenanceReport = field(default_factory=MaintenanceReport)
    unfinished: bool = False
    """Whether the task ended because its time was over."""

    @property
    def names(self) -> tuple[str, str]:
        """Partition and topic, for messages."""
        return self.state.partition, str(self.topic.name)


class TaskPool:
    """The tasks of one pass, run on shared workers; for one thread.

    Args:
        workers: Workers of all passes.
        run_task: Runs a task on a worker's thread, and returns its report.
        progress: Called after each task with the totals so far.
        patient: Whether an unfinished partition gets further tasks.
    """

    def __init__(
        self,
        workers: ThreadPoolExecutor,
        run_task: Callable[[PartitionTask], MaintenanceReport],
        progress: Callable[[MaintenanceReport], None] | None,
        *,
        patient: bool,
    ) -> None:
        self._workers = workers
        self._run_task = run_task
        self._progress = progress
        self._patient = patient
        self._running: dict[Future[MaintenanceReport], PartitionTask] = {}
        self._report = MaintenanceReport()

    def begin(self, task: PartitionTask) -> None:
        """Start a task; blocks until a worker is free.

        Raises:
            Unavailable: The server is stopping.
        """
        self._finish(WORKERS - 1)
        self._submit(task)

    def finish(self) -> None:
        """Wait until all tasks have ended.

        Raises:
            Unavailable: The server is stopping.
        """
        self._finish(0)

    def collect(self) -> MaintenanceReport:
        """Wait for all tasks, even if one failed; returns the totals."""
        for future in wait(self._running).done:
            if future.exception() is None:
                self._report.add(future.result())
        return self._report

    def _finish(self, running_max: int) -> None:
        while len(self._running) > running_max:
            for future in wait(self._running, return_when=FIRST_COMPLETED).done:
                task = self._running.pop(future)
                self._report.add(future.result())
                if self._progress is not None:
                    self._progress(self._report)
                if task.unfinished and self._patient:
                    self._submit(
                        PartitionTask(task.topic, task.state, True, task.finished, is_first=False)
                    )

    def _submit(self, task: PartitionTask) -> None:
        try:
            self._running[self._workers.submit(self._run_task, task)] = task
        except RuntimeError as error:
            raise Unavailable("the server is stopping") from error


LEASE_SECONDS = 60.0
"""Duration of a lease, after which another node can take over from a vanished one."""

PROLONGATIONS = 3
"""Prolongations per duration of a lease, so that one of them may fail."""

STEP_SECONDS_MAX = 600.0
"""Longest step of the work, beyond which a lease is no longer prolonged."""


class HeldLease:
    """A held lease, for the thread that works under it."""

    def __init__(self, lease: MaintenanceLease, is_closing: Callable[[], bool]) -> None:
        self.lease = lease
        self._is_closing = is_closing
        self.stepped_at = time.monotonic()
        self.lost = False
        self.released = False

    def proceed(self) -> bool:
        """Record a finished step; returns False if the work should stop.

        The work should stop when the lease was lost, or all leases are closed. Changes are fenced
        by the lease in any case; this avoids useless work.
        """
        self.stepped_at = time.monotonic()
        return not (self.lost or self._is_closing())


class LeaseKeeper:
    """Acquires leases, and prolongs them on a background thread.

    Args:
        maintenance: Grants leases, each of `LEASE_SECONDS` without prolongation.
    """

    def __init__(self, maintenance: Maintenance) -> None:
        self._maintenance = maintenance
        self._seconds = LEASE_SECONDS
        self._held: set[HeldLease] = set()
        self._lock = threading.Lock()
        """Guards the set; a leaf lock."""
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="wings-lease-keeper", daemon=True)
        self._thread.start()

    @contextmanager
    def hold(self, name: str) -> Generator[HeldLease | None]:
        """Hold a lease during the block; yields None if another holder has it.

        Each call is a new holder, so leases also exclude other threads of this process.

        Args:
            name: Name of the leased resource.
        """
        holder = uuid.uuid4().hex
        token = self._maintenance.acquire_lease(name, holder, self._seconds)
        if token is None:
            yield None
            return
        held = HeldLease(MaintenanceLease(name, holder, token), self._closing.is_set)
        with self._lock:
            self._held.add(held)
        try:
            yield held
        finally:
            with self._lock:
                self._held.discard(held)
            # Set first, so that a prolongation in progress releases the lease itself.
            held.released = True
            self._maintenance.release_lease(name, holder)

    def close(self) -> None:
        """Stop the work under all leases at its next step, and prolong no lease."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closing.wait(self._seconds / PROLONGATIONS):
            with self._lock:
                held = list(self._held)
            for each in held:
                if time.monotonic() - each.stepped_at < STEP_SECONDS_MAX:
                    self._prolong(each)

    def _prolong(self, held: HeldLease) -> None:
        lease = held.lease
        try:
            token = self._maintenance.acquire_lease(lease.name, lease.holder, self._seconds)
            held.lost = held.lost or token != lease.token
            if held.released:
                self._maintenance.release_lease(lease.name, lease.holder)
        except WingsError as error:
            _logger.warning("could not prolong the lease of %.120s: %s", lease.name, error)
        except BaseException:  # The others must still be prolonged.
            _logger.exception("could not prolong the lease of %.120s", lease.name)
