"""Nodes and replicas of holds as real processes that start at once, for tests that kill them.

Starting one is mostly importing, seconds of it on a busy machine. So one process imports everything
once, and forks a server, the real one, whenever it is asked to. Unlike those of `forked_servers`,
many run at once.
"""

import gc
import importlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from forked_commands import forked_main

Kind = Literal["node", "holds"]

MODULES = (
    "pydantic.v1",
    "uvicorn.lifespan.off",
    "uvicorn.protocols.http.auto",
    "wings_core.metadata.remote",
    "wings_core.share.remote.link",
    "pyiceberg.catalog.sql",
    "pyiceberg.io.pyarrow",
)
"""What servers import only when they use it."""

SECONDS_MAX = 90.0
"""How long the forking process may take to begin, and a server to start or to be gone."""


class ForkedProcess:
    """A server in a process of its own.

    Attributes:
        addresses: Where it serves, by protocol: `flight` and `http`, or `grpc`; none of one that
            its trap ended before it served.
    """

    def __init__(self, pid: int, addresses: dict[str, str]) -> None:
        self.addresses = addresses
        self.running = True
        self._pid = pid

    def kill(self) -> None:
        """End it by SIGKILL, as a crash would, and wait until it is gone."""
        if self.has_ended():
            return
        with suppress(ProcessLookupError):  # Its trap may end it just now.
            os.kill(self._pid, signal.SIGKILL)
        deadline = time.monotonic() + SECONDS_MAX
        while not self.has_ended():  # The forking process does not wait for it.
            assert time.monotonic() < deadline, "a killed process is still there"
            time.sleep(0.005)

    def has_ended(self) -> bool:
        """Tell whether it is gone; where it was started with a trap, by itself."""
        if self.running and not _exists(self._pid):
            self.running = False  # For good, whatever another thread has just seen.
        return not self.running


class ForkedCluster:
    """Forks servers; see `forked_cluster`."""

    def __init__(self, process: "subprocess.Popen[str]", directory: Path) -> None:
        self._process = process
        self._directory = directory
        self._numbers = itertools.count()
        self._started: list[ForkedProcess] = []

    def start(self, kind: Kind, **settings: Any) -> ForkedProcess:
        """Start a server with settings by their names; returns when it serves.

        One that has a `trap`, empty or not, is as `table_traps` says.
        """
        (started,) = self.start_all(kind, [settings])
        return started

    def start_all(self, kind: Kind, settings: list[dict[str, Any]]) -> list[ForkedProcess]:
        """Start several servers at once; returns when all serve."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        begun: list[tuple[int, Path, bool]] = []
        for each in settings:
            output = self._directory / f"ready-{next(self._numbers)}"
            self._process.stdin.write(json.dumps([kind, str(output), each]) + "\n")
            self._process.stdin.flush()
            pid = int(self._process.stdout.readline())
            begun.append((pid, output, bool(each.get("trap"))))
        for pid, output, has_trap in begun:
            addresses = _addresses(pid, output)
            assert addresses or has_trap, "a server ended as it started"
            self._started.append(ForkedProcess(pid, addresses))
        return self._started[-len(begun) :]

    def kill_all(self) -> None:
        """Kill all that run."""
        for each in self._started:
            each.kill()


def _exists(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def _addresses(pid: int, output: Path) -> dict[str, str]:
    """Wait for the line that says where a server serves; returns nothing once it has ended."""
    deadline = time.monotonic() + SECONDS_MAX
    while _exists(pid):
        with suppress(FileNotFoundError):
            text = output.read_text()
            if " ready " in text and text.endswith("\n"):
                words = [word.partition("=") for word in text.split()]
                return {name: value.rpartition("/")[2] for name, found, value in words if found}
        assert time.monotonic() < deadline, "a server was not ready in time"
        time.sleep(0.005)
    return {}


@contextmanager
def forked_cluster(directory: Path) -> Generator[ForkedCluster]:
    """Run a process that forks servers; all of them are killed at the end.

    Args:
        directory: Where it may put files.
    """
    directory.mkdir(exist_ok=True)
    process = subprocess.Popen(
        forked_main(__file__), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    cluster = ForkedCluster(process, directory)
    try:
        yield cluster
    finally:
        cluster.kill_all()
        process.communicate(timeout=SECONDS_MAX)


def main() -> None:
    """Fork a server for each line on standard input, and say its process id."""
    # Imported before the first fork, and only here.
    for module in MODULES:
        importlib.import_module(module)
    from table_traps import prepare, set_trap

    from wings_server import lifecycle
    from wings_server.metadata.process import HoldServer
    from wings_server.process import run
    from wings_server.settings import HoldSettings, Settings

    gc.collect()
    gc.freeze()  # What a collection in a server looks at would be copied for it.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # Children that end are not waited for.
    for line in sys.stdin:
        kind, output, settings = json.loads(line)
        pid = os.fork()
        if pid:
            sys.stdout.write(f"{pid}\n")
            sys.stdout.flush()
            continue
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.dup2(os.open(output, os.O_CREAT | os.O_WRONLY), 1)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        trap = settings.pop("trap", None)
        if trap is not None:
            prepare()
        if trap:
            set_trap(trap)
        if kind == "node":
            run(Settings(**settings, flight="127.0.0.1:0", http="127.0.0.1:0"))  # pyright: ignore[reportArgumentType]
        else:
            lifecycle.run(HoldServer(HoldSettings(**settings)))
    os._exit(0)


if __name__ == "__main__":
    main()
