"""SQLite's faults: whatever fails, nothing of the transaction is visible and the next one works."""

import resource
import sqlite3
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from fix_metadata import SCHEMA, A, B, C, Clock, MetadataUnderTest, batch_of, offsets_of

from wings_core.errors import Internal, ResourceExhausted, TopicNotFound, Unavailable
from wings_core.metadata.sqlite import SqliteMetadata
from wings_core.metadata.sqlite.connections import CommitCache
from wings_core.metadata.sqlite.writer import FENCE, FENCE_TRIES
from wings_core.model import Position, Topic, TopicConfig
from wings_core.names import DEFAULT_NAMESPACE
from wings_core.partitions import UNPARTITIONED


def io_error() -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR
    return error


@dataclass
class Faults:
    """What goes wrong on the connections of one store."""

    fail: Callable[[str], bool] = lambda _: False
    """Tells, before a statement runs, whether it fails instead."""
    after: Callable[[str], None] = lambda _: None
    """Called after each statement."""
    connections: list[sqlite3.Connection] = field(default_factory=list[sqlite3.Connection])

    @contextmanager
    def failing(self, *statements: str) -> Generator[None]:
        """Let statements that begin with one of these fail during the block."""
        before = self.fail
        self.fail = lambda sql: sql.startswith(statements)
        try:
            yield
        finally:
            self.fail = before

    def connection_type(self) -> type[sqlite3.Connection]:
        faults = self

        class Connection(sqlite3.Connection):
            def __init__(self, *args: Any, **options: Any) -> None:
                super().__init__(*args, **options)
                faults.connections.append(self)

            def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
                if faults.fail(sql):
                    raise io_error()
                cursor = super().execute(sql, parameters)
                faults.after(sql)
                return cursor

            def executemany(self, sql: str, parameters: Iterable[Any], /) -> sqlite3.Cursor:
                if faults.fail(sql):
                    raise io_error()
                return super().executemany(sql, parameters)

        return Connection


@pytest.fixture
def faults() -> Faults:
    return Faults()


@pytest.fixture
def metadata(faults: Faults, tmp_path: Path) -> Iterator[MetadataUnderTest]:
    def open_metadata(clock: Clock) -> SqliteMetadata:
        return SqliteMetadata(
            tmp_path / "metadata.db", clock=clock, connection_type=faults.connection_type()
        )

    under_test = MetadataUnderTest(open_metadata)
    yield under_test
    under_test.opened.close()


def commit(metadata: MetadataUnderTest, topic: Topic, sequence: int = 1) -> None:
    """Commit to a known and a new partition, for a producer, in a new folio."""
    batch = batch_of(topic, {A: 1, B: 1}, sequence=("p", sequence), folio="folio-2")
    metadata.registry.commit([batch])


def prepared_topic(metadata: MetadataUnderTest) -> Topic:
    topic = metadata.create_topic("key")
    metadata.registry.commit([batch_of(topic, {A: 1}, sequence=("p", 0))])
    return topic


def check_nothing_came(metadata: MetadataUnderTest, topic: Topic) -> None:
    assert offsets_of(metadata.registry, topic, A) == [(0, 0)]
    assert offsets_of(metadata.registry, topic, B) == []
    assert metadata.registry.live_folios() == {"folio-1"}


def check_the_next_commit_works(metadata: MetadataUnderTest, topic: Topic) -> None:
    commit(metadata, topic)
    assert offsets_of(metadata.registry, topic, A) == [(0, 0), (1, 1)]
    metadata.reopen()
    assert offsets_of(metadata.registry, topic, A) == [(0, 0), (1, 1)]
    assert offsets_of(metadata.registry, topic, B) == [(0, 0)]


COMMIT_STATEMENTS = 14
"""About as many statements as a commit has; the last of them is COMMIT."""


@pytest.mark.parametrize("number", range(COMMIT_STATEMENTS))
def test_a_commit_that_fails_at_any_statement_leaves_nothing(
    metadata: MetadataUnderTest, faults: Faults, number: int
) -> None:
    topic = prepared_topic(metadata)
    seen: list[str] = []

    def fail(sql: str) -> bool:
        seen.append(sql)
        return len(seen) == number + 1

    faults.fail = fail
    try:
        commit(metadata, topic)
    except Internal:
        faults.fail = lambda _: False
        check_nothing_came(metadata, topic)
        check_the_next_commit_works(metadata, topic)
    else:
        faults.fail = lambda _: False
        assert len(seen) <= number, "the fault was not noticed"


def test_the_statements_of_a_commit_are_all_tried(
    metadata: MetadataUnderTest, faults: Faults
) -> None:
    topic = prepared_topic(metadata)
    seen: list[str] = []
    faults.after = seen.append
    commit(metadata, topic)
    assert seen[-1] == "COMMIT"
    # And up to five that write many rows, which `after` is not told of.
    assert len(seen) + 5 <= COMMIT_STATEMENTS


