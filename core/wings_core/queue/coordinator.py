"""The queue coordinator: receives messages, looks up their files' owners, and makes claims.

Its state is one process's view of one pipeline, and may be lost with the process: unclaimed
messages are delivered again, and claims are in the journal. While the pipeline runs, the visibility
extender keeps its messages hidden.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from wings_core.errors import Internal, WingsError
from wings_core.queue.interfaces import Queue, QueueMessage, extend_all
from wings_core.queue.journal import DEAD_FATES, Claim, ClaimedMessage, Fate, Journal, Outcome
from wings_core.queue.notifications import DedupKey, MessageKind, files_of
from wings_core.queue.state import (
    LocalFile,
    Phase,
    QueueLocalState,
    QueueSharedState,
    Standing,
    Standpoint,
)

EXTEND_AT = 0.5
"""A message is extended when less than this fraction of its visibility is left."""

RETRY_SECONDS = (1.0, 300.0)
"""Backoff of a failed file: the least pause, which doubles with each failure, and the greatest."""

FILES_HELD_MAX = 10_000
"""Held files, most of them failed or another pipeline's, at which no message is received."""

LOOKS_PER_COMMIT_TIMEOUT = 4
"""Look-ups of the owner of another pipeline's file, whose message is held, per commit timeout."""

PRUNE_SECONDS = 300.0
"""Least time between two prunings of a source, by all its pipelines."""

EXTEND_RETRY_SECONDS = (0.25, 30.0)
"""Backoff after a failed attempt: the least pause, which doubles each time, and the greatest."""

LOOKS_PER_VISIBILITY = 10
"""Attempts per visibility timeout."""

PAUSE_SECONDS_MIN = 0.05

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CoordinatorSettings:
    """Limits of what a pipeline receives and claims."""

    kind: MessageKind
    dedup_key: DedupKey
    files_max: int = 100
    """Most files of one claim."""
    bytes_max: int | None = None
    """Most bytes of a claim's files, as far as sizes are known; a single file may exceed it."""
    visibility_seconds: float = 60.0
    """Time for which a receive or an extension hides messages."""
    wait_seconds: float = 1.0
    """The longest wait for messages."""
    deduplication_seconds: float = 7 * 86_400.0
    """Time for which a finished file is remembered."""
    takes: Callable[[str], bool] = lambda _: True
    """Returns by its URI whether a file is read; messages of other files are acknowledged."""


