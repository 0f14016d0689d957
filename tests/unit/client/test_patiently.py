"""Calls that are made again for as long as a lost connection is to be waited for."""

import pytest

from wings_client._cancellation import Cancellation
from wings_client._consumer_offsets import patiently
from wings_client._errors import Connection
from wings_client._retry import Retry
from wings_client._transport import Transport
from wings_core.errors import Unavailable

UNREACHABLE = Unavailable("nobody is there", connection=Connection.UNREACHABLE.value)


def transport(delay: float) -> Transport:
    return Transport("grpc://127.0.0.1:1", 5.0, Retry(delay=delay, delay_max=60.0))


def test_a_call_that_fails_is_made_again() -> None:
    failures = [UNREACHABLE] * 3

    def call() -> str:
        if failures:
            raise failures.pop()
        return "done"

    assert patiently(transport(0.0), call) == "done"


def test_a_cancelled_call_is_not_made_again() -> None:
    cancellation = Cancellation()
    calls = 0

    def call() -> None:
        nonlocal calls
        calls += 1
        cancellation.cancel()
        raise UNREACHABLE

    with pytest.raises(Unavailable, match="nobody is there"):
        cancellation.run(lambda: patiently(transport(60.0), call))
    with pytest.raises(Unavailable, match="closed"):
        cancellation.run(lambda: patiently(transport(60.0), call))
    assert calls == 1
