"""The rules of stages, the same in every store: which stream adds to one, what can be published.

A stage is begun by the first batch of one stream and belongs to that stream and its topic. A second
stream under the same id is refused, since the rows that it repeats could not be told from those
that it adds; so is a stream that goes on after its stage was published, aborted or swept, since a
part of it would be left over. A task that is tried again takes another id.

A writer publishes batches by number, counting up, with gaps where it likes. The result of its last
one is kept for 90 days, so that no batch is published twice, however late it is repeated within
them; those before it are kept for a while. A writer that has published nothing for so long is
forgotten: else each file that was ever pushed as a whole would leave a row.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from wings_core.errors import AlreadyExists, BatchTooLarge, PublishFenced, StageNotFound
from wings_core.model import StagedBatch, StageEntry, StoredPage

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
