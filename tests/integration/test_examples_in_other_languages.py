"""The examples in Go, Java and Rust, built and run where their toolchains are."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from go_program import go_build

from wings_server.testing import RunningServer

EXAMPLES = Path(__file__).parents[2] / "examples"
SAID = [
    "pushed offsets 0 to 2",
    "fetched 0 roof 21.5",
    "fetched 2 attic 30",
    "acquired offsets 0 to 2",
    "accepted 1 deliveries",
]
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""It ends before what it would compile better had paid."""

BUILD_SECONDS = 3_000
"""The first build of the Rust example compiles 140 crates."""


def run(language: str, *command: str, needs: str) -> str:
    """Run a command in the folder of an example; returns what it printed.

    Skips the test where the tool is missing, or what the example depends on cannot be had.
    """
    need(needs)
    ended = subprocess.run(
        command,
        cwd=EXAMPLES / language,
        env=os.environ | {"MAVEN_OPTS": QUICK_JAVA, "JDK_JAVA_OPTIONS": QUICK_JAVA},
        capture_output=True,
        text=True,
        check=False,
    )
    return said(ended, needs)


def need(tool: str) -> None:
    """Skip the test where a tool is missing."""
    if shutil.which(tool) is None:
        pytest.skip(f"needs {tool}")


def said(ended: "subprocess.CompletedProcess[str]", needs: str) -> str:
    """Return what a command printed; skips the test where its tool cannot reach its registry."""
    printed = ended.stdout + ended.stderr
    offline = ("dial tcp", "Could not transfer", "failed to download", "Could not resolve host")
    if ended.returncode != 0 and any(each in printed for each in offline):
        pytest.skip(f"{needs} cannot reach its registry")
    assert ended.returncode == 0, printed[-4000:]
    return ended.stdout


def check(printed: str) -> None:
    """Check what an example printed on an empty server."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", printed)  # Maven's colours.
    lines = plain.replace("30.0", "30").splitlines()
    assert [line for line in lines if line in SAID] == SAID, printed
    assert any(line.startswith("fetched 1 cellar") for line in lines), printed


@pytest.mark.timeout(BUILD_SECONDS)
def test_the_go_example_pushes_fetches_and_acquires(server: RunningServer) -> None:
    need("go")
    program, built = go_build(EXAMPLES / "go", "example")
    said(built, "go")
    check(run("go", str(program), server.flight.removeprefix("grpc://"), needs="go"))


@pytest.mark.soak  # Ten seconds of two cores, to build it and start Java.
@pytest.mark.timeout(BUILD_SECONDS)
def test_the_java_example_pushes_fetches_and_acquires(server: RunningServer) -> None:
    endpoint = server.flight.removeprefix("grpc://")
    arguments = ("-B", "-q", "compile", "exec:exec", f"-Dendpoint={endpoint}")
    check(run("java", "mvn", *arguments, needs="mvn"))


@pytest.mark.soak  # The build takes minutes, on a busy machine many.
@pytest.mark.timeout(BUILD_SECONDS)
def test_the_rust_example_pushes_fetches_and_acquires(server: RunningServer) -> None:
    endpoint = server.flight.removeprefix("grpc://")
    check(run("rust", "cargo", "run", "--quiet", "--", endpoint, needs="cargo"))
