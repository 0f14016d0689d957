import asyncio
import gc
import threading
from collections.abc import Callable
from typing import Any

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
    script,
    wait_for_streams,
)

import wings_client
from wings_client import Client, Connection
from wings_client._threads import start_thread
from wings_client.gather import (
    Gather,
    GatherEnd,
    GatherReason,
    Reply,
    Request,
    first,
)
from wings_core.errors import Internal, InvalidArgument, Unavailable

UNREACHABLE = "grpc://127.0.0.1:1"


def five(server: Responder, *, then: str = "end", empty: float = 100) -> list[Request]:
    """Five sources that answer after 10 ms, and a sixth whose empty reply comes at 100 ms."""
    quick = [script(server.endpoint, (10, 3), then=then) for _ in range(5)]
    return [*quick, script(server.endpoint, (empty, 0), then=then)]


def read_sync(gather: Gather) -> list[Reply]:
    return list(gather)


def read_async(gather: Gather) -> list[Reply]:
    async def read() -> list[Reply]:
        return [reply async for reply in gather]

    return asyncio.run(read())


def read_delivered(gather: Gather) -> list[Reply]:
    replies: list[Reply] = []
    ends: list[GatherEnd] = []
    ended = threading.Event()

    def on_end(end: GatherEnd) -> None:
        ends.append(end)
        ended.set()

    gather.deliver(lambda reply: replies.append(reply), on_end)
    assert ended.wait(60)
    assert ends == [gather.end]
    return replies


READS: dict[str, Callable[[Gather], list[Reply]]] = {
    "iterator": read_sync,
    "async iterator": read_async,
    "callback": read_delivered,
}


@pytest.mark.parametrize("face", READS)
@pytest.mark.parametrize("case", CASES)
def test_a_gather_ends_as_it_is_told(
    server: Responder, client: Client, face: str, case: str
) -> None:
    options, then, replies, reason = CASES[case]
    then, _, when = then.partition(" ")
    requests = five(server, then=then, empty=EMPTY_AT_MS[when])

    def ended() -> tuple[list[Reply], GatherEnd]:
        gather = client.gather(requests, **options)
        found = READS[face](gather)
        assert gather.end is not None
        return found, gather.end

    found, end = gather_that_ends(replies, reason, ended)
    assert end.replies == replies
    assert end.rows == sum(reply.batch.num_rows for reply in found)
    assert end.error is None
    assert len(end.sources) == 6
    server.wait_until_idle()


def test_each_source_tells_where_to_read_on(server: Responder, client: Client) -> None:
    requests = [script(server.endpoint, (1, 3), (1, 2)), script(server.endpoint, (1, 4))]
    gather = client.gather(requests)
    list(gather)
    assert gather.end is not None
    states = [(each.replies, each.rows, each.next_offset) for each in gather.end.sources]
    assert states == [(2, 5, 5), (1, 4, 4)]
    assert [each.request for each in gather.end.sources] == requests


def test_what_was_not_handed_on_is_not_counted(server: Responder, client: Client) -> None:
    gather = client.gather([script(server.endpoint, *[(0, 2)] * 10)], max_messages=3)
    assert [reply.end_offset for reply in gather] == [1, 3, 5]
    assert gather.end is not None
    assert gather.end.sources[0].next_offset == 6


def test_bad_options_are_refused_by_the_call(server: Responder, client: Client) -> None:
    server.wait_until_idle()  # After the tests before.
    bad: list[dict[str, Any]] = [
        {"timeout": 0},
        {"timeout": -1},
        {"max_messages": 0},
        {"max_messages": -1},
        {"max_messages": 1.5},
        {"max_messages": True},
        {"timeout": float("nan")},
        {"strategy": first(0)},
        {"strategy": first(2), "max_messages": 2},
        {"on_error": "ignore"},
        {"sentinel": "empty"},
    ]
    for options in bad:
        with pytest.raises(InvalidArgument):
            client.gather(five(server), **options)
    with pytest.raises(InvalidArgument, match="requests"):
        client.gather([])
    assert server.running == 0


