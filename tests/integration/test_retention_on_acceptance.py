"""What all share groups of a topic have finished goes, and nothing else, in real servers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pyarrow.flight as flight
import pytest
from flight_calls import Json, act, create_topic, get, numbers, push
from http_calls import good
from share_calls import Member, create_group

from wings_core.limits import Limits
from wings_server.testing import RunningServer, running_server

LIMITS = Limits(inline_bytes_max=0, maintenance_seconds=3_600)
"""Each push is a page of its own, and maintenance works when it is asked."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    with running_server(tmp_path / "data", limits=LIMITS) as running:
        yield running


def push_pages(client: flight.FlightClient, topic: str, first: int = 0, pages: int = 5) -> None:
    """Push pages of ten messages."""
    for number in range(first, first + pages):
        push(client, topic, numbers(*range(10 * number, 10 * number + 10)))


@pytest.fixture
def topic(client: flight.FlightClient, new_topic_id: str) -> str:
    """A topic of five pages of ten messages, of which what is finished may go."""
    config = {"retention_on_acceptance": True}
    create_topic(client, new_topic_id, ["n: int64"])
    act(client, "alter-topic", topic=new_topic_id, config=config)
    push_pages(client, new_topic_id)
    return new_topic_id


def accept(client: flight.FlightClient, topic: str, group: str, messages: int) -> None:
    """Accept so many messages of a group."""
    while messages:
        member = Member(client, topic, group)
        for leased in member.acquire(max_messages=messages):
            assert member.acknowledge(leased.ack("accept")) == [None]
            messages -= len(leased.offsets)


def maintain(client: flight.FlightClient, topic: str) -> Json:
    return act(client, "maintain", topic=topic)


def start(client: flight.FlightClient, topic: str) -> int:
    """Do what is due; return where the log starts then."""
    assert maintain(client, topic)["failures"] == 0
    (state,) = act(client, "partition-states", topic=topic)
    assert get(client, kind="scan", topic=topic).column("n") == list(
        range(state["log_start_offset"], state["next_offset"])
    )
    return state["log_start_offset"]


def test_what_all_groups_have_finished_goes_and_the_one_that_lags_holds_back(
    client: flight.FlightClient, topic: str
) -> None:
    assert start(client, topic) == 0, "it has no group"
    create_group(client, topic, "fast")
    create_group(client, topic, "slow", dlq_topic=f"{topic}-dead")
    assert start(client, topic) == 0
    accept(client, topic, "fast", 50)
    assert start(client, topic) == 0, "one group is not begun, and has no member"
    accept(client, topic, "slow", 25)
    assert start(client, topic) == 20
    member = Member(client, topic, "slow")
    (leased,) = member.acquire(max_messages=25)
    assert member.acknowledge(leased.ack("accept", 26, 49)) == [None]
    assert start(client, topic) == 20, "25 is held"
    assert member.acknowledge(leased.ack("reject", 25, 25)) == [None]
    letters = get(client, topic=f"{topic}-dead", offset=0, timeout_ms=20_000)
    assert letters.column("source_offset") == [25]
    assert start(client, topic) == 50
    push_pages(client, topic, first=5, pages=1)
    accept(client, topic, "fast", 10)
    accept(client, topic, "slow", 10)
    assert start(client, topic) == 60


def test_a_group_that_is_created_later_starts_at_what_is_left(
    client: flight.FlightClient, topic: str
) -> None:
    create_group(client, topic, "first")
    accept(client, topic, "first", 30)
    assert start(client, topic) == 30
    create_group(client, topic, "second")
    accept(client, topic, "first", 20)
    assert start(client, topic) == 30
    (leased,) = Member(client, topic, "second").acquire()
    assert leased.offsets == [*range(30, 50)]
    act(client, "share-delete", group="second", topic=topic)
    assert start(client, topic) == 50, "a group that is gone holds nothing back"
    act(client, "share-delete", group="first", topic=topic)
    push_pages(client, topic, first=5)
    assert start(client, topic) == 50, "without a group all is kept"


