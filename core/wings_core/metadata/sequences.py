"""SequenceDraft: what a producer's next batch in a partition must be, and what a repeat gets.

Rows are numbered by partition, as Kafka's idempotent producers number them (KIP-98): a batch names
the number of its first row, and the next batch goes on after its last row. An epoch fences the
producer's earlier lives.
"""

import json
from dataclasses import dataclass, field
from typing import NamedTuple

from wings_core.errors import InvalidArgument, OutOfOrderSequence, PublishFenced
from wings_core.metadata.checks import check_id
from wings_core.model import AssignedRange, CommitBatch, PartitionSequence

SEQUENCES = 1 << 31
"""Numbers of rows; after the greatest one comes 0."""

EPOCHS = 1 << 31

BATCHES_KEPT = 5
"""Last batches of a producer in a partition whose repeats are recognised."""


_encode = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
"""Shared encoder; `json.dumps` would construct one for each call."""


class NumberedBatch(NamedTuple):
    """An accepted batch."""

    first: int
    """Number of its first row."""
    rows: int
    start_offset: int | None
    """None for a staged batch."""
    timestamp: int


@dataclass(slots=True)
class SequenceDraft:
    """A producer's numbers in a partition as they will be after the batches judged so far."""

    stored: str | None = None
    """The stored form, that of `to_json`; None for nothing, or nothing that still counts."""
    epoch: int = 0
    batches: list[NumberedBatch] = field(default_factory=list[NumberedBatch])
    """Its last batches, at most `BATCHES_KEPT`."""
    changed: bool = False

    @classmethod
    def from_json(cls, text: str) -> "SequenceDraft":
        """Return the draft of what `to_json` wrote."""
        epoch, *batches = json.loads(text)
        return cls(text, epoch, [NumberedBatch(*each) for each in batches])

    def to_json(self) -> str:
        """Return the form in which stores keep it."""
        return _encode([self.epoch, *self.batches])

    def replayed(self, sequence: PartitionSequence, rows: int) -> NumberedBatch | None:
        """Return the batch that a batch of so many rows repeats, None for the next one.

        Raises:
            PublishFenced: The epoch is an earlier one.
            OutOfOrderSequence: The batch is neither the next one nor one of the last ones. Of an
                unknown producer any batch is the next, of a new epoch only one that begins at 0.
        """
        if not self.batches:
            return None
        if sequence.epoch < self.epoch:
            raise PublishFenced(
                f"producer {sequence.producer_id!r:.80} is at epoch {self.epoch}, not "
                f"{sequence.epoch}",
                epoch=self.epoch,
            )
        last = self.batches[-1]
        expected = (last.first + last.rows) % SEQUENCES if sequence.epoch == self.epoch else 0
        if sequence.epoch == self.epoch:
            for batch in self.batches:
                if (batch.first, batch.rows) == (sequence.first, rows):
                    return batch
        if sequence.first != expected:
            raise OutOfOrderSequence(
                f"sequence {sequence.first} of producer {sequence.producer_id!r:.80} is out of "
                f"order: the next is {expected}",
                expected_sequence=expected,
                sequence=sequence.first,
            )
        return None

    def add(self, sequence: PartitionSequence, batch: NumberedBatch) -> None:
        """Note an accepted batch, whose epoch may be a new one."""
        if sequence.epoch != self.epoch:
            self.epoch, self.batches = sequence.epoch, []
        self.batches = [*self.batches[1 - BATCHES_KEPT :], batch]
        self.changed = True


def range_of(batch: CommitBatch, first: NumberedBatch) -> AssignedRange:
    """Return the first result of a repeated batch.

    Raises:
        OutOfOrderSequence: It was staged.
    """
    start, partition = first.start_offset, batch.pages[0].partition
    if start is None:
        raise OutOfOrderSequence(f"the batch with sequence {first.first} was staged")
    return AssignedRange(partition, start, start + first.rows - 1, first.timestamp)


def check_sequence(batch: CommitBatch, sequence: PartitionSequence) -> None:
    """Check that a batch can have a sequence by partition.

    Raises:
        InvalidArgument: It has no rows, or of several partitions, or other conditions; or a number
            is out of range.
    """
    check_id("producer_id", sequence.producer_id)
    if len({page.partition for page in batch.pages}) != 1:
        raise InvalidArgument("a batch with a sequence by partition has rows of one partition")
    if batch.sequence is not None or batch.expected is not None:
        raise InvalidArgument("a batch with a sequence by partition has no other condition")
    if not (0 <= sequence.first < SEQUENCES and 0 <= sequence.epoch < EPOCHS):
        raise InvalidArgument(
            f"{sequence.first} at epoch {sequence.epoch} is not a sequence: expected 0 to "
            f"{SEQUENCES - 1}"
        )
