"""The journal of lone commits where something fails, or someone looks at the file."""

import itertools
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from fix_files import files_no_larger_than
from fix_looks import all_of
from fix_metadata import SCHEMA, A, B

from wings_core.check import CheckReport, directory
from wings_core.check.directory import check_directory
from wings_core.check.journal import Journal, read_journal
from wings_core.data_directory import DataDirectory
from wings_core.errors import Internal, ResourceExhausted, StorageCorrupt, WingsError
from wings_core.metadata.results import RESULTS_KEPT_MAX
from wings_core.metadata.sqlite import SqliteMetadata, database, journal, writer
from wings_core.metadata.sqlite.database import Connection
from wings_core.metadata.sqlite.database_file import PAGE_BYTES
from wings_core.metadata.sqlite.integrity import metadata_problems
from wings_core.model import (
    Accepted,
    CommitBatch,
    CommitResult,
    ExpectedOffset,
    InlineFolio,
    PageAddress,
    Sequence,
    StoredPage,
    Topic,
)
from wings_core.names import DEFAULT_NAMESPACE
from wings_core.partitions import UNPARTITIONED, Partition
from wings_core.repair import repair_directory
from wings_core.repair.journal import take_journal
from wings_core.repair.salvage import salvage
from wings_core.storage.inline_folios import InlineFolios
from wings_core.storage.page import encode_page


def rows_of_journal(path: Path) -> int:
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
        ((rows,),) = connection.execute("SELECT count(*) FROM journal")
    return rows


@dataclass
class Store:
    """A store, and what it is asked to fail at."""

    path: Path
    fail: Callable[[str], bool] = lambda _: False
    after: Callable[[str], None] = lambda _: None
    journal_applied: int = 0
    modes: list[int] = field(default_factory=list[int])
    """What `PRAGMA synchronous` is at each COMMIT."""
    names: Iterator[str] = field(
        default_factory=lambda: map("{:06}.inline".format, itertools.count())
    )

    def __post_init__(self) -> None:
        self.metadata = SqliteMetadata(self.path, connection_type=self._connection_type())
        self.topic = self.metadata.admin.create_topic(DEFAULT_NAMESPACE.topic("t"), SCHEMA, "key")

    @property
    def journaled(self) -> int:
        """How many rows the journal has."""
        return rows_of_journal(self.path)

    def push(
        self,
        partition: Partition = A,
        *,
        name: str | None = None,
        expected: int | None = None,
        sequence: int | None = None,
        size: int = 20,
    ) -> CommitResult:
        folio = name or next(self.names)
        page = StoredPage(partition, 1, PageAddress(folio, 0, size))
        batch = CommitBatch(
            0,
            self.topic.uuid,
            (page,),
            sequence=None if sequence is None else Sequence("producer", sequence),
            expected=None if expected is None else ExpectedOffset(partition, expected),
        )
        (result,) = self.metadata.registry.commit(
            [batch], None, InlineFolio(folio, folio[:6].encode() + bytes(size - 6))
        )
        return result

    def end(self, partition: Partition = A) -> int:
        return self.metadata.registry.partition_state(self.topic.uuid, partition).next_offset

    def killed(self, directory: Path) -> Path:
        """Copy the files as a kill of the process would leave them."""
        directory.mkdir()
        for suffix in ("", "-wal"):
            shutil.copyfile(f"{self.path}{suffix}", directory / f"{self.path.name}{suffix}")
        return directory / self.path.name

    def _connection_type(self) -> type[sqlite3.Connection]:
        store = self

        class Connection(sqlite3.Connection):
            def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
                if store.fail(sql):
                    error = sqlite3.OperationalError("disk I/O error")
                    error.sqlite_errorcode = sqlite3.SQLITE_IOERR
                    raise error
                if sql == "COMMIT":
                    store.modes += super().execute("PRAGMA synchronous").fetchone()
                store.journal_applied += sql == "DELETE FROM journal"
                cursor = super().execute(sql, parameters)
                store.after(sql)
                return cursor

        return Connection


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """Return a store with two partitions, whose next commits are journaled."""
    monkeypatch.setattr(writer, "CACHE_KIB", 16)  # SQLite would write before it commits.
    opened = Store(tmp_path / "metadata.db")
    for partition in (A, B):
        assert isinstance(opened.push(partition), Accepted)
    yield opened
    opened.fail = lambda _: False
    opened.metadata.close()


