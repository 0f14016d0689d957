"""No wake-up is lost: what becomes available reaches a member that waits, whatever others do."""

import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
from fix_calls import Calls
from fix_share import ShareUnderTest, asking, entry_of, open_share, spans

from wings_core.errors import GroupNotFound, Internal, InvalidRecordState, Unavailable, WingsError
from wings_core.fetch.fetcher import Cancel
from wings_core.metadata.waiting import Wake
from wings_core.model import LeasedRange, ShareGroup
from wings_core.partitions import UNPARTITIONED
from wings_core.share.coordinator import coordinator as coordinator_module
from wings_core.share.coordinator.upkeep import Loop
from wings_core.share.model import Acknowledgement
from wings_core.share.replica.replica import Replica
from wings_core.share.replica.requests import (
    HoldRequest,
    ReadRequest,
    Request,
    TombstoneRequest,
)
from wings_core.share.replica.sqlite_store import SqliteHoldStore
from wings_core.times import Deadline

LONG = 60.0


@pytest.fixture
def embedded(tmp_path: Path) -> Generator[ShareUnderTest]:
    """A topic without a key, and groups over it, with the replica in the process."""
    with open_share(tmp_path, 1) as opened:
        yield opened


def before(
    share: ShareUnderTest, monkeypatch: pytest.MonkeyPatch, kind: type[Request]
) -> list[Callable[[], object]]:
    """Return a list whose functions are called before the replica's next requests of a kind."""
    todo: list[Callable[[], object]] = []
    replica = share.replicas[0]
    original = replica.perform

    def called(*args: Any) -> Any:
        if todo and isinstance(args[0][0], kind):
            try:
                todo.pop(0)()
            except WingsError as error:
                return [error]
        return original(*args)

    monkeypatch.setattr(replica, "perform", called)
    return todo


