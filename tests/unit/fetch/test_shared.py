"""Reads that followers share: read once, by one of those who ask, and kept where it may be."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

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


class Watched:
    """A lock that tells of each thread that is about to wait for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.waiting = threading.Semaphore(0)
        self.acquire, self.release = self._lock.acquire, self._lock.release

    def __enter__(self) -> None:
        self.waiting.release()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_those_who_waited_in_vain_do_not_wait_for_each_other() -> None:
    shared: SharedReads[int] = SharedReads()
    begun, ends, together = threading.Event(), threading.Event(), threading.Barrier(3, timeout=60)
    assert shared.get("here", lambda: None) is None
    place = shared._places.get("here")  # pyright: ignore[reportPrivateUsage] - whose lock is watched.
    assert place is not None
    place.lock = watched = cast("Any", Watched())

    def read_in_vain() -> int | None:
        begun.set()
        assert ends.wait(30)
        return None

    def read_together() -> int:
        together.wait()  # Broken where one of them reads after the other.
        return 7

    with ThreadPoolExecutor(4) as threads:
        first = threads.submit(shared.get, "here", read_in_vain)
        assert begun.wait(30)
        others = [threads.submit(shared.get, "here", read_together) for _ in range(3)]
        assert all(watched.waiting.acquire(timeout=30) for _ in others)
        ends.set()
        assert first.result(30) is None
        assert [each.result(30) for each in others] == [7, 7, 7]


def test_a_copy_holds_nothing_of_what_it_was_copied_from() -> None:
    batch = pa.record_batch({"n": [1, None, 3], "text": ["a", None, "ccc"]})
    (copy,) = copied([batch.slice(1)])
    assert copy.equals(batch.slice(1))
    addresses = [
        {buffer.address for column in each.columns for buffer in column.buffers() if buffer}
        for each in (batch, copy)
    ]
    assert not addresses[0] & addresses[1]
