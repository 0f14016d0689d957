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

import prometheus_client
import structlog

from wings_core.errors import WingsError
from wings_server import logs
from wings_server.allocator import keep_freed_memory
from wings_server.process import Server, ready_line, reload, run_until_signalled
from wings_server.processes.siblings import Siblings
from wings_server.settings import Settings

FAILED = "wings failed "
"""Begins the line that tells why a process does not serve; the error's JSON follows."""

ORPHAN_SECONDS_MAX = 8.0
"""How long a process serves on, or drains, once its parent is gone."""

_logger = structlog.get_logger("wings.processes")


@dataclass(frozen=True, slots=True)
class Orders:
    """What a parent tells one of its processes."""

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
    settings = orders.settings
    threading.Thread(target=_watch_parent, name="wings-parent", daemon=True).start()
    keep_freed_memory()
    logs.configure(settings.log_level, settings.log_format)
    structlog.configure(
        processors=[_numbering(orders.index), *structlog.get_config()["processors"]]
    )
    prometheus_client.disable_created_metrics()
    try:
        server = Server(
            settings,
            http=socket.socket(fileno=orders.http),
            siblings=Siblings(orders.sockets, orders.index, orders.count),
        )
        run_until_signalled(
            server.start,
            server.stop,
            lambda: ready_line(server),
            settings,
            lambda: reload(server.tls),
        )
    except WingsError as error:
        sys.stdout.write(f"{FAILED}{json.dumps(error.to_json())}\n")
        sys.stdout.flush()
        os._exit(1)


def _numbering(index: int) -> structlog.typing.Processor:
    """Return what adds the number of this process to each line of the log."""

    def add(
        _logger: object, _method: str, event: structlog.typing.EventDict
    ) -> structlog.typing.EventDict:
        event.setdefault("process", index)
        return event

    return add


def _watch_parent() -> None:
    """Stop once standard input ends, as it does with the parent, however that ended."""
    while sys.stdin.buffer.read(1):
        pass
    timer = threading.Timer(ORPHAN_SECONDS_MAX, os._exit, (1,))
    timer.daemon = True
    timer.start()
    os.kill(os.getpid(), signal.SIGTERM)
