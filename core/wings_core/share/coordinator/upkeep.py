"""Upkeep: what a coordinator does by itself, on threads of its own.

A `Loop` is such a thread. `Archiving` archives what has reached the delivery limit, also where no
member acquires.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from wings_core.errors import WingsError
from wings_core.model import Lease, PartitionState, ShareGroup
from wings_core.partitions import Partition
from wings_core.share.coordinator.finalize import Finalizer, SettleEntry, pieces
from wings_core.share.coordinator.lease import LeasePicks, Leases, hold_of
from wings_core.share.coordinator.partitions import PartitionTable, TrackedPartition
from wings_core.share.model import Acknowledgement, Clock
from wings_core.share.quorum.quorum import HoldQuorum
from wings_core.share.replica.requests import CountedRange, Procedure, ReleaseEntry

ARCHIVE_RETRY_SECONDS = 1.0
"""The pause before messages that could not be archived are tried again."""

UNACKNOWLEDGED = "never acknowledged: the member died, or its lock ended"
"""Error of a message at the delivery limit that no member acknowledged or released."""

FAULT_SECONDS = 1.0
"""The pause after a step that failed by a fault of the server."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Archiving:
    """The procedure by which messages at the delivery limit are archived.

    Args:
        table: The partitions.
        quorum: Holds at a majority.
        leases: Notes what was held.
        finalizer: Writes the dead letters and tombstones.
        clock: Counts leases.
        changed: Called with a group's UUID and a partition, outside the lock, when something may
            have become available.
    """

    _table: PartitionTable
    _quorum: HoldQuorum
    _leases: Leases
    _finalizer: Finalizer
    _clock: Clock
    _changed: Callable[[str, Partition], None]

    def archive(self, group: ShareGroup, log: PartitionState) -> Procedure[None]:
        """Archive messages of a loaded partition that are at the delivery limit.

        Raises:
            Unavailable: No majority answered.
        """
        config, tracked = group.config, self._table.get(group, log.partition)
        with self._table.lock:
            tracked.state.advance(self._clock.now(), log.log_start_offset)
            picks = tracked.state.select_exhausted(config.delivery_limit, ordered=config.is_ordered)
            lease = self._table.next_lease("")
        if not picks:
            return
        asked_at = self._clock.now()
        request = hold_of(group, tracked, LeasePicks(0, lease, "", picks))
        (held,) = yield from self._quorum.hold([request])
        until = self._quorum.expiry(asked_at, config.lock_duration_ms)
        if isinstance(held, WingsError):
            self._finalizer.put_back(tracked, picks)
            raise held
        exhausted: list[CountedRange] = []
        with self._table.lock:
            self._leases.learn(tracked, held)
            # Fewer deliveries may be agreed on than were known here: not at the limit then.
            fewer = [each for each in held.granted if each.count < config.delivery_limit]
            for each in held.granted:
                tracked.state.grant(each.first, each.last, lease, until, each.count + 1)
                if each.count >= config.delivery_limit and not (config.is_ordered and fewer):
                    exhausted.append(each)
        if left := [each for each in held.granted if each not in exhausted]:
            yield from self._finalizer.release_undelivered(tracked, lease, left)
        if exhausted:
            # It may take long: another is to see what becomes due in the partition meanwhile.
            self._changed(tracked.key.group_uuid, log.partition)
            yield from self._bury(group, tracked, exhausted, lease, until)
        if held.finished:
            yield from self._finalizer.catch_up(group, tracked)

    def _bury(
        self,
        group: ShareGroup,
        tracked: TrackedPartition,
        exhausted: Sequence[CountedRange],
        lease: Lease,
        until: float,
    ) -> Procedure[None]:
        """Write the dead letters and tombstones of ranges at the delivery limit, piece by piece.

        All of them stay held meanwhile. What cannot be archived now is released, and tried again
        after a pause.

        Args:
            group: With its configuration as it is now.
            tracked: The partition.
            exhausted: With the deliveries made of each.
            lease: Holds all of them.
            until: When it is over, by the coordinator's clock.
        """
        partition = tracked.key.partition
        lists = [
            [
                # In place of the acknowledgement that never came.
                SettleEntry(
                    Acknowledgement(
                        partition, part.first, part.last, "", "release", reason=UNACKNOWLEDGED
                    ),
                    part.first,
                    part.last,
                    lease,
                    until,
                    [part],
                )
                for part in piece
            ]
            for piece in pieces(group, exhausted)
        ]
        for number, entries in enumerate(lists):
            left = [entry for each in lists[number:] for entry in each]
            failed = yield from self._finalizer.write_dead_letters(
                group, tracked, entries, left, ""
            )
            if failed is None:
                failed = yield from self._finalizer.finish(tracked, (), entries, 0, "")
            if failed is not None:
                _logger.warning("messages at the delivery limit stay: %s", failed.message)
                delay_ms = int(ARCHIVE_RETRY_SECONDS * 1_000)
                yield from self._finalizer.release(
                    tracked,
                    [ReleaseEntry(each.first, each.last, lease, 0, delay_ms) for each in left],
                )
                return


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