class QueueCoordinator:
    """Combines a queue, the local state, the shared state and the journal of one pipeline.

    Safe from several threads.

    Args:
        queue: Source of the messages.
        shared: The files of the source.
        journal: Stores the claims.
        settings: Limits.
    """

    def __init__(
        self,
        queue: Queue,
        shared: QueueSharedState,
        journal: Journal,
        settings: CoordinatorSettings,
    ) -> None:
        self._queue = queue
        self._shared = shared
        self._journal = journal
        self._settings = settings
        self._lock = threading.Lock()
        """Guards the local state; never held over a call that blocks."""
        self._local = QueueLocalState(holds_foreign=queue.drops_messages)
        self._open: dict[int, Claim] = {}
        """Claims that are not done."""
        self._pruned_at: float | None = None
        self._renewed_at: float | None = None
        self._lost = 0
        for claim in journal.open_claims():
            self._resume(claim)

    def claim(self, number: int) -> Claim | None:
        """Return the claim of a number from the journal, or make it.

        Blocks for up to `wait_seconds` while no file is ready.

        Returns:
            None if no file is ready.

        Raises:
            WingsError: The queue or the server failed; no claim was made.
        """
        found = self._journal.claim(number)
        if found is not None:
            return found
        self.finish_claims()
        self._find_owners()  # Of files whose messages were held.
        self._receive()
        with self._lock:
            files = self._local.take(
                self._settings.files_max, self._settings.bytes_max, time.time()
            )
            if not files:
                return None
            messages = self._local.of_files(file.shard for file in files)
            claim = Claim(
                number=number,
                files=tuple(files),
                messages=tuple(
                    ClaimedMessage(
                        id=each.message.id, receipt=each.message.receipt, shards=each.shards
                    )
                    for each in messages
                ),
            )
            self._open[number] = claim
        return self._journal.add(claim)

    def finish_claims(self) -> None:
        """Apply the outcomes of finished claims, and acknowledge the messages they complete."""
        self._note_done()
        self._release()

    def extend_and_renew(self) -> None:
        """Extend the messages whose deadlines are near, and renew the ownership of their files.

        Finished claims are applied too. A failure of one of these leaves the others to be done. A
        message that is not extended by its deadline counts as lost.

        Raises:
            Exception: The first failure; a retry is safe.
        """
        problems: list[Exception] = []
        for step in (self._note_done, self._extend_due, self._renew, self._release):
            try:
                step()
            except Exception as error:  # noqa: BLE001 - the other steps must still run
                problems.append(error)
        if problems:
            raise problems[0]

    def prune(self) -> int:
        """Delete files that ended before the deduplication window, if it is time.

        Returns:
            The count of deleted files.
        """
        now = time.time()
        if self._pruned_at is not None and now < self._pruned_at + PRUNE_SECONDS:
            return 0
        self._pruned_at = now
        return self._shared.prune(self._settings.deduplication_seconds, PRUNE_SECONDS).shards

    def count(self, phase: Phase) -> int:
        """Count this pipeline's files in a phase."""
        with self._lock:
            return self._local.count(phase)

    @property
    def visibility_seconds(self) -> float:
        """Seconds for which messages are hidden without an extension."""
        return self._queue.visibility_seconds(self._settings.visibility_seconds)

    @property
    def lost(self) -> int:
        """Messages that were not extended in time so far: they may be delivered again."""
        with self._lock:
            return self._lost

    def _note_done(self) -> None:
        with self._lock:
            open_claims = list(self._open.values())
        for claim in open_claims:
            outcome = self._journal.outcome(claim.number)
            if outcome is not None:
                with self._lock:
                    if self._open.pop(claim.number, None) is not None:
                        self._note(outcome)
            elif self._journal.is_read(claim.number):
                with self._lock:
                    self._local.await_commit(file.shard for file in claim.files)

    def _extend_due(self) -> None:
        seconds = self._settings.visibility_seconds
        with self._lock:
            before = time.time() + EXTEND_AT * self.visibility_seconds
            due = [each.message for each in self._local.to_extend(before)]
        receipts = {message.id: message.receipt for message in due}
        extended, problem = extend_all(self._queue, receipts, seconds)
        now = time.time()
        for message in due:
            deadline = extended.get(message.id, message.deadline)
            if message.id not in extended and 0 < message.deadline <= now:
                deadline = None
            with self._lock:
                self._local.extended(message.id, deadline)
                self._lost += deadline is None
            if deadline is None:
                _logger.warning("message %s is lost: it may be delivered again", message.id)
        if problem is not None:
            raise problem

    def _renew(self) -> None:
        now = time.time()
        with self._lock:
            shards = [
                shard
                for shard, each in self._local.files.items()
                if each.phase not in (Phase.NEW, Phase.FOREIGN)
            ]
        renewed_before = now - self._shared.commit_timeout_seconds / 2
        if shards and (self._renewed_at is None or self._renewed_at < renewed_before):
            self._shared.renew(shards)
            self._renewed_at = now

    def _receive(self) -> None:
        settings = self._settings
        with self._lock:
            ready = self._local.count_ready(time.time())
            next_ready_at = self._local.next_ready_at()
            held = len(self._local.files)
        # Files that wait for their next attempt do not count.
        room = min(settings.files_max - ready, FILES_HELD_MAX - held)
        if room <= 0:
            return
        wait = settings.wait_seconds
        if next_ready_at is not None:
            wait = max(0.0, min(wait, next_ready_at - time.time()))
        for message in self._queue.receive(room, settings.visibility_seconds, wait):
            notifications = [
                each
                for each in files_of(message.body, message.id, settings.kind, settings.dedup_key)
                if each.payload is not None or each.problem is not None or settings.takes(each.uri)
            ]
            with self._lock:
                self._local.add(message, notifications)
        self._find_owners()
        self._release()

    def _find_owners(self) -> None:
        """Look up the owners of new files, and again of files that were another pipeline's."""
        with self._lock:
            shards = self._local.without_standpoint(time.time())
            retries = self._local.retries_of(shards)
        if not shards:
            return
        try:
            standpoints = self._shared.open(shards, retries)
        except BaseException:
            with self._lock:
                if not self._local.holds_foreign:
                    self._forget(shards)
            raise
        again_at = time.time() + self._shared.commit_timeout_seconds / LOOKS_PER_COMMIT_TIMEOUT
        with self._lock:
            for shard, standpoint in standpoints.items():
                is_foreign = standpoint.standing is Standing.FOREIGN
                self._local.set_standpoint(shard, standpoint, again_at if is_foreign else 0.0)

    def _release(self) -> None:
        with self._lock:
            receipts, left = self._local.release()
        if receipts:
            self._queue.acknowledge(receipts)
        if left:
            _logger.info("%d messages are left to other pipelines", left)

    def _note(self, outcome: Outcome) -> None:
        for file in outcome.files:
            if file.fate is Fate.FINISHED or file.fate in DEAD_FATES:
                self._local.set_standpoint(file.shard, Standpoint(Standing.ENDED))
            elif file.fate is Fate.FENCED:
                self._local.set_standpoint(file.shard, Standpoint(Standing.FOREIGN))
            else:
                first, most = RETRY_SECONDS
                delay = 0.0
                if file.fate is Fate.FAILED:
                    delay = min(most, first * 2 ** min(20, max(0, file.failures - 1)))
                self._local.set_standpoint(
                    file.shard,
                    Standpoint(Standing.OWN, file.position, file.failures),
                    time.time() + delay if delay else 0.0,
                    is_whole=file.is_whole,
                )

    def _resume(self, claim: Claim) -> None:
        """Add a claim that an earlier process made, so that its messages are extended at once."""
        for file in claim.files:
            self._local.files[file.shard] = LocalFile(file, Phase.IN_PROGRESS)
        claimed = {file.shard for file in claim.files}
        for each in claim.messages:
            message = QueueMessage(each.id, each.receipt, "", 0, deadline=0.0)  # Unknown.
            # The unclaimed files of the message are not known here: it must be delivered again.
            foreign = not claimed.issuperset(each.shards)
            self._local.resume(message, each.shards, claimed.intersection(each.shards))
            self._local.messages[each.id].foreign = foreign
        self._open[claim.number] = claim

    def _forget(self, shards: list[str]) -> None:
        """Drop files whose owners could not be looked up."""
        for shard in shards:
            self._local.set_standpoint(shard, Standpoint(Standing.FOREIGN))
        self._local.release()


