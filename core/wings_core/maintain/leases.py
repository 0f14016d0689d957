"""Leases that last as long as the work under them, and expire soon after their node vanishes."""

import logging
import threading
import time
import uuid
from collections.abc import Callable, Generator
from contextlib import contextmanager

from wings_core.errors import WingsError
from wings_core.metadata.maintenance import Maintenance, MaintenanceLease

LEASE_SECONDS = 60.0
"""Duration of a lease, after which another node can take over from a vanished one."""

PROLONGATIONS = 3
"""Prolongations per duration of a lease, so that one of them may fail."""

STEP_SECONDS_MAX = 600.0
"""Longest step of the work, beyond which a lease is no longer prolonged."""

_logger = logging.getLogger(__name__)


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
        maintenance: Grants leases.
        seconds: Duration of a lease without prolongation.
    """

    def __init__(self, maintenance: Maintenance, seconds: float) -> None:
        self._maintenance = maintenance
        self._seconds = seconds
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
