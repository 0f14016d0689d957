"""Free the disk space of deleted topics, of stages never published, of flushes that failed."""

import logging
import threading
from collections.abc import Sequence

from wings_core.errors import WingsError
from wings_core.metadata.interfaces import RETIRE_MAX, OffsetRegistry, Stages
from wings_core.storage.interfaces import FolioStore

PURGE_PAGES = 1_000
"""Pages forgotten in one metadata transaction, so that pushes never wait long for it."""

RECLAIM_SECONDS = 3_600.0
"""How often it looks, at least, without being woken: stages and results grow old by themselves."""

SWEEPS_PER_LIFE = 4
"""How often it looks during the time that a stage is kept, so that none lives much longer."""

SWEEP_STAGES = 1_000
"""Stages deleted in one metadata transaction."""

_logger = logging.getLogger(__name__)


class Reclaimer:
    """Forgets pages of deleted topics and stages, then deletes the folios that no page refers to.

    Each is retired before it is deleted, so that a commit that is late cannot refer to it.

    Works at the start, which also finishes what a crash interrupted, whenever woken, and from time
    to time. The folio being written to is left alone, so a page not yet committed is never deleted:
    flushes are committed before the next flush can begin another folio.

    Args:
        registry: Told to forget.
        stages: Told to delete what is older than `stage_seconds_max`.
        stores: Where the folios are. Where one of them fails, the others are looked after still.
        stage_seconds_max: How long a stage is kept after its last batch.
    """

    def __init__(
        self,
        registry: OffsetRegistry,
        stages: Stages,
        stores: Sequence[FolioStore],
        stage_seconds_max: float,
    ) -> None:
        self._registry = registry
        self._stages = stages
        self._stores = stores
        self._stage_seconds_max = stage_seconds_max
        self.folios_deleted = 0
        """Since the start."""
        self._pause = min(RECLAIM_SECONDS, stage_seconds_max / SWEEPS_PER_LIFE)
        self._wake = threading.Event()
        self._wake.set()
        self._closing = False
        self._running = threading.Lock()
        """Nothing else is locked before it."""
        self._thread = threading.Thread(target=self._run, name="wings-reclaimer", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Look for something to free, soon, in the background."""
        self._wake.set()

    def run(self) -> None:
        """Free now what can be; blocks until that is done.

        Raises:
            WingsError: Metadata or storage cannot be used; what is left is done later.
        """
        with self._running:
            self._reclaim()

    def close(self) -> None:
        """Stop after the step under way; what is left is done at the next start."""
        self._closing = True
        self._wake.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            self._wake.wait(self._pause)
            self._wake.clear()
            if self._closing:
                return
            try:
                self.run()
            except (WingsError, OSError) as error:
                _logger.warning("could not free disk space: %s", error)
            except BaseException:  # Of any fault, a panic of Rust code too, only the step is lost.
                _logger.exception("could not free disk space")

    def _reclaim(self) -> None:
        while self._stages.sweep(self._stage_seconds_max, SWEEP_STAGES) == SWEEP_STAGES:
            if self._closing:
                return
        while self._registry.purge(PURGE_PAGES):
            if self._closing:
                return
        # Folios are listed before references are.
        listed = [(store, self._folios(store)) for store in self._stores]
        live = self._registry.live_folios()
        for store, folios in listed:
            self._delete(store, sorted(folios - live))

    def _folios(self, store: FolioStore) -> set[str]:
        if self._closing:
            return set()
        try:
            return store.folios()
        except (WingsError, OSError) as error:
            _logger.warning("could not list what a store has: %s", error)
            return set()

    def _delete(self, store: FolioStore, unused: Sequence[str]) -> None:
        """Delete folios that no page refers to."""
        for first in range(0, len(unused), RETIRE_MAX):
            if self._closing:
                return
            # One that is committed to in between is kept; a commit that comes later is refused.
            # While a backup is taken, all are kept.
            retired = self._registry.retire(unused[first : first + RETIRE_MAX])
            try:
                for folio in retired:
                    store.delete(folio)
                    self.folios_deleted += 1
            except (WingsError, OSError) as error:
                _logger.warning("could not delete what nothing refers to: %s", error)
                return  # The next look finds the rest of them again.
