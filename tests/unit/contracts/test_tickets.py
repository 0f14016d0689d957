"""Tickets: the table of the contract, row by row, and everything that is not in it."""

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tables import each

from wings_core.contracts.messages import dump
from wings_core.contracts.reads import TimestampOffset
from wings_core.contracts.tickets import (
    MESSAGES_MAX,
    TIMEOUT_MS_MAX,
    AcquireTicket,
    AnyTicket,
    FetchTicket,
    FollowTicket,
    ScanTicket,
    parse_ticket,
)
from wings_core.errors import InvalidTicket
from wings_core.fetch.selection import resolve_columns
from wings_core.times import TIMESTAMP_MAX, TIMESTAMP_MIN, format_timestamp, now_us

INT64_MAX = (1 << 63) - 1
TIME = "2026-11-20T12:00:00Z"

MINIMAL: dict[str, dict[str, Any]] = {
    "fetch": {"topic": "t", "offset": 0},
    "scan": {"kind": "scan", "topic": "t"},
    "follow": {"kind": "follow", "topic": "t"},
    "acquire": {"kind": "acquire", "topic": "t", "group": "g", "member": "m"},
}
READS = ("fetch", "scan", "follow")
WAITING = ("fetch", "follow", "acquire")

KEYS: dict[str, tuple[set[str], list[Any], list[Any]]] = {
    "topic": (
        {"fetch", "scan", "follow", "acquire"},
        ["t", "tenants/t/namespaces/n/topics/x", "Not A Name"],
        [1, True, [], {}, ["t"]],
    ),
    "partition": (
        {"fetch", "scan", "follow", "acquire"},
        [None, 7, -7, "JFK", "", True, 1.5, [], {}, {"a": [1]}, 1 << 70],
        [],
    ),
    "offset": (
        {"fetch", "scan", "follow"},
        [0, 1, INT64_MAX, "earliest", "latest", {"timestamp": TIME}],
        [-1, INT64_MAX + 1, 1.0, 0.5, "0", "", "Earliest", "first", True, False, [], [1], {},
         {"timestamp": None}, {"timestamp": 0}, {"timestamp": "2026-11-20T12:00:00"},
         {"timestamp": "x"}, {"timestamp": TIME, "x": 1}, {"time": TIME}],
    ),
    "end_offset": (
        {"scan"},
        [0, 1, INT64_MAX],
        [-1, INT64_MAX + 1, 1.0, "1", "latest", True, {"timestamp": TIME}],
    ),
    "group": ({"acquire"}, ["g", "Ä ö", "x" * 255], ["", "x" * 256, 1, True, [], {}]),
    "member": ({"acquire"}, ["m", "a/b", "ü" * 256], ["", "x" * 257, 1, True, [], {}]),
    "deadline": (
        {"fetch", "follow", "acquire"},
        [TIME, "2026-11-20T12:00:00.123456+01:00", "1970-01-01T00:00:00Z"],
        ["", "now", "2026-11-20T12:00:00", "2026-11-20", 0, 1700000000, 1.5, True, [], {}],
    ),
    "timeout_ms": (
        {"fetch", "follow", "acquire"},
        [2, 100, TIMEOUT_MS_MAX],
        [1, 0, -1, TIMEOUT_MS_MAX + 1, 1 << 70, 2.0, 100.5, "100", True, [], {}],
    ),
    "min_messages": (
        {"fetch"},
        [1, 10_000],
        [0, -1, MESSAGES_MAX + 1, 10_001, 1.0, "1", True, []],
    ),
    "max_messages": (
        {"fetch", "acquire"},
        [1, MESSAGES_MAX],
        [0, -1, MESSAGES_MAX + 1, 1.0, "1", True, []],
    ),
    "columns": (
        {"fetch", "scan", "follow"},
        [["a"], ["b", "a"], ["a b", "A", "a"]],
        [[], [""], ["a", ""], ["a", "a"], [1], ["a", None], "a", {}, {"a": 1}, True, [["a"]],
         ["x"] * 20_000],
    ),
    "filter": ({"fetch", "scan", "follow"}, ["a > 1", ""], [1, True, [], {}, ["a"]]),
    "partitions": (
        {"fetch", "scan", "follow"},
        ["all", [1], ["a", 1, True], [None], [[1]], list(range(10_000)),
         [{"partition": {"a": 1}}, {"partition": 2, "offset": {"timestamp": TIME}}, 3],
         [{"partition": 1, "offset": 5}, {"partition": 2, "offset": "latest"}]],
        ["", "some", 1, True, [], {}, {"partition": 1}, [1, 1], [{"partition": 1}, 1],
         list(range(10_001)), [{}], [{"offset": 1}], [{"partition": 1, "x": 1}],
         [{"partition": 1, "offset": None}], [{"partition": 1, "offset": -1}],
         [{"partition": 1, "offset": 1.0}], [{"partition": 1, "offset": "first"}],
         [{"partition": 1, "offset": {"timestamp": "x"}}], [{"partition": 1, "end_offset": -1}],
         [{"partition": 1, "end_offset": "latest"}], [{"partition": 1, "end_offset": None}]],
    ),
    "system_columns": ({"fetch", "scan", "follow"}, [True, False], [0, 1, "true", [], {}]),
}  # fmt: skip

