"""What is decided of a batch in a commit: of joined ones that are numbered, each by itself."""

from wings_core.ingest.prepare import PreparedBatch
from wings_core.model import CommitBatch, Sequence, StoredPage


def decisions(
    batch: PreparedBatch, stream: int, pages: tuple[StoredPage, ...]
) -> list[CommitBatch]:
    """Return a batch as the registry is asked to commit it.

    Those that were joined are one batch there. But if they are numbered, each may be a repeat,
    whose offsets are its own: they are a batch each, and their rows a slice of the page.

    Args:
        batch: As it was packed.
        stream: The number of its stream.
        pages: What is stored of it; of one that is joined, a page or a slice of one.
    """
    sequence = batch.sequence
    if sequence is None or len(batch.parts) == 1:
        return [
            CommitBatch(
                stream,
                batch.topic.uuid,
                pages,
                sequence,
                batch.expected,
                batch.timestamp,
                batch.stage,
            )
        ]
    (page,) = pages
    partition, address, version = page.partition, page.address, page.schema_version
    first_row = page.first_row or 0
    size, total = page.bytes, page.rows
    topic, timestamp = batch.topic.uuid, batch.timestamp
    producer = sequence.producer_id
    decided: list[CommitBatch] = []
    before = cut = 0
    for number, part in enumerate(batch.parts, sequence.sequence):
        rows = part.num_rows
        after = before + rows
        begin, cut = cut, size * after // total
        slice_ = StoredPage(partition, rows, address, first_row + before, cut - begin, version)
        numbered = Sequence(producer, number)
        decided.append(CommitBatch(stream, topic, (slice_,), numbered, None, timestamp))
        before = after
    return decided
