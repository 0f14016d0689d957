"""That a run of the tests ends as it should, whatever happens to its processes."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import fix_run
import pytest
from tables import each

pytestmark = pytest.mark.programs

SECONDS_MAX = 150
"""Far beyond what a run takes, far below what an endless one would."""


def run_tests(directory: Path, program: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a module of tests, and another, with the plugin under test."""
    (directory / "test_planted.py").write_text(program)
    (directory / "test_other.py").write_text("def test_that_passes(): pass\n")
    command = [sys.executable, "-m", "pytest", "-p", "xdist", "-p", fix_run.__name__]
    return subprocess.run(
        [*command, *options, str(directory)],
        cwd=directory,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # They take seconds to import.
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )


@pytest.mark.parametrize(
    "death", [pytest.param("os.abort()", marks=pytest.mark.soak), "os._exit(0)"]
)
def test_a_worker_that_dies_in_a_test_fails_the_run_at_once_and_names_the_test(
    tmp_path: Path, death: str
) -> None:
    program = f"import os\ndef test_that_kills(): {death}\n" + "".join(
        f"def test_after_{number}(): pass\n" for number in range(10)
    )
    ended = run_tests(tmp_path, program, "--numprocesses=2")
    assert ended.returncode == pytest.ExitCode.TESTS_FAILED, ended.stdout + ended.stderr
    assert "crashed while running 'test_planted.py::test_that_kills'" in ended.stdout
    assert "FAILED test_planted.py::test_that_kills" in ended.stdout
    assert "replacing crashed worker" not in ended.stdout


@pytest.mark.soak
def test_workers_import_the_tests_in_orders_of_their_own(tmp_path: Path) -> None:
    program = """
import os, sys

assert ("test_other" in sys.modules) == (os.environ["PYTEST_XDIST_WORKER"] == "gw0")

def test_that_passes(): pass
"""
    ended = run_tests(tmp_path, program, "--numprocesses=2")
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_a_worker_that_dies_after_its_last_test_fails_the_run(tmp_path: Path) -> None:
    program = """
import os, pytest

@pytest.fixture(scope="session", autouse=True)
def killed_at_the_end():
    yield
    os.abort()

def test_that_passes(): pass
"""
    ended = run_tests(tmp_path, program, "--numprocesses=1")
    assert ended.returncode != 0, ended.stdout + ended.stderr


@pytest.mark.parametrize("options", [(), ("--numprocesses=1",)])
def test_ctrl_c_interrupts_tests_that_were_started_with_it_ignored(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    program = """
import signal, subprocess, sys

import pytest

ASK = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"

def test_the_handlers():
    assert signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
    child = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True)
    assert child.stdout == "True\\n"
"""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Which a new process inherits.
    try:
        ended = run_tests(tmp_path, program, *options)
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_a_test_over_a_table_fails_with_every_row_that_fails() -> None:
    seen: list[int] = []

    @each(("number", "limit"), [(1, 2), pytest.param(3, 2, id="too many"), (4, 3)])
    def test(number: int, limit: int, known: list[int]) -> None:
        known.append(number)
        if number == 4:
            pytest.fail("four")
        assert number < limit

    with pytest.raises(BaseExceptionGroup, match="2 of 3 rows failed") as caught:
        test(known=seen)
    assert seen == [1, 3, 4]
    assert [error.__notes__ for error in caught.value.exceptions] == [
        ["in the row too many"],
        ["in the row (4, 3)"],
    ]
