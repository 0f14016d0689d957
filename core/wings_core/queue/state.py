"""The state of a source's files: as one pipeline sees them, and as all its pipelines share them.

    ready ─▶ in progress ─▶ awaiting commit ─▶ completed
      ▲                            │
      └── it has more rows, or failed and is retried

A message is complete when all files that it announced are. Then it is acknowledged, unless one of
the files belongs to another pipeline, in which case it is left to be delivered again. If the queue
limits deliveries, it is held instead, and the file's owner is looked up again. Which pipeline owns
a file is a shard in metadata.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from types import MappingProxyType
from typing import Protocol

from wings_core.model import Shard, ShardsPruned, ShardState
from wings_core.queue.interfaces import QueueMessage
from wings_core.queue.journal import ClaimedFile
from wings_core.queue.notifications import FileNotification

STALE_COMMIT_TIMEOUTS = 2
"""Commit timeouts without a renewal after which an owner is replaced."""

SHARDS_CALL_MAX = 1_000
"""Most shards of one call."""


class ShardService(Protocol):
    """Stores shards; `wings_client.Client` implements it."""

    def open_shards(self, source: str, token: str, shards: Iterable[str]) -> list[Shard]:
        """Create missing shards, and return all of them."""
        ...

    def acquire_shards(
        self, source: str, token: str, claims: Mapping[str, str], stale_seconds: float
    ) -> list[Shard]:
        """Take over shards from stale owners, and renew those of `token`."""
        ...

    def get_shards(self, source: str, shards: Iterable[str]) -> list[Shard]:
        """Return the existing shards."""
        ...

    def reset_shards(self, source: str, shards: Iterable[str]) -> list[Shard]:
        """Reopen dead shards, and return them."""
        ...

    def prune_shards(
        self,
        source: str,
        age_seconds: float,
        *,
        count_max: int | None = None,
        interval_seconds: float = 0.0,
    ) -> ShardsPruned:
        """Delete shards that ended more than `age_seconds` ago."""
        ...


class Standing(Enum):
    """Ownership of a file."""

    OWN = "own"
    ENDED = "ended"
    """All of it is published, or it is dead."""
    FOREIGN = "foreign"
    """Another pipeline reads it."""


@dataclass(frozen=True, slots=True)
class Standpoint:
    """A file's owner and position."""

    standing: Standing
    position: int = 0
    failures: int = 0
    is_dead: bool = False
    """Whether the file failed too often."""
    error: str | None = None
    """Its last failure."""


class Phase(Enum):
    """A file's progress in this pipeline."""

    NEW = "new"
    """Its owner is not known yet."""
    READY = "ready"
    IN_PROGRESS = "in progress"
    AWAITING_COMMIT = "awaiting commit"
    FOREIGN = "foreign"
    """Another pipeline reads it, and its messages are held."""


@dataclass(slots=True)
class LocalFile:
    """A file that this pipeline is to read."""

    file: ClaimedFile
    phase: Phase = Phase.NEW
    not_before: float = 0.0
    """The earliest time to claim it, in seconds since the epoch."""
    retry_of: int | None = None
    """Time of death, in microseconds since the epoch, if another read is requested; a file that
    died     at another time is not read again."""


@dataclass(slots=True)
class LocalMessage:
    """A message that is not complete."""

    message: QueueMessage
    shards: tuple[str, ...]
    waiting: set[str]
    """Shards that are not completed."""
    foreign: bool = False
    """Whether one of its files belongs to another pipeline."""
    lost: bool = False
    """Whether the message was, or may be, delivered again."""


