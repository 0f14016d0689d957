"""Commit: what was read of a claim becomes visible, once, and its messages are acknowledged.

    read ─▶ last extension ─▶ publish stages and shards in one transaction ─▶ acknowledge ─▶ done

A crash between any two of these is made good by doing all of it again: the publish is answered with
its first result, and a message that comes again finds its files finished.
"""

import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from wings_core.errors import PublishFenced, WingsError
from wings_core.model import ShardProgress, ShardState
from wings_core.queue.claims import (
    Claim,
    ClaimedFile,
    Fate,
    FileOutcome,
    FileResult,
    Outcome,
    results_by_shard,
)
from wings_core.queue.extend import extend_all
from wings_core.queue.interfaces import Queue
from wings_core.queue.journal import Journal
from wings_core.queue.shared_state import STALE_COMMIT_TIMEOUTS, QueueSharedState, Standing
from wings_core.times import now_us

ERROR_CHARACTERS_MAX = 500
"""Of a file's error that is remembered."""

_logger = logging.getLogger(__name__)


class Replayable(Protocol):
    """What a publish answers."""

    @property
    def replayed(self) -> bool:
        """Whether it had been published before."""
        ...


class Publisher(Protocol):
    """Who publishes; the client of a server is one."""

    def publish(
        self,
        writer: str,
        batch: int,
        stages: Iterable[str],
        shards: Iterable[ShardProgress] = (),
    ) -> Replayable:
        """Make stages visible and move shards, in one transaction."""
        ...

    def abort(
        self,
        writer: str,
        stages: Iterable[str],
        batch: int | None = None,
        *,
        prefix: str | None = None,
    ) -> object:
        """Delete stages that were not published, by ids or by what ids begin with."""
        ...


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A file that failed for the last time."""

    file: ClaimedFile
    error: str
    failures: int


StageDead = Callable[[Sequence[DeadLetter], str], str | None]
"""Stages dead letters where the source wants them, and returns the stage, whose id begins as the
second argument says; None: nowhere."""


def writer_of(source: str, token: str) -> str:
    """Return the writer as whom a pipeline publishes; its batches are the claims' numbers."""
    return f"ingest:{source}:{token}"


def stage_prefix(token: str, claim: int) -> str:
    """Return what the ids of all stages begin with that a pipeline writes for a claim."""
    return f"ingest.{token}.{claim}."


def mark_prefix(token: str, claim: int) -> str:
    """Return what the ids of the empty stages begin with that tell what a claim's tasks began."""
    return f"ingest-began.{token}.{claim}."


