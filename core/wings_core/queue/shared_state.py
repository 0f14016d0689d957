"""What all pipelines of a source know of its files: the shards in the metadata."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from wings_core.model import Shard, ShardsPruned, ShardState

STALE_COMMIT_TIMEOUTS = 2
"""An owner that was not heard of for so many commit timeouts is replaced."""

SHARDS_CALL_MAX = 1_000
"""Shards of one call."""


class ShardService(Protocol):
    """Where shards are kept; the client of a server is one."""

    def open_shards(self, source: str, token: str, shards: Iterable[str]) -> list[Shard]:
        """Create shards that are not there, and return all."""
        ...

    def acquire_shards(
        self, source: str, token: str, claims: Mapping[str, str], stale_seconds: float
    ) -> list[Shard]:
        """Take over shards from owners that were not heard of."""
        ...

    def get_shards(self, source: str, shards: Iterable[str]) -> list[Shard]:
        """Return those that are there."""
        ...

    def prune_shards(
        self,
        source: str,
        age_seconds: float,
        *,
        count_max: int | None = None,
        interval_seconds: float = 0.0,
    ) -> ShardsPruned:
        """Forget shards that ended long ago."""
        ...


class Standing(Enum):
    """Whose a file is."""

    OWN = "own"
    ENDED = "ended"
    """All of it is published, or it was given up."""
    FOREIGN = "foreign"
    """Another pipeline reads it."""


@dataclass(frozen=True, slots=True)
class Standpoint:
    """Whose a file is, and where it stands."""

    standing: Standing
    position: int = 0
    failures: int = 0
    is_dead: bool = False
    """Whether it ended by being given up."""
    error: str | None = None
    """Why it failed last."""


class QueueSharedState:
    """Asks and tells the metadata of the files of one source.

    Args:
        service: Where the shards are.
        source: The source's name.
        token: Of this pipeline.
        commit_timeout_seconds: How long a commit may take; a multiple of it makes an owner stale.
    """

    def __init__(
        self, service: ShardService, source: str, token: str, commit_timeout_seconds: float
    ) -> None:
        self._service = service
        self.source = source
        self.token = token
        self.commit_timeout_seconds = commit_timeout_seconds

    def open(self, shards: Iterable[str]) -> dict[str, Standpoint]:
        """Open files, take over those of stale owners, and tell whose each is.

        Raises:
            WingsError: The server refused, or cannot be reached.
        """
        wanted = list(shards)
        found: dict[str, Standpoint] = {}
        for first in range(0, len(wanted), SHARDS_CALL_MAX):
            part = wanted[first : first + SHARDS_CALL_MAX]
            opened = {
                shard.shard: shard
                for shard in self._service.open_shards(self.source, self.token, part)
            }
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
        """Say that the owner of these files is alive."""
        wanted = list(shards)
        for first in range(0, len(wanted), SHARDS_CALL_MAX):
            self._acquire(dict.fromkeys(wanted[first : first + SHARDS_CALL_MAX], self.token))

    def look(self, shards: Iterable[str]) -> dict[str, Standpoint]:
        """Tell whose files are, and where they stand; one that is not there is in no answer."""
        wanted = list(shards)
        found: dict[str, Standpoint] = {}
        for first in range(0, len(wanted), SHARDS_CALL_MAX):
            part = wanted[first : first + SHARDS_CALL_MAX]
            for shard in self._service.get_shards(self.source, part):
                found[shard.shard] = self._standpoint(shard)
        return found

    def prune(self, window_seconds: float, interval_seconds: float) -> ShardsPruned:
        """Forget files that ended before the deduplication window, unless somebody just did."""
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
