"""Fixtures of the tests of files that go in."""

from collections.abc import Generator
from pathlib import Path

import pytest
from fix_client import Connect

import wings_client
from wings_client import Client
from wings_core.queue.sqlite import SqliteQueue


@pytest.fixture
def connect() -> Connect:
    """The way to a client; one face will do."""
    return wings_client.connect


@pytest.fixture
def queue(tmp_path: Path) -> Generator[SqliteQueue]:
    """The queue of the test's source."""
    opened = SqliteQueue(tmp_path / "queue.sqlite")
    yield opened
    opened.close()


@pytest.fixture
def topic(wings: Client, new_topic_id: str) -> str:
    """A topic of one column, `n`."""
    wings.create_topic(new_topic_id, {"n": "int64"})
    return new_topic_id
