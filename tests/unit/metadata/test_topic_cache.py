"""The cache of topics."""

import pyarrow as pa
import pytest

from wings_core.metadata.store.topics import TopicCache
from wings_core.model import Topic, TopicConfig
from wings_core.names import DEFAULT_NAMESPACE


def topic(topic_id: str) -> Topic:
    name = DEFAULT_NAMESPACE.topic(topic_id)
    return Topic(name, f"uuid of {topic_id}", pa.schema([]), None, TopicConfig(), 0)


def test_a_topic_is_remembered_until_it_is_forgotten() -> None:
    cache, orders = TopicCache(10), topic("orders")
    cache.remember(orders, cache.generation)
    assert cache.get(orders.name) is orders
    cache.forget(orders.name)
    assert cache.get(orders.name) is None


def test_a_topic_read_before_a_change_and_remembered_after_it_is_not_kept() -> None:
    cache, orders = TopicCache(10), topic("orders")
    generation = cache.generation
    cache.forget(orders.name)
    cache.remember(orders, generation)
    assert cache.get(orders.name) is None


@pytest.mark.parametrize("topics_max", [0, 1, 3])
def test_no_more_topics_are_remembered_than_asked_for(topics_max: int) -> None:
    cache = TopicCache(topics_max)
    topics = [topic(f"topic-{number}") for number in range(5)]
    for each in topics:
        cache.remember(each, cache.generation)
    remembered = [each for each in topics if cache.get(each.name) is not None]
    assert remembered == topics[5 - topics_max :]
