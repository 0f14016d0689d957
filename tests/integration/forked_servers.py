"""Servers that start at once, for tests that crash hundreds of them.

Starting `wings serve` is mostly importing, about a second of it. So one process imports everything
once and forks a server, the real one, whenever it is asked to.
"""

import gc
import importlib
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from forked_commands import forked_main

MODULES = ("pydantic.v1", "uvicorn.lifespan.off", "uvicorn.protocols.http.auto")
"""What servers import only when they use it."""

SECONDS_MAX = 120.0
"""How long the forking process may take for anything."""

SEGMENT_BYTES_MAX = 64 * 1024
"""So that a short test fills several segments."""


class ForkedServer:
    """A server process on a data directory; it ends by `kill` alone.

    Attributes:
        flight: Its address for Flight clients, once `wait_until_ready` has returned.
    """

    def __init__(self, servers: "ForkedServers", pid: int) -> None:
        self.flight = ""
        self._servers = servers
        self._pid = pid
        self._ended = False

    def wait_until_ready(self) -> None:
        """Wait until it serves."""
        line = self._servers.read_line()
        assert line.startswith("wings ready flight="), line
        self.flight = line.split()[2].removeprefix("flight=")

    def kill(self) -> None:
        """End it by SIGKILL, as a crash would, and wait until it is gone; once is enough."""
        if self._ended:
            return
        with suppress(ProcessLookupError):  # Its trap has ended it.
            os.kill(self._pid, signal.SIGKILL)
        self.wait_until_ended()

    def wait_until_ended(self) -> None:
        """Wait until it was killed, by itself where it was started with a trap."""
        self._ended = True
        while (line := self._servers.read_line()).startswith("wings ready"):
            pass  # It was killed before a test waited for this.
        assert line == f"ended {-signal.SIGKILL}", f"the server ended by itself: {line}"


class ForkedServers:
    """Forks servers, one at a time; see `forked_servers`."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            forked_main(__file__), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        # A thread, as reading a pipe has no time-out; it ends with the process.
        self._reader = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> Self:
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(SECONDS_MAX)
        self._reader.join()

    @contextmanager
    def start(self, data_dir: Path, trap: str = "") -> Generator[ForkedServer]:
        """Fork a server, which goes on starting; it is killed at the end.

        Args:
            data_dir: Its directory.
            trap: Where it kills itself; see `set_trap`.
        """
        assert self._process.stdin is not None
        self._process.stdin.write(f"{data_dir}\t{trap}\n")
        self._process.stdin.flush()
        server = ForkedServer(self, int(self.read_line().removeprefix("forked ")))
        try:
            yield server
        finally:
            server.kill()

    def read_line(self) -> str:
        """Return the next thing that the forking process or its server says."""
        return self._lines.get(timeout=SECONDS_MAX)

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._lines.put(line.rstrip())


def main() -> None:
    """Fork a server for each directory named on standard input, the next when it has ended."""
    # Imported before the first fork, and only here.
    from wings_core.limits import Limits
    from wings_server.process import run
    from wings_server.settings import Address, Settings

    for module in MODULES:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # What a collection in a server looks at would be copied for it.
    any_port = Address("127.0.0.1", 0)
    for line in sys.stdin:
        data_dir, trap = line.rstrip("\n").split("\t")
        settings = Settings(
            data_dir=Path(data_dir),
            flight=any_port,
            http=any_port,
            log_level="warning",
            # With a trap, it drains all the time until then.
            limits=Limits(
                segment_bytes_max=SEGMENT_BYTES_MAX, inline_seconds=0.02 if trap else 0.75
            ),
        )
        pid = os.fork()
        if pid == 0:
            say(f"forked {os.getpid()}")
            if trap:
                set_trap(trap)
            run(settings)
        _, status = os.waitpid(pid, 0)
        say(f"ended {os.waitstatus_to_exitcode(status)}")
    os._exit(0)


def set_trap(trap: str) -> None:
    """Let this process kill itself.

    Nothing of what is inline stays in its memory, so that each read asks metadata.

    Args:
        trap: A step of the way of small pushes and how often it is done before, such as "write 3":
            "commit" (the pages are in metadata, and none was told), "write" (drained pages are in
            a segment), or "swap" (they took the place of the others). The last two are counted
            from the first push on.
    """
    from wings_core.maintain import drain
    from wings_core.metadata.store.maintenance import DatabaseMaintenance
    from wings_core.metadata.store.registry import DatabaseRegistry
    from wings_core.storage.inline_folios import InlineFolios
    from wings_core.storage.segments import SegmentStore

    drain.SWAPPED_PAGES = 4

    def keep_nothing(*_: object) -> None:
        pass

    patched: Any = InlineFolios
    patched._keep = keep_nothing
    at, number = trap.split()
    left = int(number)
    pushed = threading.Event()

    def watch(owner: Any, method: str, step: str) -> None:
        real = getattr(owner, method)

        def call(*arguments: Any, **named: Any) -> Any:
            nonlocal left
            result = real(*arguments, **named)
            if step == "commit":
                pushed.set()
            if step == at and pushed.is_set():
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
            return result

        setattr(owner, method, call)

    watch(DatabaseRegistry, "commit", "commit")
    watch(SegmentStore, "write", "write")
    watch(DatabaseMaintenance, "replace_all", "swap")


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
