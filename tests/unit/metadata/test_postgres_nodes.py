"""Several processes on one PostgreSQL: no gaps, no deadlocks, no wake-up lost."""

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from fix_calls import Calls
from fix_metadata import DAY, NOON, SCHEMA, SECOND, A, B, Clock, accepted, batch_of, offsets_of
from fix_postgres import PostgresServer, empty_schema, new_schema
from forked_commands import FORKED

from wings_core.errors import (
    AlreadyExists,
    Internal,
    InvalidArgument,
    ResourceExhausted,
    TopicNotFound,
)
from wings_core.metadata import checks
from wings_core.metadata.postgres import PostgresMetadata, database
from wings_core.metadata.postgres.connections import Connection
from wings_core.metadata.store import groups
from wings_core.metadata.waiting import Wake
from wings_core.model import (
    AbortResult,
    Accepted,
    Node,
    Position,
    ShardClaim,
    ShardProgress,
    ShareConfig,
    ShareGroup,
    StageEntry,
    Topic,
)
from wings_core.names import DEFAULT_NAMESPACE
from wings_core.partitions import UNPARTITIONED, Partition
from wings_core.times import Deadline, now_us

NAME = DEFAULT_NAMESPACE.topic("orders")
OTHER = DEFAULT_NAMESPACE.topic("other")
NODES = 3
LONG = 30.0

NODE = f"""{FORKED}
import sys
sys.path[:] = {sys.path!r}
from fix_metadata import batch_of, accepted
from wings_core.metadata.postgres import PostgresMetadata
from wings_core.names import TopicName
from wings_core.partitions import Partition

url, schema, topic, node, commits = sys.argv[1:]
with PostgresMetadata(url, schema=schema) as metadata:
    topic = metadata.admin.get_topic(TopicName.parse(topic))
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(int(commits)):
        # The shared partitions in an order of the node's own, and a new one that others make too.
        keys = ["a", "b", "c", f"new-{{number}}"]
        keys = keys[int(node):] + keys[:int(node)]
        rows = {{Partition(f'"{{key}}"'): 1 for key in keys}}
        batch = batch_of(topic, rows, sequence=(f"p{{node}}", number), folio=f"folio-{{node}}")
        assert len(accepted(metadata.registry.commit([batch])[0])) == 4
"""


@pytest.fixture
def schema(postgres: PostgresServer) -> Generator[str]:
    with empty_schema(postgres, NOON) as lent:
        yield lent


def test_metadata_is_served_to_nodes_or_belongs_to_one_directory(
    postgres: PostgresServer,
) -> None:
    served, embedded, directory = new_schema(), new_schema(), uuid4()
    ids = set[str]()
    for _ in range(2):  # Services may share it.
        with PostgresMetadata(postgres.url, schema=served) as metadata:
            ids.add(metadata.claim_for_service())
            with pytest.raises(InvalidArgument, match="served to nodes"):
                metadata.claim(directory, None)
    assert len(ids) == 1
    with PostgresMetadata(postgres.url, schema=embedded) as metadata:
        metadata.claim(directory, None)
        with pytest.raises(InvalidArgument, match=f"embedded server .* {directory}"):
            metadata.claim_for_service()


