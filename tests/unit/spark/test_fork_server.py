"""Workers of Spark that begin as copies of a process with all imports."""

import os
import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from wings_spark.ingest import fork_server as subject

pytestmark = pytest.mark.programs

MODULE = """
import atexit, os, sys, threading

atexit.register(print, "left")
print(__name__, sys.argv[1:], "wings_spark.ingest.writer" in sys.modules, os.environ["VALUE"],
      os.getcwd(), sys.stdin.readline(), flush=True)
sys.stdin.read()
threading.Timer(0.1, print, ["ended"]).start()
"""


@pytest.fixture(scope="module")
def launcher() -> Generator[Path]:
    """A launcher whose fork server runs."""
    with subject.fork_server() as found:
        yield found


@pytest.fixture
def module(tmp_path: Path) -> Path:
    """The directory with a module `worker_of_spark`, which waits for the end of its input."""
    (tmp_path / "worker_of_spark.py").write_text(MODULE)
    return tmp_path


def start(launcher: Path, directory: Path) -> "subprocess.Popen[str]":
    """Start the module as Java starts a worker."""
    return subprocess.Popen(
        [launcher, "-m", "worker_of_spark", "pyspark.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=directory,
        env=os.environ | {"PYTHONPATH": str(directory), "VALUE": "7"},
    )


def say(process: "subprocess.Popen[str]") -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("hello\n")
    process.stdin.flush()
    return process.stdout.readline() + process.stdout.readline()


def test_a_worker_has_the_imports_and_what_its_launcher_was_given(
    launcher: Path, module: Path
) -> None:
    with start(launcher, module) as process:
        assert say(process).split("\n")[0] == f"__main__ ['pyspark.worker'] True 7 {module} hello"
        assert process.poll() is None, "the launcher stays for as long as its worker"
        assert process.communicate()[0] == "ended\nleft\n"
        assert process.returncode == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_worker_ends_with_its_launcher(
    launcher: Path, module: Path, number: signal.Signals
) -> None:
    process = start(launcher, module)
    say(process)
    process.send_signal(number)
    assert process.stdout is not None
    assert process.stdout.read() == "", "its end closed the stream, though its input goes on"
    process.communicate()


def test_without_a_server_the_launcher_runs_python_itself(module: Path, tmp_path: Path) -> None:
    with subject.fork_server() as launcher:
        (launcher.parent / "socket").unlink()
        with start(launcher, module) as process:
            assert say(process).startswith(f"__main__ ['pyspark.worker'] False 7 {module} hello")
            assert process.communicate()[0] == "ended\nleft\n"


def test_what_is_no_module_is_run_by_python(launcher: Path) -> None:
    code = "import sys; print(sys.executable)"
    assert subprocess.check_output([launcher, "-c", code], text=True) == f"{sys.executable}\n"
