"""Messages: JSON is taken strictly, and what is wrong is told in one short sentence."""

from typing import Annotated, Any, ClassVar

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field
from tables import each

from wings_core.contracts.messages import (
    JSON_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    Message,
    dump,
    load_object,
    shortened,
    shown,
    to_bytes,
)
from wings_core.errors import InvalidArgument, InvalidTicket


class Inner(Message):
    name: str


class Example(Message):
    nullable_keys: ClassVar[frozenset[str]] = frozenset({"maybe"})

    count: Annotated[int, Field(ge=1, le=10)]
    maybe: str | None = None
    other: str | None = None
    entries: Annotated[tuple[Inner, ...], Field(strict=False)] = ()
    aliased: Annotated[bool, Field(alias="as")] = False


def parse(raw: bytes) -> Example:
    return Example.parse(raw, InvalidTicket, "example")


NOT_STRICT = [
    (b"", "not valid JSON"),
    (b"{", "not valid JSON"),
    (b"{'count': 1}", "not valid JSON"),
    (b'{"count": 1,}', "not valid JSON"),
    (b'{"count": 1} x', "not valid JSON"),
    (b'{"count": 01}', "not valid JSON"),
    (b"\xff\xfe", "not UTF-8"),
    (b'{"maybe": "\xc3"}', "not UTF-8"),
    ('{"count": 1}'.encode("utf-16"), "not UTF-8"),
    (b'\xef\xbb\xbf{"count": 1}', "not valid JSON"),
    (b'{"count": 1, "maybe": "\\ud800"}', "not valid JSON"),
    (b'{"count": 1, "maybe": "a\nb"}', "not valid JSON"),
    (b"null", "must be a JSON object"),
    (b"[]", "must be a JSON object"),
    (b'"count"', "must be a JSON object"),
    (b"1", "must be a JSON object"),
    (b'{"count": 1, "count": 1}', "duplicate key 'count'"),
    (b'{"count": 1, "entries": [{"name": "a", "name": "b"}]}', "duplicate key 'name'"),
    (b'{"count": NaN}', "NaN is not JSON"),
    (b'{"count": -Infinity}', "-Infinity is not JSON"),
    (b'{"count": 1e999}', "1e999 is too large"),
    (b'{"count": ' + b"9" * 5000 + b"}", "not valid JSON"),
    (b"[" * 100_000, "nested too deeply"),
    (b'{"count": 1, "x": ' + b"[" * 300 + b"]" * 300 + b"}", "not valid JSON"),
    (b" " * (JSON_BYTES_MAX + 1), "longer than"),
]


def test_what_is_no_strict_json_object_is_refused(subtests: pytest.Subtests) -> None:
    for raw, problem in NOT_STRICT:
        with subtests.test(f"{raw!r:.60} {problem!r:.60}"):
            with pytest.raises(InvalidTicket) as caught:
                parse(raw)
            assert caught.value.message.startswith("example: ")
            assert problem in caught.value.message
            assert len(caught.value.message.encode()) <= MESSAGE_BYTES_MAX


KEYS = "count, maybe, other, entries, as"

SENTENCES = [
    (b"{}", "key 'count' is required"),
    (b'{"count": 0}', "key 'count': must be at least 1; got 0"),
    (b'{"count": 11}', "key 'count': must be at most 10; got 11"),
    (b'{"count": true}', "key 'count': must be an integer; got true"),
    (b'{"count": 1.0}', "key 'count': must be an integer; got 1.0"),
    (b'{"count": 1e0}', "key 'count': must be an integer; got 1.0"),
    (b'{"count": "1"}', "key 'count': must be an integer; got \"1\""),
    (b'{"count": 1, "maybe": 1}', "key 'maybe': must be a string; got 1"),
    (b'{"count": 1, "entries": {}}', "key 'entries': must be a list; got {}"),
    (b'{"count": 1, "entries": [1]}', "key 'entries[0]': must be an object; got 1"),
    (b'{"count": 1, "entries": [{}]}', "key 'entries[0].name' is required"),
    (b'{"count": 1, "entries": [{"name": "a"}, {"name": 1}]}',
     "key 'entries[1].name': must be a string; got 1"),
    (b'{"count": 1, "entries": [{"name": "a", "x": 1}]}',
     "unknown key 'entries[0].x'; there is name"),
    (b'{"count": 1, "x": null}', f"unknown key 'x'; there are {KEYS}"),
    (b'{"count": 1, "aliased": true}', f"unknown key 'aliased'; there are {KEYS}"),
    (b'{"cuont": 1}', f"unknown key 'cuont'; did you mean 'count'? There are {KEYS}"),
    (b'{"count": 1, "as": 0}', "key 'as': must be true or false; got 0"),
    (b'{"count": 1, "as": null}', "key 'as' must not be null"),
    (b'{"count": null}', "key 'count' must not be null"),
    (b'{"count": 1, "other": null}', "key 'other' must not be null"),
]  # fmt: skip


