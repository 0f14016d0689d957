"""Looking into the index takes the same work in a long log as in a short one."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from fix_metadata import NOON, SCHEMA, batch_of

from wings_core.metadata.sqlite import SqliteMetadata
from wings_core.metadata.sqlite.commit_cache import CommitCache
from wings_core.metadata.sqlite.database import Connection
from wings_core.metadata.sqlite.locate import locate, offsets_for_timestamps
from wings_core.model import Topic
from wings_core.names import DEFAULT_NAMESPACE
from wings_core.partitions import UNPARTITIONED

SHORT, LONG = 10, 20_000
"""Pages of the two logs."""


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Topic, Topic]:
    path = tmp_path_factory.mktemp("logs") / "metadata.db"
    with SqliteMetadata(path) as metadata:
        topics: list[Topic] = []
        for pages in (SHORT, LONG):
            topic = metadata.admin.create_topic(DEFAULT_NAMESPACE.topic(f"t{pages}"), SCHEMA)
            metadata.registry.commit(
                [
                    batch_of(topic, {UNPARTITIONED: 2}, timestamp=NOON - pages + number)
                    for number in range(pages)
                ]
            )
            topics.append(topic)
    return path, topics[0], topics[1]


def work(path: Path, ask: Callable[[Connection], object]) -> int:
    """Count the steps of SQLite's machine."""
    steps = 0

    def count() -> int:
        nonlocal steps
        steps += 1
        return 0

    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        ask(Connection(connection, CommitCache()))  # Reads the schema.
        connection.set_progress_handler(count, 1)
        ask(Connection(connection, CommitCache()))
    return steps


@pytest.mark.parametrize("back", [1, 2, 3, 20])
def test_locate_takes_the_same_work_in_a_long_log(
    logs: tuple[Path, Topic, Topic], back: int
) -> None:
    path, short, long = logs
    in_short, in_long = (
        work(path, lambda c, t=topic, o=2 * pages - back: locate(c, t.uuid, UNPARTITIONED, o, 2))
        for topic, pages in ((short, SHORT), (long, LONG))
    )
    assert in_long == in_short
    assert in_long < 100


def test_the_offset_for_a_time_takes_hardly_more_work_in_a_long_log(
    logs: tuple[Path, Topic, Topic],
) -> None:
    path, _, long = logs
    steps = work(
        path, lambda c: offsets_for_timestamps(c, long.uuid, [(UNPARTITIONED, NOON - LONG // 3)])
    )
    assert steps < 1_000