@pytest.mark.parametrize("commits", [8, pytest.param(60, marks=pytest.mark.soak)])
def test_processes_that_commit_to_the_same_partitions_leave_no_gaps_and_wake_everybody(
    postgres: PostgresServer, schema: str, commits: int
) -> None:
    command = [sys.executable, "-c", NODE, postgres.url, schema, str(NAME)]
    with (
        PostgresMetadata(postgres.url, schema=schema) as metadata,
        contextlib.ExitStack() as nodes,
        ThreadPoolExecutor(3) as readers,
    ):
        topic = metadata.admin.create_topic(NAME, SCHEMA, "key")
        processes = [
            nodes.enter_context(
                subprocess.Popen(
                    [*command, str(node), str(commits)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for node in range(NODES)
        ]
        try:
            for process in processes:
                assert process.stdout is not None
                assert process.stdout.readline() == "ready\n"
            reads = [
                readers.submit(follow, metadata, topic, Partition(f'"{key}"'), NODES * commits)
                for key in "abc"
            ]
            for process in processes:
                assert process.stdin is not None
                process.stdin.write("go\n")
                process.stdin.flush()
            for read in reads:
                assert read.result(2 * LONG) == [(at, at) for at in range(NODES * commits)]
            assert [process.wait(LONG) for process in processes] == [0] * NODES
        finally:
            for process in processes:
                process.kill()
        states = metadata.registry.partition_states(topic.uuid)
        assert len(states) == 3 + commits
        for state in states[3:]:
            assert state.next_offset == NODES
            assert offsets_of(metadata.registry, topic, state.partition) == [(0, 0), (1, 1), (2, 2)]


def follow(
    metadata: PostgresMetadata, topic: Topic, partition: Partition, end: int
) -> list[tuple[int, int]]:
    """Read a partition to an end as the contract says: look, and wait where there is nothing."""
    wake = Wake()
    offset = 0
    while offset < end:
        wake.clear()
        found = metadata.registry.locate(topic.uuid, partition, offset, 1_000)
        offset = found.log_end_offset
        if not found.locations:
            position = Position(topic.uuid, partition, offset)
            metadata.registry.wait([position], Deadline.after(LONG), wake)
            assert wake.is_set(), "a wake-up was lost"
    return offsets_of(metadata.registry, topic, partition)


def test_nodes_that_start_at_once_on_nothing_migrate_it_once(postgres: PostgresServer) -> None:
    schema = new_schema()

    def start(_: int) -> int:
        with PostgresMetadata(postgres.url, schema=schema) as metadata:
            return len(metadata.admin.list_namespaces())

    with ThreadPoolExecutor(6) as threads:
        assert list(threads.map(start, range(6))) == [1] * 6


def test_topics_created_and_deleted_by_several_nodes_under_their_commits(
    postgres: PostgresServer, schema: str
) -> None:
    with (
        PostgresMetadata(postgres.url, schema=schema) as one,
        PostgresMetadata(postgres.url, schema=schema) as other,
        ThreadPoolExecutor(4) as threads,
    ):
        stop = threading.Event()

        def commit(node: PostgresMetadata) -> int:
            accepted_total = 0
            while not stop.is_set():
                with contextlib.suppress(TopicNotFound):
                    topic = node.admin.get_topic(NAME)
                    results = node.registry.commit([batch_of(topic, {B: 1, A: 1}, folio="f")])
                    accepted_total += sum(isinstance(result, Accepted) for result in results)
            return accepted_total

        commits = [threads.submit(commit, node) for node in (one, other)]
        try:
            for number in range(20):
                creator, deleter = (one, other) if number % 2 else (other, one)
                topic = creator.admin.create_topic(NAME, SCHEMA, "key")
                with pytest.raises(AlreadyExists):
                    deleter.admin.create_topic(NAME, SCHEMA, "key")
                while not deleter.registry.partition_states(topic.uuid):
                    pass
                deleter.admin.delete_topic(NAME)
                creator.registry.purge(1_000)
        finally:
            stop.set()
        assert sum(commit.result(LONG) for commit in commits) >= 20
        while one.registry.purge(1_000):
            pass
        assert one.registry.live_folios() == set()


def test_one_producer_that_begins_on_two_nodes_at_once_is_committed_once(
    postgres: PostgresServer, schema: str
) -> None:
    with (
        PostgresMetadata(postgres.url, schema=schema) as one,
        PostgresMetadata(postgres.url, schema=schema) as other,
        ThreadPoolExecutor(2) as threads,
    ):
        topic = one.admin.create_topic(NAME, SCHEMA, "key")
        for number in range(20):
            batch = batch_of(topic, {A: 1}, sequence=(f"p{number}", 0))
            both = [threads.submit(node.registry.commit, [batch]) for node in (one, other)]
            ranges = [accepted(each.result(LONG)[0]) for each in both]
            assert ranges[0] == ranges[1]
            assert ranges[0][0].start_offset == number


ClockOff = Callable[[int], None]


@pytest.fixture
def clock_off(monkeypatch: pytest.MonkeyPatch) -> ClockOff:
    """Has the clock of what is opened later be off by some microseconds."""
    return lambda by: monkeypatch.setattr(database, "now_us", lambda: now_us() + by)


@pytest.mark.parametrize("minutes", [-10, 10])
def test_leases_outlast_a_service_whose_clock_is_off(
    postgres: PostgresServer, schema: str, minutes: int, clock_off: ClockOff
) -> None:
    one, other = Node("one", "a:1"), Node("other", "b:1")
    with PostgresMetadata(postgres.url, schema=schema) as right:
        clock_off(minutes * 60_000_000)
        with PostgresMetadata(postgres.url, schema=schema) as wrong:
            right.nodes.renew(one, 60)
            assert wrong.nodes.renew(other, 60) == [one, other]
            assert right.nodes.renew(one, 60) == wrong.nodes.live() == [one, other]
            assert right.maintenance.acquire_lease("work", "one", 60) is not None
            assert wrong.maintenance.acquire_lease("work", "other", 60) is None
            right.maintenance.release_lease("work", "one")
            assert wrong.maintenance.acquire_lease("work", "other", 60) is not None
            assert right.maintenance.acquire_lease("work", "one", 60) is None


@pytest.mark.parametrize("minutes", [-10, 10])
def test_owners_of_shards_outlast_a_service_whose_clock_is_off(
    postgres: PostgresServer, schema: str, minutes: int, clock_off: ClockOff
) -> None:
    def owner(metadata: PostgresMetadata, source: str, stale_seconds: float) -> str:
        claims = [ShardClaim("file", "one")]
        (shard,) = metadata.shards.acquire(source, "other", claims, stale_seconds)
        return shard.token

    with PostgresMetadata(postgres.url, schema=schema) as right:
        clock_off(minutes * 60_000_000)
        with PostgresMetadata(postgres.url, schema=schema) as wrong:
            for source, heard_by, judged_by in (("a", right, wrong), ("b", wrong, right)):
                heard_by.shards.open(source, "one", ["file"])
                assert owner(judged_by, source, 120) == "one"
                moved = ShardProgress(source, "file", "one", 0, 1)
                heard_by.stages.publish(source, 0, [], [moved])
                assert owner(judged_by, source, 120) == "one"
                assert owner(judged_by, source, 0) == "other"
                assert not heard_by.shards.prune(source, 120, None, 60).debounced
                assert judged_by.shards.prune(source, 120, None, 60).debounced
                assert not judged_by.shards.prune(source, 120, None, 0).debounced


def test_nothing_is_out_of_date_to_a_service_whose_clock_is_days_ahead(
    postgres: PostgresServer, schema: str, clock_off: ClockOff
) -> None:
    with PostgresMetadata(postgres.url, schema=schema) as right:
        clock_off(30 * DAY)
        with PostgresMetadata(postgres.url, schema=schema) as ahead:
            gone = right.admin.create_topic(NAME, SCHEMA)
            right.admin.delete_topic(NAME)
            while right.registry.purge(1_000):
                pass
            assert right.maintenance.acquire_lease("work", "one", 60) == 1
            right.maintenance.release_lease("work", "one")
            assert right.registry.retire(["unused"]) == ["unused"]
            topic = right.admin.create_topic(OTHER, SCHEMA)
            stage = StageEntry("stage", "writing", first=True)
            right.registry.commit([batch_of(topic, {UNPARTITIONED: 1}, stage=stage)])
            while ahead.registry.purge(1_000):
                pass
            # A retried creation must not bring back a deleted topic.
            assert ahead.admin.create_topic(NAME, SCHEMA, uuid=gone.uuid) == gone
            assert right.admin.list_topics(DEFAULT_NAMESPACE) == [topic]
            # A new holder is told apart from those before it.
            assert right.maintenance.acquire_lease("work", "other", 60) == 2
            late = batch_of(topic, {UNPARTITIONED: 1}, folio="unused")
            with pytest.raises(Internal, match="too late"):
                right.registry.commit([late])
            assert ahead.stages.sweep(3_600, 10) == 0
            assert right.stages.of_topic(topic.uuid)[0].rows == 1


def test_a_purge_and_an_abort_take_stages_in_one_order(
    postgres: PostgresServer, schema: str, calls: Calls
) -> None:
    begun = 0
    aborts: list[Future[AbortResult]] = []

    def execute(_: Connection, query: Any, *__: Any, **___: Any) -> None:
        nonlocal begun
        begun += query == "BEGIN"
        if not aborts and "DELETE FROM staged_pages" in str(query):  # A stage is locked.
            aborts.append(threads.submit(other.stages.abort, "w", ["a", "z"]))
            wait_for_a_waiter(postgres)

    with (
        PostgresMetadata(postgres.url, schema=schema) as one,
        PostgresMetadata(postgres.url, schema=schema) as other,
        ThreadPoolExecutor(1) as threads,
    ):
        # In the order of their topics' deletions, which is not that of their names.
        for stage in ("z", "a"):
            topic = one.admin.create_topic(DEFAULT_NAMESPACE.topic(stage), SCHEMA)
            entry = StageEntry(stage, "w", first=True)
            one.registry.commit([batch_of(topic, {UNPARTITIONED: 1}, stage=entry)])
            one.admin.delete_topic(topic.name)
        calls.before(Connection, "execute", execute)
        one.registry.purge(100)
        assert aborts[0].result(LONG).stages == ("a", "z")
        assert begun == 2, "neither was undone and tried again"
        while one.registry.purge(100):
            pass
        assert one.registry.live_folios() == set()


def wait_for_a_waiter(server: PostgresServer) -> None:
    """Wait until a transaction waits for another's row."""
    until = time.monotonic() + LONG
    with psycopg.connect(server.url, autocommit=True) as connection:
        while not connection.execute(
            "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        ).fetchall():
            assert time.monotonic() < until


def test_nodes_that_create_groups_at_once_do_not_pass_the_limit_of_a_topic(
    postgres: PostgresServer, schema: str, monkeypatch: pytest.MonkeyPatch, calls: Calls
) -> None:
    monkeypatch.setattr(checks, "GROUPS_PER_TOPIC_MAX", 1)
    both = threading.Barrier(2)

    def meet(*_: object) -> None:
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(1.0)  # Two that have counted at the same time are seen to.

    calls.after(groups, "check_group_room", meet)

    def create(metadata: PostgresMetadata, name: str) -> bool:
        try:
            metadata.groups.create(ShareGroup(name, str(uuid4()), topic, ShareConfig()))
        except ResourceExhausted:
            return False
        return True

    with (
        PostgresMetadata(postgres.url, schema=schema) as one,
        PostgresMetadata(postgres.url, schema=schema) as other,
        ThreadPoolExecutor(2) as threads,
    ):
        topic = one.admin.create_topic(NAME, SCHEMA)
        assert sorted(threads.map(create, (one, other), "ab")) == [False, True]
        assert len(one.groups.of_topic(topic)) == 1


def test_a_lease_renewed_while_another_process_is_refused_lasts(postgres: PostgresServer) -> None:
    clock, renewals = Clock(), list[int]()

    def late() -> int:
        """Return the time, which is over once it is used."""
        read = clock.time
        if renewals:
            renewals.pop()
            clock.time += 8 * SECOND
            assert owner.maintenance.acquire_lease("p", "owner", 10) is not None
        return read

    with (
        empty_schema(postgres, NOON) as schema,
        PostgresMetadata(postgres.url, schema=schema, clock=clock) as owner,
    ):
        assert owner.maintenance.acquire_lease("p", "owner", 10) is not None
        with PostgresMetadata(postgres.url, schema=schema, clock=late) as other:
            renewals.append(1)
            assert other.maintenance.acquire_lease("p", "other", 10) is None
            assert not renewals
            clock.time += 5 * SECOND
            assert other.maintenance.acquire_lease("p", "other", 10) is None
