"""GetFlightInfo commands and ListFlights criteria."""

import json
from typing import Any

import pyarrow as pa
import pytest

from wings_core.contracts.info import (
    Criteria,
    InfoCommand,
    parse_criteria,
)
from wings_core.contracts.put import command_of
from wings_core.contracts.reads import TimestampOffset
from wings_core.errors import InvalidArgument

TIME = "2026-11-20T12:00:00Z"

BAD: list[tuple[str, object]] = [
    ("topic", 1),
    ("topic", None),
    *[("splits", value) for value in (0, -1, 1 << 63, 1.0, "1", True, None)],
    *[("offset", value) for value in (-1, 1.0, "0", True, None, {"timestamp": "x"}, {})],
    *[("end_offset", value) for value in (-1, 1.0, "latest", True, None)],
    *[("columns", value) for value in ([], [""], ["a", "a"], "a", None, [1])],
    *[("filter", value) for value in (1, None)],
    *[("system_columns", value) for value in (1, None, "true")],
]


def parse(found: object) -> InfoCommand:
    return command_of(InfoCommand, None, json.dumps(found).encode(), "info command")


def test_a_command_needs_a_topic_alone() -> None:
    command = parse({"topic": "t"})
    assert (
        command == command_of(InfoCommand, [b"t"], None, "info command") == InfoCommand(topic="t")
    )
    assert (command.begin, command.end_offset, command.splits) == ("earliest", None, 1)
    with pytest.raises(InvalidArgument, match="key 'topic' is required"):
        parse({})


def test_a_command_says_what_its_keys_say() -> None:
    found: dict[str, Any] = {
        "topic": "t",
        "partition": 7,
        "offset": 3,
        "end_offset": 9,
        "splits": (1 << 63) - 1,
        "columns": ["b", "a"],
        "filter": "a > 1",
        "system_columns": True,
    }
    command = parse(found)
    assert json.loads(command.to_bytes()) == found
    assert command_of(InfoCommand, None, command.to_bytes(), "info command") == command


def test_an_offset_may_be_a_time() -> None:
    assert parse({"topic": "t", "offset": {"timestamp": TIME}}).offset == TimestampOffset(
        timestamp=TIME
    )


def test_a_bad_value_is_an_invalid_argument_that_names_its_key(subtests: pytest.Subtests) -> None:
    for key, value in BAD:
        with subtests.test(f"{key!r:.60} {value!r:.60}"):
            with pytest.raises(InvalidArgument, match=f"key '{key}") as caught:
                parse({"topic": "t", key: value})
            assert type(caught.value) is InvalidArgument


@pytest.mark.parametrize("key", ["kind", "min_messages", "deadline", "timeout_ms", "x"])
def test_an_unknown_key_is_refused(key: str) -> None:
    with pytest.raises(InvalidArgument, match=f"unknown key '{key}'"):
        parse({"topic": "t", key: 1})


def test_a_range_does_not_end_before_it_begins() -> None:
    parse({"topic": "t", "offset": 5, "end_offset": 5})
    with pytest.raises(InvalidArgument, match="key 'end_offset': must be at least offset"):
        parse({"topic": "t", "offset": 5, "end_offset": 4})


@pytest.mark.parametrize("path", [[], [b"a", b"b"], [b"\xff"]])
def test_a_path_is_one_element_of_utf8(path: list[bytes]) -> None:
    with pytest.raises(InvalidArgument):
        command_of(InfoCommand, path, None, "info command")


@pytest.mark.parametrize("raw", [None, b"", b"{}", pa.py_buffer(b"")])
def test_criteria_that_say_nothing_name_every_topic(raw: Any) -> None:
    assert parse_criteria(raw) == Criteria()


def test_criteria_name_a_namespace() -> None:
    assert parse_criteria(b'{"namespace": "n"}').namespace == "n"


@pytest.mark.parametrize(
    "raw", [b'{"topic": "t"}', b'{"namespace": 1}', b'{"namespace": null}', b"[]", b"n", b"\xff"]
)
def test_other_criteria_are_an_invalid_argument(raw: bytes) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_criteria(raw)
    assert type(caught.value) is InvalidArgument
