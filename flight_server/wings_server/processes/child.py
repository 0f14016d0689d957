"""One of the processes of a server: `python -m wings_server.processes`, started by a parent.

What it is to serve comes on its standard input, once it has imported all that it needs; that stays
open for as long as the parent is there. It prints the ready line, or the error that kept it from
serving.
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
"""Begins the line that tells why a process does not serve; the error's JSON follows."""

ORPHAN_SECONDS_MAX = 8.0
"""How long a process serves on, or drains, once its parent is gone."""


@dataclass(frozen=True, slots=True)
class Orders:
    """The orders of a parent to one of its processes."""

    settings: Settings
    http: int
    """The descriptor of the socket that all of them accept HTTP connections from."""
    sockets: Path
    """See `Siblings`."""
    index: int
    count: int


def main() -> NoReturn:
    """Serve as told until SIGTERM, or until the parent is gone."""
    try:
        orders: Orders = pickle.load(sys.stdin.buffer)
    except EOFError:
        sys.exit()  # The parent is gone, and had no use for this one.
    threading.Thread(target=_watch_parent, name="wings-parent", daemon=True).start()
    try:
        siblings = Siblings(orders.sockets, orders.index, orders.count)
        run(orders.settings, socket.socket(fileno=orders.http), siblings)
    except WingsError as error:
        sys.stdout.write(f"{FAILED}{json.dumps(error.to_json())}\n")
        sys.stdout.flush()
        os._exit(1)


def _watch_parent() -> None:
    """Stop once standard input ends, as it does with the parent, however that ended."""
    while sys.stdin.buffer.read(1):
        pass
    timer = threading.Timer(ORPHAN_SECONDS_MAX, os._exit, (1,))
    timer.daemon = True
    timer.start()
    os.kill(os.getpid(), signal.SIGTERM)
