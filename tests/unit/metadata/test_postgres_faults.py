"""PostgreSQL killed, cut off and hanging: what was acknowledged is there, once."""

import contextlib
import logging
import os
import queue
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import cast

import psycopg
import pytest
from fix_calls import Calls
from fix_metadata import NOON, SCHEMA, A, B, accepted, batch_of, offsets_of
from fix_postgres import PASSWORD, PostgresServer, empty_schema, new_schema
from fix_threads import Threads
from postgres_proxy import CommitProxy, Cut, through
from waiting import until

from wings_core.errors import Internal, InvalidArgument, TopicNotFound, Unavailable
from wings_core.metadata.deadlines import HANGING_SECONDS_MAX, calls_until
from wings_core.metadata.postgres import (
    PostgresBounds,
    PostgresMetadata,
    connections,
    database,
    listener,
)
from wings_core.metadata.postgres.listener import encode_notification
from wings_core.metadata.store.database import Notification
from wings_core.metadata.waiting import Wake
from wings_core.model import FlushId, Position, Topic
from wings_core.names import DEFAULT_NAMESPACE
from wings_core.partitions import UNPARTITIONED, Partition
from wings_core.times import Deadline

NAME = DEFAULT_NAMESPACE.topic("orders")
LONG = 30.0


@pytest.fixture
def schema(postgres: PostgresServer) -> Generator[str]:
    with empty_schema(postgres, NOON) as lent:
        # Its tables are there: a connection that made them sends COMMIT as a prepared statement,
        # without the word by which the proxy knows it.
        PostgresMetadata(postgres.url, schema=lent).close()
        yield lent


@pytest.fixture
def proxy(postgres: PostgresServer) -> Generator[CommitProxy]:
    made = CommitProxy(postgres.port)
    try:
        yield made
    finally:
        made.close()


def outcomes(server: PostgresServer, schema: str) -> list[bool]:
    with psycopg.connect(server.url) as connection:
        connection.execute(f"SET search_path = {schema}".encode())
        rows = connection.execute("SELECT committed FROM outcomes ORDER BY decided_at").fetchall()
    return [committed for (committed,) in rows]


@pytest.mark.parametrize("cut", ["before", "after"])
def test_a_commit_whose_answer_is_lost_is_there_once(
    postgres: PostgresServer, schema: str, proxy: CommitProxy, cut: Cut
) -> None:
    with PostgresMetadata(through(proxy), schema=schema) as metadata:
        topic = metadata.admin.create_topic(NAME, SCHEMA, "key")
        metadata.registry.commit([batch_of(topic, {})])  # From here on a commit is one call.
        for number in range(3):
            proxy.arm(cut)
            (result,) = metadata.registry.commit([batch_of(topic, {A: 2, B: 1})])
            assert [got.start_offset for got in accepted(result)] == [2 * number, number]
        assert proxy.cuts == 3
        assert offsets_of(metadata.registry, topic, A) == [(0, 1), (2, 3), (4, 5)]
    assert outcomes(postgres, schema).count(False) == (3 if cut == "before" else 0)


@pytest.mark.parametrize("cut", ["before", "after"])
@pytest.mark.parametrize("place", [1, 2, 3])
def test_a_commit_of_several_calls_whose_answer_is_lost_is_there_once(
    postgres: PostgresServer, schema: str, proxy: CommitProxy, cut: Cut, place: int
) -> None:
    """The first call, the one within a transaction, and its COMMIT."""
    with (
        PostgresMetadata(postgres.url, schema=schema) as other,
        PostgresMetadata(through(proxy), schema=schema) as metadata,
    ):
        topic = metadata.admin.create_topic(NAME, SCHEMA, "key")
        for node in (metadata, other):
            node.registry.commit([batch_of(topic, {A: 1})])
        proxy.arm(cut, place)
        (result,) = metadata.registry.commit([batch_of(topic, {A: 2, B: 1})])
        assert [got.start_offset for got in accepted(result)] == [2, 0]
        assert proxy.cuts == 1
        assert offsets_of(metadata.registry, topic, A) == [(0, 0), (1, 1), (2, 3)]


