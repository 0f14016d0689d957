"""The worker pool: a few partitions are maintained at once, each for a turn of bounded length."""

from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

from wings_core.errors import Unavailable
from wings_core.maintain.report import MaintenanceReport
from wings_core.model import PartitionState, Topic

WORKERS = 4
"""Partitions that are worked on at the same time, by all passes together."""


@dataclass(slots=True)
class Turn:
    """One worker's bounded time on a partition, and what it did."""

    topic: Topic
    state: PartitionState
    """Of the partition, at some time before."""
    patient: bool
    is_first: bool = True
    """Of its pass."""
    report: MaintenanceReport = field(default_factory=MaintenanceReport)
    unfinished: bool = False
    """Whether it ended because it was long."""

    @property
    def names(self) -> tuple[str, str]:
        """Of partition and topic, for a person."""
        return self.state.partition, str(self.topic.name)


class WorkerPool:
    """The turns of one pass, as many at once as there are workers; for one thread.

    Args:
        workers: Those of all passes.
        take_turn: What they do; it says what was done.
        progress: Called after each turn with what was done so far.
        patient: Whether a partition that is not finished gets another turn.
    """

    def __init__(
        self,
        workers: ThreadPoolExecutor,
        take_turn: Callable[[Turn], MaintenanceReport],
        progress: Callable[[MaintenanceReport], None] | None,
        *,
        patient: bool,
    ) -> None:
        self._workers = workers
        self._take_turn = take_turn
        self._progress = progress
        self._patient = patient
        self._running: dict[Future[MaintenanceReport], Turn] = {}
        self._report = MaintenanceReport()

    def begin(self, turn: Turn) -> None:
        """Begin a turn, once there is a worker for it.

        Raises:
            Unavailable: The server is stopping.
        """
        self._finish(WORKERS - 1)
        self._submit(turn)

    def finish(self) -> None:
        """Wait until all turns have ended.

        Raises:
            Unavailable: The server is stopping.
        """
        self._finish(0)

    def collect(self) -> MaintenanceReport:
        """Wait for what is still under way, also where one turn has failed; say what was done."""
        for future in wait(self._running).done:
            if future.exception() is None:
                self._report.add(future.result())
        return self._report

    def _finish(self, running_max: int) -> None:
        while len(self._running) > running_max:
            for future in wait(self._running, return_when=FIRST_COMPLETED).done:
                turn = self._running.pop(future)
                self._report.add(future.result())
                if self._progress is not None:
                    self._progress(self._report)
                if turn.unfinished and self._patient:
                    self._submit(Turn(turn.topic, turn.state, patient=True, is_first=False))

    def _submit(self, turn: Turn) -> None:
        try:
            self._running[self._workers.submit(self._take_turn, turn)] = turn
        except RuntimeError as error:
            raise Unavailable("the server is stopping") from error
