"""What tests of Spark have of their own: the client is not what they test, so one face will do."""

import pytest
from fix_client import Connect

import wings_client


@pytest.fixture
def connect() -> Connect:
    """The way to a client."""
    return wings_client.connect