KINDS = list(MINIMAL)
GOOD = [
    (kind, key, value)
    for key, (kinds, good, _) in KEYS.items()
    for kind in sorted(kinds)  # In the same order in every process.
    for value in good
]
BAD = [
    (kind, key, value)
    for key, (kinds, _, bad) in KEYS.items()
    for kind in sorted(kinds)  # In the same order in every process.
    for value in [*bad, *([] if key == "partition" else [None])]
]
FOREIGN = [
    (kind, key) for key, (kinds, _, _) in KEYS.items() for kind in MINIMAL if kind not in kinds
]


def parse(found: object) -> Any:
    return parse_ticket(json.dumps(found).encode())


def refusal(found: object) -> str:
    with pytest.raises(InvalidTicket) as caught:
        parse(found)
    assert type(caught.value) is InvalidTicket
    assert len(caught.value.message.encode()) <= 512
    return caught.value.message


def test_every_good_value_of_every_key_is_taken_as_it_is(subtests: pytest.Subtests) -> None:
    for kind, key, value in GOOD:
        with subtests.test(f"{kind!r:.60} {key!r:.60} {value!r:.60}"):
            ticket = parse({**MINIMAL[kind], key: value})
            assert ticket.kind == kind
            taken = getattr(ticket, key)
            if key == "partitions":
                assert parse_ticket(ticket.to_bytes()) == ticket
                continue
            if isinstance(taken, TimestampOffset):
                taken = taken.model_dump()
            assert taken == (tuple(value) if key == "columns" else value)
            assert parse_ticket(ticket.to_bytes()) == ticket


def test_every_bad_value_of_every_key_is_refused_by_name(subtests: pytest.Subtests) -> None:
    for kind, key, value in BAD:
        with subtests.test(f"{kind!r:.60} {key!r:.60} {value!r:.60}"):
            assert f"key '{key}" in refusal({**MINIMAL[kind], key: value})


def test_a_key_of_another_kind_is_refused(subtests: pytest.Subtests) -> None:
    for kind, key in FOREIGN:
        with subtests.test(f"{kind!r:.60} {key!r:.60}"):
            value = KEYS[key][1][0]
            message = refusal({**MINIMAL[kind], key: value})
            assert message == f"ticket: key '{key}' does not belong to kind '{kind}'"


@each("kind", KINDS)
@each("key", ["x", "Topic", "topics", "", "groups", "lease", "splits", "topic "])
def test_an_unknown_key_is_refused(kind: str, key: str) -> None:
    refused = refusal({**MINIMAL[kind], key: 1})
    assert refused.startswith(f"ticket: unknown key {key!r}; ")
    assert (key.lower().strip() in {"topic", "topics"}) == ("did you mean 'topic'?" in refused)
    assert "topic, " in refused


UNKNOWN_KINDS = ["acquired", "Fetch", "", "scan ", None, 1, True, ["fetch"], {"fetch": 1}, 1.5]


def test_an_unknown_kind_is_refused(subtests: pytest.Subtests) -> None:
    for kind in UNKNOWN_KINDS:
        with subtests.test(f"{kind!r:.60}"):
            assert "key 'kind': must be one of fetch, scan, follow, acquire" in refusal(
                {**MINIMAL["fetch"], "kind": kind}
            )


