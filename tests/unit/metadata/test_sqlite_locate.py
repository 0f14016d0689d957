"""Looking into the index takes the same work in a long log as in a short one."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from fix_calls import Calls
from fix_metadata import NOON, SCHEMA, A, B, batch_of

from wings_core.errors import TopicNotFound
from wings_core.metadata.sqlite import SqliteMetadata
from wings_core.metadata.sqlite.connections import CommitCache
from wings_core.metadata.sqlite.database import SqliteConnection
from wings_core.metadata.sqlite.locate import locate, offsets_for_timestamps
from wings_core.model import INLINE_SUFFIX, Accepted, InlineFolio, Topic
from wings_core.names import DEFAULT_NAMESPACE
from wings_core.partitions import UNPARTITIONED

SHORT, LONG = 10, 20_000
"""Pages of the two logs."""


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Topic, Topic]:
    path = tmp_path_factory.mktemp("logs") / "metadata.db"
    with SqliteMetadata(path, clock=lambda: NOON) as metadata:
        topics: list[Topic] = []
        for pages in (SHORT, LONG):
            topic = metadata.admin.create_topic(DEFAULT_NAMESPACE.topic(f"t{pages}"), SCHEMA)
            results = metadata.registry.commit(
                [
                    batch_of(topic, {UNPARTITIONED: 2}, timestamp=NOON - pages + number)
                    for number in range(pages)
                ]
            )
            assert all(isinstance(result, Accepted) for result in results)
            topics.append(topic)
    return path, topics[0], topics[1]


def work(path: Path, ask: Callable[[SqliteConnection], object]) -> int:
    """Count the steps of SQLite's machine."""
    steps = 0

    def count() -> int:
        nonlocal steps
        steps += 1
        return 0

    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        ask(SqliteConnection(connection, CommitCache()))  # Reads the schema.
        connection.set_progress_handler(count, 1)
        ask(SqliteConnection(connection, CommitCache()))
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
    assert in_long <= in_short + 5, "a tree that is deeper takes a step more"
    assert in_long < 100


def test_the_offset_for_a_time_takes_hardly_more_work_in_a_long_log(
    logs: tuple[Path, Topic, Topic],
) -> None:
    path, _, long = logs
    steps = work(
        path, lambda c: offsets_for_timestamps(c, long.uuid, [(UNPARTITIONED, NOON - LONG // 3)])
    )
    assert steps < 1_000


def test_what_the_last_commit_appended_is_found_in_memory_as_it_lies_in_the_database(
    tmp_path: Path,
) -> None:
    statements: list[str] = []

    class Counted(sqlite3.Connection):
        def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
            statements.append(sql)
            return super().execute(sql, parameters)

    path = tmp_path / "metadata.db"
    with (
        SqliteMetadata(path, clock=lambda: NOON, connection_type=Counted) as metadata,
        closing(sqlite3.connect(path, isolation_level=None)) as beside,
    ):
        topic = metadata.admin.create_topic(DEFAULT_NAMESPACE.topic("t"), SCHEMA, "key")
        commit = metadata.registry.commit
        commit([batch_of(topic, {A: 3, B: 1}, timestamp=NOON)])
        metadata.maintenance.expire(topic.uuid, A, age_us=None, bytes_kept=0, pages_max=100)
        metadata.registry.locate(topic.uuid, B, 1, 1)  # Opens a connection.
        for last in range(4, 10, 3):
            in_inline = f"folio-{last}{INLINE_SUFFIX}"
            commit(
                [
                    batch_of(topic, {A: 1}, timestamp=NOON + last),
                    batch_of(topic, {A: 2, B: 1}, timestamp=NOON + last + 1, folio=in_inline),
                ],
                inline=InlineFolio(in_inline, bytes(200)),
            )
            for partition, first, end in ((A, last - 1, last + 2), (B, last // 3, last // 3 + 1)):
                for offset in range(first, end):
                    for messages_max in (1, 2, 100):
                        statements.clear()
                        found = metadata.registry.locate(
                            topic.uuid, partition, offset, messages_max
                        )
                        assert not statements
                        asked = SqliteConnection(beside, CommitCache())
                        assert found == locate(asked, topic.uuid, partition, offset, messages_max)
        assert metadata.registry.locate(topic.uuid, A, 4, 1).locations, "of an earlier commit"
        assert statements
        metadata.admin.delete_topic(DEFAULT_NAMESPACE.topic("t"))
        with pytest.raises(TopicNotFound):
            metadata.registry.locate(topic.uuid, A, 8, 1)


def test_what_the_database_shows_of_a_commit_is_found_before_memory_has_it(
    tmp_path: Path, calls: Calls
) -> None:
    seen: list[tuple[int, int]] = []
    with SqliteMetadata(tmp_path / "metadata.db", clock=lambda: NOON) as metadata:
        topic = metadata.admin.create_topic(DEFAULT_NAMESPACE.topic("t"), SCHEMA)
        registry = metadata.registry

        def look_first(_: CommitCache) -> None:
            end = registry.partition_state(topic.uuid, UNPARTITIONED).next_offset
            located = registry.locate(topic.uuid, UNPARTITIONED, end - 2, 9)
            seen.append((end, located.log_end_offset))

        registry.commit([batch_of(topic, {UNPARTITIONED: 1}, timestamp=NOON)])
        calls.before(CommitCache, "confirm", look_first)
        registry.commit([batch_of(topic, {UNPARTITIONED: 1}, timestamp=NOON)])
    assert seen == [(2, 2)]
