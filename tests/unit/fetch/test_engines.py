"""Engines: a filter that takes too long ends, and others go on."""

import random
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pyarrow as pa
import pytest

from wings_core.errors import InvalidFilter, ResourceExhausted, Unavailable
from wings_core.fetch import engines
from wings_core.fetch.engines import ENGINES_MAX, PATTERN_ENGINES_MAX, Allowance, lent
from wings_core.fetch.fetcher import Cancel
from wings_core.fetch.selection import RowFilter
from wings_core.times import Deadline

arrow: Any = pa

ROWS = 50_000
_LETTERS = "".join(random.Random(7).choices("ab", k=ROWS + 200))
BATCH: Any = arrow.record_batch(
    {"k": arrow.array([_LETTERS[index : index + 200] for index in range(ROWS)])}
)
EVIL = "regexp_matches(k, '[ab]*a[ab]{300}c')"
"""Takes a part of a millisecond of each row, in DuckDB's own code: ten seconds and more of all."""


@pytest.fixture
def evil() -> RowFilter:
    return RowFilter.compile(EVIL, BATCH.schema)


@pytest.fixture(autouse=True)
def all_engines_are_idle_again(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(engines, "WAIT_SECONDS_MAX", 60.0)
    yield
    with ExitStack() as stack:
        for _ in range(ENGINES_MAX):
            stack.enter_context(lent(Allowance()))


def test_a_filter_ends_at_its_requests_deadline(evil: RowFilter) -> None:
    begun = time.monotonic()
    with pytest.raises(InvalidFilter, match="takes too long"):
        evil.mask(BATCH, Allowance(Deadline.after(0)))
    assert time.monotonic() - begun < 20
    # What was stopped leaves nothing behind.
    assert not evil.mask(BATCH.slice(0, 3)).true_count


def test_a_filter_without_a_deadline_ends_too(
    evil: RowFilter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "EVALUATION_SECONDS_MAX", 0.2)
    with pytest.raises(InvalidFilter, match="takes too long"):
        evil.mask(BATCH)


def test_a_constant_that_takes_long_ends_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "EVALUATION_SECONDS_MAX", 0.0)
    monkeypatch.setattr(engines, "_SWEEP_SECONDS", 0.001)
    constant = f"'{_LETTERS[:12_000]}'"
    evil = EVIL.replace("k,", f"{constant},")
    with pytest.raises(InvalidFilter, match="takes too long"):
        RowFilter.compile(f"{evil} AND {evil.replace(constant, 'k')}", BATCH.schema)


def test_a_filter_is_interrupted_when_its_reader_is_cancelled(evil: RowFilter) -> None:
    cancel = Cancel()
    timer = threading.Timer(0.2, cancel.cancel, [Unavailable("the client has gone away")])
    timer.start()
    with pytest.raises(Unavailable, match="gone away"):
        evil.mask(BATCH, Allowance(cancel=cancel))
    timer.join()


def test_others_go_on_beside_more_evil_filters_than_there_are_engines(evil: RowFilter) -> None:
    cancel = Cancel()
    errors: list[BaseException] = []

    def run() -> None:
        try:
            evil.mask(BATCH, Allowance(cancel=cancel))
        except (Unavailable, ResourceExhausted, InvalidFilter) as error:
            errors.append(error)

    running = [threading.Thread(target=run) for _ in range(ENGINES_MAX + 1)]
    for thread in running:
        thread.start()
    rows = BATCH.slice(0, 1_000)
    for text in ("k = 'x'", "length(k) = 200"):  # One of Arrow's, one of DuckDB's.
        for _ in range(3):
            found = RowFilter.compile(text, BATCH.schema).mask(rows).true_count
            assert found == (1_000 if text.startswith("length") else 0)
    cancel.cancel(Unavailable("over"))
    for thread in running:
        thread.join()
    assert len(errors) == len(running)


def test_filters_with_patterns_leave_engines_to_others() -> None:
    soon = Allowance(Deadline.after(0))
    with ExitStack() as stack:
        for _ in range(PATTERN_ENGINES_MAX):
            stack.enter_context(lent(Allowance(), pattern=True))
        with pytest.raises(ResourceExhausted), lent(soon, pattern=True):
            pass
        with lent(soon):
            pass


def test_a_filter_waits_for_an_engine_within_a_bound() -> None:
    row_filter = RowFilter.compile("length(k) = 200", BATCH.schema)
    plain = RowFilter.compile("k = 'x'", BATCH.schema)
    with ExitStack() as stack:
        for _ in range(ENGINES_MAX):
            stack.enter_context(lent(Allowance()))
        with pytest.raises(ResourceExhausted, match="as many filters as may run at once"):
            row_filter.mask(BATCH, Allowance(Deadline.after(0)))
        cancel = Cancel()
        cancel.cancel(Unavailable("gone"))
        with pytest.raises(Unavailable, match="gone"):
            row_filter.mask(BATCH, Allowance(cancel=cancel))
        assert plain.mask(BATCH).true_count == 0  # Arrow needs no engine.


def test_a_filter_that_waits_gets_the_engine_that_comes_free() -> None:
    row_filter = RowFilter.compile("length(k) = 200", BATCH.schema)
    found: list[int] = []
    with ExitStack() as stack:
        for _ in range(ENGINES_MAX):
            stack.enter_context(lent(Allowance()))
        waiting = threading.Thread(target=lambda: found.append(row_filter.mask(BATCH).true_count))
        waiting.start()
    waiting.join()
    assert found == [ROWS]
