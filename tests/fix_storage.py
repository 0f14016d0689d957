"""Segment stores in a temporary directory, and a disk that fails when it is told to."""

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from wings_core.storage.files import SystemFiles
from wings_core.storage.segments import SegmentStore

MakeStore = Callable[..., SegmentStore]


class FaultyFiles(SystemFiles):
    """The real disk, but for one operation at a time that fails as often as asked."""

    def __init__(self) -> None:
        self.written_max: int | None = None
        """Most bytes that one write takes; None for as many as it gets."""
        self.writes = 0
        self._operation = ""
        self._errno = 0
        self._after = 0
        self._times = 0

    def fail(self, operation: str, error: int, *, after: int = 0, times: int = 1) -> None:
        """Let calls of a method fail, the first `after` of them excepted."""
        self._operation, self._errno = operation, error
        self._after, self._times = after, times

    def _check(self, operation: str) -> None:
        if operation != self._operation or self._times == 0:
            return
        if self._after > 0:
            self._after -= 1
            return
        self._times -= 1
        raise OSError(self._errno, os.strerror(self._errno))

    def create(self, path: Path) -> int:
        self._check("create")
        return super().create(path)

    def write(self, descriptor: int, buffers: Sequence[memoryview], position: int) -> int:
        self.writes += 1
        if self._operation == "write" and self._times and self._errno == errno.ENOSPC:
            # A full disk takes what still fits, and says so on the next call only.
            super().write(descriptor, [buffers[0][:7]], position)
        self._check("write")
        if self.written_max is None:
            return super().write(descriptor, buffers, position)
        taken: list[memoryview] = []
        room = self.written_max
        for buffer in buffers:
            taken.append(buffer[:room])
            room -= len(taken[-1])
            if room == 0:
                break
        return super().write(descriptor, taken, position)

    def sync(self, descriptor: int) -> None:
        self._check("sync")
        super().sync(descriptor)

    def sync_directory(self, path: Path) -> None:
        self._check("sync_directory")
        super().sync_directory(path)


@pytest.fixture
def faulty_files() -> FaultyFiles:
    """Return a disk that works until it is told to fail."""
    return FaultyFiles()


@pytest.fixture
def make_store(tmp_path: Path) -> Iterator[MakeStore]:
    """Return a function that opens a store on the test's directory, closed after the test."""
    stores: list[SegmentStore] = []

    def make(*, segment_bytes_max: int = 1 << 20, **options: object) -> SegmentStore:
        store = SegmentStore(
            tmp_path / "segments",
            segment_bytes_max=segment_bytes_max,
            **options,  # pyright: ignore[reportArgumentType]
        )
        stores.append(store)
        return store

    yield make
    for store in stores:
        store.close()