def test_a_ticket_without_a_kind_is_a_fetch() -> None:
    assert parse(MINIMAL["fetch"]) == parse({**MINIMAL["fetch"], "kind": "fetch"})


@each("kind", KINDS)
def test_a_topic_is_required(kind: str) -> None:
    found = {key: value for key, value in MINIMAL[kind].items() if key != "topic"}
    assert refusal(found) == "ticket: key 'topic' is required"


def test_an_offset_is_required_for_a_fetch_and_is_earliest_for_the_others() -> None:
    assert refusal({"topic": "t"}) == "ticket: key 'offset' is required"
    for kind in ("scan", "follow"):
        ticket = parse(MINIMAL[kind])
        assert ticket.begin == "earliest"


def test_what_is_absent_has_the_contracts_default() -> None:
    ticket = parse(MINIMAL["fetch"])
    assert ticket == FetchTicket(topic="t", offset=0)
    assert (ticket.min_messages, ticket.max_messages) == (1, 10_000)
    assert (ticket.deadline, ticket.timeout_ms) == (None, None)
    for kind in READS:
        ticket = parse(MINIMAL[kind])
        assert (ticket.partition, ticket.columns, ticket.filter) == (None, None, None)
        assert ticket.system_columns is False
    scan = parse(MINIMAL["scan"])
    assert isinstance(scan, ScanTicket)
    assert scan.end_offset is None


def test_an_acquire_without_a_partition_is_for_any() -> None:
    ticket = parse(MINIMAL["acquire"])
    assert ("partition" in ticket.model_fields_set, ticket.max_messages) == (False, 10_000)
    for value in (None, 7, "JFK"):
        ticket = parse({**MINIMAL["acquire"], "partition": value})
        assert ("partition" in ticket.model_fields_set, ticket.partition) == (True, value)


@each("key", ["group", "member"])
def test_group_and_member_of_an_acquire_are_required(key: str) -> None:
    found = {name: value for name, value in MINIMAL["acquire"].items() if name != key}
    assert refusal(found) == f"ticket: key '{key}' is required"


@each("kind", WAITING)
def test_deadline_and_timeout_exclude_each_other(kind: str) -> None:
    message = refusal({**MINIMAL[kind], "deadline": TIME, "timeout_ms": 100})
    assert message == "ticket: keys 'deadline' and 'timeout_ms' exclude each other"


@each(
    ("low", "high"), [(2, 1), (MESSAGES_MAX, 10), (10_001, None), (MESSAGES_MAX, MESSAGES_MAX - 1)]
)
def test_min_messages_above_max_messages_is_refused(low: int, high: int | None) -> None:
    limits = {"min_messages": low} if high is None else {"min_messages": low, "max_messages": high}
    assert "key 'min_messages': must be at most max_messages" in refusal(
        {**MINIMAL["fetch"], **limits}
    )


def test_min_messages_may_be_max_messages() -> None:
    for count in (1, 10_000, MESSAGES_MAX):
        limits = {"min_messages": count, "max_messages": count}
        ticket = parse({**MINIMAL["fetch"], **limits})
        assert ticket.min_messages == ticket.max_messages == count


def test_a_scan_does_not_end_before_it_begins() -> None:
    parse({**MINIMAL["scan"], "offset": 5, "end_offset": 5})
    parse({**MINIMAL["scan"], "offset": "latest", "end_offset": 0})
    assert "key 'end_offset': must be at least offset (5)" in refusal(
        {**MINIMAL["scan"], "offset": 5, "end_offset": 4}
    )


NOT_STRICT = [
    b"",
    b"topic",
    b"[]",
    b"null",
    b'"t"',
    b'{"topic": "t", "offset": 0',
    b'{"topic": "t", "offset": 0, "offset": 0}',
    b'{"topic": "t", "topic": "t", "offset": 0}',
    b'{"topic": "t", "offset": NaN}',
    b'{"topic": "t", "offset": 0, "partition": Infinity}',
    b'{"topic": "t", "offset": 0, "partition": {"a": 1, "a": 2}}',
    b'{"topic": "t", "offset": 0, "partition": "\\udc00"}',
    b'{"topic": "\xff", "offset": 0}',
    b'{"topic": "t", "offset": 99999999999999999999999999}',
    b'{"topic": "t", "offset": -0.0}',
]


