"""Share groups over Flight, by plain pyarrow, against a real server."""

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest
from fix_server import Trim
from flight_calls import act, code_of, create_topic, get, numbers, push, ticket_of
from share_calls import Leased, Member, create_group, offsets_of

import wings_client
from wings_core.limits import Limits
from wings_server.testing import RunningServer, running_server, server_process

SHORT = 1_000
"""The shortest lock, in milliseconds."""

STEADY = 6_000
"""One that is renewed in time on a busy machine too."""

LONG = 60_000
"""Longer than anything that a test waits for, in milliseconds."""


def setting(client: flight.FlightClient, topic: str, rows: int = 10, **config: Any) -> Member:
    """Create a topic of so many messages, `n` being the offset, and a group; return a member."""
    create_topic(client, topic, ["n: int64"])
    if rows:
        push(client, topic, numbers(*range(rows)))
    create_group(client, topic, **config)
    return Member(client, topic)


def other(member: Member, name: str = "two", group: str | None = None) -> Member:
    """Return another member of the same topic."""
    return Member(member.client, member.topic, group or member.group, name)


def letters(member: Member, dead: str, rows: int) -> dict[str, list[Any]]:
    """Return so many dead letters, by column; waits for them."""
    found = get(member.client, topic=dead, offset=0, min_messages=rows, timeout_ms=LONG)
    assert found.table.num_rows == rows
    return found.table.to_pydict()


def payloads(found: dict[str, list[Any]], schema: pa.Schema) -> list[dict[str, Any]]:
    """Return the messages in dead letters."""
    return [
        pa.ipc.read_record_batch(pa.py_buffer(each), schema).to_pylist()[0]
        for each in found["payload"]
    ]


# Acquire and acknowledge.


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


def test_an_acquire_ends_with_why_it_does(client: flight.FlightClient, new_topic_id: str) -> None:
    member = setting(client, new_topic_id)
    _, end = member.acquire_to_end(max_messages=4)
    assert end == {"end": "max_messages", "next_offset": 4, "log_end_offset": 10}
    _, end = member.acquire_to_end()
    assert end == {"end": "min_messages", "next_offset": 10, "log_end_offset": 10}
    _, end = member.acquire_to_end(timeout_ms=5)
    assert end == {"end": "deadline", "next_offset": 10, "log_end_offset": 10}


def test_an_acquire_delivers_at_most_what_it_asked_for(
    client: flight.FlightClient, new_topic_id: str
) -> None:
    member = setting(client, new_topic_id, rows=100)
    assert offsets_of(member.acquire(max_messages=7)) == list(range(7))
    assert offsets_of(member.acquire(max_messages=1)) == [7]


def test_whole_batches_are_delivered_where_the_group_wants_them(
    client: flight.FlightClient, new_topic_id: str
) -> None:
    member = setting(client, new_topic_id, rows=40, acquire_mode="batch_optimized")
    push(client, new_topic_id, numbers(*range(40, 60)))
    assert offsets_of(member.acquire(max_messages=50)) == list(range(60))


def test_an_acquire_waits_for_messages(client: flight.FlightClient, new_topic_id: str) -> None:
    member = setting(client, new_topic_id, rows=0)
    found: list[Leased] = []
    waiting = threading.Thread(target=lambda: found.extend(member.acquire(timeout_ms=LONG)))
    waiting.start()
    push(client, new_topic_id, numbers(0, 1))
    waiting.join(LONG / 1000)
    assert offsets_of(found) == [0, 1]


