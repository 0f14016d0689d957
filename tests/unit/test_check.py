from __future__ import annotations

import os
import random
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa
import pytest
from fix_calls import Calls
from pages import encode_page
from property_examples import examples

from wings_core.check import PROBLEMS_MAX, CheckReport, Problem, check_log
from wings_core.check.log import PAGES_LISTED
from wings_core.errors import Internal, WingsError
from wings_core.metadata.sqlite import SqliteMetadata
from wings_core.model import (
    Accepted,
    CommitBatch,
    Located,
    Location,
    PageAddress,
    StagedBatch,
    StageEntry,
    StoredPage,
    Topic,
    UnpublishedStage,
)
from wings_core.names import DEFAULT_NAMESPACE
from wings_core.partitions import UNPARTITIONED, Partition
from wings_core.storage.segments import SegmentStore

SCHEMA = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        pa.field("n", pa.int64()),
        pa.field("text", pa.string()),
    ]
)
A, B = Partition('"a"'), Partition('"b"')
ROWS = 10


def _batch(key: str, first: int, rows: int = ROWS) -> pa.RecordBatch:
    numbers = range(first, first + rows)
    return pa.record_batch(
        [pa.array([key] * rows), pa.array(numbers), pa.array([f"row {n}" for n in numbers])],
        schema=SCHEMA,
    )


@dataclass
class Log:
    """A log at rest, written without the server, so that anything can be wrong with it."""

    directory: Path
    metadata: SqliteMetadata = field(init=False)
    store: SegmentStore = field(init=False)
    addresses: list[PageAddress] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.metadata = SqliteMetadata(self.directory / "metadata.sqlite")
        self.store = SegmentStore(self.directory / "segments", segment_bytes_max=1 << 20)

    def create_topic(self, name: str, partition_key: str | None = None) -> Topic:
        return self.metadata.admin.create_topic(
            DEFAULT_NAMESPACE.topic(name), SCHEMA, partition_key
        )

    def push(
        self,
        topic: Topic,
        batch: pa.RecordBatch,
        partition: Partition = UNPARTITIONED,
        *,
        claimed_rows: int | None = None,
    ) -> PageAddress:
        """Commit a page, perhaps with another number of rows than it has."""
        (address,) = self.store.write([encode_page(batch, topic.uuid)])
        page = StoredPage(partition, claimed_rows or batch.num_rows, address)
        (result,) = self.metadata.registry.commit([CommitBatch(0, topic.uuid, (page,))])
        assert isinstance(result, Accepted)
        self.addresses.append(address)
        return address

    def stage(
        self,
        topic: Topic,
        stage: str,
        *pages: tuple[pa.RecordBatch, Partition],
        claimed_rows: int | None = None,
    ) -> list[PageAddress]:
        """Stage a batch of several pages, perhaps with another number of rows than they have."""
        addresses = self.store.write([encode_page(batch, topic.uuid) for batch, _ in pages])
        staged = tuple(
            StoredPage(partition, claimed_rows or batch.num_rows, address)
            for (batch, partition), address in zip(pages, addresses, strict=True)
        )
        entry = StageEntry(stage, "stream", first=True)
        commit = CommitBatch(0, topic.uuid, staged, stage=entry)
        (result,) = self.metadata.registry.commit([commit])
        assert isinstance(result, StagedBatch)
        return addresses

    def check(self) -> CheckReport:
        """Check as another process would, which only reads."""
        self.finish_segment()
        store = SegmentStore(self.directory / "segments", segment_bytes_max=1)
        return check_log(self.metadata, store)

    def finish_segment(self) -> None:
        """Have the next page go to another segment."""
        self.store.close()
        self.store = SegmentStore(self.directory / "segments", segment_bytes_max=1 << 20)

    def damage(self, address: PageAddress, at: int) -> None:
        """Change a byte of a page, counted from its end if negative."""
        path = self.directory / "segments" / address.folio
        position = address.position + at % address.length
        data = bytearray(path.read_bytes())
        data[position] ^= 0x20
        path.write_bytes(data)

    def close(self) -> None:
        self.store.close()
        self.metadata.close()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    opened = Log(tmp_path)
    yield opened
    opened.close()


