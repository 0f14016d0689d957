"""Siblings: communication between a server's processes, about readiness and metrics.

Each listens on a Unix socket in a directory private to their user, and answers a few questions. All
processes share the HTTP port, so whichever accepts a request answers for all of them.
"""

import re
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection, Listener
from pathlib import Path

import structlog

ANSWER_SECONDS_MAX = 2.0
"""Longest wait for another process; an ended one is noticed at once."""

LOOK_SECONDS = 0.5
"""Interval of asking whether the others are ready."""

READY, ALL_READY, METRICS = b"ready", b"all ready", b"metrics"
"""Questions: whether a process accepts requests, whether it sees that all do, its metrics."""

YES, NO = b"yes", b"no"

_SAMPLE = re.compile(rb"([A-Za-z_:][\w:]*)(\{.*\})? (.*)", re.ASCII)

_logger = structlog.get_logger("wings.processes")


class Siblings:
    """One process's view of its siblings; `start`, then `close`.

    Args:
        directory: Directory of the sockets, private to this user.
        index: Number of this process, from 0.
        count: Number of processes.

    Attributes:
        index: Number of this process.
    """

    def __init__(self, directory: Path, index: int, count: int) -> None:
        self._directory = directory
        self.index = index
        self._count = count
        self._is_ready: Callable[[], bool] = lambda: False
        self._metrics: Callable[[], bytes] = bytes
        self._ready = False
        self._looking = threading.Lock()
        """Held while asking the others, so that the latest result is kept."""
        self._closed = threading.Event()
        path = directory / str(index)
        path.unlink(missing_ok=True)  # Left by this process's predecessor.
        self._listener = Listener(str(path), "AF_UNIX")

    def start(self, is_ready: Callable[[], bool], metrics: Callable[[], bytes]) -> None:
        """Start answering the others, and asking them.

        Args:
            is_ready: Returns whether this process accepts requests.
            metrics: Returns its metrics, in Prometheus's text format.
        """
        self._is_ready = is_ready
        self._metrics = metrics
        for run in (self._answer, self._watch):
            threading.Thread(target=run, name="wings-siblings", daemon=True).start()

    @property
    def all_ready(self) -> bool:
        """Return whether all others accepted requests when last asked."""
        return self._ready

    def metrics(self, own: bytes) -> bytes:
        """Return the metrics of all processes, each sample with the label `process`.

        Args:
            own: Metrics of this process.
        """
        texts: dict[int, bytes] = {}
        for index in range(self._count):
            text = own if index == self.index else ask(self._directory, index, METRICS)
            if text is not None:
                texts[index] = text
        return merged(texts)

    def close(self) -> None:
        """Stop answering the other processes."""
        self._closed.set()
        self._listener.close()

    def _watch(self) -> None:
        while True:
            self._look()
            if self._closed.wait(LOOK_SECONDS):
                return

    def _look(self) -> bool:
        others = [index for index in range(self._count) if index != self.index]
        with self._looking:
            self._ready = all(ask(self._directory, index, READY) == YES for index in others)
            return self._ready

    def _answer(self) -> None:
        while not self._closed.is_set():
            try:
                connection = self._listener.accept()
            except (OSError, EOFError):
                self._closed.wait(LOOK_SECONDS)  # Out of file descriptors, unless closed.
                continue
            # One thread each, so that a suspended process does not block the others.
            answering = threading.Thread(target=self._answer_one, args=(connection,), daemon=True)
            try:
                answering.start()
            except RuntimeError:  # Too many threads: it will ask again.
                connection.close()

    def _answer_one(self, connection: Connection) -> None:
        with connection, suppress(OSError, EOFError):
            if connection.poll(ANSWER_SECONDS_MAX):
                question = connection.recv_bytes()
                if question == METRICS:
                    connection.send_bytes(self._metrics())
                else:
                    is_ready = self._is_ready() and (question == READY or self._look())
                    connection.send_bytes(YES if is_ready else NO)


def ask(directory: Path, index: int, question: bytes) -> bytes | None:
    """Return the answer of a process, or None.

    Args:
        directory: Directory of the sockets.
        index: Number of the process.
        question: `READY`, `ALL_READY` or `METRICS`.
    """
    try:
        with _connected(directory / str(index)) as connection:
            connection.send_bytes(question)
            return connection.recv_bytes()
    except (OSError, EOFError):
        return None


def _connected(path: Path) -> Connection:
    """Connect to another process; a step that takes longer than `ANSWER_SECONDS_MAX` fails.

    Connecting has a timeout too: a suspended process does not accept, and its queue is short.

    Raises:
        OSError: The process does not run, or does not accept.
    """
    bound = struct.pack("ll", *divmod(round(ANSWER_SECONDS_MAX * 1_000_000), 1_000_000))
    with socket.socket(socket.AF_UNIX) as end:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, bound)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, bound)
        end.connect(str(path))
        return Connection(end.detach())


def merged(texts: dict[int, bytes]) -> bytes:
    """Merge the metrics of several processes.

    Args:
        texts: Metrics in Prometheus's text format, by process index.

    Returns:
        The families in order of appearance, each once; samples get the label `process` as their
        first.
    """
    heads: dict[bytes, list[bytes]] = {}
    samples: dict[bytes, list[bytes]] = {}
    for index, text in texts.items():
        family = b""
        label = b'process="%d"' % index
        for line in text.splitlines():
            if line.startswith(b"#"):
                family = line.split(b" ", 3)[2]
                head = heads.setdefault(family, [])
                if line not in head:
                    head.append(line)
            elif (found := _SAMPLE.fullmatch(line)) is not None:
                name, labels, value = found.groups()
                inside = label if labels in {None, b"{}"} else label + b"," + labels[1:-1]
                samples.setdefault(family, []).append(b"%s{%s} %s" % (name, inside, value))
    lines: list[bytes] = []
    for family in dict.fromkeys([*heads, *samples]):
        lines += heads.get(family, [])
        lines += samples.get(family, [])
    return b"".join(line + b"\n" for line in lines)
