import pyarrow as pa
import pytest

from wings_core.errors import InvalidArgument
from wings_core.names import TopicName
from wings_core.partitions import Partition
from wings_spark.bounds import AtTime, Bound, parse_bound, partition_of_text

FLIGHTS = TopicName.parse("flights")


def test_a_word_is_for_all_partitions() -> None:
    assert parse_bound("Earliest") == Bound("earliest")
    assert parse_bound(" latest ") == Bound("latest")


def test_partitions_are_named_by_topic_and_value() -> None:
    bound = parse_bound(
        '{"flights": {"JFK": 5, "\\"LAX\\"": -1, "SFO": -2, "ORD": "latest",'
        ' "BOS": {"timestamp": "1970-01-01T00:00:01Z"}}, "events": 7}'
    )
    assert bound.of_topic(FLIGHTS, pa.string()) == {
        Partition('"JFK"'): 5,
        Partition('"LAX"'): "latest",
        Partition('"SFO"'): "earliest",
        Partition('"ORD"'): "latest",
        Partition('"BOS"'): AtTime(1_000_000),
    }
    assert bound.of_topic(TopicName.parse("events"), None) == {Partition("null"): 7}
    assert bound.of_topic(TopicName.parse("others"), None) == {}


PARTITIONS = [
    ("7", pa.int32(), "7"),
    ("7", pa.string(), '"7"'),
    ('"7"', pa.string(), '"7"'),
    ("null", None, "null"),
    ("null", pa.string(), '"null"'),
    ("true", pa.bool_(), "true"),
    ("YQ==", pa.binary(), '"YQ=="'),
    ("ü", pa.large_string(), '"ü"'),
]


def test_a_text_is_read_by_the_kind_of_the_key(subtests: pytest.Subtests) -> None:
    for text, key_type, partition in PARTITIONS:
        with subtests.test(text=repr(text)[:80]):
            assert partition_of_text(text, key_type) == partition


BAD_PARTITIONS = [
    ("JFK", None),
    ("7", None),
    ("JFK", pa.int64()),
    ("1.5", pa.int64()),
    ("x", pa.binary()),
]


def test_a_text_that_is_no_value_of_the_key_is_an_error(subtests: pytest.Subtests) -> None:
    for text, key_type in BAD_PARTITIONS:
        with subtests.test(text=repr(text)[:80]), pytest.raises(InvalidArgument):
            partition_of_text(text, key_type)


BAD_BOUNDS = [
    ("5", "must be earliest, latest, or JSON"),
    ("{", "not valid JSON"),
    ('{"Flights": 5}', "not a topic id"),
    ('{"flights": 1.5}', "must be an offset"),
    ('{"flights": true}', "must be an offset"),
    ('{"flights": {"a": null}}', "'a': must be an offset"),
    ('{"flights": {"a": 1, "a": 2}}', "'a' is there twice"),
    ('{"flights": 1, "flights": {"a": 2}}', "'flights' is there twice"),
    ('{"flights": 1, "tenants/default/namespaces/default/topics/flights": 2}', "twice"),
]


def test_what_is_no_bound_is_an_error_that_says_why(subtests: pytest.Subtests) -> None:
    for text, message in BAD_BOUNDS:
        with subtests.test(text=repr(text)[:80]), pytest.raises(InvalidArgument, match=message):
            parse_bound(text)


def test_a_position_without_a_partition_is_for_topics_without_a_key_alone() -> None:
    bound = parse_bound('{"flights": 7}')
    assert bound.of_topic(FLIGHTS, None) == {Partition("null"): 7}
    with pytest.raises(InvalidArgument, match="give a partition value"):
        bound.of_topic(FLIGHTS, pa.string())
    named = parse_bound('{"flights": {"null": 7}}')
    assert named.of_topic(FLIGHTS, pa.string()) == {Partition('"null"'): 7}


def test_a_partition_named_twice_is_an_error() -> None:
    bound = parse_bound('{"flights": {"JFK": 5, "\\"JFK\\"": 6}}')
    with pytest.raises(InvalidArgument, match="named twice"):
        bound.of_topic(FLIGHTS, pa.string())
