"""The schema's version: brought up to date, refused; and how much work a look takes."""

import re
from collections.abc import Callable
from contextlib import closing
from functools import partial
from uuid import uuid4

import psycopg
import pytest
from fix_metadata import NOON, SCHEMA, SECOND, Clock, accepted, batch_of
from fix_postgres import PostgresServer, new_schema
from tables import each

from wings_core.errors import Internal
from wings_core.metadata.postgres import PostgresBounds, PostgresMetadata, locate, schema
from wings_core.metadata.postgres.commit_function import TYPES
from wings_core.metadata.postgres.connections import Loan, PostgresConnections
from wings_core.metadata.postgres.listener import (
    PAYLOAD_BYTES_MAX,
    PENDING_MAX,
    TRANSACTIONS_MAX,
    Outbox,
    decode_notification,
    encode_notification,
)
from wings_core.metadata.postgres.schema import SCHEMA as SCHEMA_NOW
from wings_core.metadata.postgres.schema import VERSIONS
from wings_core.metadata.store.database import Notification, Versions
from wings_core.names import DEFAULT_NAMESPACE, NamespaceName
from wings_core.partitions import UNPARTITIONED, Partition

NEWEST = VERSIONS.newest


def run(server: PostgresServer, statement: str) -> list[tuple[object, ...]]:
    with psycopg.connect(server.url, autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


Release = Callable[[Versions], None]


@pytest.fixture
def release(monkeypatch: pytest.MonkeyPatch) -> Release:
    """Has the code other versions."""
    return partial(monkeypatch.setattr, schema, "VERSIONS")


def test_each_migration_is_applied_once(postgres: PostgresServer, release: Release) -> None:
    name, clock = new_schema(), Clock()
    PostgresMetadata(postgres.url, schema=name, clock=clock).close()
    clock.time += SECOND
    another = ("INSERT INTO namespaces (tenant, name, created_at) VALUES ('a', 'b', %(now)s)",)
    release(Versions(SCHEMA_NOW, NEWEST, (another,)))
    for _ in range(2):
        with PostgresMetadata(postgres.url, schema=name, clock=clock) as metadata:
            found = [(each.name, each.created_at) for each in metadata.admin.list_namespaces()]
            assert found == [(NamespaceName("a", "b"), NOON + SECOND), (DEFAULT_NAMESPACE, NOON)]
    applied = run(postgres, f"SELECT * FROM {name}.migrations ORDER BY version")
    assert applied == [(NEWEST, NOON), (NEWEST + 1, NOON + SECOND)]


AS_IN_0_1_0 = """
DROP TABLE transactions, transaction_offsets;
DROP TABLE writers, consumer_groups, consumer_group_members, partition_sequences;
ALTER TABLE consumer_offsets DROP COLUMN note; ALTER TABLE nodes DROP COLUMN kafka;
DROP FUNCTION commit_flush; DROP TYPE {types}, flush_sequence;
ALTER TABLE outcomes DROP COLUMN node;
DROP TRIGGER folios_inline ON folios; DROP FUNCTION delete_inline;
ALTER TABLE inline_folios ADD FOREIGN KEY (folio_id) REFERENCES folios (id) ON DELETE CASCADE;
ALTER TABLE pages ADD CONSTRAINT pages_of_one_timestamp
    CHECK (format <> 1 OR first_timestamp IS NULL);
UPDATE migrations SET version = 22
"""


def test_a_schema_of_the_last_release_becomes_this_one(postgres: PostgresServer) -> None:
    name = new_schema()
    with PostgresMetadata(postgres.url, schema=name) as metadata:
        topic = metadata.admin.create_topic(DEFAULT_NAMESPACE.topic("orders"), SCHEMA)
        metadata.registry.commit([batch_of(topic, {UNPARTITIONED: 1}, sequence=("p", 0))])
    types = ", ".join(re.findall(r"CREATE TYPE (\w+)", " ".join(TYPES)))
    run(postgres, f"SET search_path = {name}; {AS_IN_0_1_0.format(types=types)}")
    with pytest.raises(Internal, match="start the server once"):
        PostgresMetadata(postgres.url, schema=name, read_only=True)
    with PostgresMetadata(postgres.url, schema=name) as metadata:
        pushes = [batch_of(topic, {UNPARTITIONED: 1}, sequence=("p", number)) for number in (0, 1)]
        repeated, pushed = metadata.registry.commit(pushes)
        assert (accepted(repeated)[0].start_offset, accepted(pushed)[0].start_offset) == (0, 1)
    run(postgres, f"DELETE FROM {name}.migrations; INSERT INTO {name}.migrations VALUES (21, 0)")
    with pytest.raises(Internal, match=r"wings-flight\[server\]==0.1.0"):
        PostgresMetadata(postgres.url, schema=name)


def test_a_migration_may_take_longer_than_other_calls(
    postgres: PostgresServer, release: Release
) -> None:
    name = new_schema()
    PostgresMetadata(postgres.url, schema=name, retry_seconds=0).close()
    slow = ("SELECT pg_sleep(3.5)",)
    release(Versions(SCHEMA_NOW, NEWEST, (slow,)))
    bounds = PostgresBounds(statement=2, use=2.0, watchdog_look=0.1)
    PostgresMetadata(postgres.url, schema=name, retry_seconds=0, bounds=bounds).close()
    assert run(postgres, f"SELECT max(version) FROM {name}.migrations") == [(NEWEST + 1,)]


def test_a_schema_that_cannot_be_made_leaves_nothing(
    postgres: PostgresServer, release: Release
) -> None:
    name = new_schema()
    bad = ("CREATE TABLE extra (id INTEGER)", "INSERT INTO nowhere VALUES (1)")
    release(Versions(bad, NEWEST))
    with pytest.raises(Internal, match="nowhere"):
        PostgresMetadata(postgres.url, schema=name)
    assert run(postgres, f"SELECT to_regclass('{name}.extra')") == [(None,)]
    release(VERSIONS)
    PostgresMetadata(postgres.url, schema=name).close()


@pytest.mark.parametrize("read_only", [False, True])
def test_a_newer_schema_is_refused(postgres: PostgresServer, read_only: bool) -> None:
    name = new_schema()
    PostgresMetadata(postgres.url, schema=name).close()
    run(postgres, f"INSERT INTO {name}.migrations VALUES (99, 0)")
    with pytest.raises(Internal, match=f"version 99, newer than {NEWEST}"):
        PostgresMetadata(postgres.url, schema=name, read_only=read_only)


@pytest.mark.parametrize("read_only", [False, True])
def test_a_schema_of_something_else_is_refused(postgres: PostgresServer, read_only: bool) -> None:
    name = new_schema()
    run(postgres, f"CREATE SCHEMA {name}")
    run(postgres, f"CREATE TABLE {name}.cookies (id INTEGER)")
    with pytest.raises(Internal, match="not metadata of Wings"):
        PostgresMetadata(postgres.url, schema=name, read_only=read_only)


def test_a_schema_opened_for_reading_is_not_made_and_not_written(postgres: PostgresServer) -> None:
    name = new_schema()
    with pytest.raises(Internal, match="no schema"):
        PostgresMetadata(postgres.url, schema=name, read_only=True)
    PostgresMetadata(postgres.url, schema=name).close()
    with (
        PostgresMetadata(postgres.url, schema=name, read_only=True) as metadata,
        pytest.raises(Internal, match="reading only"),
    ):
        metadata.admin.create_namespace(NamespaceName("a", "b"))


def test_locate_takes_the_same_work_in_a_long_log(postgres: PostgresServer) -> None:
    """Blocks of the database that are looked at: a level of the index more, and no other."""
    name, blocks = new_schema(), dict[int, int]()
    own = PostgresConnections(postgres.url, name)
    with closing(own), PostgresMetadata(postgres.url, schema=name) as metadata:
        for pages in (500, 40_000):
            topic = metadata.admin.create_topic(DEFAULT_NAMESPACE.topic(f"t{pages}"), SCHEMA)
            batch = batch_of(topic, {UNPARTITIONED: 1})
            for _ in range(0, pages, 10_000):
                metadata.registry.commit([batch] * min(pages, 10_000))
            values: dict[str, object] = {"topic": topic.uuid, "partition": UNPARTITIONED}
            values |= {"offset": pages - 1, "last": pages - 1, "locations": 1_000}
            statement = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {locate.LOCATE}"
            with Loan(own) as connection:
                connection.execute(statement, values)  # Reads what PostgreSQL knows of the tables.
                row = connection.execute(statement, values).fetchone()
            assert row is not None
            plan = row[0][0]["Plan"]
            blocks[pages] = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
    assert blocks[40_000] <= blocks[500] + 4
    assert blocks[40_000] < 40


@pytest.mark.parametrize("transactions", [1, TRANSACTIONS_MAX, 3 * TRANSACTIONS_MAX + 1])
@pytest.mark.parametrize(("topics", "partitions"), [(1, 1), (1, 5_000), (50, 50), (2_000, 1)])
def test_a_notification_is_bounded_and_names_no_less_than_what_changed(
    topics: int, partitions: int, transactions: int
) -> None:
    ends = {
        (f"{topic:036}", Partition(f'"ä{partition}"')): partition + 1
        for topic in range(topics)
        for partition in range(partitions)
    }
    ids = [f"{number:032x}" for number in range(transactions)]
    payloads = encode_notification(Notification(ends), "node", ids)
    assert all(len(payload.encode()) <= PAYLOAD_BYTES_MAX for payload in payloads)
    decoded = [decode_notification(payload) for payload in payloads]
    assert {node for node, _, _ in decoded} == {"node"}
    assert [name for _, named, _ in decoded for name in named] == ids
    told = decoded[0][2]
    for (topic, partition), next_offset in ends.items():
        named = told.ends.get((topic, partition)) == next_offset
        assert named or topic in told.topics or told.everything


@each("payload", ["", "nonsense", "[]", "{}", '{"node": 1, "ends": 3}'])
def test_a_notification_that_cannot_be_read_concerns_all_waiters(payload: str) -> None:
    assert decode_notification(payload)[2].everything


def test_what_waits_to_be_told_is_bounded_and_loses_nothing() -> None:
    outbox = Outbox()
    assert outbox.await_next()
    ids = [uuid4().hex for _ in range(PENDING_MAX + 1)]
    for number, transaction in enumerate(ids):
        ends = {("t", Partition(f'"{number}"')): 1}
        assert outbox.add(Notification(ends), transaction) == (number == 0)
    told, transactions = outbox.take()
    assert told.everything
    assert transactions == ids[:PENDING_MAX]
    assert outbox.is_empty
    assert not outbox.add(Notification(), ids[0])  # Nothing waits for it.
    assert not outbox.await_next()
    # The furthest of what is told of one place.
    place = ("t", UNPARTITIONED)
    for next_offset in (7, 9, 8):
        outbox.add(Notification({place: next_offset}), uuid4().hex)
    told, _ = outbox.take()
    assert (told.ends, told.everything) == ({place: 9}, False)
