"""Consumer groups over Flight and HTTP: members, slots, fenced commits, descriptions, resets."""

import json
import time
from typing import Any
from uuid import uuid4

import httpx
import pyarrow as pa
import pyarrow.flight as flight
import pytest
import xxhash
from flight_calls import Json, act, create_topic, error_of, push
from many_calls import get_many

from wings_server.testing import RunningServer

KEYS = list(range(20))


@pytest.fixture
def topic(client: flight.FlightClient, new_topic_id: str) -> str:
    """Create a topic with ten rows in each of twenty partitions."""
    create_topic(client, new_topic_id, ["n: int64", "key: int64"], "key")
    rows = [(n, key) for key in KEYS for n in range(10)]
    columns = {
        "n": pa.array([n for n, _ in rows], pa.int64()),
        "key": pa.array([key for _, key in rows], pa.int64()),
    }
    push(client, new_topic_id, pa.record_batch(columns))
    return new_topic_id


@pytest.fixture
def group() -> str:
    return f"group-{uuid4().hex}"


def slot(key: int) -> int:
    return xxhash.xxh3_64_intdigest(str(key).encode()) % 256


def beat(client: flight.FlightClient, group: str, member: str, epoch: int, **keys: Any) -> Json:
    return act(client, "group-heartbeat", consumer=group, member=member, member_epoch=epoch, **keys)


def slots_of(answer: Json) -> list[int]:
    """Return the slots of an assignment in one topic."""
    return [number for each in answer["assignment"] for number in each["slots"]]


def settled(
    client: flight.FlightClient, group: str, topic: str, *members: str
) -> dict[str, tuple[int, list[int]]]:
    """Have members join, one after the other, and give up and take until nothing moves."""
    states = {each: beat(client, group, each, 0, topics=[topic]) for each in members}
    for _ in range(4):
        for each, state in states.items():
            again = beat(
                client, group, each, state["member_epoch"], owned=state["assignment"] or []
            )
            states[each] = (
                again
                if again["assignment"] is not None
                else {**state, "member_epoch": again["member_epoch"]}
            )
    return {each: (state["member_epoch"], slots_of(state)) for each, state in states.items()}


def refused(client: flight.FlightClient, action: str, **body: Any) -> Json:
    with pytest.raises(flight.FlightError) as caught:
        act(client, action, **body)
    return error_of(caught.value)


def test_members_share_all_slots_evenly(
    client: flight.FlightClient, topic: str, group: str
) -> None:
    found = settled(client, group, topic, "a", "b", "c")
    owned = [each for _, each in found.values()]
    assert sorted(number for each in owned for number in each) == list(range(256))
    filled = [len({slot(key) for key in KEYS} & set(each)) for each in owned]
    assert max(filled) - min(filled) <= 1


def test_a_read_of_slots_has_their_partitions_alone(
    client: flight.FlightClient, topic: str
) -> None:
    wanted = {slot(key) for key in KEYS[:3]}
    expected = {key: 10 for key in KEYS if slot(key) in wanted}
    for keys in ({"kind": "scan"}, {"kind": "fetch", "min_messages": 30}, {"kind": "follow"}):
        wait = {} if keys["kind"] == "scan" else {"timeout_ms": 1_000}
        answer = get_many(
            client, topic=topic, partitions="all", slots=sorted(wanted), **keys, **wait
        )
        assert {key: len(rows) for key, rows in answer.rows.items()} == expected
        assert all(
            each["slot"] == slot(each["partition"]) for part in answer.ranges for each in part
        )


def test_a_read_of_slots_takes_in_their_births(
    client: flight.FlightClient, new_topic_id: str
) -> None:
    create_topic(client, new_topic_id, ["key: int64"], "key")
    mine, other = 1, next(key for key in range(2, 99) if slot(key) != slot(1))
    push(client, new_topic_id, pa.record_batch({"key": pa.array([other], pa.int64())}))
    reader = client.do_get(
        flight.Ticket(
            b'{"topic": "%s", "partitions": "all", "slots": [%d], "timeout_ms": 30000}'
            % (new_topic_id.encode(), slot(mine))
        )
    )
    push(
        client,
        new_topic_id,
        pa.record_batch({"key": pa.array([other, mine], pa.int64())}),
    )
    chunk = reader.read_chunk().data
    assert chunk is not None
    assert chunk["key"].to_pylist() == [mine]


