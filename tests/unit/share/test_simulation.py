"""Share groups in a world of faults; see `share_simulation`, and `share_invariants` for what holds.

A seed that fails is run again by `World(seed).run()`.
"""

import pytest
from share_simulation import World

SEEDS = 24
"""At least two of each kind: groups in order, with times, with both, with neither."""
SOAK_SEEDS = 5_000


@pytest.mark.parametrize("seed", range(SEEDS))
def test_what_must_hold_holds_whatever_fails(seed: int) -> None:
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
    assert one.time == other.time
    assert one.observer.order == other.observer.order
