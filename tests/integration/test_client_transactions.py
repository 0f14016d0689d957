"""Transactions: rows of several topics and a consumer's offsets, published at once, once."""

import asyncio
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.flight as flight
import pytest
from breakable_proxy import BreakableProxy
from fix_client import NewTopic, async_in_soak
from flight_calls import act
from forked_commands import FORKED
from forked_servers import ForkedServer, ForkedServers
from waiting import until

import wings_client
from wings_client import Client, Consumer, Topic, Transaction
from wings_core.errors import (
    FencedMember,
    GroupNotFound,
    InvalidArgument,
    PublishFenced,
    SchemaMismatch,
    Unavailable,
    WingsError,
)
from wings_server.testing import RunningServer

KEYED = ("key: int64", "n: int64")


@pytest.fixture
def target(wings: Client, new_topic_id: str) -> Topic:
    return wings.create_topic(f"{new_topic_id}-out", {"n": "int64"})


def rows_of(client: Client, topic: Topic) -> list[int]:
    return client.scan(topic).read_all()["n"].to_pylist()


def offsets_of(client: Client, name: str, topic: Topic) -> dict[object, int]:
    return {found.partition: found.offset for found in client.committed_offsets(name, topic)}


@async_in_soak
def test_rows_of_topics_and_offsets_become_visible_at_once(
    wings: Client, new_topic: NewTopic, target: Topic
) -> None:
    source = new_topic(*KEYED, partition_key="key")
    wings.push(source, {"key": [1, 2, 1], "n": [1, 2, 3]})
    transactions = wings.transactions("enrich")
    with wings.consumer("enrich", source, auto_commit=False) as consumer:
        with transactions.begin() as transaction:
            seen = 0
            while seen < 3:
                batch = next(consumer).batch
                seen += batch.num_rows
                transaction.push(target, {"n": batch["n"]})
            transaction.push(target, [{"n": 10}])
            transaction.push(source, {"key": [9], "n": [9]})
            transaction.commit(consumer)
            assert rows_of(wings, target) == []
            assert offsets_of(wings, "enrich", source) == {}
            assert transaction.is_open
        assert not transaction.is_open
    assert transaction.published is not None
    assert {each.topic for each in transaction.published.committed} == {source.name, target.name}
    assert sorted(rows_of(wings, target)) == [1, 2, 3, 10]
    assert offsets_of(wings, "enrich", source) == {1: 2, 2: 1}


def test_what_raises_in_the_block_leaves_nothing(
    wings: Client, new_topic: NewTopic, target: Topic
) -> None:
    source = new_topic()
    wings.push(source, {"n": [1]})
    transactions = wings.transactions("enrich")
    with wings.consumer("enrich", source, auto_commit=False) as consumer:

        def fail(row: object) -> None:
            with transactions.begin() as transaction:
                transaction.push(target, {"n": [1]})
                transaction.commit(consumer)
                transaction.producer(target).append(row)
                left.append(transaction)
                if row == {"n": 0}:
                    raise ZeroDivisionError

        left: list[Transaction] = []
        next(consumer)
        with pytest.raises(ZeroDivisionError):
            fail({"n": 0})
        with pytest.raises(SchemaMismatch):
            fail({"n": "no number"})
        for transaction in left:
            with pytest.raises(InvalidArgument, match="was ended"):
                transaction.push(target, {"n": [1]})
        with transactions.begin() as third:
            third.push(target, {"n": [3]})
            third.abort()
        assert (rows_of(wings, target), offsets_of(wings, "enrich", source)) == ([], {})
        with transactions.begin() as last:
            last.push(target, {"n": [4]})
    assert (rows_of(wings, target), offsets_of(wings, "enrich", source)) == ([4], {})


