"""The worker pool: maintains a few partitions at once, in tasks of bounded length."""

from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

from wings_core.errors import Unavailable
from wings_core.metadata.maintenance import Finished
from wings_core.model import Expired, PartitionState, Topic

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
