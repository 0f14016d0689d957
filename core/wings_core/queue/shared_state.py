"""The state of a source's files that all its pipelines share: shards in metadata."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Protocol

from wings_core.model import Shard, ShardsPruned, ShardState

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


@dataclass(frozen=True, slots=True, eq=False)
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
