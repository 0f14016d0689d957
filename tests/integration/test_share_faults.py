"""What damage, retention and long names do to the messages of a share group."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest
from fix_server import Trim
from flight_calls import act, create_topic, get, numbers, push
from server_processes import until
from share_calls import Member, create_group, offsets_of

import wings_client
from wings_server.testing import RunningServer, running_server

LIMIT = 5


def flipped(segments: Path, text: bytes) -> None:
    """Flip a bit of a page that has these bytes."""
    (segment,) = segments.iterdir()
    data = bytearray(segment.read_bytes())
    data[data.rindex(text)] ^= 1
    segment.write_bytes(data)


def rows(first: int, end: int) -> pa.RecordBatch:
    # Long texts, so that each batch is a page of its own.
    texts = [f"row {number} " + "x" * 200 for number in range(first, end)]
    return pa.record_batch({"n": pa.array(range(first, end), pa.int64()), "text": texts})


@pytest.mark.usefixtures("pushes_to_storage")
def test_a_damaged_page_becomes_dead_letters_alone_and_its_neighbours_are_delivered_once(
    tmp_path: Path,
) -> None:
    path = tmp_path / "data"
    with running_server(path) as server:
        client = server.client()
        create_topic(client, "t", ["n: int64", "text: string"])
        for first in (0, 10, 20):
            push(client, "t", rows(first, first + 10))
        create_group(client, "t", dlq_topic="dead", delivery_limit=LIMIT)
    flipped(path / "segments", b"row 11")
    with running_server(path) as server:
        client = server.client()
        member = Member(client, "t")
        counts: dict[int, int] = {}
        for _ in range(40):
            try:
                found = member.acquire(timeout_ms=50)
            except flight.FlightInternalError:
                continue  # Nothing but the damaged page was left.
            for leased in found:
                for offset in leased.offsets:
                    counts[offset] = leased.about["delivery_count"]
                assert member.acknowledge(leased.ack("accept")) == [None]
        assert counts == dict.fromkeys([*range(10), *range(20, 30)], 1)
        letters = get(client, topic="dead", offset=0, min_messages=10, timeout_ms=20_000)
        assert set(letters.column("source_offset")) == set(range(10, 20))
        assert letters.column("reason") == ["delivery_limit"] * 10
        assert letters.column("payload") == [None] * 10

        def is_finished() -> bool:
            (partition,) = member.describe()["partitions"]
            return (partition["lag"], partition["in_flight"]) == (0, 0)

        until(is_finished)  # A dead letter comes before its message is finished.


@pytest.mark.parametrize("kind", ["accept", "release", "reject"])
def test_what_retention_has_passed_is_in_flight_no_more_once_it_is_acknowledged(
    client: flight.FlightClient, new_topic_id: str, server: RunningServer, trim: Trim, kind: str
) -> None:
    create_topic(client, new_topic_id, ["n: int64"])
    for first in (0, 5):
        push(client, new_topic_id, numbers(*range(first, first + 5)))
    create_group(client, new_topic_id, in_flight_max=5, lock_duration_ms=12 * 3_600_000)
    member = Member(client, new_topic_id)
    (leased,) = member.acquire()
    assert leased.offsets == [0, 1, 2, 3, 4]
    with wings_client.connect(server.flight) as connected:
        trim(connected.topic(new_topic_id), 5)
    assert member.acquire(timeout_ms=5) == [], "the window is full"
    assert member.acknowledge(leased.ack(kind)) == [None]
    (partition,) = member.describe()["partitions"]
    assert (partition["in_flight"], partition["lag"]) == (0, 5)
    assert offsets_of(member.acquire(timeout_ms=5)) == [5, 6, 7, 8, 9]


def test_a_part_that_retention_has_passed_is_in_flight_no_more(
    client: flight.FlightClient, new_topic_id: str, server: RunningServer, trim: Trim
) -> None:
    create_topic(client, new_topic_id, ["n: int64"])
    for first in (0, 5):
        push(client, new_topic_id, numbers(*range(first, first + 5)))
    create_group(client, new_topic_id, lock_duration_ms=12 * 3_600_000)
    member = Member(client, new_topic_id)
    (leased,) = member.acquire()
    with wings_client.connect(server.flight) as connected:
        trim(connected.topic(new_topic_id), 5)
    assert member.acknowledge(leased.ack("accept", 3, 6)) == [None]
    assert member.describe()["partitions"][0]["in_flight"] == 6, "0 to 2 and 7 to 9"


@pytest.mark.parametrize("name", ["ü" * 256, "m" * 256])
def test_a_member_has_a_name_of_up_to_256_characters(
    client: flight.FlightClient, new_topic_id: str, name: str, server: RunningServer
) -> None:
    create_topic(client, new_topic_id, ["n: int64"])
    push(client, new_topic_id, numbers(0, 1))
    create_group(client, new_topic_id)
    member = Member(client, new_topic_id, name=name)
    (leased,) = member.acquire()
    assert member.acknowledge(leased.ack("accept")) == [None]
    too_long: dict[str, Any] = {"group": "billing", "topic": new_topic_id, "member": name + "m"}
    with pytest.raises(flight.FlightServerError, match="member"):
        act(client, "share-acknowledge", **too_long, acks=[])
