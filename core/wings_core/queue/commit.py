"""The commit of a claim: publishes its rows exactly once, and acknowledges its messages.

    read ─▶ last extension ─▶ publish stages and shards in one transaction ─▶ acknowledge ─▶ done

A crash between any two of these is repaired by repeating all of them: a repeated publish returns
its first result, and a redelivered message finds its files finished.
"""

import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from wings_core.errors import PublishFenced, WingsError
from wings_core.model import ShardProgress, ShardState
from wings_core.queue.interfaces import Queue, extend_all
from wings_core.queue.journal import (
    DEAD_FATES,
    Claim,
    ClaimedFile,
    Fate,
    FileOutcome,
    FileReport,
    FileResult,
    Journal,
    Outcome,
    results_by_shard,
)
from wings_core.queue.state import STALE_COMMIT_TIMEOUTS, QueueSharedState, Standing
from wings_core.times import now_us

ERROR_CHARACTERS_MAX = 500
"""Most characters of a file's error that are stored."""

_logger = logging.getLogger(__name__)


class Replayable(Protocol):
    """The result of a publish."""

    @property
    def replayed(self) -> bool:
        """Whether the batch had been published before."""
        ...


class Publisher(Protocol):
    """Publishes and aborts stages; `wings_client.Client` implements it."""

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
        """Delete unpublished stages, by ids or by a prefix of ids."""
        ...


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A file that failed for the last time."""

    file: ClaimedFile
    error: str
    failures: int


StageDead = Callable[[Sequence[DeadLetter], str], str | None]
"""Stages dead letters, and returns the stage's id, which begins with the second argument; None if
the source has no topic for them."""


StageHistory = Callable[[int, Sequence[FileReport], str], str | None]
"""Stages the history of a claim's files, given the claim's number; otherwise as `StageDead`."""

Dispose = Callable[[Sequence[tuple[ClaimedFile, str]]], None]
"""Archives or deletes files, given with the versions read; called at least once for each, and again
after a crash. Logs permanent failures, and raises for those to retry."""


def writer_of(source: str, token: str) -> str:
    """Return the name of the writer that a pipeline publishes as, with claim numbers as batches."""
    return f"ingest:{source}:{token}"


def stage_prefix(token: str, claim: int) -> str:
    """Return the common prefix of the ids of a claim's stages."""
    return f"ingest.{token}.{claim}."


def mark_prefix(token: str, claim: int) -> str:
    """Return the common prefix of the ids of a claim's marks: empty stages that record progress."""
    return f"ingest-began.{token}.{claim}."


