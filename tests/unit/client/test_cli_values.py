import base64
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pyarrow as pa
import pytest
import typer

from wings_client import Topic
from wings_client.cli.endpoint import Endpoint
from wings_client.cli.values import (
    chosen_columns,
    duration,
    parse_fields,
    parse_offset,
    parse_partition,
    partition_text,
)
from wings_core.errors import PartitionNotAllowed, PartitionRequired, PartitionTypeMismatch


def topic(key_type: pa.DataType | None) -> Topic:
    return Topic(
        name="tenants/default/namespaces/default/topics/t",
        uuid="",
        schema=cast("Any", pa.schema([pa.field("key", key_type or pa.int64())])),
        partition_key=None if key_type is None else "key",
        config={},
        created_at=datetime.now(UTC),
    )


def test_a_partition_is_read_by_the_key_s_type(subtests: pytest.Subtests) -> None:
    cases: list[tuple[pa.DataType | None, str | None, object]] = [
        (pa.int8(), "-7", -7),
        (pa.uint64(), str(2**64 - 1), 2**64 - 1),
        (pa.string(), "7", "7"),
        (pa.string(), "JFK", "JFK"),
        (pa.string(), "", ""),
        (pa.bool_(), "True", True),
        (pa.binary(), base64.b64encode(b"hi").decode(), "aGk="),
        (None, None, None),
    ]
    for key_type, text, value in cases:
        with subtests.test(key_type=key_type, text=text, value=value):
            assert parse_partition(text, topic(key_type)) == value


def test_a_value_of_another_type_is_refused(subtests: pytest.Subtests) -> None:
    cases: list[tuple[pa.DataType | None, str | None, type[Exception]]] = [
        (pa.int8(), "128", PartitionTypeMismatch),
        (pa.int64(), "JFK", PartitionTypeMismatch),
        (pa.int64(), "1.0", PartitionTypeMismatch),
        (pa.bool_(), "1", PartitionTypeMismatch),
        (pa.binary(), "?", PartitionTypeMismatch),
        (pa.string(), None, PartitionRequired),
        (None, "JFK", PartitionNotAllowed),
    ]
    for key_type, text, error in cases:
        with subtests.test(key_type=key_type, text=text, error=error), pytest.raises(error):
            parse_partition(text, topic(key_type))


def test_partitions_are_shown_on_one_line() -> None:
    shown = [partition_text(value) for value in (None, 7, True, "JFK", "a\nb")]
    assert shown == ["null", "7", "true", "JFK", "a\\nb"]


def test_offsets_are_numbers_words_or_times() -> None:
    assert parse_offset("12") == 12
    assert parse_offset("earliest") == "earliest"
    assert parse_offset("2026-11-20T12:00:00+01:00") == datetime(2026, 11, 20, 11, tzinfo=UTC)
    before = datetime.now(UTC)
    for text, ago in (("-1.5h", 1.5), ("-90m", 1.5), ("-90min", 1.5), ("-2d", 48)):
        found = parse_offset(text)
        assert isinstance(found, datetime)
        assert timedelta() <= found - (before - timedelta(hours=ago)) < timedelta(hours=1)
    assert parse_offset("-100") == -100
    for text in ("first", "1.5", "-1.5", "1h", "-h", "-9999999d", "2026-11-20T12:00:00", ""):
        with pytest.raises(typer.BadParameter, match="expected a number") as refused:
            parse_offset(text, "--to")
        assert refused.value.param_hint == "--to"


def test_durations_have_units_and_bounds() -> None:
    parsed = [duration("ms")(text) for text in ("20", "20ms", "1.5s", "2m", "2min", "1h", "1d")]
    assert parsed == [0.02, 0.02, 1.5, 120, 120, 3_600, 86_400]
    assert [duration("s")(text) for text in ("0.5", "500ms", "2h")] == [0.5, 0.5, 7_200]
    for text in ("", "-1", "1 s", "s", "1y", "1e3", "half"):
        with pytest.raises(typer.BadParameter, match="not a duration: expected a number with ms"):
            duration("ms")(text)
    with pytest.raises(typer.BadParameter, match="0s is not at least 1 ms"):
        duration("ms", 1)("0s")
    with pytest.raises(typer.BadParameter, match="1d is not 0 to 43200 s"):
        duration("s", most=43_200)("1d")


def test_columns_are_names_and_arrow_s_types() -> None:
    fields = parse_fields(
        [
            "a:int64",
            "b c:string not null",
            "x:y:list<item: struct<a: int64>>",
            "t:timestamp[us, tz=UTC]",
        ]
    )
    assert pa.schema(list(fields.values())) == pa.schema(
        [
            pa.field("a", pa.int64()),
            pa.field("b c", pa.string(), nullable=False),
            pa.field("x:y", pa.list_(pa.struct([("a", pa.int64())]))),
            pa.field("t", pa.timestamp("us", "UTC")),
        ]
    )


def test_columns_of_another_form_are_refused(subtests: pytest.Subtests) -> None:
    cases: list[list[str]] = [["a"], ["a:"], ["a:flurb"], ["a:int64", "a:string"]]
    for texts in cases:
        with subtests.test(texts=texts), pytest.raises(typer.BadParameter):
            parse_fields(texts)


def test_columns_are_chosen_with_commas_or_by_names_that_have_some() -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.int64()), ("c,d", pa.int64())])
    assert chosen_columns(["a, b", "c,d"], schema) == ["a", "b", "c,d"]
    assert chosen_columns(None, schema) is None


def test_what_is_no_address_is_refused(subtests: pytest.Subtests) -> None:
    cases: list[str] = [
        "",
        "localhost:7777",
        "ftp://x:1",
        "grpc://x",
        "grpc://:1",
        "http://[",
        "grpc://x:y",
    ]
    for text in cases:
        with (
            subtests.test(text=text),
            pytest.raises(typer.BadParameter, match="is not an address"),
        ):
            Endpoint.parse(text)


def test_the_scheme_tells_http_from_flight() -> None:
    assert Endpoint.parse("http://localhost:7780").is_http
    assert not Endpoint.parse("grpc://localhost:7777").is_http