def test_commits_are_applied_once_there_are_many(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "ROWS_MAX", 5)
    for _ in range(20):
        store.push()
        assert store.journaled <= 5
    assert store.journal_applied == 3
    assert store.end() == 21


def test_what_applies_the_journal_waits_for_no_sync_and_nothing_else_does_without(
    store: Store,
) -> None:
    full, normal = 2, 1
    store.modes.clear()
    store.push()
    assert store.end() == 2
    store.metadata.registry.commit_offsets("consumer", [(store.topic, A, 1)])
    assert store.modes == [full, normal, full]


def test_a_large_page_is_not_journaled(store: Store) -> None:
    store.push(size=journal.BYTES_MAX)
    assert store.journaled == 1
    store.push(size=journal.BYTES_MAX + 1)
    assert store.journaled == 0
    assert store.end() == 3


@pytest.mark.parametrize(
    "pages",
    [
        [
            StoredPage(A, 1, PageAddress("f.inline", 0, 10)),
            StoredPage(B, 1, PageAddress("f.inline", 10, 10)),
        ],
        [StoredPage(A, 1, PageAddress("f.inline", 10, 10))],
        [StoredPage(A, 1, PageAddress("of another flush", 0, 20))],
        [StoredPage(A, 1, PageAddress("f.inline", 0, 20), first_row=3, slice_bytes=10)],
    ],
    ids=["two pages", "a part", "another folio", "a slice"],
)
def test_what_is_not_all_of_its_folio_is_not_journaled(
    store: Store, pages: list[StoredPage]
) -> None:
    batch = CommitBatch(0, store.topic.uuid, tuple(pages))
    (result,) = store.metadata.registry.commit([batch], None, InlineFolio("f.inline", bytes(20)))
    assert isinstance(result, Accepted)
    assert store.journaled == 0
    for page in pages:
        located = store.metadata.registry.locate(store.topic.uuid, page.partition, 1, 1)
        ((address, first_row, slice_bytes),) = [
            (each.address, each.first_row, each.slice_bytes) for each in located.locations
        ]
        assert (address, first_row, slice_bytes) == (
            page.address, page.first_row, page.slice_bytes
        )  # fmt: skip


def test_a_close_leaves_no_journal(store: Store) -> None:
    store.push()
    assert store.journaled == 1
    store.metadata.close()
    assert store.journaled == 0


def test_a_look_under_way_need_not_see_what_is_journaled_meanwhile(store: Store) -> None:
    looks = 0

    def work(connection: Connection) -> None:
        nonlocal looks
        looks += 1
        for _ in range(2):
            connection.execute("SELECT count(*) FROM pages").fetchone()
            store.push()

    store.metadata._database.read(work)  # pyright: ignore[reportPrivateUsage]
    assert looks == 1
    assert store.end() == 3


def test_of_more_results_of_a_producer_than_are_kept_the_last_are(store: Store) -> None:
    results = [store.push(sequence=number) for number in range(1 + 2 * RESULTS_KEPT_MAX)]
    assert store.journaled == 2 * RESULTS_KEPT_MAX
    for number in (-RESULTS_KEPT_MAX, -1):
        repeated = store.push(sequence=2 * RESULTS_KEPT_MAX + 1 + number)
        first = results[number]
        assert isinstance(first, Accepted)
        assert repeated == Accepted(first.committed, replayed=True)


def test_who_looks_after_each_commit_has_few_of_them_journaled(store: Store) -> None:
    for number in range(2, 2 + 10 * (journal.WITHOUT + 1)):
        store.push()
        assert store.end() == number
    assert store.journal_applied == 10