@dataclass(frozen=True, slots=True, eq=False)
class Committer:
    """Commits the claims of one pipeline.

    Args:
        queue: Source of their messages.
        shared: The files of the source.
        journal: Stores the claims.
        publisher: Publishes and aborts stages.
        attempts_max: Failed attempts after which a file is dead.
        stage_dead: Stages dead letters.
        stage_history: Stages the history of each file, whatever its outcome.
        dispose: Archives or deletes completely published files; None to leave them.
    """

    _queue: Queue
    _shared: QueueSharedState
    _journal: Journal
    _publisher: Publisher
    _attempts_max: int
    _stage_dead: StageDead
    _stage_history: StageHistory
    _dispose: Dispose | None

    @property
    def _writer(self) -> str:
        return writer_of(self._shared.source, self._shared.token)

    def commit(self, claim: Claim, results: Sequence[FileResult]) -> Outcome:
        """Publish the stages of a claim, and acknowledge its messages; idempotent.

        Args:
            claim: From the journal.
            results: A result for each of its files or their sections; empty if it is known to be
                published.

        Raises:
            WingsError: The server or the queue failed; a retry is safe.
        """
        found = results_by_shard(results)
        self._mark_read(claim, found)
        self._extend(claim)
        outcome = self._publish(claim, found)
        self._dispose_of(claim, outcome)
        # Remaining stages belong to killed tasks, and to files that another pipeline took over.
        with contextlib.suppress(WingsError):
            for prefix in (stage_prefix, mark_prefix):
                self._publisher.abort(
                    self._writer, (), prefix=prefix(self._shared.token, claim.number)
                )
        self.acknowledge(claim)
        self._journal.mark_done(outcome)
        return outcome

    def acknowledge(self, claim: Claim) -> None:
        """Acknowledge the messages of a claim all of whose files ended, in whichever claim."""
        shards = {shard for message in claim.messages for shard in message.shards}
        found = self._shared.look(shards)
        ended = {shard for shard, each in found.items() if each.standing is Standing.ENDED}
        receipts = [each.receipt for each in claim.messages if ended.issuperset(each.shards)]
        if receipts:
            self._queue.acknowledge(receipts)

    def _mark_read(self, claim: Claim, results: Mapping[str, FileResult]) -> None:
        if (
            self._dispose is None or not results
        ):  # Without results, the versions are recorded already.
            self._journal.mark_read(claim.number)
            return
        versions = {
            shard: each.seen
            for shard, each in results.items()
            if each.finished and each.seen is not None and not each.superseded
        }
        self._journal.mark_read(claim.number, versions)

    def _dispose_of(self, claim: Claim, outcome: Outcome) -> None:
        """Dispose of the files that are published to their end, in the version that was read."""
        if self._dispose is None:
            return
        versions = self._journal.versions_read(claim.number)
        finished = {each.shard for each in outcome.files if each.fate is Fate.FINISHED}
        found = [
            (file, versions[file.shard])
            for file in claim.files
            if file.shard in finished and file.shard in versions
        ]
        if found:
            self._dispose(found)

    def _extend(self, claim: Claim) -> None:
        """Extend the messages for the last time: the coordinator does not during the commit."""
        seconds = STALE_COMMIT_TIMEOUTS * self._shared.commit_timeout_seconds
        _, problem = extend_all(
            self._queue, {message.id: message.receipt for message in claim.messages}, seconds
        )
        if problem is not None:
            # A lost one is delivered again, and finds its files finished.
            _logger.warning("messages could not be extended for their commit: %s", problem)

    def _publish(self, claim: Claim, results: Mapping[str, FileResult]) -> Outcome:
        fenced: set[str] = set()
        while True:
            files = [file for file in claim.files if file.shard not in fenced]
            progressed = [self._results_of(file, results.get(file.shard)) for file in files]
            stages = [
                stage
                for file in files
                if (result := results.get(file.shard)) is not None and result.error is None
                for stage in result.stages
            ]
            dead = [
                DeadLetter(file, outcome.error or "", outcome.failures)
                for file, (_, outcome) in zip(files, progressed, strict=True)
                if outcome.fate in DEAD_FATES
            ]
            prefix = stage_prefix(self._shared.token, claim.number)
            dead_stage = self._stage_dead(dead, prefix) if dead else None
            if dead_stage is not None:
                stages.append(dead_stage)
            reports = [
                FileReport(file, outcome, results.get(file.shard))
                for file, (_, outcome) in zip(files, progressed, strict=True)
            ]
            history = self._stage_history(claim.number, reports, prefix)
            if history is not None:
                stages.append(history)
            progress = [each for each, _ in progressed]
            try:
                published = self._publisher.publish(self._writer, claim.number, stages, progress)
            except PublishFenced as error:
                shard = error.facts.get("shard")
                if shard not in {file.shard for file in files}:
                    raise
                # Another pipeline took this one over; the others are unaffected.
                fenced.add(str(shard))
                continue
            if published.replayed:
                return self._found(claim)
            outcomes = [outcome for _, outcome in progressed]
            outcomes += [
                FileOutcome(shard=file.shard, fate=Fate.FENCED, position=file.position)
                for file in claim.files
                if file.shard in fenced
            ]
            return Outcome(number=claim.number, published_at=now_us(), files=tuple(outcomes))

    def _results_of(
        self, file: ClaimedFile, result: FileResult | None
    ) -> tuple[ShardProgress, FileOutcome]:
        """Return a file's progress to publish, and its outcome."""
        if result is None:
            result = FileResult(file.shard, error="it was not read")
        if result.error is not None:
            error = result.error[:ERROR_CHARACTERS_MAX]
            failures = file.failures + 1
            fate = Fate.FAILED
            if result.permanent or failures >= self._attempts_max:
                fate = Fate.REFUSED if result.refused else Fate.DEAD
            state = ShardState.DEAD if fate in DEAD_FATES else ShardState.OPEN
            return (
                self._progress(file, file.position, state, error),
                FileOutcome(
                    shard=file.shard,
                    fate=fate,
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
        """Return the outcome of a claim that had been published before, from its shards."""
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