@pytest.mark.parametrize("on_error", ["end", "continue"])
def test_nobody_there_is_no_responders(client: Client, on_error: Any) -> None:
    requests = [script(UNREACHABLE), script("grpc://127.0.0.1:2")]
    gather = client.gather(requests, timeout=60, on_error=on_error)
    assert list(gather) == []
    assert gather.end is not None
    assert gather.end.reason == GatherReason.NO_RESPONDERS
    assert isinstance(gather.end.error, Unavailable)
    assert gather.end.error.connection == Connection.UNREACHABLE


def one_down(server: Responder) -> list[Request]:
    return [
        script(server.endpoint, (50, 1)),
        script(UNREACHABLE),
        script(server.endpoint, (50, 1)),
    ]


def test_one_server_of_three_down_ends_a_gather(server: Responder, client: Client) -> None:
    gather = client.gather(one_down(server))
    list(gather)
    assert gather.end is not None
    assert gather.end.reason == GatherReason.DISCONNECTED
    assert isinstance(gather.end.error, Unavailable)
    server.wait_until_idle()


def test_one_server_of_three_down_is_gone_on_without(server: Responder, client: Client) -> None:
    gather = client.gather(one_down(server), on_error="continue")
    assert len(list(gather)) == 2
    assert gather.end is not None
    assert gather.end.reason == GatherReason.COMPLETE
    errors = [each.error for each in gather.end.sources]
    assert errors[0] is None
    assert isinstance(errors[1], Unavailable)
    assert errors[2] is None


def test_a_refusal_is_a_server_error(server: Responder, client: Client) -> None:
    requests = [script(server.endpoint, (1, 1), then="refuse")]
    gather = client.gather(requests)
    assert len(list(gather)) == 1
    assert gather.end is not None
    assert gather.end.reason == GatherReason.SERVER_ERROR
    assert isinstance(gather.end.error, Internal)
    assert gather.end.sources[0].next_offset == 1


def test_a_server_that_dies_midway_is_disconnected(server: Responder, client: Client) -> None:
    with breakable(server.endpoint) as proxy:
        gather = client.gather([script(proxy.endpoint, (1, 2), then="hang")])
        replies = iter(gather)
        assert next(replies).batch.num_rows == 2
        proxy.cut()
        assert list(replies) == []
    assert gather.end is not None
    assert gather.end.reason == GatherReason.DISCONNECTED
    assert isinstance(gather.end.error, Unavailable)
    assert gather.end.error.connection == Connection.LOST
    assert gather.end.sources[0].next_offset == 2


def test_a_server_that_went_silent_keeps_neither_replies_nor_the_total(server: Responder) -> None:
    with (
        breakable(server.endpoint) as proxy,
        wings_client.connect(proxy.endpoint, timeout=60.0) as client,
    ):
        list(client.gather([near_script((0, 1))]))
        proxy.stall()
        requests = [near_script((0, 1)), script(server.endpoint, (0, 1))]
        gather = client.gather(requests, timeout=3.0)
        assert [reply.request for reply in gather] == requests[1:]
        assert gather.end is not None
        assert gather.end.reason == GatherReason.TIMEOUT


@pytest.mark.parametrize("stall_timeout", [None, 30.0])
def test_a_gather_is_cancelled_from_another_thread(
    server: Responder, client: Client, stall_timeout: float | None
) -> None:
    requests = [script(server.endpoint, (1, 1), then="hang")]
    gather = client.gather(requests, timeout=60, stall_timeout=stall_timeout)
    replies = iter(gather)
    next(replies)
    timer = threading.Timer(0.1, gather.cancel)
    timer.start()
    assert list(replies) == []
    timer.join()
    assert gather.end is not None
    assert gather.end.reason == GatherReason.CANCELLED
    server.wait_until_idle()  # It hangs until it is cancelled.


def test_time_spent_with_a_reply_does_not_count(server: Responder, client: Client) -> None:
    pause = threading.Event()
    requests = [script(server.endpoint, (1, 1), (50, 1), (50, 1))]

    def is_complete() -> bool:
        gather = client.gather(requests, timeout=0.5, stall_timeout=0.3)
        for _ in gather:
            pause.wait(0.4)
        assert gather.end is not None
        return (gather.end.reason, gather.end.replies) == (GatherReason.COMPLETE, 3)

    assert any(is_complete() for _ in range(TRIES))


