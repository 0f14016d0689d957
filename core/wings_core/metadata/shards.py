"""The rules of shards, the same in every store: the bounds of requests, and what a publish changes.

A publish names a shard's position and owner. Where either is wrong, another reader owns the shard
by now, or its owner repeats itself: the publish is fenced as a whole.
"""

from collections.abc import Sequence
from dataclasses import replace

from wings_core.contracts.messages import shortened
from wings_core.errors import InvalidArgument, PublishFenced
from wings_core.metadata.checks import check_id, check_text
from wings_core.metadata.interfaces import OFFSET_MAX
from wings_core.model import Shard, ShardClaim, ShardProgress, ShardState

SHARDS_MAX = 10_000
"""The most shards of one call, or of one publish."""

SHARD_BYTES_MAX = 2_048
"""The longest id of a shard, in UTF-8: a file's URI and version."""

ERROR_BYTES_MAX = 1_024
"""Longest error that is stored, in UTF-8; a longer one is cut."""

PRUNED_MAX = 10_000
"""The most shards that one pruning forgets."""

SECONDS_MAX = 100 * 366 * 86_400.0
"""The longest time that a call may name."""


def check_shards(source: str, token: str | None, shards: Sequence[str]) -> None:
    """Check the ids of a request.

    Args:
        source: The source.
        token: Token of an owner; None where the request names none.
        shards: Ids.

    Raises:
        InvalidArgument: One is empty, too long or not text, an id is named twice, or there are more
            than `SHARDS_MAX`.
    """
    _check_source(source)
    if token is not None:
        _check_token(token)
    if len(shards) > SHARDS_MAX:
        raise InvalidArgument(f"{len(shards)} shards, at most {SHARDS_MAX} are allowed at once")
    for shard in shards:
        _check_shard(shard)
    if len(set(shards)) < len(shards):
        raise InvalidArgument("a shard is named twice")


def check_claims(source: str, token: str, claims: Sequence[ShardClaim]) -> None:
    """Check the ids and tokens of claims; see `check_shards`."""
    check_shards(source, token, [claim.shard for claim in claims])
    for claim in claims:
        check_id("a shard's token", claim.token)


def check_seconds(what: str, seconds: float) -> None:
    """Check a length of time.

    Raises:
        InvalidArgument: It is not within 0 to `SECONDS_MAX`.
    """
    if not 0 <= seconds <= SECONDS_MAX:
        raise InvalidArgument(f"{what} is {seconds}, expected 0 to {SECONDS_MAX:.0f} seconds")


def check_progress(shards: Sequence[ShardProgress]) -> None:
    """Check the progress of shards that a publish stores, without their stored state.

    Raises:
        InvalidArgument: An id that cannot be stored, a shard named twice, a position out of range
            or behind the last one, or a failure together with progress.
    """
    if len(shards) > SHARDS_MAX:
        raise InvalidArgument(f"{len(shards)} shards, at most {SHARDS_MAX} are allowed at once")
    if len({(each.source, each.shard) for each in shards}) < len(shards):
        raise InvalidArgument("a shard is named twice")
    for each in shards:
        _check_source(each.source)
        _check_token(each.token)
        _check_shard(each.shard)
        if not 0 <= each.position <= each.next_position <= OFFSET_MAX:
            raise InvalidArgument(
                f"shard {each.shard!r:.80} cannot go from {each.position} to {each.next_position}"
            )
        if each.error is not None and each.next_position != each.position:
            raise InvalidArgument(f"shard {each.shard!r:.80} both failed and got on")


def moved(stored: Shard | None, progress: ShardProgress, now: int) -> Shard:
    """Return a shard as a publish leaves it.

    Args:
        stored: The stored shard; None where it is not there.
        progress: Progress in the publish.
        now: Microseconds since the epoch.

    Raises:
        PublishFenced: The publisher does not own it, or it stands elsewhere.
    """
    if stored is None:
        raise _fenced(progress, "is not there: it was never opened, or was pruned")
    if stored.state is not ShardState.OPEN:
        raise _fenced(progress, f"is {stored.state} already")
    if stored.token != progress.token:
        raise _fenced(progress, "has another owner by now")
    if stored.position != progress.position:
        raise _fenced(progress, f"stands at {stored.position}, not {progress.position}")
    if progress.error is not None:
        failures, error = stored.failures + 1, cut_error(progress.error)
    elif progress.next_position > progress.position or progress.state is ShardState.FINISHED:
        failures, error = 0, None
    else:
        failures, error = stored.failures, stored.error
    return replace(
        stored,
        position=progress.next_position,
        state=progress.state,
        failures=failures,
        error=error,
        updated_at=now,
    )


def cut_error(text: str) -> str:
    """Return an error's text as every store can keep it: shortened, U+FFFD in place of NUL."""
    return shortened(text.replace("\0", "\ufffd"), ERROR_BYTES_MAX)


def _fenced(progress: ShardProgress, why: str) -> PublishFenced:
    return PublishFenced(
        f"shard {progress.shard!r:.200} {why}", source=progress.source, shard=progress.shard
    )


def _check_source(source: str) -> None:
    if not source:
        raise InvalidArgument("a source is named")
    check_id("the source", source)


def _check_token(token: str) -> None:
    if not token:
        raise InvalidArgument("an owner's token is not empty")
    check_id("the token", token)


def _check_shard(shard: str) -> None:
    if not shard:
        raise InvalidArgument("a shard's id is not empty")
    check_text("the id of a shard", shard, SHARD_BYTES_MAX)
