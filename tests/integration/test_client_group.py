"""Consumer groups by the client: members share partitions, and hand them over."""

import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest
from breakable_proxy import breakable
from fix_client import EAGER, async_in_soak
from fix_commands import Command
from fix_metadata import Clock, RemoteOverSqlite
from forked_commands import FORKED

import wings_client
from wings_client import AssignedSlots, Client, TopicBatch
from wings_core.errors import FencedMember, GroupNotFound, InvalidArgument, OffsetOutOfRange
from wings_core.times import now_us
from wings_server.process import Server
from wings_server.settings import Address, Settings
from wings_server.testing import RunningServer, running_server

KEYS = 30


class Member:
    """A member of a group that reads on a thread of its own until it is stopped."""

    def __init__(
        self, wings: Client, group: str, topic: str, seen: Counter[tuple[int, int]]
    ) -> None:
        self.assigned: list[AssignedSlots] = []
        self.revoked: list[AssignedSlots] = []
        self.rows: Counter[int] = Counter()
        self._seen = seen
        self._consumer = wings.consumer(
            group,
            topic,
            group=True,
            session=6,
            on_assigned=self.assigned.extend,
            on_revoked=self.revoked.extend,
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def slots(self) -> int:
        return sum(len(each.slots) for each in self.assigned) - sum(
            len(each.slots) for each in self.revoked
        )

    def stop(self) -> None:
        self._consumer.close()
        self._thread.join(60)

    def _run(self) -> None:
        for taken in self._consumer:
            for row in taken.batch.to_pylist():
                self.rows[row["key"]] += 1
                self._seen[row["key"], row["n"]] += 1


def push(wings: Client, topic: str, first: int) -> None:
    rows = [(key, n) for key in range(KEYS) for n in range(first, first + 10)]
    keys, numbers = zip(*rows, strict=True)
    wings.push(
        topic,
        pa.record_batch({"key": pa.array(keys, pa.int64()), "n": pa.array(numbers, pa.int64())}),
    )


def wait_for(what: Callable[[], bool]) -> None:
    ends = time.monotonic() + 90
    while not what():
        assert time.monotonic() < ends
        time.sleep(0.05)


@async_in_soak
def test_members_share_the_partitions_and_each_row_is_read_once(
    wings: Client, new_topic_id: str
) -> None:
    topic, group = new_topic_id, uuid4().hex
    wings.create_topic(
        topic, pa.schema([("key", pa.int64()), ("n", pa.int64())]), partition_key="key"
    )
    push(wings, topic, 0)
    seen: Counter[tuple[int, int]] = Counter()
    first = Member(wings, group, topic, seen)
    wait_for(lambda: len(seen) == KEYS * 10)
    assert first.slots == 256
    second = Member(wings, group, topic, seen)
    wait_for(lambda: first.slots == second.slots == 128)
    before = first.rows.copy()
    push(wings, topic, 10)
    wait_for(lambda: len(seen) == KEYS * 20)
    assert second.rows.keys().isdisjoint((first.rows - before).keys())
    first.stop()
    wait_for(lambda: second.slots == 256)
    push(wings, topic, 20)
    wait_for(lambda: len(seen) == KEYS * 30)
    second.stop()
    assert set(seen.values()) == {1}
    offsets = {each.partition: each.offset for each in wings.committed_offsets(group)}
    assert offsets == dict.fromkeys(range(KEYS), 30)


@async_in_soak
def test_members_read_several_topics(wings: Client, new_topic_id: str) -> None:
    group, topics = f"{new_topic_id}-group", [new_topic_id, f"{new_topic_id}-2"]
    names = [
        wings.create_topic(
            topic, pa.schema([("key", pa.int64()), ("n", pa.int64())]), partition_key="key"
        ).name
        for topic in topics
    ]
    wings.create_topic(f"{new_topic_id}-3", {"text": "string"})
    wings.push(f"{new_topic_id}-3", {"text": ["a", "b"]})
    push(wings, topics[0], 0)
    assigned: list[Sequence[AssignedSlots]] = []
    first = wings.consumer(
        group, [*topics, f"{new_topic_id}-3"], group=True, timeout=2, on_assigned=assigned.append
    )
    seen: Counter[tuple[str, int]] = Counter()

    def read() -> None:
        for taken in first:
            assert isinstance(taken, TopicBatch)
            assert sum(part.batch.num_rows for part in taken.parts()) == taken.batch.num_rows
            seen[taken.topic.id, taken.batch.num_columns] += taken.batch.num_rows

    read()
    assert first.positions[names[0], 3] == 10
    assert seen == {(topics[0], 2): KEYS * 10, (f"{new_topic_id}-3", 1): 2}
    assert {each.topic: len(each.slots) for each in assigned[0]} == {
        **dict.fromkeys(names, 256),
        first.topics[2].name: 1,
    }
    other: Counter[tuple[int, int]] = Counter()
    second = Member(wings, group, topics[1], other)
    push(wings, topics[1], 0)
    push(wings, topics[0], 10)
    reading = threading.Thread(target=read)
    reading.start()
    wait_for(lambda: second.slots == 128)
    reading.join(60)
    assert seen[topics[0], 2] == KEYS * 20
    assert first.positions[names[0], 3] == 20
    wait_for(lambda: seen[topics[1], 2] + other.total() == KEYS * 10)
    second.stop()
    first.close()
    assert wings.consumer_group(group).lag == 0


def test_consumers_of_several_topics_are_members(wings: Client, new_topic_id: str) -> None:
    wings.create_topic(new_topic_id, {"n": "int64"})
    for topics in ([new_topic_id], []):
        with pytest.raises(InvalidArgument, match="a member of a group reads several"):
            wings.consumer("name", topics)
    with pytest.raises(InvalidArgument, match="named twice"):
        wings.consumer("name", [new_topic_id, new_topic_id], group=True)


@async_in_soak
def test_another_consumer_of_a_name_is_warned_of_once(
    wings: Client, new_topic_id: str, caplog: pytest.LogCaptureFixture
) -> None:
    name = f"{new_topic_id}-name"
    wings.create_topic(new_topic_id, {"n": "int64"})
    wings.push(new_topic_id, {"n": [1]})
    with wings.consumer(name, new_topic_id) as first, wings.consumer(name, new_topic_id) as second:
        next(first)
        first.commit()
        first.commit()
        wings.push(new_topic_id, {"n": [2]})
        next(first)
        first.commit()
        assert not caplog.records, "it is alone"
        next(second)
        second.commit()
        (record,) = caplog.records
        assert "of two consumers of one name" in record.getMessage()
        wings.push(new_topic_id, {"n": [3]})
        next(second)
        second.commit()
    assert len(caplog.records) == 1


@async_in_soak
def test_a_group_is_listed_described_and_reset(wings: Client, new_topic_id: str) -> None:
    group = f"{new_topic_id}-group"
    topic = wings.create_topic(
        new_topic_id, pa.schema([("key", pa.int64()), ("n", pa.int64())]), partition_key="key"
    )
    push(wings, new_topic_id, 0)
    with pytest.raises(GroupNotFound):
        wings.consumer_group(group)
    seen: Counter[tuple[int, int]] = Counter()
    member = Member(wings, group, new_topic_id, seen)
    wait_for(lambda: len(seen) == KEYS * 10)
    found = wings.consumer_group(group)
    (only,) = found.members
    assert [len(each.slots) for each in only.assignment] == [256]
    assert {each.member for each in found.partitions} == {only.member}
    assert {each.topic for each in found.partitions} == {topic.name}
    assert [each.partition for each in found.partitions] == list(range(KEYS))
    (listed,) = [each for each in wings.consumer_groups() if each.consumer == group]
    assert (listed.members, listed.topics) == (1, (topic.name,))
    with pytest.raises(FencedMember):
        wings.reset_consumer_group(group, topic, "earliest")
    with pytest.raises(FencedMember):
        wings.commit_offsets(group, topic, {0: 0})
    member.stop()
    found = wings.consumer_group(group)
    assert (found.members, found.lag) == ((), 0)
    assert wings.reset_consumer_group(group, topic, "earliest") == dict.fromkeys(range(KEYS), 0)
    assert wings.consumer_group(group).lag == KEYS * 10
    long_ago = datetime(2001, 1, 1, tzinfo=UTC)
    assert set(wings.reset_consumer_group(group, topic, long_ago).values()) == {0}
    assert wings.reset_consumer_group(group, topic, {3: 4}) == {3: 4}
    lags = {each.partition: each.lag for each in wings.consumer_group(group).partitions}
    assert lags == {key: 6 if key == 3 else 10 for key in range(KEYS)}
    with pytest.raises(OffsetOutOfRange):
        wings.reset_consumer_group(group, topic, {3: 11})


def test_the_command_shows_and_resets_groups(
    server: RunningServer, command: Command, monkeypatch: pytest.MonkeyPatch, new_topic_id: str
) -> None:
    monkeypatch.setenv("WINGS_ENDPOINT", server.flight)
    group = f"{new_topic_id}-group"
    with wings_client.connect(server.flight) as client:
        client.create_topic(new_topic_id, {"n": "int64"})
        client.push(new_topic_id, {"n": [1, 2, 3]})
    consumed = command(
        "consume", group, new_topic_id, "--group", "--timeout", "1", "--format", "json"
    )
    assert [json.loads(line)["n"] for line in consumed.out.splitlines()] == [1, 2, 3]
    assert new_topic_id in command("group", "list").out
    assert "0 members, 0 messages behind" in command("group", "describe", group).out
    reset = command("group", "reset", group, new_topic_id, "--to", "earliest", "--yes")
    assert reset.out == f"{group} reads on at earliest in 1 partition\n"
    assert re.search(rf"{new_topic_id} │ +3", command("group", "lag", group).out)
    refused = command("consume", group, new_topic_id, "--group", "--partition", "a")
    assert refused.status == 2
    assert "omit --partition" in refused.error
    refused = command("group", "describe", "nobody")
    assert (refused.status, "nobody" in refused.err) == (1, True)


def test_members_of_several_nodes_are_one_group_and_survive_the_node_that_runs_it(
    tmp_path: Path,
) -> None:
    topic, group = "topic", "group"
    with ExitStack() as stack:
        service = RemoteOverSqlite(tmp_path / "metadata.sqlite", Clock(now_us()))
        stack.callback(service.close)
        nodes: list[ExitStack] = []
        clients: list[Client] = []
        for _ in range(3):
            settings = Settings(
                data_dir=tmp_path / "shared",
                metadata=service.service.address,
                flight=Address("127.0.0.1", 0),
                http=Address("127.0.0.1", 0),
                node_lease_seconds=1.0,
            )
            server = Server(settings)
            server.start()
            nodes.append(stack.enter_context(ExitStack()))
            nodes[-1].callback(server.stop)
            connect = partial(wings_client.connect, retry=EAGER, discover=False)
            clients.append(stack.enter_context(connect(f"grpc://{server.flight}")))
        first, *others = clients
        first.create_topic(
            topic, pa.schema([("key", pa.int64()), ("n", pa.int64())]), partition_key="key"
        )
        with pytest.raises(GroupNotFound):
            first.consumer_group(group)  # From now on its node runs the group.
        push(others[0], topic, 0)
        seen: Counter[tuple[int, int]] = Counter()
        members = [Member(client, group, topic, seen) for client in others]
        wait_for(lambda: [member.slots for member in members] == [128, 128])
        for client in clients:
            assert len(client.consumer_group(group).members) == 2
        wait_for(lambda: len(seen) == KEYS * 10)
        nodes[0].close()
        push(others[0], topic, 10)
        wait_for(lambda: len(seen) == KEYS * 20)
        members[0].stop()
        wait_for(lambda: members[1].slots == 256)
        push(others[1], topic, 20)
        wait_for(lambda: len(seen) == KEYS * 30)
        members[1].stop()
        assert set(seen.values()) == {1}
        assert others[1].consumer_group(group).lag == 0


MEMBER = """
import sys

import wings_client

with wings_client.connect(sys.argv[1]) as client:
    with client.consumer("group", "topic", group=True, session=6) as consumer:
        for batch, _ in consumer:
            print(*batch["key"].to_pylist(), flush=True)
"""
"""A member of a group that prints the keys that it reads."""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_the_partitions_of_a_process_that_dies_or_stands_still_are_read_on(
    how: signal.Signals,
) -> None:
    with running_server() as server, wings_client.connect(server.flight) as client:
        client.create_topic(
            "topic", pa.schema([("key", pa.int64()), ("n", pa.int64())]), partition_key="key"
        )
        push(client, "topic", 0)
        command = [sys.executable, "-c", FORKED + MEMBER, server.flight]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            try:
                rows = 0
                while rows < KEYS * 10:
                    rows += len(process.stdout.readline().split())
                seen: Counter[tuple[int, int]] = Counter()
                member = Member(client, "group", "topic", seen)
                wait_for(lambda: member.slots == 128)
                process.send_signal(how)
                killed = time.monotonic()
                push(client, "topic", 10)
                wait_for(lambda: member.slots == 256)
                assert time.monotonic() - killed > 2, "not before its session has ended"
                wait_for(lambda: {n for _, n in seen} >= set(range(10, 20)))
                wait_for(lambda: len([n for _, n in seen if n >= 10]) == KEYS * 10)
                if how == signal.SIGSTOP:
                    process.send_signal(signal.SIGCONT)
                    wait_for(lambda: member.slots == 128)
                    push(client, "topic", 20)
                    assert process.stdout.readline()
                assert {count for (_, n), count in seen.items() if n >= 10} == {1}
                member.stop()
            finally:
                process.kill()


@async_in_soak
def test_a_member_whose_program_asks_for_nothing_leaves_and_comes_back(
    wings: Client, new_topic_id: str
) -> None:
    group = f"{new_topic_id}-group"
    wings.create_topic(
        new_topic_id, pa.schema([("key", pa.int64()), ("n", pa.int64())]), partition_key="key"
    )
    push(wings, new_topic_id, 0)
    seen: Counter[tuple[int, int]] = Counter()
    with wings.consumer(
        group, new_topic_id, group=True, session=6, poll_timeout=1, timeout=60
    ) as consumer:
        next(consumer)  # It is at work with it for longer than it may be.
        member = Member(wings, group, new_topic_id, seen)
        wait_for(lambda: member.slots == 256)
        push(wings, new_topic_id, 10)
        wait_for(lambda: len(seen) == KEYS * 20)
        assert len(wings.consumer_group(group).members) == 1
        own = threading.Thread(target=next, args=(consumer,))
        own.start()
        wait_for(lambda: member.slots == 128)
        push(wings, new_topic_id, 20)
        own.join(60)
        assert not own.is_alive(), "it reads again"
    member.stop()


@async_in_soak
def test_of_two_processes_of_one_instance_the_later_one_goes_on(
    wings: Client, new_topic_id: str
) -> None:
    group = f"{new_topic_id}-group"
    wings.create_topic(new_topic_id, {"n": "int64"})
    wings.push(new_topic_id, {"n": [1]})
    with wings.consumer(group, new_topic_id, group=True, instance="one", session=6) as first:
        next(first)
        second = wings.consumer(
            group, new_topic_id, group=True, instance="one", session=6, auto_commit=False
        )
        next(second)
        with pytest.raises(FencedMember, match="'one' of the group is another member by now"):
            next(first)
        (member,) = wings.consumer_group(group).members
        second.commit()  # It was not fenced in its turn.
        second.close()
        assert member.instance == "one"
        assert wings.consumer_group(group).lag == 0


def test_a_member_that_is_cut_off_hands_out_nothing_that_another_reads(
    server: RunningServer, new_topic_id: str
) -> None:
    group, seen = f"{new_topic_id}-group", Counter[tuple[int, int]]()
    with (
        wings_client.connect(server.flight) as client,
        breakable(server.flight) as proxy,
        wings_client.connect(proxy.endpoint, retry=EAGER) as far,
    ):
        client.create_topic(
            new_topic_id, pa.schema([("key", pa.int64()), ("n", pa.int64())]), partition_key="key"
        )
        cut_off = Member(far, group, new_topic_id, seen)
        push(client, new_topic_id, 0)
        wait_for(lambda: len(seen) == KEYS * 10)
        proxy.stop_listening()
        member = Member(client, group, new_topic_id, seen)
        push(client, new_topic_id, 10)
        wait_for(lambda: member.slots == 256)
        wait_for(lambda: {n for _, n in seen} >= set(range(10, 20)))
        wait_for(lambda: len([n for _, n in seen if n >= 10]) == KEYS * 10)
        proxy.listen_again()
        wait_for(lambda: member.slots == cut_off.slots == 128)
        push(client, new_topic_id, 20)
        wait_for(lambda: len(seen) == KEYS * 30)
        member.stop()
        cut_off.stop()
        assert {count for (_, n), count in seen.items() if n >= 10} == {1}
        assert client.consumer_group(group).lag == 0


def test_a_member_that_was_cut_off_leaves_its_instance_to_the_one_that_took_it(
    server: RunningServer, new_topic_id: str
) -> None:
    with (
        wings_client.connect(server.flight) as client,
        breakable(server.flight) as proxy,
        wings_client.connect(proxy.endpoint, retry=EAGER) as far,
    ):
        client.create_topic(new_topic_id, {"n": "int64"})
        client.push(new_topic_id, {"n": [1]})
        opened = partial(
            Client.consumer,
            name=f"{new_topic_id}-group",
            topic=new_topic_id,
            group=True,
            instance="one",
            session=6,
            auto_commit=False,
        )
        with opened(far) as cut_off, opened(client) as another:
            next(cut_off)
            proxy.stop_listening()
            next(another)
            time.sleep(7)  # Until the session of the one that is cut off has ended.
            proxy.listen_again()
            with pytest.raises(FencedMember, match="'one' of the group is another member"):
                next(cut_off)
            another.commit()


@async_in_soak
def test_a_callback_that_raises_ends_the_member_in_order(wings: Client, new_topic_id: str) -> None:
    group = f"{new_topic_id}-group"
    wings.create_topic(new_topic_id, {"n": "int64"})
    wings.push(new_topic_id, {"n": [1]})

    def fail(_: object) -> None:
        raise ZeroDivisionError

    consumer = wings.consumer(group, new_topic_id, group=True, on_assigned=fail)
    with pytest.raises(ZeroDivisionError):
        next(consumer)
    consumer.close()
    with wings.consumer(group, new_topic_id, group=True, timeout=30) as another:
        assert next(another).batch.num_rows == 1  # Long before a session of 45 s is over.


@async_in_soak
def test_a_member_with_nothing_in_hand_that_asks_for_nothing_leaves(
    wings: Client, new_topic_id: str
) -> None:
    group = f"{new_topic_id}-group"
    wings.create_topic(new_topic_id, {"n": "int64"})
    with wings.consumer(
        group, new_topic_id, group=True, session=6, poll_timeout=1, timeout=0.2
    ) as consumer:
        assert list(consumer) == []
        wait_for(lambda: not any(each.members for each in wings.consumer_groups()))


@async_in_soak
def test_a_group_with_members_begins_another_topic_at_its_start_or_says_why_not(
    wings: Client, new_topic_id: str
) -> None:
    group = f"{new_topic_id}-group"
    for topic in (new_topic_id, f"{new_topic_id}-2"):
        wings.create_topic(topic, {"n": "int64"})
        wings.push(topic, {"n": [1]})
    with wings.consumer(group, new_topic_id, group=True, auto_commit=False) as consumer:
        next(consumer)
        with pytest.raises(FencedMember, match="begins at the earliest"):
            wings.consumer(group, f"{new_topic_id}-2", group=True, start="latest")
