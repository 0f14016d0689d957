"""Lists read in parts, by key: what every store answers after a key, and how much of it."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar
from uuid import uuid4

import pytest
from fix_metadata import SCHEMA, MetadataUnderTest
from tables import each

from wings_core.errors import InvalidArgument
from wings_core.metadata.remote.rpc import BY_TEXT, KeyKind
from wings_core.model import ShareConfig, ShareGroup, Topic
from wings_core.names import DEFAULT_NAMESPACE, NamespaceName
from wings_core.partitions import Partition, partition_sort_key

if TYPE_CHECKING:
    from _typeshed import SupportsRichComparison

T = TypeVar("T")
K = TypeVar("K", bound="SupportsRichComparison")

NUMBERS = [Partition(str(number)) for number in (-20, -3, 0, 1, 2, 9, 10, 11, 100, 1_000)]
"""In the order of their values, which is not that of their texts."""


def in_parts(part: Callable[[K | None, int], Sequence[T]], key: Callable[[T], K]) -> list[T]:
    """Read a list three keys at a time."""
    found: list[T] = []
    after: K | None = None
    while items := part(after, 3):
        keys = {key(item) for item in items}
        assert len(keys) <= 3
        found += items
        after = max(keys)
    return found


def test_topics_and_namespaces_come_in_parts(metadata: MetadataUnderTest) -> None:
    admin = metadata.admin
    for number in range(7):
        admin.create_namespace(NamespaceName(f"t{number % 3}", f"n{number}"))
        admin.create_topic(DEFAULT_NAMESPACE.topic(f"topic-{number}"), SCHEMA)
    namespaces = in_parts(
        lambda after, most: admin.list_namespaces(after=after, items_max=most),
        lambda namespace: namespace.name,
    )
    assert namespaces == admin.list_namespaces()
    assert len(namespaces) == 8
    topics = in_parts(
        lambda after, most: admin.list_topics(DEFAULT_NAMESPACE, after=after, items_max=most),
        lambda topic: topic.name.topic,
    )
    assert topics == admin.list_topics(DEFAULT_NAMESPACE)
    assert len(topics) == 7
    assert admin.list_topics(DEFAULT_NAMESPACE, after="topic-3x", items_max=1) == [topics[4]]
    admin.delete_topic(topics[4].name)
    assert admin.list_topics(DEFAULT_NAMESPACE, after="topic-4") == topics[5:]


def partitioned(metadata: MetadataUnderTest) -> Topic:
    topic = metadata.create_topic("n")
    for partition in NUMBERS:
        metadata.push(topic, partition=partition)
    return topic


def test_partitions_come_in_parts_and_each_part_by_value(metadata: MetadataUnderTest) -> None:
    topic = partitioned(metadata)

    def part(after: Partition | None, most: int) -> list[Partition]:
        states = metadata.registry.partition_states(topic.uuid, after=after, items_max=most)
        return [state.partition for state in states]

    assert part(None, 3) == NUMBERS[:3]
    assert part(Partition("1"), 4) == [Partition(text) for text in ("10", "11", "100", "1000")]
    parts = in_parts(part, lambda partition: partition)
    assert sorted(parts, key=partition_sort_key) == NUMBERS
    states = metadata.registry.partition_states(topic.uuid)
    assert [state.partition for state in states] == NUMBERS
    unpartitioned = metadata.create_topic()
    assert len(metadata.registry.partition_states(unpartitioned.uuid, items_max=1)) == 1
    none_left = Partition("null")
    assert metadata.registry.partition_states(unpartitioned.uuid, after=none_left) == []


def test_tiers_come_in_parts_of_partitions_that_have_pages(metadata: MetadataUnderTest) -> None:
    topic = partitioned(metadata)
    maintenance = metadata.opened.maintenance
    empty = NUMBERS[4]
    maintenance.expire(topic.uuid, empty, age_us=None, bytes_kept=0, pages_max=10)
    states = maintenance.tier_states(topic.uuid)
    assert [state.partition for state in states] == [each for each in NUMBERS if each != empty]
    parts = in_parts(
        lambda after, most: maintenance.tier_states(topic.uuid, after=after, partitions_max=most),
        lambda state: state.partition,
    )
    assert sorted(parts, key=lambda state: partition_sort_key(state.partition)) == states


def test_offsets_and_consumers_come_in_parts(metadata: MetadataUnderTest) -> None:
    registry = metadata.registry
    metadata.admin.create_namespace(NamespaceName("default", "default-2"))
    names = [DEFAULT_NAMESPACE.topic("a"), NamespaceName("default", "default-2").topic("a")]
    topics = [metadata.admin.create_topic(name, SCHEMA, "n") for name in names]
    for consumer in ("B", "a", "ä", "\U0001f600", "z"):
        registry.commit_offsets(
            consumer, [(topic, partition, 0) for topic in topics for partition in NUMBERS]
        )
    offsets = in_parts(
        lambda after, most: registry.get_offsets("a", after=after, items_max=most),
        lambda entry: (entry.topic, entry.partition),
    )
    assert len(offsets) == 2 * len(NUMBERS)
    whole = registry.get_offsets("a")
    assert whole == [entry for topic in topics for entry in registry.get_offsets("a", topic.uuid)]
    assert set(offsets) == set(whole)
    assert registry.get_offsets("a", topics[1].uuid, after=(names[0], NUMBERS[-1])) == [
        entry for entry in whole if entry.topic == names[1]
    ]
    consumers = in_parts(
        lambda after, most: registry.list_consumers(most, after=after),
        lambda consumer: consumer,
    )
    assert consumers == ["B", "a", "z", "ä", "\U0001f600"] == registry.list_consumers(10)


def test_sources_come_in_parts(metadata: MetadataUnderTest) -> None:
    shards = metadata.shards
    assert shards.sources(10) == []
    for source in ("B", "a", "ä", "\U0001f600", "z"):
        shards.open(source, "me", ["1", "2"])
    sources = in_parts(lambda after, most: shards.sources(most, after=after), lambda name: name)
    assert sources == ["B", "a", "z", "ä", "\U0001f600"] == shards.sources(10)
    assert shards.sources(2) == ["B", "a"]
    assert shards.sources(10, after="z") == ["ä", "\U0001f600"]


def test_folios_stages_and_groups_come_in_parts(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic()
    for number in range(7):
        metadata.stage(topic, f"s{number}", folio=f"folio-{number}")
        name = f"group {number}"
        metadata.groups.create(ShareGroup(name, str(uuid4()), topic, ShareConfig()))
    registry = metadata.registry
    folios = in_parts(
        lambda after, most: sorted(registry.live_folios(after=after, items_max=most)),
        lambda folio: folio,
    )
    assert folios == sorted(registry.live_folios()) == [f"folio-{number}" for number in range(7)]
    stages = in_parts(
        lambda after, most: metadata.stages.of_topic(topic.uuid, after=after, items_max=most),
        lambda stage: stage.stage,
    )
    assert stages == metadata.stages.of_topic(topic.uuid)
    assert len(stages) == 7
    groups = in_parts(
        lambda after, most: metadata.groups.of_topic(topic, after=after, items_max=most),
        lambda group: group.name,
    )
    assert groups == metadata.groups.of_topic(topic)
    assert len(groups) == 7


TEXTS: KeyKind[tuple[str, ...]] = KeyKind(2, lambda key: key, lambda *texts: texts)


@each(
    "token",
    ["?", "AAAA", "bnVsbA==", TEXTS.token(("a", "b")), "WyJcdWQ4MDAiXQ==", TEXTS.token(("a\0",))],
)
def test_what_is_no_page_token_is_refused(token: str) -> None:
    with pytest.raises(InvalidArgument, match="is not a page token"):
        BY_TEXT.after(token)


def test_a_page_token_stands_for_its_key() -> None:
    assert TEXTS.after(TEXTS.token(("a", "\U0001f600"))) == ("a", "\U0001f600")
    assert TEXTS.after("") is None