def test_a_slow_callback_does_not_cause_a_timeout(server: Responder, client: Client) -> None:
    pause = threading.Event()
    requests = [script(server.endpoint, (1, 1), (50, 1), (50, 1))]

    def reason() -> GatherReason:
        ends: list[GatherEnd] = []
        ended = threading.Event()

        def on_end(end: GatherEnd) -> None:
            ends.append(end)
            ended.set()

        def on_reply(_: Reply) -> None:
            pause.wait(0.4)

        client.gather(requests, timeout=0.5).deliver(on_reply, on_end)
        assert ended.wait(60)
        (end,) = ends
        return end.reason

    assert any(reason() == GatherReason.COMPLETE for _ in range(TRIES))


def test_a_callback_stops_by_false_or_by_raising(server: Responder, client: Client) -> None:
    def refuse(_: Reply) -> bool:
        return False

    def fail(_: Reply) -> None:
        raise KeyError

    for on_reply, error in ((refuse, type(None)), (fail, KeyError)):
        ends: list[GatherEnd] = []
        ended = threading.Event()

        def on_end(
            end: GatherEnd, ends: list[GatherEnd] = ends, ended: threading.Event = ended
        ) -> None:
            ends.append(end)
            ended.set()

        requests = [script(server.endpoint, (1, 1), then="hang")]
        client.gather(requests).deliver(on_reply, on_end)
        assert ended.wait(60)
        assert [(end.reason, type(end.error)) for end in ends] == [(GatherReason.STOPPED, error)]
        server.wait_until_idle()


@pytest.mark.parametrize("way_out", ["cancelled", "cancelled by a reply", "let go of"])
def test_a_callback_gets_the_end_exactly_once(
    server: Responder, client: Client, way_out: str
) -> None:
    ends: list[GatherReason] = []
    ended = threading.Event()
    gathers: list[Gather] = []

    def on_reply(_: Reply) -> None:
        if way_out == "cancelled by a reply":
            gathers[0].cancel()

    def on_end(end: GatherEnd) -> None:
        ends.append(end.reason)
        for gather in gathers:
            gather.cancel()
        ended.set()

    then = "end" if way_out == "let go of" else "hang"
    gathers.append(client.gather([script(server.endpoint, (20, 1), then=then)], timeout=60))
    gathers[0].deliver(on_reply, on_end)
    if way_out == "cancelled":
        gathers[0].cancel()
    elif way_out == "let go of":
        gathers.clear()
        gc.collect()
    assert ended.wait(60)
    server.wait_until_idle()
    is_cancelled = way_out != "let go of"
    assert ends == [GatherReason.CANCELLED if is_cancelled else GatherReason.COMPLETE]


def test_the_first_wait_uses_all_of_the_total(server: Responder, client: Client) -> None:
    requests = [script(server.endpoint, (300, 1), then="hang")]
    gather = client.gather(requests, timeout=10, stall_timeout=0.1)
    assert len(list(gather)) == 1
    assert gather.end is not None
    assert gather.end.reason == GatherReason.STALL


@pytest.mark.parametrize("way_out", WAYS_OUT)
def test_a_server_sees_within_100_ms_that_the_caller_has_left(
    server: Responder, client: Client, way_out: Callable[[Gather], None]
) -> None:
    hanging = [script(server.endpoint, (0, 1), then="hang") for _ in range(3)]

    def seconds() -> float:
        gather = client.gather(hanging, timeout=60)
        wait_for_streams(server, 3)
        way_out(gather)
        took = server.wait_until_idle()  # They hang until they are cancelled.
        assert gather.end is not None
        assert gather.end.reason == GatherReason.STOPPED
        return took

    assert any(seconds() < 0.1 for _ in range(TRIES))


