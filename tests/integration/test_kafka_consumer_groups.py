"""Groups of KIP-848 by Kafka's own clients, unmodified: librdkafka's `group.protocol=consumer`."""

import threading
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import confluent_kafka as ck
import pyarrow.flight as flight
import pytest
from confluent_kafka.admin import AdminClient
from fix_calls import Calls
from flight_calls import act
from test_kafka import (
    LATER,
    Rdkafka,
    connected,
    expect_member,
    expect_polled,
    produce_request,
    taken,
)
from test_kafka_admin import only, refusal
from test_kafka_transactions import killed_server

import wings_client
from wings_core.ingest.pending import Pending
from wings_server.kafka.messages import Api
from wings_server.kafka.service import PRODUCERS
from wings_server.testing import RunningServer, running_server

pytestmark = pytest.mark.server(kafka=True)


class NextGeneration(Rdkafka):
    """Clients of librdkafka whose consumers are members of groups of KIP-848."""

    def consumer(self, group: str = "anyone", **config: Any) -> ck.Consumer:
        return super().consumer(group, **{"group.protocol": "consumer", **config})


@pytest.fixture
def rdkafka(server: RunningServer) -> NextGeneration:
    return NextGeneration(server.kafka)


def owned(consumer: ck.Consumer) -> set[int]:
    return {each.partition for each in consumer.assignment()}


def test_members_share_partitions_and_read_on_for_each_other(
    server: RunningServer, rdkafka: NextGeneration, new_topic_id: str
) -> None:
    rdkafka.create(new_topic_id, 4)
    rdkafka.produce(new_topic_id, [{"value": b"%d" % n, "partition": n % 4} for n in range(40)])
    first, second = (rdkafka.consumer(new_topic_id) for _ in range(2))
    first.subscribe([new_topic_id])
    taken(first, 40)
    second.subscribe([new_topic_id])
    expect_polled(lambda: len(owned(first)) == len(owned(second)) == 2, first, second)
    assert owned(first) | owned(second) == {0, 1, 2, 3}
    with wings_client.connect(server.flight) as client:
        group = client.consumer_group(f"kafka:{new_topic_id}")
        assert len(group.members) == 2
    given_up = owned(first)
    offsets = [ck.TopicPartition(new_topic_id, number, 7) for number in given_up]
    first.commit(offsets=offsets, asynchronous=False)
    first.close()
    expect_polled(lambda: len(owned(second)) == 4, second)
    committed = {each.partition: each.offset for each in second.committed(second.assignment())}
    assert {number: committed[number] for number in given_up} == dict.fromkeys(given_up, 7)
    second.close()


def test_after_a_kill_the_next_server_runs_the_groups_at_once(
    tmp_path: Path, new_topic_id: str
) -> None:
    with killed_server(tmp_path) as (server, clients):
        clients.create(new_topic_id)
        for _ in range(2):  # Lives; the first request of the second is not NOT_COORDINATOR.
            with expect_member(clients.config["bootstrap.servers"], "readers", new_topic_id):
                server.kill()
            server.start()


class WingsMember:
    """A member of a group by Wings's own heartbeats."""

    def __init__(self, address: str, group: str, topic: str) -> None:
        self._client = flight.connect(address)
        self._named = {"consumer": f"kafka:{group}", "member": "ours"}
        self._topic = topic
        self._epoch = 0
        self.slots: list[int] = []

    def beat(self) -> None:
        joins = {"topics": [self._topic]} if self._epoch == 0 else {}
        owned = [{"topic": self._topic, "slots": self.slots}] if self.slots else []
        said = {"member_epoch": self._epoch, "owned": owned, **joins}
        answer = act(self._client, "group-heartbeat", **self._named, **said)
        self._epoch = answer["member_epoch"]
        if answer["assignment"] is not None:
            self.slots = [slot for each in answer["assignment"] for slot in each["slots"]]

    def leave(self) -> None:
        act(self._client, "group-heartbeat", **self._named, member_epoch=-1)
        self._client.close()


def test_a_member_of_wings_and_one_of_kafka_share_a_group(
    server: RunningServer, rdkafka: NextGeneration, new_topic_id: str
) -> None:
    rdkafka.create(new_topic_id, 4)
    with closing(rdkafka.consumer(new_topic_id)) as theirs:
        theirs.subscribe([new_topic_id])
        expect_polled(lambda: len(owned(theirs)) == 4, theirs)
        ours = WingsMember(server.flight, new_topic_id, new_topic_id)

        def shared() -> bool:
            ours.beat()
            return owned(theirs) | set(ours.slots) == {0, 1, 2, 3} and len(owned(theirs)) == 2

        expect_polled(shared, theirs)
        assert len(ours.slots) == 2
        ours.leave()
        expect_polled(lambda: len(owned(theirs)) == 4, theirs)


