"""Statements of PostgreSQL whose effect must not depend on the plan that the planner chooses.

A subquery with a limit, which locks what it finds, is no bound by itself: a plan that runs it anew
for each row finds what is left after the rows that were changed before, and goes beyond the limit.
"""

import contextlib
import itertools
from collections.abc import Generator

import psycopg
import pytest
from fix_metadata import DAY, SECOND, Clock, MetadataUnderTest, accepted, batch_of
from fix_postgres import PostgresServer
from psycopg import sql

from wings_core.metadata.interfaces import Metadata
from wings_core.metadata.postgres import PostgresBounds, PostgresMetadata
from wings_core.metadata.postgres.store import SCHEMA
from wings_core.metadata.waiting import Wake
from wings_core.model import FlushId, Position, ShardClaim, ShardProgress, ShardState
from wings_core.partitions import UNPARTITIONED, Partition
from wings_core.times import Deadline

LEFT_OUT = ("hashagg", "sort", "incremental_sort", "material", "memoize")
"""Beside what our own connections leave out; nested loops that keep nothing are left."""

counts_of_many = pytest.mark.parametrize(
    "count", [5_000, pytest.param(10_000, marks=pytest.mark.soak)]
)

BOUNDS = PostgresBounds(statement=8)
"""Many times what a statement of so many takes, and less than the square of their number does."""

TABLES = ("leases", "publishes", "producer_results", "flushes", "folios")


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    """The address of a database whose planner can choose little but the worst plan."""
    made = postgres.new_database()
    with psycopg.connect(made, autocommit=True) as connection:
        database = sql.Identifier(connection.info.dbname)
        for plan in LEFT_OUT:
            name = sql.Identifier(f"enable_{plan}")
            connection.execute(sql.SQL("ALTER DATABASE {} SET {} = off").format(database, name))
    return made


@pytest.fixture
def metadata(url: str) -> Generator[MetadataUnderTest]:
    def open_metadata(clock: Clock) -> Metadata:
        return PostgresMetadata(url, clock=clock)

    under_test = MetadataUnderTest(open_metadata)
    try:
        yield under_test
    finally:
        under_test.opened.close()


def rows(url: str) -> dict[str, int]:
    counts: dict[str, int] = {}
    with psycopg.connect(url, options=f"-c search_path={SCHEMA}") as connection:
        for table in TABLES:
            query = sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(table))
            row = connection.execute(query).fetchone()
            assert row is not None
            counts[table] = row[0]
    return counts


def test_a_sweep_takes_no_more_stages_than_it_may(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic()
    for stage in ("c", "a", "b"):
        metadata.stage(topic, stage)
        metadata.clock.time += SECOND
    assert metadata.stages.sweep(0, 2) == 2
    assert [stage.stage for stage in metadata.stages.of_topic(topic.uuid)] == ["b"]


def test_a_purge_deletes_no_more_rows_than_it_may(metadata: MetadataUnderTest, url: str) -> None:
    topic = metadata.create_topic()
    for number in range(4):
        metadata.opened.maintenance.acquire_lease(f"lease-{number}", "holder", 1)
        metadata.stage(topic, f"stage-{number}")
        metadata.stages.publish("writer", number, [f"stage-{number}"])
        batch = batch_of(topic, {UNPARTITIONED: 1}, sequence=("producer", number))
        metadata.registry.commit([batch], FlushId(f"node-{number}", 0))
    metadata.registry.retire([f"unused-{number}" for number in range(4)])
    before = rows(url)
    assert min(before.values()) >= 4
    metadata.clock.time += 90 * DAY
    while metadata.registry.purge(2):
        after = rows(url)
        assert sum(before.values()) - sum(after.values()) == 2
        before = after
    # A folio is kept while it has pages.
    assert rows(url) == {**dict.fromkeys(TABLES, 0), "folios": 1}


@counts_of_many
def test_many_partitions_are_written_and_read_by_plans_that_were_made_for_few(
    postgres: PostgresServer, count: int
) -> None:
    url = postgres.new_database()
    many = {Partition(f'"{number:05}"'): 1 for number in range(count)}
    few = dict.fromkeys(list(many)[:1], 1)
    metadata = MetadataUnderTest(lambda clock: PostgresMetadata(url, clock=clock, bounds=BOUNDS))
    with contextlib.closing(metadata.opened):
        topic, other = metadata.create_topic("key"), metadata.create_topic("key")
        registry = metadata.registry
        writes = itertools.count()

        def write(partitions: dict[Partition, int]) -> None:
            number = next(writes)
            accepted(registry.commit([batch_of(topic, partitions)])[0])
            flush = FlushId("node", number)
            accepted(registry.commit([batch_of(topic, partitions)], flush)[0])
            metadata.stage(other, f"stage-{number}", partitions)
            metadata.stages.publish("writer", number, [f"stage-{number}"])

        write(few)
        with psycopg.connect(url, options=f"-c search_path={SCHEMA}", autocommit=True) as counting:
            counting.execute("ANALYZE partitions")
        for partitions in (few, few, few, many, many):
            write(partitions)
            positions = [(partition, 0) for partition in partitions]
            found = registry.locate_many(topic.uuid, positions, 0, len(positions))
            assert [each.state.partition for each in found] == list(partitions)
            assert registry.offsets_for_timestamps(topic.uuid, positions) == [0] * len(positions)
            states = [each.state for each in found]
            ends = [Position(topic.uuid, each.partition, each.next_offset) for each in states]
            registry.wait(ends, Deadline.after(0), Wake())
        assert {state.next_offset for state in registry.partition_states(other.uuid)} == {2, 6}


@counts_of_many
def test_many_producers_and_shards_are_written_by_plans_that_were_made_for_few(
    postgres: PostgresServer, count: int
) -> None:
    url = postgres.new_database()
    many = [f"{number:05}" for number in range(count)]
    metadata = MetadataUnderTest(lambda clock: PostgresMetadata(url, clock=clock, bounds=BOUNDS))
    with contextlib.closing(metadata.opened):
        topic = metadata.create_topic()
        registry, shards, stages = metadata.registry, metadata.shards, metadata.stages
        numbers = itertools.count()

        def write(names: list[str]) -> None:
            first = next(numbers)
            for sequence, flush in enumerate((None, FlushId("node", first))):
                batches = [
                    batch_of(topic, {UNPARTITIONED: 1}, sequence=(f"{first}-{name}", sequence))
                    for name in names
                ]
                for result in registry.commit(batches, flush):
                    accepted(result)
            shards.open("source", "reader", names)
            claims = [ShardClaim(name, "reader") for name in names]
            dead = [
                ShardProgress("source", name, "reader", 0, 0, ShardState.DEAD, "no file")
                for name in names
            ]
            assert len(shards.acquire("source", "reader", claims, 60)) == len(names)
            stages.publish("writer", next(numbers), [], dead)
            assert len(shards.reset("source", names)) == len(names)
            unowned = [ShardClaim(name, "") for name in names]
            assert len(shards.acquire("source", "reader", unowned, 60)) == len(names)
            stages.publish("writer", next(numbers), [], dead)
            assert shards.prune("source", 0, None, 0).shards == len(names)

        write(many[:1])
        with psycopg.connect(url, options=f"-c search_path={SCHEMA}", autocommit=True) as counting:
            counting.execute("ANALYZE")
        for names in (many[:1], many[:1], many[:1], many):
            write(names)
