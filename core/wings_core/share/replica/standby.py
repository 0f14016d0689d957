"""StandbyReplica: a replica of holds that cannot be served at all times.

One of several processes serves what is in PostgreSQL; a file may be damaged, or its disk full.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from wings_core.errors import StorageCorrupt, Unavailable, WingsError
from wings_core.share.clock import Clock
from wings_core.share.replica.replica import LOCK_WAIT_SECONDS, Replica
from wings_core.share.replica.requests import Answer, Request, refused
from wings_core.share.replica.store import HoldStore
from wings_core.times import Deadline

TRY_SECONDS = 1.0
"""How often it is tried to take over what another process serves."""

_logger = logging.getLogger(__name__)


class ClaimedStore(HoldStore, Protocol):
    """A store that one process owns at a time."""

    @property
    def is_lost(self) -> bool:
        """Whether another process has taken over, or the store was found damaged."""
        ...


class StandbyReplica:
    """A `HoldReplica` that refuses while its store cannot be opened, and serves it afterwards.

    It tries to when it is opened, and again when it is asked for something; but not what is
    damaged, which stays so until the next start.

    Args:
        open_store: Opens the store without waiting for its owner; raises `Unavailable` where there
            is one.
        clock: The clock of TTLs.
        waits: Open the store only when something is asked for.
    """

    def __init__(
        self,
        open_store: Callable[[], ClaimedStore],
        clock: Clock | None = None,
        *,
        waits: bool = False,
    ) -> None:
        self._open_store = open_store
        self._clock = clock
        self._lock = threading.Lock()
        self._store: ClaimedStore | None = None
        self._replica: Replica | None = None
        self._closed = False
        self._refusal: WingsError = Unavailable("this replica of holds is closed")
        self._next_try = Deadline.after(0)
        if waits:
            return
        try:
            self._current()
        except StorageCorrupt as error:
            _logger.error("%s", error.message)
        except Unavailable as error:
            _logger.warning("share groups are refused for now: %s", error.message)

    @property
    def damage(self) -> StorageCorrupt | None:
        """The error of every call until the next start; None: nothing is damaged."""
        return self._refusal if isinstance(self._refusal, StorageCorrupt) else None

    @property
    def serves(self) -> bool:
        """Whether this process has the store, as far as it knows."""
        store = self._store
        return store is not None and not store.is_lost

    def perform(self, requests: Sequence[Request]) -> Sequence[Answer]:
        """See `HoldReplica.perform`."""
        try:
            replica = self._current()
        except WingsError as error:
            return refused(requests, error)
        return replica.perform(requests)

    def close(self) -> None:
        """Close the replica, if it is served here; another process may take it over then."""
        with self._lock:
            self._closed = True
            self._drop()

    def _current(self) -> Replica:
        """Return the replica, taken over where that can be.

        Raises:
            Unavailable: Another process serves it, or it cannot be opened.
            StorageCorrupt: It is damaged.
        """
        # Taking over takes as long as there are ranges; threads that wait are missed elsewhere.
        if not self._lock.acquire(timeout=LOCK_WAIT_SECONDS):
            raise Unavailable("this replica of holds is being taken over")
        try:
            if self._closed:
                raise Unavailable("this replica of holds is closed")
            if self._store is not None and self._store.is_lost:
                self._drop()
            if self._replica is None:
                if self.damage is not None or not self._next_try.passed:
                    raise type(self._refusal)(self._refusal.message)  # Each thread its own.
                self._take_over()
            assert self._replica is not None
            return self._replica
        finally:
            self._lock.release()

    def _take_over(self) -> None:
        self._next_try = Deadline.after(TRY_SECONDS)
        try:
            store = self._open_store()
            try:
                self._replica = Replica(store, self._clock)
            except BaseException:
                store.close()
                raise
        except StorageCorrupt as error:
            self._refusal = error
            raise
        except WingsError as error:
            self._refusal = Unavailable(error.message)
            raise self._refusal from error
        self._store = store

    def _drop(self) -> None:
        replica, self._replica, self._store = self._replica, None, None
        self._next_try = Deadline.after(0)
        if replica is not None:
            replica.close()
