"""Flushes over PostgreSQL: how many statements they are, and what others do meanwhile."""

import contextlib
import random
import string
import threading
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from itertools import count
from typing import LiteralString

import psycopg
import pytest
from fix_metadata import NOON, SCHEMA, A, B, Clock, accepted, batch_of, offsets_of
from fix_postgres import PostgresServer, empty_schema
from psycopg import sql
from psycopg.conninfo import make_conninfo
from psycopg.pq import TransactionStatus

from wings_core.errors import InvalidArgument, StageNotFound, TopicNotFound
from wings_core.metadata.checks import ID_BYTES_MAX
from wings_core.metadata.interfaces import OFFSET_MAX, Metadata
from wings_core.metadata.postgres import PostgresMetadata
from wings_core.metadata.postgres.connections import Connection, PostgresConnections
from wings_core.metadata.postgres.database import PARTITION_BYTES_MAX
from wings_core.metadata.postgres.faults import passing
from wings_core.metadata.remote import RemoteMetadata
from wings_core.metadata.store.database import Lock, bucket
from wings_core.model import (
    Accepted,
    CommitBatch,
    CommitResult,
    FlushId,
    InlineFolio,
    PageAddress,
    Rejected,
    StageEntry,
    StoredPage,
    Topic,
)
from wings_core.names import DEFAULT_NAMESPACE
from wings_core.partitions import UNPARTITIONED, VALUE_BYTES_MAX, Partition
from wings_server.metadata.service import MetadataService
from wings_server.settings import Address

NAME = DEFAULT_NAMESPACE.topic("t")
FOLIO = "flush.inline"

_numbers = count()


@pytest.fixture
def store(postgres: PostgresServer) -> Generator[PostgresMetadata]:
    with (
        empty_schema(postgres, NOON) as schema,
        PostgresMetadata(postgres.url, schema=schema, clock=Clock()) as metadata,
    ):
        yield metadata


@contextlib.contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Generator[list[str]]:
    """Collect the statements that this thread sends meanwhile: notifications are the listener's."""
    sent: list[str] = []
    thread = threading.get_ident()
    execute, call = psycopg.Connection.execute, Connection.call
    command = Connection.command

    def calling(self: Connection, function: str, arguments: Sequence[str | int | bytes | None]):
        if threading.get_ident() == thread:
            sent.append(function)
        return call(self, function, arguments)

    def commanding(self: Connection, statement: LiteralString) -> None:
        if threading.get_ident() == thread:
            sent.append(statement)
        command(self, statement)

    def counting(self: Connection, query: str, *args: object, **kwargs: object) -> object:
        if threading.get_ident() == thread:
            sent.append(query)
        return execute(self, query, *args, **kwargs)  # pyright: ignore[reportArgumentType, reportCallIssue]

    with monkeypatch.context() as patched:
        patched.setattr(psycopg.Connection, "execute", counting)
        patched.setattr(Connection, "call", calling)
        patched.setattr(Connection, "command", commanding)
        yield sent


def push(metadata: PostgresMetadata, topic: Topic, **options: object) -> CommitResult:
    folio = f"{next(_numbers)}.inline"
    batch = batch_of(topic, {A: 1}, folio=folio, **options)  # pyright: ignore[reportArgumentType]
    return metadata.registry.commit([batch], inline=InlineFolio(folio, b"x"))[0]


