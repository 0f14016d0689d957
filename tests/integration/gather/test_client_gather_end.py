"""What the end of a gather tells: what was handed on, where to go on, and what went wrong."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow.flight as flight
import pytest
from scripted_responders import SCHEMA, Responder, batch, near_script, script

from wings_client import Client, Connection
from wings_client.gather import Gather, GatherReason, Reply, Request
from wings_client.gather._gather import REPLIES_WAITING_MAX
from wings_core.errors import Unavailable
from wings_core.times import Deadline

FULL = [(0.0, 1)] * (REPLIES_WAITING_MAX + 50)
"""More replies than may wait."""

BEHIND_SECONDS = 0.4
"""How long a caller does something else; meanwhile all that may arrive has."""


def be_behind() -> None:
    threading.Event().wait(BEHIND_SECONDS)


def states(gather: Gather) -> list[tuple[int, int | None, bool]]:
    """Return of each source the rows handed on, where to go on, and whether it has ended."""
    assert gather.end is not None
    return [(each.rows, each.next_offset, each.ended) for each in gather.end.sources]


def test_a_reply_that_found_no_room_is_not_skipped(client: Client) -> None:
    requests = [near_script(*FULL), near_script((250, 3), then="hang")]
    gather = client.gather(requests, max_messages=1, timeout=60)
    be_behind()
    assert [reply.request for reply in gather] == requests[:1]
    assert states(gather) == [(1, 1, False), (0, 0, False)]


def test_a_source_whose_replies_were_dropped_has_not_ended(client: Client) -> None:
    gather = client.gather([near_script(*[(0, 1)] * 3)], max_messages=1)
    be_behind()
    assert [reply.end_offset for reply in gather] == [0]
    assert states(gather) == [(1, 1, False)]


def fails_at_the_second(reply: Reply) -> bool:
    if reply.start_offset == 1:
        raise KeyError("the predicate's own")
    return True


def read_sync(gather: Gather) -> list[Reply]:
    found: list[Reply] = []
    with pytest.raises(KeyError):
        found.extend(gather)
    return found


async def collect(gather: Gather, found: list[Reply]) -> None:
    async for reply in gather:
        found.append(reply)  # noqa: PERF401 - it is to keep what came before an error.


def read_async(gather: Gather) -> list[Reply]:
    found: list[Reply] = []
    with pytest.raises(KeyError):
        asyncio.run(collect(gather, found))
    return found


def read_delivered(gather: Gather) -> list[Reply]:
    found: list[Reply] = []
    ended = threading.Event()
    gather.deliver(lambda reply: found.append(reply), lambda _: ended.set())
    assert ended.wait(60)
    return found


@pytest.mark.parametrize("max_messages", [None, 2])
@pytest.mark.parametrize("read", [read_sync, read_async, read_delivered])
def test_a_predicate_that_raises_ends_a_gather_with_its_error_before_the_reply(
    client: Client, read: Callable[[Gather], list[Reply]], max_messages: int | None
) -> None:
    requests = [near_script(*[(0, 1)] * 3)]
    gather = client.gather(requests, sentinel=fails_at_the_second, max_messages=max_messages)
    be_behind()  # The end chunk is there too, and covers what is not handed on.
    assert [reply.end_offset for reply in read(gather)] == [0]
    assert gather.end is not None
    assert gather.end.reason == GatherReason.STOPPED
    assert isinstance(gather.end.error, KeyError)
    assert gather.end.replies == 1
    assert states(gather) == [(1, 1, False)]


def slowly(gather: Gather) -> Iterator[int]:
    """Count the replies so slowly that there is always another."""
    for _ in gather:
        threading.Event().wait(0.001)
        yield 1


def test_an_error_ends_a_gather_while_others_keep_sending(client: Client) -> None:
    requests = [near_script(*FULL, *FULL), near_script(then="refuse")]
    gather = client.gather(requests, timeout=60)
    engine = vars(vars(gather)["_engine"])
    deadline = Deadline.after(60)
    while engine["_error"] is None:
        assert not deadline.passed
        threading.Event().wait(0.01)
    assert sum(slowly(gather)) <= REPLIES_WAITING_MAX
    assert gather.end is not None
    assert gather.end.reason == GatherReason.SERVER_ERROR
    assert states(gather)[0] == (gather.end.rows, gather.end.rows, False)


def test_a_fetch_that_has_all_it_asked_for_is_complete_however_its_stream_ends(
    client: Client,
) -> None:
    request = near_script((0, 3), then="refuse", kind="fetch", max_messages=3)
    gather = client.gather([request])
    assert [reply.end_offset for reply in gather] == [2]
    assert gather.end is not None
    assert (gather.end.reason, gather.end.error) == (GatherReason.COMPLETE, None)
    assert states(gather) == [(3, 3, True)]


def test_a_stream_of_wings_without_its_end_chunk_was_lost(
    server: Responder, client: Client
) -> None:
    gather = client.gather([near_script((0, 3), then="break")])
    assert [reply.end_offset for reply in gather] == [2]
    assert gather.end is not None
    assert gather.end.reason == GatherReason.DISCONNECTED
    assert isinstance(gather.end.error, Unavailable)
    assert gather.end.error.connection == Connection.LOST
    assert gather.end.sources[0].next_offset == 3
    other = client.gather([script(server.endpoint, (0, 3), then="break")])
    assert len(list(other)) == 1
    assert other.end is not None
    assert other.end.reason == GatherReason.COMPLETE


class Foreign(flight.FlightServerBase):
    """Answers with three rows, and the ticket as what it tells of them."""

    def do_get(
        self, context: flight.ServerCallContext, ticket: flight.Ticket
    ) -> flight.FlightDataStream:
        chunks: list[Any] = [(batch(3), ticket.ticket)]
        return flight.GeneratorStream(SCHEMA, iter(chunks))


def test_what_another_server_tells_of_its_batches_is_not_read_as_wings(client: Client) -> None:
    told = [
        b"no JSON",
        b"{}",
        b'{"start": 0, "end": 9}',
        b'{"end": 9, "next_offset": 10}',
        b'{"start_offset": 0, "end_offset": "z"}',
        b'{"start_offset": 0, "end_offset": 1.5}',
        b'{"start_offset": false, "end_offset": true}',
        b'{"end_offset": 1}',
    ]
    with Foreign("grpc://127.0.0.1:0") as foreign:
        endpoint = f"grpc://127.0.0.1:{foreign.port}"
        gather = client.gather([Request(endpoint=endpoint, ticket=each) for each in told])
        offsets = [(reply.start_offset, reply.end_offset) for reply in gather]
    assert gather.end is not None
    assert gather.end.error is None
    assert offsets == [(None, None)] * len(told)
    assert states(gather) == [(3, None, True)] * len(told)
