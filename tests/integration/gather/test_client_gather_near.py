"""Gathers whose first stream is read by the caller's own thread, since the server is near."""

import json
import threading
import time
from collections.abc import Callable, Iterator

import pyarrow.flight as flight
import pytest
from breakable_proxy import breakable
from scripted_responders import (
    CASES,
    EMPTY_AT_MS,
    TRIES,
    WAYS_OUT,
    Responder,
    gather_that_ends,
    near_script,
    responder,
    script,
    wait_for_streams,
)

import wings_client
from wings_client import Client
from wings_client.gather import (
    Gather,
    GatherEnd,
    GatherReason,
    Reply,
    Request,
    _source,
    _sources,
)

SLOW_MS = 600
"""A reply so late is not prompt, and comes after the caller has left its stream to a thread."""


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the caller take its time before threads read in its place: the machine may be busy."""
    be_patient(monkeypatch, 0.2)


def be_patient(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    monkeypatch.setattr(_source, "PROMPT_SECONDS", seconds)
    for name in ("PROMPT_SECONDS", "PACE_SECONDS", "PACE_SECONDS_MAX", "CALLER_SECONDS"):
        monkeypatch.setattr(_sources, name, seconds)


@pytest.fixture
def server() -> Iterator[Responder]:
    with responder() as running:
        yield running


@pytest.fixture
def client(client: Client, server: Responder) -> Client:
    learn(client, server)
    return client


def learn(client: Client, server: Responder) -> None:
    """Have the client find out that its server is near."""
    for _ in range(100):  # A machine under load is slow, but not always.
        server.tickets.clear()
        list(client.gather([near_script((0, 1), kind="fetch")]))
        if of_caller(server):
            server.tickets.clear()
            return
    raise AssertionError("the caller never read")


def of_caller(server: Responder, ticket: int = 0) -> bool:
    """Tell whether a ticket asked the server not to wait, as the caller's own do."""
    return server.tickets[ticket].get("timeout_ms") == 2


@pytest.mark.parametrize("case", CASES)
def test_a_gather_ends_as_it_is_told(server: Responder, client: Client, case: str) -> None:
    options, then, replies, reason = CASES[case]
    then, _, when = then.partition(" ")
    requests = [near_script((10, 3), then=then) for _ in range(5)]
    requests.append(near_script((EMPTY_AT_MS[when], 0), then=then))

    def ended() -> tuple[list[Reply], GatherEnd]:
        learn(client, server)
        gather = client.gather(requests, **options)
        found = list(gather)
        assert gather.end is not None
        return found, gather.end

    found, end = gather_that_ends(replies, reason, ended)
    assert end.rows == sum(reply.batch.num_rows for reply in found)
    assert end.error is None
    server.wait_until_idle()


