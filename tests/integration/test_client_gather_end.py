"""What the end of a gather tells: what was handed on, where to go on, and what went wrong."""

import threading
from collections.abc import Iterator

import pytest
from scripted_responders import Responder, near_script, responder

import wings_client
from wings_client import Client
from wings_client.gather import Gather

FULL = [(0.0, 1)] * 300
"""More replies than may wait."""

BEHIND_SECONDS = 0.5
"""How long a caller does something else; meanwhile all that may arrive has."""


@pytest.fixture(scope="module")
def server() -> Iterator[Responder]:
    with responder() as running:
        yield running


@pytest.fixture
def client(server: Responder) -> Iterator[Client]:
    with wings_client.connect(server.endpoint, timeout=5.0) as connected:
        yield connected


def be_behind() -> None:
    threading.Event().wait(BEHIND_SECONDS)


def states(gather: Gather) -> list[tuple[int, int | None, bool]]:
    """Return of each source the rows handed on, where to go on, and whether it has ended."""
    assert gather.end is not None
    return [(each.rows, each.next_offset, each.ended) for each in gather.end.sources]


def test_a_reply_that_found_no_room_is_not_skipped(client: Client) -> None:
    requests = [near_script(*FULL), near_script((250, 3), then="hang")]
    gather = client.gather(requests, max_messages=1, timeout=20)
    be_behind()
    assert [reply.request for reply in gather] == requests[:1]
    assert states(gather) == [(1, 1, False), (0, 0, False)]


def test_a_source_whose_replies_were_dropped_has_not_ended(client: Client) -> None:
    gather = client.gather([near_script(*[(0, 1)] * 3)], max_messages=1)
    be_behind()
    assert [reply.end_offset for reply in gather] == [0]
    assert states(gather) == [(1, 1, False)]