def test_a_commit_that_comes_after_its_outcome_was_asked_for_has_no_effect(
    postgres: PostgresServer, schema: str, proxy: CommitProxy
) -> None:
    with PostgresMetadata(through(proxy), schema=schema) as metadata, ThreadPoolExecutor(1) as one:
        topic = metadata.admin.create_topic(NAME, SCHEMA, "key")
        proxy.arm("delayed")
        commit = one.submit(metadata.registry.commit, [batch_of(topic, {A: 2})])
        until = time.monotonic() + LONG
        while False not in outcomes(postgres, schema):
            assert time.monotonic() < until
        # It was told apart as not committed; only now does the server see the first COMMIT.
        proxy.release.set()
        (result,) = commit.result(LONG)
        assert [got.start_offset for got in accepted(result)] == [0]
        assert offsets_of(metadata.registry, topic, A) == [(0, 1)]


def test_an_outcome_that_cannot_be_found_out_is_told_as_such(
    schema: str, proxy: CommitProxy
) -> None:
    bounds = PostgresBounds(outcome=0.0)
    with PostgresMetadata(through(proxy), schema=schema, bounds=bounds) as metadata:
        topic = metadata.admin.create_topic(NAME, SCHEMA)
        proxy.close()  # To connections that come; those that are there go on.
        proxy.arm("after")
        with pytest.raises(Unavailable, match="not known whether") as caught:
            metadata.registry.commit([batch_of(topic, {UNPARTITIONED: 1})])
    assert caught.value.facts["in_doubt"] is True


LOOKS_SOON = PostgresBounds(listener_look=0.1)
"""A listener soon looks for commits that it was not told of."""


def test_waiters_are_told_of_a_commit_whose_outcome_was_not_found_out(
    schema: str, proxy: CommitProxy, calls: Calls
) -> None:
    with PostgresMetadata(through(proxy), schema=schema, bounds=LOOKS_SOON) as metadata:
        topic = metadata.admin.create_topic(NAME, SCHEMA)
        metadata.registry.commit([batch_of(topic, {})])
        wake = Wake()
        with metadata.registry.watch([Position(topic.uuid, UNPARTITIONED, 0)], wake.set):
            proxy.arm("after")
            in_doubt = Unavailable("it is not known whether this was committed", in_doubt=True)
            calls.fail(database.PostgresDatabase, "_took_effect", in_doubt)
            with pytest.raises(Unavailable, match="not known whether"):
                metadata.registry.commit([batch_of(topic, {UNPARTITIONED: 1})])
            assert wake.wait(LONG), "the listener looks for what nothing was told of"


def tell_nobody(*_: object) -> None:
    """Stand for waiters, of which there are none."""


def test_what_a_node_committed_that_told_nothing_of_it_wakes_the_others(
    postgres: PostgresServer, schema: str, calls: Calls
) -> None:
    calls.change(listener, "encode_notification", lambda *_: [])
    with PostgresMetadata(postgres.url, schema=schema, bounds=LOOKS_SOON) as here:
        topic = here.admin.create_topic(NAME, SCHEMA)
        wake = Wake()
        with PostgresMetadata(postgres.url, schema=schema) as there:
            for number in range(2):  # By a call, and by exchanges.
                with here.registry.watch([Position(topic.uuid, UNPARTITIONED, number)], wake.set):
                    flush_id = FlushId("w", number) if number else None
                    there.registry.commit([batch_of(topic, {UNPARTITIONED: 1})], flush_id)
                    assert wake.wait(LONG)
                wake.clear()
        # Nothing is looked for twice.
        again, looked = threading.Event(), threading.Event()
        with here.registry.watch([Position(topic.uuid, UNPARTITIONED, 2)], again.set):
            calls.after(listener.Listener, "_look", lambda *_: looked.set())
            assert looked.wait(LONG)
        assert not again.is_set()


@pytest.mark.parametrize("cut", ["before", "after"])
def test_a_first_start_whose_first_answer_is_lost_goes_on(proxy: CommitProxy, cut: Cut) -> None:
    proxy.arm(cut)
    bounds = PostgresBounds(outcome=LONG)
    with PostgresMetadata(through(proxy), schema=new_schema(), bounds=bounds) as metadata:
        assert proxy.cuts == 1
        assert metadata.admin.get_namespace(NAME.namespace)