@pytest.fixture
def topic(log: Log) -> Topic:
    """Return a topic of four pages of ten rows in one segment."""
    created = log.create_topic("plain")
    for first in range(0, 4 * ROWS, ROWS):
        log.push(created, _batch("x", first))
    return created


Edit = Callable[[list[Location]], list[Location]]
EditLocations = Callable[[Edit], None]


@pytest.fixture
def edit_locations(log: Log, calls: Calls) -> EditLocations:
    """Return a function that makes metadata tell of other pages than were committed."""
    registry = log.metadata.registry
    real = registry.locate

    def apply(edit: Edit) -> None:
        def edited(_: Located, uuid: str, partition: Partition, offset: int, __: int) -> Located:
            located = real(uuid, partition, 0, 1_000_000)
            pages = [page for page in edit(list(located.locations)) if page.end_offset >= offset]
            return replace(located, locations=tuple(pages))

        calls.change(registry, "locate", edited)

    return apply


def _only(report: CheckReport) -> Problem:
    assert report.problems_total == len(report.problems) == 1, report.problems
    return report.problems[0]


def _of_page(address: PageAddress, start: int, end: int, message: str) -> Problem:
    topic, partition = "tenants/default/namespaces/default/topics/plain", "null"
    return Problem(message, topic, partition, start, end, address.folio, address.position)


def test_an_empty_log_is_sound(log: Log) -> None:
    log.create_topic("plain")
    report = log.check()
    assert report == CheckReport(1, 1, 0, 0, 0, 0, (), 0, ())
    assert report.ok


def test_a_log_that_begins_within_a_page_has_nothing_wrong(log: Log) -> None:
    topic = log.create_topic("cut")
    for first in (0, ROWS):
        log.push(topic, _batch("a", first))
    log.metadata.maintenance.expire(
        topic.uuid, UNPARTITIONED, age_us=None, bytes_kept=None, before_offset=4, pages_max=9
    )
    report = log.check()
    assert (report.problems, report.pages, report.rows) == ((), 2, 2 * ROWS - 4)


def test_a_sound_log_is_counted_and_nothing_is_written(log: Log, topic: Topic) -> None:
    keyed = log.create_topic("keyed", "key")
    log.push(keyed, _batch("a", 0), A)
    log.push(keyed, _batch("b", 0), B)
    log.push(keyed, _batch("a", 10), A)
    before = {path: path.stat().st_mtime_ns for path in (log.directory / "segments").iterdir()}
    report = log.check()
    size = sum(address.length for address in log.addresses)
    assert report == CheckReport(2, 3, 7, 70, size, 0, (), 0, ())
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_progress_tells_of_every_page(log: Log, topic: Topic) -> None:
    done: list[int] = []
    check_log(log.metadata, log.store, done.append)
    assert done == [1, 2, 3, 4]


def test_more_pages_than_one_look_into_metadata_returns_are_all_checked(log: Log) -> None:
    created = log.create_topic("long")
    addresses = log.store.write([encode_page(_batch("x", 0, 1), created.uuid)] * 2_500)
    pages = [StoredPage(UNPARTITIONED, 1, address) for address in addresses]
    log.metadata.registry.commit([CommitBatch(0, created.uuid, (page,)) for page in pages])
    report = log.check()
    assert report.pages == report.rows == 2_500
    assert report.ok


@pytest.mark.parametrize("at", [0, 40, 60, 100, 300, -100])
def test_a_changed_byte_names_the_page_and_the_others_are_checked(
    log: Log, topic: Topic, at: int
) -> None:
    log.damage(log.addresses[1], at)
    report = log.check()
    problem = _only(report)
    assert problem == _of_page(log.addresses[1], 10, 19, problem.message)
    assert log.addresses[1].folio not in problem.message
    assert report.rows == 30