def test_a_folio_named_again_is_refused_and_no_other(store: Store) -> None:
    store.push(name="second.inline")
    assert store.journaled
    for name in ("second.inline", "000000.inline"):
        with pytest.raises(Internal):
            store.push(name=name)
    assert store.end() == 2
    for _ in range(journal.WITHOUT + 3):
        store.push()
    assert store.journaled
    with pytest.raises(Internal):
        store.push(name="second.inline")
    assert isinstance(store.push(), Accepted)
    assert store.end() == journal.WITHOUT + 6


def test_a_partition_whose_first_commit_was_refused_gets_one(tmp_path: Path) -> None:
    store = Store(tmp_path / "metadata.db")
    store.push(B)
    assert not isinstance(store.push(A, expected=5), Accepted)
    assert isinstance(store.push(A), Accepted)
    assert isinstance(store.push(A), Accepted)
    assert (store.end(A), store.end(B)) == (2, 1)
    store.metadata.close()


def test_on_a_full_disk_all_that_was_acknowledged_is_seen(store: Store, tmp_path: Path) -> None:
    for number in range(40):
        store.push(A if number % 3 else B)
    assert store.journaled == 40
    with SqliteMetadata(store.killed(tmp_path / "killed")) as other:
        expected = all_of(other, [store.topic])
    with files_no_larger_than(tmp_path.joinpath("metadata.db-wal").stat().st_size):
        assert repr(all_of(store.metadata, [store.topic])) == repr(expected)
        with pytest.raises((Internal, ResourceExhausted)):
            store.push()
        assert repr(all_of(store.metadata, [store.topic])) == repr(expected)
        assert store.metadata.registry.read_inline(["000020.inline"])
    assert store.journaled == 40
    store.push()
    assert store.journaled == 0
    assert store.end(A) + store.end(B) == 43


def test_on_a_full_disk_a_large_journal_is_seen(store: Store, tmp_path: Path) -> None:
    for _ in range(600):  # More than the writer keeps of the database in memory.
        store.push(size=journal.BYTES_MAX)
    with files_no_larger_than(tmp_path.joinpath("metadata.db-wal").stat().st_size):
        assert store.end() == 601
        copying = ExitStack()
        copy = copying.enter_context(store.metadata.copying())
    with copying:
        copy(tmp_path / "copy")  # To where there is room.
    with SqliteMetadata(tmp_path / "copy") as metadata:
        assert metadata.registry.partition_state(store.topic.uuid, A).next_offset == 601
    assert store.journaled == 600


def test_a_start_on_a_full_disk_finds_all_that_was_acknowledged(
    store: Store, tmp_path: Path
) -> None:
    for _ in range(40):
        store.push()
    copy = store.killed(tmp_path / "killed")
    with (
        files_no_larger_than(copy.with_name("metadata.db-wal").stat().st_size),
        SqliteMetadata(copy) as metadata,
    ):
        assert metadata.registry.partition_state(store.topic.uuid, A).next_offset == 41
    assert rows_of_journal(copy) == 40


def test_an_interrupt_leaves_no_writer_that_keeps_all_in_memory(store: Store) -> None:
    store.push()
    seen: list[str] = []

    def interrupt(sql: str) -> None:
        seen.append(sql)
        if sql.startswith("PRAGMA cache_spill=") and sql != "PRAGMA cache_spill=1":
            raise KeyboardInterrupt

    store.fail = lambda sql: sql == "COMMIT"
    store.after = interrupt
    with pytest.raises(KeyboardInterrupt):
        store.end()
    assert seen[-2:] == ["PRAGMA cache_spill=1", "ROLLBACK"]


def test_what_waits_for_no_sync_moves_no_log_into_the_database(store: Store) -> None:
    for _ in range(120):
        store.push(size=journal.BYTES_MAX)
    assert store.journaled == 120
    before = store.path.read_bytes()
    assert store.end() == 121  # The log has more than its thousand pages with it.
    assert store.path.read_bytes() == before
    store.push()
    assert store.path.read_bytes() != before


