"""Leases that last as long as the work under them, and end soon after a node that is gone."""

import logging
import threading
import time
import uuid
from collections.abc import Callable, Generator
from contextlib import contextmanager

from wings_core.errors import WingsError
from wings_core.metadata.maintenance import Lease, Maintenance

LEASE_SECONDS = 60.0
"""How long a node that vanished keeps the others from a partition."""

PROLONGATIONS = 3
"""How often a lease is prolonged in the time that it lasts, so that one may fail."""

STEP_SECONDS_MAX = 600.0
"""A lease ends though its holder is there, where a single step of the work takes longer."""

_logger = logging.getLogger(__name__)


class HeldLease:
    """A lease during the work under it; for the thread that works."""

    def __init__(self, lease: Lease, is_closing: Callable[[], bool]) -> None:
        self.lease = lease
        self._is_closing = is_closing
        self.stepped_at = time.monotonic()
        self.lost = False
        self.released = False

    def proceed(self) -> bool:
        """Say that a step was done; False where the work should end: the lease was lost, or all.

        What the work changes is fenced by the lease in any case; this saves what would be in vain.
        """
        self.stepped_at = time.monotonic()
        return not (self.lost or self._is_closing())


class LeaseKeeper:
    """Takes leases, and prolongs them in the background, on a thread of its own.

    Args:
        maintenance: Knows whose a lease is.
        seconds: How long one lasts without being prolonged.
    """

    def __init__(self, maintenance: Maintenance, seconds: float) -> None:
        self._maintenance = maintenance
        self._seconds = seconds
        self._held: set[HeldLease] = set()
        self._lock = threading.Lock()
        """Guards the set; nothing else is locked under it."""
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="wings-lease-keeper", daemon=True)
        self._thread.start()

    @contextmanager
    def hold(self, name: str) -> Generator[HeldLease | None]:
        """Hold a lease during the block, which gets it; None: another holder has it.

        Each time by another holder, so that this keeps threads of one process apart as well.

        Args:
            name: Of what is leased.
        """
        holder = uuid.uuid4().hex
        token = self._maintenance.acquire_lease(name, holder, self._seconds)
        if token is None:
            yield None
            return
        held = HeldLease(Lease(name, holder, token), self._closing.is_set)
        with self._lock:
            self._held.add(held)
        try:
            yield held
        finally:
            with self._lock:
                self._held.discard(held)
            # Set first: a prolongation under way then releases the lease itself.
            held.released = True
            self._maintenance.release_lease(name, holder)

    def close(self) -> None:
        """Let the work under all leases end at its next step, and prolong none any more."""
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
        except BaseException:  # The others must be prolonged all the same.
            _logger.exception("could not prolong the lease of %.120s", lease.name)