def test_a_truncated_segment_names_the_pages_that_are_gone(log: Log, topic: Topic) -> None:
    log.store.close()
    third = log.addresses[2]
    os.truncate(log.directory / "segments" / third.folio, third.position + 100)
    report = log.check()
    assert [problem.start_offset for problem in report.problems] == [20, 30]
    assert all("should end at byte" in problem.message for problem in report.problems)


def test_a_missing_segment_is_named(log: Log, topic: Topic) -> None:
    log.store.close()
    (log.directory / "segments" / log.addresses[0].folio).unlink()
    report = log.check()
    assert {problem.folio for problem in report.problems} == {log.addresses[0].folio}
    assert {problem.message for problem in report.problems} == {"its segment is missing"}


def test_no_segments_at_all_is_no_crash(log: Log, topic: Topic) -> None:
    log.store.close()
    for path in (log.directory / "segments").iterdir():
        path.unlink()
    (log.directory / "segments").rmdir()
    assert log.check().problems_total == 4


def test_another_number_of_rows_than_of_offsets_is_found(log: Log) -> None:
    created = log.create_topic("plain")
    address = log.push(created, _batch("x", 0), claimed_rows=11)
    message = "it has 10 rows, and offsets for 11"
    assert _only(log.check()) == _of_page(address, 0, 10, message)


def test_rows_of_another_partition_are_found(log: Log) -> None:
    keyed = log.create_topic("keyed", "key")
    log.push(keyed, _batch("a", 0), A)
    log.push(keyed, _batch("a", 10), B)
    problem = _only(log.check())
    assert (problem.partition, problem.message) == ('"b"', 'it has rows of partition "a"')


def test_rows_that_are_not_valid_are_found(log: Log) -> None:
    created = log.create_topic("plain")
    good = _batch("x", 0, 2)
    offsets = pa.array([0, 7, 3], pa.int32()).buffers()[1]
    bad_text = pa.Array.from_buffers(pa.string(), 2, [None, offsets, pa.py_buffer(b"text")])
    columns = [good.column(0), good.column(1), bad_text]
    address = log.push(created, pa.record_batch(columns, schema=SCHEMA))
    problem = _only(log.check())
    assert problem == _of_page(address, 0, 1, problem.message)
    assert "'text'" in problem.message


def test_a_null_where_none_may_be_is_found(log: Log) -> None:
    created = log.create_topic("plain")
    good = _batch("x", 0, 2)
    columns = [pa.array(["x", None]), good.column(1), good.column(2)]
    address = log.push(created, pa.record_batch(columns, names=SCHEMA.names))
    problem = _only(log.check())
    assert problem == _of_page(address, 0, 1, problem.message)
    assert "'key' may not be null" in problem.message


def test_a_page_of_another_topic_is_found(log: Log, topic: Topic) -> None:
    other = log.create_topic("other")
    (address,) = log.store.write([encode_page(_batch("x", 0), topic.uuid)])
    page = StoredPage(UNPARTITIONED, ROWS, address)
    log.metadata.registry.commit([CommitBatch(0, other.uuid, (page,))])
    problem = _only(log.check())
    assert problem.topic == str(other.name)
    assert "belongs to topic" in problem.message


def test_a_page_that_two_offsets_share_is_found(log: Log, topic: Topic) -> None:
    page = StoredPage(UNPARTITIONED, ROWS, log.addresses[1])
    log.metadata.registry.commit([CommitBatch(0, topic.uuid, (page,))])
    problem = _only(log.check())
    assert problem == _of_page(log.addresses[1], 40, 49, problem.message)
    assert "overlaps the page at byte" in problem.message
    assert "offsets 10 to 19" in problem.message


def test_a_topic_that_cannot_be_is_reported_and_its_pages_are_checked(
    log: Log, topic: Topic, calls: Calls
) -> None:
    impossible = replace(topic, partition_key="no such column")
    calls.change(log.metadata.admin, "list_topics", lambda *_: [impossible])
    report = log.check()
    assert report.problems[0].topic == str(topic.name)
    assert "no such column" in report.problems[0].message
    assert report.rows == 40


