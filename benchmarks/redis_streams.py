"""Redis Streams beside share streams: a server with `appendfsync always`, and a worker.

    python -m benchmarks.redis_streams PORT STREAM MESSAGES SECONDS

The worker is one as `share_worker` is, by Redis' own client. Neither is a dependency: it takes
`redis-server` (of a distribution) and `pip install redis hiredis`.
"""

import importlib
import importlib.util
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

from benchmarks.share_worker import work

PROGRAM = "redis-server"
START_SECONDS = 20.0
FILL_MESSAGES = 10_000
"""Messages that are added in one go."""


def is_installed() -> bool:
    """Return whether there is a server, and a client, to measure."""
    client = importlib.util.find_spec("redis")
    return shutil.which(PROGRAM) is not None and client is not None


def _client(port: int) -> Any:
    return importlib.import_module("redis").Redis("127.0.0.1", port)


@contextmanager
def redis_process() -> Generator[int]:
    """Run a server that syncs each write before it answers; yields its port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        flags = ["--appendonly", "yes", "--appendfsync", "always", "--save", ""]
        where = ["--port", str(port), "--bind", "127.0.0.1", "--dir", directory]
        child = subprocess.Popen([PROGRAM, *where, *flags], stdout=subprocess.DEVNULL)
        stack.callback(child.wait, START_SECONDS)
        stack.callback(child.terminate)
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
            except ConnectionRefusedError:
                assert child.poll() is None, f"{PROGRAM} ended at its start"
                assert time.monotonic() < deadline, f"{PROGRAM} does not answer"
                time.sleep(0.05)
            else:
                break
        yield port


def backlog(port: int, stream: str, payload: bytes, count: int) -> None:
    """Fill a stream with equal messages, and make a group of it."""
    with closing(_client(port)) as client:
        for start in range(0, count, FILL_MESSAGES):
            pipeline = client.pipeline(transaction=False)
            for _ in range(min(FILL_MESSAGES, count - start)):
                pipeline.execute_command("XADD", stream, "*", "d", payload)
            pipeline.execute()
        client.xgroup_create(stream, "workers", id="0")


def _accept(client: Any, stream: str, messages: int) -> Iterator[int]:
    """Take messages and acknowledge them, until there are none; yields how many."""
    member = str(time.monotonic_ns())
    while found := client.xreadgroup("workers", member, {stream: ">"}, count=messages):
        names = [name for name, _ in found[0][1]]
        client.xack(stream, "workers", *names)
        yield len(names)


def main(port: int, stream: str, messages: int, seconds: float) -> None:
    """Work until the time is up."""
    with closing(_client(port)) as client:
        client.ping()  # Connected before the time begins.
        work(_accept(client, stream, messages), seconds)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
