"""The worker pool: a few partitions are maintained at once, each by a task of bounded length."""

from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

from wings_core.errors import Unavailable
from wings_core.metadata.maintenance import Finished
from wings_core.model import PartitionState, Topic

WORKERS = 4
"""Partitions that are worked on at the same time, by all passes together."""


@dataclass(slots=True)
class MaintenanceReport:
    """Counts of one pass, or of all passes of a process."""

    passes: int = 0
    seconds: float = 0.0
    """Seconds that they took."""
    partitions: int = 0
    """Partitions that something was due in."""
    partitions_busy: int = 0
    """Partitions of them that were left to another node; a table counts as one."""
    failures: int = 0
    """Partitions of them whose maintenance failed; the next pass tries again."""
    pages_expired: int = 0
    rows_expired: int = 0
    bytes_expired: int = 0
    segments: int = 0
    """Segments written to the remote store."""
    segment_bytes: int = 0
    """Their bytes, as stored."""
    pages_merged: int = 0
    rows_merged: int = 0
    bytes_merged: int = 0
    """Bytes of the pages that segments took the place of, as they were stored."""

    def add(self, other: "MaintenanceReport") -> None:
        """Add another report's counts to these."""
        for name in MaintenanceReport.__dataclass_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass(slots=True)
class PartitionTask:
    """A bounded time of maintenance of a partition, and what it did."""

    topic: Topic
    state: PartitionState
    """The state of the partition, at some time before."""
    patient: bool
    finished: Finished | None = None
    """The messages that the topic's groups have finished, where these may go."""
    is_first: bool = True
    """Whether it is the first task of the partition in its pass."""
    report: MaintenanceReport = field(default_factory=MaintenanceReport)
    unfinished: bool = False
    """Whether it ended because it was long."""

    @property
    def names(self) -> tuple[str, str]:
        """The partition and its topic, for a person."""
        return self.state.partition, str(self.topic.name)


class TaskPool:
    """The tasks of one pass, as many at once as there are workers; for one thread.

    Args:
        workers: Those of all passes.
        run_task: Carries out a task on a worker's thread; returns what was done.
        progress: Called after each task with what was done so far.
        patient: Whether a partition that is not finished gets another task.
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
        """Begin a task, once there is a worker for it.

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
        """Wait for what is still under way, also where one task has failed; say what was done."""
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