def _changed(page: int, **values: object) -> Edit:
    """Return what changes one page of those that metadata tells of."""

    def change(pages: list[Location]) -> list[Location]:
        pages[page] = pages[page]._replace(**values)  # pyright: ignore[reportArgumentType]
        return pages

    return change


def _longer(pages: list[Location]) -> list[Location]:
    address = pages[1].address
    return _changed(1, address=address._replace(length=address.length + 64))(pages)


_NO_PAGE = "no page has these offsets"
_SEGMENT = "0" * 16 + "-" + "0" * 8 + ".segment"


EDITS: list[tuple[Edit, int, int, str]] = [
    (lambda pages: [pages[0], pages[3]], 10, 29, _NO_PAGE),
    (lambda _: [], 0, 39, _NO_PAGE),
    (lambda pages: pages[:3], 30, 39, _NO_PAGE),
    (lambda pages: pages[1:], 0, 9, _NO_PAGE),
    (_changed(2, start_offset=15), 15, 29, "its offsets repeat those before 20"),
    (_changed(2, start_offset=15), 15, 29, "it has 10 rows, and offsets for 15"),
    (_changed(3, end_offset=45), 30, 45, "its offsets reach past the log's end, 40"),
    (_changed(3, start_offset=35, end_offset=30), 35, 30, "its last offset is before its first"),
    (_changed(2, timestamp=1), 20, 29, "its timestamp"),
    (_longer, 20, 29, "overlaps"),
    (_longer, 10, 19, "lengths"),
    (_changed(0, address=PageAddress("../../etc/passwd", 0, 64)), 0, 9, ""),
    (_changed(0, address=PageAddress("", 0, 64)), 0, 9, ""),
    (_changed(0, address=PageAddress(_SEGMENT, -1, -1)), 0, 9, ""),
    (_changed(0, address=PageAddress(_SEGMENT, (1 << 63) - 1, (1 << 63) - 1)), 0, 9, ""),
]
"""Pages that metadata tells of instead of those that it has, and a problem that is found then."""


@pytest.mark.parametrize(
    ("edit", "start", "end", "message"), EDITS, ids=map(str, range(len(EDITS)))
)
def test_a_place_in_metadata_that_cannot_be_is_found(
    log: Log, topic: Topic, edit_locations: EditLocations, edit: Edit, start: int, end: int,
    message: str,
) -> None:  # fmt: skip
    edit_locations(edit)
    found = [(each.start_offset, each.end_offset, each.message) for each in log.check().problems]
    assert any(each[:2] == (start, end) and message in each[2] for each in found), found


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bytes": 1}, "bytes, not 1"),
        ({"last_timestamp": 1}, ", not 1"),
        ({"log_start_offset": 50}, "cannot start at 50"),
    ],
)
def test_a_wrong_state_of_a_partition_is_found(
    log: Log, topic: Topic, calls: Calls, change: dict[str, int], message: str
) -> None:
    (state,) = log.metadata.registry.partition_states(topic.uuid)
    wrong = state._replace(**change)
    calls.change(log.metadata.registry, "partition_states", lambda *_: [wrong])
    assert any(message in problem.message for problem in log.check().problems)


def test_tiers_that_were_not_counted_right_are_found(log: Log, topic: Topic) -> None:
    (tier,) = log.metadata.maintenance.tier_states(topic.uuid)
    with sqlite3.connect(log.directory / "metadata.sqlite") as database:
        database.execute("UPDATE partitions SET merged_pages = 1, merged_rows = 7")
    problem = _only(log.check())
    assert (problem.topic, problem.partition) == (str(topic.name), UNPARTITIONED)
    assert problem.message == (
        f"its tiers have 4 pages with 40 rows and {tier.bytes} bytes as written, not 3 pages with "
        f"33 rows and {tier.bytes} bytes as written and 1 pages with 7 rows and 0 bytes merged"
    )