def test_a_flush_is_one_call_where_what_is_stored_is_known(
    store: PostgresMetadata, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    topic = store.admin.create_topic(NAME, SCHEMA, "key")
    push(store, topic)
    stage = StageEntry("s", "x", first=True)
    flushes: dict[str, list[CommitBatch]] = {
        "a page": [batch_of(topic, {A: 1})],
        "a sequence": [batch_of(topic, {A: 1}, sequence=("p", 0))],
        "a wrong sequence": [batch_of(topic, {A: 1}, sequence=("p", 7))],
        "an expected offset": [batch_of(topic, {A: 1}, expected=(A, 3))],
        "a wrong offset, a right one": [
            batch_of(topic, {A: 1}, expected=(A, 3), stream=1),
            batch_of(topic, {A: 1}, expected=(A, 4), stream=2),
        ],
        "many partitions": [
            batch_of(
                topic, dict.fromkeys([Partition(f'"{n} \\\\ \\" ü"') for n in range(1_200)], 3)
            )
        ],
        "a stage": [batch_of(topic, {A: 1}, stage=stage)],
        "the stage again": [batch_of(topic, {B: 1}, stage=replace(stage, first=False))],
        "nothing": [],
    }
    for name, batches in flushes.items():
        with subtests.test(name), counted(monkeypatch) as sent:
            store.registry.commit(batches)
            assert sent == ["commit_flush"]
    with counted(monkeypatch) as sent:
        repeated = store.registry.commit(flushes["a sequence"])
        assert accepted(repeated[0])[0].start_offset == 2
    assert [each == "commit_flush" for each in sent] == [False, True]
    with counted(monkeypatch) as sent:
        for _ in range(2):
            (named,) = store.registry.commit(flushes["a page"], FlushId("w", 0))
            assert accepted(named)[0].start_offset == 5
    assert sent == ["commit_flush"] * 2


def test_a_flush_is_judged_again_within_a_transaction_where_another_node_committed(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        empty_schema(postgres, NOON) as schema,
        PostgresMetadata(postgres.url, schema=schema, clock=Clock()) as one,
        PostgresMetadata(postgres.url, schema=schema, clock=Clock()) as other,
    ):
        topic = one.admin.create_topic(NAME, SCHEMA, "key")
        for number in range(3):
            node = (one, other)[number % 2]
            with counted(monkeypatch) as sent:
                (got,) = accepted(push(node, topic, sequence=("p", number)))
            assert (got.start_offset, sent) == (
                number,
                ["commit_flush", "BEGIN"] * 1 + ["commit_flush", "COMMIT"],
            )


def test_a_producer_gets_its_own_rows_again_where_those_of_others_share_its_page(
    store: PostgresMetadata,
) -> None:
    topic = store.admin.create_topic(NAME, SCHEMA)
    known = batch_of(topic, {UNPARTITIONED: 1}, sequence=("p", 0))
    accepted(store.registry.commit([known])[0])
    slices = [
        StoredPage(UNPARTITIONED, 2, PageAddress(FOLIO, 0, 100), first_row=row, slice_bytes=50)
        for row in (0, 2)
    ]
    others = replace(batch_of(topic, {}), pages=(slices[0],))
    batch = replace(batch_of(topic, {}, stream=1, sequence=("p", 1)), pages=(slices[1],))
    got = accepted(store.registry.commit([others, batch])[1])
    assert [(each.start_offset, each.end_offset) for each in got] == [(3, 4)]
    assert offsets_of(store.registry, topic) == [(0, 0), (1, 4)]
    assert accepted(store.registry.commit([batch])[0]) == got


@pytest.mark.parametrize("wrong", [1, OFFSET_MAX, 1 << 80])
def test_a_presumption_that_does_not_hold_leaves_nothing(
    store: PostgresMetadata, wrong: int
) -> None:
    topic = store.admin.create_topic(NAME, SCHEMA, "key")
    assert isinstance(push(store, topic, expected=(A, wrong)), Rejected)
    assert isinstance(push(store, topic, sequence=("p", wrong)), Rejected)
    assert store.registry.partition_states(topic.uuid) == []
    assert store.registry.live_folios() == set()
    # Its first sequence is still to come, once the partition is there and before.
    for number in range(2):
        result = push(store, topic, sequence=("p", number), expected=(A, number))
        assert [each.start_offset for each in accepted(result)] == [number]
    refused = push(store, topic, sequence=("p", 2), expected=(A, 0))
    assert isinstance(refused, Rejected)
    assert [each.start_offset for each in accepted(push(store, topic, sequence=("p", 2)))] == [2]
    repeated = push(store, topic, sequence=("p", 1))
    assert isinstance(repeated, Accepted)
    assert repeated.replayed
    assert [each.start_offset for each in repeated.committed] == [1]


def test_pushes_of_several_nodes_to_one_partition_have_each_an_offset(
    postgres: PostgresServer,
) -> None:
    """What was presumed is compared again once another transaction has let go of the row."""
    each, numbers = 40, count()
    with empty_schema(postgres, NOON) as schema, contextlib.ExitStack() as stack:
        nodes = [
            stack.enter_context(PostgresMetadata(postgres.url, schema=schema)) for _ in range(3)
        ]
        topic = nodes[0].admin.create_topic(NAME, SCHEMA)
        together = threading.Barrier(len(nodes))

        def run(node: PostgresMetadata) -> list[int]:
            together.wait()
            got: list[int] = []
            for sequence in range(each):
                folio = f"{next(numbers)}.inline"
                # All of them are one producer's: each sequence is accepted once.
                batch = batch_of(topic, {UNPARTITIONED: 1}, sequence=("p", sequence), folio=folio)
                while True:
                    (result,) = node.registry.commit([batch], inline=InlineFolio(folio, b"x"))
                    if isinstance(result, Accepted):
                        break
                if not result.replayed:
                    got += [result.committed[0].start_offset]
            return got

        with ThreadPoolExecutor(len(nodes)) as threads:
            got = [offset for offsets in threads.map(run, nodes) for offset in offsets]
        assert sorted(got) == list(range(each))
        assert offsets_of(nodes[0].registry, topic) == [(offset, offset) for offset in range(each)]


@pytest.mark.parametrize("sequence", [None, ("p", 1)])
def test_a_push_that_waits_for_a_deletion_finds_its_topic_deleted(
    postgres: PostgresServer, sequence: tuple[str, int] | None
) -> None:
    with (
        empty_schema(postgres, NOON) as schema,
        PostgresMetadata(postgres.url, schema=schema) as metadata,
        psycopg.connect(postgres.url) as deleting,
        psycopg.connect(postgres.url, autocommit=True) as looking,
        ThreadPoolExecutor(1) as threads,
    ):
        topic = metadata.admin.create_topic(NAME, SCHEMA)
        accepted(push(metadata, topic, sequence=("p", 0)))  # All that a push changes is there.
        place = Lock.TOPICS.value, bucket(topic.uuid)
        deleting.execute("SELECT pg_advisory_xact_lock(%s, %s)", place)
        deleting.execute(
            sql.SQL("UPDATE {} SET namespace_id = NULL, deleted_at = 1").format(
                sql.Identifier(schema, "topics")
            )
        )
        pushed = threads.submit(push, metadata, topic, sequence=sequence)
        waiting = "SELECT FROM pg_locks WHERE (classid, objid) = (%s, %s) AND NOT granted"
        while looking.execute(waiting, place).fetchone() is None:
            assert not pushed.done()
        deleting.commit()
        result = pushed.result()
        assert isinstance(result, Rejected)
        assert isinstance(result.error, TopicNotFound)


def test_a_function_is_called_though_what_was_prepared_is_gone(
    postgres: PostgresServer,
) -> None:
    with (
        contextlib.closing(PostgresConnections(postgres.url, "public")) as connections,
        contextlib.closing(connections.open()) as connection,
    ):
        assert connection.call("repeat", ("ü", 2)) == "üü"
        connection.execute("DEALLOCATE ALL")  # As psycopg does after it rolled back.
        assert connection.call("repeat", ("a", 3)) == "aaa"
        assert connection.call("upper", (None,)) is None
        with pytest.raises(psycopg.errors.UndefinedFunction):
            connection.call("no_such_function", (1,))
        with pytest.raises(psycopg.errors.InvalidTextRepresentation):
            connection.call("repeat", ("a", "x"))
        assert connection.info.transaction_status == TransactionStatus.IDLE
        with psycopg.connect(postgres.url, autocommit=True) as other:
            other.execute("SELECT pg_terminate_backend(%s)", (connection.info.backend_pid,))
        with pytest.raises(psycopg.OperationalError) as ended:
            connection.call("upper", ("a",))
        assert passing(ended.value)
        with pytest.raises(psycopg.OperationalError) as ended:
            connection.call("upper", ("a",))
        assert passing(ended.value)


# What PostgreSQL cannot keep is refused by itself, with and without a service. ####################

LIMITED = DEFAULT_NAMESPACE.topic("orders")


@pytest.fixture(params=["here", "through a service"])
def metadata(request: pytest.FixtureRequest, postgres: PostgresServer) -> Generator[Metadata]:
    with ExitStack() as stack:
        schema = stack.enter_context(empty_schema(postgres, NOON))
        here = stack.enter_context(PostgresMetadata(postgres.url, schema=schema))
        if request.param == "here":
            yield here
            return
        service = MetadataService(here, here.store_id, Address("127.0.0.1", 0))
        service.start()
        stack.callback(service.stop, drain_seconds=0)
        remote = RemoteMetadata(str(service.address))
        stack.callback(remote.close)
        yield remote


def value_of(size: int) -> Partition:
    """Return a partition of so many bytes that hardly get fewer by compression."""
    letters = random.Random(size).choices(string.ascii_letters + string.digits, k=size - 2)
    return Partition(f'"{"".join(letters)}"')


@pytest.mark.parametrize("size", [PARTITION_BYTES_MAX + 1, VALUE_BYTES_MAX])
def test_a_partition_value_that_is_too_long_is_refused_with_its_batch_alone(
    metadata: Metadata, size: int
) -> None:
    topic = metadata.admin.create_topic(LIMITED, SCHEMA, "key")
    long = value_of(size)
    entry = StageEntry("s", "w", first=True)
    results = metadata.registry.commit(
        [
            batch_of(topic, {A: 1}, stream=1),
            batch_of(topic, {A: 1, long: 1}, stream=2),
            batch_of(topic, {A: 1}, stream=3, expected=(long, 0)),
            batch_of(topic, {A: 1, long: 1}, stream=4, sequence=("p", 0)),
            batch_of(topic, {long: 1}, stream=5, stage=entry),
            batch_of(topic, {A: 1}, stream=6),
        ]
    )
    for result in results[1:-1]:
        assert isinstance(result, Rejected)
        assert isinstance(result.error, InvalidArgument)
        assert f"{size} bytes" in result.error.message
        assert f"at most {PARTITION_BYTES_MAX}" in result.error.message
    assert [accepted(result)[0].start_offset for result in (results[0], results[-1])] == [0, 1]
    assert [state.partition for state in metadata.registry.partition_states(topic.uuid)] == [A]
    with pytest.raises(StageNotFound):
        metadata.stages.publish("w", 0, ["s"])
    with pytest.raises(InvalidArgument, match=f"at most {PARTITION_BYTES_MAX}"):
        metadata.registry.commit_offsets("c", [(topic, A, 1), (topic, long, 1)])
    assert metadata.registry.get_offsets("c") == []
    # It can be asked for, as any that nothing was ever written to.
    assert metadata.registry.locate(topic.uuid, long, 0, 1).locations == ()


def test_the_longest_partition_value_is_kept_and_published_with_the_longest_names(
    metadata: Metadata,
) -> None:
    topic = metadata.admin.create_topic(LIMITED, SCHEMA, "key")
    long = value_of(PARTITION_BYTES_MAX)
    producer = value_of(ID_BYTES_MAX)
    (result,) = metadata.registry.commit([batch_of(topic, {long: 2}, sequence=(producer, 0))])
    assert accepted(result)[0].start_offset == 0
    metadata.registry.commit([batch_of(topic, {long: 3}, stage=StageEntry("s", "w", first=True))])
    (published,) = metadata.stages.publish("w", 0, ["s"]).committed
    assert (published.partition, published.start_offset) == (long, 2)
    assert offsets_of(metadata.registry, topic, long) == [(0, 1), (2, 4)]
    metadata.registry.commit_offsets(producer, [(topic, long, 5)])
    assert [offset.offset for offset in metadata.registry.get_offsets(producer)] == [5]


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_a_database_in_another_encoding_is_refused_when_it_is_opened(
    postgres: PostgresServer, encoding: str
) -> None:
    name = f"in_{encoding.lower()}"
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(
            sql.SQL("CREATE DATABASE {} TEMPLATE template0 ENCODING {} LOCALE 'C'").format(
                sql.Identifier(name), encoding
            )
        )
    with pytest.raises(InvalidArgument, match=f"encoded in {encoding}.* needs one in UTF8"):
        PostgresMetadata(make_conninfo(postgres.url, dbname=name))


def test_text_goes_to_the_server_in_utf_8_whatever_the_address_says(
    postgres: PostgresServer,
) -> None:
    with empty_schema(postgres, NOON) as schema:
        url = make_conninfo(postgres.url, client_encoding="LATIN1")
        with PostgresMetadata(url, schema=schema) as metadata:
            topic = metadata.admin.create_topic(LIMITED, SCHEMA, "key")
            partition = Partition('"日本"')
            accepted(metadata.registry.commit([batch_of(topic, {partition: 1})])[0])
            (state,) = metadata.registry.partition_states(topic.uuid)
            assert state.partition == partition
