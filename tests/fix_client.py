"""Clients of the module's server, and topics for them."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import pytest

import wings_client
from wings_client import Client, Retry, Topic

if TYPE_CHECKING:
    from breakable_proxy import BreakableProxy

    from wings_server.testing import RunningServer

EAGER = Retry(attempts=20, delay=0.005, delay_max=0.05, reconnect_seconds=20.0)
"""So that a test does not wait for long before a connection is tried again."""


class Connect(Protocol):
    """Connects as `wings_client.connect` does, to a client of the face that is tested."""

    def __call__(
        self, endpoint: str | Sequence[str], *, timeout: float = ..., retry: Retry | None = ...
    ) -> Client: ...


@pytest.fixture(params=["sync", "async"])
def connect(request: pytest.FixtureRequest) -> Iterator[Connect]:
    """The way to a client: the sync one, or the async one behind its face."""
    if request.param == "sync":
        yield wings_client.connect
        return
    from async_adapter import LoopThread, adapted

    loop = LoopThread()

    def connect_adapted(endpoint: str | Sequence[str], **options: Any) -> Client:
        return adapted(loop, wings_client.connect_async(endpoint, **options))

    yield connect_adapted
    loop.stop()


@pytest.fixture
def wings(server: "RunningServer", connect: Connect) -> Iterator[Client]:
    """A new client of the module's server."""
    with connect(server.flight) as connected:
        yield connected


@pytest.fixture
def proxy(server: "RunningServer") -> "Iterator[BreakableProxy]":
    """A way to the module's server that a test breaks."""
    from breakable_proxy import breakable

    with breakable(server.flight) as between:
        yield between


@pytest.fixture
def shaky(proxy: "BreakableProxy", connect: Connect) -> Iterator[Client]:
    """A client whose connection to the module's server a test breaks."""
    with connect(proxy.endpoint, timeout=5.0, retry=EAGER) as connected:
        yield connected


class NewTopic(Protocol):
    """Creates a topic of a name of its own."""

    def __call__(self, *fields: str, partition_key: str | None = None) -> Topic: ...


@pytest.fixture
def new_topic(wings: Client, new_topic_id: str) -> NewTopic:
    """Create a topic from fields like `"n: int64"`; without any, of one int64 column `n`."""

    def create(*fields: str, partition_key: str | None = None) -> Topic:
        columns = dict(field.split(": ", 1) for field in fields or ("n: int64",))
        return wings.create_topic(new_topic_id, columns, partition_key)

    return create
