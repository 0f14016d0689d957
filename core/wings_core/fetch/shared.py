"""Reads that many followers share: what one of them got at a place, the others get as it is.

A commit wakes all who follow a partition, most of them at the same offset and with the same wishes.
The first looks up, reads, merges and filters; the others take its chunks. What is committed never
changes, so what was read at an offset stays right for as long as it is kept.
"""

import threading
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import pyarrow as pa

from wings_core.storage.lru import Lru

SHARED_READS_MAX = 64
"""Places whose chunks are kept."""

SHARED_BYTES_MAX = 128 * 1024
"""Chunks of a place are kept where they have no more stored bytes: larger ones cost more to send
than to read, and would be a copy."""

T = TypeVar("T")


@dataclass(slots=True)
class _Place(Generic[T]):
    """One place of the log, as some readers want it."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held by the first reader while it reads."""
    value: T | None = None


class SharedReads(Generic[T]):
    """What was read lately, by place; all methods may be called from any thread.

    Its locks are leaves of the order, but for those of the read itself.
    """

    def __init__(self) -> None:
        self._places: Lru[Hashable, _Place[T]] = Lru(SHARED_READS_MAX)
        self._lock = threading.Lock()
        """Held while a place is added, so that it is added once."""

    def get(self, key: Hashable, read: Callable[[], T | None]) -> T | None:
        """Return what is read at a place, read once for all who ask at about the same time.

        A caller waits for one read of another at most: where that brought nothing, all who waited
        for it read by themselves, or each would wait for all before it.

        Args:
            key: Tells place, columns and filter.
            read: Reads there; None where that is not to be shared. What it raises is this caller's
                alone.
        """
        place = self._places.get(key)
        if place is None:
            with self._lock:
                place = self._places.get(key)
                if place is None:
                    self._places.put(key, place := _Place[T]())
        if place.value is not None:
            return place.value
        if place.lock.acquire(blocking=False):
            try:
                if place.value is None:
                    place.value = read()
            finally:
                place.lock.release()
            return place.value
        with place.lock:
            pass
        return read() if place.value is None else place.value


def copied(batches: Iterable[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Return batches in memory of their own: what is kept must not hold a file that is deleted."""
    return [pa.ipc.read_record_batch(batch.serialize(), batch.schema) for batch in batches]