@pytest.mark.parametrize("cut", ["before", "after"])
def test_topics_and_publishes_whose_answers_are_lost_are_there_once(
    schema: str, proxy: CommitProxy, cut: Cut
) -> None:
    with PostgresMetadata(through(proxy), schema=schema) as metadata:
        proxy.arm(cut)
        topic = metadata.admin.create_topic(NAME, SCHEMA)
        assert metadata.admin.get_topic(NAME) == topic
        proxy.arm(cut)
        assert not metadata.stages.publish("w", 0, []).replayed
        proxy.arm(cut)
        assert metadata.stages.abort("w", ["s"], 0).published
        proxy.arm(cut)
        assert metadata.admin.delete_topic(NAME) == topic
        with pytest.raises(TopicNotFound):
            metadata.admin.get_topic(NAME)
        assert proxy.cuts == 4


def test_waits_are_woken_by_a_commit_whose_answer_is_lost(schema: str, proxy: CommitProxy) -> None:
    with PostgresMetadata(through(proxy), schema=schema) as metadata:
        topic = metadata.admin.create_topic(NAME, SCHEMA)
        metadata.registry.commit([batch_of(topic, {})])
        wake = Wake()
        with metadata.registry.watch([Position(topic.uuid, UNPARTITIONED, 0)], wake.set):
            proxy.arm("after")
            metadata.registry.commit([batch_of(topic, {UNPARTITIONED: 1})])
            assert wake.wait(LONG)


@pytest.mark.timeout(120)
def test_a_server_killed_under_load_loses_and_doubles_nothing(
    earnest_postgres: PostgresServer,
) -> None:
    """Every commit returns, so the log has as many rows as were committed, in the order told."""
    server = earnest_postgres
    with PostgresMetadata(server.new_database(), retry_seconds=60) as metadata:
        topic = metadata.admin.create_topic(NAME, SCHEMA, "key")
        stop = threading.Event()
        done = threading.Semaphore(0)

        def push(stream: int) -> list[tuple[int, int]]:
            got: list[tuple[int, int]] = []
            while not stop.is_set():
                batch = batch_of(topic, {A: 2, B: 1}, stream=stream)
                ranges = accepted(metadata.registry.commit([batch])[0])
                got += [(each.start_offset, each.end_offset) for each in ranges[:1]]
                done.release()
            return got

        with ThreadPoolExecutor(4) as threads:
            pushes = [threads.submit(push, stream) for stream in range(4)]
            try:
                for _ in range(2):
                    for _ in range(20):
                        assert done.acquire(timeout=60)
                    server.kill()
                    server.start()
                for _ in range(20):
                    assert done.acquire(timeout=60)
            finally:
                stop.set()
            told = sorted(pages for push in pushes for pages in push.result(60))
        assert told == offsets_of(metadata.registry, topic, A)
        assert told == [(2 * number, 2 * number + 1) for number in range(len(told))]
        states = metadata.registry.partition_states(topic.uuid)
        assert [state.next_offset for state in states] == [2 * len(told), len(told)]