@pytest.mark.parametrize("group", [False, True])
def test_what_an_aborted_transaction_was_to_commit_is_dealt_with_before_more_comes(
    wings: Client, new_topic: NewTopic, target: Topic, group: bool
) -> None:
    source = new_topic()
    transactions = wings.transactions(f"{target.id}-writer")

    def work(consumer: Consumer, taken: Any, *, fails: bool = False) -> None:
        with transactions.begin() as transaction:
            transaction.push(target, taken.batch)
            if fails:
                raise ZeroDivisionError
            transaction.commit(consumer)

    wings.push(source, {"n": [1]})
    with wings.consumer(
        f"{source.id}-name", source, auto_commit=False, timeout=60, group=group
    ) as consumer:
        first = next(consumer)
        with pytest.raises(ZeroDivisionError):
            work(consumer, first, fails=True)  # Before the transactions know the consumer.
        wings.push(source, {"n": [2]})
        second = next(consumer)
        with pytest.raises(InvalidArgument, match="delivered to it as well"):
            work(consumer, second)
        with pytest.raises(InvalidArgument, match="was aborted"):
            next(consumer)
        consumer.rewind()
        numbers: list[int] = []
        while len(numbers) < 2:
            taken = next(consumer)
            work(consumer, taken)
            numbers += taken.batch["n"].to_pylist()
        assert numbers == [1, 2]

        wings.push(source, {"n": [3]})
        third = next(consumer)
        with pytest.raises(ZeroDivisionError):
            work(consumer, third, fails=True)
        with pytest.raises(InvalidArgument, match="was aborted"):
            next(consumer)
        work(consumer, third)  # Tried again, so nothing is left of it.
        wings.push(source, {"n": [4]})
        work(consumer, next(consumer))
    assert rows_of(wings, target) == [1, 2, 3, 4]


@async_in_soak
@pytest.mark.parametrize("then", ["rewind", "open another"])
def test_however_often_a_transaction_is_aborted_nothing_is_committed_without_effect(
    wings: Client, new_topic: NewTopic, target: Topic, then: str
) -> None:
    source = new_topic()
    transactions = wings.transactions(f"{target.id}-writer")
    opened = partial(wings.consumer, f"{source.id}-name", source, auto_commit=False, timeout=60)
    wings.push(source, {"n": [1]})
    consumer = opened()
    if then == "open another":  # The transactions know a consumer, which is not the one in use.
        with transactions.begin() as transaction:
            transaction.push(target, next(consumer).batch)
            transaction.commit(consumer)
        wings.push(source, {"n": [2]})
    for _ in range(2):
        if then == "rewind":
            consumer.rewind()
        else:
            consumer.close()
            consumer = opened()
        next(consumer)
        transactions.begin().abort()
    wings.push(source, {"n": [3]})

    def go_on() -> None:
        after = next(consumer)
        with transactions.begin() as transaction:
            transaction.push(target, after.batch)
            transaction.commit(consumer)

    with pytest.raises(InvalidArgument, match="aborted"):
        go_on()
    consumer.close()
    first = 2 if then == "open another" else 1
    assert offsets_of(wings, f"{source.id}-name", source) in ({None: first - 1}, {})


def test_a_task_that_is_cancelled_in_a_transaction_commits_nothing_without_effect(
    server: RunningServer, new_topic_id: str
) -> None:
    async def run() -> None:
        async with wings_client.connect_async(server.flight) as client:
            source = await client.create_topic(new_topic_id, {"n": "int64"})
            target = await client.create_topic(f"{new_topic_id}-out", {"n": "int64"})
            transactions = await client.transactions(f"{new_topic_id}-writer")
            await client.push(source, {"n": [1]})
            consumer = client.consumer(
                f"{new_topic_id}-name", source, auto_commit=False, timeout=60
            )
            async with consumer as reading:
                batch, *_ = await anext(reading)
                async with transactions.begin() as transaction:
                    await transaction.push(target, batch)
                    await transaction.commit(reading)
                await client.push(source, {"n": [2]})
                await anext(reading)

                async def linger() -> None:
                    async with transactions.begin():
                        await asyncio.sleep(60)

                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(linger(), 0.1)
                with pytest.raises(InvalidArgument, match="was aborted"):
                    await anext(reading)
                await reading.rewind()
                batch, *_ = await anext(reading)
                assert batch["n"].to_pylist() == [2]

    asyncio.run(run())


