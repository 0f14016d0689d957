"""Retention in a real server: what goes, what is told, and what is under way meanwhile."""

import json
from collections.abc import Iterable, Iterator
from typing import Any, cast

import pyarrow as pa
import pyarrow.flight as flight
import pytest
from flight_calls import (
    Json,
    act,
    chunks,
    code_of,
    create_topic,
    error_of,
    get,
    push,
    read_answer,
    ticket_of,
)
from waiting import until

from wings_core.contracts.tickets import AnyRead, parse_ticket
from wings_core.errors import OffsetOutOfRange
from wings_core.fetch import fetcher
from wings_core.fetch.chunks import FetchedChunk
from wings_core.fetch.fetcher import Cancel
from wings_core.limits import Limits
from wings_core.names import TopicName
from wings_core.partitions import UNPARTITIONED
from wings_server.flight.do_get import Get, open_get
from wings_server.testing import RunningServer, running_server

PAGE_ROWS = 1_000
SEGMENT_BYTES = 32 * 1024
"""About four pushes."""


@pytest.fixture
def server() -> Iterator[RunningServer]:
    """A server whose segment files end soon, so that retention deletes some."""
    limits = Limits(inline_bytes_max=0, segment_bytes_max=SEGMENT_BYTES)
    with running_server(limits=limits) as running:
        yield running


def page(first: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(range(first, first + PAGE_ROWS), pa.int64())})


def push_pages(client: flight.FlightClient, topic: str, pages: int, **command: Any) -> None:
    push(client, topic, *[page(number * PAGE_ROWS) for number in range(pages)], **command)


def alter(client: flight.FlightClient, topic: str, **config: Any) -> None:
    act(client, "alter-topic", topic=topic, config=config)


def state(client: flight.FlightClient, topic: str) -> Json:
    (found,) = act(client, "partition-states", topic=topic)
    return found


def rows_of(chunk: flight.FlightStreamChunk) -> int:
    assert chunk.data is not None
    return chunk.data.num_rows


