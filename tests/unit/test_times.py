"""Times: RFC 3339 both ways, and deadlines that no system wait refuses."""

import threading
import time
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tables import each

from wings_core.errors import InvalidArgument
from wings_core.times import (
    TIMESTAMP_MAX,
    TIMESTAMP_MIN,
    WAIT_SECONDS_MAX,
    Deadline,
    format_timestamp,
    now_us,
    parse_timestamp,
)

timestamps = st.integers(TIMESTAMP_MIN, TIMESTAMP_MAX)


@given(timestamps)
def test_a_timestamp_survives_its_text(timestamp: int) -> None:
    text = format_timestamp(timestamp)
    assert len(text) == len("2026-11-20T12:00:00.000000Z")
    assert text.endswith("Z")
    assert parse_timestamp(text) == timestamp


@given(timestamps, timestamps)
def test_texts_sort_as_times_do(one: int, other: int) -> None:
    assert (format_timestamp(one) < format_timestamp(other)) == (one < other)


@given(
    st.datetimes(timezones=st.just(UTC)).filter(lambda moment: 2 <= moment.year < 9999),
    st.integers(-23 * 60 - 59, 23 * 60 + 59),
)
def test_a_zone_is_converted_to_utc(moment: datetime, minutes: int) -> None:
    local = moment.astimezone(timezone(timedelta(minutes=minutes)))
    text = local.isoformat(timespec="microseconds")
    expected = moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
    assert format_timestamp(parse_timestamp(text)) == expected


@each(
    ("text", "timestamp"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01T00:00:00.000001Z", 1),
        ("1969-12-31T23:59:59.999999Z", -1),
        ("1970-01-01t00:00:01z", 1_000_000),
        ("1970-01-01 00:00:01+00:00", 1_000_000),
        ("1970-01-01T01:00:00+01:00", 0),
        ("1970-01-01T00:00:00-00:00", 0),
        ("1970-01-01T00:00:00.5Z", 500_000),
        ("1970-01-01T00:00:00.1234567Z", 123_456),
        ("1970-01-01T00:00:00.123456789012345678901234567890Z", 123_456),
    ],
)
def test_every_form_of_rfc_3339_is_read(text: str, timestamp: int) -> None:
    assert parse_timestamp(text) == timestamp


@pytest.mark.parametrize(
    ("text", "timestamp"),
    [
        ("1970-01-01T00:00:00.123456Z", 123_456),
        ("1970-01-01T00:00:00.123456000Z", 123_456),
        ("1970-01-01T00:00:00.1234560001Z", 123_457),
        ("1969-12-31T23:59:59.999999999Z", 0),
        ("9999-12-31T23:59:59.9999999Z", TIMESTAMP_MAX),
    ],
)
def test_a_time_between_two_microseconds_may_be_read_as_the_later(
    text: str, timestamp: int
) -> None:
    assert parse_timestamp(text, up=True) == timestamp


@each(
    "text",
    [
        "",
        "now",
        "2026-11-20",
        "2026-11-20T12:00:00",
        "2026-11-20T12:00Z",
        "2026-11-20T12:00:00.Z",
        "2026-11-20T12:00:00,5Z",
        "2026-11-20T12:00:00 Z",
        "2026-11-20T12:00:00+0100",
        "2026-11-20T12:00:00+01",
        "2026-11-20T12:00:00+24:00",
        "2026-13-20T12:00:00Z",
        "2026-02-29T12:00:00Z",
        "2026-11-20T24:00:00Z",
        "2026-11-20T12:60:00Z",
        "20261120T120000Z",
        "2026-W47-5T12:00:00Z",
        "+2026-11-20T12:00:00Z",
        " 2026-11-20T12:00:00Z",
        "2026-11-20T12:00:00Z\n",
        "٢٠٢٦-11-20T12:00:00Z",
        "0001-01-01T00:00:00+00:01",
        "9999-12-31T23:59:59-00:01",
        "0000-01-01T00:00:00Z",
        "1700000000",
    ],
)
def test_anything_else_is_an_invalid_argument(text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_timestamp(text)
    assert caught.value.code == "INVALID_ARGUMENT"


def test_an_error_about_a_long_text_is_short() -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_timestamp("x" * 100_000)
    assert len(caught.value.message) <= 512


def test_the_clock_counts_microseconds() -> None:
    before = time.time()
    now = now_us() / 1e6
    assert before - 0.001 <= now <= time.time() + 0.001


def test_a_deadline_passes_when_its_time_has_come() -> None:
    assert Deadline.after(-1).passed
    assert Deadline.after(-1).remaining() == 0
    later = Deadline.after(100)
    assert not later.passed
    assert 99 < (later.remaining() or 0) <= 100


def test_a_deadline_that_never_passes_has_no_remaining_time() -> None:
    assert Deadline.never().remaining() is None
    assert not Deadline.never().passed


def test_a_deadline_at_a_wall_clock_time_counts_from_now() -> None:
    assert 99 < (Deadline.at_timestamp(now_us() + 100_000_000).remaining() or 0) <= 100
    assert Deadline.at_timestamp(now_us() - 1).passed
    assert Deadline.at_timestamp(TIMESTAMP_MIN).passed


def test_a_wait_until_the_furthest_deadline_is_one_that_the_system_takes() -> None:
    event = threading.Event()
    event.set()
    for deadline in (Deadline.at_timestamp(TIMESTAMP_MAX), Deadline.after(1e300)):
        remaining = deadline.remaining()
        assert remaining is not None
        assert WAIT_SECONDS_MAX - 10 < remaining <= WAIT_SECONDS_MAX < threading.TIMEOUT_MAX
        assert event.wait(remaining)
