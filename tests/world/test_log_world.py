"""The whole log in simulated worlds, by seed; see `log_world`, and `history` for what must hold.

A seed that fails is run again, made smaller and printed by `python tests/world/run_world.py`.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from programs import Program, shrink

COMMAND = Path(__file__).with_name("run_world.py")

SEEDS = 2_000
"""Worlds of each `make test`: a third of them of nodes."""

SOAK_SEEDS = 1_000_000
"""Worlds of a soak, some nine hours of two cores; `SOAK_SEEDS` of the environment sets another
number."""

PLANTED = 35
"""Bugs in `planted`."""

pytestmark = [
    pytest.mark.programs,
    pytest.mark.timeout(1_200),  # The worlds take a minute of two quiet cores.
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks as on Linux"),
]


def run(*arguments: object) -> Sequence[str]:
    """Run the command; returns its lines."""
    ended = subprocess.run(
        [sys.executable, COMMAND, *map(str, arguments)], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout[-4_000:] + ended.stderr[-4_000:]
    return ended.stdout.splitlines()


@pytest.fixture(scope="module")
def worlds() -> Sequence[str]:
    return run("--seeds", 0, SEEDS)


def test_what_must_hold_holds_whatever_fails(worlds: Sequence[str]) -> None:
    assert len(worlds) == SEEDS


def test_a_seed_is_the_same_world_again(worlds: Sequence[str]) -> None:
    assert run("--seed", 5, "--seed", 7, "--seed", 8) == [worlds[5], worlds[7], worlds[8]]


@pytest.mark.skipif(shutil.which("cc") is None, reason="power is lost by a recorder in C")
def test_planted_bugs_are_found() -> None:
    """Each by the world that is known to, or by one of a few others."""
    found = run("--plant", "", "--seeds", 0, 200)
    assert len(found) == PLANTED


def test_a_program_that_fails_is_made_as_small_as_fails_too() -> None:
    def fails(program: Program) -> bool:
        kinds = [[each.kind for each in operations] for operations in program.clients]
        return bool(program.crashes) and any("tail" in some for some in kinds)

    whole = next(program for program in map(Program.of, range(100)) if fails(program))
    small = shrink(whole, fails, 1_000)
    assert fails(small)
    assert (len(small.crashes), [len(each) for each in small.clients]) == (1, [1])


@pytest.mark.soak
@pytest.mark.timeout(24 * 3_600)
def test_what_must_hold_holds_for_a_night_of_worlds() -> None:
    seeds = int(os.environ.get("SOAK_SEEDS", SOAK_SEEDS))
    assert len(run("--seeds", SEEDS, SEEDS + seeds)) == seeds