def test_the_first_reply_is_read_by_the_caller_and_nobody_else(
    server: Responder, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    be_patient(monkeypatch, 20)
    before = {thread.ident for thread in threading.enumerate()}
    gather = client.gather([near_script((0, 1), kind="fetch")] * 3, max_messages=1)
    replies = iter(gather)
    assert next(replies).end_offset == 0
    assert list(replies) == []
    assert of_caller(server)
    started = {thread.name for thread in threading.enumerate() if thread.ident not in before}
    assert not any(name.startswith("wings-gather-0") for name in started)


def test_a_stream_that_the_caller_gave_up_is_gone_on_with_where_it_stopped(
    server: Responder, client: Client
) -> None:
    request = near_script((0, 3), (SLOW_MS, 4), (60, 2), kind="fetch", max_messages=50)

    def is_gone_on_with() -> bool:
        learn(client, server)
        gather = client.gather([request])
        found = [(reply.start_offset, reply.end_offset) for reply in gather]
        assert found == [(0, 2), (3, 6), (7, 8)]
        assert gather.end is not None
        assert gather.end.reason == GatherReason.COMPLETE
        rest = server.tickets[-1]
        return of_caller(server) and (rest["offset"], rest["max_messages"]) == (3, 47)

    assert any(is_gone_on_with() for _ in range(TRIES))


def test_a_stream_that_the_caller_gave_up_full_is_not_asked_for_more(
    server: Responder, client: Client
) -> None:

    def tickets() -> int:
        learn(client, server)
        gather = client.gather([near_script((0, 3), then="hang", kind="fetch", max_messages=3)])
        assert [reply.end_offset for reply in gather] == [2]
        assert gather.end is not None
        assert gather.end.reason == GatherReason.COMPLETE
        return len(server.tickets)

    assert any(tickets() == 1 for _ in range(TRIES))


def test_a_first_source_without_a_reply_keeps_nobody_elses_waiting(
    server: Responder, client: Client
) -> None:
    requests = [near_script(then="hang"), *[near_script((0, 1))] * 5]
    with client.gather(requests, timeout=60) as gather:
        replies = iter(gather)
        assert [next(replies).request for _ in range(5)] == requests[1:]
    server.wait_until_idle()


def test_the_others_are_sent_while_the_caller_holds_the_first_reply(
    server: Responder, client: Client
) -> None:
    with client.gather([near_script((0, 1), then="hang") for _ in range(4)], timeout=60) as gather:
        replies = iter(gather)
        next(replies)
        wait_for_streams(server, 4)
    server.wait_until_idle()


def test_requests_are_sent_also_when_nobody_iterates(server: Responder, client: Client) -> None:
    with client.gather([near_script(then="hang") for _ in range(4)], timeout=60):
        wait_for_streams(server, 4)
    server.wait_until_idle()


@pytest.mark.parametrize("way_out", WAYS_OUT)
def test_a_server_sees_within_100_ms_that_the_caller_has_left(
    server: Responder, client: Client, way_out: Callable[[Gather], None]
) -> None:
    def seconds() -> float:
        learn(client, server)
        gather = client.gather([near_script((0, 1), then="hang") for _ in range(3)], timeout=60)
        way_out(gather)
        took = server.wait_until_idle()
        assert gather.end is not None
        assert gather.end.reason == GatherReason.STOPPED
        return took

    assert any(seconds() < 0.1 for _ in range(TRIES))


def test_a_gather_is_cancelled_from_another_thread_while_the_caller_reads(
    server: Responder, client: Client
) -> None:
    for _ in range(5):
        learn(client, server)
        gather = client.gather([near_script(then="hang")], timeout=60)
        canceller = threading.Thread(target=gather.cancel)
        canceller.start()
        assert list(gather) == []
        canceller.join()
        assert gather.end is not None
        assert gather.end.reason == GatherReason.CANCELLED
    server.wait_until_idle()


def test_a_refused_first_request_ends_the_gather(server: Responder, client: Client) -> None:
    gather = client.gather([near_script(then="refuse"), near_script(then="hang")])
    assert list(gather) == []
    assert gather.end is not None
    assert gather.end.reason == GatherReason.SERVER_ERROR
    assert gather.end.sources[0].ended


def test_a_server_that_went_silent_keeps_neither_replies_nor_the_total(server: Responder) -> None:
    with (
        breakable(server.endpoint) as proxy,
        wings_client.connect(proxy.endpoint, timeout=60.0) as client,
    ):
        learn(client, server)
        proxy.stall()
        requests = [near_script((0, 1)), script(server.endpoint, (0, 1))]
        began = time.monotonic()
        gather = client.gather(requests, timeout=3.0)
        assert [reply.request for reply in gather] == requests[1:]
        assert gather.end is not None
        assert gather.end.reason == GatherReason.TIMEOUT
        assert time.monotonic() - began < 30.0


def test_a_server_that_died_is_no_responders() -> None:
    with responder() as server, wings_client.connect(server.endpoint, timeout=5.0) as client:
        learn(client, server)
        server.shutdown()
        gather = client.gather([near_script((0, 1))], timeout=20)
        assert list(gather) == []
        assert gather.end is not None
        assert gather.end.reason == GatherReason.NO_RESPONDERS


def test_a_slow_reply_leaves_the_next_to_threads(server: Responder, client: Client) -> None:
    list(client.gather([near_script((SLOW_MS, 1))]))
    server.tickets.clear()
    list(client.gather([near_script((0, 1), kind="fetch")]))
    assert not of_caller(server)


class SlowAtTimes(Responder):
    """Answers after `delay` seconds."""

    delay = 0.0

    def do_get(
        self, context: flight.ServerCallContext, ticket: flight.Ticket
    ) -> flight.FlightDataStream:
        threading.Event().wait(self.delay)
        return super().do_get(context, ticket)


def test_a_node_whose_first_reply_is_late_counts_as_good() -> None:
    with SlowAtTimes() as one, SlowAtTimes() as other:
        endpoints = [one.endpoint, other.endpoint]
        with wings_client.connect(endpoints, timeout=5.0) as client:
            used = client.endpoint
            learn(client, one if one.endpoint == used else other)
            one.delay = other.delay = SLOW_MS / 1000
            assert len(list(client.gather([near_script((0, 1), kind="fetch")]))) == 1
            assert client.endpoint == used


def test_what_cannot_be_gone_on_with_exactly_is_left_to_threads(
    server: Responder, client: Client
) -> None:
    topic = json.dumps({"replies": [[0, 1]], "then": "end"})
    for request in (
        Request(topic, offset="latest"),
        Request(topic, offset=0, filter="n > 0"),
    ):
        learn(client, server)
        list(client.gather([request]))
        assert not of_caller(server)