def test_what_is_no_strict_json_object_is_an_invalid_ticket(subtests: pytest.Subtests) -> None:
    for raw in NOT_STRICT:
        with subtests.test(f"{raw!r:.60}"), pytest.raises(InvalidTicket):
            parse_ticket(raw)


# Deadlines.


def test_a_timeout_counts_from_arrival() -> None:
    for kind in WAITING:
        ticket = parse({**MINIMAL[kind], "timeout_ms": 60_000})
        assert 59 < (ticket.deadline_from_now().remaining() or 0) <= 60


def test_a_deadline_is_a_moment_and_may_be_in_the_past() -> None:
    for kind in WAITING:
        later = parse({**MINIMAL[kind], "deadline": format_timestamp(now_us() + 60_000_000)})
        assert isinstance(later, (FetchTicket, FollowTicket, AcquireTicket))
        assert 59 < (later.deadline_from_now().remaining() or 0) <= 60
        past = parse({**MINIMAL[kind], "deadline": "1970-01-01T00:00:00Z"})
        assert isinstance(past, (FetchTicket, FollowTicket, AcquireTicket))
        assert past.deadline_from_now().passed


def test_without_either_a_fetch_waits_half_a_second_and_a_follow_for_ever() -> None:
    assert 0.4 < (FetchTicket(topic="t", offset=0).deadline_from_now().remaining() or 0) <= 0.5
    assert FollowTicket(topic="t").deadline_from_now().remaining() is None


# Tickets that clients make.

times = st.integers(TIMESTAMP_MIN, TIMESTAMP_MAX).map(format_timestamp)
offsets: st.SearchStrategy[Any] = st.one_of(
    st.integers(0, INT64_MAX),
    st.sampled_from(["earliest", "latest"]),
    st.builds(TimestampOffset, timestamp=times),
)
texts = st.text(st.characters(exclude_categories=["Cs"]))
partitions = st.one_of(st.none(), st.integers(-(1 << 63), (1 << 64) - 1), texts, st.booleans())
reads: dict[str, st.SearchStrategy[Any]] = {
    "topic": texts,
    "partition": partitions,
    "columns": st.none() | st.lists(texts.filter(bool), min_size=1, unique=True).map(tuple),
    "filter": st.none() | texts,
    "system_columns": st.booleans(),
}
nothing: dict[str, Any] = {}
waits = st.one_of(
    st.just(nothing),
    st.fixed_dictionaries({"deadline": times}),
    st.fixed_dictionaries({"timeout_ms": st.integers(2, TIMEOUT_MS_MAX)}),
)
limits = st.lists(st.integers(1, MESSAGES_MAX), min_size=2, max_size=2).map(sorted)


@st.composite
def tickets(draw: st.DrawFn) -> AnyTicket:
    kind = draw(st.sampled_from(KINDS))
    if kind == "acquire":
        about: dict[str, Any] = {"topic": "t", "group": "g", **draw(waits)}
        member = draw(st.text(min_size=1, max_size=20))
        return AcquireTicket(**about, member=member, max_messages=draw(limits)[0])
    found: dict[str, Any] = draw(st.fixed_dictionaries(reads)) | {"offset": draw(offsets)}
    if kind == "scan":
        start = found["offset"] if isinstance(found["offset"], int) else 0
        found["end_offset"] = draw(st.none() | st.integers(start, INT64_MAX))
        return ScanTicket(**found)
    found |= draw(waits)
    if kind == "follow":
        return FollowTicket(**found)
    low, high = draw(limits)
    return FetchTicket(**found, min_messages=low, max_messages=high)


@given(tickets())
def test_a_ticket_survives_its_bytes(ticket: AnyTicket) -> None:
    raw = ticket.to_bytes()
    assert parse_ticket(raw) == ticket
    assert parse_ticket(raw).to_bytes() == raw
    assert json.loads(raw)["kind"] == ticket.kind


def test_a_ticket_names_one_partition_or_many() -> None:
    for kind in READS:
        for partition in (1, None):
            message = refusal({**MINIMAL[kind], "partition": partition, "partitions": "all"})
            assert "'partition' and 'partitions' exclude each other" in message


