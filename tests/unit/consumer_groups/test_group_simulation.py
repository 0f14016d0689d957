"""Consumer groups in a world of faults; see `group_simulation` for what must hold.

A seed that fails is run again by `World(seed).run()`.
"""

import pytest
from group_simulation import World

SEEDS = 30
SOAK_SEEDS = 20_000


@pytest.mark.parametrize("first", range(0, SEEDS, 10))
def test_what_must_hold_holds_whatever_fails(first: int) -> None:
    for seed in range(first, first + 10):
        World(seed).run()


@pytest.mark.soak
@pytest.mark.timeout(3_600)
def test_what_must_hold_holds_over_thousands_of_worlds() -> None:
    for seed in range(SEEDS, SEEDS + SOAK_SEEDS):
        try:
            World(seed).run()
        except AssertionError as broken:
            raise AssertionError(f"seed {seed}: {broken}") from broken


def test_a_seed_runs_the_same_way_again() -> None:
    one, other = World(7), World(7)
    one.run()
    other.run()
    assert one.observer.history == other.observer.history
