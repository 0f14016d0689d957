"""Frees the space of deleted topics, of abandoned stages, and of failed flushes."""

import logging
import threading
import time
from collections.abc import Sequence

from wings_core.errors import WingsError
from wings_core.metadata.interfaces import RETIRE_MAX, OffsetRegistry, Stages
from wings_core.storage.interfaces import FolioStore

PURGE_PAGES = 1_000
"""Most pages deleted per metadata transaction, so that pushes never wait long for it."""

RECLAIM_SECONDS = 3_600.0
"""Longest interval of unprompted checks, since stages and results expire."""

SWEEPS_PER_LIFE = 4
"""Checks per lifetime of a stage, so that none is kept much longer."""

SWEEP_STAGES = 1_000
"""Most stages deleted per metadata transaction."""

RESTS, REST_SECONDS_MAX = 9, 60.0
"""Rest after a run that was woken, as a multiple of its CPU time, and the longest: each run lists
all files, of which a store keeps those of an hour."""

_logger = logging.getLogger(__name__)


class Reclaimer:
    """Deletes the pages of deleted topics and stages from metadata, then unreferenced folios.

    A folio is retired before it is deleted, so that a late commit cannot refer to it.

    Runs at the start, which also finishes work that a crash interrupted, when woken, and
    periodically. The folio being written is skipped, so an uncommitted page is never deleted: a
    flush is committed before the next flush can begin another folio.

    Args:
        registry: Deletes pages.
        stages: Deletes stages older than `stage_seconds_max`.
        stores: Stores of folios; a failing one does not affect the others.
        stage_seconds_max: Time for which a stage is kept after its last batch.
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
        """Folios deleted since the start."""
        self._pause = min(RECLAIM_SECONDS, stage_seconds_max / SWEEPS_PER_LIFE)
        self._wake = threading.Event()
        self._wake.set()
        self._closing = threading.Event()
        self._running = threading.Lock()
        """Held during a run; always taken first."""
        self._thread = threading.Thread(target=self._run, name="wings-reclaimer", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Start a run soon, in the background."""
        self._wake.set()

    def run(self) -> None:
        """Free all possible space now; blocks until done.

        Raises:
            WingsError: Metadata or storage fails; the rest is done later.
        """
        with self._running:
            self._reclaim()

    def close(self) -> None:
        """Stop after the current step; the rest is done at the next start."""
        self._closing.set()
        self._wake.set()
        self._thread.join()

    def _run(self) -> None:
        rest = 0.0
        while not self._closing.wait(rest):
            self._wake.wait(self._pause)
            self._wake.clear()
            if self._closing.is_set():
                return
            began = time.thread_time()
            try:
                self.run()
            except (WingsError, OSError) as error:
                _logger.warning("could not free disk space: %s", error)
            except BaseException:  # Any fault, even a panic in Rust, only costs this step.
                _logger.exception("could not free disk space")
            rest = min(RESTS * (time.thread_time() - began), REST_SECONDS_MAX)

    def _reclaim(self) -> None:
        while self._stages.sweep(self._stage_seconds_max, SWEEP_STAGES) == SWEEP_STAGES:
            if self._closing.is_set():
                return
        while self._registry.purge(PURGE_PAGES):
            if self._closing.is_set():
                return
        # Folios are listed before references are.
        listed = [(store, self._folios(store)) for store in self._stores]
        live = self._registry.live_folios()
        for store, folios in listed:
            self._delete(store, sorted(folios - live))

    def _folios(self, store: FolioStore) -> set[str]:
        if self._closing.is_set():
            return set()
        try:
            return store.folios()
        except (WingsError, OSError) as error:
            _logger.warning("could not list the files of a store: %s", error)
            return set()

    def _delete(self, store: FolioStore, unused: Sequence[str]) -> None:
        """Delete unreferenced folios."""
        for first in range(0, len(unused), RETIRE_MAX):
            if self._closing.is_set():
                return
            # A folio referenced meanwhile is kept; a later commit is rejected. During a backup,
            # all are kept.
            retired = self._registry.retire(unused[first : first + RETIRE_MAX])
            try:
                for folio in retired:
                    store.delete(folio)
                    self.folios_deleted += 1
            except (WingsError, OSError) as error:
                _logger.warning("could not delete unreferenced files: %s", error)
                return  # The next run finds the rest again.
