"""How every store of metadata keeps the folios of small flushes until they are drained."""

import pytest
from fix_metadata import SECOND, MetadataUnderTest
from tables import each

from wings_core.errors import InvalidArgument
from wings_core.metadata.maintenance import MaintenanceLease
from wings_core.model import (
    INLINE_FOLIOS_MAX,
    Accepted,
    CommitBatch,
    CommitResult,
    ExpectedOffset,
    FlushId,
    InlineFolio,
    Location,
    PageAddress,
    PageFormat,
    Rejected,
    Replacement,
    StageEntry,
    StoredPage,
    Topic,
)
from wings_core.partitions import UNPARTITIONED, Partition

A, B = Partition('"a"'), Partition('"b"')
FOLIO = InlineFolio("0001.inline", b"x" * 128)


def batch(
    topic: Topic,
    partition: Partition = UNPARTITIONED,
    folio: InlineFolio = FOLIO,
    position: int = 0,
    stage: StageEntry | None = None,
    expected: ExpectedOffset | None = None,
    stream: int = 1,
) -> CommitBatch:
    page = StoredPage(partition, 10, PageAddress(folio.name, position, 64))
    return CommitBatch(stream, topic.uuid, (page,), stage=stage, expected=expected)


def commit(metadata: MetadataUnderTest, *batches: CommitBatch) -> list[CommitResult]:
    return metadata.registry.commit(batches, inline=FOLIO)


def read(metadata: MetadataUnderTest, *folios: InlineFolio) -> list[InlineFolio]:
    """Return those of some folios that are kept, as they are read at once."""
    found = metadata.registry.read_inline([folio.name for folio in folios])
    return [InlineFolio(name, data) for name, data in sorted(found.items())]


def located(metadata: MetadataUnderTest, topic: Topic) -> list[Location]:
    return list(metadata.registry.locate(topic.uuid, UNPARTITIONED, 0, 1_000).locations)


def drained(pages: list[Location], folio: str = "segment") -> Location:
    return Location(
        pages[0].start_offset,
        pages[-1].end_offset,
        pages[-1].timestamp,
        PageAddress(folio, 0, 96),
        pages[0].timestamp,
        PageFormat.DRAINED,
    )


def leased(metadata: MetadataUnderTest) -> MaintenanceLease:
    token = metadata.opened.maintenance.acquire_lease("drain", "one", 60)
    assert token is not None
    return MaintenanceLease("drain", "one", token)


def backlog(metadata: MetadataUnderTest) -> tuple[list[tuple[Partition, int, str]], int]:
    found = metadata.opened.maintenance.inline_backlog(100)
    pages = [
        (page.partition, page.location.start_offset, page.location.address.folio)
        for page in found.pages
    ]
    return pages, found.bytes


def test_a_folio_is_kept_with_the_commit_and_its_pages_are_told(
    metadata: MetadataUnderTest,
) -> None:
    topic = metadata.create_topic()
    commit(metadata, batch(topic), batch(topic, position=64))
    for _ in range(2):
        pages = located(metadata, topic)
        assert [page.format for page in pages] == [PageFormat.INLINE] * 2
        assert read(metadata, FOLIO) == [FOLIO]
        assert metadata.registry.live_folios() == {FOLIO.name}
        assert backlog(metadata) == (
            [(UNPARTITIONED, 0, FOLIO.name), (UNPARTITIONED, 10, FOLIO.name)],
            128,
        )
        (found, _) = metadata.opened.maintenance.inline_backlog(100).pages
        assert (found.topic, found.topic_uuid, found.location) == (topic.name, topic.uuid, pages[0])
        metadata.reopen()
    state = metadata.registry.partition_state(topic.uuid, UNPARTITIONED)
    assert (state.next_offset, state.bytes) == (20, 128)
    assert len(metadata.opened.maintenance.inline_backlog(1).pages) == 1


