"""A server whose answers are scripted, and a client of it."""

from collections.abc import Iterator

import pytest
from scripted_responders import Responder, responder

import wings_client
from wings_client import Client


@pytest.fixture(scope="module")
def server() -> Iterator[Responder]:
    with responder() as running:
        yield running


@pytest.fixture
def client(server: Responder) -> Iterator[Client]:
    with wings_client.connect(server.endpoint, timeout=30.0) as connected:
        yield connected
