"""A server whose PostgreSQL is gone: fetches keep their deadlines, and the server stops."""

import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pyarrow.flight as flight
import pytest
from fix_calls import Calls
from fix_postgres import postgres_server
from flight_calls import code_of, create_topic, get, numbers, push
from http_calls import entry, error, fetch_body

from wings_core.metadata.deadlines import tries_end
from wings_core.metadata.postgres.database import RETRY_SECONDS_MAX
from wings_core.metadata.store.registry import DatabaseRegistry
from wings_core.storage.inline_folios import InlineFolios
from wings_server.testing import RunningServer, running_server, server_process

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


Read = Callable[[RunningServer, int], object]

READS: dict[str, Read] = {
    "fetch": lambda server, offset: get(
        server.client(), topic="numbers", offset=offset, timeout_ms=200
    ),
    "follow": lambda server, offset: get(
        server.client(), kind="follow", topic="numbers", offset=offset, timeout_ms=200
    ),
    "http": lambda server, offset: httpx.post(
        f"{server.http}/v1/fetch", json=fetch_body(entry("numbers", offset), timeout_ms=200)
    ).raise_for_status(),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_no_call_of_metadata_in_a_read_is_tried_again_after_its_deadline(
    calls: Calls, read: Read
) -> None:
    """Neither those after the first look: of a wait, and of messages that are in metadata."""
    until = dict[str, list[float]]()

    def note_calls(owner: object, name: str) -> None:
        of_call = until.setdefault(name, [])
        calls.before(owner, name, lambda *_, **__: of_call.append(tries_end()))

    with running_server() as server:
        create_topic(server.client(), "numbers", ["n: int64"])
        push(server.client(), "numbers", numbers(1))
        log = server.server.log
        assert log.drain is not None
        assert log.storage.inline is not None
        log.drain.close()
        log.storage.inline.close()  # As in another node, or after a restart.
        note_calls(DatabaseRegistry, "locate")
        note_calls(DatabaseRegistry, "_has_data")
        note_calls(InlineFolios, "_load")
        for offset in (0, 1):
            read(server, offset)
    for name, ends in until.items():
        assert ends, name
        assert math.inf not in ends, name