def test_a_read_of_slots_begins_where_its_consumer_committed(
    client: flight.FlightClient, topic: str, group: str
) -> None:
    act(
        client,
        "commit-offsets",
        consumer=group,
        offsets=[{"topic": topic, "partition": 0, "offset": 7}],
    )
    answer = get_many(
        client,
        kind="scan",
        topic=topic,
        partitions="all",
        slots=list(range(256)),
        consumer=group,
        offset="latest",
    )
    assert {key: [row["n"] for row in rows] for key, rows in answer.rows.items()} == {0: [7, 8, 9]}
    info = client.get_flight_info(
        flight.FlightDescriptor.for_command(
            b'{"topic": "%s", "partitions": "all", "slots": [%d], "consumer": "%s"}'
            % (topic.encode(), slot(0), group.encode())
        )
    )
    others = [key for key in KEYS[1:] if slot(key) == slot(0)]
    assert info.total_records == 3 + 10 * len(others)


def test_slots_are_refused_where_they_mean_nothing(client: flight.FlightClient, topic: str) -> None:
    for keys in (
        {"partitions": "all", "slots": []},
        {"partitions": "all", "slots": [256]},
        {"partitions": "all", "slots": [-1]},
        {"partitions": "all", "slots": [1, 1]},
        {"partitions": [1], "slots": [1]},
        {"partition": 1, "slots": [1]},
        {"partitions": "all", "consumer": "a"},
    ):
        with pytest.raises(flight.FlightError) as caught:
            get_many(client, kind="scan", topic=topic, **keys)
        assert error_of(caught.value)["code"] == "INVALID_TICKET"


def test_slots_of_a_kafka_topic_are_its_partitions_also_those_it_gains(
    client: flight.FlightClient, new_topic_id: str, group: str
) -> None:
    columns = [{"name": name, "type": "int32"} for name in ("partition", "n")]
    kafka = {"partitions": 2, "value": "json"}
    act(
        client,
        "create-topic",
        topic=new_topic_id,
        schema={"fields": columns},
        partition_key="partition",
        config={"kafka": kafka},
    )
    states = act(client, "partition-states", topic=new_topic_id)
    assert [(state["partition"], state["last_timestamp"]) for state in states] == [
        (0, None),
        (1, None),
    ]
    rows = pa.record_batch({"partition": pa.array([1, 0], pa.int32()), "n": pa.array([1, 2], "i4")})
    push(client, new_topic_id, rows)
    for number in (-1, 2):
        outside = rows.set_column(0, "partition", pa.array([0, number], pa.int32()))
        with pytest.raises(flight.FlightError, match="partitions 0 to 1"):
            push(client, new_topic_id, outside)
    answer = get_many(client, kind="scan", topic=new_topic_id, partitions="all", slots=[1])
    assert answer.rows == {1: [{"partition": 1, "n": 1}]}
    assert [each["slot"] for part in answer.ranges for each in part] == [1]
    with pytest.raises(flight.FlightError) as caught:
        get_many(client, kind="scan", topic=new_topic_id, partitions="all", slots=[2])
    assert error_of(caught.value)["code"] == "INVALID_TICKET"

    state = beat(client, group, "one", 0, topics=[new_topic_id])
    assert slots_of(state) == [0, 1]
    owned = [{"topic": new_topic_id, "slots": [2]}]
    with pytest.raises(flight.FlightError, match="slots 0 to 1"):
        beat(client, group, "one", state["member_epoch"], owned=owned)
    described = act(client, "group-describe", consumer=group)
    assert [(each["partition"], each["member"]) for each in described["partitions"]] == [
        (0, "one"),
        (1, "one"),
    ]
    altered = act(client, "alter-topic", topic=new_topic_id, config={"kafka": {"partitions": 300}})
    assert altered["config"]["kafka"] == {
        "partitions": 300,
        "name": None,
        "value": "json",
        "cleanup_policy": "delete",
    }
    while len(slots_of(state)) < 300:
        again = beat(client, group, "one", state["member_epoch"], owned=state["assignment"])
        state = state if again["assignment"] is None else again
    push(client, new_topic_id, rows.set_column(0, "partition", pa.array([0, 299], pa.int32())))
    commit = {"topic": new_topic_id, "partition": 299, "offset": 1}
    epoch = state["member_epoch"]
    act(
        client, "commit-offsets", consumer=group, member="one", member_epoch=epoch, offsets=[commit]
    )