def test_a_partitioned_topic_is_shared_over_all_its_partitions_or_one(
    client: flight.FlightClient, new_topic_id: str
) -> None:
    create_topic(client, new_topic_id, ["key: string", "n: int64"], "key")
    rows = pa.record_batch({"key": ["a", "b", "a", "b"], "n": pa.array([1, 2, 3, 4], pa.int64())})
    push(client, new_topic_id, rows)
    create_group(client, new_topic_id)
    member = Member(client, new_topic_id)
    (of_b,) = member.acquire(partition="b")
    assert (of_b.about["partition"], of_b.column("n")) == ("b", [2, 4])
    assert set(of_b.column("__partition")) == {'"b"'}
    found, end = member.acquire_to_end()
    assert [(each.about["partition"], each.column("n")) for each in found] == [("a", [1, 3])]
    assert end == {"end": "min_messages", "next_offset": None, "log_end_offset": None}
    later = pa.record_batch({"key": ["c"], "n": pa.array([5], pa.int64())})
    push(client, new_topic_id, later)
    (born_later,) = member.acquire(timeout_ms=LONG)
    assert (born_later.about["partition"], born_later.offsets) == ("c", [0])
    codes = member.acknowledge(of_b.ack("accept"), found[0].ack("accept"), born_later.ack("accept"))
    assert codes == [None, None, None]
    lags = {each["partition"]: each["lag"] for each in member.describe()["partitions"]}
    assert lags == {"a": 0, "b": 0, "c": 0}


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
    found = letters(member, dead, 2)
    assert found["source_offset"] == [4, 5]
    assert found["reason"] == ["rejected", "rejected"]
    assert found["error"] == ["bad", "bad"]
    assert found["delivery_count"] == [1, 1]
    assert payloads(found, leased.batch.select(["n"]).schema) == [{"n": 4}, {"n": 5}]
    assert member.acquire(timeout_ms=5) == []


def test_a_message_that_expires_at_the_limit_is_a_dead_letter(
    client: flight.FlightClient, new_topic_id: str
) -> None:
    dead = f"{new_topic_id}-dead"
    config = {"delivery_limit": 1, "lock_duration_ms": SHORT, "dlq_topic": dead}
    member = setting(client, new_topic_id, rows=1, **config)
    assert offsets_of(member.acquire()) == [0]
    found = letters(member, dead, 1)
    assert (found["source_offset"], found["reason"]) == ([0], ["delivery_limit"])
    assert found["error"] == ["never acknowledged: the member died, or its lock ended"]


def test_what_retention_has_removed_is_acknowledged_all_the_same(
    client: flight.FlightClient, new_topic_id: str, server: RunningServer, trim: Trim
) -> None:
    member = setting(client, new_topic_id, rows=5)
    push(client, new_topic_id, numbers(*range(5, 10)))
    (leased,) = member.acquire()
    with wings_client.connect(server.flight) as connected:
        trim(connected.topic(new_topic_id), 5)
    assert member.acknowledge(leased.ack("accept", 0, 4)) == [None]
    assert member.acknowledge(leased.ack("accept", 5)) == [None]
    assert member.describe()["partitions"][0]["lag"] == 0


# A restart, and a crash.


def test_what_was_accepted_stays_accepted_after_a_crash(tmp_path: Any) -> None:
    with server_process(tmp_path / "data") as server:
        member = setting(server.client(), "orders", lock_duration_ms=STEADY)
        (leased,) = member.acquire(max_messages=6)
        assert member.acknowledge(leased.ack("accept", 0, 3)) == [None]
        server.kill()
    with server_process(tmp_path / "data") as server:
        member = Member(server.client(), "orders", name="two")
        found: list[int] = []
        while len(found) < 6:
            for leased in member.acquire(timeout_ms=LONG):
                if member.acknowledge(leased.ack("accept")) == [None]:  # Else it comes once more.
                    found += leased.offsets
        assert sorted(found) == [4, 5, 6, 7, 8, 9]


# Groups.