def test_a_group_that_goes_back_holds_back_and_one_that_is_purged_does_not(
    client: flight.FlightClient, topic: str
) -> None:
    create_group(client, topic)
    accept(client, topic, "billing", 30)
    assert start(client, topic) == 30
    accept(client, topic, "billing", 20)
    act(client, "share-seek", group="billing", topic=topic, to="earliest")
    assert start(client, topic) == 30
    accept(client, topic, "billing", 10)
    act(client, "share-seek", group="billing", topic=topic, to=35)
    assert start(client, topic) == 30, "the page of 30 to 39 has some left"
    (leased,) = Member(client, topic).acquire()
    assert leased.offsets == [*range(35, 50)]
    act(client, "share-seek", group="billing", topic=topic, to="latest")
    assert start(client, topic) == 50


def test_other_retention_goes_on_beside_it_and_without_it_what_is_finished_stays(
    client: flight.FlightClient, topic: str
) -> None:
    create_group(client, topic)
    accept(client, topic, "billing", 20)
    act(client, "alter-topic", topic=topic, config={"retention_on_acceptance": None})
    assert start(client, topic) == 0
    config = {"retention_on_acceptance": True, "retention_bytes": 1}
    act(client, "alter-topic", topic=topic, config=config)
    assert start(client, topic) == 40
    accept(client, topic, "billing", 10)
    assert start(client, topic) == 50


def test_each_partition_goes_as_far_as_it_is_finished(
    client: flight.FlightClient, new_topic_id: str
) -> None:
    create_topic(client, new_topic_id, ["n: int64"], "n")
    act(client, "alter-topic", topic=new_topic_id, config={"retention_on_acceptance": True})
    for _ in range(3):
        push(client, new_topic_id, numbers(1, 2))
    create_group(client, new_topic_id)
    member = Member(client, new_topic_id)
    (leased,) = member.acquire(partition=1, max_messages=2)
    assert member.acknowledge(leased.ack("accept")) == [None]
    assert maintain(client, new_topic_id)["pages_expired"] == 2
    states = act(client, "partition-states", topic=new_topic_id)
    assert [(each["partition"], each["log_start_offset"]) for each in states] == [(1, 2), (2, 0)]


def test_what_is_finished_goes_from_a_tier_too_and_after_a_restart(tmp_path: Path) -> None:
    config: dict[str, Any] = {"retention_on_acceptance": True, "tier_after_ms": 0}
    places: dict[str, Any] = {"limits": LIMITS, "remote": str(tmp_path / "remote")}
    with running_server(tmp_path / "data", **places) as server:
        client = server.client()
        create_topic(client, "jobs", ["n: int64"])
        act(client, "alter-topic", topic="jobs", config=config)
        push_pages(client, "jobs")
        create_group(client, "jobs", "one")
        create_group(client, "jobs", "other")
        accept(client, "jobs", "one", 30)
        accept(client, "jobs", "other", 20)
        report = maintain(client, "jobs")
        assert (report["pages_expired"], report["pages_merged"]) == (2, 3)
    with running_server(tmp_path / "data", **places) as server:
        client = server.client()
        assert start(client, "jobs") == 20
        accept(client, "jobs", "other", 20)
        assert start(client, "jobs") == 20, "what was merged is one page"
        accept(client, "jobs", "one", 20)
        accept(client, "jobs", "other", 10)
        assert start(client, "jobs") == 50


def test_over_http_it_is_set_and_told(server: RunningServer, new_topic_id: str) -> None:
    url = f"{server.http}/v1/tenants/default/namespaces/default/topics"
    config = {"retention_on_acceptance": True}
    schema = {"fields": [{"name": "n", "type": "int64", "nullable": True}]}
    body = {"topic": new_topic_id, "schema": schema, "config": config}
    assert good(httpx.post(url, json=body))["config"]["retention_on_acceptance"] is True
    one = f"{url}/{new_topic_id}"
    assert (
        good(httpx.patch(one, json={"config": {"retention_on_acceptance": None}}))["config"][
            "retention_on_acceptance"
        ]
        is False
    )
    refused = httpx.patch(one, json={"config": {"retention_on_acceptance": 1}})
    assert refused.status_code == 400
