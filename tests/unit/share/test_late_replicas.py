"""What is asked of the replicas beyond a majority, a while later than of the others."""

import random
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from wings_core.partitions import UNPARTITIONED
from wings_core.share.clock import MonotonicClock
from wings_core.share.model import Lease, OffsetRange, ShareKey
from wings_core.share.quorum.links import LocalLink, Runner
from wings_core.share.quorum.quorum import HoldQuorum
from wings_core.share.quorum.votes import Held
from wings_core.share.replica.replica import Replica
from wings_core.share.replica.requests import Answer, Request
from wings_core.share.replica.sqlite_store import SqliteHoldStore

KEY = ShareKey("g", "t", UNPARTITIONED)


class KeepingLink(LocalLink):
    """Keeps what may be asked later until it is hurried."""

    def __init__(self, replica: Replica) -> None:
        super().__init__(replica)
        self.kept: list[tuple[Sequence[Request], Callable[[int, Answer], None]]] = []
        self.is_silent = False

    def begin_all(
        self,
        requests: Sequence[Request],
        seconds: float,
        done: Callable[[int, Answer], None],
        late_seconds: float = 0.0,
    ) -> None:
        if late_seconds:
            self.kept.append((requests, done))
        elif not self.is_silent:
            super().begin_all(requests, seconds, done)

    def hurry(self) -> None:
        kept, self.kept = self.kept, []
        for requests, done in kept:
            super().begin_all(requests, 1.0, done)


class Replicas:
    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self.replicas = [
            stack.enter_context(closing(Replica(SqliteHoldStore(directory / f"{number}.sqlite"))))
            for number in range(3)
        ]
        self.links = [KeepingLink(replica) for replica in self.replicas]
        self.runner = Runner(self.links)
        self.quorum = HoldQuorum(3, MonotonicClock(), random.Random(1))

    def hold(self, offset: int) -> Held:
        ranges = [OffsetRange(offset, offset)]
        lease = Lease("c", offset, "m")
        return self.runner.run(self.quorum.hold(KEY, ranges, lease, 60_000, 100))

    def in_flight(self, number: int) -> int:
        return self.replicas[number].read("g", [UNPARTITIONED])[0].in_flight


@pytest.fixture
def replicas(tmp_path: Path) -> Generator[Replicas]:
    with ExitStack() as stack:
        yield Replicas(tmp_path, stack)


def test_what_a_majority_grants_is_asked_of_the_others_later(replicas: Replicas) -> None:
    for offset in range(3):
        assert replicas.hold(offset).is_all_of(offset, offset)
    assert [replicas.in_flight(number) for number in range(3)] == [3, 3, 0]
    replicas.links[2].hurry()
    assert replicas.in_flight(2) == 3


def test_a_replica_that_fails_is_the_one_asked_later_from_then_on(replicas: Replicas) -> None:
    replicas.hold(0)
    replicas.replicas[0].close()
    for offset in (1, 2):
        assert replicas.hold(offset).is_all_of(offset, offset)
        # All that was asked before is known to the replica that steps in.
        assert [replicas.in_flight(number) for number in (1, 2)] == [offset + 1] * 2
    assert len(replicas.links[0].kept) == 1


def test_a_replica_that_refuses_is_outvoted_and_asked_later(replicas: Replicas) -> None:
    replicas.replicas[1].hold(KEY, [OffsetRange(5, 5)], Lease("d", 1, "m"), 60_000, 100)
    assert replicas.hold(5).is_all_of(5, 5)
    assert replicas.hold(6).is_all_of(6, 6)
    assert len(replicas.links[1].kept) == 1
    assert not replicas.links[2].kept


def test_without_a_majority_nothing_is_held(replicas: Replicas) -> None:
    for number in (1, 2):
        replicas.replicas[number].hold(KEY, [OffsetRange(5, 5)], Lease("d", 1, "m"), 60_000, 100)
    held = replicas.hold(5)
    assert not held.granted
    assert [(refused.first, refused.last) for refused in held.refused] == [(5, 5)]


def test_a_silent_replica_is_not_waited_for_once_the_others_have_answered(
    replicas: Replicas,
) -> None:
    replicas.links[0].is_silent = True
    late = replicas.links[2]

    def begin_all(
        requests: Sequence[Request],
        seconds: float,
        done: Callable[[int, Answer], None],
        late_seconds: float = 0.0,
    ) -> None:
        # Its time is up, as it were, before the others have answered.
        LocalLink.begin_all(late, requests, seconds, done, late_seconds)

    late.begin_all = begin_all  # pyright: ignore[reportAttributeAccessIssue]
    held = replicas.hold(0)
    assert held.is_all_of(0, 0)
    del late.begin_all
    assert replicas.hold(1).is_all_of(1, 1)  # Both of the others are asked at once.
    assert len(replicas.links[0].kept) == 1
