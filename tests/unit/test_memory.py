"""The budget of memory: who gets room, who waits, and what is lent of those that are idle."""

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from waiting import until

from wings_core import memory
from wings_core.errors import ResourceExhausted, Unavailable
from wings_core.limits import MIB
from wings_core.memory import COPIES, FIRST_BYTES, READ_BYTES_MIN, MemoryBudget, ReadRoom, RoomWaits

FIRST = COPIES * FIRST_BYTES
SECONDS_MAX = 20.0


def begin(room: ReadRoom) -> threading.Thread:
    """Begin a read on a thread; a refusal ends it."""

    def run() -> None:
        with suppress(Unavailable, ResourceExhausted):
            room.begin()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


WAITS = RoomWaits(3600.0, 0.01, 3600.0, 3600.0, crowd_look_seconds=0.01)
"""No stream is idle, however busy the machine is, and none is refused for its time; waiting streams
look often, so tests end soon."""


def budget_of(
    bytes_max: int, own: Callable[[], int] = memory.own_bytes, **waits: Any
) -> MemoryBudget:
    return MemoryBudget(bytes_max, 64 * MIB, replace(WAITS, **waits), own)


def test_a_stream_holds_room_from_its_first_read_to_its_end() -> None:
    budget = budget_of(64 * MIB)
    room = budget.room()
    assert budget.held == 0
    room.begin()
    assert budget.held == FIRST
    room.end(FIRST_BYTES)
    room.begin()
    assert budget.held == FIRST
    room.close()
    room.close()
    assert budget.held == 0


def test_a_stream_of_small_batches_holds_little() -> None:
    budget = budget_of(64 * MIB)
    room = budget.room()
    for _ in range(20):
        room.begin()
        room.end(10)
    assert 0 < budget.held <= 2 * COPIES * READ_BYTES_MIN


def test_a_batch_larger_than_its_room_is_counted_and_holds_up_others() -> None:
    budget = MemoryBudget(64 * MIB, 1024 * MIB, WAITS)
    large, other = budget.room(), budget.room()
    large.begin()
    large.end(100 * MIB)
    assert budget.held == 100 * MIB
    thread = begin(other)
    until(lambda: budget.waiting == 1)
    large.close()
    thread.join(SECONDS_MAX)
    assert not thread.is_alive()
    assert budget.held == FIRST


def test_what_is_counted_leaves_less_room() -> None:
    pending = [60 * MIB]
    budget = budget_of(64 * MIB)
    budget.count(lambda: pending[0])
    thread = begin(budget.room())
    until(lambda: budget.waiting == 1)
    pending[0] = 0
    budget.came_free()
    thread.join(SECONDS_MAX)
    assert budget.held == FIRST


def test_room_is_lent_in_the_order_in_which_it_was_asked_for() -> None:
    budget = budget_of(2 * FIRST)
    holder = budget.room()
    budget.add(holder, 2 * FIRST)
    rooms = [budget.room() for _ in range(3)]
    threads: list[threading.Thread] = []
    for number, room in enumerate(rooms):
        threads.append(begin(room))
        until(lambda waiting=number + 1: budget.waiting == waiting)
    budget.give(holder, FIRST)
    threads[0].join(SECONDS_MAX)
    assert [room.held for room in rooms] == [FIRST, 0, 0]
    holder.close()
    threads[1].join(SECONDS_MAX)
    assert [room.held for room in rooms] == [FIRST, FIRST, 0]
    rooms[0].close()
    threads[2].join(SECONDS_MAX)
    assert [room.held for room in rooms] == [0, FIRST, FIRST]


def test_more_streams_wait_only_while_the_process_is_small() -> None:
    own = [0]
    budget = budget_of(2 * FIRST, lambda: own[0])
    holder = budget.room()
    budget.add(holder, 2 * FIRST)
    crowd = budget.waiting_max + 3
    threads = [begin(budget.room()) for _ in range(crowd)]
    until(lambda: budget.waiting == crowd)
    own[0] = FIRST // 2 + 1
    until(lambda: budget.waiting == budget.waiting_max)
    with pytest.raises(ResourceExhausted, match="streams wait for room"):
        budget.room().begin()
    own[0] = 0
    budget.stop(Unavailable("the server is stopping"))
    for thread in threads:
        thread.join(SECONDS_MAX)
    assert budget.waiting == 0


def test_a_crowd_has_a_bound() -> None:
    budget = budget_of(2 * FIRST, crowd_max=2)
    holder = budget.room()
    budget.add(holder, 2 * FIRST)
    threads = [begin(budget.room()) for _ in range(budget.waiting_max)]
    until(lambda: budget.waiting == budget.waiting_max)
    with pytest.raises(ResourceExhausted, match="streams wait for room"):
        budget.room().begin()
    budget.stop(Unavailable("the server is stopping"))
    for thread in threads:
        thread.join(SECONDS_MAX)
    assert budget.waiting == 0


def test_a_stream_is_refused_when_no_room_came_free() -> None:
    budget = budget_of(2 * FIRST, seconds_max=0.05)
    budget.add(budget.room(), 2 * FIRST)
    with pytest.raises(ResourceExhausted, match="no room became free"):
        budget.room().begin()
    assert budget.waiting == 0


def test_the_room_of_idle_streams_is_lent() -> None:
    budget = budget_of(2 * FIRST, idle_seconds=0.05)
    idle = [budget.room(), budget.room()]
    for room in idle:
        room.begin()
    wanted = budget.room()
    wanted.begin()
    assert wanted.held == FIRST
    assert [room.held for room in idle] == [0, 0]
    # What comes after all is counted.
    idle[0].end(1000)
    assert idle[0].held == 1000


def test_the_room_of_idle_streams_is_not_in_use() -> None:
    budget = budget_of(2 * FIRST)
    room = budget.room()
    room.begin()
    assert (budget.held, budget.in_use) == (FIRST, FIRST)
    budget.waits = replace(budget.waits, idle_seconds=0.0, idle_seconds_max=0.0)
    assert (budget.held, budget.in_use) == (FIRST, 0)
    room.end(FIRST_BYTES)
    assert budget.in_use == FIRST, "what was read is not lent"


def test_a_stop_ends_the_waits() -> None:
    budget = budget_of(2 * FIRST)
    budget.add(budget.room(), 2 * FIRST)
    refused: list[Exception] = []

    def wait() -> None:
        try:
            budget.room().begin()
        except Unavailable as error:
            refused.append(error)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    until(lambda: budget.waiting == 1)
    budget.stop(Unavailable("the server is stopping"))
    thread.join(SECONDS_MAX)
    assert len(refused) == 1
    with pytest.raises(Unavailable):
        budget.room().begin()


def test_a_small_budget_has_room_for_two_streams_at_least() -> None:
    budget = budget_of(1000)
    first, second = budget.room(), budget.room()
    first.begin()
    second.begin()
    assert budget.held <= 1000


def test_the_default_is_a_quarter_of_the_machine() -> None:
    assert MemoryBudget(0, 64 * MIB).bytes_max == memory.machine_bytes() // 4
