"""How long leases last under which something works."""

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from fix_metadata import Clock

from wings_core.maintain import workers
from wings_core.maintain.workers import LeaseKeeper
from wings_core.metadata.sqlite import SqliteMetadata

SECONDS = 0.03
LEASE_US = round(SECONDS * 1_000_000)


class Watched:
    """Leases in SQLite, by a clock that goes on at each prolongation by most of what they last."""

    def __init__(self, path: Path) -> None:
        self.clock = Clock()
        self.step_us = LEASE_US * 2 // 3
        self.metadata = SqliteMetadata(path / "metadata.db", clock=self.clock)
        self.maintenance = self.metadata.maintenance
        self.prolonged: list[str] = []
        self._changed = threading.Condition()
        """Nothing comes between a step of the clock and the look at a lease."""
        self._acquire = self.maintenance.acquire_lease
        self.maintenance.acquire_lease = self._acquire_and_tell

    def _acquire_and_tell(self, name: str, holder: str, seconds: float) -> int | None:
        with self._changed:
            self.clock.time += self.step_us
            token = self._acquire(name, holder, seconds)
            self.prolonged.append(name)
            self._changed.notify_all()
        return token

    def wait_for_calls(self, name: str, more: int) -> None:
        """Wait until a lease was acquired or prolonged so many times more."""
        with self._changed:
            count = self.prolonged.count(name) + more
            assert self._changed.wait_for(lambda: self.prolonged.count(name) >= count, 60)

    def is_free(self, name: str) -> bool:
        """Tell whether another holder gets a lease."""
        with self._changed:
            token = self._acquire(name, "another holder", SECONDS)
            if token is not None:
                self.maintenance.release_lease(name, "another holder")
        return token is not None

    def take_late(self, name: str) -> int | None:
        """Have another holder take a lease after its own has missed it; time stands then."""
        with self._changed:
            self.clock.time += 10 * LEASE_US
            self.step_us = 0
            return self._acquire(name, "another holder", 3_600)


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    watched = Watched(tmp_path)
    yield watched
    watched.metadata.close()


@pytest.fixture
def keeper(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> Iterator[LeaseKeeper]:
    monkeypatch.setattr(workers, "LEASE_SECONDS", SECONDS)
    with closing(LeaseKeeper(watched.maintenance)) as keeper:
        yield keeper


def test_a_lease_lasts_as_long_as_the_work_under_it(watched: Watched, keeper: LeaseKeeper) -> None:
    began = watched.clock.time
    with keeper.hold("p") as held:
        assert held is not None
        watched.wait_for_calls("p", 10)
        assert watched.clock.time - began > 5 * LEASE_US
        assert held.proceed()
        assert not watched.is_free("p")
        with keeper.hold("p") as second:
            assert second is None
    assert watched.is_free("p")


def test_a_lease_ends_where_a_step_takes_too_long(
    watched: Watched, keeper: LeaseKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "STEP_SECONDS_MAX", 3_600)
    with keeper.hold("stuck") as stuck, keeper.hold("other"):
        assert stuck is not None
        stuck.stepped_at -= 3_600
        calls = watched.prolonged.count("stuck")
        watched.wait_for_calls("other", 4)
        assert watched.prolonged.count("stuck") <= calls + 1  # One may have been under way.
        assert watched.is_free("stuck")


def test_whoever_lost_a_lease_is_told_and_does_not_take_it_back(
    watched: Watched, keeper: LeaseKeeper
) -> None:
    with keeper.hold("p") as held:
        assert held is not None
        token = watched.take_late("p")
        assert token is not None
        watched.wait_for_calls("p", 2)
        assert not held.proceed()
    assert watched.maintenance.acquire_lease("p", "another holder", 3_600) == token


def test_work_ends_at_its_next_step_where_the_keeper_is_closed(
    watched: Watched, keeper: LeaseKeeper
) -> None:
    with keeper.hold("p") as held:
        assert held is not None
        assert held.proceed()
        keeper.close()
        assert not held.proceed()
