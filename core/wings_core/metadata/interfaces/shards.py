"""The progress of sources that are read into the log once."""

from collections.abc import Sequence
from typing import Protocol

from wings_core.model import Shard, ShardClaim, ShardCounts, ShardsPruned, ShardState


class Shards(Protocol):
    """The shards of sources, which many readers read into the log once between them.

    A shard is a file, or anything else that is announced at least once. The first reader to open it
    owns it by a token; its progress is published together with its rows (`Stages.publish`), only by
    its owner and only from its stored position. A stale owner is replaced by compare-and-set.
    A finished shard is remembered until it is pruned, so that it is not read again.
    """

    def open(self, source: str, token: str, shards: Sequence[str]) -> list[Shard]:
        """Create the missing shards, owned by `token`, and return all of them.

        Args:
            source: Whose they are.
            token: Of the reader; not empty.
            shards: Each once; up to `SHARDS_MAX`.

        Returns:
            One for each, in the order given. Existing ones are not changed.

        Raises:
            InvalidArgument: An id that is empty, too long or not text, or one named twice.
        """
        ...

    def acquire(
        self, source: str, token: str, claims: Sequence[ShardClaim], stale_seconds: float
    ) -> list[Shard]:
        """Take over open shards from stale owners, or renew the ownership of one's own.

        A shard becomes the token's if it is open, its owner is the one that the claim names, and
        that is the token itself, none, or one that has not renewed for `stale_seconds`.

        Args:
            source: Whose they are.
            token: Of the owner to be; not empty.
            claims: For each shard once; up to `SHARDS_MAX`.
            stale_seconds: By the clock of the metadata.

        Returns:
            The existing ones, in the order given, as they are now: `token` owns those that name it.

        Raises:
            InvalidArgument: An id that is empty, too long or not text, or one named twice.
        """
        ...

    def reset(self, source: str, shards: Sequence[str]) -> list[Shard]:
        """Open dead shards again, without an owner and without failures.

        Returns:
            Those that were dead, as they are now, in the order given.

        Raises:
            InvalidArgument: An id that is empty, too long or not text, or one named twice.
        """
        ...

    def get(self, source: str, shards: Sequence[str]) -> list[Shard]:
        """Return the existing ones of the shards, in the order given.

        Raises:
            InvalidArgument: An id that is empty, too long or not text, or one named twice.
        """
        ...

    def of_source(
        self, source: str, state: ShardState | None, after: str, shards_max: int
    ) -> list[Shard]:
        """Return shards of a source, by id in UTF-8.

        Args:
            source: Whose they are.
            state: Only those in this state; None: all.
            after: The first ones whose id is greater.
            shards_max: At most so many, and at most `SHARDS_MAX`.
        """
        ...

    def sources(self, sources_max: int, *, after: str | None = None) -> list[str]:
        """Return the sources that have shards, by name in UTF-8.

        Args:
            sources_max: The first so many.
            after: Of those whose name is greater; None: of all.
        """
        ...

    def count(self, source: str) -> ShardCounts:
        """Count the shards of a source."""
        ...

    def prune(
        self, source: str, age_seconds: float, count_max: int | None, interval_seconds: float
    ) -> ShardsPruned:
        """Delete shards that finished or died long ago, the oldest first.

        Does nothing where another pruning of the source began less than an interval ago, so that of
        many pipelines one prunes. An open shard is never deleted. At most `PRUNED_MAX` are deleted
        at once.

        Args:
            source: Whose they are.
            age_seconds: Those that have not changed for so long are deleted.
            count_max: And those older than the newest so many; None: no matter how many.
            interval_seconds: Between two prunings.
        """
        ...