@async_in_soak
def test_a_producer_of_rows_makes_batches_of_them(wings: Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    with wings.transactions("rows").begin() as transaction:
        producer = transaction.producer(topic)
        row = {"n": 0}
        for number in range(12_000):
            row["n"] = number
            producer.append(row)
        producer.extend({"n": number} for number in range(12_000, 12_010))
    assert rows_of(wings, topic) == list(range(12_010))


def test_rows_of_a_topic_keep_their_order_whatever_their_options(
    wings: Client, new_topic: NewTopic
) -> None:
    topic = new_topic()
    with wings.transactions("order").begin() as transaction:
        transaction.push(topic, {"n": [1]})
        transaction.push(topic, {"n": [2]}, timestamp="2026-01-01T00:00:00Z")
        transaction.push(topic, {"n": [3]})
        transaction.push(topic, {"n": [4]})
    assert rows_of(wings, topic) == [1, 2, 3, 4]


@async_in_soak
def test_a_writer_that_begins_anew_fences_its_earlier_life(
    wings: Client, server: RunningServer, new_topic: NewTopic
) -> None:
    topic = new_topic()
    wings.publish("task", 7_000_000_000_000, [])  # Without transactions, by a time for instance.
    first = wings.transactions("task")
    late = first.begin()
    late.push(topic, {"n": [1]})
    with wings_client.connect(server.flight) as other:
        second = other.transactions("task")
        assert second.epoch == first.epoch + 1
        with second.begin() as transaction:
            transaction.push(topic, {"n": [2]})
        with pytest.raises(PublishFenced, match="begun epoch"):
            late.end()
        late.abort()
        with second.begin() as transaction:
            transaction.push(topic, {"n": [3]})
    assert rows_of(wings, topic) == [2, 3]
    left = wings.abort("task", [], prefix="transaction-")
    assert left.deleted == (), "what was refused is deleted"


@async_in_soak
def test_a_transaction_that_is_open_for_too_long_is_aborted(
    wings: Client, new_topic: NewTopic
) -> None:
    topic = new_topic()
    transactions = wings.transactions("slow")
    transaction = transactions.begin(timeout=0.2)
    transaction.push(topic, {"n": [1]})
    threading.Event().wait(0.3)
    with pytest.raises(Unavailable, match=r"longer than 0\.2 s"):
        transaction.end()
    with transactions.begin() as another:
        another.push(topic, {"n": [2]})
    assert rows_of(wings, topic) == [2]


def test_a_consumer_that_could_lose_or_repeat_is_refused(
    wings: Client, new_topic: NewTopic
) -> None:
    source = new_topic()
    with (
        wings.consumer("early", source, auto_commit=False) as early,
        wings.consumer("itself", source) as itself,
    ):
        transactions = wings.transactions("task")
        with wings.consumer("late", source, auto_commit=False) as late:
            transaction = transactions.begin()
            for consumer, said in ((early, "before the transactions"), (itself, "auto_commit")):
                with pytest.raises(InvalidArgument, match=said):
                    transaction.commit(consumer)
            transaction.commit(late)
            with (
                wings.consumer("other", source, auto_commit=False) as other,
                pytest.raises(InvalidArgument, match="one consumer"),
            ):
                transaction.commit(other)
            with pytest.raises(InvalidArgument, match="a transaction open"):
                transactions.begin()
            transaction.abort()


@async_in_soak
def test_an_answer_that_is_lost_is_asked_for_again(
    shaky: Client, wings: Client, proxy: BreakableProxy, new_topic: NewTopic
) -> None:
    topic = new_topic()
    published: list[int] = []
    transactions = shaky.transactions("shaky")
    for number in range(5):
        with transactions.begin() as transaction:
            transaction.push(topic, {"n": [number]})
            cutting = threading.Timer(0.002 * number, proxy.cut)
            cutting.start()
            try:
                transaction.end()
                published.append(number)
            except Unavailable:  # It was cut while the rows were sent.
                transaction.abort()
            cutting.join()
    assert rows_of(wings, topic) == published


PROCESSOR = """
import sys

import wings_client

endpoint, count = sys.argv[1], int(sys.argv[2])
retry = wings_client.Retry(attempts=100, delay=0.01, delay_max=0.1, reconnect_seconds=60)
with wings_client.connect(endpoint, retry=retry) as client:
    transactions = client.transactions("copy")
    print("begun", flush=True)
    with client.consumer("copy", "in", auto_commit=False) as consumer:
        for batch, *_ in consumer:
            with transactions.begin() as transaction:
                for number in batch["n"].to_pylist():
                    transaction.push("out", [{"n": number}])
                    transaction.push("log", [{"n": -number}])
                transaction.commit(consumer)
            if consumer.positions.get(None) == count:
                break
"""
"""Copies a topic to two others, once; is killed as it does."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("count", "kills"), [(30, 2), pytest.param(1_000, 30, marks=pytest.mark.soak)]
)
def test_whatever_is_killed_each_row_is_there_once(tmp_path: Path, count: int, kills: int) -> None:
    out: list[int] = []
    with ForkedServers() as servers, ExitStack() as running:

        def start() -> ForkedServer:
            running.close()
            server = running.enter_context(servers.start(tmp_path))
            server.wait_until_ready()
            return server

        server = start()
        with wings_client.connect(server.flight) as client:
            for topic in ("in", "out", "log"):
                client.create_topic(topic, {"n": "int64"})
            for first in range(0, count, 5):
                client.push("in", {"n": list(range(first, first + 5))})
        for number in range(kills + 1):
            processor = subprocess.Popen(
                [sys.executable, "-c", FORKED + PROCESSOR, server.flight, str(count)],
                stdout=subprocess.PIPE,
            )
            assert processor.stdout is not None
            assert processor.stdout.readline() == b"begun\n"
            if number == kills:
                assert processor.wait(60) == 0
            else:
                threading.Event().wait(0.02 * (number % 10))
                if number % 2:
                    server.kill()
                processor.kill()
            processor.wait()
            processor.stdout.close()
            if number % 2:
                server = start()
            with wings_client.connect(server.flight) as client:
                out = client.scan("out").read_all()["n"].to_pylist()
                log = client.scan("log").read_all()["n"].to_pylist()
                offsets = client.committed_offsets("copy", "in")
                assert Counter(out) == Counter(-value for value in log)
                assert out == list(range(offsets[0].offset if offsets else 0))
    assert len(out) == count


@async_in_soak
def test_a_member_of_a_group_commits_only_what_is_its_own(
    wings: Client, server: RunningServer, new_topic: NewTopic, target: Topic
) -> None:
    source = new_topic(*KEYED, partition_key="key")
    wings.push(source, {"key": [1, 2, 3], "n": [1, 2, 3]})
    transactions = wings.transactions("shared")

    def publish(consumer: Consumer, rows: int, between: Callable[[], object] = int) -> None:
        with transactions.begin() as transaction:
            seen = 0
            while seen < rows:
                batch = next(consumer).batch
                seen += batch.num_rows
                transaction.push(target, {"n": batch["n"]})
            transaction.commit(consumer)
            between()

    options: dict[str, Any] = {"group": True, "session": 6, "auto_commit": False}
    with wings.consumer("shared", source, member="first", **options) as consumer:
        publish(consumer, 3)
        assert offsets_of(wings, "shared", source) == {1: 1, 2: 1, 3: 1}
        wings.push(source, {"key": [1, 2], "n": [4, 5]})
        with flight.FlightClient(server.flight) as other, pytest.raises(FencedMember):
            publish(
                consumer,
                2,
                lambda: act(
                    other, "group-heartbeat", consumer="shared", member="first", member_epoch=-1
                ),
            )
    assert sorted(rows_of(wings, target)) == [1, 2, 3]
    with wings.consumer("shared", source, **options) as consumer:
        publish(consumer, 2)
    assert sorted(rows_of(wings, target)) == [1, 2, 3, 4, 5]
    assert offsets_of(wings, "shared", source) == {1: 2, 2: 2, 3: 1}


def leave(server: RunningServer, group: str, member: str) -> None:
    """End the session of a member behind its back."""
    with flight.FlightClient(server.flight) as other:
        act(other, "group-heartbeat", consumer=group, member=member, member_epoch=-1)


@async_in_soak
@pytest.mark.parametrize("committed_first", [False, True])
def test_a_member_that_joined_anew_publishes_nothing_of_its_earlier_session(
    wings: Client,
    server: RunningServer,
    new_topic: NewTopic,
    target: Topic,
    committed_first: bool,
) -> None:
    source = new_topic(*KEYED, partition_key="key")
    wings.push(source, {"key": [1, 2, 3], "n": [1, 2, 3]})
    group = f"anew-{source.uuid}"
    transactions = wings.transactions(group)

    def rejoined() -> bool:
        with suppress(GroupNotFound):
            (found,) = wings.consumer_group(group).members or [None]
            return found is not None and found.member_epoch > 1 and bool(found.assignment)
        return False

    def copy(consumer: Consumer, between: Callable[[], object] = int) -> None:
        with transactions.begin() as transaction:
            rows = 0
            while rows < 3:
                batch = next(consumer).batch
                rows += batch.num_rows
                transaction.push(target, {"n": batch["n"]})
            if committed_first:
                transaction.commit(consumer)
            between()
            transaction.commit(consumer)

    def rejoin() -> None:
        leave(server, group, "only")
        until(rejoined)

    with wings.consumer(
        group, source, group=True, member="only", session=6, auto_commit=False
    ) as consumer:
        with pytest.raises(FencedMember, match="reads them again"):
            copy(consumer, rejoin)
        assert rows_of(wings, target) == []
        copy(consumer)  # It was delivered again.
    assert sorted(rows_of(wings, target)) == [1, 2, 3]
    assert offsets_of(wings, group, source) == {1: 1, 2: 1, 3: 1}


@async_in_soak
def test_a_member_keeps_partitions_until_its_transaction_has_committed_them(
    wings: Client, new_topic: NewTopic, target: Topic
) -> None:
    source = new_topic(*KEYED, partition_key="key")
    keys = list(range(20))
    wings.push(source, {"key": keys, "n": [0] * 20})
    group = f"keeps-{source.uuid}"

    def member(timeout: float) -> Consumer:
        return wings.consumer(
            group, source, group=True, session=6, auto_commit=False, timeout=timeout
        )

    def copy(consumer: Consumer, transaction: Transaction, rows: int) -> None:
        while rows > 0:
            batch = next(consumer).batch
            rows -= batch.num_rows
            rows_read = zip(batch["key"].to_pylist(), batch["n"].to_pylist(), strict=True)
            transaction.push(target, {"n": [key * 10 + n for key, n in rows_read]})

    def is_told() -> bool:
        members = wings.consumer_group(group).members
        held = [sum(len(each.slots) for each in found.assignment) for found in members]
        return len(held) == 2 and max(held) == 128

    with member(2) as first:
        transactions = wings.transactions(f"{group}-first")
        with transactions.begin() as transaction:
            copy(first, transaction, 20)
            with member(30) as second:
                others = wings.transactions(f"{group}-second")
                failed: list[BaseException] = []

                def read() -> None:
                    try:
                        with others.begin() as other:
                            copy(second, other, 1)
                            other.commit(second)
                    except BaseException as error:  # noqa: BLE001 - told below.
                        failed.append(error)

                reading = threading.Thread(target=read)
                reading.start()
                until(is_told)
                wings.push(source, {"key": keys, "n": [1] * 20})
                copy(first, transaction, 1)
                transaction.commit(first)
                transaction.end()
                wings.push(source, {"key": keys, "n": [2] * 20})
                next(first)  # It gives partitions up as it asks for more.
                reading.join(60)
                assert not reading.is_alive()
                assert failed == []
    found = rows_of(wings, target)
    assert len(found) == len(set(found)) > 20


@async_in_soak
def test_a_transaction_of_which_a_call_failed_publishes_nothing(
    wings: Client, new_topic: NewTopic
) -> None:
    topic = new_topic()
    transactions = wings.transactions("failing")

    def swallow(fail: Callable[[Transaction], object]) -> None:
        with transactions.begin() as transaction:
            transaction.push(topic, {"n": [1]})
            with suppress(WingsError):
                fail(transaction)

    def flush(transaction: Transaction) -> None:
        producer = transaction.producer(topic)
        producer.extend([{"n": 2}, {"n": "no number"}])
        producer.flush()

    def push_another_column(transaction: Transaction) -> None:
        transaction.push(topic, {"m": [1]})

    def push_nowhere(transaction: Transaction) -> None:
        transaction.push("nowhere", {"n": [1]})

    for fail in (push_another_column, push_nowhere, flush):
        with pytest.raises(InvalidArgument, match="only be aborted"):
            swallow(fail)
    overdue = transactions.begin(timeout=0.01)
    threading.Event().wait(0.02)
    with transactions.begin() as transaction:  # The one before is over, whoever holds it.
        producer = transaction.producer(topic)
        producer.append({"n": 3})
    for call in (partial(producer.append, {"n": 4}), overdue.end):
        with pytest.raises(InvalidArgument, match="was ended"):
            call()
    with pytest.raises(InvalidArgument, match="positive"):
        transactions.begin(timeout=0)
    assert rows_of(wings, topic) == [3]
