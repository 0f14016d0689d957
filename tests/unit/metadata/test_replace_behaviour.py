"""How every `Maintenance` puts merged pages into the place of others."""

from dataclasses import replace as changed
from uuid import uuid4

import pytest
from fix_metadata import NOON, SECOND, MetadataUnderTest, batch_of, offsets_of

from wings_core.errors import Internal, InvalidArgument, TopicNotFound
from wings_core.metadata.maintenance import MaintenanceLease
from wings_core.model import (
    LargestTopics,
    Location,
    PageAddress,
    PageFormat,
    PartitionSums,
    ShareConfig,
    ShareGroup,
    TierState,
    Topic,
    TopicState,
    TopicSums,
)
from wings_core.partitions import UNPARTITIONED, Partition

MERGED = "segments/merged.arrow"


def pushed(metadata: MetadataUnderTest, pages: int = 5) -> tuple[Topic, list[Location]]:
    """Push pages of 10 rows and 100 bytes, a second apart, and return where they are."""
    topic = metadata.create_topic()
    for _ in range(pages):
        metadata.push(topic, 10)
        metadata.clock.time += SECOND
    return topic, located(metadata, topic)


def located(metadata: MetadataUnderTest, topic: Topic, offset: int = 0) -> list[Location]:
    return list(metadata.registry.locate(topic.uuid, UNPARTITIONED, offset, 1_000).locations)


def merged(pages: list[Location], folio: str = MERGED, length: int = 64) -> Location:
    first, last = pages[0], pages[-1]
    return Location(
        first.start_offset,
        last.end_offset,
        last.timestamp,
        PageAddress(folio, 128 * first.start_offset, length),
        first.timestamp,
        PageFormat.SEGMENT,
    )


def leased(metadata: MetadataUnderTest, name: str = "p", holder: str = "one") -> MaintenanceLease:
    token = metadata.opened.maintenance.acquire_lease(name, holder, 60)
    assert token is not None
    return MaintenanceLease(name, holder, token)


def replace(
    metadata: MetadataUnderTest,
    topic: Topic,
    old: list[Location],
    new: list[Location],
    lease: MaintenanceLease | None = None,
) -> bool:
    lease = lease or leased(metadata)
    return metadata.opened.maintenance.replace(topic.uuid, UNPARTITIONED, old, new, lease)


def test_merged_pages_take_the_place_of_others(metadata: MetadataUnderTest) -> None:
    topic, pages = pushed(metadata)
    new = merged(pages[1:4])
    assert replace(metadata, topic, pages[1:4], [new])
    assert located(metadata, topic) == [pages[0], new, pages[4]]
    assert located(metadata, topic, 25)[0] == new
    state = metadata.registry.partition_state(topic.uuid, UNPARTITIONED)
    assert (state.log_start_offset, state.next_offset, state.bytes) == (0, 50, 264)
    assert metadata.registry.live_folios() == {"folio-1", MERGED}
    metadata.reopen()
    assert located(metadata, topic) == [pages[0], new, pages[4]]
    committed = metadata.push(topic, 3)
    assert committed.start_offset == 50


def test_pages_that_are_not_there_any_more_are_not_replaced(metadata: MetadataUnderTest) -> None:
    topic, pages = pushed(metadata)
    new = merged(pages[:3])
    assert replace(metadata, topic, pages[:3], [new])
    other = merged(pages[:3], "segments/other.arrow")
    assert not replace(metadata, topic, pages[:3], [other])
    metadata.opened.maintenance.expire(
        topic.uuid, UNPARTITIONED, age_us=None, bytes_kept=200, pages_max=10
    )
    assert not replace(metadata, topic, [new], [other])
    assert located(metadata, topic, 30) == pages[3:]
    assert metadata.registry.live_folios() == {"folio-1"}


def test_merged_pages_are_merged_again(metadata: MetadataUnderTest) -> None:
    topic, pages = pushed(metadata)
    first = merged(pages[:2])
    assert replace(metadata, topic, pages[:2], [first])
    again = merged([*pages[:3]], "segments/again.arrow")._replace(address=PageAddress("s", 0, 80))
    assert replace(metadata, topic, [first, pages[2]], [again])
    assert located(metadata, topic) == [again, *pages[3:]]
    assert metadata.registry.live_folios() == {"folio-1", "s"}