def test_a_commit_of_a_member_that_does_not_hold_the_partition_is_fenced(
    rdkafka: NextGeneration, new_topic_id: str
) -> None:
    rdkafka.create(new_topic_id, 2)
    rdkafka.produce(new_topic_id, [{"value": b"v", "partition": n} for n in range(2)])
    first, second = (rdkafka.consumer(new_topic_id) for _ in range(2))
    for consumer in (first, second):
        consumer.subscribe([new_topic_id])
    expect_polled(lambda: len(owned(first)) == len(owned(second)) == 1, first, second)
    (theirs,) = owned(second)
    with pytest.raises(ck.KafkaException) as error:
        first.commit(offsets=[ck.TopicPartition(new_topic_id, theirs, 1)], asynchronous=False)
    assert error.value.args[0].code() == ck.KafkaError.STALE_MEMBER_EPOCH
    with closing(Rdkafka.consumer(rdkafka, new_topic_id)) as alone:
        with pytest.raises(ck.KafkaException) as error:
            alone.commit(offsets=[ck.TopicPartition(new_topic_id, 0, 1)], asynchronous=False)
        assert error.value.args[0].code() == ck.KafkaError.UNKNOWN_MEMBER_ID
    first.close()
    second.close()


def test_heartbeats_are_refused_as_kafka_does(
    rdkafka: NextGeneration, new_topic_id: str, subtests: pytest.Subtests
) -> None:
    rdkafka.create(new_topic_id, 2)
    classic, group = f"{new_topic_id}-classic", f"{new_topic_id}-new"
    address = rdkafka.config["bootstrap.servers"]
    with connected(address) as connection, expect_member(address, classic, new_topic_id):
        ask = connection.ask

        def beat(member: str, epoch: int, **values: Any) -> Any:
            named = {"group_id": group, "member_id": member, "member_epoch": epoch}
            return ask(Api.CONSUMER_GROUP_HEARTBEAT, 1, **{**named, **values})

        joining = {"subscribed_topic_names": [new_topic_id], "instance_id": "pod-1"}
        first = beat("one", 0, **joining)
        (assigned,) = first.assignment.topic_partitions
        assert (first.error_code.value, assigned.partitions) == (0, (0, 1))
        held = [{"topic_id": assigned.topic_id, "partitions": assigned.partitions}]
        epoch = first.member_epoch
        refused = {
            "an epoch of another time": (beat("one", epoch + 7), 110),
            "an unknown member": (beat("none", 3), 110),
            "no member": (beat("", 0, **joining), 42),
            "no topics": (beat("two", 0), 42),
            "a bad pattern": (beat("two", 0, subscribed_topic_regex="("), 128),
            "a classic group": (beat("two", 0, **joining, group_id=classic), 69),
        }
        for name, (answer, code) in refused.items():
            with subtests.test(name):
                assert (answer.error_code.value, answer.assignment) == (code, None)
        with subtests.test("a classic member"):
            joins = {"group_id": group, "session_timeout": 6_000, "protocol_type": "consumer"}
            protocols = [{"name": "range", "metadata": b""}]
            assert ask(Api.JOIN_GROUP, 9, **joins, protocols=protocols).error_code.value == 23
        with subtests.test("a static member that was started anew"):
            assert beat("one", epoch, topic_partitions=held).error_code.value == 0
            assert beat("one", -2, instance_id="pod-1").member_epoch == -2
            second = beat("again", 0, **joining)
            assert second.assignment.topic_partitions == first.assignment.topic_partitions
            assert beat("one", epoch, instance_id="pod-1").error_code.value == 82
        with subtests.test("described"):
            (described,) = ask(Api.CONSUMER_GROUP_DESCRIBE, 1, group_ids=[group]).groups
            (member,) = described.members
            assert (member.member_id, member.instance_id) == ("again", "pod-1")
            assert member.subscribed_topic_names == (new_topic_id,)
            (part,) = member.assignment.topic_partitions
            assert (part.topic_name, part.partitions) == (new_topic_id, (0, 1))
            (missing,) = ask(Api.CONSUMER_GROUP_DESCRIBE, 1, group_ids=[classic]).groups
            assert missing.error_code.value == 69
        with subtests.test("left"):
            assert beat("again", -1).member_epoch == -1
            assert beat("again", epoch + 1).error_code.value == 110