def test_a_sentence_names_the_key_and_the_problem(subtests: pytest.Subtests) -> None:
    for raw, sentence in SENTENCES:
        with subtests.test(f"{raw!r:.60} {sentence!r:.60}"):
            with pytest.raises(InvalidTicket) as caught:
                parse(raw)
            assert caught.value.message == f"example: {sentence}"


def test_null_is_a_value_where_the_model_says_so() -> None:
    assert parse(b'{"count": 1, "maybe": null}').maybe is None


def test_the_error_is_of_the_class_asked_for() -> None:
    with pytest.raises(InvalidArgument) as caught:
        Example.parse(b"{}", InvalidArgument, "example")
    assert type(caught.value) is InvalidArgument


@each(
    "raw",
    [
        dump({"count": "x" * 100_000}),
        dump({"x" * 100_000: 1, "count": 1}),
        dump({"count": 1, "☃" * 100_000: 1}),
        dump({"count": 1, "entries": [[[["☃" * 1000]]] * 1000]}),
        dump({"x" * 100_000: None, "count": 1}),
    ],
)
def test_a_message_is_short_whatever_was_sent(raw: bytes) -> None:
    with pytest.raises(InvalidTicket) as caught:
        parse(raw)
    assert len(caught.value.message.encode()) <= MESSAGE_BYTES_MAX


def test_a_message_survives_its_bytes() -> None:
    example = Example.model_validate(
        {"count": 3, "maybe": "é\0\n", "entries": [{"name": "a"}, {"name": ""}], "as": True}
    )
    assert parse(example.to_bytes()) == example
    assert b'"as": true' in example.to_bytes()
    assert parse(b'{"count": 3}').to_bytes() == b'{"count": 3}'


def test_messages_cannot_be_changed() -> None:
    example: Any = parse(b'{"count": 3}')
    with pytest.raises(ValueError, match="frozen"):
        example.count = 4


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 70), 1 << 70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc"), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text("abc"), json_values, max_size=4))
def test_every_json_object_is_loaded_as_it_is(found: dict[str, Any]) -> None:
    assert load_object(dump(found), InvalidTicket, "example") == found


@given(st.binary(max_size=60))
def test_any_bytes_are_an_object_or_an_invalid_ticket(raw: bytes) -> None:
    try:
        found = load_object(raw, InvalidTicket, "example")
    except InvalidTicket:
        return
    assert isinstance(found, dict)


@given(st.text(), st.integers(3, 40))
def test_a_shortened_text_fits_and_is_the_text_where_that_fits(text: str, bytes_max: int) -> None:
    short = shortened(text, bytes_max)
    assert len(short.encode()) <= bytes_max
    if len(text.encode("utf-8", "replace")) <= bytes_max:
        assert short == text.encode("utf-8", "replace").decode()


def test_values_are_shown_as_json_and_cut() -> None:
    assert shown({"a": [None, True, "é"]}) == '{"a": [null, true, "é"]}'
    assert shown("x" * 1000).endswith("...")
    assert len(shown("x" * 1000)) <= 60


def test_bytes_come_from_whatever_flight_hands_on() -> None:
    assert to_bytes(None) == b""
    assert to_bytes(b"x") == b"x"
    assert to_bytes(pa.py_buffer(b"x")) == b"x"
