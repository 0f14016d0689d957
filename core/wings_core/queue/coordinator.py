"""Coordinator: receives messages, finds out whose their files are, and claims what is to be read.

It is one process's view of one pipeline. What it may forget with its process: the messages that it
received and did not claim come again, and what it claimed is in the journal.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from wings_core.queue.claims import Claim, ClaimedMessage, Fate, Outcome
from wings_core.queue.extend import extend_all
from wings_core.queue.interfaces import Queue, QueueMessage
from wings_core.queue.journal import Journal
from wings_core.queue.local_state import LocalFile, Phase, QueueLocalState
from wings_core.queue.notices import DedupKey, MessageKind, files_of
from wings_core.queue.shared_state import QueueSharedState, Standing, Standpoint

EXTEND_AT = 0.5
"""A message is extended when less than this part of its visibility is left."""

RETRY_SECONDS = (1.0, 300.0)
"""A file that failed is tried again after the first, doubled for each failure up to the second."""

FILES_HELD_MAX = 10_000
"""Nothing is received while so many files are held: most of them have failed, or are
another pipeline's."""

LOOKS_PER_COMMIT_TIMEOUT = 4
"""How often it is looked whose a file is that is another pipeline's, where its message is held."""

PRUNE_SECONDS = 300.0
"""Between two prunings of a source, by all its pipelines."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CoordinatorSettings:
    """How a pipeline receives and claims."""

    kind: MessageKind
    dedup_key: DedupKey
    files_max: int = 100
    """Of one claim."""
    bytes_max: int | None = None
    """Of the files of one claim, as far as their sizes are known; one may be larger."""
    visibility_seconds: float = 60.0
    """For how long messages are received, and extended."""
    wait_seconds: float = 1.0
    """How long to wait for messages where there are none."""
    deduplication_seconds: float = 7 * 86_400.0
    """How long a file that ended is remembered."""


class QueueCoordinator:
    """Ties a queue, the local state, the shared state and the journal.

    Args:
        queue: Where messages come from.
        shared: What is known of files.
        journal: Where claims are kept.
        settings: How to receive and claim.
        clock: Seconds since the epoch.
    """

    def __init__(
        self,
        queue: Queue,
        shared: QueueSharedState,
        journal: Journal,
        settings: CoordinatorSettings,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._queue = queue
        self._shared = shared
        self._journal = journal
        self._settings = settings
        self._clock = clock
        self._lock = threading.Lock()
        """Guards the local state; held while nothing blocks."""
        self._local = QueueLocalState(holds_foreign=queue.gives_up)
        self._open: dict[int, Claim] = {}
        """Claims that are not done."""
        self._pruned_at: float | None = None
        self._renewed_at: float | None = None
        self._lost = 0
        for claim in journal.open_claims():
            self._resume(claim)

    def claim(self, number: int) -> Claim | None:
        """Return the claim of a number: the one that is in the journal, or else a new one.

        Blocks for `wait_seconds` where there is nothing to claim.

        Returns:
            None where there is nothing to claim.

        Raises:
            WingsError: The queue or the server failed; nothing was claimed.
        """
        found = self._journal.claim(number)
        if found is not None:
            return found
        self.settle()
        self._find_owners()  # Of files whose messages were held.
        self._receive()
        with self._lock:
            files = self._local.take(
                self._settings.files_max, self._settings.bytes_max, self._clock()
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

    def settle(self) -> None:
        """Take note of the claims that are done, and let go of their messages."""
        self._note_done()
        self._release()

    def keep(self) -> None:
        """Extend the messages whose deadlines near, and say that their files have an owner.

        Each is tried, whatever becomes of the others. A message that was not extended until its
        deadline is lost, and counted as such.

        Raises:
            Exception: The first that one of them failed with; the same again is safe.
        """
        problems: list[Exception] = []
        for step in (self._note_done, self._extend_due, self._renew, self._release):
            try:
                step()
            except Exception as error:  # noqa: BLE001 - Whatever it is, the others are to be done.
                problems.append(error)
        if problems:
            raise problems[0]

    def prune(self) -> int:
        """Forget files that ended long ago, if it is time; return how many."""
        now = self._clock()
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
        """For how long messages are hidden, before they have to be extended."""
        return self._queue.visibility_seconds(self._settings.visibility_seconds)

    @property
    def lost(self) -> int:
        """How many messages were not extended in time so far: they may be handed out again."""
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
            before = self._clock() + EXTEND_AT * self.visibility_seconds
            due = [each.message for each in self._local.to_extend(before)]
        receipts = {message.id: message.receipt for message in due}
        extended, problem = extend_all(self._queue, receipts, seconds)
        now = self._clock()
        for message in due:
            deadline = extended.get(message.id, message.deadline)
            if message.id not in extended and 0 < message.deadline <= now:
                deadline = None
            with self._lock:
                self._local.extended(message.id, deadline)
                self._lost += deadline is None
            if deadline is None:
                _logger.warning("message %s is lost: it may come again", message.id)
        if problem is not None:
            raise problem

    def _renew(self) -> None:
        now = self._clock()
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
            ready = self._local.count_ready(self._clock())
            next_ready_at = self._local.next_ready_at()
            held = len(self._local.files)
        # Files that failed and wait for their next try leave room to their neighbours.
        room = min(settings.files_max - ready, FILES_HELD_MAX - held)
        if room <= 0:
            return
        wait = settings.wait_seconds
        if next_ready_at is not None:
            wait = max(0.0, min(wait, next_ready_at - self._clock()))
        for message in self._queue.receive(room, settings.visibility_seconds, wait):
            notices = files_of(message.body, message.id, settings.kind, settings.dedup_key)
            with self._lock:
                self._local.add(message, notices)
        self._find_owners()
        self._release()

    def _find_owners(self) -> None:
        """Find out whose files are that are new, or that were another pipeline's a while ago."""
        with self._lock:
            shards = self._local.unsettled(self._clock())
        if not shards:
            return
        try:
            standpoints = self._shared.open(shards)
        except BaseException:
            with self._lock:
                if not self._local.holds_foreign:
                    self._forget(shards)
            raise
        again_at = self._clock() + self._shared.commit_timeout_seconds / LOOKS_PER_COMMIT_TIMEOUT
        with self._lock:
            for shard, standpoint in standpoints.items():
                is_foreign = standpoint.standing is Standing.FOREIGN
                self._local.settle(shard, standpoint, again_at if is_foreign else 0.0)

    def _release(self) -> None:
        with self._lock:
            receipts, left = self._local.release()
        if receipts:
            self._queue.acknowledge(receipts)
        if left:
            _logger.info("%d messages are left to other pipelines", left)

    def _note(self, outcome: Outcome) -> None:
        for file in outcome.files:
            if file.fate in (Fate.FINISHED, Fate.DEAD):
                self._local.settle(file.shard, Standpoint(Standing.ENDED))
            elif file.fate is Fate.FENCED:
                self._local.settle(file.shard, Standpoint(Standing.FOREIGN))
            else:
                first, most = RETRY_SECONDS
                delay = 0.0
                if file.fate is Fate.FAILED:
                    delay = min(most, first * 2 ** min(20, max(0, file.failures - 1)))
                self._local.settle(
                    file.shard,
                    Standpoint(Standing.OWN, file.position, file.failures),
                    self._clock() + delay if delay else 0.0,
                    is_whole=file.is_whole,
                )

    def _resume(self, claim: Claim) -> None:
        """Take over a claim that an earlier process made: its messages are extended at once."""
        for file in claim.files:
            self._local.files[file.shard] = LocalFile(file, Phase.IN_PROGRESS)
        claimed = {file.shard for file in claim.files}
        for each in claim.messages:
            message = QueueMessage(each.id, each.receipt, "", 0, deadline=0.0)  # Nobody knows it.
            # Of the files that are not claimed, nothing is known here: the message comes again.
            foreign = not claimed.issuperset(each.shards)
            self._local.resume(message, each.shards, claimed.intersection(each.shards))
            self._local.messages[each.id].foreign = foreign
        self._open[claim.number] = claim

    def _forget(self, shards: list[str]) -> None:
        """Let go of files of which it could not be found out whose they are."""
        for shard in shards:
            self._local.settle(shard, Standpoint(Standing.FOREIGN))
        self._local.release()