def test_pages_that_a_server_adds_meanwhile_are_not_missed_in_their_tier(
    log: Log, topic: Topic, calls: Calls
) -> None:
    calls.before(
        log.metadata.registry, "partition_states", lambda *_: log.push(topic, _batch("x", 40))
    )
    report = log.check()
    assert (report.ok, report.pages) == (True, 5)


@pytest.mark.parametrize(
    ("part", "method", "topics"),
    [
        ("registry", "locate", True),
        ("registry", "partition_states", True),
        ("registry", "live_folios", False),
        ("stages", "of_topic", True),
        ("stages", "pages", True),
        ("admin", "list_topics", True),
        ("admin", "list_namespaces", False),
    ],
)
def test_a_failure_of_metadata_is_a_problem(
    log: Log, topic: Topic, calls: Calls, part: str, method: str, topics: bool
) -> None:
    log.stage(topic, "s", (_batch("x", 0), UNPARTITIONED))
    calls.fail(getattr(log.metadata, part), method, Internal("the database is malformed"))
    problem = log.check().problems[0]
    assert "the database is malformed" in problem.message
    assert (problem.topic is not None) == topics


def test_files_that_nothing_refers_to_are_named_and_no_problem(log: Log, topic: Topic) -> None:
    log.finish_segment()
    (address,) = log.store.write([encode_page(_batch("x", 0), topic.uuid)])
    report = log.check()
    assert report.ok
    assert report.unreferenced_folios == (address.folio,)


def test_folios_of_a_deleted_topic_are_still_referred_to(log: Log, topic: Topic) -> None:
    log.metadata.admin.delete_topic(topic.name)
    assert log.check() == CheckReport(0, 0, 0, 0, 0, 0, (), 0, ())


def test_staged_pages_are_neither_damage_nor_left_over(log: Log, topic: Topic) -> None:
    keyed = log.create_topic("keyed", "key")
    staged = log.stage(keyed, "s", (_batch("b", 0), B), (_batch("a", 10), A), (_batch("b", 20), B))
    staged += log.stage(topic, "t", (_batch("x", 0), UNPARTITIONED))
    log.stage(topic, "aborted", (_batch("x", 0), UNPARTITIONED))
    log.metadata.stages.abort("w", ["aborted"])
    report = log.check()
    size = sum(address.length for address in [*log.addresses, *staged])
    assert report == CheckReport(2, 1, 8, 80, size, 2, (), 0, ())
    log.metadata.stages.publish("w", 0, ["s"])
    assert log.check() == CheckReport(2, 3, 8, 80, size, 1, (), 0, ())


def test_more_staged_pages_than_are_listed_at_a_time_are_all_checked(log: Log) -> None:
    created = log.create_topic("plain")
    log.stage(created, "s", *[(_batch("x", n, 1), UNPARTITIONED) for n in range(PAGES_LISTED + 1)])
    report = log.check()
    assert (report.ok, report.pages, report.stages) == (True, PAGES_LISTED + 1, 1)


def test_a_damaged_staged_page_is_named(log: Log) -> None:
    keyed = log.create_topic("keyed", "key")
    addresses = log.stage(keyed, "s", (_batch("a", 0), A), (_batch("b", 0), B))
    log.damage(addresses[1], -1)
    problem = _only(log.check())
    assert (problem.stage, problem.partition, problem.start_offset) == ("s", B, None)
    assert (problem.folio, problem.position) == (addresses[1].folio, addresses[1].position)
    assert "stage s, partition" in str(problem)