class VisibilityExtender:
    """Extends a coordinator's messages on a thread of its own, until it is closed.

    Failures are logged and retried with backoff: soon at first, since messages have deadlines. The
    pipeline calls `check`, which raises once they have lasted for too long.

    Args:
        coordinator: Holds the messages; called `LOOKS_PER_VISIBILITY` times per visibility.
    """

    def __init__(self, coordinator: QueueCoordinator) -> None:
        self._coordinator = coordinator
        self._closed = threading.Event()
        self._lock = threading.Lock()
        """Guards the attributes below; never held while blocking."""
        self._problem: Exception | None = None
        """The last failure; None after a successful attempt."""
        self._failing_since = 0.0
        self._thread = threading.Thread(target=self._run, name="wings-extender", daemon=True)
        self._thread.start()

    def check(self, seconds_max: float) -> None:
        """Raise the current failure, if it has lasted for `seconds_max`.

        Raises:
            WingsError: The failure; `Internal` for one of another type.
        """
        with self._lock:
            problem, since = self._problem, self._failing_since
        seconds = time.monotonic() - since
        if problem is None or seconds < seconds_max:
            return
        cls = type(problem) if isinstance(problem, WingsError) else Internal
        raise cls(f"messages could not be extended for {seconds:.0f} s: {problem}") from problem

    def close(self) -> None:
        """Stop the thread; blocks until its current attempt has ended."""
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        pause = self._pause()
        while not self._closed.wait(pause):
            try:
                self._coordinator.extend_and_renew()
            except Exception as error:  # noqa: BLE001 - the thread must survive every error
                pause = self._failed(error, pause)
            else:
                pause = self._pause()
                with self._lock:
                    self._problem = None

    def _pause(self) -> float:
        return max(PAUSE_SECONDS_MIN, self._coordinator.visibility_seconds / LOOKS_PER_VISIBILITY)

    def _failed(self, error: Exception, pause: float) -> float:
        """Record a failure; returns the pause before the next attempt in seconds."""
        with self._lock:
            is_first = self._problem is None
            if is_first:
                self._failing_since = time.monotonic()
            self._problem = error
        # A lost message is delivered again, and its files continue where they were published.
        _logger.warning(
            "messages could not be extended: %s",
            error,
            exc_info=None if isinstance(error, WingsError) else error,
        )
        first, most = EXTEND_RETRY_SECONDS
        usual = self._pause()
        return min(first, usual) if is_first else min(2 * pause, max(most, usual))