def test_pages_beyond_the_bytes_of_a_partition_go(
    client: flight.FlightClient, new_topic_id: str
) -> None:
    create_topic(client, new_topic_id, ["n: int64"])
    push_pages(client, new_topic_id, 10)
    size = state(client, new_topic_id)["bytes"]
    alter(client, new_topic_id, retention_bytes=size * 3 // 10)
    report = act(client, "maintain", topic=new_topic_id)
    assert (report["pages_expired"], report["rows_expired"]) == (7, 7 * PAGE_ROWS)
    after = state(client, new_topic_id)
    assert (after["log_start_offset"], after["bytes"]) == (7 * PAGE_ROWS, size * 3 // 10)
    # More than is to be kept, but the first page is needed for that: no lease, no transaction.
    alter(client, new_topic_id, retention_bytes=size * 3 // 10 - 1)
    assert act(client, "maintain", topic=new_topic_id)["partitions"] == 0
    answer = get(client, kind="scan", topic=new_topic_id)
    assert answer.column("n") == list(range(7 * PAGE_ROWS, 10 * PAGE_ROWS))
    with pytest.raises(flight.FlightError) as caught:
        get(client, topic=new_topic_id, offset=0)
    assert error_of(caught.value)["code"] == "OFFSET_OUT_OF_RANGE"
    assert error_of(caught.value)["log_start_offset"] == 7 * PAGE_ROWS


def test_old_messages_go_and_the_log_goes_on(
    client: flight.FlightClient, new_topic_id: str
) -> None:
    create_topic(client, new_topic_id, ["n: int64"])
    push_pages(client, new_topic_id, 2, timestamp="2020-01-01T00:00:00Z")
    push_pages(client, new_topic_id, 1)
    assert act(client, "maintain")["pages_expired"] == 0
    alter(client, new_topic_id, retention_ms=3_600_000)
    assert act(client, "maintain")["pages_expired"] == 2
    answer = get(client, kind="scan", topic=new_topic_id)
    assert answer.ranges == [(2 * PAGE_ROWS, 3 * PAGE_ROWS - 1)]
    (committed,) = push(client, new_topic_id, page(0))
    assert committed["committed"][0]["start_offset"] == 3 * PAGE_ROWS


def test_segments_of_messages_that_are_gone_are_deleted(
    server: RunningServer, client: flight.FlightClient, new_topic_id: str
) -> None:
    segments = server.data_dir / "segments"
    create_topic(client, new_topic_id, ["n: int64"])
    push_pages(client, new_topic_id, 20)
    before = len(list(segments.iterdir()))
    alter(client, new_topic_id, retention_bytes=1)
    act(client, "maintain")
    until(lambda: len(list(segments.iterdir())) <= 2)
    assert before >= 5
    assert get(client, kind="scan", topic=new_topic_id).ranges[0][0] == 19 * PAGE_ROWS


def test_maintenance_works_by_itself(new_topic_id: str) -> None:
    with (
        running_server(limits=Limits(maintenance_seconds=0.01)) as running,
        flight.FlightClient(running.flight) as client,
    ):
        create_topic(client, new_topic_id, ["n: int64"])
        push_pages(client, new_topic_id, 3)
        alter(client, new_topic_id, retention_bytes=1)
        until(lambda: state(client, new_topic_id)["log_start_offset"] == 2 * PAGE_ROWS)


def test_a_scan_that_retention_passes_ends_with_the_error_or_whole(
    server: RunningServer, client: flight.FlightClient, new_topic_id: str
) -> None:
    create_topic(client, new_topic_id, ["n: int64"])
    batch = pa.record_batch({"n": pa.array(range(300_000), pa.int64())})
    push(client, new_topic_id, *[batch] * 20)
    left = chunks(client.do_get(ticket_of(kind="scan", topic=new_topic_id, offset=0)))
    rows = rows_of(next(left))
    alter(client, new_topic_id, retention_bytes=1)
    act(client, "maintain")
    error: Json | None = None
    try:
        for chunk in left:
            rows += rows_of(chunk)
    except flight.FlightError as ended:
        error = error_of(ended)
    if error is None:
        assert rows == 20 * 300_000
    else:
        assert (error["code"], error["log_start_offset"]) == ("OFFSET_OUT_OF_RANGE", 19 * 300_000)
        assert rows < 20 * 300_000


def test_a_follow_that_retention_passes_goes_on_with_what_comes(
    client: flight.FlightClient, new_topic_id: str
) -> None:
    create_topic(client, new_topic_id, ["n: int64"])
    push_pages(client, new_topic_id, 1, timestamp="2020-01-01T00:00:00Z")
    reader = client.do_get(ticket_of(kind="follow", topic=new_topic_id, timeout_ms=20_000))
    left = chunks(reader)
    assert rows_of(next(left)) == PAGE_ROWS
    alter(client, new_topic_id, retention_ms=60_000)
    assert act(client, "maintain")["rows_expired"] == PAGE_ROWS
    push(client, new_topic_id, page(5))
    assert rows_of(next(left)) == PAGE_ROWS
    reader.cancel()


def test_a_retention_that_is_none_is_refused(
    client: flight.FlightClient, new_topic_id: str
) -> None:
    create_topic(client, new_topic_id, ["n: int64"])
    for config in ({"retention_ms": 0}, {"retention_bytes": -1}, {"retention_ms": "1d"}):
        with pytest.raises(flight.FlightError) as caught:
            alter(client, new_topic_id, **config)
        assert code_of(caught.value) == "INVALID_ARGUMENT"


@pytest.mark.usefixtures("pushes_to_storage")
def test_what_is_kept_stays_readable_after_a_restart(tmp_path: Any, new_topic_id: str) -> None:
    for _ in range(2):
        with running_server(tmp_path) as running, flight.FlightClient(running.flight) as client:
            body = {"fields": [{"name": "n", "type": "int64"}]}
            act(client, "create-topic", topic=new_topic_id, schema=body, if_not_exists=True)
            push_pages(client, new_topic_id, 3)
            alter(client, new_topic_id, retention_bytes=1)
            act(client, "maintain", topic=new_topic_id)
            reader = client.do_get(ticket_of(kind="scan", topic=new_topic_id))
            assert read_answer(reader).column("n") == list(range(2 * PAGE_ROWS, 3 * PAGE_ROWS))


@pytest.mark.parametrize("kind", ["fetch", "scan", "follow"])
@pytest.mark.parametrize("kept_pages", [3, 0])
def test_a_read_from_the_earliest_begins_where_retention_has_come_to_by_then(
    server: RunningServer, new_topic_id: str, kind: str, kept_pages: int
) -> None:
    client, log = server.client(), server.server.log
    create_topic(client, new_topic_id, ["n: int64"])
    push_pages(client, new_topic_id, 10)
    keys: Json = {"kind": kind, "topic": new_topic_id}
    if kind != "scan":
        keys["timeout_ms"] = 2

    def opened(offset: str | int) -> Get:
        ticket = cast("AnyRead", parse_ticket(json.dumps(keys | {"offset": offset}).encode()))
        return open_get(log, ticket)

    earliest, first = opened("earliest"), opened(0)
    uuid = log.admin.get_topic(TopicName.parse(new_topic_id)).uuid
    size = state(client, new_topic_id)["bytes"]
    log.maintenance.expire(
        uuid, UNPARTITIONED, age_us=None, bytes_kept=size * kept_pages // 10, pages_max=100
    )
    found = [chunk.batch for chunk in earliest.chunks(Cancel())]
    rows = [n for batch in found for n in batch.column("n").to_pylist()]
    assert rows == list(range((10 - kept_pages) * PAGE_ROWS, 10 * PAGE_ROWS))
    with pytest.raises(OffsetOutOfRange):
        list(first.chunks(Cancel()))


@pytest.mark.parametrize("kind", ["fetch", "scan", "follow"])
def test_a_read_from_the_earliest_goes_on_behind_what_retention_takes_in_its_midst(
    server: RunningServer, new_topic_id: str, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    client, log = server.client(), server.server.log
    create_topic(client, new_topic_id, ["n: int64"])
    push_pages(client, new_topic_id, 10)
    monkeypatch.setattr(fetcher, "TURN_ROWS_MAX", PAGE_ROWS)
    keys: Json = {"kind": kind, "topic": new_topic_id}
    if kind != "scan":
        keys["timeout_ms"] = 1_000

    def opened(offset: str | int) -> Iterator[FetchedChunk]:
        ticket = cast("AnyRead", parse_ticket(json.dumps(keys | {"offset": offset}).encode()))
        return iter(open_get(log, ticket).chunks(Cancel()))

    def rows(chunks: Iterable[FetchedChunk]) -> list[Any]:
        return [n for each in chunks for n in each.batch["n"].to_pylist()]

    earliest, numbered = opened("earliest"), opened(0)
    begun = [next(earliest)]
    next(numbered)
    uuid = log.admin.get_topic(TopicName.parse(new_topic_id)).uuid
    size = state(client, new_topic_id)["bytes"]
    log.maintenance.expire(
        uuid, UNPARTITIONED, age_us=None, bytes_kept=size * 3 // 10, pages_max=100
    )
    found = rows(begun), rows(earliest)
    assert found == (list(range(PAGE_ROWS)), list(range(7 * PAGE_ROWS, 10 * PAGE_ROWS)))
    with pytest.raises(OffsetOutOfRange):
        list(numbered)
