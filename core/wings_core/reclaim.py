"""Give back the disk space of deleted topics and of flushes that were never committed."""

import logging
import threading

from wings_core.errors import WingsError
from wings_core.metadata.interfaces import OffsetRegistry
from wings_core.storage.interfaces import FolioStore

PURGE_PAGES = 1_000
"""Pages forgotten in one metadata transaction, so that pushes never wait long for it."""

RECLAIM_SECONDS = 3_600.0
"""How often it looks without being woken: producers' results grow old by themselves."""

_logger = logging.getLogger(__name__)


class Reclaimer:
    """Forgets pages of deleted topics, then deletes the folios that no page refers to.

    Works at the start, which also finishes what a crash interrupted, whenever woken, and from time
    to time. The folio being written to is left alone, so a page not yet committed is never deleted:
    flushes are committed before the next flush can begin another folio.
    """

    def __init__(self, registry: OffsetRegistry, store: FolioStore) -> None:
        self._registry = registry
        self._store = store
        self._wake = threading.Event()
        self._wake.set()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="wings-reclaimer", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Look for something to give back, soon, in the background."""
        self._wake.set()

    def close(self) -> None:
        """Stop after the step under way; what is left is done at the next start."""
        self._closing = True
        self._wake.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            self._wake.wait(RECLAIM_SECONDS)
            self._wake.clear()
            if self._closing:
                return
            try:
                self._reclaim()
            except (WingsError, OSError) as error:
                _logger.warning("could not give back disk space: %s", error)

    def _reclaim(self) -> None:
        while self._registry.purge(PURGE_PAGES):
            if self._closing:
                return
        # Folios are listed before references are, so one that is committed to in between is kept.
        candidates = self._store.folios()
        for folio in candidates - self._registry.live_folios():
            self._store.delete(folio)
