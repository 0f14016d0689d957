"""Fixtures of a real server for tests of programs that use Wings; see `docs/testing.md`.

pytest finds them by itself where `wings-flight[server]` is installed. Nothing of Wings is imported
before a test asks for one.
"""

from collections.abc import Generator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from wings_client import Client
    from wings_server.testing import RunningServer

__all__ = ["wings", "wings_server"]


@pytest.fixture(scope="session")
def wings_server() -> "Generator[RunningServer]":
    """A server in this process, on free ports and a temporary directory, for the whole session.

    Its `flight`, `http` and `kafka` are addresses for clients.
    """
    from wings_server.testing import running_server

    with running_server() as server:
        yield server


@pytest.fixture
def wings(wings_server: "RunningServer") -> "Generator[Client]":
    """A client whose server has no topics; those that the test made are deleted after it."""
    import wings_client

    with wings_client.connect(wings_server.flight) as client:
        yield client
        for topic in client.topics():
            client.delete_topic(topic)
