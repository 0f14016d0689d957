"""Processes of a server as the kernel lists them, and waiting for what becomes of a server."""

import gc
import re
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as flight
from waiting import until

from wings_server.testing import RunningServer

SECONDS = 30.0


def until_let_go(server: RunningServer) -> None:
    """Wait until the calls of what was let go of have ended; a thread may have it for a moment."""

    def has_ended() -> bool:
        gc.collect()
        return server.server.service.calls_running == 0

    until(has_ended)


def children(pid: int) -> list[int]:
    """Return the processes that a server started and that are there; waits for one.

    Their standard input is a pipe from it, whatever started them for it.
    """
    found: list[int] = []

    def there() -> bool:
        found.clear()
        pipes = {each for each in _open_files(pid) if each.startswith("pipe:")}
        for of in Path("/proc").glob("[0-9]*/fd/0"):
            with suppress(OSError):  # It has just ended.
                if str(of.readlink()) in pipes:
                    found.append(int(of.parts[2]))
        found.sort()
        return bool(found)

    until(there)
    return found


def serving(pid: int) -> list[int]:
    """Return those of its processes that serve: they listen to their siblings, a spare does not."""
    unix = re.findall(
        r" (\d+) /\S*wings-\w+/\d+$", Path("/proc/net/unix").read_text(), re.MULTILINE
    )
    listening = {f"socket:[{inode}]" for inode in unix}
    return [each for each in children(pid) if not listening.isdisjoint(_open_files(each))]


def _open_files(pid: int) -> set[str]:
    found: set[str] = set()
    with suppress(OSError):  # The process has just ended,
        for of in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):  # or closed this one.
                found.add(str(of.readlink()))
    return found


def serves(address: str) -> bool:
    """Tell whether the process at an address answers.

    That it is connected to tells nothing: the sockets of one that was killed listen until the last
    of its threads has ended.
    """
    try:
        with flight.FlightClient(address) as client:
            options = flight.FlightCallOptions(timeout=10.0)
            return len(list(client.do_action(flight.Action("list-nodes", b"{}"), options))) == 1
    except (flight.FlightError, pa.ArrowException):
        return False


def is_running(pid: int) -> bool:
    """Tell whether a process has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