class Committer:
    """Commits claims of one pipeline.

    Args:
        queue: Where their messages came from.
        shared: What is known of files.
        journal: Where the claims are kept.
        publisher: Publishes.
        attempts_max: A file that failed so often is given up.
        stage_dead: Where dead letters go.
    """

    def __init__(
        self,
        queue: Queue,
        shared: QueueSharedState,
        journal: Journal,
        publisher: Publisher,
        attempts_max: int,
        stage_dead: StageDead = lambda _letters, _prefix: None,
    ) -> None:
        self._queue = queue
        self._shared = shared
        self._journal = journal
        self._publisher = publisher
        self._attempts_max = attempts_max
        self._stage_dead = stage_dead
        self._writer = writer_of(shared.source, shared.token)

    def commit(self, claim: Claim, results: Sequence[FileResult]) -> Outcome:
        """Publish what was read of a claim, and acknowledge its messages; again does no harm.

        Args:
            claim: From the journal.
            results: One for each of its files; none where it is known to have been published.

        Raises:
            WingsError: The server or the queue failed; the same again is safe.
        """
        self._journal.mark_read(claim.number)
        self._extend(claim)
        outcome = self._publish(claim, results_by_shard(results))
        # What is left is of tasks that were killed, and of files that are another pipeline's.
        with contextlib.suppress(WingsError):
            for prefix in (stage_prefix, mark_prefix):
                self._publisher.abort(
                    self._writer, (), prefix=prefix(self._shared.token, claim.number)
                )
        self.acknowledge(claim)
        self._journal.mark_done(outcome)
        return outcome

    def acknowledge(self, claim: Claim) -> None:
        """Acknowledge the messages of a claim all of whose files ended, in whatever claim."""
        shards = {shard for message in claim.messages for shard in message.shards}
        found = self._shared.look(shards)
        ended = {shard for shard, each in found.items() if each.standing is Standing.ENDED}
        receipts = [each.receipt for each in claim.messages if ended.issuperset(each.shards)]
        if receipts:
            self._queue.acknowledge(receipts)

    def _extend(self, claim: Claim) -> None:
        """Extend the messages for the last time: nobody will while they await their commit."""
        seconds = STALE_COMMIT_TIMEOUTS * self._shared.commit_timeout_seconds
        _, problem = extend_all(
            self._queue, {message.id: message.receipt for message in claim.messages}, seconds
        )
        if problem is not None:
            # One that is lost comes again, and finds its files finished.
            _logger.warning("messages could not be extended for their commit: %s", problem)

    def _publish(self, claim: Claim, results: Mapping[str, FileResult]) -> Outcome:
        fenced: set[str] = set()
        while True:
            files = [file for file in claim.files if file.shard not in fenced]
            told = [self._told(file, results.get(file.shard)) for file in files]
            stages = [
                stage
                for file in files
                if (result := results.get(file.shard)) is not None and result.error is None
                for stage in result.stages
            ]
            dead = [
                DeadLetter(file, outcome.error or "", outcome.failures)
                for file, (_, outcome) in zip(files, told, strict=True)
                if outcome.fate is Fate.DEAD
            ]
            prefix = stage_prefix(self._shared.token, claim.number)
            dead_stage = self._stage_dead(dead, prefix) if dead else None
            if dead_stage is not None:
                stages.append(dead_stage)
            progress = [each for each, _ in told]
            try:
                published = self._publisher.publish(self._writer, claim.number, stages, progress)
            except PublishFenced as error:
                shard = error.facts.get("shard")
                if shard not in {file.shard for file in files}:
                    raise
                # Somebody else has gone on with this one; the others are as good as they were.
                fenced.add(str(shard))
                continue
            if published.replayed:
                return self._found(claim)
            outcomes = [outcome for _, outcome in told]
            outcomes += [
                FileOutcome(shard=file.shard, fate=Fate.FENCED, position=file.position)
                for file in claim.files
                if file.shard in fenced
            ]
            return Outcome(number=claim.number, published_at=now_us(), files=tuple(outcomes))

    def _told(
        self, file: ClaimedFile, result: FileResult | None
    ) -> tuple[ShardProgress, FileOutcome]:
        """Return what to publish of a file, and what becomes of it then."""
        if result is None:
            result = FileResult(file.shard, error="it was not read")
        if result.error is not None:
            error = result.error[:ERROR_CHARACTERS_MAX]
            failures = file.failures + 1
            is_dead = result.permanent or failures >= self._attempts_max
            state = ShardState.DEAD if is_dead else ShardState.OPEN
            return (
                self._progress(file, file.position, state, error),
                FileOutcome(
                    shard=file.shard,
                    fate=Fate.DEAD if is_dead else Fate.FAILED,
                    position=file.position,
                    failures=failures,
                    error=error,
                ),
            )
        state = ShardState.FINISHED if result.finished else ShardState.OPEN
        next_position = file.position + result.rows
        return (
            self._progress(file, next_position, state, None),
            FileOutcome(
                shard=file.shard,
                fate=Fate.FINISHED if result.finished else Fate.PARTIAL,
                position=next_position,
                rows=result.rows,
                rescued=result.rescued,
                bytes=result.bytes,
                failures=file.failures if result.is_whole else 0,
                is_whole=result.is_whole,
            ),
        )

    def _progress(
        self, file: ClaimedFile, next_position: int, state: ShardState, error: str | None
    ) -> ShardProgress:
        return ShardProgress(
            self._shared.source,
            file.shard,
            self._shared.token,
            file.position,
            next_position,
            state,
            error,
        )

    def _found(self, claim: Claim) -> Outcome:
        """Tell from the shards what became of a claim that had been published before."""
        found = self._shared.look(file.shard for file in claim.files)
        outcomes: list[FileOutcome] = []
        for file in claim.files:
            now = found.get(file.shard)
            if now is None or now.standing is Standing.ENDED:
                fate = Fate.DEAD if now is not None and now.is_dead else Fate.FINISHED
            elif now.standing is Standing.FOREIGN:
                fate = Fate.FENCED
            else:
                fate = Fate.FAILED if now.position == file.position else Fate.PARTIAL
            position = file.position if now is None else now.position
            outcomes.append(
                FileOutcome(
                    shard=file.shard,
                    fate=fate,
                    position=position,
                    rows=max(0, position - file.position),
                    failures=0 if now is None else now.failures,
                    error=None if now is None or now.standing is Standing.FOREIGN else now.error,
                )
            )
        return Outcome(number=claim.number, published_at=now_us(), files=tuple(outcomes))