def test_an_interrupt_leaves_no_writer_without_syncs(store: Store) -> None:
    store.push()
    interrupted = False

    def interrupt(sql: str) -> None:
        nonlocal interrupted
        if sql == "PRAGMA synchronous=NORMAL" and not interrupted:
            interrupted = True
            raise KeyboardInterrupt

    store.after = interrupt
    with pytest.raises(KeyboardInterrupt):
        store.end()
    seen: list[str] = []
    store.after = seen.append
    store.metadata.registry.commit_offsets("consumer", [(store.topic, A, 1)])
    settled = seen.index("COMMIT")
    assert seen[settled + 1 :][:3] == [*writer.SYNCED, "BEGIN IMMEDIATE"]
    assert store.end() == 2


@pytest.mark.parametrize(("seconds", "tries"), [(1_000.0, 1), (0.0, 5)])
def test_looks_that_cannot_tell_the_tables_try_so_again_after_a_while(
    store: Store, monkeypatch: pytest.MonkeyPatch, seconds: float, tries: int
) -> None:
    monkeypatch.setattr(database, "SETTLE_AGAIN_SECONDS", seconds)
    store.push()
    store.push()
    seen: list[str] = []

    def fail(sql: str) -> bool:
        seen.append(sql)
        return sql == "COMMIT"

    store.fail = fail
    for _ in range(5):
        assert store.end() == 3
    assert seen.count("COMMIT") == 2 * tries  # Of a look, and of the fence after it.


def test_commits_between_looks_that_cannot_tell_the_tables_are_seen(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "SETTLE_AGAIN_SECONDS", 1_000.0)
    monkeypatch.setattr(journal, "MANY", 0)
    store.push()
    store.fail = lambda sql: sql == "COMMIT"
    assert store.end() == 2
    store.fail = lambda _: False
    for end in range(3, 9):
        store.push()  # The first of each two applies what is journaled, and is not.
        if end % 2 == 0:
            assert store.journaled == 1
            assert store.end() == end
    assert store.end() == 8


@pytest.mark.parametrize("number", range(11))
def test_a_look_goes_on_whichever_statement_fails_that_tells_the_tables(
    store: Store, number: int
) -> None:
    store.push(A)
    store.push(B)
    left = number

    def fail(_: str) -> bool:
        nonlocal left
        left -= 1
        return left == -1

    store.fail = fail
    assert (store.end(A), store.end(B)) == (2, 2)
    store.fail = lambda _: False
    assert (store.end(A), store.end(B)) == (2, 2)
    assert isinstance(store.push(A), Accepted)
    assert store.end(A) == 3


def test_a_power_cut_that_leaves_two_transactions_in_part_is_no_damage(
    store: Store, tmp_path: Path
) -> None:
    log = tmp_path / "metadata.db-wal"
    store.push()
    synced = log.stat().st_size
    assert store.end() == 2  # The tables are told, without a sync.
    store.push()  # Power is lost in its sync.
    copy = store.killed(tmp_path / "cut")
    frames = bytearray(log.read_bytes())
    frames[synced : synced + 4120] = bytes(4120)  # One of the first did not reach the disk.
    copy.with_name("metadata.db-wal").write_bytes(frames)
    assert list(metadata_problems(copy)) == []
    with SqliteMetadata(copy) as metadata:
        assert metadata.registry.partition_state(store.topic.uuid, A).next_offset == 2


def test_a_start_that_cannot_tell_the_tables_closes_what_it_opened(
    store: Store, tmp_path: Path
) -> None:
    store.push()
    copy = store.killed(tmp_path / "killed")
    with closing(sqlite3.connect(copy)) as connection:
        connection.execute("UPDATE journal SET start_offset = 7")
        connection.commit()
    before = set(threading.enumerate())
    with pytest.raises(StorageCorrupt, match="does not continue partition 1"):
        SqliteMetadata(copy, notes=tmp_path / "notes")
    assert set(threading.enumerate()) == before
    used = [each.resolve() for each in Path("/proc/self/fd").iterdir()]
    assert not [each for each in used if each.is_relative_to(copy.parent.resolve())]


# What a check sees of it. #########################################################################


@dataclass
class Written:
    """A data directory that was left with a journal, and what was pushed to it."""

    path: Path
    topic: Topic

    def change(self, statement: str) -> None:
        with closing(sqlite3.connect(DataDirectory.open_read_only(self.path).metadata)) as database:
            database.execute(statement)
            database.commit()

    def check(self) -> CheckReport:
        return check_directory(self.path)


