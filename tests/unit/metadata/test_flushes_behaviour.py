"""How every `OffsetRegistry` commits a flush once, however often it is asked to."""

from dataclasses import replace

import pytest
from fix_metadata import DAY, A, B, MetadataUnderTest, batch_of, offsets_of

from wings_core.errors import InvalidArgument, OffsetMismatch
from wings_core.metadata.repeats import dump_results, load_results
from wings_core.model import Accepted, FlushId, Rejected, StageEntry
from wings_core.partitions import UNPARTITIONED


def test_a_repeated_flush_is_answered_with_its_first_results(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic("key")
    batches = [
        batch_of(topic, {A: 3, B: 1}),
        batch_of(topic, {A: 1}, stream=1, expected=(A, 99)),
        batch_of(topic, {A: 2}, stream=2, stage=StageEntry("s-1", "w", first=True)),
    ]
    first = metadata.registry.commit(batches, FlushId("writer", 0))
    metadata.reopen()
    again = metadata.registry.commit(batches, FlushId("writer", 0))
    assert dump_results(again) == dump_results(first)
    assert offsets_of(metadata.registry, topic, A) == [(0, 2)]
    refusal = again[1]
    assert isinstance(refusal, Rejected)
    assert isinstance(refusal.error, OffsetMismatch)
    assert refusal.error.next_offset == 3


def test_a_repeated_flush_is_known_by_its_id_whatever_comes_with_it(
    metadata: MetadataUnderTest,
) -> None:
    topic = metadata.create_topic()
    first = metadata.registry.commit([batch_of(topic, {UNPARTITIONED: 2})], FlushId("writer", 7))
    assert metadata.registry.commit([], FlushId("writer", 7)) == first


def test_a_repeated_flush_with_series_is_answered_with_their_results(
    metadata: MetadataUnderTest,
) -> None:
    topic = metadata.create_topic()
    series = replace(batch_of(topic, {UNPARTITIONED: 3}, sequence=("p", 0)), series=(1, 2))
    batches = [series, replace(series, stream=1, series=(1, 1, 1))]
    first = metadata.registry.commit(batches, FlushId("writer", 0))
    metadata.reopen()
    again = metadata.registry.commit(batches, FlushId("writer", 0))
    assert dump_results(again) == dump_results(first)
    assert offsets_of(metadata.registry, topic)[-1][1] == 3


def test_the_next_flush_of_a_writer_and_those_of_others_are_committed(
    metadata: MetadataUnderTest,
) -> None:
    topic = metadata.create_topic()
    for flush_id in (FlushId("one", 0), FlushId("one", 2), FlushId("other", 0), None, None):
        (result,) = metadata.registry.commit([batch_of(topic, {UNPARTITIONED: 1})], flush_id)
        assert isinstance(result, Accepted)
    assert offsets_of(metadata.registry, topic) == [(at, at) for at in range(5)]


def test_a_flush_that_comes_after_a_later_one_is_refused_and_never_visible(
    metadata: MetadataUnderTest,
) -> None:
    topic = metadata.create_topic()
    metadata.registry.commit([], FlushId("writer", 5))
    with pytest.raises(InvalidArgument, match="flush 4 came after flush 5"):
        metadata.registry.commit([batch_of(topic, {UNPARTITIONED: 1})], FlushId("writer", 4))
    assert offsets_of(metadata.registry, topic) == []


def test_flushes_are_forgotten_after_a_day(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic()
    metadata.registry.commit([batch_of(topic, {UNPARTITIONED: 1})], FlushId("writer", 0))
    metadata.clock.time += DAY - 1
    assert not metadata.registry.purge(1_000)
    metadata.registry.commit([batch_of(topic, {UNPARTITIONED: 1})], FlushId("writer", 0))
    assert offsets_of(metadata.registry, topic) == [(0, 0)]
    metadata.clock.time += 1
    assert not metadata.registry.purge(1_000)
    metadata.registry.commit([batch_of(topic, {UNPARTITIONED: 1})], FlushId("writer", 0))
    assert offsets_of(metadata.registry, topic) == [(0, 0), (1, 1)]


def test_results_are_stored_whole(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic("key")
    results = metadata.registry.commit([batch_of(topic, {A: 1}), batch_of(topic, {})])
    assert load_results(dump_results(results)) == results
