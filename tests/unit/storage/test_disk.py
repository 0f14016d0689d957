"""The guard of a disk: when pushes are refused, and what becomes of the reserve."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from wings_core.errors import ResourceExhausted
from wings_core.storage import disk
from wings_core.storage.disk import DiskGuard

STEP = disk.RESERVE_STEP_BYTES
"""The unit of all sizes here."""


class Disk:
    """A disk of which others may take room, and of which the reserve is the rest."""

    def __init__(self, reserve: Path, free: int) -> None:
        self.reserve = reserve
        self.room = free

    def free(self, path: Path) -> int:
        assert path == self.reserve.parent
        held = self.reserve.stat().st_size if self.reserve.exists() else 0
        return self.room - held


@pytest.fixture(autouse=True)
def reserve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(disk, "RESERVE_BYTES", 4 * STEP)
    return tmp_path / "RESERVE"


@contextmanager
def guarding(faked: Disk, least: int = 10 * STEP) -> Generator[DiskGuard]:
    guard = DiskGuard(faked.reserve.parent, least, faked.reserve, faked.free)
    try:
        yield guard
    finally:
        guard.close()


def held(reserve: Path) -> int:
    return reserve.stat().st_size if reserve.exists() else 0


def test_pushes_are_refused_below_the_watermark_and_taken_above_it(reserve: Path) -> None:
    faked = Disk(reserve, 100 * STEP)
    with guarding(faked) as guard:
        guard.check()
        for room, is_refused in [(14, False), (13, True), (5, True), (14, False)]:
            faked.room = room * STEP
            guard.look()
            assert (guard.refusal is not None) == is_refused, room
            if is_refused:
                with pytest.raises(ResourceExhausted, match="disk_free_bytes_min"):
                    guard.check()


def test_the_reserve_is_made_of_what_is_above_the_watermark_alone(reserve: Path) -> None:
    faked = Disk(reserve, 13 * STEP)
    with guarding(faked) as guard:
        assert held(reserve) == 0
        faked.room = 14 * STEP
        guard.look()
        assert held(reserve) == 4 * STEP
        assert guard.refusal is None


def test_the_reserve_is_released_in_steps_and_made_again(reserve: Path) -> None:
    faked = Disk(reserve, 100 * STEP)
    with guarding(faked) as guard:
        left: list[int] = []
        for room in (4, 3, 2, 1, 0, 0):  # Others take what was released.
            faked.room = room * STEP
            guard.look()
            left.append(held(reserve) // STEP)
        assert left == [3, 2, 1, 0, 0, 0]
        faked.room = 100 * STEP
        guard.look()
        assert held(reserve) == 4 * STEP


def test_a_start_on_a_full_disk_releases_before_anything_else(reserve: Path) -> None:
    faked = Disk(reserve, 100 * STEP)
    with guarding(faked):
        pass
    assert held(reserve) == 4 * STEP
    faked.room = 4 * STEP
    with guarding(faked) as guard:
        assert guard.refusal is not None
        assert faked.free(reserve.parent) == STEP


def test_a_merge_on_a_full_disk_is_bounded_by_what_is_free_then(reserve: Path) -> None:
    faked = Disk(reserve, 8 * STEP)
    with guarding(faked) as guard:
        guard.close()
        assert guard.may_merge(3 * STEP // disk.MERGE_SHARE)
        assert not guard.may_merge(3 * STEP // disk.MERGE_SHARE + 1)
        faked.room = 6 * STEP  # Merges since the last look took some.
        assert not guard.may_merge(3 * STEP // disk.MERGE_SHARE)
        assert guard.may_merge(STEP // disk.MERGE_SHARE)


def test_a_disk_that_cannot_be_asked_changes_nothing(reserve: Path) -> None:
    def fail(path: Path) -> int:
        raise OSError(5, "Input/output error", str(path))

    guard = DiskGuard(reserve.parent, 1, reserve, fail)
    guard.check()
    guard.close()