def test_a_group_is_described_as_it_was_created(
    client: flight.FlightClient, new_topic_id: str
) -> None:
    create_topic(client, new_topic_id, ["n: int64"])
    push(client, new_topic_id, numbers(0, 1, 2))
    created = act(client, "share-create", group="billing", topic=new_topic_id)
    name = f"tenants/default/namespaces/default/topics/{new_topic_id}"
    assert created == {
        "group": "billing",
        "topic": name,
        "config": {
            "lock_duration_ms": 30_000,
            "delivery_limit": 5,
            "in_flight_max": 2_000,
            "start": "latest",
            "dlq_topic": None,
            "dlq_copy_payload": True,
            "acquire_mode": "record_limit",
            "ordering": "none",
            "deliver_at_column": None,
        },
        "partitions": [{"partition": None, "start_offset": 3, "in_flight": 0, "lag": 0}],
    }
    assert act(client, "share-describe", group="billing", topic=name) == created
    shorter = {"group": "billing", "topic": new_topic_id, "config": {"lock_duration_ms": 1_000}}
    assert act(client, "share-alter", **shorter)["config"]["lock_duration_ms"] == 1_000
    assert (
        act(client, "share-alter", **{**shorter, "config": {"lock_duration_ms": None}}) == created
    )
    listed = act(client, "share-list", topic=new_topic_id)
    assert listed == [{key: created[key] for key in ("group", "topic", "config")}]
    assert listed[0] in act(client, "share-list")
    assert act(client, "share-delete", group="billing", topic=new_topic_id) == created
    assert act(client, "share-list", topic=new_topic_id) == []


def refused(call: Callable[[], object]) -> str:
    with pytest.raises(flight.FlightError) as caught:
        call()
    return code_of(caught.value)


def test_what_cannot_be_done_with_groups_is_refused_by_its_code(
    client: flight.FlightClient, new_topic_id: str
) -> None:
    member = setting(client, new_topic_id)
    on_topic: dict[str, Any] = {"topic": new_topic_id}
    assert refused(lambda: create_group(client, new_topic_id)) == "ALREADY_EXISTS"
    again = act(client, "share-create", group="billing", if_not_exists=True, **on_topic)
    assert again["config"]["start"] == "earliest"
    for action in ("share-describe", "share-delete"):
        assert refused(lambda: act(client, action, group="no", **on_topic)) == "GROUP_NOT_FOUND"  # noqa: B023
        assert refused(lambda: act(client, action, group="no", topic="none")) == "TOPIC_NOT_FOUND"  # noqa: B023
    alter: dict[str, Any] = {"group": "no", "config": {}, **on_topic}
    assert refused(lambda: act(client, "share-alter", **alter)) == "GROUP_NOT_FOUND"
    assert refused(lambda: other(member, group="no").acquire()) == "GROUP_NOT_FOUND"
    assert refused(lambda: other(member, group="no").acknowledge()) == "GROUP_NOT_FOUND"
    assert refused(lambda: member.acquire(partition=7)) == "PARTITION_NOT_ALLOWED"
    assert refused(lambda: member.acquire(max_messages=0)) == "INVALID_TICKET"
    assert refused(lambda: member.acquire(offset=0)) == "INVALID_TICKET"
    dlq: dict[str, Any] = {"group": "x", **on_topic, "config": {"dlq_topic": new_topic_id}}
    assert refused(lambda: act(client, "share-create", **dlq)) == "INVALID_ARGUMENT"
    create_topic(client, f"{new_topic_id}-other", ["n: int64"])
    dlq["config"] = {"dlq_topic": f"{new_topic_id}-other"}
    assert refused(lambda: act(client, "share-create", **dlq)) == "SCHEMA_MISMATCH"
    bad = {"config": {"delivery_limit": 0}, "group": "x", **on_topic}
    assert refused(lambda: act(client, "share-create", **bad)) == "INVALID_ARGUMENT"
    wrong = {"partition": 7, "first": 0, "last": 0, "lease": "a.1.b", "type": "accept"}
    assert member.acknowledge(wrong) == ["PARTITION_NOT_ALLOWED"]
    nonsense = {"partition": None, "first": 0, "last": 0, "lease": "?", "type": "accept"}
    assert member.acknowledge(nonsense) == ["INVALID_RECORD_STATE"]


def test_a_wait_ends_when_its_topic_or_group_is_deleted(
    client: flight.FlightClient, new_topic_id: str
) -> None:
    member = setting(client, new_topic_id, rows=0)
    codes: list[str] = []

    def wait(group: str) -> None:
        codes.append(refused(lambda: other(member, group=group).acquire(timeout_ms=LONG)))

    for group, delete in (
        ("one", lambda: act(client, "share-delete", group="one", topic=new_topic_id)),
        ("two", lambda: act(client, "delete-topic", topic=new_topic_id)),
    ):
        create_group(client, new_topic_id, group)
        waiting = threading.Thread(target=wait, args=(group,))
        waiting.start()
        delete()
        waiting.join(LONG / 1000)
    assert codes == ["GROUP_NOT_FOUND", "TOPIC_NOT_FOUND"]


