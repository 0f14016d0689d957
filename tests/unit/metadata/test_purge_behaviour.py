"""How every `OffsetRegistry` forgets deleted topics."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from fix_metadata import DAY, A, B, MetadataUnderTest, batch_of, offsets_of

from wings_core.errors import Internal, InvalidArgument
from wings_core.metadata.interfaces import RETIRE_MAX
from wings_core.metadata.maintenance import KEEPS_FOLIOS
from wings_core.model import Accepted, StageEntry, Topic
from wings_core.partitions import UNPARTITIONED


def purge_all(metadata: MetadataUnderTest, pages_max: int) -> int:
    """Purge until there is no more; return the number of steps."""
    for steps in range(1, 10_000):
        if not metadata.registry.purge(pages_max):
            return steps
    raise AssertionError("the purge does not end")


def fill(metadata: MetadataUnderTest, topic: Topic, pages: int, folio: str) -> None:
    batch = batch_of(topic, {A: 1, B: 1}, folio=folio)
    metadata.registry.commit([batch] * pages)


def test_there_is_nothing_to_purge_at_first(metadata: MetadataUnderTest) -> None:
    fill(metadata, metadata.create_topic("key"), 3, "folio-1")
    assert not metadata.registry.purge(1)
    assert metadata.registry.live_folios() == {"folio-1"}


def test_a_folio_is_live_while_a_page_of_any_topic_refers_to_it(
    metadata: MetadataUnderTest,
) -> None:
    first, second = metadata.create_topic("key"), metadata.create_topic("key")
    fill(metadata, first, 2, "of first")
    fill(metadata, first, 2, "shared")
    fill(metadata, second, 2, "shared")
    fill(metadata, second, 2, "of second")
    assert metadata.registry.live_folios() == {"of first", "shared", "of second"}
    metadata.admin.delete_topic(first.name)
    assert metadata.registry.live_folios() == {"of first", "shared", "of second"}
    purge_all(metadata, 100)
    assert metadata.registry.live_folios() == {"shared", "of second"}
    assert offsets_of(metadata.registry, second, A) == [(0, 0), (1, 1), (2, 2), (3, 3)]
    metadata.admin.delete_topic(second.name)
    purge_all(metadata, 100)
    assert metadata.registry.live_folios() == set()


def test_each_purge_forgets_a_bounded_number_of_pages(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic("key")
    for number in range(10):
        fill(metadata, topic, 1, f"folio-{number}")
    metadata.admin.delete_topic(topic.name)
    before = len(metadata.registry.live_folios())
    while metadata.registry.purge(3):
        after = len(metadata.registry.live_folios())
        assert before - after <= 3
        before = after
    assert metadata.registry.live_folios() == set()


@pytest.mark.parametrize("pages_max", [1, 2, 7, 1_000])
def test_purging_in_steps_of_any_size_comes_to_an_end(
    metadata: MetadataUnderTest, pages_max: int
) -> None:
    topics = [metadata.create_topic("key") for _ in range(3)]
    for topic in topics:
        fill(metadata, topic, 4, "folio-1")
        metadata.registry.commit([batch_of(topic, {}, sequence=("p", 0))])
        metadata.registry.commit_offsets("reader", [(topic, A, 1)])
    for topic in topics[:2]:
        metadata.admin.delete_topic(topic.name)
    purge_all(metadata, pages_max)
    assert not metadata.registry.purge(pages_max)
    assert len(offsets_of(metadata.registry, topics[2], B)) == 4
    assert [entry.topic for entry in metadata.registry.get_offsets("reader")] == [topics[2].name]
    replayed = metadata.registry.commit([batch_of(topics[2], {}, sequence=("p", 0))])
    assert replayed == [Accepted((), replayed=True)]


def test_a_purge_goes_on_after_a_restart(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic("key")
    fill(metadata, topic, 10, "folio-1")
    metadata.admin.delete_topic(topic.name)
    assert metadata.registry.purge(5)
    metadata.reopen()
    assert metadata.registry.live_folios() == {"folio-1"}
    purge_all(metadata, 5)
    assert metadata.registry.live_folios() == set()


def test_a_topic_of_the_same_name_is_not_touched_by_the_purge(
    metadata: MetadataUnderTest,
) -> None:
    topic = metadata.create_topic()
    metadata.push(topic, rows=5)
    metadata.admin.delete_topic(topic.name)
    again = metadata.admin.create_topic(topic.name, topic.schema)
    metadata.push(again, rows=2)
    purge_all(metadata, 1)
    assert offsets_of(metadata.registry, again) == [(0, 1)]
    assert metadata.registry.partition_state(again.uuid, UNPARTITIONED).next_offset == 2


def test_only_folios_without_pages_are_retired(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic("key")
    fill(metadata, topic, 1, "visible")
    metadata.stage(topic, "s-1", folio="staged")
    names = ["unused-2", "visible", "unused-1", "staged"]
    for _ in range(2):  # A caller that lost the response retries.
        assert metadata.registry.retire(names) == ["unused-2", "unused-1"]
    assert metadata.registry.live_folios() == {"visible", "staged"}
    fill(metadata, topic, 1, "visible")
    metadata.admin.delete_topic(topic.name)
    metadata.stages.abort("w", ["s-1"])
    purge_all(metadata, 100)
    metadata.reopen()
    assert metadata.registry.retire(names) == names
    assert metadata.registry.retire([]) == []
    with pytest.raises(InvalidArgument, match="1001 folios"):
        metadata.registry.retire([f"folio-{number}" for number in range(RETIRE_MAX + 1)])


def test_nothing_is_retired_while_a_backup_keeps_all(metadata: MetadataUnderTest) -> None:
    maintenance = metadata.opened.maintenance
    assert maintenance.acquire_lease("another", "me", 1_000) is not None
    assert maintenance.acquire_lease(f"{KEEPS_FOLIOS}1", "me", 60) is not None
    assert maintenance.acquire_lease(f"{KEEPS_FOLIOS}2", "me", 90) is not None
    assert metadata.registry.retire(["unused"]) == []
    maintenance.release_lease(f"{KEEPS_FOLIOS}1", "me")
    assert metadata.registry.retire(["unused"]) == []
    fill(metadata, metadata.create_topic("key"), 1, "unused")  # It was not fenced.
    metadata.clock.time += 90 * 1_000_000
    assert metadata.registry.retire(["unused", "other"]) == ["other"]


@pytest.mark.parametrize("known", [False, True])
def test_a_commit_that_names_a_retired_folio_is_refused_as_a_whole(
    metadata: MetadataUnderTest, known: bool
) -> None:
    topic, gone = metadata.create_topic("key"), metadata.create_topic("key")
    if known:  # To the cache of commits too.
        fill(metadata, gone, 1, "late")
        metadata.admin.delete_topic(gone.name)
        purge_all(metadata, 100)
    assert metadata.registry.retire(["late"]) == ["late"]
    good = batch_of(topic, {A: 1}, folio="good")
    late = batch_of(topic, {B: 1}, stream=1, folio="late")
    staged = batch_of(topic, {B: 1}, folio="late", stage=StageEntry("s", "w", first=True))
    for batches in ([good, late], [good, staged]):
        with pytest.raises(Internal, match="retired"):
            metadata.registry.commit(batches)
    assert metadata.registry.live_folios() == set()
    assert offsets_of(metadata.registry, topic, A) == []
    fill(metadata, topic, 1, "good")
    assert offsets_of(metadata.registry, topic, A) == [(0, 0)]


def test_what_was_retired_is_remembered_for_a_week(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic("key")
    metadata.registry.retire(["late"])
    metadata.clock.time += 7 * DAY - 1
    purge_all(metadata, 100)
    with pytest.raises(Internal, match="retired"):
        fill(metadata, topic, 1, "late")
    metadata.clock.time += 1
    purge_all(metadata, 100)
    fill(metadata, topic, 1, "late")
    assert metadata.registry.live_folios() == {"late"}


def test_a_commit_and_a_retirement_at_once_never_both_succeed(
    metadata: MetadataUnderTest,
) -> None:
    topic = metadata.create_topic("key")

    def commit(folio: str) -> bool:
        try:
            fill(metadata, topic, 1, folio)
        except Internal:
            return False
        return True

    with ThreadPoolExecutor(2) as threads:
        for number in range(20):
            committed = threads.submit(commit, f"folio-{number}")
            retired = threads.submit(metadata.registry.retire, [f"folio-{number}"])
            assert bool(retired.result()) != committed.result()


def test_a_folio_forgotten_can_be_written_of_again(metadata: MetadataUnderTest) -> None:
    topic, other = metadata.create_topic("key"), metadata.create_topic("key")
    fill(metadata, topic, 1, "folio-1")
    metadata.admin.delete_topic(topic.name)
    purge_all(metadata, 100)
    fill(metadata, other, 1, "folio-1")
    assert metadata.registry.live_folios() == {"folio-1"}
