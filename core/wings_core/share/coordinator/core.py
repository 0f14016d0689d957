"""CoordinatorCore: leases messages and takes acknowledgements, without threads or clocks.

    partition table ─▶ leases:      select ─▶ hold at a majority
               └─────▶ acknowledge: validate ─▶ dead letters, leases proved ─▶ tombstones, releases

`finalize` is what the two have in common. Beside it are the threads of a coordinator, by which
members wake in time, messages are archived, and groups are looked up.
"""

import logging
import random
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

from wings_core.errors import WingsError
from wings_core.model import ShareGroup
from wings_core.partitions import Partition
from wings_core.share.coordinator.finalize import Finalizer
from wings_core.share.coordinator.groups import PartitionTable, ShareGroupTable
from wings_core.share.coordinator.lease import Leases
from wings_core.share.coordinator.settle import Settling
from wings_core.share.model import Clock, DeadLetterSink
from wings_core.share.quorum.quorum import HoldQuorum
from wings_core.share.quorum.run import Runner
from wings_core.times import Deadline

MAINTENANCE_SECONDS = 1.0
"""Interval at which messages at the delivery limit are looked for, also without a call."""

SWEEP_SECONDS = 60.0
"""Interval at which groups without waiting members are looked up, to forget deleted ones."""

SWEEP_MAX = 1_000
"""Groups looked at then: the first that are known, which make way for others when they are gone."""

FAULT_SECONDS = 1.0
"""The pause after a step that failed by a fault of the server."""

_logger = logging.getLogger(__name__)


class CoordinatorCore:
    """The procedures of a coordinator.

    Args:
        quorum: The majority of the replicas.
        dead_letters: None: no group has any.
        clock: The clock of leases.
        rng: For back-off.
        id: In the leases; None: a new one.
        changed: Called with a group's UUID and a partition that may have something available.
        archived: Called with a group's UUID and the number of its messages that were archived.
        met_limit: Called when messages are at the delivery limit, which are to be archived.

    All three are called outside the lock.

    Attributes:
        id: In the leases; unique for each start.
        now: Returns the time that leases are counted by.
        table: The partitions that are known here.
        leases: Leases their messages, and archives those at the delivery limit.
        settling: Carries out acknowledgements of them.
    """

    finalizer_type = Finalizer
    leases_type = Leases
    settling_type = Settling

    def __init__(
        self,
        quorum: HoldQuorum,
        dead_letters: DeadLetterSink | None,
        clock: Clock,
        rng: random.Random,
        id: str | None = None,  # noqa: A002 - of the coordinator.
        *,
        changed: Callable[[str, Partition], None] = lambda _group, _partition: None,
        archived: Callable[[str, int], None] = lambda _group, _messages: None,
        met_limit: Callable[[], None] = lambda: None,
    ) -> None:
        self.id = id or uuid.uuid4().hex
        self.now = clock.now
        self.table = PartitionTable(quorum, clock, self.id, met_limit)
        finalizer = self.finalizer_type(self.table, quorum, dead_letters, clock, archived)
        self.leases = self.leases_type(self.table, quorum, finalizer, clock, rng, changed)
        self.settling = self.settling_type(self.id, self.table, finalizer, clock, changed)


class Loop:
    """A thread that does something when it is called, and from time to time.

    Args:
        name: Its name.
        step: Called on the thread; returns the longest time in seconds until the next step.
    """

    def __init__(self, name: str, step: Callable[[], float]) -> None:
        self._name = name
        self._step = step
        self._lock = threading.Lock()
        self._called = threading.Event()
        self._is_stopped = False
        self._thread: threading.Thread | None = None

    def call(self) -> None:
        """Do the next step now; starts the thread, unless it runs."""
        self._called.set()
        self.start()

    def start(self) -> None:
        """Start the thread, unless it runs."""
        if self._thread is None:
            with self._lock:
                if self._thread is None and not self._is_stopped:
                    thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                    thread.start()
                    self._thread = thread

    def stop(self) -> None:
        """End the thread; blocks for the step that it has begun."""
        with self._lock:
            self._is_stopped = True
            thread = self._thread
        self._called.set()
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        while not self._is_stopped:
            self._called.clear()
            if not self._is_stopped:  # It may have been stopped just before that.
                self._called.wait(self._next_wait())

    def _next_wait(self) -> float:
        try:
            return self._step()
        except Exception:
            _logger.exception("a step of %s failed", self._name)
            return FAULT_SECONDS


@dataclass(slots=True, eq=False)
class Archiving:
    """Archives the messages at the delivery limit of the groups that are used on this node.

    Args:
        groups: The groups.
        core: Archives their messages.
        runner: Carries that out.
    """

    _groups: ShareGroupTable
    _core: CoordinatorCore
    _runner: Runner
    _sweep: Deadline = field(init=False, default_factory=lambda: Deadline.after(SWEEP_SECONDS))

    def step(self) -> float:
        """Archive messages; blocks for the replicas, and for dead letters."""
        groups = self._groups.known()
        if self._sweep.passed:
            self._groups.look_up(groups[:SWEEP_MAX])
            self._groups.drop_unused()
            self._sweep = Deadline.after(SWEEP_SECONDS)
        for group in groups:
            self._archive(group)
        return MAINTENANCE_SECONDS

    def _archive(self, known: ShareGroup) -> None:
        """Archive what expired at the delivery limit, also where no member acquires."""
        partitions = self._core.table.exhausted(known)
        if partitions:  # Archiving by an old configuration cannot be undone.
            self._groups.look_up([known])
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
