"""A server whose PostgreSQL is gone: fetches keep their deadlines, and the server stops."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pyarrow.flight as flight
import pytest
from fix_postgres import postgres_server
from flight_calls import code_of, create_topic, get, numbers, push
from http_calls import entry, error, fetch_body

from wings_core.metadata.postgres.database import RETRY_SECONDS_MAX
from wings_server.testing import server_process

LONG = 60.0


def test_fetches_keep_their_deadlines_and_the_server_stops_while_postgres_is_away(
    tmp_path: Path,
) -> None:
    with (
        postgres_server(sync=False) as postgres,
        server_process(
            tmp_path, environment={"WINGS_METADATA_URL": postgres.new_database()}
        ) as server,
        httpx.Client(base_url=server.http, timeout=LONG) as http,
        ThreadPoolExecutor(2) as threads,
    ):
        client = server.client()
        create_topic(client, "numbers", ["n: int64"])
        push(client, "numbers", numbers(1))
        began = time.monotonic()
        waiting = threads.submit(get, client, topic="numbers", offset=1, timeout_ms=2_000)
        postgres.kill()
        with pytest.raises(flight.FlightUnavailableError) as caught:
            get(client, topic="numbers", offset=1, timeout_ms=500)
        assert code_of(caught.value) == "UNAVAILABLE"
        answer = http.post("/v1/fetch", json=fetch_body(entry("numbers", 1), timeout_ms=500))
        assert error(answer) == (503, "UNAVAILABLE")
        # It waited already, so it finds nothing, or is told that nothing can be looked up.
        assert isinstance(waiting.exception(LONG), (flight.FlightUnavailableError, type(None)))
        # Either would have waited as long as a write does, which outlasts a failover.
        assert time.monotonic() < began + RETRY_SECONDS_MAX * 0.75
        pushed = threads.submit(push, client, "numbers", numbers(2))
        assert server.terminate() == 0, server.stderr  # 1: it was ended, as it took too long.
        failed = pushed.exception(LONG)
        assert isinstance(failed, flight.FlightUnavailableError), failed