def test_a_commit_is_fenced_by_what_its_member_holds(
    client: flight.FlightClient, topic: str, group: str
) -> None:
    found = settled(client, group, topic, "a", "b")
    owner = next(name for name, (_, slots) in found.items() if slot(0) in slots)
    other = "ab".replace(owner, "")
    entry = [{"topic": topic, "partition": 0, "offset": 5}]
    epoch = found[owner][0]
    said = act(
        client, "commit-offsets", consumer=group, offsets=entry, member=owner, member_epoch=epoch
    )
    assert said["member_epoch"] == epoch
    for keys in (
        {},
        {"member": other, "member_epoch": found[other][0]},
        {"member": owner, "member_epoch": epoch + 9},
    ):
        error = refused(client, "commit-offsets", consumer=group, offsets=entry, **keys)
        assert error["code"] == "FENCED_MEMBER"
    assert refused(client, "delete-offsets", consumer=group)["code"] == "FENCED_MEMBER"
    for name, (number, _) in found.items():
        beat(client, group, name, -1)
        assert (
            refused(
                client,
                "commit-offsets",
                consumer=group,
                offsets=entry,
                member=name,
                member_epoch=number,
            )["code"]
            == "FENCED_MEMBER"
        )
    act(client, "commit-offsets", consumer=group, offsets=entry)


def test_a_member_that_leaves_is_replaced_at_once(
    client: flight.FlightClient, topic: str, group: str
) -> None:
    found = settled(client, group, topic, "a", "b")
    assert beat(client, group, "a", -1)["assignment"] is None
    answer = beat(client, group, "b", found["b"][0])
    assert slots_of(answer) == list(range(256))
    unknown = refused(client, "group-heartbeat", consumer=group, member="a", member_epoch=3)
    assert unknown["code"] == "FENCED_MEMBER"


def test_a_member_whose_session_ended_is_fenced_and_its_slots_are_given_on(
    client: flight.FlightClient, topic: str, group: str
) -> None:
    short = beat(client, group, "a", 0, topics=[topic], session_ms=6_000)
    other: Json = beat(client, group, "b", 0, topics=[topic])
    ends = time.monotonic() + 60
    while other["assignment"] is None or len(slots_of(other)) < 256:
        assert time.monotonic() < ends
        time.sleep(0.2)
        said = beat(client, group, "b", other["member_epoch"])
        other = said if said["assignment"] is not None else {**other, "assignment": None}
    late = refused(
        client, "group-heartbeat", consumer=group, member="a", member_epoch=short["member_epoch"]
    )
    assert late["code"] == "FENCED_MEMBER"


def test_an_instance_has_its_slots_back_after_a_restart(
    client: flight.FlightClient, topic: str, group: str
) -> None:
    first = beat(client, group, "a", 0, topics=[topic], instance="i")
    again = beat(client, group, "b", 0, topics=[topic], instance="i")
    assert slots_of(again) == slots_of(first)
    fenced = refused(
        client, "group-heartbeat", consumer=group, member="a", member_epoch=first["member_epoch"]
    )
    assert fenced["code"] == "FENCED_MEMBER"


def test_a_group_is_described_page_by_page_and_listed(
    client: flight.FlightClient, topic: str, group: str
) -> None:
    assert refused(client, "group-describe", consumer=group)["code"] == "GROUP_NOT_FOUND"
    ((epoch, slots),) = settled(client, group, topic, "a").values()
    act(
        client,
        "commit-offsets",
        consumer=group,
        offsets=[{"topic": topic, "partition": 3, "offset": 4}],
        member="a",
        member_epoch=epoch,
    )
    full = f"tenants/default/namespaces/default/topics/{topic}"
    found = act(client, "group-describe", consumer=group)
    assert found["members"] == [
        {
            "member": "a",
            "instance": None,
            "member_epoch": epoch,
            "assignment": [{"topic": full, "slots": slots}],
        }
    ]
    assert found["next"] is None
    assert found["partitions"] == [
        {
            "topic": full,
            "partition": key,
            "member": "a",
            "offset": 4 if key == 3 else None,
            "log_end_offset": 10,
            "lag": 6 if key == 3 else 10,
        }
        for key in KEYS
    ]
    shown = {"consumer": group, "members": 1, "topics": [full]}
    assert act(client, "group-list", after=group[:-1])[0] == shown
    assert act(client, "group-list", contains=group[1:], limit=1) == [shown]
    assert act(client, "group-list", contains=f"{group}?") == []


def test_a_description_goes_on_after_its_mark(
    client: flight.FlightClient, new_topic_id: str, group: str
) -> None:
    create_topic(client, new_topic_id, ["key: int64"], "key")
    rows = pa.record_batch({"key": pa.array(range(1_500), pa.int64())})
    push(client, new_topic_id, rows)
    beat(client, group, "a", 0, topics=[new_topic_id])
    first = act(client, "group-describe", consumer=group)
    rest = act(client, "group-describe", consumer=group, after=first["next"])
    keys = [each["partition"] for page in (first, rest) for each in page["partitions"]]
    assert (keys, rest["next"]) == (list(range(1_500)), None)