def test_a_server_that_is_not_there_is_unavailable_and_used_again_when_it_is(
    earnest_postgres: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    server = earnest_postgres
    url = server.new_database()
    with PostgresMetadata(url, retry_seconds=0.2) as metadata:
        topic = metadata.admin.create_topic(NAME, SCHEMA)
        server.kill()
        calls: list[Callable[[], object]] = [
            lambda: metadata.registry.commit([batch_of(topic, {UNPARTITIONED: 1})]),
            lambda: metadata.registry.locate(topic.uuid, UNPARTITIONED, 0, 1),
            lambda: metadata.admin.get_topic(NAME),
        ]
        for call in calls:
            with pytest.raises(Unavailable) as caught:
                call()
            assert PASSWORD not in str(caught.value)
        with pytest.raises(Unavailable):
            PostgresMetadata(url, retry_seconds=0.1)
        server.start()
        assert metadata.admin.get_topic(NAME) == topic
    assert PASSWORD not in caplog.text


def test_a_server_that_hangs_is_given_up_in_time(earnest_postgres: PostgresServer) -> None:
    server = earnest_postgres
    url = f"{server.new_database()}?connect_timeout=3"
    bounds = PostgresBounds(use=1.0, watchdog_look=0.1)
    with PostgresMetadata(url, retry_seconds=0.1, bounds=bounds) as metadata:
        topic = metadata.admin.create_topic(NAME, SCHEMA)
        with server.paused(), pytest.raises(Unavailable):
            metadata.registry.locate(topic.uuid, UNPARTITIONED, 0, 1)
        until(lambda: is_found(metadata, topic))


def is_found(metadata: PostgresMetadata, topic: Topic) -> bool:
    try:
        return metadata.admin.get_topic(topic.name) == topic
    except Unavailable:
        return False


def test_a_look_is_not_tried_again_after_its_deadline(earnest_postgres: PostgresServer) -> None:
    with PostgresMetadata(earnest_postgres.new_database()) as metadata:
        topic = metadata.admin.create_topic(NAME, SCHEMA)
        earnest_postgres.kill()
        began = time.monotonic()
        with calls_until(Deadline.after(0.5)), pytest.raises(Unavailable):
            metadata.registry.locate(topic.uuid, UNPARTITIONED, 0, 1)
        assert time.monotonic() < began + HANGING_SECONDS_MAX
        earnest_postgres.start()


def test_calls_do_not_wait_one_after_another_for_a_server_that_has_been_away_for_long(
    earnest_postgres: PostgresServer,
) -> None:
    server = earnest_postgres
    with PostgresMetadata(server.new_database(), retry_seconds=4) as metadata:
        topic = metadata.admin.create_topic(NAME, SCHEMA)
        batch = batch_of(topic, {UNPARTITIONED: 1})
        server.kill()
        with pytest.raises(Unavailable):
            metadata.registry.commit([batch])
        began = time.monotonic()
        for _ in range(5):
            with pytest.raises(Unavailable):
                metadata.registry.commit([batch])
        assert time.monotonic() < began + 4
        server.start()
        metadata.registry.commit([batch])
        # It is another outage, in which calls wait as in the first.
        server.kill()
        with ThreadPoolExecutor(1) as one:
            commit = one.submit(metadata.registry.commit, [batch])
            server.start()
            assert [got.start_offset for got in accepted(commit.result(LONG)[0])] == [1]


def test_no_call_waits_for_a_connection_to_a_server_that_does_not_answer(
    earnest_postgres: PostgresServer,
) -> None:
    server = earnest_postgres
    url = f"{server.new_database()}?connect_timeout=60"
    with PostgresMetadata(url, bounds=PostgresBounds(listener_look=1e6)) as metadata:
        topic = metadata.admin.create_topic(NAME, SCHEMA)
        with server.paused():
            began = time.monotonic()
            for _ in range(10):
                with calls_until(Deadline.after(0.1)), pytest.raises(Unavailable):
                    metadata.registry.locate(topic.uuid, UNPARTITIONED, 0, 1)
            metadata.close()
            assert time.monotonic() < began + 30


def test_calls_end_where_no_thread_starts_that_waits_for_the_server(
    earnest_postgres: PostgresServer, threads: Threads
) -> None:
    url = f"{earnest_postgres.new_database()}?connect_timeout=2"
    with PostgresMetadata(url, bounds=PostgresBounds(listener_look=1e6)) as metadata:
        topic = metadata.admin.create_topic(NAME, SCHEMA)
        threads.refuse("wings-postgres-return")
        with earnest_postgres.paused():
            for _ in range(2):
                with calls_until(Deadline.after(0.1)), pytest.raises(Unavailable):
                    metadata.registry.locate(topic.uuid, UNPARTITIONED, 0, 1)
        assert threads.refused.is_set()
        metadata.registry.locate(topic.uuid, UNPARTITIONED, 0, 1)


def test_that_the_server_is_away_is_known_before_a_connection_is_broken_off() -> None:
    """Whose call ends by that finds it, instead of a connect that takes its time."""
    known = list[bool]()
    in_use, server = socket.socketpair()
    with in_use, server:

        def note() -> None:
            known.append(not select.select([server], [], [], 0)[0])

        watchdog = connections.Watchdog(0.01, note)
        with watchdog.guarding(cast("connections.Connection", in_use), 0):
            assert server.recv(1) == b"", "it is broken off"
        watchdog.close()
    assert known == [True]


def test_open_connections_are_used_while_no_new_one_is_answered(
    earnest_postgres: PostgresServer,
) -> None:
    """As where the service is away that PostgreSQL asks who connects."""
    url = f"{earnest_postgres.new_database()}?connect_timeout=2"
    with PostgresMetadata(url) as metadata, ThreadPoolExecutor(4) as threads:
        topic = metadata.admin.create_topic(NAME, SCHEMA)
        ends = Deadline.after(5.0)

        def look() -> None:
            while not ends.passed:
                with calls_until(Deadline.after(LONG)):
                    metadata.registry.locate(topic.uuid, UNPARTITIONED, 0, 1)

        os.kill(earnest_postgres.pid, signal.SIGSTOP)  # Its sessions go on.
        try:
            for looks in [threads.submit(look) for _ in range(4)]:
                looks.result(2 * LONG)
            names = [thread.name for thread in threading.enumerate()]
            assert names.count("wings-postgres-return") == 1
        finally:
            os.kill(earnest_postgres.pid, signal.SIGCONT)


def test_retries_end_where_that_is_asked_for(earnest_postgres: PostgresServer) -> None:
    with (
        PostgresMetadata(earnest_postgres.new_database(), retry_seconds=600) as metadata,
        ThreadPoolExecutor(2) as threads,
    ):
        topic = metadata.admin.create_topic(NAME, SCHEMA)
        earnest_postgres.kill()
        calls = [
            threads.submit(metadata.registry.commit, [batch_of(topic, {UNPARTITIONED: 1})]),
            threads.submit(metadata.admin.get_topic, NAME),
        ]
        metadata.end_retries()
        for call in calls:
            assert isinstance(call.exception(LONG), Unavailable)
    earnest_postgres.start()


def test_what_other_nodes_commit_while_this_one_cannot_hear_wakes_it_once_it_can(
    postgres: PostgresServer,
    schema: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    # Until it looks, a listener has said nothing but LISTEN.
    bounds = PostgresBounds(listener_look=1e6)
    with (
        PostgresMetadata(postgres.url, schema=schema, bounds=bounds) as here,
        PostgresMetadata(postgres.url, schema=schema, bounds=bounds) as there,
    ):
        topic = here.admin.create_topic(NAME, SCHEMA)
        position = Position(topic.uuid, UNPARTITIONED, 0)
        wake = Wake()
        with here.registry.watch([position], wake.set):
            cut_listeners(postgres, schema)
            there.registry.commit([batch_of(topic, {UNPARTITIONED: 1})])
            assert wake.wait(LONG)
    assert "not heard for now" in caplog.text


def test_a_fault_that_nobody_foresaw_leaves_no_listener_deaf(
    postgres: PostgresServer, schema: str, caplog: pytest.LogCaptureFixture
) -> None:
    heard: queue.SimpleQueue[Notification] = queue.SimpleQueue()

    def hear(notification: Notification) -> None:
        heard.put(notification)
        if notification.topics == ("fault",):
            raise RuntimeError("a fault")

    with (
        closing(connections.PostgresConnections(postgres.url, schema)) as own,
        closing(listener.Listener(own, "here", hear)),
        psycopg.connect(postgres.url, autocommit=True) as other,
    ):
        for topic in ("fault", "fine"):
            (payload,) = encode_notification(Notification(topics=(topic,)), "there", [])
            other.execute("SELECT pg_notify(%s, %s)", (schema, payload))
            assert heard.get(timeout=LONG).topics == (topic,)
            if topic == "fault":
                assert heard.get(timeout=LONG).everything, "what it may have missed is looked for"
    assert "not heard for now" in caplog.text


def cut_listeners(server: PostgresServer, schema: str) -> None:
    with psycopg.connect(server.url, autocommit=True) as connection:
        cut = connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query = %s",
            (f'LISTEN "{schema}"',),
        ).fetchall()
        assert cut


def test_commits_and_deletions_on_another_node_wake_waits_here(
    postgres: PostgresServer, schema: str
) -> None:
    with (
        PostgresMetadata(postgres.url, schema=schema) as here,
        PostgresMetadata(postgres.url, schema=schema) as there,
        ThreadPoolExecutor(1) as threads,
    ):
        topic = here.admin.create_topic(NAME, SCHEMA, "key")

        def follow(commits: int) -> int:
            """Read along as the contract says: look, and wait where there is nothing."""
            wake = Wake()
            offset = 0
            while offset < commits:
                wake.clear()
                found = here.registry.locate(topic.uuid, A, offset, commits)
                offset = found.log_end_offset
                if not found.locations:
                    here.registry.wait(
                        [Position(topic.uuid, A, offset)], Deadline.after(LONG), wake
                    )
                    assert wake.is_set(), "a wake-up was lost"
            return offset

        reader = threads.submit(follow, 100)
        for _ in range(100):
            there.registry.commit([batch_of(topic, {A: 1})])
        assert reader.result(LONG) == 100
        # More partitions than one notice names, and a deletion.
        many = [Partition(f'"{number:04}"') for number in range(1_500)]
        wake = Wake()
        with here.registry.watch([Position(topic.uuid, many[-1], 0)], wake.set):
            there.registry.commit([batch_of(topic, dict.fromkeys(many, 1))])
            assert wake.wait(LONG)
        wake.clear()
        with here.registry.watch([Position(topic.uuid, B, 0)], wake.set):
            there.admin.delete_topic(NAME)
            assert wake.wait(LONG)


_PAUSED = """
import os, signal, sys
from fix_metadata import A, batch_of
from wings_core.metadata.postgres import PostgresBounds, PostgresMetadata
from wings_core.metadata.postgres.connections import Connection
from wings_core.names import DEFAULT_NAMESPACE

command = Connection.command

def paused(connection, statement):
    if statement == "COMMIT":
        Connection.command = command
        os.kill(os.getpid(), signal.SIGSTOP)
    command(connection, statement)

bounds = PostgresBounds(idle_in_transaction=1)
# The first commit of a process to a topic is within a transaction: it is paused with all locks.
for _ in range(2):
    with PostgresMetadata(sys.argv[1], schema=sys.argv[2], bounds=bounds) as metadata:
        topic = metadata.admin.get_topic(DEFAULT_NAMESPACE.topic("orders"))
        Connection.command = paused
        metadata.registry.commit([batch_of(topic, {A: 1})])
"""


def test_a_node_that_is_paused_in_a_commit_keeps_its_locks_for_so_long_and_commits_again(
    postgres: PostgresServer, schema: str
) -> None:
    def wait_until_it_is_paused() -> None:
        seen = os.waitid(os.P_PID, node.pid, os.WSTOPPED | os.WEXITED)
        assert seen is not None
        assert seen.si_code == os.CLD_STOPPED

    with ExitStack() as stack:
        bounds = PostgresBounds(lock=8)
        lasting = stack.enter_context(
            PostgresMetadata(postgres.url, schema=schema, retry_seconds=0, bounds=bounds)
        )
        topic = lasting.admin.create_topic(NAME, SCHEMA, "key")
        node = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-c", _PAUSED, postgres.url, schema],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )
        )
        stack.callback(node.kill)
        wait_until_it_is_paused()
        lasting.registry.commit([batch_of(topic, {A: 2})])  # The server ends the other in time.
        node.send_signal(signal.SIGCONT)
        wait_until_it_is_paused()
        bounds = PostgresBounds(lock=1, idle_in_transaction=0.5)
        hasty = stack.enter_context(PostgresMetadata(postgres.url, schema=schema, bounds=bounds))
        hasty.registry.commit([batch_of(topic, {A: 2})])  # Who waits for its lock ends it.
        node.send_signal(signal.SIGCONT)
        assert node.wait(LONG) == 0
        assert offsets_of(hasty.registry, topic, A) == [(0, 1), (2, 2), (3, 4), (5, 5)]


