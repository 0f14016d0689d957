"""Filters that take long on a real server: they are refused or end, and other reads go on."""

import json
import random
import time
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.flight as flight
import pytest
from flight_calls import chunks, code_of, create_topic, error_of, get, push, ticket_of

from wings_core.fetch import engines
from wings_core.fetch.engines import Allowance, lent
from wings_server.testing import RunningServer

ROWS = 40_000
SLOW = "regexp_matches(k, '[ab]*a[ab]{300}c')"
"""A constant pattern that takes a part of a millisecond for each row: many seconds for all."""
LETTERS = "".join(random.Random(7).choices("ab", k=ROWS + 200))
TEXTS = [LETTERS[index : index + 200] for index in range(ROWS)]


@pytest.fixture(scope="module")
def topic(server: RunningServer) -> str:
    """A topic of texts, and of patterns that are bad for them."""
    client = server.client()
    create_topic(client, "texts", ["k: string", "p: string", "n: int64"])
    patterns = ["(a|aa|b){1,30}" * 20 + f"c{index}" for index in range(ROWS)]
    push(client, "texts", pa.record_batch({"k": TEXTS, "p": patterns, "n": range(ROWS)}))
    return "texts"


def read_error(endpoint: str, **keys: object) -> tuple[str, str]:
    """Read a ticket that fails; return the error's code and message."""
    with (
        flight.FlightClient(endpoint) as client,
        pytest.raises((flight.FlightServerError, flight.FlightUnavailableError)) as caught,
    ):
        get(client, **keys)
    return code_of(caught.value), error_of(caught.value)["message"]


def test_patterns_out_of_the_data_are_refused(server: RunningServer, topic: str) -> None:
    for text in ("regexp_matches(k, p)", "k ~ p", "k SIMILAR TO p", "regexp_extract(k, p) = 'x'"):
        code, message = read_error(server.flight, kind="scan", topic=topic, filter=text)
        assert code == "INVALID_FILTER"
        assert "must be a constant, it may not come from 'p'" in message


@pytest.mark.parametrize("which", [{}, {"partitions": "all"}], ids=["one", "all"])
def test_nine_slow_filters_end_at_their_deadline_and_others_go_on(
    server: RunningServer, client: flight.FlightClient, topic: str, which: dict[str, str]
) -> None:
    slow = {"topic": topic, "offset": 0, "timeout_ms": 100, "filter": SLOW, **which}
    with ThreadPoolExecutor(9) as threads:
        failed = [threads.submit(read_error, server.flight, **slow) for _ in range(9)]
        for text, rows in (("n < 10", 10), ("n % 4 = 0 AND length(k) = 200", ROWS // 4)):
            found = get(client, kind="scan", topic=topic, columns=["n"], filter=text)
            assert found.table.num_rows == rows
        codes = [each.result()[0] for each in failed]
    # Those for which no engine was free in time are told so.
    assert set(codes) <= {"INVALID_FILTER", "RESOURCE_EXHAUSTED"}
    assert "INVALID_FILTER" in codes
    assert get(client, topic=topic, offset=0, max_messages=1, filter="k ~ '[ab]*'").table.num_rows


def test_a_slow_filter_ends_when_its_client_goes_away(
    server: RunningServer, client: flight.FlightClient, topic: str
) -> None:
    reader = client.do_get(ticket_of(kind="scan", topic=topic, filter=SLOW))
    server.wait_for_calls(1)
    reader.cancel()
    begun = time.monotonic()
    server.wait_for_calls(0)
    assert time.monotonic() - begun < 0.9 * engines.EVALUATION_SECONDS_MAX
    with lent(Allowance(), pattern=True):
        pass


def test_a_read_that_has_looked_at_rows_goes_on_where_its_deadline_ended_it(
    server: RunningServer, client: flight.FlightClient, new_topic_id: str
) -> None:
    create_topic(client, new_topic_id, ["k: string"])
    # The first rows, as many as one batch on the wire takes, are quick; the others are slow.
    quick = pa.record_batch({"k": ["x"] * 65_536})
    push(client, new_topic_id, quick, pa.record_batch({"k": TEXTS}))
    answer = get(client, topic=new_topic_id, offset=0, timeout_ms=100, filter=SLOW)
    assert (answer.end, answer.next_offset, answer.table.num_rows) == ("deadline", 65_536, 0)
    assert answer.log_end_offset == 65_536 + ROWS
    *_, last = chunks(
        client.do_get(ticket_of(topic=new_topic_id, partitions="all", timeout_ms=100, filter=SLOW))
    )
    assert last.app_metadata is not None
    end = json.loads(last.app_metadata.to_pybytes())
    assert end["end"] == "deadline"
    assert 0 < end["partitions"][0]["next_offset"] < 65_536 + ROWS