def test_a_page_whose_first_rows_were_deleted_is_merged_again(metadata: MetadataUnderTest) -> None:
    topic, pages = pushed(metadata)
    assert replace(metadata, topic, pages[:3], [merged(pages[:3])])
    metadata.opened.maintenance.expire(
        topic.uuid, UNPARTITIONED, age_us=None, bytes_kept=None, before_offset=15, pages_max=9
    )
    old = located(metadata, topic, 15)
    new = merged(old, "segments/again.arrow")._replace(first_timestamp=pages[1].timestamp)
    for wrong in (pages[0].timestamp - 1, pages[3].timestamp):
        with pytest.raises(InvalidArgument, match="other timestamps"):
            replace(metadata, topic, old, [new._replace(first_timestamp=wrong)])
    assert replace(metadata, topic, old, [new])
    assert located(metadata, topic, 15) == [new]


def test_nothing_is_replaced_without_the_lease(metadata: MetadataUnderTest) -> None:
    topic, pages = pushed(metadata)
    lease = leased(metadata)
    assert not replace(metadata, topic, pages, [merged(pages)], changed(lease, holder="other"))
    assert not replace(metadata, topic, pages, [merged(pages)], changed(lease, name="q"))
    metadata.clock.time += 60 * SECOND
    assert not replace(metadata, topic, pages, [merged(pages)], lease)
    assert leased(metadata).token != lease.token
    assert not replace(metadata, topic, pages, [merged(pages)], lease)
    assert located(metadata, topic) == pages
    assert metadata.registry.live_folios() == {"folio-1"}
    assert replace(metadata, topic, pages, [merged(pages)])


def test_a_retired_segment_is_not_referred_to(metadata: MetadataUnderTest) -> None:
    topic, pages = pushed(metadata)
    assert metadata.registry.retire([MERGED]) == [MERGED]
    with pytest.raises(Internal, match="retired"):
        replace(metadata, topic, pages, [merged(pages)])
    assert located(metadata, topic) == pages


def test_what_cannot_replace_the_pages_is_refused(metadata: MetadataUnderTest) -> None:
    topic, pages = pushed(metadata)
    new = merged(pages)
    for old, wrong in (
        (pages, [new._replace(end_offset=48)]),
        (pages, [new._replace(first_timestamp=None)]),
        (pages, [new._replace(format=PageFormat.PLAIN)]),
        (pages, [new._replace(first_timestamp=new.timestamp)]),
        (pages, [new._replace(timestamp=new.timestamp + 1)]),
        (pages, [merged(pages[:2]), merged(pages[3:])]),
        ([pages[0], pages[4]], [new]),
        (pages, []),
        ([], [new]),
    ):
        with pytest.raises(InvalidArgument):
            replace(metadata, topic, old, wrong)
    assert located(metadata, topic) == pages


def test_nothing_is_replaced_in_a_topic_that_was_deleted(metadata: MetadataUnderTest) -> None:
    topic, pages = pushed(metadata)
    metadata.admin.delete_topic(topic.name)
    assert not replace(metadata, topic, pages, [merged(pages)])
    with pytest.raises(TopicNotFound):
        metadata.opened.maintenance.tier_states(topic.uuid)


def test_a_time_within_a_merged_page_is_found_at_its_start(metadata: MetadataUnderTest) -> None:
    topic, pages = pushed(metadata)
    assert replace(metadata, topic, pages[1:4], [merged(pages[1:4])])
    found = [
        metadata.registry.offset_for_timestamp(topic.uuid, UNPARTITIONED, NOON + second * SECOND)
        for second in range(6)
    ]
    assert found == [0, 10, 10, 10, 40, 50]


def test_a_merged_page_is_kept_while_its_last_message_is_young(
    metadata: MetadataUnderTest,
) -> None:
    topic, pages = pushed(metadata)
    assert replace(metadata, topic, pages[:3], [merged(pages[:3])])
    maintenance = metadata.opened.maintenance
    expired = maintenance.expire(
        topic.uuid, UNPARTITIONED, age_us=3 * SECOND, bytes_kept=None, pages_max=10
    )
    assert expired.pages == 0
    metadata.clock.time += SECOND
    expired = maintenance.expire(
        topic.uuid, UNPARTITIONED, age_us=3 * SECOND, bytes_kept=None, pages_max=10
    )
    assert (expired.pages, expired.rows, expired.bytes) == (1, 30, 64)
    assert offsets_of(metadata.registry, topic, offset=30) == [(30, 39), (40, 49)]


def test_tiers_tell_what_is_in_them(metadata: MetadataUnderTest) -> None:
    topic, pages = pushed(metadata)
    maintenance = metadata.opened.maintenance
    assert maintenance.tier_states(metadata.create_topic().uuid) == []
    assert maintenance.tier_states(topic.uuid) == [TierState(UNPARTITIONED, False, 5, 50, 500)]
    assert replace(metadata, topic, pages[:3], [merged(pages[:3])])
    assert maintenance.tier_states(topic.uuid) == [
        TierState(UNPARTITIONED, False, 2, 20, 200),
        TierState(UNPARTITIONED, True, 1, 30, 64),
    ]


