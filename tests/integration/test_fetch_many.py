"""DoGet of many partitions: fetch, scan and follow, by a plain Flight client."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.flight as flight
import pytest
from fix_calls import Calls
from flight_calls import Json, act, chunks, create_topic, error_of, push, ticket_of
from many_calls import get_many, read_many
from waiting import until

from wings_core.contracts.tickets import AnyRead, parse_ticket
from wings_core.fetch.fetcher import Cancel
from wings_core.limits import Limits
from wings_core.model import TopicConfig
from wings_core.names import TopicName
from wings_core.partitions import Partition
from wings_server.flight.do_get import open_get
from wings_server.testing import RunningServer, running_server

LIMITS = Limits(wire_rows_max=1_000, segment_bytes_max=64 * 1024)

pytestmark = pytest.mark.server(limits=LIMITS)


@pytest.fixture
def topic(client: flight.FlightClient, new_topic_id: str) -> str:
    create_topic(client, new_topic_id, ["n: int64", "key: int64"], "key")
    return new_topic_id


def keyed(rows: dict[int, list[int]]) -> pa.RecordBatch:
    """Return a batch of columns `n` and `key`, the rows of the keys one after another."""
    return pa.record_batch(
        {
            "n": pa.array([value for values in rows.values() for value in values], pa.int64()),
            "key": pa.array([key for key, values in rows.items() for _ in values], pa.int64()),
        }
    )


def refused(client: flight.FlightClient, **ticket: Any) -> Json:
    with pytest.raises(flight.FlightError) as caught:
        get_many(client, **ticket)
    return error_of(caught.value)


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as executor:
        yield executor


def poll(
    client: flight.FlightClient, threads: ThreadPoolExecutor, **ticket: Any
) -> Callable[[], Any]:
    """Open a read (its schema has arrived, so the server serves it), and read it on a thread."""
    reader = client.do_get(ticket_of(**ticket))
    future = threads.submit(read_many, reader)
    return lambda: future.result(100)


def followed(stream: flight.FlightStreamReader, rows: int) -> dict[Any, list[int]]:
    """Read so many rows, and end the stream; returns the values of `n` of each partition."""
    came: dict[Any, list[int]] = {}
    while sum(map(len, came.values())) < rows:
        batch = stream.read_chunk().data
        assert batch is not None
        for row in batch.to_pylist():
            came.setdefault(row["key"], []).append(row["n"])
    stream.cancel()
    return came


# What is read.


def test_a_scan_of_all_partitions_is_one_stream(client: flight.FlightClient, topic: str) -> None:
    push(client, topic, keyed({1: [10, 11], 2: [20]}), keyed({2: [21, 22], 3: [30]}))
    answer = get_many(client, kind="scan", topic=topic, partitions="all")
    assert answer.column("n") == {1: [10, 11], 2: [20, 21, 22], 3: [30]}
    assert (answer.end, answer.next_offsets) == ("end_offset", {1: 2, 2: 3, 3: 1})
    assert answer.log_end_offsets == {1: 2, 2: 3, 3: 1}
    assert len(answer.batches) == 1, "small partitions share a chunk"


def test_entries_say_what_is_read_of_each(client: flight.FlightClient, topic: str) -> None:
    push(client, topic, keyed({key: list(range(10)) for key in range(4)}))
    partitions: list[Any] = [
        {"partition": 1, "offset": 3},
        {"partition": 0, "offset": 2, "end_offset": 4},
        3,
    ]
    ticket = {"kind": "scan", "topic": topic, "offset": 7, "end_offset": 9}
    answer = get_many(client, **ticket, partitions=partitions)
    assert answer.column("n") == {1: [3, 4, 5, 6, 7, 8], 0: [2, 3], 3: [7, 8]}
    assert list(answer.next_offsets) == [1, 0, 3], "those of the list, in its order"
    assert answer.next_offsets == {1: 9, 0: 4, 3: 9}


def test_all_of_a_topic_without_a_key_is_its_one_partition(
    client: flight.FlightClient, new_topic_id: str
) -> None:
    create_topic(client, new_topic_id, ["n: int64"])
    answer = get_many(client, kind="scan", topic=new_topic_id, partitions="all")
    assert (answer.rows, answer.next_offsets) == ({}, {None: 0})
    push(client, new_topic_id, pa.record_batch({"n": pa.array([1, 2], pa.int64())}))
    for partitions in ("all", [None], [{"partition": None, "offset": 0}]):
        answer = get_many(client, topic=new_topic_id, partitions=partitions)
        assert answer.column("n") == {None: [1, 2]}


def test_system_columns_name_the_partition(client: flight.FlightClient, new_topic_id: str) -> None:
    create_topic(client, new_topic_id, ["n: int64", "key: string"], "key")
    rows = {"n": pa.array([1, 2, 3], pa.int64()), "key": pa.array(["ä\"'", "b", "b"])}
    push(client, new_topic_id, pa.record_batch(rows))
    ticket = {"topic": new_topic_id, "partitions": "all", "columns": ["n"], "system_columns": True}
    answer = get_many(client, kind="scan", **ticket)
    assert answer.schema.names == ["n", "__partition", "__offset", "__timestamp"]
    assert answer.schema.field("__partition").type == pa.string()
    assert answer.column("__partition") == {"ä\"'": ['"ä\\"\'"'], "b": ['"b"', '"b"']}
    assert answer.column("__offset") == {"ä\"'": [0], "b": [0, 1]}


def test_each_row_has_the_time_of_its_own_push(client: flight.FlightClient, topic: str) -> None:
    """Neighbours in a page that were pushed at different times."""
    times = [f"2026-11-20T12:00:0{second}.000000Z" for second in range(6)]
    for second, time_text in enumerate(times):
        push(client, topic, keyed({0: [second], 1: [second]}), timestamp=time_text)
    answer = get_many(client, kind="scan", topic=topic, partitions="all", system_columns=True)
    for rows in answer.column("__timestamp").values():
        assert [row.isoformat(timespec="microseconds")[:26] + "Z" for row in rows] == times


def test_a_filter_counts_the_rows_it_passes(client: flight.FlightClient, topic: str) -> None:
    push(client, topic, keyed({0: [1, 2, 3], 1: [1, 1], 2: [3, 1, 4]}))
    answer = get_many(client, kind="scan", topic=topic, partitions="all", filter="n > 2")
    assert answer.column("n") == {0: [3], 2: [3, 4]} | ({1: []} if 1 in answer.rows else {})
    assert answer.next_offsets == {0: 3, 1: 2, 2: 3}
    nothing = get_many(client, kind="scan", topic=topic, partitions="all", filter="n > 9")
    assert (nothing.batches, nothing.next_offsets) == ([], {0: 3, 1: 2, 2: 3})
    columns = get_many(
        client, kind="scan", topic=topic, partitions=[0, 2], filter="n > 2", columns=["key"]
    )
    assert columns.column("key") == {0: [0], 2: [2, 2]}


def test_chunks_keep_to_the_bounds_of_the_wire(client: flight.FlightClient, topic: str) -> None:
    push(client, topic, keyed({key: list(range(37)) for key in range(100)}))
    push(client, topic, keyed({7: list(range(37, 5_000))}))
    answer = get_many(client, kind="scan", topic=topic, partitions="all")
    assert answer.column("n") == {key: list(range(37 if key != 7 else 5_000)) for key in range(100)}
    sizes = [batch.num_rows for batch in answer.batches]
    assert max(sizes) <= LIMITS.wire_rows_max
    assert len(sizes) <= 2 * sum(sizes) / LIMITS.wire_rows_max + 1, "chunks are filled"


def test_a_partition_stands_once_in_a_chunk_however_it_was_pushed(
    client: flight.FlightClient, topic: str
) -> None:
    for number in range(30):
        push(client, topic, keyed({key: [number] for key in range(20)}))
    answer = get_many(client, kind="scan", topic=topic, partitions="all", system_columns=True)
    assert answer.column("n") == {key: list(range(30)) for key in range(20)}
    for ranges in answer.ranges:
        assert len({each["partition"] for each in ranges}) == len(ranges)


# Limits and waits are those of the whole request.


@pytest.mark.parametrize("wanted", [1, 7, 16, 17, 40])
@pytest.mark.parametrize("row_filter", [None, "n % 2 = 0"])
def test_the_sum_reaches_max_messages_exactly_and_going_on_loses_nothing(
    client: flight.FlightClient, topic: str, wanted: int, row_filter: str | None
) -> None:
    rows = {key: list(range(key * 2)) for key in range(1, 8)}
    for start in range(0, 14, 4):
        push(client, topic, keyed({key: values[start : start + 4] for key, values in rows.items()
                                   if values[start : start + 4]}))  # fmt: skip
    kept = {
        key: [value for value in values if row_filter is None or value % 2 == 0]
        for key, values in rows.items()
    }
    ticket: Json = {"topic": topic, "max_messages": wanted, "timeout_ms": 500}
    if row_filter is not None:
        ticket["filter"] = row_filter
    partitions: Any = "all"
    found: dict[Any, list[int]] = {key: [] for key in rows}
    left = sum(len(values) for values in kept.values())
    while True:
        answer = get_many(client, **ticket, partitions=partitions)
        for key, values in answer.column("n").items():
            found[key] += values
        assert answer.num_rows == min(wanted, left)
        left -= answer.num_rows
        if answer.end != "max_messages":
            break
        partitions = [
            {"partition": key, "offset": offset} for key, offset in answer.next_offsets.items()
        ]
    assert answer.end == ("min_messages" if answer.num_rows else "deadline")
    assert found == kept


def test_no_partition_starves_of_few_messages(client: flight.FlightClient, topic: str) -> None:
    push(client, topic, keyed({0: list(range(500)), 1: [1], 2: [2], 3: list(range(500))}))
    answer = get_many(client, topic=topic, partitions="all", max_messages=8)
    assert answer.num_rows == 8
    assert set(answer.rows) == {0, 1, 2, 3}


def test_many_small_polls_read_from_all_partitions(client: flight.FlightClient, topic: str) -> None:
    push(client, topic, keyed({key: list(range(5)) for key in range(10)}))
    seen: set[int] = set()
    deadline = time.monotonic() + 60
    while len(seen) < 10 and time.monotonic() < deadline:
        seen |= set(get_many(client, topic=topic, partitions="all", max_messages=1).rows)
    assert len(seen) == 10


def test_a_wait_collects_the_minimum_over_all_partitions(
    client: flight.FlightClient, topic: str, threads: ThreadPoolExecutor
) -> None:
    push(client, topic, keyed({0: [0]}))
    answer = poll(
        client, threads, topic=topic, partitions=[0, 1, 2], min_messages=3, timeout_ms=150_000
    )
    push(client, topic, keyed({1: [1]}), keyed({5: [5]}), keyed({2: [2, 3]}))
    found = answer()
    assert found.end == "min_messages"
    assert found.column("n") == {0: [0], 1: [1], 2: [2, 3]}


def test_a_wait_in_vain_ends_where_it_began(client: flight.FlightClient, topic: str) -> None:
    push(client, topic, keyed({0: [0, 1]}))
    started = time.monotonic()
    partitions: list[Any] = [{"partition": 0, "offset": 9}, {"partition": 4, "offset": 3}, 8]
    answer = get_many(client, topic=topic, partitions=partitions, offset="latest", timeout_ms=200)
    assert 0.15 < time.monotonic() - started < 60
    assert (answer.end, answer.rows) == ("deadline", {})
    assert answer.next_offsets == {0: 9, 4: 3, 8: 0}
    assert answer.log_end_offsets == {0: 2, 4: 0, 8: 0}


@pytest.mark.parametrize("offset", ["earliest", "latest", 7])
def test_all_takes_in_partitions_born_meanwhile_from_their_first_message(
    client: flight.FlightClient, topic: str, threads: ThreadPoolExecutor, offset: Any
) -> None:
    push(client, topic, keyed({0: list(range(7))}))
    answer = poll(
        client, threads, topic=topic, partitions="all", offset=offset, timeout_ms=150_000,
        min_messages=4 if offset != "earliest" else 11,
    )  # fmt: skip
    push(client, topic, keyed({1: [10, 11], 2: [20]}), keyed({0: [7]}))
    found = answer()
    expected = {0: [7], 1: [10, 11], 2: [20]}
    if offset == "earliest":
        expected[0] = list(range(8))
    assert found.column("n") == expected
    assert found.next_offsets == {0: 8, 1: 2, 2: 1}


def test_a_named_partition_that_is_born_meanwhile_is_read_from_its_first_message(
    client: flight.FlightClient, topic: str, threads: ThreadPoolExecutor
) -> None:
    entries: list[Any] = [{"partition": 3, "offset": 5}, {"partition": 4, "offset": "latest"}]
    answer = poll(
        client, threads, topic=topic, partitions=entries, min_messages=4, timeout_ms=150_000
    )
    push(client, topic, keyed({3: [0, 1], 4: [0, 1]}))
    assert answer().column("n") == {3: [0, 1], 4: [0, 1]}


@pytest.mark.parametrize("offset", ["latest", 7, {"timestamp": "2100-01-01T00:00:00Z"}])
@pytest.mark.parametrize("partitions", ["all", [{"partition": 3}, {"partition": 4}]])
def test_a_partition_is_born_meanwhile_once_the_request_has_come(
    client: flight.FlightClient, server: RunningServer, topic: str, offset: Any, partitions: Any
) -> None:
    push(client, topic, keyed({3: list(range(7))}))
    ticket = ticket_of(
        topic=topic, partitions=partitions, offset=offset, min_messages=2, timeout_ms=20_000
    )
    opened = open_get(server.server.log, cast("AnyRead", parse_ticket(ticket.ticket)))
    push(client, topic, keyed({4: [10, 11]}))
    found = [chunk.batch.select(["n"]) for chunk in opened.chunks(Cancel())]
    assert pa.Table.from_batches(found).to_pydict() == {"n": [10, 11]}


@pytest.mark.parametrize("partitions", ["all", [{"partition": 3}, {"partition": 4}]])
def test_latest_is_where_the_log_ends_when_the_request_comes(
    client: flight.FlightClient, server: RunningServer, topic: str, partitions: Any
) -> None:
    push(client, topic, keyed({3: [0, 1]}))
    ticket = ticket_of(
        topic=topic, partitions=partitions, offset="latest", min_messages=3, timeout_ms=150_000
    )
    opened = open_get(server.server.log, cast("AnyRead", parse_ticket(ticket.ticket)))
    push(client, topic, keyed({3: [2], 4: [0, 1]}))
    found = [chunk.batch.select(["n"]) for chunk in opened.chunks(Cancel())]
    assert pa.Table.from_batches(found).sort_by("n").to_pydict() == {"n": [0, 1, 2]}


def test_a_follow_delivers_every_commit_once(client: flight.FlightClient, topic: str) -> None:
    push(client, topic, keyed({0: [0]}))
    stream = client.do_get(ticket_of(kind="follow", topic=topic, partitions="all"))
    expected: dict[int, list[int]] = {0: [0]}
    for number in range(1, 60):
        keys = {number % 7, number % 11, number}
        push(client, topic, keyed({key: [number] for key in keys}))
        for key in keys:
            expected.setdefault(key, []).append(number)
    assert followed(stream, sum(map(len, expected.values()))) == expected


def test_a_poll_of_thousands_waits_once_and_one_commit_wakes_it(
    client: flight.FlightClient, server: RunningServer, topic: str, threads: ThreadPoolExecutor
) -> None:
    push(client, topic, keyed({key: [0] for key in range(3_000)}))
    begun = server.server.log.fetcher.waits.begun
    answer = poll(
        client, threads, topic=topic, partitions="all", offset="latest", timeout_ms=150_000
    )
    until(lambda: server.server.log.fetcher.waits.begun > begun)
    assert server.server.log.fetcher.waits.waiting == 1
    push(client, topic, keyed({1_234: [1]}))
    assert answer().column("n") == {1_234: [1]}
    assert server.server.log.fetcher.waits.begun == begun + 1


def test_deleting_the_topic_ends_a_wait(
    client: flight.FlightClient, topic: str, threads: ThreadPoolExecutor
) -> None:
    answer = poll(client, threads, topic=topic, partitions="all", offset=0, timeout_ms=150_000)
    act(client, "delete-topic", topic=topic)
    with pytest.raises(flight.FlightServerError) as caught:
        answer()
    assert error_of(caught.value)["code"] == "TOPIC_NOT_FOUND"


def test_a_client_that_leaves_in_mid_poll_frees_its_call(server: RunningServer, topic: str) -> None:
    with flight.FlightClient(server.flight) as leaving:
        reader = leaving.do_get(
            ticket_of(kind="follow", topic=topic, partitions="all", timeout_ms=150_000)
        )

        def wait() -> None:
            with suppress(flight.FlightError):
                list(chunks(reader))

        thread = threading.Thread(target=wait)
        thread.start()
        waits = server.server.log.fetcher.waits
        until(lambda: waits.waiting)
        reader.cancel()
        thread.join(60)
        until(lambda: waits.waiting == 0)


def test_offsets_may_be_words_or_times(client: flight.FlightClient, topic: str) -> None:
    for second in range(4):
        push(
            client,
            topic,
            keyed({0: [second], second: [second]}) if second else keyed({0: [0]}),
            timestamp=f"2026-11-20T12:00:0{second}Z",
        )
    ticket = {"kind": "scan", "topic": topic, "partitions": "all"}
    late = get_many(client, **ticket, offset={"timestamp": "2026-11-20T12:00:02Z"})
    assert late.column("n") == {0: [2, 3], 2: [2], 3: [3]}
    assert late.next_offsets == {0: 4, 1: 1, 2: 1, 3: 1}
    assert get_many(client, **ticket, offset="latest").rows == {}


def test_all_partitions_are_read_on_from_where_another_read_stopped(
    client: flight.FlightClient, topic: str, threads: ThreadPoolExecutor
) -> None:
    push(client, topic, keyed({1: [10, 11], 2: [20]}))
    before = get_many(client, kind="scan", topic=topic, partitions="all")
    push(client, topic, keyed({2: [21], 3: [30]}))
    ticket: Json = {"topic": topic, "partitions": "all", "offset": 0}
    ticket["positions"] = [*before.next_offsets.items(), (99, 7)]
    answer = get_many(client, kind="scan", **ticket)
    assert answer.column("n") == {2: [21], 3: [30]}
    assert answer.next_offsets == {1: 2, 2: 2, 3: 1}, "99 is not born"
    ticket["positions"] = [*answer.next_offsets.items(), (99, 7)]
    waiting = poll(client, threads, **ticket, min_messages=2, timeout_ms=150_000)
    push(client, topic, keyed({1: [12], 99: [990]}))
    assert waiting().column("n") == {1: [12], 99: [990]}


# What is refused, and how.

BAD: list[tuple[Json, str]] = [
    ({"partitions": "some"}, "INVALID_TICKET"),
    ({"partitions": "all", "columns": ["x"]}, "INVALID_TICKET"),
    ({"partitions": "all", "filter": "sum(n) > 1"}, "INVALID_FILTER"),
    ({"partitions": "all", "positions": [[None, 1]]}, "PARTITION_REQUIRED"),
    ({"partitions": "all", "positions": [["1", 1]]}, "PARTITION_TYPE_MISMATCH"),
    ({"partitions": [1, None]}, "PARTITION_REQUIRED"),
    ({"partitions": [1, "1"]}, "PARTITION_TYPE_MISMATCH"),
    ({"partitions": [[1]]}, "PARTITION_TYPE_MISMATCH"),
    ({"partitions": [{"partition": {}}]}, "PARTITION_TYPE_MISMATCH"),
]


def test_a_bad_ticket_is_refused_with_its_code(
    client: flight.FlightClient, topic: str, new_topic_id: str, subtests: pytest.Subtests
) -> None:
    for keys, code in BAD:
        with subtests.test(f"{keys!r:.80}"):
            assert refused(client, topic=topic, **keys)["code"] == code


def test_a_value_on_a_topic_without_a_key_is_refused(
    client: flight.FlightClient, new_topic_id: str
) -> None:
    create_topic(client, new_topic_id, ["n: int64"])
    found = refused(client, topic=new_topic_id, partitions=[1])
    assert found["code"] == "PARTITION_NOT_ALLOWED"


def expire(server: RunningServer, topic: str, key: int) -> None:
    """Drop all but the last page of a partition."""
    log = server.server.log
    uuid = log.admin.get_topic(TopicName.parse(topic)).uuid
    partition = Partition(str(key))
    log.maintenance.expire(uuid, partition, age_us=None, bytes_kept=1, pages_max=1_000)


def test_an_offset_below_a_partitions_start_names_both(
    client: flight.FlightClient, server: RunningServer, topic: str
) -> None:
    for number in range(4):
        push(client, topic, keyed({1: [number], 2: [number]}))
    expire(server, topic, 2)
    for kind in ("fetch", "scan", "follow"):
        found = refused(client, kind=kind, topic=topic, partitions="all", offset=0)
        assert found["code"] == "OFFSET_OUT_OF_RANGE"
        assert (found["partition"], found["log_start_offset"]) == (2, 3)
    answer = get_many(client, kind="scan", topic=topic, partitions="all")
    assert answer.column("n") == {1: [0, 1, 2, 3], 2: [3]}


def test_retention_that_passes_a_read_is_an_error_but_from_the_earliest_on(
    client: flight.FlightClient, server: RunningServer, topic: str
) -> None:
    rows = {key: [0] * 900 for key in range(40)}
    for _ in range(4):
        push(client, topic, keyed(rows))

    def read(offset: Any) -> Any:
        reader = client.do_get(
            ticket_of(kind="follow", topic=topic, partitions="all", offset=offset, timeout_ms=1_000)
        )
        first = reader.read_chunk()  # The read has begun: the server is ahead by some chunks.
        assert first.app_metadata is not None
        for key in range(40):
            expire(server, topic, key)
        return read_many(reader)

    answer = read("earliest")
    assert answer.next_offsets == dict.fromkeys(range(40), 3_600)
    for _ in range(4):
        push(client, topic, keyed(rows))
    try:
        answer = read(2_700)
    except flight.FlightError as error:
        found = error_of(error)
        assert found["code"] == "OFFSET_OUT_OF_RANGE"
        assert found["partition"] in range(40)
        assert found["log_start_offset"] == 6_300


def test_pages_that_moved_or_are_gone_since_they_were_looked_up_are_looked_up_anew(
    tmp_path: Path, calls: Calls
) -> None:
    keys = range(60)
    with running_server(tmp_path, limits=LIMITS) as server, server.client() as client:
        log = server.server.log
        create_topic(client, "t", ["n: int64", "key: int64"], "key")
        for first in (0, 100):
            push(client, "t", keyed({key: list(range(first, first + 100)) for key in keys}))
        expected = {key: list(range(200)) for key in keys}
        looks = calls.heard(log.registry, "locate_many")

        def scan() -> dict[Any, list[Any]]:
            looks.clear()
            return get_many(client, kind="scan", topic="t", partitions="all").column("n")

        assert scan() == expected
        assert looks
        assert scan() == expected
        even = get_many(client, kind="scan", topic="t", partitions="all", filter="n % 2 = 0")
        assert even.column("n") == {key: list(range(0, 200, 2)) for key in keys}
        whole = get_many(client, kind="scan", topic="t", partitions="all", system_columns=True)
        assert whole.column("__offset") == whole.column("n") == expected
        assert not looks, "what was found is kept"
        push(client, "t", keyed({key: [200] for key in keys}))
        for values in expected.values():
            values.append(200)
        assert scan() == expected, "and goes on with what came since"
        # Merged into other segments; those of before are deleted.
        name = TopicName.parse("t")
        log.admin.alter_topic(name, TopicConfig(tier_after_ms=0))
        before = log.store.folios()
        log.maintainer.run()
        log.reclaimer.run()
        assert before - log.store.folios(), "nothing was deleted"
        assert scan() == expected
        assert looks
        push(client, "t", keyed({key: [201] for key in keys}))
        for key in keys:
            expire(server, "t", key)
        found = refused(client, kind="scan", topic="t", partitions="all", offset=0)
        assert found["code"] == "OFFSET_OUT_OF_RANGE"
        assert scan() == {key: [201] for key in keys}


def test_a_damaged_page_names_the_partition_after_what_stands_before_it(tmp_path: Path) -> None:
    with running_server(tmp_path) as server, server.client() as client:
        create_topic(client, "t", ["n: int64", "key: int64"], "key")
        # A page for each push: too large to be shared.
        for key in range(3):
            push(client, "t", keyed({key: list(range(20_000))}))
    (segment,) = (tmp_path / "segments").iterdir()
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 0xFF  # In the second of three pages.
    segment.write_bytes(data)
    with running_server(tmp_path) as server, server.client() as client:
        reader = client.do_get(ticket_of(kind="scan", topic="t", partitions="all"))
        seen: list[Any] = []

        def read() -> None:
            for chunk in chunks(reader):
                assert chunk.app_metadata is not None
                metadata = json.loads(chunk.app_metadata.to_pybytes())
                seen.extend(each["partition"] for each in metadata["ranges"])

        with pytest.raises(flight.FlightInternalError) as caught:
            read()
        found = error_of(caught.value)
        assert (found["code"], found["partition"]) == ("STORAGE_CORRUPT", 1)
        assert seen == [0]
        assert get_many(client, kind="scan", topic="t", partitions=[0, 2]).num_rows == 40_000
