"""Wakes and budgets: what ends a wait, and what is held in memory."""

import asyncio
import threading
from collections.abc import MutableMapping
from typing import Any

import pytest

from wings_core.errors import ResourceExhausted, Unavailable
from wings_core.fetch.state import Waits
from wings_core.times import Deadline
from wings_server.flight.boundary import ClientGone
from wings_server.http.wire import JsonAnswer
from wings_server.resources import Budget
from wings_server.shared_reads import Waiting

SOON = 0.02
LATER = 30.0


async def never() -> dict[str, Any]:
    """A client that stays."""
    await asyncio.Event().wait()
    raise AssertionError("an event that is never set")


async def leaving() -> dict[str, Any]:
    return {"type": "http.disconnect"}


def test_a_notification_from_another_thread_ends_a_wait() -> None:
    async def scenario() -> None:
        with Waiting(Waits(1)).one(never) as wake:
            thread = threading.Thread(target=wake.notify)
            thread.start()
            await wake.wait(Deadline.after(LATER))
            thread.join()

    asyncio.run(asyncio.wait_for(scenario(), LATER / 2))


def test_a_notification_before_the_wait_counts_once() -> None:
    async def scenario() -> None:
        with Waiting(Waits(1)).one(never) as wake:
            wake.set()
            await asyncio.wait_for(wake.wait(Deadline.never()), LATER)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(wake.wait(Deadline.never()), SOON)

    asyncio.run(scenario())


@pytest.mark.parametrize("seconds", [-1.0, 0.0, SOON])
def test_the_deadline_ends_a_wait(seconds: float) -> None:
    async def scenario() -> None:
        with Waiting(Waits(1)).one(never) as wake:
            await wake.wait(Deadline.after(seconds))

    asyncio.run(asyncio.wait_for(scenario(), LATER))


def test_a_client_that_leaves_ends_its_wait() -> None:
    async def scenario() -> None:
        with Waiting(Waits(1)).one(leaving) as wake:
            await wake.wait(Deadline.never())

    with pytest.raises(ClientGone):
        asyncio.run(asyncio.wait_for(scenario(), LATER))


def test_a_stop_ends_waits_and_refuses_later_ones() -> None:
    waits = Waits(2)
    waiting = Waiting(waits)

    async def scenario() -> None:
        with waiting.one(never) as wake:
            threading.Thread(target=waiting.stop, args=(Unavailable("stopping"),)).start()
            with pytest.raises(Unavailable):
                await wake.wait(Deadline.never())
        with pytest.raises(Unavailable), waiting.one(never):
            pass

    asyncio.run(asyncio.wait_for(scenario(), LATER))
    assert waits.waiting == 0


def test_a_notification_after_the_loop_is_closed_does_no_harm() -> None:
    async def scenario() -> Any:
        with Waiting(Waits(1)).one(never) as wake:
            return wake

    asyncio.run(scenario()).notify()


def test_one_body_may_exceed_the_budget_alone() -> None:
    budget = Budget(10)
    budget.take(50)
    with pytest.raises(ResourceExhausted):
        budget.take(1)
    budget.release(50)
    budget.take(4)
    budget.take(6)
    with pytest.raises(ResourceExhausted):
        budget.take(1)
    assert budget.held == 10


# Answers over HTTP where clients hold more of them than there is room for. ########################


def sent(answer: JsonAnswer) -> list[MutableMapping[str, Any]]:
    messages: list[MutableMapping[str, Any]] = []

    async def receive() -> MutableMapping[str, Any]:
        raise AssertionError("nothing is received")

    async def send(message: MutableMapping[str, Any]) -> None:
        messages.append(message)

    asyncio.run(answer({"type": "http"}, receive, send))
    return messages


def test_what_tells_of_a_change_is_sent_though_there_is_no_room() -> None:
    budget = Budget(10)
    budget.take(10)
    with pytest.raises(ResourceExhausted):
        sent(JsonAnswer(b"{}", budget))
    with pytest.raises(ResourceExhausted):
        budget.check_room()
    start, body = sent(JsonAnswer(b"{}", budget, is_of_change=True))
    assert (start["status"], body["body"]) == (200, b"{}")
    assert budget.held == 10
    budget.release(1)
    budget.check_room()