@dataclass(slots=True)
class QueueLocalState:
    """The files and messages of one pipeline; used under its coordinator's lock."""

    holds_foreign: bool = False
    """Whether messages of another pipeline's files are held, instead of left to their deadlines."""
    files: dict[str, LocalFile] = field(default_factory=dict[str, LocalFile])
    """Files by shard, in order of arrival."""
    messages: dict[str, LocalMessage] = field(default_factory=dict[str, LocalMessage])
    """Messages by id."""

    def add(self, message: QueueMessage, notifications: Sequence[FileNotification]) -> None:
        """Add a message and its files; a redelivered one only changes its receipt and deadline."""
        known = self.messages.get(message.id)
        if known is not None:
            known.message = message
            known.lost = False
            return
        for notification in notifications:
            local = self.files.get(notification.shard)
            if local is None:
                local = self.files[notification.shard] = LocalFile(_claimed(notification))
            if notification.retry_of is not None:
                local.retry_of = notification.retry_of
        shards = tuple(notification.shard for notification in notifications)
        self.messages[message.id] = LocalMessage(message, shards, set(shards))

    def resume(self, message: QueueMessage, shards: tuple[str, ...], waiting: set[str]) -> None:
        """Add a message of a claim that an earlier process made."""
        self.messages[message.id] = LocalMessage(message, shards, waiting)

    def set_standpoint(
        self,
        shard: str,
        standpoint: Standpoint,
        not_before: float = 0.0,
        *,
        is_whole: bool = False,
    ) -> None:
        """Set a file's owner and position; drops a file that ended or is another pipeline's.

        Args:
            shard: Shard of the file; unknown ones are ignored.
            standpoint: Owner and position.
            not_before: Earliest time of its next claim or look-up, in seconds since the epoch.
            is_whole: Whether the file must be read whole.
        """
        local = self.files.get(shard)
        if local is None:
            return
        if standpoint.standing is Standing.OWN:
            update = {
                "position": standpoint.position,
                "failures": standpoint.failures,
                "is_whole": is_whole or local.file.is_whole,
            }
            local.file = local.file.model_copy(update=update)
            local.phase, local.not_before = Phase.READY, not_before
            local.retry_of = None
            return
        if local.retry_of is not None and local.phase is not Phase.NEW:
            # The message that requests another read arrived before the file's end was known here.
            local.phase, local.not_before = Phase.NEW, 0.0
            return
        if standpoint.standing is Standing.FOREIGN and self.holds_foreign:
            local.phase, local.not_before = Phase.FOREIGN, not_before
            return
        del self.files[shard]
        for message in self.messages.values():
            if shard in message.waiting:
                message.waiting.discard(shard)
                message.foreign |= standpoint.standing is Standing.FOREIGN

    def without_standpoint(self, now: float) -> list[str]:
        """Return the shards whose owners must be looked up now."""
        return [
            shard
            for shard, local in self.files.items()
            if local.phase in (Phase.NEW, Phase.FOREIGN) and local.not_before <= now
        ]

    def retries_of(self, shards: Iterable[str]) -> dict[str, int]:
        """Return the times of death of shards for which another read is requested."""
        times = ((shard, self.files[shard].retry_of) for shard in shards if shard in self.files)
        return {shard: time for shard, time in times if time is not None}

    def take(self, files_max: int, bytes_max: int | None, now: float) -> list[ClaimedFile]:
        """Mark ready files as in progress, and return them, in order of arrival.

        At least one is returned if any is ready, however large.
        """
        taken: list[ClaimedFile] = []
        size = 0
        for local in self.files.values():
            if local.phase is not Phase.READY or local.not_before > now:
                continue
            size += local.file.size or 0
            if taken and (len(taken) >= files_max or (bytes_max is not None and size > bytes_max)):
                break
            local.phase = Phase.IN_PROGRESS
            taken.append(local.file)
        return taken

    def await_commit(self, shards: Iterable[str]) -> None:
        """Record that files have been read."""
        for shard in shards:
            local = self.files.get(shard)
            if local is not None and local.phase is Phase.IN_PROGRESS:
                local.phase = Phase.AWAITING_COMMIT

    def release(self) -> tuple[list[str], int]:
        """Remove the complete messages.

        Returns:
            The receipts to acknowledge, and the count of messages left to other pipelines.
        """
        done = [message for message in self.messages.values() if not message.waiting]
        for message in done:
            del self.messages[message.message.id]
        receipts = [message.message.receipt for message in done if not message.foreign]
        return receipts, len(done) - len(receipts)

    def of_files(self, shards: Iterable[str]) -> list[LocalMessage]:
        """Return the messages that announced any of these files."""
        wanted = set(shards)
        return [each for each in self.messages.values() if not wanted.isdisjoint(each.shards)]

    def to_extend(self, before: float) -> list[LocalMessage]:
        """Return the incomplete messages whose deadline is before a time.

        Messages whose files all await their commit are left out: the committer has extended them.
        """
        return [
            each
            for each in self.messages.values()
            if not each.lost
            and each.message.deadline < before
            and any(self._is_held(shard) for shard in each.waiting)
        ]

    def extended(self, message_id: str, deadline: float | None) -> None:
        """Set a message's new deadline; None marks it as lost."""
        local = self.messages.get(message_id)
        if local is None:
            return
        if deadline is None:
            local.lost = True
        else:
            local.message = replace(local.message, deadline=deadline)

    def count(self, phase: Phase) -> int:
        """Count the files in a phase."""
        return sum(local.phase is phase for local in self.files.values())

    def count_ready(self, now: float) -> int:
        """Count the files that may be claimed at a time."""
        return sum(
            local.phase is Phase.READY and local.not_before <= now for local in self.files.values()
        )

    def next_ready_at(self) -> float | None:
        """Return the time of the next ready file, in seconds since the epoch; None for never."""
        times = [local.not_before for local in self.files.values() if local.phase is Phase.READY]
        return min(times, default=None)

    def _is_held(self, shard: str) -> bool:
        local = self.files.get(shard)
        return local is not None and local.phase is not Phase.AWAITING_COMMIT