def test_entries_say_no_more_than_they_must() -> None:
    entries = [1, {"partition": 2, "offset": 3}, {"partition": 4, "offset": {"timestamp": TIME}}]
    ticket = parse({**MINIMAL["scan"], "partitions": [{"partition": 1}, *entries[1:]]})
    assert json.loads(ticket.to_bytes())["partitions"] == entries


def test_all_partitions_may_be_read_from_positions() -> None:
    positions = [[1, 5], ["a", 0], [True, INT64_MAX]]
    for kind in READS:
        ticket = parse({**MINIMAL[kind], "partitions": "all", "positions": positions})
        assert json.loads(ticket.to_bytes())["positions"] == positions
        assert parse_ticket(ticket.to_bytes()) == ticket
        assert "needs" in refusal({**MINIMAL[kind], "positions": positions})
        assert "needs" in refusal({**MINIMAL[kind], "partitions": [1], "positions": positions})
    bad: list[Any] = [
        None, {}, "all", [1], [[1]], [[1, 2, 3]], [[1, -1]], [[1, 1.0]], [[1, "latest"]],
        [[1, 2], [1, 3]], [[1, INT64_MAX + 1]], ["ab"],
    ]  # fmt: skip
    for value in bad:
        message = refusal({**MINIMAL["scan"], "partitions": "all", "positions": value})
        assert "positions" in message, value


def test_many_partitions_are_fetched_from_the_earliest_offset_on_unless_told() -> None:
    ticket = parse({"topic": "t", "partitions": "all"})
    assert ticket.offset is None
    assert "key 'offset' is required" in refusal({"topic": "t", "partition": 1})


def test_the_end_of_a_partition_belongs_to_a_scan() -> None:
    entries = [1, {"partition": 2, "end_offset": 5}]
    assert isinstance(parse({**MINIMAL["scan"], "partitions": entries}), ScanTicket)
    for kind in ("fetch", "follow"):
        assert "end_offset" in refusal({**MINIMAL[kind], "partitions": entries})


@each(
    "keys",
    [
        {"partitions": "all", "offset": 5, "end_offset": 4},
        {"partitions": [{"partition": 1, "offset": 5}], "end_offset": 4},
        {"partitions": [{"partition": 1, "end_offset": 4}], "offset": 5},
        {"partitions": [0, {"partition": 1, "offset": 5, "end_offset": 4}]},
    ],
)
def test_a_range_of_a_partition_does_not_end_before_it_begins(keys: dict[str, Any]) -> None:
    assert "end_offset" in refusal({**MINIMAL["scan"], **keys})


def test_a_ticket_says_no_more_than_it_must() -> None:
    assert json.loads(FetchTicket(topic="t", offset=0).to_bytes()) == {
        "kind": "fetch",
        "topic": "t",
        "offset": 0,
    }
    assert ScanTicket(topic="t").to_bytes() == dump({"kind": "scan", "topic": "t"})


def test_a_time_as_an_offset_is_in_microseconds() -> None:
    ticket = parse({**MINIMAL["fetch"], "offset": {"timestamp": "1970-01-01T00:00:01.5Z"}})
    assert isinstance(ticket.offset, TimestampOffset)
    assert ticket.offset.timestamp_us == 1_500_000


# Columns.

SCHEMA: Any = pa.schema([("a", pa.int64()), ("b c", pa.int64()), ("A", pa.int64())])


def test_columns_are_found_in_the_order_asked_for() -> None:
    assert resolve_columns(SCHEMA, ["A", "a", "b c"]) == (2, 0, 1)
    assert resolve_columns(SCHEMA, ("b c",)) == (1,)


def test_the_error_of_a_system_column_says_how_it_is_asked_for() -> None:
    with pytest.raises(InvalidTicket, match="key 'system_columns' adds system columns"):
        resolve_columns(SCHEMA, ["a", "__offset"])


@each("name", ["x", "B", "b", "", "__offset", "a\0", "é" * 1000])
def test_an_unknown_column_is_an_invalid_ticket(name: str) -> None:
    with pytest.raises(InvalidTicket, match="the topic has no column") as caught:
        resolve_columns(SCHEMA, ["a", name])
    assert caught.value.column == name
    assert len(caught.value.message.encode()) <= 512
