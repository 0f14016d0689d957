"""Share groups over Flight, by plain pyarrow, against a real server."""

from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
from flight_calls import create_topic, get, numbers, push
from share_calls import Member, create_group, offsets_of


def setting(client: flight.FlightClient, topic: str, rows: int = 10, **config: Any) -> Member:
    """Create a topic of so many messages, `n` being the offset, and a group; return a member."""
    create_topic(client, topic, ["n: int64"])
    if rows:
        push(client, topic, numbers(*range(rows)))
    create_group(client, topic, **config)
    return Member(client, topic)


def test_messages_are_acquired_and_accepted_once(
    client: flight.FlightClient, new_topic_id: str
) -> None:
    member = setting(client, new_topic_id)
    (leased,) = member.acquire()
    assert leased.about == {
        "partition": None,
        "start_offset": 0,
        "end_offset": 9,
        "lease": leased.lease,
        "delivery_count": 1,
        "lock_duration_ms": 30_000,
    }
    assert leased.column("n") == list(range(10)) == leased.offsets
    assert set(leased.column("__partition")) == {"null"}
    assert set(leased.column("__delivery_count")) == {1}
    assert set(leased.column("__lease")) == {leased.lease}
    schema = leased.batch.schema
    assert schema.names == [
        "n", "__offset", "__timestamp", "__partition", "__delivery_count", "__lease",
    ]  # fmt: skip
    assert schema.types[1:] == [
        pa.int64(), pa.timestamp("us", tz="UTC"), pa.string(), pa.int32(), pa.string(),
    ]  # fmt: skip
    assert member.acquire(timeout_ms=5) == []
    assert member.acknowledge(leased.ack("accept")) == [None]
    assert member.acquire(timeout_ms=5) == []
    (partition,) = member.describe()["partitions"]
    assert partition == {"partition": None, "start_offset": 10, "in_flight": 0, "lag": 0}


def test_a_rejected_message_is_a_dead_letter_with_its_payload(
    client: flight.FlightClient, new_topic_id: str
) -> None:
    dead = f"{new_topic_id}-dead"
    member = setting(client, new_topic_id, dlq_topic=dead)
    (leased,) = member.acquire()
    codes = member.acknowledge(
        leased.ack("accept", 0, 3),
        leased.ack("reject", 4, 5, reason="bad"),
        leased.ack("accept", 6),
    )
    assert codes == [None, None, None]
    letters = get(client, topic=dead, offset=0, max_messages=2)
    assert letters.column("source_offset") == [4, 5]
    assert letters.column("reason") == ["rejected", "rejected"]
    assert letters.column("error") == ["bad", "bad"]
    payloads = letters.column("payload")
    schema = pa.schema([pa.field("n", pa.int64())])
    rows = [pa.ipc.read_record_batch(pa.py_buffer(each), schema) for each in payloads]
    assert [row.column("n").to_pylist() for row in rows] == [[4], [5]]
    assert offsets_of(member.acquire(timeout_ms=5)) == []
