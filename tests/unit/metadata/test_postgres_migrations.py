"""The schema's version: brought up to date, refused; and how much work a look takes."""

from contextlib import closing
from uuid import uuid4

import psycopg
import pytest
from fix_metadata import NOON, SCHEMA, SECOND, Clock, batch_of
from fix_postgres import PostgresServer, new_schema
from tables import each

from wings_core.errors import Internal
from wings_core.metadata.postgres import PostgresMetadata, connections, locate, migrations
from wings_core.metadata.postgres.connections import Connections, Loan
from wings_core.metadata.postgres.notifications import (
    PAYLOAD_BYTES_MAX,
    PENDING_MAX,
    TRANSACTIONS_MAX,
    Outbox,
    decode_notification,
    encode_notification,
)
from wings_core.metadata.postgres.versions import from_10
from wings_core.metadata.store.notifications import Notification
from wings_core.model import Accepted, CommittedRange, FlushId, Published
from wings_core.names import DEFAULT_NAMESPACE, NamespaceName
from wings_core.partitions import UNPARTITIONED, Partition

RELEASED = len(migrations.MIGRATIONS)


def run(server: PostgresServer, statement: str) -> list[tuple[object, ...]]:
    with psycopg.connect(server.url, autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def test_each_migration_is_applied_once(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema, clock = new_schema(), Clock()
    PostgresMetadata(postgres.url, schema=schema, clock=clock).close()
    clock.time += SECOND
    another = ("INSERT INTO namespaces (tenant, name, created_at) VALUES ('a', 'b', %(now)s)",)
    monkeypatch.setattr(migrations, "MIGRATIONS", (*migrations.MIGRATIONS, another))
    for _ in range(2):
        with PostgresMetadata(postgres.url, schema=schema, clock=clock) as metadata:
            found = [(each.name, each.created_at) for each in metadata.admin.list_namespaces()]
            assert found == [(NamespaceName("a", "b"), NOON + SECOND), (DEFAULT_NAMESPACE, NOON)]
    applied = run(postgres, f"SELECT * FROM {schema}.migrations ORDER BY version")
    assert applied == [
        *((version, NOON) for version in range(1, RELEASED + 1)),
        (RELEASED + 1, NOON + SECOND),
    ]


def test_a_migration_may_take_longer_than_other_calls(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = (migrations.MIGRATIONS[0], ("SELECT pg_sleep(4.5)",))
    monkeypatch.setattr(migrations, "MIGRATIONS", slow)
    monkeypatch.setattr(connections, "STATEMENT_SECONDS_MAX", 3)
    monkeypatch.setattr(connections, "USE_SECONDS_MAX", 3.0)
    schema = new_schema()
    PostgresMetadata(postgres.url, schema=schema, retry_seconds=0).close()
    assert run(postgres, f"SELECT max(version) FROM {schema}.migrations") == [(2,)]


def test_a_migration_that_fails_leaves_nothing(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = new_schema()
    bad = ("CREATE TABLE extra (id INTEGER)", "INSERT INTO nowhere VALUES (1)")
    monkeypatch.setattr(migrations, "MIGRATIONS", (*migrations.MIGRATIONS, bad))
    with pytest.raises(Internal, match="nowhere"):
        PostgresMetadata(postgres.url, schema=schema)
    assert run(postgres, f"SELECT to_regclass('{schema}.extra')") == [(None,)]
    assert run(postgres, f"SELECT max(version) FROM {schema}.migrations") == [(RELEASED,)]


@pytest.mark.parametrize("read_only", [False, True])
def test_a_newer_schema_is_refused(postgres: PostgresServer, read_only: bool) -> None:
    schema = new_schema()
    PostgresMetadata(postgres.url, schema=schema).close()
    run(postgres, f"INSERT INTO {schema}.migrations VALUES (99, 0)")
    with pytest.raises(Internal, match=f"version 99, newer than {RELEASED}"):
        PostgresMetadata(postgres.url, schema=schema, read_only=read_only)


@pytest.mark.parametrize("read_only", [False, True])
def test_a_schema_of_something_else_is_refused(postgres: PostgresServer, read_only: bool) -> None:
    schema = new_schema()
    run(postgres, f"CREATE SCHEMA {schema}")
    run(postgres, f"CREATE TABLE {schema}.cookies (id INTEGER)")
    with pytest.raises(Internal, match="not metadata of Wings"):
        PostgresMetadata(postgres.url, schema=schema, read_only=read_only)


def test_a_schema_opened_for_reading_is_not_made_and_not_written(postgres: PostgresServer) -> None:
    schema = new_schema()
    with pytest.raises(Internal, match="no schema"):
        PostgresMetadata(postgres.url, schema=schema, read_only=True)
    PostgresMetadata(postgres.url, schema=schema).close()
    with (
        PostgresMetadata(postgres.url, schema=schema, read_only=True) as metadata,
        pytest.raises(Internal, match="reading only"),
    ):
        metadata.admin.create_namespace(NamespaceName("a", "b"))


def test_locate_takes_the_same_work_in_a_long_log(postgres: PostgresServer) -> None:
    """Blocks of the database that are looked at: a level of the index more, and no other."""
    schema, blocks = new_schema(), dict[int, int]()
    own = Connections(postgres.url, schema)
    with closing(own), PostgresMetadata(postgres.url, schema=schema) as metadata:
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


def test_what_tiers_hold_is_counted_by_the_migration(postgres: PostgresServer) -> None:
    schema = new_schema()
    with PostgresMetadata(postgres.url, schema=schema) as metadata:
        topic = metadata.admin.create_topic(DEFAULT_NAMESPACE.topic("orders"), SCHEMA)
        for _ in range(3):
            metadata.registry.commit([batch_of(topic, {UNPARTITIONED: 4})])
    counts = ("pages", "merged_pages", "merged_rows", "merged_bytes")
    run(
        postgres,
        f"SET search_path = {schema}; DELETE FROM pages WHERE end_offset = 3; "
        "UPDATE pages SET start_offset = 0, first_timestamp = 1, format = 2 WHERE end_offset = 7;"
        + ";".join(f"ALTER TABLE partitions DROP COLUMN {column}" for column in counts),
    )
    statements = from_10.TIERS
    run(postgres, f"SET search_path = {schema}; {';'.join(statements)}")
    found = run(postgres, f"SELECT {', '.join(counts)} FROM {schema}.partitions")
    assert found == [(2, 1, 8, 100)]


def test_names_kept_as_bytes_become_text(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A database of the version before, with a row of each table that a client's name is in."""
    schema = new_schema()
    before = migrations.MIGRATIONS.index(from_10.TEXT)
    with monkeypatch.context() as patched:
        patched.setattr(migrations, "MIGRATIONS", migrations.MIGRATIONS[:before])
        with PostgresMetadata(postgres.url, schema=schema, clock=Clock()) as metadata:
            topic = metadata.admin.create_topic(DEFAULT_NAMESPACE.topic("orders"), SCHEMA)
    ids = f"(SELECT id FROM {schema}.topics)"
    name = "convert_to('Ä\\b', 'UTF8')"
    rows = {
        "producers": f"({ids}, {name}, 1)",
        "producer_results": f"""({ids}, {name}, 0, 0,
            '[{{"partition": "null", "start_offset": 5, "end_offset": 6, "timestamp": 7}}]',
            {NOON})""",
        "consumer_offsets": f"""({name}, {ids}, 'null', 3, 1),
            ('a\\000b'::bytea, {ids}, 'null', 4, 1)""",
        "publishes": f"({name}, 7, '[]', NULL)",
        "flushes": f"({name}, 7, '[]', {NOON})",
        "share_groups": f"(1, '{topic.uuid}', {ids}, {name}, '{{}}', 1)",
        "shards": f"""({name}, {name}, {name}, 5, 'open', 1, 'x\\000y'::bytea, 1, 1),
            ('a\\000b'::bytea, {name}, {name}, 5, 'open', 1, NULL, 1, 1)""",
        "shard_prunings": f"({name}, {NOON})",
    }
    for table, values in rows.items():
        overriding = "OVERRIDING SYSTEM VALUE" if table == "share_groups" else ""
        run(postgres, f"INSERT INTO {schema}.{table} {overriding} VALUES {values}")
    name = "Ä\\b"
    with PostgresMetadata(postgres.url, schema=schema, clock=Clock()) as metadata:
        (replayed,) = metadata.registry.commit(
            [batch_of(topic, {UNPARTITIONED: 1}, sequence=(name, 0))], FlushId(name, 8)
        )
        assert replayed == Accepted((CommittedRange(UNPARTITIONED, 5, 6, 7),), replayed=True)
        assert metadata.registry.commit([], FlushId(name, 8)) == [replayed]
        assert [each.offset for each in metadata.registry.get_offsets(name)] == [3]
        assert metadata.registry.list_consumers(10) == ["a\\000b", name]
        assert metadata.stages.publish(name, 7, []) == Published((), replayed=True)
        assert metadata.groups.get(topic, name).uuid == topic.uuid
        (shard,) = metadata.shards.of_source(name, None, "", 10)
        assert (shard.shard, shard.token, shard.error) == (name, name, "x\\000y")
        assert metadata.shards.prune(name, 0, None, 60).debounced
    columns = run(
        postgres,
        "SELECT table_name, column_name FROM information_schema.columns "
        f"WHERE table_schema = '{schema}' AND data_type = 'bytea'",
    )
    assert sorted(columns) == [
        ("inline_folios", "data"),
        ("tokens", "digest"),
        ("topics", "earlier_schemas"),
        ("topics", "schema"),
    ]
