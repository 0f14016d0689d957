"""The server without what macOS lacks, the client and the commands without what Windows lacks.

Not those systems themselves: their calls are taken away from Python before it starts.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from forked_commands import FORKED

import wings_client
from wings_server.testing import RunningServer, server_process

LACKS = {
    "macos": """
import os
for name in ("fdatasync", "posix_fallocate", "posix_fadvise", "sched_getaffinity", "sendfile"):
    if hasattr(os, name):
        delattr(os, name)
""",
    "windows": """
import os, signal, sys
for name in ("fork", "forkpty", "register_at_fork", "killpg", "getuid", "geteuid", "pread",
             "preadv", "pwritev", "sysconf", "statvfs", "O_CLOEXEC", "O_DIRECTORY", "O_NONBLOCK"):
    if hasattr(os, name):
        delattr(os, name)
for name in ("SIGUSR1", "SIGUSR2", "SIGHUP", "SIGKILL", "SIGALRM", "SIGPIPE"):
    delattr(signal, name)
for name in ("fcntl", "pwd", "grp", "resource", "termios", "tty", "readline"):
    sys.modules[name] = None
""",
}
"""What Python on these systems has not, as a `sitecustomize`."""

WORK = """
import runpy
import sys
import wings_client

with wings_client.connect(sys.argv[1]) as client:
    topic = client.create_topic(sys.argv[2], {"n": "int64"})
    client.push(topic, {"n": [1, 2]})
    with client.producer(topic) as producer:
        producer.append({"n": 3})
    with client.consumer("c", topic, timeout=0.2) as consumer:
        assert sum(each.batch.num_rows for each in consumer) == 3
    assert client.scan(topic).read_all().num_rows == 3
    client.create_share_group("g", topic, {"start": "earliest"})
    done = client.worker("g", topic, lambda _: None, limit=3).run()
    assert done.accepted == 3, done

for arguments in (["push", sys.argv[2], sys.argv[3]], ["fetch", sys.argv[2], "--offset", "3"]):
    sys.argv = ["wings", *arguments]
    try:
        runpy.run_module("wings_client.cli", run_name="__main__")
    except SystemExit as ended:
        assert not ended.code, ended.code
"""


@pytest.fixture
def lacking(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """Return an environment in which Python lacks what the named system does."""
    (tmp_path / "sitecustomize.py").write_text(FORKED + LACKS[request.param])
    return os.environ | {"PYTHONPATH": str(tmp_path)}


def run(environment: dict[str, str], *command: str) -> str:
    """Run Python; returns what it printed."""
    ended = subprocess.run(
        [sys.executable, *command], env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.parametrize(
    "lacking", ["windows", pytest.param("macos", marks=pytest.mark.soak)], indirect=True
)
def test_the_client_and_the_commands_need_nothing_of_linux(
    server: RunningServer, new_topic_id: str, lacking: dict[str, str], tmp_path: Path
) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text("n\n4\n5\n")
    lacking["WINGS_ENDPOINT"] = server.flight
    printed = run(lacking, "-c", WORK, server.flight, new_topic_id, str(rows))
    assert [each in printed for each in ("4", "5")] == [True, True], printed


@pytest.mark.parametrize("lacking", ["macos"], indirect=True)
def test_a_server_needs_nothing_of_linux(lacking: dict[str, str], tmp_path: Path) -> None:
    environment = {"PYTHONPATH": lacking["PYTHONPATH"]}
    # The second finds what the first wrote; it imports all anew, as Python's own variable says.
    for rows, others in ((1_000, {}), (2_000, {"PYTHONHASHSEED": "1"})):
        with (
            server_process(tmp_path / "data", environment=environment | others) as process,
            wings_client.connect(process.flight) as client,
        ):
            topic = client.create_topic("t", {"n": "int64"}, if_not_exists=True)
            client.push(topic, {"n": list(range(1_000))})
            assert client.scan(topic).read_all().num_rows == rows