@pytest.fixture
def written(tmp_path: Path) -> Written:
    """Return a directory with a page in the tables and four of two rows in the journal."""
    with (
        DataDirectory.open(tmp_path / "data") as directory,
        closing(SqliteMetadata(directory.metadata)) as metadata,
    ):
        topic = metadata.admin.create_topic(
            DEFAULT_NAMESPACE.topic("t"), pa.schema([pa.field("n", pa.int64())])
        )
        inline = InlineFolios(metadata.registry.read_inline)
        for first in range(0, 10, 2):
            rows = pa.record_batch([pa.array([first, first + 1])], schema=topic.schema)
            folio, (address,) = inline.begin([encode_page(rows, topic.uuid)])
            page = StoredPage(UNPARTITIONED, 2, address)
            metadata.registry.commit([CommitBatch(0, topic.uuid, (page,))], None, folio)
        assert rows_of_journal(directory.metadata) == 4
        killed = tmp_path / "killed"
        shutil.copytree(directory.path, killed)
    return Written(killed, topic)


def test_a_check_counts_what_is_in_the_journal(written: Written) -> None:
    done: list[int] = []
    report = check_directory(written.path, progress=done.append)
    assert report.problems == ()
    assert (report.partitions, report.pages, report.rows) == (1, 5, 10)
    assert done == [1, 2, 3, 4, 5]


def test_a_check_names_the_rows_of_a_damaged_page(written: Written) -> None:
    written.change("UPDATE journal SET data = zeroblob(length(data)) WHERE start_offset = 4")
    (problem,) = written.check().problems
    assert (problem.start_offset, problem.end_offset) == (4, 5)


def test_a_check_names_what_the_journal_lacks(written: Written) -> None:
    written.change("DELETE FROM journal WHERE start_offset = 4")
    (problem,) = written.check().problems
    assert (problem.message, problem.start_offset, problem.end_offset) == (
        "these offsets are in no page", 4, 5
    )  # fmt: skip
    with pytest.raises(StorageCorrupt, match="does not continue partition 1"):
        SqliteMetadata(DataDirectory.open_read_only(written.path).metadata)


