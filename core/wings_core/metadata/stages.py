"""The rules of stages, transactions and shards, the same in every store.

A stage is begun by the first batch of one stream and belongs to that stream and its topic. A second
stream under the same id is refused, since the rows that it repeats could not be told from those
that it adds; so is a stream that goes on after its stage was published, aborted or swept, since a
part of it would be left over. A task that is tried again takes another id.

A writer publishes batches by number, counting up, with gaps where it likes. The result of its last
one is kept for 90 days, so that no batch is published twice, however late it is repeated within
them; those before it are kept for a while. A writer that has published nothing for so long is
forgotten: else each file that was ever pushed as a whole would leave a row.

A publish names the positions and owners of its shards. Where one is wrong, another reader owns the
shard by now, or its owner repeats itself: the publish is fenced as a whole.

    joined ──▶ open ──▶ committed ─┐        an open one ends by itself at its deadline,
       ▲         └────▶ aborted  ──┤        and when its name is joined again
       └──── the next epoch ◀──────┘

The producer of a transaction joins a name and gets an id and an epoch, which fence the lives before
it, as with Kafka's transactional producers (KIP-98). Each partition that a transaction writes to
has a stage, begun with the partition's entry into the transaction: a batch that comes when the
transaction has ended finds no stage, and is refused in the transaction of metadata that would have
added it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from wings_core.contracts.messages import shortened
from wings_core.contracts.shards import SHARDS_MAX
from wings_core.errors import (
    AlreadyExists,
    BatchTooLarge,
    InvalidArgument,
    PublishFenced,
    StageNotFound,
)
from wings_core.metadata.checks import check_id, check_text
from wings_core.metadata.interfaces import OFFSET_MAX
from wings_core.model import (
    ProducerEpoch,
    Shard,
    ShardClaim,
    ShardProgress,
    ShardState,
    StagedBatch,
    StageEntry,
    StoredPage,
    Transaction,
    TransactionState,
)
from wings_core.partitions import Partition

PUBLISH_PAGES_MAX = 500_000
"""The most pages of one publish, and so of a stage: they move in one transaction."""

PUBLISH_RESULTS_KEPT_MAX = 16
"""A repeated publish is answered with its first result while it is among its writer's last this
many."""

PUBLISH_RESULTS_KEPT_US = 7 * 24 * 3600 * 1_000_000
"""Oldest age of the result's successor, in microseconds."""

WRITERS_KEPT_US = 90 * 24 * 3600 * 1_000_000
"""A writer is remembered for so long after its last publish, in microseconds: longer than any pause
after which a pipeline is started again as it was. `wings push --resume` goes back 30 days."""

ABORTED_MAX = 10_000
"""The most stages that one abort finds by the beginning of their ids."""


def after_prefix(prefix: str) -> str:
    """Return a text that is greater than all ids of stages that begin with `prefix`, in bytes."""
    return prefix + "\x7f"  # Ids are of letters, digits and `._:-`, which all come before.


@dataclass(slots=True)
class StageDraft:
    """A stage as it will be after the batches judged so far."""

    stage: str
    topic_id: int
    stage_id: int | None = None
    """None until the store gives it one."""
    writing: str = ""
    """Id of the stream that began it; empty where none did."""
    rows: int = 0
    bytes: int = 0
    pages: int = 0
    added: list[tuple[StoredPage, int | None]] = field(
        default_factory=list[tuple[StoredPage, int | None]]
    )
    """Pages of this flush with the producer's timestamp, in order."""

    def append(self, pages: Sequence[StoredPage], timestamp: int | None) -> StagedBatch:
        """Add the pages of a batch, joined where slices adjoin; returns its rows and bytes."""
        rows = sum(page.rows for page in pages)
        size = sum(page.bytes for page in pages)
        rows_before = self.rows
        self.rows += rows
        self.bytes += size
        for page in pages:
            last = self.added[-1] if self.added else None
            joined = None if last is None or last[1] != timestamp else last[0].joined(page)
            if joined is not None:
                self.added[-1] = (joined, timestamp)
                continue
            self.pages += 1
            self.added.append((page, timestamp))
        return StagedBatch(self.stage, rows, size, rows_before)


def check_entry(draft: StageDraft, entry: StageEntry) -> None:
    """Check that a batch may be added to a stage.

    Raises:
        AlreadyExists: Another stream began the stage.
        StageNotFound: The batch is not the stream's first, and its stage is gone.
    """
    if draft.writing == entry.writing:
        return
    if not entry.first:
        raise StageNotFound(
            f"stage {entry.stage!r} was published, aborted or swept while it was written",
            stage=entry.stage,
        )
    if draft.writing:
        raise AlreadyExists(
            f"there is a stage {entry.stage!r} already: a stage is written by one stream, "
            "another try takes another id",
            stage=entry.stage,
        )