def test_messages_whose_hold_fails_are_not_lost_for_one_who_saw_them_pending(
    embedded: ShareUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedded.metadata.push(embedded.topic, 2)
    group = embedded.group()
    todo = before(embedded, monkeypatch, HoldRequest)

    def fail_amid_a_look() -> None:
        assert embedded.acquire(group, member="other") == []
        raise Unavailable("the disk is away")

    todo.append(fail_amid_a_look)
    with pytest.raises(Unavailable):
        embedded.acquire(group)
    embedded.clock.time += 1
    assert spans(embedded.acquire(group, member="other")) == [(0, 1, 1)]


def test_messages_whose_hold_ends_in_a_fault_are_not_lost(
    embedded: ShareUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedded.metadata.push(embedded.topic, 2)
    group = embedded.group()

    def fail(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(Replica, "_hold", fail)
        with pytest.raises(Internal, match="a fault of the replica"):
            embedded.acquire(group)
    embedded.clock.time += 1
    assert spans(embedded.acquire(group)) == [(0, 1, 1)]


def test_a_hold_that_fails_wakes_another_member(
    embedded: ShareUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedded.metadata.push(embedded.topic, 2)
    group = embedded.group()
    todo = before(embedded, monkeypatch, HoldRequest)
    woken = threading.Event()
    other = asking(group, member="other")

    def fail_amid_a_look() -> None:
        assert not embedded.coordinator.acquire_now(other)
        woken.clear()
        raise Unavailable("the disk is away")

    todo.append(fail_amid_a_look)
    with embedded.coordinator.watch(other, woken.set):
        with pytest.raises(Unavailable):
            embedded.acquire(group)
        assert woken.is_set()


def test_who_is_told_that_there_is_nothing_is_called_when_there_is(
    embedded: ShareUnderTest,
) -> None:
    embedded.metadata.push(embedded.topic, 2)
    group, woken = embedded.group(), threading.Event()
    watched = embedded.coordinator.watch_idle
    assert watched(asking(group), woken.set) is None  # Nobody has looked yet.
    assert len(embedded.acquire(group, 1)) == 1
    assert watched(asking(group), woken.set) is None  # There are more.
    assert len(embedded.acquire(group)) == 1
    assert not woken.is_set()
    watch = watched(asking(group), woken.set)
    assert watch is not None
    embedded.metadata.push(embedded.topic, 1)
    assert woken.is_set()
    woken.clear()
    watch.close()
    embedded.metadata.push(embedded.topic, 1)
    assert not woken.is_set()
    embedded.coordinator.delete(group)
    with pytest.raises(GroupNotFound):
        watched(asking(group), woken.set)


def test_a_node_is_never_told_that_there_is_nothing(tmp_path: Path) -> None:
    with open_share(tmp_path, 3) as share:
        group = share.group()
        assert share.acquire(group) == []
        assert share.coordinator.watch_idle(asking(group), print) is None


@pytest.fixture
def wakes_of_itself(unmaintained: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group is woken by nothing but what becomes due in it."""
    monkeypatch.setattr(coordinator_module, "WAKE_SECONDS_MAX", 1e6)


@pytest.mark.usefixtures("wakes_of_itself")
def test_a_member_that_waits_is_woken_when_a_delay_ends(
    embedded: ShareUnderTest,
) -> None:
    embedded.metadata.push(embedded.topic, 1)
    group = embedded.group()
    (held,) = embedded.acquire(group, member="other")
    assert embedded.acknowledge(group, held, "release", member="other", delay_ms=20) is None
    woken = threading.Event()
    with embedded.coordinator.watch(asking(group), woken.set):
        assert not embedded.coordinator.acquire_now(asking(group))
        embedded.clock.time += 0.03
        assert woken.wait(LONG)


@pytest.mark.usefixtures("unmaintained")
def test_room_that_retention_makes_wakes_a_member_though_the_acknowledgement_is_refused(
    embedded: ShareUnderTest,
) -> None:
    for _ in range(3):
        embedded.metadata.push(embedded.topic, 1)
    group, woken = embedded.group(in_flight_max=2), threading.Event()
    first, second = (embedded.acquire(group, 1)[0] for _ in range(2))
    assert embedded.acquire(group, 1) == []  # The window is full.
    with embedded.coordinator.watch(asking(group, 1), woken.set):
        embedded.metadata.opened.maintenance.expire(
            embedded.topic.uuid, UNPARTITIONED, age_us=None, bytes_kept=200, pages_max=2
        )
        embedded.clock.time += 1  # Where the log begins was looked at before.
        entries = [entry_of(first, "accept"), entry_of(second, "accept", lease=first.lease)]
        results = embedded.coordinator.acknowledge(group, "me", entries)
        assert [type(each) for each in results] == [InvalidRecordState] * 2
        assert woken.is_set()
    assert spans(embedded.acquire(group, 1)) == [(2, 2, 1)]


@pytest.mark.usefixtures("unmaintained")
def test_no_member_is_woken_when_the_lock_would_end_of_what_was_accepted(
    embedded: ShareUnderTest, calls: Calls
) -> None:
    embedded.metadata.push(embedded.topic, 2)
    group, woken = embedded.group(), threading.Event()
    coordinator = embedded.open_coordinator()
    look = coordinator._wake_due  # pyright: ignore[reportPrivateUsage]

    def acquire(messages: int) -> Sequence[LeasedRange]:
        return coordinator.acquire_now(asking(group, messages))

    (first,) = acquire(1)
    accepted = embedded.acknowledge(group, first, "accept", coordinator=coordinator)
    assert accepted is None
    embedded.clock.time += 10
    assert len(acquire(1)) == 1
    with coordinator.watch(asking(group), woken.set):
        assert not acquire(1)
        embedded.clock.time += group.config.lock_duration_ms / 1_000 - 9
        look()
        assert not woken.is_set()
        embedded.clock.time += 10
        look()
        assert woken.is_set()


@pytest.mark.usefixtures("unmaintained")
def test_an_acquire_by_a_group_that_was_found_anew_wakes_no_thread(
    embedded: ShareUnderTest, calls: Calls
) -> None:
    embedded.metadata.push(embedded.topic, 2)
    group = embedded.group()
    assert len(embedded.acquire(group, 1)) == 1
    called = calls.heard(Loop, "call")
    assert len(embedded.acquire(replace(group), 1)) == 1
    assert called == []


@pytest.mark.usefixtures("wakes_of_itself")
def test_what_becomes_due_does_not_wait_for_dead_letters_that_are_being_written(
    embedded: ShareUnderTest,
) -> None:
    embedded.metadata.push(embedded.topic, 2)
    group = embedded.group(delivery_limit=1, dlq_topic="dead", lock_duration_ms=3_600_000)
    assert spans(embedded.acquire(group, 1, member="gone")) == [(0, 0, 1)]
    (later,) = embedded.acquire(group, 1, member="other")
    entry = Acknowledgement(
        UNPARTITIONED, 1, 1, later.lease, "release", delay_ms=3_700_000, counts=False
    )
    (result,) = embedded.coordinator.acknowledge(group, "other", [entry])
    assert result is None
    writing, go_on, woken = threading.Event(), threading.Event(), threading.Event()

    def write_slowly() -> None:
        writing.set()
        assert go_on.wait(LONG)

    embedded.dead_letters.slow = write_slowly
    waits = embedded.coordinator.watch(asking(group), woken.set)
    with waits:
        assert not embedded.coordinator.acquire_now(asking(group))
        embedded.clock.time += 3_699.98  # The lock of the first has ended, at the delivery limit.
        assert not embedded.coordinator.acquire_now(asking(group, member="other"))
        try:
            assert writing.wait(LONG)
            assert woken.is_set()
            woken.clear()
            assert not embedded.coordinator.acquire_now(asking(group))
            embedded.clock.time += 0.03
            assert woken.wait(LONG)
            leased = embedded.coordinator.acquire_now(asking(group))
            assert spans(list(leased)) == [(1, 1, 1)]
        finally:
            go_on.set()


def test_a_wake_up_as_the_deadline_passes_is_not_taken_along(
    embedded: ShareUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = embedded.group()

    class CommitAtTheEnd(Wake):
        def wait(self, timeout: float | None = None) -> bool:
            del timeout
            embedded.metadata.push(embedded.topic, 2)
            monkeypatch.setattr(Deadline, "passed", True)
            return self.is_set()

    leased = embedded.coordinator.acquire(
        asking(group), Deadline.after(LONG), Cancel(CommitAtTheEnd())
    )
    assert spans(leased) == [(0, 1, 1)]


def test_room_that_an_acknowledgement_makes_is_seen_by_one_who_found_none_meanwhile(
    embedded: ShareUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedded.metadata.push(embedded.topic, 4)
    group = embedded.group(in_flight_max=2)
    (leased,) = embedded.acquire(group, 1)
    todo = before(embedded, monkeypatch, TombstoneRequest)

    def fill_up() -> None:
        assert spans(embedded.acquire(group, member="two")) == [(1, 1, 1)]
        assert embedded.acquire(group, member="three") == []

    todo.append(fill_up)
    assert embedded.acknowledge(group, leased, "accept") is None
    assert spans(embedded.acquire(group, member="three")) == [(2, 2, 1)]


def test_a_member_that_waits_alone_follows_what_another_node_does_to_its_group(
    embedded: ShareUnderTest,
) -> None:
    embedded.metadata.push(embedded.topic, 2)
    group = embedded.group(in_flight_max=1, lock_duration_ms=43_200_000)
    wider = ShareGroup(
        group.name, group.uuid, group.topic, group.config.model_copy(update={"in_flight_max": 2})
    )
    (held,) = embedded.acquire(group)
    now = [group]

    def waited(future: "Future[list[LeasedRange]]") -> list[LeasedRange]:
        while not future.done():
            embedded.clock.time += 0.1  # What another held was put off for a moment.
            wait([future], 0.01)
        return future.result()

    def find(asked: ShareGroup) -> ShareGroup:
        if not now:
            raise GroupNotFound("it was deleted")
        assert asked.uuid == group.uuid
        return now[0]

    there = embedded.open_coordinator(find)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(there.acquire, asking(group), Deadline.after(LONG), Cancel())
        now[0] = wider
        assert spans(waited(waiting)) == [(1, 1, 1)]
        waiting = threads.submit(there.acquire, asking(group), Deadline.after(LONG), Cancel())
        now.clear()
        with pytest.raises(GroupNotFound):
            waited(waiting)
    assert embedded.acknowledge(group, held, "accept") is None


def test_what_follows_a_group_uses_its_configuration_also_where_it_waits_for_nothing(
    share: ShareUnderTest,
) -> None:
    share.metadata.push(share.topic, 2)
    group = share.group(in_flight_max=1)
    wider = ShareGroup(
        group.name, group.uuid, group.topic, group.config.model_copy(update={"in_flight_max": 2})
    )
    heard = threading.Event()
    with share.coordinator.following(group, heard.set):
        assert len(share.acquire(group)) == 1
        share.coordinator.altered(wider)
        assert heard.is_set()
        assert spans(share.acquire(group)) == [(1, 1, 1)]


def test_a_request_that_is_refused_as_another_thread_takes_it_ends_with_the_refusal(
    tmp_path: Path,
) -> None:
    class Occupied(Replica):
        """Refuses, while another thread that has the lock takes what waits."""

        def _locked(self) -> NoReturn:
            self._waiting.clear()
            raise Unavailable("occupied")

    with closing(Occupied(lambda: SqliteHoldStore(tmp_path / "holds.sqlite"))) as replica:
        (answer,) = replica.perform([ReadRequest("group", ())])
        assert isinstance(answer, Unavailable)