def test_a_check_counts_once_what_a_server_applies_meanwhile(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_before_it_is_applied(path: Path) -> Journal:
        found = read_journal(path)
        SqliteMetadata(path).close()
        return found

    monkeypatch.setattr(directory, "read_journal", read_before_it_is_applied)
    report = written.check()
    assert (report.problems, report.pages) == ((), 5)


def test_a_check_goes_on_where_the_journal_cannot_be_read(written: Written) -> None:
    file = DataDirectory.open_read_only(written.path).metadata
    with closing(sqlite3.connect(file)) as connection:
        ((root,),) = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'journal'")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    data = bytearray(file.read_bytes())
    data[(root - 1) * PAGE_BYTES : root * PAGE_BYTES] = b"\xff" * PAGE_BYTES
    file.write_bytes(data)
    report = written.check()
    assert report.problems
    assert not [each for each in report.problems if "cannot be checked" in each.message]
    assert report.pages == 1


def test_a_check_tells_of_a_partition_that_is_not_there(written: Written) -> None:
    written.change("UPDATE journal SET partition_id = 7 WHERE start_offset = 8")
    (problem,) = written.check().problems
    assert problem.message == "the journal has it for a partition that is not there"
    with pytest.raises(WingsError):
        SqliteMetadata(DataDirectory.open_read_only(written.path).metadata)


def test_a_check_reads_the_pages_in_the_version_that_the_journal_says(written: Written) -> None:
    written.change("UPDATE journal SET schema_version = 2 WHERE start_offset = 4")
    (problem,) = written.check().problems
    assert problem.message == "it is of version 2 of the schema, and the topic has 1"
    assert (problem.start_offset, problem.end_offset) == (4, 5)


# What a repair brings of it. ######################################################################


def repaired_rows(written: Written, into: Path) -> tuple[int, list[str], CheckReport]:
    """Repair into a new directory; return the rows of it, what is lost, and what a check finds."""
    report = repair_directory(written.path, into)
    return report.rows, [problem.message for problem in report.lost], check_directory(into)


def test_a_repair_brings_what_is_in_the_journal(written: Written, tmp_path: Path) -> None:
    rows, lost, checked = repaired_rows(written, tmp_path / "new")
    assert (rows, lost, checked.problems) == (10, [], ())


def test_a_repair_brings_it_also_where_the_partition_is_lost(
    written: Written, tmp_path: Path
) -> None:
    written.change("DELETE FROM partitions")
    rows, lost, checked = repaired_rows(written, tmp_path / "new")
    assert (rows, checked.problems) == (10, ())
    assert lost == ["the end of its log is lost: it goes on at 10, and there may have been more"]


def test_a_repair_tells_of_a_damaged_row_of_the_journal(written: Written, tmp_path: Path) -> None:
    file = DataDirectory.open_read_only(written.path).metadata
    with closing(sqlite3.connect(file)) as connection:
        ((timestamp,),) = connection.execute("SELECT timestamp FROM journal WHERE start_offset = 4")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    data = file.read_bytes()
    changed = data.replace(timestamp.to_bytes(8, "big"), (timestamp + 256).to_bytes(8, "big"))
    assert changed != data
    file.write_bytes(changed)
    assert "the row of journal 2 is not what was written" in [
        problem.message for problem in written.check().problems
    ]
    report = repair_directory(written.path, tmp_path / "new")
    assert "journal: 1 rows are not what was written" in report.found
    assert [(each.message, each.start_offset, each.end_offset) for each in report.lost] == [
        ("what says where these messages lie is lost", 4, 5),
        ("small pushes of the last moment before it was stopped may be lost", None, None),
    ]
    assert report.rows == 8


def test_a_repair_takes_no_row_of_the_journal_that_was_applied(store: Store) -> None:
    store.push(sequence=0)
    store.push(sequence=1)
    columns = (
        "id, partition_id, start_offset, end_offset, timestamp, schema_version, committed_at, "
        "producer_id, sequence, committed, folio, data"
    )
    with closing(sqlite3.connect(store.path)) as connection:
        rows = connection.execute(f"SELECT {columns} FROM journal").fetchall()
        store.metadata.close()
        places = ", ".join("?" * len(rows[0]))
        connection.executemany(f"INSERT INTO journal ({columns}) VALUES ({places})", rows)
        connection.commit()
    salvaged = salvage(store.path)
    assert len(salvaged.rows("journal")) == 1
    before = {name: salvaged.rows(name) for name in salvaged.tables}
    take_journal(salvaged)
    assert {name: salvaged.rows(name) for name in salvaged.tables} == before


@pytest.mark.parametrize("known_by", ["folios", "what is lost of them", "pages"])
def test_a_repair_gives_no_folio_of_the_journal_the_id_of_another(
    store: Store, tmp_path: Path, known_by: str
) -> None:
    store.push()
    salvaged = salvage(store.killed(tmp_path / "killed"))
    folios, pages = salvaged.tables["folios"], salvaged.tables["pages"]
    used = [row["id"] for row in salvaged.rows("folios")]
    assert used == [1, 2]
    if known_by != "folios":
        folios.lost = salvaged.rows("folios") if known_by == "what is lost of them" else []
        folios.rows.clear()
    if known_by != "pages":
        pages.rows.clear()
    take_journal(salvaged)
    assert [row["id"] for row in salvaged.rows("folios") if row["name"] == "000002.inline"] == [3]
    assert [row["folio_id"] for row in salvaged.rows("pages")][-1] == 3


def test_a_repair_brings_where_producers_stand(store: Store, tmp_path: Path) -> None:
    store.push(sequence=0)
    store.push(sequence=1)
    salvaged = salvage(store.killed(tmp_path / "killed"))
    take_journal(salvaged)
    assert store.end() == 3
    applied = salvage(store.killed(tmp_path / "applied"))
    assert (len(salvaged.rows("journal")), len(applied.rows("journal"))) == (1, 0)
    for table in ("producers", "producer_results"):
        assert salvaged.rows(table) == applied.rows(table)