def test_a_server_sees_within_100_ms_that_an_unread_gather_is_let_go_of(
    server: Responder, client: Client
) -> None:
    def seconds() -> float:
        gather = client.gather([script(server.endpoint, (0, 1), then="hang")], timeout=60)
        wait_for_streams(server, 1)
        del gather
        gc.collect()
        return server.wait_until_idle()

    assert any(seconds() < 0.1 for _ in range(TRIES))


@pytest.mark.parametrize("elsewhere", [False, True])
def test_closing_the_client_ends_its_gathers(server: Responder, elsewhere: bool) -> None:
    client = wings_client.connect(server.endpoint)
    ticket = script(server.endpoint, (1, 1), then="hang").ticket
    endpoint = server.endpoint if elsewhere else None
    gather = client.gather([Request(ticket=ticket, endpoint=endpoint)])
    replies = iter(gather)
    next(replies)
    client.close()
    assert list(replies) == []
    assert gather.end is not None
    assert gather.end.reason == GatherReason.DISCONNECTED
    assert isinstance(gather.end.error, Unavailable)
    assert gather.end.error.connection == Connection.CLOSED


AGAIN: dict[str, Callable[[Gather], object]] = {
    "iterated": iter,
    "iterated by a task": aiter,
    "delivered": lambda gather: gather.deliver(lambda _: None, lambda _: None),
}


@pytest.mark.parametrize("again", AGAIN)
def test_a_gather_is_read_once(server: Responder, client: Client, again: str) -> None:
    gather = client.gather([script(server.endpoint, (1, 1))])
    replies = iter(gather)
    with pytest.raises(InvalidArgument, match="once"):
        AGAIN[again](gather)
    assert len(list(replies)) == 1


def test_a_gather_goes_on_with_the_threads_that_there_are(
    server: Responder, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = 0

    def start(call: Callable[[], None], name: str) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise RuntimeError("can't start new thread")
        start_thread(call, name)

    monkeypatch.setattr("wings_client.gather._sources.start_thread", start)
    requests = [script(server.endpoint, (20, 1)) for _ in range(6)]
    for threads in (1, 2, 3):
        left = threads
        assert len(list(client.gather(requests, timeout=60))) == 6
    left = 0
    with pytest.raises(RuntimeError, match="thread"):
        client.gather(requests, timeout=60)
    server.wait_until_idle()


@pytest.mark.parametrize("sources", [200, pytest.param(2_000, marks=pytest.mark.soak)])
def test_many_sources_are_read_by_a_bounded_number_of_threads(
    server: Responder, client: Client, sources: int
) -> None:
    before = threading.active_count()
    ticket = script(server.endpoint, (0, 1)).ticket
    most = 0
    count = 0
    for _ in client.gather([Request(ticket=ticket)] * sources, timeout=60):
        most = max(most, threading.active_count() - before)
        count += 1
    assert count == sources
    assert most <= 64


def test_sixty_four_sources_that_all_wait_are_all_sent(server: Responder, client: Client) -> None:
    hanging = [script(server.endpoint, then="hang") for _ in range(64)]
    with client.gather(hanging, timeout=60):
        wait_for_streams(server, 64)
    server.wait_until_idle()


def test_a_source_behind_slow_ones_is_not_kept_waiting(server: Responder, client: Client) -> None:
    requests = [script(server.endpoint, then="hang") for _ in range(60)]
    requests.append(script(server.endpoint, (0, 1)))
    with client.gather(requests, timeout=60) as gather:
        assert next(iter(gather)).request == requests[-1]
    server.wait_until_idle()


def test_more_replies_than_may_wait_are_all_handed_on(server: Responder, client: Client) -> None:
    requests = [script(server.endpoint, *[(0, 1)] * 300) for _ in range(3)]
    pause = threading.Event()
    gather = client.gather(requests, timeout=60)
    pause.wait(0.2)  # Meanwhile there are as many as there may be.
    assert sum(1 for _ in gather) == 900
    assert gather.end is not None
    assert [each.next_offset for each in gather.end.sources] == [300] * 3


def test_a_total_without_end_is_taken(server: Responder, client: Client) -> None:
    gather = client.gather([script(server.endpoint, (0, 1))], timeout=float("inf"))
    assert len(list(gather)) == 1