@pytest.fixture
def own_connections(
    postgres: PostgresServer, schema: str
) -> Generator[connections.PostgresConnections]:
    PostgresMetadata(postgres.url, schema=schema).close()  # Makes the tables.
    with closing(connections.PostgresConnections(postgres.url, schema)) as opened:
        yield opened


def test_a_transaction_goes_on_after_no_statement_that_failed(
    own_connections: connections.PostgresConnections,
) -> None:
    own = database.PostgresDatabase(own_connections, tell_nobody)

    def ignore(connection: connections.Connection) -> None:
        connection.execute("INSERT INTO folios (name, pages) VALUES ('f', 1)")
        with contextlib.suppress(psycopg.Error):
            connection.execute("SELECT 1 / 0").fetchone()

    def hide(connection: connections.Connection) -> None:
        connection.execute("SELECT 1 / 0")
        connection.execute("SELECT 'a'::int")
        connection.execute("SELECT 1").fetchone()

    with pytest.raises(Internal):
        own.write(ignore)
    with pytest.raises(Internal, match="division by zero"):
        own.write(hide)
    assert own.read(lambda each: each.execute("SELECT count(*) FROM folios").fetchone()) == (0,)


def test_the_server_looks_whether_a_silent_node_is_there(
    own_connections: connections.PostgresConnections,
) -> None:
    with closing(own_connections.open()) as connection:
        settings = connection.execute(
            "SELECT name, setting FROM pg_settings WHERE name LIKE 'tcp\\_%' ORDER BY name"
        ).fetchall()
    assert settings == [
        ("tcp_keepalives_count", "5"),
        ("tcp_keepalives_idle", "5"),
        ("tcp_keepalives_interval", "1"),
        ("tcp_user_timeout", "10000"),
    ]


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql//wings:{PASSWORD}@host/db",
        f"postgresql://wings:{PASSWORD}@host:port:port/db",
        f"postgresql://wings:{PASSWORD}@host/db?nonsense=1",
    ],
)
def test_an_address_that_cannot_be_read_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises((InvalidArgument, Unavailable)) as caught:
        PostgresMetadata(url, retry_seconds=0)
    assert PASSWORD not in str(caught.value)
    assert caught.value.__cause__ is None or PASSWORD not in str(caught.value.__cause__)