def test_tiers_are_told_by_partition(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic("key")
    values = [Partition(f'"{letter}"') for letter in "cab"]
    metadata.registry.commit([batch_of(topic, dict.fromkeys(values, 2))])
    found = metadata.opened.maintenance.tier_states(topic.uuid)
    assert [state.partition for state in found] == sorted(values)
    assert {(state.pages, state.rows, state.bytes) for state in found} == {(1, 2, 100)}


def counted(metadata: MetadataUnderTest, topic: Topic, start: int = 0) -> list[TierState]:
    """Count what is in each tier, page by page."""
    found: list[TierState] = []
    for remote in (False, True):
        pages = [
            page for page in located(metadata, topic, start) if page.format.is_merged == remote
        ]
        rows = sum(page.rows for page in pages)
        size = sum(page.address.length for page in pages)
        found += [TierState(UNPARTITIONED, remote, len(pages), rows, size)] if pages else []
    return found


def test_tiers_are_counted_along_with_all_that_changes_pages(metadata: MetadataUnderTest) -> None:
    topic, pages = pushed(metadata)
    maintenance = metadata.opened.maintenance

    def check(start: int = 0) -> None:
        assert maintenance.tier_states(topic.uuid) == counted(metadata, topic, start)

    assert replace(metadata, topic, pages[:2], [merged(pages[:2])])
    check()
    metadata.push(topic, 7)  # After the merge, by what the commit remembers.
    check()
    metadata.stage(topic, "s", {UNPARTITIONED: 4}, {UNPARTITIONED: 5})
    check()
    metadata.stages.publish("w", 0, ["s"])
    check()
    again = located(metadata, topic)[:2]
    new = merged(again, "segments/again.arrow", 99)
    new = new._replace(first_timestamp=again[0].first_timestamp)
    assert replace(metadata, topic, again, [new])
    check()
    for start in (30, 40):  # A merged page goes, then one as it was pushed.
        maintenance.expire(topic.uuid, UNPARTITIONED, age_us=-SECOND, bytes_kept=None, pages_max=1)
        check(start)
    metadata.reopen()
    maintenance = metadata.opened.maintenance
    metadata.push(topic, 2)
    check(40)
    maintenance.expire(topic.uuid, UNPARTITIONED, age_us=-SECOND, bytes_kept=None, pages_max=9)
    assert maintenance.tier_states(topic.uuid) == []


def test_the_largest_topics_come_first_and_all_others_are_summed(
    metadata: MetadataUnderTest,
) -> None:
    maintenance = metadata.opened.maintenance
    assert maintenance.largest_topics(2, 1) == LargestTopics((), 0, PartitionSums(), ())
    large, pages = pushed(metadata)
    assert replace(metadata, large, pages[:3], [merged(pages[:3])])
    small = [metadata.create_topic("key") for _ in range(2)]
    for topic, partitions in zip(small, ("ab", "c"), strict=True):
        counts = {Partition(f'"{letter}"'): 2 for letter in partitions}
        metadata.registry.commit([batch_of(topic, counts)])
    empty, deleted = metadata.create_topic(), metadata.create_topic()
    metadata.admin.delete_topic(deleted.name)
    for topic in (empty, small[0]):
        metadata.groups.create(ShareGroup("workers", str(uuid4()), topic, ShareConfig()))
    large_sums = PartitionSums(1, 50, 3, 50, 264, 1, 30, 64)
    last = metadata.registry.partition_states(large.uuid)[0].last_timestamp
    assert maintenance.topic_state(large.uuid) == TopicState(large_sums, last)
    found = maintenance.topic_state(small[0].uuid)
    assert found.sums == PartitionSums(2, 4, 2, 4, 200)
    assert maintenance.topic_state(empty.uuid) == TopicState(PartitionSums(1), None)
    with pytest.raises(TopicNotFound):
        maintenance.topic_state(deleted.uuid)
    found = maintenance.largest_topics(1, 1)
    assert found.topics == (TopicSums(large.name, large.uuid, large_sums),)
    assert (found.others, found.grouped) == (3, (small[0].name,))
    assert found.of_others == PartitionSums(3, 6, 3, 6, 300)
    every = maintenance.largest_topics(10, 10)
    assert [each.topic for each in every.topics] == [topic.name for topic in (large, *small, empty)]
    assert (every.others, every.of_others) == (0, PartitionSums())
    assert every.grouped == (small[0].name, empty.name)