def test_groups_and_metadata_are_served_while_all_batches_wait(
    rdkafka: NextGeneration, new_topic_id: str, calls: Calls
) -> None:
    rdkafka.create(new_topic_id)
    go, waiting = threading.Event(), threading.Semaphore(0)

    def wait(_: Pending) -> None:
        waiting.release()
        go.wait(2 * LATER)  # Longer than a client waits.

    calls.before(Pending, "outcome", wait)
    address = rdkafka.config["bootstrap.servers"]
    with ExitStack() as ends, connected(address) as member:
        ends.callback(go.set)
        for _ in range(PRODUCERS + 8):
            producer = ends.enter_context(connected(address))
            producer.send(produce_request(new_topic_id, -1, -1, -1))
        assert all(waiting.acquire(timeout=LATER) for _ in range(PRODUCERS))
        named = {"group_id": new_topic_id, "member_id": "one"}
        joins = {**named, "subscribed_topic_names": [new_topic_id]}
        beat = member.ask(Api.CONSUMER_GROUP_HEARTBEAT, 1, **joins)
        assert beat.error_code.value == 0
        (topic,) = member.ask(Api.METADATA, 4, topics=[{"name": new_topic_id}]).topics
        assert topic.error_code.value == 0
        offsets = [{"partition_index": 0, "committed_offset": 0}]
        topics = [{"name": new_topic_id, "partitions": offsets}]
        epoch = {"generation_id_or_member_epoch": beat.member_epoch}
        (topic,) = member.ask(Api.OFFSET_COMMIT, 9, **named, **epoch, topics=topics).topics
        assert topic.partitions[0].error_code.value == 0


def test_patterns_and_names_to_come_are_subscribed_to(
    rdkafka: NextGeneration, new_topic_id: str
) -> None:
    missing, matching = f"{new_topic_id}-missing", f"{new_topic_id}-matching"
    with (
        closing(rdkafka.consumer(f"{new_topic_id}-one")) as one,
        closing(rdkafka.consumer(f"{new_topic_id}-two")) as two,
    ):
        one.subscribe([missing])
        two.subscribe([f"^{new_topic_id}-mat.*"])
        one.poll(0.1)
        two.poll(0.1)
        rdkafka.create(missing, 2)
        rdkafka.create(matching, 3)
        expect_polled(lambda: owned(one) == {0, 1} and owned(two) == {0, 1, 2}, one, two)


def test_a_group_is_listed_and_deleted_once_its_members_have_left(
    rdkafka: NextGeneration, new_topic_id: str
) -> None:
    rdkafka.create(new_topic_id, 1)
    rdkafka.produce(new_topic_id, [b"one"])
    admin = AdminClient(rdkafka.config)

    def listed() -> dict[str, tuple[str, str]]:
        found = admin.list_consumer_groups().result(60).valid
        return {each.group_id: (each.state.name, each.type.name) for each in found}

    with closing(rdkafka.consumer(new_topic_id)) as consumer:
        consumer.subscribe([new_topic_id])
        message = taken(consumer, 1)[0]
        consumer.commit(message=message, asynchronous=False)
        assert listed()[new_topic_id] == ("STABLE", "CONSUMER")
        assert refusal(admin.delete_consumer_groups([new_topic_id])) == (
            ck.KafkaError.NON_EMPTY_GROUP
        )
    assert listed()[new_topic_id] == ("EMPTY", "CLASSIC")
    only(admin.delete_consumer_groups([new_topic_id]))
    assert new_topic_id not in listed()


def test_a_group_reads_on_after_a_restart(tmp_path: Path, new_topic_id: str) -> None:
    with running_server(tmp_path, kafka=True) as running:
        rdkafka = NextGeneration(running.kafka)
        rdkafka.create(new_topic_id)
        rdkafka.produce(new_topic_id, [b"%d" % number for number in range(6)])
        with closing(rdkafka.consumer("readers")) as consumer:
            consumer.subscribe([new_topic_id])
            found = taken(consumer, 3)
            consumer.commit(message=found[-1], asynchronous=False)
    with (
        running_server(tmp_path, kafka=True) as running,
        closing(NextGeneration(running.kafka).consumer("readers")) as consumer,
    ):
        consumer.subscribe([new_topic_id])
        assert [each.offset() for each in taken(consumer, 3)] == [3, 4, 5]
