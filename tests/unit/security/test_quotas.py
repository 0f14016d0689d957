"""Quotas: their texts, and what a principal uses counted call by call."""

import threading
from concurrent.futures import Future
from contextlib import ExitStack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tables import each

from wings_core.errors import InvalidArgument, ResourceExhausted
from wings_core.security.quotas import CallUsage, Quotas, Usage


def test_quotas_are_parsed_from_texts() -> None:
    assert Quotas.parse([]) == Quotas()
    assert not Quotas()
    parsed = Quotas.parse(["calls=3", "bytes=10", "topics=0", "partitions=7"])
    assert parsed == Quotas(3, 10, 0, 7)
    assert parsed.to_json() == {"calls": 3, "bytes": 10, "topics": 0, "partitions": 7}
    assert Quotas(topics=0)


@each(
    "text",
    ["calls", "calls=", "calls=0", "calls=-1", "calls=1.5", "calls=1k", "calls=٣", "rows=1",
     "bytes=0", f"topics={1 << 63}", "calls=" + "9" * 5_000, ""],
)  # fmt: skip
def test_a_text_that_is_no_quota_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument):
        Quotas.parse([text])


def test_a_quota_that_is_given_twice_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="twice"):
        Quotas.parse(["calls=1", "calls=2"])


def test_a_refusal_names_the_quota_and_its_number() -> None:
    usage = Usage("team", Quotas(calls=1, bytes=10))
    with usage.call() as first:
        with pytest.raises(ResourceExhausted, match="'calls' of team is 1") as refused:
            usage.call().__enter__()
        assert refused.value.facts == {"quota": "calls", "most": 1}
        first.take(10)
        usage.quotas = Quotas(bytes=10)
        with usage.call() as second, pytest.raises(ResourceExhausted, match="'bytes'") as refused:
            second.take(1)
        assert refused.value.facts == {"quota": "bytes", "most": 10}
    assert (usage.calls, usage.bytes) == (0, 0)


def test_one_call_alone_may_exceed_the_quota_of_bytes() -> None:
    usage = Usage("team", Quotas(bytes=10))
    with usage.call() as call:
        call.take(50)
        call.take(50)
        assert usage.bytes == 100


def test_a_call_that_waits_goes_on_once_its_own_bytes_are_released() -> None:
    usage = Usage("team", Quotas(bytes=10))
    with usage.call() as call:
        call.take(8, waits=True)
        took = threading.Event()

        def take() -> None:
            call.take(8, waits=True)
            took.set()

        thread = threading.Thread(target=take)
        thread.start()
        assert not took.is_set() or usage.bytes <= 10
        call.release(8)
        thread.join()
        assert usage.bytes == 8


def test_a_call_whose_bytes_are_never_released_does_not_wait_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("wings_core.security.quotas.RELEASE_SECONDS_MAX", 0.01)
    usage = Usage("team", Quotas(bytes=10))
    refused: Future[ResourceExhausted] = Future()

    def take() -> None:
        with usage.call() as call:
            call.take(8, waits=True)
            with pytest.raises(ResourceExhausted, match="8 are in flight") as error:
                call.take(8, waits=True)
        refused.set_result(error.value)

    threading.Thread(target=take, daemon=True).start()
    assert refused.result(30).facts == {"quota": "bytes", "most": 10}
    assert usage.bytes == 0


def test_a_call_that_waits_is_refused_where_the_bytes_are_of_others() -> None:
    usage = Usage("team", Quotas(bytes=10))
    with usage.call() as one, usage.call() as other:
        other.take(8)
        with pytest.raises(ResourceExhausted, match="8 are in flight"):
            one.take(8, waits=True)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["begin", "end", "take", "hold", "release"]),
            st.integers(0, 4),
            st.integers(0, 12),
        ),
        max_size=40,
    )
)
def test_usage_is_the_sum_of_the_open_calls(steps: list[tuple[str, int, int]]) -> None:
    usage = Usage("team", Quotas(calls=3, bytes=20))
    open_calls: list[tuple[ExitStack, CallUsage]] = []
    model: list[int] = []
    for step, index, size in steps:
        if step == "begin":
            stack = ExitStack()
            try:
                open_calls.append((stack, stack.enter_context(usage.call())))
                model.append(0)
                assert len(model) <= 3
            except ResourceExhausted:
                assert len(model) == 3
        elif index < len(model):
            stack, call = open_calls[index]
            if step == "end":
                stack.close()
                del open_calls[index], model[index]
            elif step == "take":
                others = sum(model) - model[index]
                fits = sum(model) + size <= 20 or others == 0
                try:
                    call.take(size)
                    assert fits
                    model[index] += size
                except ResourceExhausted:
                    assert not fits
            elif step == "hold":
                call.hold(size)
                model[index] += size
            else:
                call.release(size)
                model[index] = max(0, model[index] - size)
        assert (usage.calls, usage.bytes) == (len(model), sum(model))
    for stack, _ in open_calls:
        stack.close()
    assert (usage.calls, usage.bytes) == (0, 0)
