"""Fixtures of the tests of files that go in."""

import pytest
from fix_client import Connect

import wings_client
from wings_client import Client


@pytest.fixture
def connect() -> Connect:
    """The way to a client; one face will do."""
    return wings_client.connect


@pytest.fixture
def topic(wings: Client, new_topic_id: str) -> str:
    """A topic of one column, `n`."""
    wings.create_topic(new_topic_id, {"n": "int64"})
    return new_topic_id
