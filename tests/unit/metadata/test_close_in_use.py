"""What holds a handle of C is closed from one thread while others use it: no crash, one error."""

import subprocess
import sys
from pathlib import Path

import pytest
from fix_postgres import PostgresServer

PROGRAM = Path(__file__).with_name("close_in_use.py")


def close_in_use(what: str, directory: Path, *url: str) -> None:
    """Run the program, which a handle closed in use would end by a signal."""
    run = subprocess.run(
        [sys.executable, str(PROGRAM), what, str(directory), *url],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("what", ["writer", "store", "replica", "metadata", "queue", "segments"])
def test_calls_that_are_overtaken_by_a_close_are_unavailable(what: str, tmp_path: Path) -> None:
    close_in_use(what, tmp_path)


def test_calls_of_a_store_in_postgresql_that_are_overtaken_by_a_close_are_unavailable(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    close_in_use("postgres", tmp_path, postgres.url)
