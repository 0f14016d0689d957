"""Statements of PostgreSQL whose effect must not depend on the plan that the planner chooses.

A subquery with a limit, which locks what it finds, is no bound by itself: a plan that runs it anew
for each row finds what is left after the rows that were changed before, and goes beyond the limit.
"""

from collections.abc import Generator

import psycopg
import pytest
from fix_metadata import DAY, SECOND, Clock, MetadataUnderTest, batch_of
from fix_postgres import PostgresServer
from psycopg import sql

from wings_core.metadata.interfaces import Metadata
from wings_core.metadata.postgres import PostgresMetadata
from wings_core.metadata.postgres.store import SCHEMA
from wings_core.model import FlushId
from wings_core.partitions import UNPARTITIONED

LEFT_OUT = ("hashagg", "sort", "incremental_sort", "material", "memoize")
"""Beside what our own connections leave out; nested loops that keep nothing are left."""

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
