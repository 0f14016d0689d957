"""What stores of metadata keep of tables."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from fix_metadata import MetadataUnderTest, batch_of

from wings_core.metadata.maintenance import MaintenanceLease, TableSegment
from wings_core.model import Expired, Topic
from wings_core.partitions import UNPARTITIONED

HOUR = 3_600.0


def segment(folio: str, added: int = 1, removed: int | None = None) -> TableSegment:
    return TableSegment(folio, UNPARTITIONED, 6, 7, added, removed)


def test_a_commit_is_planned_under_a_lease_and_confirmed(metadata: MetadataUnderTest) -> None:
    tables = metadata.opened.tables
    topic = metadata.create_topic()
    for folio in ("f", "g"):
        metadata.registry.commit([batch_of(topic, {UNPARTITIONED: 7}, folio=folio)])
    token = metadata.opened.maintenance.acquire_lease("table", "me", HOUR)
    assert token is not None
    lease, lost = (
        MaintenanceLease("table", "me", token),
        MaintenanceLease("table", "another", token),
    )
    assert tables.begin(topic.uuid, "default.t") == 0
    assert not tables.plan(topic.uuid, 1, [segment("f")], [], lost)
    assert not tables.plan(topic.uuid, 1, [segment("f"), segment("gone")], [], lease)
    assert tables.segments(topic.uuid) == []
    assert tables.plan(topic.uuid, 1, [segment("f"), segment("g")], [], lease)
    tables.confirm(topic.uuid, 1)
    assert tables.begin(topic.uuid, "default.t") == 1
    assert tables.plan(topic.uuid, 2, [], ["f"], lease)
    assert tables.segments(topic.uuid) == [segment("f", 1, 2), segment("g")]
    tables.confirm(topic.uuid, 2)
    assert tables.segments(topic.uuid) == [segment("g")]
    assert tables.adopt(topic.uuid, 5, [segment("only-in-the-table", 5)], lease)
    assert "only-in-the-table" in metadata.registry.live_folios()
    assert tables.begin(topic.uuid, "default.t") == 5
    assert tables.tables() == {topic.uuid: "default.t"}
    tables.forget(topic.uuid)
    assert (tables.tables(), tables.segments(topic.uuid)) == ({}, [])
    assert metadata.registry.live_folios() == {"f", "g"}


def expire(
    metadata: MetadataUnderTest, topic: Topic, *, outside_tables: bool, before_offset: int = 0
) -> Expired:
    return metadata.opened.maintenance.expire(
        topic.uuid,
        UNPARTITIONED,
        age_us=None,
        bytes_kept=None if before_offset else 0,
        before_offset=before_offset,
        outside_tables=outside_tables,
        pages_max=10,
    )


def test_pages_that_a_table_has_or_is_about_to_have_are_kept_where_asked(
    metadata: MetadataUnderTest,
) -> None:
    tables = metadata.opened.tables
    topic, other = metadata.create_topic(), metadata.create_topic()
    for each, folio in ((topic, "f"), (other, "g")):
        metadata.registry.commit([batch_of(each, {UNPARTITIONED: 7}, folio=folio)])
    token = metadata.opened.maintenance.acquire_lease("table", "me", HOUR)
    assert token is not None
    lease = MaintenanceLease("table", "me", token)
    tables.begin(topic.uuid, "default.t")
    assert tables.plan(topic.uuid, 1, [segment("f")], [], lease)
    assert expire(metadata, topic, outside_tables=True) == Expired(0, 0, 0, 0)
    tables.confirm(topic.uuid, 1)
    assert tables.plan(topic.uuid, 2, [], ["f"], lease)
    assert expire(metadata, topic, outside_tables=True) == Expired(0, 0, 0, 0)
    assert expire(metadata, other, outside_tables=True).rows == 7
    tables.confirm(topic.uuid, 2)
    assert expire(metadata, topic, outside_tables=True).rows == 7
    # They were in no table before, and no commit adds them now.
    metadata.registry.commit([batch_of(topic, {UNPARTITIONED: 7}, folio="h")])
    added = TableSegment("h", UNPARTITIONED, 13, 7, 3, None)
    assert tables.plan(topic.uuid, 3, [added], [], lease)
    assert expire(metadata, topic, outside_tables=False).rows == 7


def test_no_page_of_a_file_that_a_table_has_goes_before_the_others(
    metadata: MetadataUnderTest,
) -> None:
    tables, topic = metadata.opened.tables, metadata.create_topic()
    for _ in range(2):
        metadata.registry.commit([batch_of(topic, {UNPARTITIONED: 7}, folio="f")])
    metadata.registry.commit([batch_of(topic, {UNPARTITIONED: 7}, folio="g")])
    token = metadata.opened.maintenance.acquire_lease("table", "me", HOUR)
    assert token is not None
    tables.begin(topic.uuid, "default.t")
    added = TableSegment("f", UNPARTITIONED, 13, 14, 1, None)
    lease = MaintenanceLease("table", "me", token)
    assert tables.plan(topic.uuid, 1, [added], [], lease)
    for offset in (7, 14, 20):
        gone = expire(metadata, topic, outside_tables=True, before_offset=offset)
        assert gone == Expired(0, 0, 0, 0)
    tables.confirm(topic.uuid, 1)
    assert tables.plan(topic.uuid, 2, [], ["f"], lease)
    tables.confirm(topic.uuid, 2)
    assert expire(metadata, topic, outside_tables=True, before_offset=20).rows == 20


def test_pages_that_are_dropped_are_not_planned_for_a_table_at_the_same_time(
    metadata: MetadataUnderTest,
) -> None:
    tables = metadata.opened.tables
    topic = metadata.create_topic()
    token = metadata.opened.maintenance.acquire_lease("table", "me", HOUR)
    assert token is not None
    lease = MaintenanceLease("table", "me", token)
    tables.begin(topic.uuid, "default.t")
    barrier = Barrier(2)

    def plan(number: int, added: TableSegment) -> bool:
        barrier.wait()
        return tables.plan(topic.uuid, number, [added], [], lease)

    def drop() -> bool:
        barrier.wait()
        return expire(metadata, topic, outside_tables=True).rows > 0

    with ThreadPoolExecutor(2) as threads:
        for number in range(1, 31):
            metadata.registry.commit([batch_of(topic, {UNPARTITIONED: 1}, folio=f"f{number}")])
            added = TableSegment(f"f{number}", UNPARTITIONED, number - 1, 1, number, None)
            planned, dropped = threads.submit(plan, number, added), threads.submit(drop)
            assert planned.result() is not dropped.result()
            if planned.result():
                tables.confirm(topic.uuid, number)
                assert tables.plan(topic.uuid, number, [], [added.folio], lease)
                tables.confirm(topic.uuid, number)
                assert expire(metadata, topic, outside_tables=True).rows == 1