def test_an_interrupt_after_the_commit_gives_no_offset_out_twice(
    metadata: MetadataUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = prepared_topic(metadata)
    before = offsets_of(metadata.registry, topic, A)
    with monkeypatch.context() as patched:

        def interrupt(_: object) -> None:
            raise KeyboardInterrupt

        patched.setattr(CommitCache, "confirm", interrupt)
        with pytest.raises(KeyboardInterrupt):
            commit(metadata, topic)
    committed = offsets_of(metadata.registry, topic, A)
    assert len(committed) > len(before)
    commit(metadata, topic, 2)
    after = offsets_of(metadata.registry, topic, A)
    assert after[: len(committed)] == committed
    starts = [start for start, _ in after]
    assert starts == [0, *(end + 1 for _, end in after[:-1])]


def test_a_commit_that_failed_is_fenced_off(metadata: MetadataUnderTest, faults: Faults) -> None:
    topic = prepared_topic(metadata)
    seen: list[str] = []
    faults.after = seen.append
    failed: list[str] = []

    def fail_first_commit(sql: str) -> bool:
        failing = sql == "COMMIT" and not failed
        failed.extend([sql] * failing)
        return failing

    faults.fail = fail_first_commit
    with pytest.raises(Internal):
        commit(metadata, topic)
    undone = seen.index("ROLLBACK")
    assert [sql.split(" ")[0] for sql in seen[undone:]] == [
        "ROLLBACK",
        "BEGIN",
        "INSERT",
        "COMMIT",
    ]
    assert "INTO fences" in seen[undone + 2]
    check_the_next_commit_works(metadata, topic)


@pytest.mark.parametrize("fences", range(FENCE_TRIES + 1))
def test_a_commit_that_failed_is_in_doubt_where_no_fence_is_made(
    metadata: MetadataUnderTest, faults: Faults, fences: int
) -> None:
    topic = prepared_topic(metadata)
    left = 1 + fences
    seen: list[str] = []

    def fail(sql: str) -> bool:
        nonlocal left
        left -= sql == "COMMIT"
        return sql == "COMMIT" and left >= 0

    faults.fail = fail
    with pytest.raises((Internal, Unavailable)) as refused:
        commit(metadata, topic)
    assert refused.value.facts.get("in_doubt", False) is (fences == FENCE_TRIES)
    check_nothing_came(metadata, topic)
    faults.after = seen.append
    check_the_next_commit_works(metadata, topic)
    assert [sql for sql in seen if "INTO fences" in sql] == [FENCE] * (fences == FENCE_TRIES)


def test_a_connection_that_cannot_roll_back_is_replaced(
    metadata: MetadataUnderTest, faults: Faults, caplog: pytest.LogCaptureFixture
) -> None:
    topic = prepared_topic(metadata)
    check_nothing_came(metadata, topic)
    before = len(faults.connections)
    with faults.failing("COMMIT", "ROLLBACK"), pytest.raises(Unavailable, match="not known"):
        commit(metadata, topic)
    assert "its connection is replaced" in caplog.text
    check_nothing_came(metadata, topic)
    check_the_next_commit_works(metadata, topic)
    assert len(faults.connections) > before


def test_a_commit_that_failed_wakes_nobody(metadata: MetadataUnderTest, faults: Faults) -> None:
    topic = prepared_topic(metadata)
    calls: list[None] = []
    with metadata.registry.watch([Position(topic.uuid, B, 0)], lambda: calls.append(None)):
        with faults.failing("COMMIT"), pytest.raises(Unavailable):
            commit(metadata, topic)
        assert calls == []
        commit(metadata, topic)
        assert len(calls) == 1


def test_a_topic_is_not_forgotten_by_a_deletion_that_failed(
    metadata: MetadataUnderTest, faults: Faults
) -> None:
    topic = prepared_topic(metadata)
    with faults.failing("COMMIT"):
        with pytest.raises(Unavailable):
            metadata.admin.delete_topic(topic.name)
        with pytest.raises(Unavailable):
            metadata.admin.alter_topic(topic.name, TopicConfig(batch_bytes_max=1))
        with pytest.raises(Unavailable):
            metadata.admin.create_topic(DEFAULT_NAMESPACE.topic("other"), SCHEMA)
    assert metadata.admin.list_topics(DEFAULT_NAMESPACE) == [topic]
    assert metadata.admin.get_topic(topic.name) == topic
    commit(metadata, topic)


def test_a_purge_that_failed_is_done_again(metadata: MetadataUnderTest, faults: Faults) -> None:
    topic = prepared_topic(metadata)
    metadata.admin.delete_topic(topic.name)
    for statement in (
        "DELETE FROM pages",
        "UPDATE folios",
        "WITH old AS MATERIALIZED (SELECT id FROM topics",
        "COMMIT",
    ):
        with faults.failing(statement), pytest.raises((Internal, Unavailable)):
            metadata.registry.purge(100)
        assert metadata.registry.live_folios() == {"folio-1"}
    assert not metadata.registry.purge(100)
    assert metadata.registry.live_folios() == set()


def test_a_reader_that_failed_is_replaced(metadata: MetadataUnderTest, faults: Faults) -> None:
    topic = prepared_topic(metadata)
    for _ in range(10):
        with faults.failing("SELECT", "\nSELECT"), pytest.raises(Internal):
            metadata.registry.locate(topic.uuid, C, 0, 1)  # Not in memory.
        with faults.failing("SELECT"), pytest.raises(Internal):
            metadata.registry.offset_for_timestamp(topic.uuid, A, 0)
    check_nothing_came(metadata, topic)
    metadata.admin.delete_topic(topic.name)
    for _ in range(10):
        with pytest.raises(TopicNotFound):
            metadata.registry.offset_for_timestamp(topic.uuid, A, 0)


def test_a_commit_between_the_look_and_the_wait_is_heard(
    metadata: MetadataUnderTest, faults: Faults
) -> None:
    topic = prepared_topic(metadata)
    calls: list[None] = []
    looks: list[str] = []

    def commit_after_the_look(sql: str) -> None:
        if "SELECT next_offset FROM partitions" in sql:
            looks.append(sql)
            faults.after = lambda _: None
            commit(metadata, topic)

    faults.after = commit_after_the_look
    with metadata.registry.watch([Position(topic.uuid, B, 0)], lambda: calls.append(None)):
        assert len(looks) == 1
        assert len(calls) >= 1


def commits_until_full(metadata: MetadataUnderTest, topic: Topic) -> int:
    """Commit to two partitions until the disk is full; return how often that worked."""
    for commits in range(10_000):
        try:
            metadata.registry.commit([batch_of(topic, {A: 1, B: 1})])
        except ResourceExhausted:
            return commits
    raise AssertionError("the disk has no end")


def test_a_topic_altered_while_it_is_read_is_not_remembered_as_it_was(
    metadata: MetadataUnderTest, faults: Faults
) -> None:
    topic = prepared_topic(metadata)
    config = TopicConfig(batch_bytes_max=1)

    def alter_after_the_read(sql: str) -> None:
        if sql.startswith("SELECT topics.uuid"):
            faults.after = lambda _: None
            metadata.admin.alter_topic(topic.name, config)

    faults.after = alter_after_the_read
    metadata.admin.get_topic(topic.name)
    assert metadata.admin.get_topic(topic.name).config == config


def test_on_a_full_disk_a_commit_is_refused_and_readers_go_on(
    metadata: MetadataUnderTest, faults: Faults
) -> None:
    topic = prepared_topic(metadata)
    metadata.push(topic, 1, B)
    writer = faults.connections[0]
    ((pages,),) = writer.execute("PRAGMA page_count")
    writer.execute(f"PRAGMA max_page_count={pages + 4}").fetchall()
    pushed = 1 + commits_until_full(metadata, topic)
    assert len(offsets_of(metadata.registry, topic, A)) == pushed
    assert len(offsets_of(metadata.registry, topic, B)) == pushed
    with pytest.raises(ResourceExhausted):
        metadata.registry.commit([batch_of(topic, {A: 1, B: 1})] * 1_000)
    assert len(offsets_of(metadata.registry, topic, A)) == pushed
    writer.execute(f"PRAGMA max_page_count={1 << 30}").fetchall()
    metadata.registry.commit([batch_of(topic, {A: 1, B: 1})])
    assert offsets_of(metadata.registry, topic, A)[-1] == (pushed, pushed)


@contextmanager
def files_no_larger_than(size: int) -> Generator[None]:
    """Let the system refuse writes beyond a size, in all files of this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_commit_whose_write_the_system_refuses_leaves_nothing(
    metadata: MetadataUnderTest, tmp_path: Path
) -> None:
    topic = prepared_topic(metadata)
    log = tmp_path / "metadata.db-wal"
    # Room for the first frames of the transaction, not for all, and not for the fence.
    with (
        files_no_larger_than(log.stat().st_size + 4096 + 500),
        pytest.raises((Internal, ResourceExhausted)),
    ):
        commit(metadata, topic)
    check_nothing_came(metadata, topic)
    check_the_next_commit_works(metadata, topic)


def test_a_lock_held_by_another_process_is_unavailable(
    metadata: MetadataUnderTest, faults: Faults, tmp_path: Path
) -> None:
    topic = prepared_topic(metadata)
    faults.connections[0].execute("PRAGMA busy_timeout=1")
    other = sqlite3.connect(tmp_path / "metadata.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(Unavailable):
        commit(metadata, topic)
    check_nothing_came(metadata, topic)
    other.execute("ROLLBACK")
    other.close()
    check_the_next_commit_works(metadata, topic)


def test_closing_twice_is_closing_once(metadata: MetadataUnderTest) -> None:
    metadata.opened.close()
    metadata.opened.close()
    with pytest.raises(Unavailable):
        metadata.registry.locate("topic", UNPARTITIONED, 0, 1)
