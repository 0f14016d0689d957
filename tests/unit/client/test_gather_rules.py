import pytest

from wings_client.gather import stall, wait
from wings_client.gather._request import Rules, Strategy


def rules(
    strategy: Strategy, timeout: float | None = None, stall_timeout: float | None = None
) -> Rules:
    return Rules.of(
        timeout=timeout,
        stall_timeout=stall_timeout,
        max_messages=None,
        sentinel=None,
        on_error="end",
        strategy=strategy,
        client_timeout=5.0,
    )


def test_the_total_is_the_clients_unless_the_call_says_else() -> None:
    assert rules(wait).timeout == 5.0
    assert rules(wait, 60.0).timeout == 60.0


def test_the_strategy_stall_waits_the_lesser_of_a_tenth_of_the_total_and_the_connections_time(
    subtests: pytest.Subtests,
) -> None:
    cases: list[tuple[float | None, float]] = [(None, 0.5), (20.0, 2.0), (500.0, 5.0)]
    for total, seconds in cases:
        with subtests.test(total=total, seconds=seconds):
            assert rules(stall, total).stall_timeout == pytest.approx(seconds)
            assert rules(stall, total, 0.25).stall_timeout == 0.25
            assert rules(wait, total).stall_timeout is None
