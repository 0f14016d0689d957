"""Real servers: one for all tests of a module, and a client and a topic of its own for each."""

from collections.abc import Iterator
from itertools import count
from typing import TYPE_CHECKING, Protocol

import pyarrow.flight as flight
import pytest

if TYPE_CHECKING:
    import httpx

    from wings_client import Topic
    from wings_server.testing import RunningServer

_numbers = count()


@pytest.fixture(scope="module")
def server() -> "Iterator[RunningServer]":
    """A server on a temporary directory, shared by the tests of a module."""
    # Imported when it is first asked for: tests of one module of the core need no server.
    from wings_server.testing import running_server

    with running_server() as running:
        yield running


@pytest.fixture
def client(server: "RunningServer") -> Iterator[flight.FlightClient]:
    """A new Flight client of the module's server."""
    with flight.FlightClient(server.flight) as connected:
        yield connected


@pytest.fixture
def http(server: "RunningServer") -> "Iterator[httpx.Client]":
    """A new HTTP client of the module's server."""
    import httpx

    with httpx.Client(base_url=server.http) as connected:
        yield connected


@pytest.fixture
def new_topic_id() -> str:
    """An id that no other topic of this run has; the topic is for the test to create."""
    return f"topic-{next(_numbers)}"


class Trim(Protocol):
    """Moves the start of an unpartitioned topic's log, as retention does: over whole pushes."""

    def __call__(self, topic: "Topic", log_start_offset: int) -> None: ...


@pytest.fixture
def trim(server: "RunningServer") -> Trim:
    """Move a log's start in the module's server."""
    from wings_core.partitions import UNPARTITIONED

    def move(topic: "Topic", log_start_offset: int) -> None:
        maintenance = server.server.log.maintenance
        expired = maintenance.expire(
            topic.uuid, UNPARTITIONED, age_us=-1_000_000, bytes_kept=None, pages_max=1
        )
        while expired.log_start_offset < log_start_offset:
            assert expired.pages == 1
            expired = maintenance.expire(
                topic.uuid, UNPARTITIONED, age_us=-1_000_000, bytes_kept=None, pages_max=1
            )
        assert expired.log_start_offset == log_start_offset, "it lies within a push"

    return move
