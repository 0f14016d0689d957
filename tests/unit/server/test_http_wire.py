"""Answers over HTTP where clients hold more of them than there is room for."""

import asyncio
from collections.abc import MutableMapping
from typing import Any

import pytest

from wings_core.errors import ResourceExhausted
from wings_server.budget import Budget
from wings_server.http.wire import JsonAnswer


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