def test_a_group_without_members_is_reset(
    client: flight.FlightClient, topic: str, group: str
) -> None:
    def reset(to: Any) -> dict[Any, int]:
        answer = act(client, "group-reset", consumer=group, topic=topic, to=to)
        found = act(client, "get-offsets", consumer=group)["offsets"]
        assert {each["partition"]: each["offset"] for each in answer["offsets"]}.items() <= {
            each["partition"]: each["offset"] for each in found
        }.items()
        return {each["partition"]: each["offset"] for each in answer["offsets"]}

    unknown = refused(client, "group-reset", consumer=group, topic=topic, to="latest")
    assert unknown["code"] == "GROUP_NOT_FOUND"
    beat(client, group, "a", 0, topics=[topic])
    fenced = refused(client, "group-reset", consumer=group, topic=topic, to="latest")
    assert fenced["code"] == "FENCED_MEMBER"
    beat(client, group, "a", -1)
    assert reset("latest") == dict.fromkeys(KEYS, 10)
    assert reset("earliest") == dict.fromkeys(KEYS, 0)
    assert reset({"timestamp": "2020-01-01T00:00:00Z"}) == dict.fromkeys(KEYS, 0)
    assert reset([{"partition": 2, "offset": 3}]) == {2: 3}


def test_heartbeats_are_checked(client: flight.FlightClient, topic: str, group: str) -> None:
    for keys, code in (
        ({"member_epoch": 0}, "INVALID_ARGUMENT"),
        ({"member_epoch": 0, "topics": []}, "INVALID_ARGUMENT"),
        ({"member_epoch": -2}, "INVALID_ARGUMENT"),
        ({"member_epoch": 0, "topics": [topic], "session_ms": 5_999}, "INVALID_ARGUMENT"),
        ({"member_epoch": 0, "topics": ["no-such-topic"]}, "TOPIC_NOT_FOUND"),
        ({"member_epoch": 7}, "FENCED_MEMBER"),
    ):
        error = refused(client, "group-heartbeat", consumer=group, member="a", **keys)
        assert error["code"] == code, keys


def test_the_actions_are_served_over_http(server: RunningServer, topic: str, group: str) -> None:
    def post(action: str, **body: Any) -> httpx.Response:
        return httpx.post(f"{server.http}/v1/actions/{action}", json=body)

    joined = post("group-heartbeat", consumer=group, member="a", member_epoch=0, topics=[topic])
    assert len(slots_of(joined.json())) == 256
    assert post("group-describe", consumer=group).json()["members"][0]["member"] == "a"
    fenced = post("group-heartbeat", consumer=group, member="b", member_epoch=1)
    assert (fenced.status_code, fenced.json()["code"]) == (409, "FENCED_MEMBER")


def test_a_mark_that_is_none_is_refused_and_one_of_a_partition_that_is_gone_is_passed(
    client: flight.FlightClient, topic: str, group: str
) -> None:
    full = f"tenants/default/namespaces/default/topics/{topic}"
    beat(client, group, "a", 0, topics=[topic])
    for after in ("5", "null", '"ab"', '{"a": 1, "b": 2}', '["t"]', "[1, 1]", '["t", 1.5]', "["):
        error = refused(client, "group-describe", consumer=group, after=after)
        assert (error["code"], "'after'" in error["message"]) == ("INVALID_ARGUMENT", True), after

    def keys_after(after: object) -> list[int]:
        found = act(client, "group-describe", consumer=group, after=json.dumps([full, after]))
        return [each["partition"] for each in found["partitions"]]

    assert keys_after(-5) == KEYS
    assert keys_after(17) == KEYS[18:]
    assert keys_after(999) == []


def test_a_group_whose_topic_is_deleted_does_not_read_the_next_of_its_name(
    client: flight.FlightClient, new_topic_id: str, group: str
) -> None:
    create_topic(client, new_topic_id, ["n: int64"])
    first = beat(client, group, "a", 0, topics=[new_topic_id])
    act(client, "delete-topic", topic=new_topic_id)
    create_topic(client, new_topic_id, ["n: int64"])
    again = beat(client, group, "a", first["member_epoch"], owned=[])
    assert not again["assignment"]
    second = beat(client, group, "b", 0, topics=[new_topic_id])
    assert slots_of(second) == [0]
