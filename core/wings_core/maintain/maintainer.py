"""The maintainer: goes through the partitions from time to time, and works where something is due.

One node at a time works on a partition: whoever has its lease. A node that is stopped loses it by
itself, and every step is one transaction that is right whoever else has worked meanwhile.
"""

import logging
import threading
import uuid
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager

from wings_core.errors import NotFound, OffsetOutOfRange, Unavailable, WingsError
from wings_core.maintain.report import MaintenanceReport
from wings_core.maintain.retention import is_due, retain
from wings_core.maintain.tiering import Tiering
from wings_core.metadata.interfaces import Admin, Metadata, OffsetRegistry
from wings_core.metadata.maintenance import Lease, Maintenance
from wings_core.model import PartitionState, Topic
from wings_core.times import now_us

LEASE_SECONDS = 60.0
"""How long a node that vanished keeps the others from a partition."""

PASS_SECONDS_MAX = 600.0
"""How long a pass that was asked for waits for the one under way."""

_logger = logging.getLogger(__name__)


class Maintainer:
    """Drops messages that retention keeps no longer, and moves old ones to the remote store.

    Works from time to time on a thread of its own, and whenever asked.

    Args:
        metadata: Of the log.
        seconds: Between two passes.
        reclaim: Called when pages may have gone, so that their disk space is given back.
        tiering: Moves old messages; None: all stay where they are.
        clock: Microseconds since the epoch, of this node.
    """

    def __init__(
        self,
        metadata: Metadata,
        seconds: float,
        reclaim: Callable[[], None],
        tiering: Tiering | None = None,
        clock: Callable[[], int] = now_us,
    ) -> None:
        self._admin: Admin = metadata.admin
        self._registry: OffsetRegistry = metadata.registry
        self._maintenance: Maintenance = metadata.maintenance
        self._seconds = seconds
        self._reclaim = reclaim
        self._tiering = tiering
        self._clock = clock
        self._holder = uuid.uuid4().hex
        self._running = threading.Lock()
        self._closing = threading.Event()
        self.total = MaintenanceReport()
        """What all passes did since the start."""
        self._thread = threading.Thread(target=self._loop, name="wings-maintainer", daemon=True)
        self._thread.start()

    def run(
        self,
        topic: Topic | None = None,
        progress: Callable[[MaintenanceReport], None] | None = None,
    ) -> MaintenanceReport:
        """Do what is due now, in all topics or in one; blocks until it is done.

        Args:
            topic: The one; None for all.
            progress: Called after each partition with what was done so far.

        Raises:
            Unavailable: Another pass of this process takes too long; or metadata cannot be reached.
        """
        if not self._running.acquire(timeout=PASS_SECONDS_MAX):
            raise Unavailable(f"another pass has been running for {PASS_SECONDS_MAX:g} s")
        report = MaintenanceReport()
        try:
            for each in self._topics() if topic is None else (topic,):
                self._maintain(each, report, progress)
        finally:
            self.total.add(report)
            self._running.release()
            if report.pages_expired or report.pages_merged:
                self._reclaim()
        return report

    def close(self) -> None:
        """Stop after the step under way; what is left is done after the next start."""
        self._closing.set()
        self._thread.join()

    def _loop(self) -> None:
        while not self._closing.wait(self._seconds):
            try:
                self.run()
            except WingsError as error:
                _logger.warning("could not look for what to maintain: %s", error)

    def _topics(self) -> Iterator[Topic]:
        for namespace in self._admin.list_namespaces():
            try:
                topics = self._admin.list_topics(namespace.name)
            except NotFound:
                continue  # Deleted meanwhile.
            yield from topics

    def _maintain(
        self,
        topic: Topic,
        report: MaintenanceReport,
        progress: Callable[[MaintenanceReport], None] | None,
    ) -> None:
        config = topic.config
        tiering = self._tiering
        if tiering is not None and tiering.after_ms(topic) is None:
            tiering = None
        if config.retention_ms is None and config.retention_bytes is None and tiering is None:
            return
        try:
            for state in self._registry.partition_states(topic.uuid):
                if self._closing.is_set():
                    return
                self._maintain_partition(topic, state, report, tiering)
                if progress is not None:
                    progress(report)
        except NotFound:
            return  # Deleted meanwhile.

    def _maintain_partition(
        self,
        topic: Topic,
        state: PartitionState,
        report: MaintenanceReport,
        tiering: Tiering | None,
    ) -> None:
        try:
            expires = is_due(self._registry, topic, state, self._clock())
            if not expires and (tiering is None or not tiering.due(topic, state)):
                return
            report.partitions += 1
            with self._leased(f"{topic.uuid} {state.partition}") as leased:
                if leased is None:
                    report.partitions_busy += 1
                    return
                lease, proceed = leased
                if expires:
                    retain(self._maintenance, topic, state, report, proceed)
                    state = self._registry.partition_state(topic.uuid, state.partition)
                if tiering is not None:
                    tiering.tier(topic, state, lease, report, proceed)
        except NotFound:
            raise
        except OffsetOutOfRange:
            return  # Another node has dropped pages meanwhile; the next pass looks again.
        except WingsError as error:
            report.failures += 1
            _logger.warning(
                "could not maintain partition %.80s of %s: %s", state.partition, topic.name, error
            )
        except Exception:  # One partition must not keep all others from being maintained.
            report.failures += 1
            _logger.exception(
                "could not maintain partition %.80s of %s", state.partition, topic.name
            )

    @contextmanager
    def _leased(self, name: str) -> Generator[tuple[Lease, Callable[[], bool]] | None]:
        """Hold a lease during the block, which gets it and what prolongs it.

        None: another node has it.
        """
        token = self._maintenance.acquire_lease(name, self._holder, LEASE_SECONDS)
        if token is None:
            yield None
            return

        def proceed() -> bool:
            """Prolong the lease; False where it was lost, or the server stops."""
            if self._closing.is_set():
                return False
            return self._maintenance.acquire_lease(name, self._holder, LEASE_SECONDS) == token

        try:
            yield Lease(name, self._holder, token), proceed
        finally:
            self._maintenance.release_lease(name, self._holder)
