"""DoGet: fetch, scan and follow, by a plain Flight client."""

import json
import threading
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest
from flight_calls import (
    act,
    chunks,
    code_of,
    create_topic,
    error_of,
    get,
    numbers,
    push,
    read_answer,
    ticket_of,
)
from tables import each

from wings_server.testing import RunningServer

pytestmark = pytest.mark.usefixtures("server")


def keyed_rows(**rows: list[int]) -> pa.RecordBatch:
    pairs = [(value, key) for key, values in rows.items() for value in values]
    return pa.record_batch(
        {
            "n": pa.array([value for value, _ in pairs], pa.int64()),
            "key": pa.array([key for _, key in pairs], pa.string()),
        }
    )


class InBackground:
    """Runs one call on a thread and hands its result or error back."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._outcome: list[Any] = []
        self._error: list[BaseException] = []

        def run() -> None:
            try:
                self._outcome.append(call())
            except BaseException as error:  # noqa: BLE001 - handed to the caller
                self._error.append(error)

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def result(self, seconds: float = 100) -> Any:
        self._thread.join(seconds)
        assert not self._thread.is_alive(), "the call did not return in time"
        if self._error:
            raise self._error[0]
        return self._outcome[0]

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()


def open_poll(
    client: flight.FlightClient, **keys: Any
) -> tuple[flight.FlightStreamReader, InBackground]:
    """Open a poll (its schema has arrived, so the server serves it) and read it on a thread."""
    reader = client.do_get(ticket_of(**keys))
    return reader, InBackground(lambda: read_answer(reader))


def test_a_fetch_returns_rows_their_range_and_where_to_read_on(
    client: flight.FlightClient, topic: str
) -> None:
    push(client, topic, numbers(10, 11), numbers(12))
    answer = get(client, topic=topic, offset=0)
    assert answer.column("n") == [10, 11, 12]
    assert (answer.ranges[0][0], answer.ranges[-1][1]) == (0, 2)
    assert (answer.end, answer.next_offset, answer.log_end_offset) == ("min_messages", 3, 3)


def test_a_fetch_may_begin_inside_the_second_page(client: flight.FlightClient, topic: str) -> None:
    push(client, topic, numbers(0, 1, 2), numbers(3, 4, 5), numbers(6))
    answer = get(client, topic=topic, offset=4)
    assert answer.column("n") == [4, 5, 6]
    assert answer.ranges[0][0] == 4


@pytest.mark.parametrize("wanted", [1, 2, 3, 4, 6])
def test_max_messages_is_exact(client: flight.FlightClient, topic: str, wanted: int) -> None:
    push(client, topic, numbers(0, 1, 2), numbers(3, 4), numbers(5, 6, 7))
    answer = get(client, topic=topic, offset=0, max_messages=wanted)
    assert answer.column("n") == list(range(wanted))
    assert (answer.end, answer.next_offset) == ("max_messages", wanted)


def test_small_pages_are_merged_before_the_wire(client: flight.FlightClient, topic: str) -> None:
    push(client, topic, *(numbers(n) for n in range(200)))
    answer = get(client, topic=topic, offset=0)
    assert answer.column("n") == list(range(200))
    assert answer.chunk_rows == [200]


def test_a_batch_on_the_wire_has_at_most_65536_rows(
    client: flight.FlightClient, topic: str
) -> None:
    push(client, topic, pa.record_batch({"n": pa.array(range(150_000), pa.int64())}))
    answer = get(client, kind="scan", topic=topic)
    assert answer.table["n"].to_pylist() == list(range(150_000))
    assert max(answer.chunk_rows) <= 65_536


def test_the_default_timeout_of_a_fetch_is_half_a_second(
    client: flight.FlightClient, topic: str
) -> None:
    started = time.monotonic()
    answer = get(client, topic=topic, offset=0)
    assert 0.45 <= time.monotonic() - started < 25
    assert (answer.end, answer.next_offset, answer.table.num_rows) == ("deadline", 0, 0)


def test_an_offset_past_the_end_waits_and_then_is_empty(
    client: flight.FlightClient, topic: str
) -> None:
    push(client, topic, numbers(1))
    answer = get(client, topic=topic, offset=7, timeout_ms=50)
    assert (answer.end, answer.next_offset, answer.log_end_offset) == ("deadline", 7, 1)


def test_a_deadline_in_the_past_returns_what_is_committed(
    client: flight.FlightClient, topic: str
) -> None:
    push(client, topic, numbers(1, 2))
    past = "2020-01-01T00:00:00Z"
    answer = get(client, topic=topic, offset=0, deadline=past, min_messages=5)
    assert answer.column("n") == [1, 2]
    assert answer.end == "deadline"
    assert get(client, topic=topic, offset=2, deadline=past).table.num_rows == 0


def test_a_poll_on_a_partition_never_written_to_is_woken_by_its_first_commit(
    client: flight.FlightClient, keyed: str
) -> None:
    _, poll = open_poll(client, topic=keyed, partition="x", offset=0, timeout_ms=100_000)
    push(client, keyed, keyed_rows(y=[1]))
    assert not poll.done
    push(client, keyed, keyed_rows(x=[7]))
    answer = poll.result()
    assert answer.column("n") == [7]
    assert answer.end == "min_messages"


def test_a_poll_on_a_partition_never_written_to_waits_until_the_deadline(
    client: flight.FlightClient, keyed: str
) -> None:
    started = time.monotonic()
    answer = get(client, topic=keyed, partition="none", offset=0, timeout_ms=300)
    assert time.monotonic() - started >= 0.29
    assert (answer.end, answer.log_end_offset) == ("deadline", 0)


def test_nothing_repeats_after_a_wake_up(client: flight.FlightClient, topic: str) -> None:
    push(client, topic, numbers(0, 1))
    _, poll = open_poll(client, topic=topic, offset=0, min_messages=5, timeout_ms=100_000)
    push(client, topic, numbers(2))
    push(client, topic, numbers(3, 4))
    answer = poll.result()
    assert answer.column("n") == [0, 1, 2, 3, 4]
    assert [r[0] for r in answer.ranges][1:] == [r[1] + 1 for r in answer.ranges][:-1]


def test_exactly_min_messages_at_the_tail_return_promptly(
    client: flight.FlightClient, topic: str
) -> None:
    push(client, topic, numbers(0, 1, 2))
    started = time.monotonic()
    answer = get(client, topic=topic, offset=0, min_messages=3, timeout_ms=150_000)
    assert time.monotonic() - started < 100
    assert (answer.column("n"), answer.end) == ([0, 1, 2], "min_messages")


def test_more_than_min_messages_are_delivered_where_committed(
    client: flight.FlightClient, topic: str
) -> None:
    push(client, topic, *(numbers(n) for n in range(10)))
    answer = get(client, topic=topic, offset=0, min_messages=2, max_messages=8)
    assert answer.column("n") == list(range(8))
    assert answer.end == "max_messages"


def test_the_whole_wait_stays_within_the_deadline_under_a_trickle_of_writes(
    client: flight.FlightClient, server: RunningServer, topic: str
) -> None:
    stop = threading.Event()

    def trickle() -> None:
        with server.client() as producer:
            while not stop.wait(0.03):
                push(producer, topic, numbers(1))

    push(client, topic, numbers(0))
    writer = threading.Thread(target=trickle)
    writer.start()
    try:
        started = time.monotonic()
        answer = get(
            client,
            topic=topic,
            offset=0,
            min_messages=100_000,
            max_messages=100_000,
            timeout_ms=600,
        )
        took = time.monotonic() - started
    finally:
        stop.set()
        writer.join()
    assert 0.55 <= took < 60
    assert answer.end == "deadline"
    assert answer.table.num_rows > 0


def test_two_polls_of_one_partition_both_get_the_rows(
    client: flight.FlightClient, topic: str
) -> None:
    polls = [open_poll(client, topic=topic, offset=0, timeout_ms=100_000)[1] for _ in range(5)]
    push(client, topic, numbers(3))
    assert [poll.result().column("n") for poll in polls] == [[3]] * 5


def test_deleting_the_topic_ends_a_wait(client: flight.FlightClient, topic: str) -> None:
    _, poll = open_poll(client, topic=topic, offset=0, timeout_ms=60_000)
    act(client, "delete-topic", topic=topic)
    with pytest.raises(flight.FlightServerError) as caught:
        poll.result()
    assert code_of(caught.value) == "TOPIC_NOT_FOUND"


def test_a_scan_reads_a_bounded_range(client: flight.FlightClient, topic: str) -> None:
    push(client, topic, numbers(0, 1, 2), numbers(3, 4, 5))
    answer = get(client, kind="scan", topic=topic, offset=1, end_offset=5)
    assert answer.column("n") == [1, 2, 3, 4]
    assert (answer.end, answer.next_offset, answer.log_end_offset) == ("end_offset", 5, 6)


def test_a_scan_ends_at_what_was_committed_at_arrival(
    client: flight.FlightClient, topic: str
) -> None:
    push(client, topic, numbers(0, 1))
    answer = get(client, kind="scan", topic=topic, end_offset=1_000)
    assert (answer.column("n"), answer.next_offset) == ([0, 1], 2)


@pytest.mark.parametrize("offset", [2, 9, "latest"])
def test_a_scan_from_the_end_on_is_empty(
    client: flight.FlightClient, topic: str, offset: object
) -> None:
    push(client, topic, numbers(0, 1))
    answer = get(client, kind="scan", topic=topic, offset=offset)
    assert (answer.table.num_rows, answer.end) == (0, "end_offset")
    assert answer.next_offset == (2 if offset == "latest" else offset)


def test_a_follow_delivers_commits_as_they_come_until_cancelled(
    client: flight.FlightClient, topic: str
) -> None:
    push(client, topic, numbers(0))
    reader = client.do_get(ticket_of(kind="follow", topic=topic))
    seen: list[int] = []
    for chunk in chunks(reader):
        assert chunk.data is not None
        seen += [row["n"] for row in chunk.data.to_pylist()]
        if len(seen) == 3:
            break
        push(client, topic, numbers(len(seen)))
    reader.cancel()
    assert seen == [0, 1, 2]


def test_a_follow_with_a_deadline_ends_with_it(client: flight.FlightClient, topic: str) -> None:
    push(client, topic, numbers(4))
    answer = get(client, kind="follow", topic=topic, timeout_ms=200)
    assert (answer.column("n"), answer.end, answer.next_offset) == ([4], "deadline", 1)


def test_offsets_may_be_words_or_times(client: flight.FlightClient, topic: str) -> None:
    push(client, topic, numbers(0), timestamp="2026-01-01T00:00:00Z")
    push(client, topic, numbers(1), timestamp="2026-01-02T00:00:00Z")
    assert get(client, topic=topic, offset="earliest").column("n") == [0, 1]
    assert get(client, topic=topic, offset="latest", timeout_ms=20).next_offset == 2
    at = {"timestamp": "2026-01-01T12:00:00Z"}
    assert get(client, topic=topic, offset=at).column("n") == [1]
    past_all = {"timestamp": "2026-01-03T00:00:00+00:00"}
    assert get(client, topic=topic, offset=past_all, timeout_ms=20).next_offset == 2
    found = act(client, "offset-for-timestamp", topic=topic, timestamp="2026-01-02T00:00:00Z")
    assert found == {"offset": 1}


def test_columns_are_pruned_and_ordered(client: flight.FlightClient, new_topic_id: str) -> None:
    create_topic(client, new_topic_id, ["a: int64", "b: string", "c: double"])
    rows = pa.record_batch({"a": [1], "b": ["x"], "c": [0.5]})
    push(client, new_topic_id, rows)
    answer = get(client, topic=new_topic_id, offset=0, columns=["c", "a"])
    assert answer.table.to_pylist() == [{"c": 0.5, "a": 1}]
    assert answer.table.schema.names == ["c", "a"]


def test_system_columns_are_offset_and_timestamp(client: flight.FlightClient, topic: str) -> None:
    acks = push(client, topic, numbers(7, 8), numbers(9))
    answer = get(client, topic=topic, offset=1, system_columns=True)
    assert answer.table.schema.names == ["n", "__offset", "__timestamp"]
    assert answer.table.schema.field("__timestamp").type == pa.timestamp("us", tz="UTC")
    assert answer.column("__offset") == [1, 2]
    stamps = [t.isoformat(timespec="microseconds") for t in answer.column("__timestamp")]
    expected = [ack["committed"][0]["timestamp"].replace("Z", "+00:00") for ack in acks]
    assert stamps == expected


def test_a_filter_drops_rows_and_offsets_advance_over_them(
    client: flight.FlightClient, topic: str
) -> None:
    push(client, topic, numbers(0, 5, 1), numbers(6, 2, 7))
    answer = get(client, topic=topic, offset=0, filter="n >= 5", system_columns=True)
    assert answer.column("n") == [5, 6, 7]
    assert answer.column("__offset") == [1, 3, 5]
    assert (answer.ranges[0][0], answer.next_offset) == (0, 6)


def test_min_and_max_count_rows_after_the_filter(client: flight.FlightClient, topic: str) -> None:
    push(client, topic, numbers(*range(100)))
    answer = get(client, topic=topic, offset=0, filter="n % 10 = 3", max_messages=2)
    assert (answer.column("n"), answer.end) == ([3, 13], "max_messages")
    assert answer.next_offset == 14
    _, poll = open_poll(
        client, topic=topic, offset=90, filter="n % 10 = 3", min_messages=2, timeout_ms=100_000
    )
    push(client, topic, numbers(101))
    assert not poll.done
    push(client, topic, numbers(103))
    assert poll.result().column("n") == [93, 103]


def test_a_filter_may_read_columns_that_are_not_delivered(
    client: flight.FlightClient, keyed: str
) -> None:
    push(client, keyed, keyed_rows(a=[1, 2, 3]))
    answer = get(
        client,
        topic=keyed,
        partition="a",
        offset=0,
        columns=["key"],
        filter="n = 2",
        system_columns=True,
    )
    assert answer.table.select(["key", "__offset"]).to_pylist() == [{"key": "a", "__offset": 1}]


def test_no_chunk_is_sent_for_a_range_dropped_whole(
    client: flight.FlightClient, topic: str
) -> None:
    push(client, topic, numbers(1, 2, 3))
    answer = get(client, topic=topic, offset=0, filter="n > 5", timeout_ms=50)
    assert (answer.ranges, answer.end, answer.next_offset) == ([], "deadline", 3)


def test_each_partition_has_offsets_of_its_own(client: flight.FlightClient, keyed: str) -> None:
    push(client, keyed, keyed_rows(a=[1, 2], b=[3]))
    assert get(client, topic=keyed, partition="a", offset=0).column("n") == [1, 2]
    assert get(client, topic=keyed, partition="b", offset=0).column("n") == [3]


@each(
    ("ticket", "code"),
    [
        (b"{", "INVALID_TICKET"),
        ({"topic": "t", "offset": 0, "surprise": 1}, "INVALID_TICKET"),
        ({"topic": "t", "offset": 0, "columns": ["nope"]}, "INVALID_TICKET"),
        ({"topic": "T", "offset": 0}, "INVALID_NAME"),
        ({"topic": "nobody", "offset": 0}, "TOPIC_NOT_FOUND"),
        ({"topic": "tenants/default/namespaces/no/topics/t", "offset": 0}, "NAMESPACE_NOT_FOUND"),
        ({"topic": "t", "offset": 0, "partition": "x"}, "PARTITION_NOT_ALLOWED"),
        ({"topic": "k", "offset": 0}, "PARTITION_REQUIRED"),
        ({"topic": "k", "offset": 0, "partition": None}, "PARTITION_REQUIRED"),
        ({"topic": "k", "offset": 0, "partition": 7}, "PARTITION_TYPE_MISMATCH"),
        ({"topic": "k", "offset": 0, "partition": ["x"]}, "PARTITION_TYPE_MISMATCH"),
        ({"topic": "t", "offset": 0, "filter": "nope = 1"}, "INVALID_FILTER"),
    ],
)
def test_a_bad_ticket_is_refused_with_its_code(
    client: flight.FlightClient, bad_ticket_topics: None, ticket: Any, code: str
) -> None:
    raw = ticket if isinstance(ticket, bytes) else json.dumps(ticket).encode()
    with pytest.raises(flight.FlightServerError) as caught:
        client.do_get(flight.Ticket(raw)).read_all()
    assert code_of(caught.value) == code
    assert error_of(caught.value)["message"]


@pytest.fixture(scope="module")
def bad_ticket_topics(server: RunningServer) -> None:
    with server.client() as client:
        for topic, key in (("t", None), ("k", "key")):
            body: dict[str, Any] = {"topic": topic, "if_not_exists": True}
            fields = [{"name": "n", "type": "int64"}, {"name": "key", "type": "string"}]
            act(client, "create-topic", schema={"fields": fields}, partition_key=key, **body)


def test_a_filter_that_fails_on_the_data_is_an_error(
    client: flight.FlightClient, new_topic_id: str
) -> None:
    create_topic(client, new_topic_id, ["s: string"])
    push(client, new_topic_id, pa.record_batch({"s": ["12", "x"]}))
    with pytest.raises(flight.FlightServerError) as caught:
        get(client, topic=new_topic_id, offset=0, filter="cast(s as int) > 3")
    assert code_of(caught.value) == "INVALID_FILTER"


def test_a_client_that_leaves_in_mid_poll_frees_its_call(server: RunningServer, topic: str) -> None:
    with server.client() as leaving:
        reader = leaving.do_get(ticket_of(topic=topic, offset=0, timeout_ms=300_000))
        server.wait_for_calls(1)
        reader.cancel()
    server.wait_for_calls(0)


def test_a_follow_of_a_large_batch_and_a_slow_reader_loses_nothing(
    client: flight.FlightClient, topic: str
) -> None:
    push(client, topic, *(numbers(*range(n * 1_000, n * 1_000 + 1_000)) for n in range(50)))
    answer = get(client, kind="follow", topic=topic, timeout_ms=300)
    assert answer.column("n") == list(range(50_000))