@pytest.mark.parametrize(
    ("batch", "claimed_rows", "message"),
    [
        (_batch("a", 0), 7, "it has 10 rows, and counts 7"),
        (_batch("b", 0), None, "it has rows of partition"),
    ],
)
def test_staged_rows_that_are_not_what_they_should_be_are_found(
    log: Log, batch: pa.RecordBatch, claimed_rows: int | None, message: str
) -> None:
    keyed = log.create_topic("keyed", "key")
    log.stage(keyed, "s", (batch, A), claimed_rows=claimed_rows)
    problem = _only(log.check())
    assert problem.stage == "s"
    assert message in problem.message


def test_a_staged_page_that_shares_bytes_with_the_log_is_found(log: Log, topic: Topic) -> None:
    page = StoredPage(UNPARTITIONED, ROWS, log.addresses[2])
    entry = StageEntry("s", "stream", first=True)
    log.metadata.registry.commit([CommitBatch(0, topic.uuid, (page,), stage=entry)])
    problem = _only(log.check())
    assert problem.folio == page.address.folio
    assert problem.position == page.address.position
    assert "it overlaps the page at byte" in problem.message


def test_a_stage_that_does_not_have_the_pages_it_counts_is_found(
    log: Log, topic: Topic, calls: Calls
) -> None:
    log.stage(topic, "s", (_batch("x", 0), UNPARTITIONED), (_batch("x", 10), UNPARTITIONED))

    def first(found: list[StoredPage], *_: object) -> list[StoredPage]:
        return found[:1]

    calls.change(log.metadata.stages, "pages", first)
    problem = _only(log.check())
    assert problem.stage == "s"
    assert problem.message.startswith("there are 1 pages with 10 rows")


def test_a_stage_that_a_server_publishes_meanwhile_is_no_problem(
    log: Log, topic: Topic, calls: Calls
) -> None:
    log.stage(topic, "s", (_batch("x", 0), UNPARTITIONED))

    def publish(found: list[UnpublishedStage], _: str) -> None:
        log.metadata.stages.publish("w", 0, ["s"] if found else [])

    calls.after(log.metadata.stages, "of_topic", publish)
    assert log.check().ok


def test_more_problems_than_a_report_holds_are_counted(log: Log) -> None:
    created = log.create_topic("plain")
    folio = "0" * 16 + "-" + "0" * 8 + ".segment"
    pages = [
        StoredPage(UNPARTITIONED, 1, PageAddress(folio, 64 * number, 64))
        for number in range(PROBLEMS_MAX + 5)
    ]
    log.metadata.registry.commit([CommitBatch(0, created.uuid, (page,)) for page in pages])
    report = log.check()
    assert len(report.problems) == PROBLEMS_MAX
    assert report.problems_total == PROBLEMS_MAX + 5
    assert not report.ok


def test_a_problem_reads_as_one_line() -> None:
    full = Problem("it is damaged", "orders", '"a"', 0, 9, "f.segment", 640)
    assert str(full) == (
        'orders, partition "a", offsets 0 to 9, file f.segment at byte 640: it is damaged'
    )
    assert str(Problem("it is damaged")) == "metadata: it is damaged"


@pytest.mark.hypothesis
def test_damaged_metadata_never_crashes_the_check(log: Log, topic: Topic) -> None:
    keyed = log.create_topic("keyed", "key")
    for number in range(50):
        log.push(keyed, _batch("a", 10 * number), A)
        log.stage(keyed, f"s{number}", (_batch("a", 0), A), (_batch("b", 0), B))
    log.close()
    path = log.directory / "metadata.sqlite"
    sound = path.read_bytes()
    chance = random.Random(7)
    store = SegmentStore(log.directory / "segments", segment_bytes_max=1)
    opened = found = 0
    for _ in range(examples(60, 100)):
        damaged = bytearray(sound)
        for _ in range(20):
            # Not in the first page, so that the database can be opened at least.
            damaged[chance.randrange(4096, len(damaged))] = chance.randrange(256)
        path.write_bytes(damaged)
        try:
            metadata = SqliteMetadata(path, read_only=True)
        except (WingsError, ValueError):
            continue
        with metadata:
            opened += 1
            found += not check_log(metadata, store).ok
    assert opened > 4
    assert found > 4
