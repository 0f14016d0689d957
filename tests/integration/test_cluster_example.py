"""The cluster of the examples, run small: its tour is true, and Ctrl-C leaves nothing."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from forked_commands import FORKED

EXAMPLE = Path(__file__).parents[2] / "examples" / "cluster"
SECONDS = 150.0

PROGRAM = f"""{FORKED}
import runpy
runpy.run_path({str(EXAMPLE)!r}, run_name="__main__")
"""


@pytest.mark.soak  # Ten processes; what it shows of nodes has tests of its own.
@pytest.mark.timeout(SECONDS + 20)
def test_the_tour_of_the_cluster_is_true_and_ctrl_c_leaves_nothing() -> None:
    # Not in pytest's own, which others than its owner may not enter, as PostgreSQL's user must.
    with tempfile.TemporaryDirectory(prefix="wings-example-") as directory:
        Path(directory).chmod(0o711)
        check_tour(Path(directory))


def check_tour(directory: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "--rows", "2000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(directory)},
    ) as example:
        watchdog = threading.Timer(SECONDS, example.kill)
        watchdog.start()
        assert example.stdout is not None
        said = ""
        for line in example.stdout:
            said += line
            if line.startswith("Ctrl-C"):
                example.send_signal(signal.SIGINT)
        assert example.stderr is not None
        errors = example.stderr.read()
    watchdog.cancel()
    assert example.returncode == 0, said + errors
    # All of them are in the bucket, as objects that S3 itself keeps from being overwritten.
    assert re.search(r"at s3://.* in objects: [1-9]\d*; S3 refused to overwrite one", said)
    assert re.search(r"merged \d+ pages into \d+ segments at s3://.*the same rows are read", said)
    assert "scanned 2,000 flights from 3 nodes at once" in said
    assert ", 0 lost, 0 doubled" in said
    processes = re.findall(r"process (\d+)\)", said)
    assert len(processes) == 4
    assert not any(Path(f"/proc/{each}").exists() for each in processes)
    assert not [path.name for path in directory.iterdir() if path.name.startswith("wings-")]
