import pytest

from wings_core.errors import InvalidArgument
from wings_core.names import NamespaceName
from wings_spark.bounds import AtTime, Bound
from wings_spark.options import SparkReadOptions, split_pattern

GIVEN = {"endpoint": "grpc://127.0.0.1:7777", "topic": "flights"}


def test_names_of_options_are_read_without_regard_to_case() -> None:
    options = SparkReadOptions.parse(
        {"ENDPOINT": "grpc://a:1", "Topic": "t", "minpartitions": "7", "FAILONDATALOSS": "false"}
    )
    assert (options.endpoint, options.topic) == ("grpc://a:1", "t")
    assert (options.min_partitions, options.fail_on_data_loss) == (7, False)


def test_a_path_is_the_topic() -> None:
    assert SparkReadOptions.parse({"endpoint": "grpc://a:1", "path": "t"}).topic == "t"
    with pytest.raises(InvalidArgument, match="'topic' is given twice"):
        SparkReadOptions.parse(GIVEN | {"path": "t"})
    assert SparkReadOptions.parse(GIVEN | {"path": GIVEN["topic"]}).topic == "flights"


def test_columns_are_names_between_commas_or_json() -> None:
    assert SparkReadOptions.parse(GIVEN | {"columns": "a, b"}).columns == ("a", "b")
    assert SparkReadOptions.parse(GIVEN | {"columns": '["a, b", "c"]'}).columns == ("a, b", "c")


@pytest.mark.parametrize(
    ("text", "seconds"), [("250", 0.25), ("250ms", 0.25), ("30s", 30), ("2 min", 120), ("1H", 3600)]
)
def test_durations_are_numbers_with_a_unit(text: str, seconds: float) -> None:
    options = SparkReadOptions.parse(GIVEN | {"minOffsetsPerTrigger": "5", "maxTriggerDelay": text})
    assert options.max_trigger_delay == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["1767225605000", "2026-01-01T00:00:05Z", "2026-01-01T01:00:05+01:00"]
)
def test_times_are_milliseconds_or_rfc_3339(text: str) -> None:
    options = SparkReadOptions.parse(GIVEN | {"startingTimestamp": text})
    assert options.start(Bound("earliest")).default == AtTime(1_767_225_605_000_000)


BAD_OPTIONS = [
    ({"endpoint": ""}, "option 'endpoint'"),
    ({"startingOffset": "5"}, "unknown option 'startingOffset'"),
    ({"minPartitions": "0"}, "option 'minPartitions': must be at least 1"),
    ({"minPartitions": "10001"}, "option 'minPartitions': must be at most"),
    ({"maxRecordsPerPartition": "0"}, "option 'maxRecordsPerPartition': must be at least 1"),
    ({"failOnDataLoss": "perhaps"}, "option 'failOnDataLoss'"),
    ({"columns": "a,a"}, "option 'columns': contains 'a' twice"),
    ({"columns": "[1"}, "option 'columns': not valid JSON"),
    ({"columns": "a,,b"}, "option 'columns': must not contain an empty string"),
    ({"filter": ""}, "option 'filter'"),
    ({"startingOffsets": "first"}, "option 'startingOffsets': must be earliest, latest"),
    ({"startingOffsets": '{"t": {"a": -3}}'}, "option 'startingOffsets': 'a': must be"),
    ({"startingTimestamp": "999999999999999"}, "option 'startingTimestamp': must be milli"),
    ({"endingTimestamp": "today"}, "option 'endingTimestamp': must be milliseconds"),
    ({"startingTimestamp": "5", "startingOffsets": "earliest"}, "exclude each other"),
    ({"topicsPattern": "f.*"}, "exactly one of the options 'topic' and 'topicsPattern'"),
    ({"minOffsetsPerTrigger": "6", "maxOffsetsPerTrigger": "5"}, "at most 'maxOffsets"),
    ({"maxTriggerDelay": "5s"}, "needs 'minOffsetsPerTrigger'"),
    ({"minOffsetsPerTrigger": "5", "maxTriggerDelay": "soon"}, "option 'maxTriggerDelay'"),
]


def test_a_bad_option_is_named(subtests: pytest.Subtests) -> None:
    for given, message in BAD_OPTIONS:
        with subtests.test(given=repr(given)[:80]), pytest.raises(InvalidArgument, match=message):
            SparkReadOptions.parse(GIVEN | given)


def test_an_option_that_is_missing_is_named() -> None:
    with pytest.raises(InvalidArgument, match="option 'endpoint' is required"):
        SparkReadOptions.parse({"topic": "flights"})


def test_options_of_streams_and_of_batch_reads_are_told_apart() -> None:
    with pytest.raises(InvalidArgument, match="'maxOffsetsPerTrigger' is for streams alone"):
        SparkReadOptions.parse(GIVEN | {"maxOffsetsPerTrigger": "5"}).for_batch()
    with pytest.raises(InvalidArgument, match="'endingOffsets' is for batch reads alone"):
        SparkReadOptions.parse(GIVEN | {"endingOffsets": "latest"}).for_stream()


def test_a_pattern_is_of_ids_in_the_default_namespace_or_in_one_named_before_it() -> None:
    namespace, pattern = split_pattern("flights-.*")
    assert str(namespace) == "tenants/default/namespaces/default"
    assert pattern.fullmatch("flights-2026")
    namespace, pattern = split_pattern("tenants/a/namespaces/b/topics/x+")
    assert (namespace, pattern.pattern) == (NamespaceName("a", "b"), "x+")
    for bad, message in (("[", "not a regular expression"), ("a/topics/b", "not a namespace")):
        with pytest.raises(InvalidArgument, match=message):
            SparkReadOptions.parse({"endpoint": "grpc://a:1", "topicsPattern": bad})
