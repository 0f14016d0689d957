"""What is made of a topic's schema: once for each version, and anew for another schema."""

from dataclasses import replace

import pyarrow as pa

from wings_core.model import Topic, TopicConfig
from wings_core.names import TopicName
from wings_core.storage.lru import BySchema


def topic_of(name: str, *columns: str) -> Topic:
    schema = pa.schema([(column, pa.int64()) for column in columns])
    return Topic(TopicName.parse(name), name, schema, None, TopicConfig(), 0)


def test_it_is_made_once_for_each_topic_and_version_of_its_schema() -> None:
    made: list[list[str]] = []
    kept = BySchema(lambda topic: made.append(topic.schema.names) or len(made), 10)
    one, two = topic_of("one", "a"), topic_of("two", "a", "b")
    grown = replace(one, schema=two.schema, earlier_schemas=(one.schema,))
    same = replace(one, config=TopicConfig())
    asked = (one, one, two, same, grown, one, two)
    assert [kept.get(each) for each in asked] == [1, 1, 2, 1, 3, 1, 2]
    assert made == [["a"], ["a", "b"], ["a", "b"]]


def test_it_is_made_anew_for_another_schema_of_the_same_name() -> None:
    kept = BySchema(lambda topic: topic.schema.names, 10)
    topic = topic_of("one", "a")
    assert kept.get(topic) == ["a"]
    assert kept.get(replace(topic, schema=pa.schema({"b": pa.int64()}))) == ["b"]
    assert kept.get(topic) == ["a"]


def test_no_more_are_kept_than_so_many() -> None:
    made: list[str] = []
    kept = BySchema(lambda topic: made.append(topic.uuid), 2)
    topics = [topic_of(name, "a") for name in ("one", "two", "three")]
    for topic in [*topics, topics[0], topics[2]]:
        kept.get(topic)
    assert made == ["one", "two", "three", "one"]
