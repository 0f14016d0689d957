"""One of the processes of a server: `python -m wings_server.processes`, started by a parent.

It imports its modules, then receives its orders on standard input, which stays open while the
parent runs. It prints the ready line, or the error that prevented its start.
"""

import json
import os
import pickle
import signal
import socket
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from wings_core.errors import WingsError
from wings_server.process import run
from wings_server.processes.siblings import Siblings
from wings_server.settings import Settings

FAILED = "wings failed "
"""Prefix of the line with the error, as JSON, that prevented a process's start."""

ORPHAN_SECONDS_MAX = 8.0
"""Longest time that a process continues to serve, or drains, after its parent's end."""


@dataclass(frozen=True, slots=True)
class Orders:
    """A parent's orders to one of its processes."""

    settings: Settings
    http: int
    """Descriptor of the socket that all processes accept HTTP connections from."""
    sockets: Path
    """Directory of sockets; see `Siblings`."""
    index: int
    count: int


def main() -> NoReturn:
    """Serve as ordered until SIGTERM, or the parent's end."""
    try:
        orders: Orders = pickle.load(sys.stdin.buffer)
    except EOFError:
        sys.exit()  # The parent ended without orders.
    threading.Thread(target=_watch_parent, name="wings-parent", daemon=True).start()
    try:
        siblings = Siblings(orders.sockets, orders.index, orders.count)
        run(orders.settings, socket.socket(fileno=orders.http), siblings)
    except WingsError as error:
        sys.stdout.write(f"{FAILED}{json.dumps(error.to_json())}\n")
        sys.stdout.flush()
        os._exit(1)


def _watch_parent() -> None:
    """Stop when standard input ends, as it does when the parent ends in any way."""
    while sys.stdin.buffer.read(1):
        pass
    timer = threading.Timer(ORPHAN_SECONDS_MAX, os._exit, (1,))
    timer.daemon = True
    timer.start()
    os.kill(os.getpid(), signal.SIGTERM)