def _claimed(notification: FileNotification) -> ClaimedFile:
    return ClaimedFile(
        shard=notification.shard,
        uri=notification.uri,
        version=notification.version,
        size=notification.size,
        payload=notification.payload,
        problem=notification.problem,
    )


@dataclass(eq=False)
class QueueSharedState:
    """Reads and changes the shards of one source.

    Args:
        service: Stores the shards.
        source: The source's name.
        token: Token of this pipeline.
        commit_timeout_seconds: Longest time of a commit; an owner is stale after
            `STALE_COMMIT_TIMEOUTS` times that.
    """

    _service: ShardService
    source: str
    token: str
    commit_timeout_seconds: float

    def open(
        self, shards: Iterable[str], retries: Mapping[str, int] = MappingProxyType({})
    ) -> dict[str, Standpoint]:
        """Open files, take over those of stale owners, and return the standpoint of each.

        Args:
            shards: The files.
            retries: Times of death of files to read again, in microseconds since the epoch. A file
                that has died again since is not reopened, as its message may be delivered twice.

        Raises:
            WingsError: The server rejects the call, or cannot be reached.
        """
        wanted = list(shards)
        found: dict[str, Standpoint] = {}
        for first in range(0, len(wanted), SHARDS_CALL_MAX):
            part = wanted[first : first + SHARDS_CALL_MAX]
            opened = {
                shard.shard: shard
                for shard in self._service.open_shards(self.source, self.token, part)
            }
            again = [
                shard.shard
                for shard in opened.values()
                if shard.state is ShardState.DEAD and retries.get(shard.shard) == shard.updated_at
            ]
            if again:
                for shard in self._service.reset_shards(self.source, again):
                    opened[shard.shard] = shard
            foreign = {
                shard.shard: shard.token
                for shard in opened.values()
                if shard.state is ShardState.OPEN and shard.token != self.token
            }
            if foreign:
                for shard in self._acquire(foreign):
                    opened[shard.shard] = shard
            found.update((name, self._standpoint(shard)) for name, shard in opened.items())
        return found

    def renew(self, shards: Iterable[str]) -> None:
        """Renew this pipeline's ownership of files."""
        wanted = list(shards)
        for first in range(0, len(wanted), SHARDS_CALL_MAX):
            self._acquire(dict.fromkeys(wanted[first : first + SHARDS_CALL_MAX], self.token))

    def look(self, shards: Iterable[str]) -> dict[str, Standpoint]:
        """Return the standpoints of files, without those that are not stored."""
        wanted = list(shards)
        found: dict[str, Standpoint] = {}
        for first in range(0, len(wanted), SHARDS_CALL_MAX):
            part = wanted[first : first + SHARDS_CALL_MAX]
            for shard in self._service.get_shards(self.source, part):
                found[shard.shard] = self._standpoint(shard)
        return found

    def prune(self, window_seconds: float, interval_seconds: float) -> ShardsPruned:
        """Delete files that ended before the deduplication window.

        Does nothing if a pipeline of the source did so within `interval_seconds`.
        """
        return self._service.prune_shards(
            self.source, window_seconds, interval_seconds=interval_seconds
        )

    def _acquire(self, claims: Mapping[str, str]) -> list[Shard]:
        stale_seconds = STALE_COMMIT_TIMEOUTS * self.commit_timeout_seconds
        return self._service.acquire_shards(self.source, self.token, claims, stale_seconds)

    def _standpoint(self, shard: Shard) -> Standpoint:
        if shard.state is not ShardState.OPEN:
            standing = Standing.ENDED
        else:
            standing = Standing.OWN if shard.token == self.token else Standing.FOREIGN
        is_dead = shard.state is ShardState.DEAD
        return Standpoint(standing, shard.position, shard.failures, is_dead, shard.error)
