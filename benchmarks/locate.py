"""Finding the end of a log: as fast among a million locations as among a thousand."""

import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pyarrow.flight as flight

from benchmarks.harness import (
    Row,
    compare,
    create_topic,
    drain,
    median_seconds,
    narrow,
    push,
    ticket,
)
from wings_core.metadata.postgres.store import SCHEMA
from wings_server.testing import server_process

FETCHES = 500


def run() -> Iterator[Row]:
    """Measure a fetch of the last row on a long and on a short log, on one server."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "data"
        with server_process(path) as server, server.client() as client:
            for topic, pages in (("short", 1_000), ("long", 1_000)):
                create_topic(client, topic, narrow(1).schema)
                push(client, topic, narrow(1), pages)
        lengthen(path, "long", 1_000_000 - 1_000)
        with server_process(path) as server, server.client() as client:
            # The last row of the long log is a real one again.
            push(client, "long", narrow(1), 1)
            yield compare(
                "fetch at the end: 1,000,000 locations against 1,000",
                "ms",
                1.2,
                lambda: _fetch_ms(client, "long", 1_000_000),
                lambda: _fetch_ms(client, "short", 999),
                more_is_better=False,
            )


_MORE_PAGES = """
INSERT INTO pages (partition_id, end_offset, start_offset, timestamp, folio_id, position, length)
SELECT last.partition_id, last.end_offset + number, last.end_offset + number, last.timestamp,
    last.folio_id, last.position, last.length
FROM {numbers} CROSS JOIN (
    SELECT pages.* FROM pages JOIN partitions ON partitions.id = pages.partition_id
    JOIN topics ON topics.id = partitions.topic_id
    WHERE topics.name = {topic} ORDER BY pages.end_offset DESC LIMIT 1
) AS last
"""
_COUNT_PAGES = (
    """
    UPDATE folios SET pages = pages + {pages}
    WHERE id = (SELECT folio_id FROM pages ORDER BY end_offset DESC LIMIT 1)
    """,
    """
    UPDATE partitions SET next_offset = next_offset + {pages}
    WHERE topic_id = (SELECT id FROM topics WHERE name = {topic})
    """,
)


def lengthen(path: Path, topic: str, pages: int) -> None:
    """Add pages of one row to an unpartitioned topic in SQLite; they share the last page's place.

    By one statement, as a million commits would take minutes.
    """
    numbers = (
        "(WITH RECURSIVE counted (number) AS (SELECT 1 UNION ALL SELECT number + 1 FROM counted "
        "WHERE number < :pages) SELECT number FROM counted) AS numbers"
    )
    names = {"pages": ":pages", "topic": ":topic"}
    with closing(sqlite3.connect(path / "metadata.sqlite")) as connection, connection:
        values = {"pages": pages, "topic": topic}
        for statement in (_MORE_PAGES, *_COUNT_PAGES):
            connection.execute(statement.format(numbers=numbers, **names), values)


def lengthen_in_postgres(url: str, topic: str, pages: int) -> None:
    """Do the same in PostgreSQL."""
    names = {"pages": "%(pages)s::bigint", "topic": "%(topic)s"}
    values = {"pages": pages, "topic": topic}
    numbers = f"generate_series(1, {names['pages']}) AS number"
    with psycopg.connect(url, options=f"-c search_path={SCHEMA}") as connection:
        for statement in (_MORE_PAGES, *_COUNT_PAGES):
            connection.execute(statement.format(numbers=numbers, **names).encode(), values)


def _fetch_ms(client: flight.FlightClient, topic: str, offset: int) -> float:
    wanted = ticket(topic=topic, offset=offset)
    assert drain(client, wanted) == 1
    return median_seconds(lambda: drain(client, wanted), FETCHES) * 1e3