def test_a_topic_created_again_has_no_groups_and_no_memory(
    client: flight.FlightClient, new_topic_id: str
) -> None:
    member = setting(client, new_topic_id)
    (leased,) = member.acquire()
    assert member.acknowledge(leased.ack("accept")) == [None]
    act(client, "delete-topic", topic=new_topic_id)
    again = setting(client, new_topic_id)
    assert offsets_of(again.acquire()) == [*range(10)]


# Clients that go away.


def test_a_wait_whose_client_is_gone_takes_nothing(
    server: RunningServer, client: flight.FlightClient, new_topic_id: str
) -> None:
    member = setting(client, new_topic_id, rows=0)
    with flight.FlightClient(server.flight) as leaving:
        ticket = ticket_of(
            kind="acquire", group="billing", topic=new_topic_id, member="gone", timeout_ms=LONG
        )
        reader = leaving.do_get(ticket)
        server.wait_for_calls(1)
        reader.cancel()
        with contextlib.suppress(flight.FlightError, pa.ArrowException):
            reader.read_chunk()
    server.wait_for_calls(0)
    push(client, new_topic_id, numbers(0, 1))
    assert offsets_of(member.acquire(timeout_ms=LONG)) == [0, 1]


# Redrive.


def test_dead_letters_are_sent_back_once(client: flight.FlightClient, new_topic_id: str) -> None:
    dead = f"{new_topic_id}-dead"
    member = setting(client, new_topic_id, dlq_topic=dead)
    (leased,) = member.acquire()
    acks = (
        leased.ack("accept", 0, 5),
        leased.ack("reject", 6, 7, reason="later"),
        leased.ack("reject", 8),
    )
    assert member.acknowledge(*acks) == [None, None, None]
    answer = act(client, "share-redrive", dlq_topic=dead, filter="error = 'later'")
    assert (answer["redriven"], answer["already_redriven"]) == (2, 0)
    (again,) = member.acquire()
    assert (again.column("n"), again.offsets) == ([6, 7], [10, 11])
    answer = act(client, "share-redrive", dlq_topic=dead)
    assert (answer["redriven"], answer["already_redriven"]) == (2, 2)
    assert answer["next_offset"] == answer["log_end_offset"] == 4


def test_dead_letters_hold_messages_of_the_hot_and_of_the_remote_tier(tmp_path: Path) -> None:
    dead = "orders-dead"
    limits = Limits(inline_bytes_max=0, maintenance_seconds=3_600)
    remote = str(tmp_path / "remote")
    with running_server(tmp_path / "data", limits=limits, remote=remote) as server:
        config: dict[str, Any] = {"delivery_limit": 1, "lock_duration_ms": STEADY}
        member = setting(server.client(), "orders", dlq_topic=dead, **config)
        act(member.client, "alter-topic", topic="orders", config={"tier_after_ms": 0})
        assert act(member.client, "maintain", topic="orders")["segments"] == 1
        push(member.client, "orders", numbers(*range(10, 20)))
        found = member.acquire(timeout_ms=LONG)
        assert offsets_of(found) == [*range(20)]
        rejected = [each.ack("reject", first, first + 1) for each, first in _pairs(found, 9)]
        assert set(member.acknowledge(*rejected)) == {None}
        # The others expire at the limit.
        dead_letters = letters(member, dead, 20)
    messages = payloads(dead_letters, pa.schema([pa.field("n", pa.int64())]))
    assert [row["n"] for row in messages] == dead_letters["source_offset"]
    assert sorted(dead_letters["source_offset"]) == [*range(20)]
    assert sorted(dead_letters["reason"]) == ["delivery_limit"] * 18 + ["rejected"] * 2


def _pairs(found: list[Leased], first: int) -> list[tuple[Leased, int]]:
    """Return the chunk that holds an offset and the next one, with the offset."""
    return [(each, first) for each in found if {first, first + 1} <= set(each.offsets)]