def test_many_folios_are_read_at_once(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic()
    folios = [InlineFolio(f"{number:04}.inline", b"%d" % number * 64) for number in range(4)]
    for folio in folios[:-1]:
        metadata.registry.commit([batch(topic, folio=folio)], inline=folio)
    assert read(metadata, *reversed(folios)) == folios[:-1]
    assert read(metadata, *folios[1:2], *folios[3:]) == folios[1:2]
    with_most = [*folios, *[InlineFolio(f"{number}.inline", b"") for number in range(28)]]
    assert len(with_most) == INLINE_FOLIOS_MAX
    assert read(metadata, *with_most) == folios[:-1]
    with pytest.raises(InvalidArgument, match="at most 32 folios"):
        read(metadata, *with_most, InlineFolio("more.inline", b""))


def test_a_folio_whose_batches_are_all_refused_is_not_kept(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic()
    (refused,) = commit(metadata, batch(topic, expected=ExpectedOffset(UNPARTITIONED, 7)))
    assert isinstance(refused, Rejected)
    assert read(metadata, FOLIO) == []
    assert backlog(metadata) == ([], 0)


def test_a_repeated_flush_keeps_its_folio_once(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic()
    flush = FlushId("writer", 1)
    first = metadata.registry.commit([batch(topic)], flush, FOLIO)
    again = metadata.registry.commit([batch(topic)], flush, FOLIO)
    assert first == again
    assert isinstance(first[0], Accepted)
    assert backlog(metadata) == ([(UNPARTITIONED, 0, FOLIO.name)], 128)


@each(
    "folio",
    [
        InlineFolio("other", b"x"),
        InlineFolio("\0.inline", b"x"),
        InlineFolio("a" * 300 + ".inline", b"x"),
        InlineFolio("large.inline", bytes((1 << 20) + 1)),
    ],
)
def test_a_folio_that_cannot_be_is_refused(metadata: MetadataUnderTest, folio: InlineFolio) -> None:
    topic = metadata.create_topic()
    with pytest.raises(InvalidArgument):
        metadata.registry.commit([batch(topic, folio=folio)], inline=folio)
    assert located(metadata, topic) == []


def test_drained_pages_take_the_place_of_inline_ones_and_the_folio_goes(
    metadata: MetadataUnderTest,
) -> None:
    topic = metadata.create_topic()
    commit(metadata, batch(topic), batch(topic, position=64))
    pages = located(metadata, topic)
    lease = leased(metadata)
    halves = [
        Replacement(topic.uuid, UNPARTITIONED, (page,), (drained([page], f"s{number}"),))
        for number, page in enumerate(pages)
    ]
    assert metadata.opened.maintenance.replace_all(halves[:1], lease) == [True]
    assert read(metadata, FOLIO) == [FOLIO]
    assert backlog(metadata) == ([(UNPARTITIONED, 10, FOLIO.name)], 128)
    assert metadata.opened.maintenance.replace_all(halves, lease) == [False, True]
    assert read(metadata, FOLIO) == []
    assert backlog(metadata) == ([], 0)
    assert located(metadata, topic) == [half.new[0] for half in halves]
    assert metadata.registry.live_folios() == {"s0", "s1"}
    state = metadata.registry.partition_state(topic.uuid, UNPARTITIONED)
    assert (state.next_offset, state.bytes) == (20, 192)
    (tier,) = metadata.opened.maintenance.tier_states(topic.uuid)
    assert (tier.remote, tier.pages, tier.rows, tier.bytes) == (False, 2, 20, 192)


def test_many_partitions_and_topics_are_replaced_at_once(metadata: MetadataUnderTest) -> None:
    keyed, plain, gone = (
        metadata.create_topic("key"),
        metadata.create_topic(),
        metadata.create_topic(),
    )
    commit(metadata, batch(keyed, B), batch(keyed, A), batch(plain), batch(gone))
    replacements: list[Replacement] = []
    for topic, partition in ((keyed, A), (gone, UNPARTITIONED), (plain, UNPARTITIONED), (keyed, B)):
        pages = list(metadata.registry.locate(topic.uuid, partition, 0, 100).locations)
        new = drained(pages, f"s{len(replacements)}")
        replacements.append(Replacement(topic.uuid, partition, tuple(pages), (new,)))
    metadata.admin.delete_topic(gone.name)
    done = metadata.opened.maintenance.replace_all(replacements, leased(metadata))
    assert done == [True, False, True, True]
    assert located(metadata, plain) == [replacements[2].new[0]]
    assert backlog(metadata)[0] == []


def test_ranges_of_a_partition_that_lie_apart_are_replaced_and_counted_at_once(
    metadata: MetadataUnderTest,
) -> None:
    topic = metadata.create_topic()
    commit(metadata, *(batch(topic, folio=FOLIO, position=place) for place in (0, 64, 0)))
    pages = located(metadata, topic)
    apart = [
        Replacement(topic.uuid, UNPARTITIONED, (page,), (drained([page], f"s{number}"),))
        for number, page in enumerate((pages[0], pages[2]))
    ]
    assert metadata.opened.maintenance.replace_all(apart, leased(metadata)) == [True, True]
    assert located(metadata, topic) == [apart[0].new[0], pages[1], apart[1].new[0]]
    (tier,) = metadata.opened.maintenance.tier_states(topic.uuid)
    assert (tier.pages, tier.rows, tier.bytes) == (3, 30, 96 + 64 + 96)


def test_replacements_that_overlap_are_refused(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic()
    commit(metadata, batch(topic), batch(topic, position=64))
    first, second = located(metadata, topic)
    both = Replacement(topic.uuid, UNPARTITIONED, (first, second), (drained([first, second]),))
    one = Replacement(topic.uuid, UNPARTITIONED, (second,), (drained([second]),))
    with pytest.raises(InvalidArgument, match="overlap"):
        metadata.opened.maintenance.replace_all([one, both], leased(metadata))


def test_nothing_is_replaced_without_the_lease(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic()
    commit(metadata, batch(topic))
    pages = located(metadata, topic)
    lost = MaintenanceLease("drain", "one", leased(metadata).token + 1)
    new = Replacement(topic.uuid, UNPARTITIONED, tuple(pages), (drained(pages),))
    assert metadata.opened.maintenance.replace_all([new], lost) == [False]
    assert located(metadata, topic) == pages


def test_what_is_staged_inline_is_inline_once_it_is_published(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic()
    commit(metadata, batch(topic, stage=StageEntry("s", "w", first=True)))
    assert backlog(metadata) == ([], 128)
    metadata.opened.stages.publish("writer", 1, ["s"])
    (page,) = located(metadata, topic)
    assert (page.format, page.rows) == (PageFormat.INLINE, 10)
    assert backlog(metadata) == ([(UNPARTITIONED, 0, FOLIO.name)], 128)
    assert read(metadata, FOLIO) == [FOLIO]


def test_a_folio_goes_with_the_last_page_that_is_deleted(metadata: MetadataUnderTest) -> None:
    kept, gone = metadata.create_topic(), metadata.create_topic()
    commit(
        metadata,
        batch(kept),
        batch(gone),
        batch(gone, position=64, stage=StageEntry("s", "w", first=True)),
    )
    metadata.clock.time += SECOND
    metadata.admin.delete_topic(gone.name)
    while metadata.registry.purge(100):
        pass
    assert read(metadata, FOLIO) == [FOLIO]
    metadata.opened.maintenance.expire(
        kept.uuid, UNPARTITIONED, age_us=0, bytes_kept=None, pages_max=10
    )
    assert read(metadata, FOLIO) == []
    assert backlog(metadata) == ([], 0)
    assert metadata.registry.live_folios() == set()
