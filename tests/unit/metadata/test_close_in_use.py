"""What holds a handle of C is closed from one thread while others use it: no crash, one error."""

import subprocess
import sys
from pathlib import Path

import pytest
from fix_postgres import PostgresServer
from forked_commands import FORKED

pytestmark = pytest.mark.programs

PROGRAM = FORKED + Path(__file__).with_name("close_in_use.py").read_text(encoding="utf-8")


rounds_of_each = pytest.mark.parametrize(
    "rounds", [5, pytest.param(1_000, marks=[pytest.mark.soak, pytest.mark.timeout(3_600)])]
)


def close_in_use(what: str, rounds: int, directory: Path, *url: str) -> None:
    """Run the program, which a handle closed in use would end by a signal.

    What it wrote to standard error tells what it closed then.
    """
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, what, str(rounds), str(directory), *url],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, f"{run.returncode}: {run.stderr}"


@rounds_of_each
def test_calls_that_are_overtaken_by_a_close_are_unavailable(rounds: int, tmp_path: Path) -> None:
    close_in_use("writer,store,replica,metadata,queue,segments", rounds, tmp_path)


@rounds_of_each
def test_calls_of_a_store_in_postgresql_that_are_overtaken_by_a_close_are_unavailable(
    postgres: PostgresServer, rounds: int, tmp_path: Path
) -> None:
    close_in_use("postgres", rounds, tmp_path, postgres.url)