def check_pages(pages: int, stage: str) -> None:
    """Check that a stage, or all stages of a publish, can be published in one transaction.

    Args:
        pages: How many they have.
        stage: The last of them, for the error.

    Raises:
        BatchTooLarge: There are more than `PUBLISH_PAGES_MAX`.
    """
    if pages > PUBLISH_PAGES_MAX:
        raise BatchTooLarge(
            f"with stage {stage!r} there are {pages} pages to publish at once, the limit is "
            f"{PUBLISH_PAGES_MAX}",
            stage=stage,
            pages=pages,
            pages_max=PUBLISH_PAGES_MAX,
        )


def check_batch(writer: str, batch: int, last_batch: int | None) -> None:
    """Check that a writer publishes a batch after its last one.

    Args:
        writer: Its id.
        batch: Its number, of which no result is remembered.
        last_batch: The highest that was published; None for a new writer.

    Raises:
        PublishFenced: It is not after that.
    """
    if last_batch is not None and batch <= last_batch:
        raise PublishFenced(
            f"batch {batch} of writer {writer!r:.80} comes after {last_batch}: it was never "
            "published, or its result is no longer remembered",
            last_batch=last_batch,
        )


def check_epoch(writer: str, epoch: int | None, begun: int | None) -> None:
    """Check that a publish is of its writer's last epoch.

    Args:
        writer: Its id.
        epoch: The epoch of the publish; None: without one.
        begun: The epoch that the writer began last; None: it has begun none.

    Raises:
        PublishFenced: They differ.
    """
    if epoch == begun:
        return
    if begun is None:
        why = f"the writer has begun no epoch, or {epoch} is forgotten"
    elif epoch is None:
        why = f"the writer has begun epoch {begun}: name it"
    else:
        why = f"the writer has begun epoch {begun}, this publish is of epoch {epoch}"
    raise PublishFenced(f"writer {writer!r:.80} is fenced: {why}", epoch=begun)


def no_stage(stage: str) -> StageNotFound:
    """Return the error of a publish of a stage that does not exist."""
    return StageNotFound(
        f"there is no stage {stage!r}: it was never written, or was published, aborted or swept",
        stage=stage,
    )


EPOCH_MAX = 32_766
"""Highest epoch of a producer id; the next life gets another id. Kafka's epochs have 16 bits."""

PARTITIONS_MAX = 10_000
"""Most partitions, and most offsets of consumers, of one transaction."""

TIMEOUT_MS_MAX = 15 * 60 * 1_000
"""Longest time that a transaction stays open."""

_PARTITION_CHARACTERS_MAX = 64
"""Longest value of a partition in a transaction, whose stage's id holds it."""


def stage_prefix(producer: ProducerEpoch) -> str:
    """Return the beginning of the ids of a producer's stages.

    It has a character that clients' ids cannot have.
    """
    return f"transaction/{producer.producer_id}/{producer.epoch}/"


def stage_entry(
    name: str, producer: ProducerEpoch, topic_uuid: str, partition: Partition
) -> StageEntry:
    """Return the stage of a partition in a producer's open transaction.

    Raises:
        InvalidArgument: The partition's value is too long.
    """
    if len(partition) > _PARTITION_CHARACTERS_MAX:
        raise InvalidArgument(f"partition {partition:.40}… is too long for a transaction")
    return StageEntry(f"{stage_prefix(producer)}{topic_uuid}/{partition}", name, first=False)


def check_join(name: str, timeout_ms: int) -> None:
    """Check a name and the time-out of its transactions.

    Raises:
        InvalidArgument: The name is empty or cannot be stored, or the time-out is out of range.
    """
    if not name:
        raise InvalidArgument("the transaction's name must not be empty")
    check_id("the transaction's name", name)
    if not 1 <= timeout_ms <= TIMEOUT_MS_MAX:
        raise InvalidArgument(f"a time-out of {timeout_ms} ms: expected 1 to {TIMEOUT_MS_MAX}")


def check_producer(name: str, producer: ProducerEpoch, found: Transaction | None) -> Transaction:
    """Check that a producer is the one that joined last; returns the name's last transaction.

    Raises:
        PublishFenced: It is not: the fact `epoch` is the epoch of its id now, None where the name
            is unknown or the id is another's.
    """
    if found is None or found.producer_id != producer.producer_id:
        raise PublishFenced(f"no such producer has joined {name!r:.80}", epoch=None)
    if found.epoch != producer.epoch:
        raise PublishFenced(
            f"producer {producer.producer_id} of {name!r:.80} is at epoch {found.epoch}, not "
            f"{producer.epoch}",
            epoch=found.epoch,
        )
    return found


def is_ended(found: Transaction, *, commit: bool) -> bool:
    """Tell whether a transaction has ended so already, which makes an end of it a repeat.

    Raises:
        StageNotFound: None is open, and the last one did not end so.
    """
    if found.state == TransactionState.OPEN:
        return False
    if found.state == (TransactionState.COMMITTED if commit else TransactionState.ABORTED):
        return True
    raise StageNotFound(f"no transaction of {found.name!r:.80} is open: its state is {found.state}")


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
