"""Reads that followers share: read once, by one of those who ask, and kept where it may be."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from wings_core.fetch.shared import SharedReads, copied

READERS = 8


def test_readers_at_one_place_read_once() -> None:
    shared: SharedReads[int] = SharedReads()
    reads: list[int] = []
    begin = threading.Barrier(READERS)

    def read() -> int:
        reads.append(1)
        return 7

    def follow(_: int) -> int | None:
        begin.wait()
        return shared.get("here", read)

    with ThreadPoolExecutor(READERS) as threads:
        assert list(threads.map(follow, range(READERS))) == [7] * READERS
    assert len(reads) == 1


def test_what_is_not_to_be_shared_is_read_by_each() -> None:
    shared: SharedReads[int] = SharedReads()
    assert shared.get("here", lambda: None) is None
    assert shared.get("here", lambda: 1) == 1

    def fail() -> int:
        raise OSError("no luck")

    with pytest.raises(OSError, match="no luck"):
        shared.get("there", fail)
    assert shared.get("there", lambda: 2) == 2


def test_a_copy_holds_nothing_of_what_it_was_copied_from() -> None:
    batch = pa.record_batch({"n": [1, None, 3], "text": ["a", None, "ccc"]})
    (copy,) = copied([batch.slice(1)])
    assert copy.equals(batch.slice(1))
    addresses = [
        {buffer.address for column in each.columns for buffer in column.buffers() if buffer}
        for each in (batch, copy)
    ]
    assert not addresses[0] & addresses[1]