def test_what_fails_for_good_is_internal_and_not_tried_again(
    postgres: PostgresServer, schema: str
) -> None:
    with PostgresMetadata(postgres.url, schema=schema, retry_seconds=LONG) as metadata:
        topic = metadata.admin.create_topic(NAME, SCHEMA)
        with psycopg.connect(postgres.url, autocommit=True) as connection:
            connection.execute(f"ALTER TABLE {schema}.pages RENAME TO gone".encode())
        before = time.monotonic()
        try:
            with pytest.raises(Internal, match="pages"):
                metadata.registry.commit([batch_of(topic, {UNPARTITIONED: 1})])
        finally:
            with psycopg.connect(postgres.url, autocommit=True) as connection:
                connection.execute(f"ALTER TABLE {schema}.gone RENAME TO pages".encode())
        assert time.monotonic() - before < LONG
        assert offsets_of(metadata.registry, topic) == []
        (result,) = metadata.registry.commit([batch_of(topic, {UNPARTITIONED: 1})])
        assert accepted(result)[0].start_offset == 0


def test_nothing_is_kept_of_partitions_and_producers_whose_batches_were_refused(
    postgres: PostgresServer, schema: str
) -> None:
    with PostgresMetadata(postgres.url, schema=schema) as metadata:
        topic: Topic = metadata.admin.create_topic(NAME, SCHEMA, "key")
        metadata.registry.commit([batch_of(topic, {A: 1}, sequence=("p", 5))])
        metadata.registry.commit([batch_of(topic, {B: 1}, expected=(B, 5))])
        assert metadata.registry.partition_states(topic.uuid) == []
    with psycopg.connect(postgres.url) as connection:
        connection.execute(f"SET search_path = {schema}".encode())
        for table in ("partitions", "producers"):
            assert connection.execute(f"SELECT * FROM {table}".encode()).fetchall() == []
