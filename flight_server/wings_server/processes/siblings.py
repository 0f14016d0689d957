"""Siblings: the processes of one server ask each other for their metrics, and whether all serve.

Each listens on a Unix socket in a directory that only their user can enter, and answers a few
questions. HTTP is one port for all, so whichever process takes a request answers for all of them.
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
"""How long another process is waited for; one that is gone is noticed at once."""

LOOK_SECONDS = 0.5
"""How often it is asked whether the others serve."""

READY, ALL_READY, METRICS = b"ready", b"all ready", b"metrics"
"""Whether a process takes requests; whether all do, as it sees them now; its metrics."""

YES, NO = b"yes", b"no"

_SAMPLE = re.compile(rb"([A-Za-z_:][\w:]*)(\{.*\})? (.*)", re.ASCII)

_logger = structlog.get_logger("wings.processes")


class Siblings:
    """The processes of one server, from one of them; `start`, then `close`.

    Args:
        directory: Of the sockets, which only this user can enter.
        index: The number of this process, from 0.
        count: How many processes there are.

    Attributes:
        index: The number of this process.
    """

    def __init__(self, directory: Path, index: int, count: int) -> None:
        self._directory = directory
        self.index = index
        self._count = count
        self._is_ready: Callable[[], bool] = lambda: False
        self._metrics: Callable[[], bytes] = bytes
        self._ready = False
        self._looking = threading.Lock()
        """Held while the others are asked, so that the last look is the one that counts."""
        self._closed = threading.Event()
        path = directory / str(index)
        path.unlink(missing_ok=True)  # Of the process before this one.
        self._listener = Listener(str(path), "AF_UNIX")

    def start(self, is_ready: Callable[[], bool], metrics: Callable[[], bytes]) -> None:
        """Answer the others from now on, and ask them.

        Args:
            is_ready: Whether this process takes requests.
            metrics: Its metrics, as Prometheus's text.
        """
        self._is_ready = is_ready
        self._metrics = metrics
        for run in (self._answer, self._watch):
            threading.Thread(target=run, name="wings-siblings", daemon=True).start()

    @property
    def all_ready(self) -> bool:
        """Whether all others took requests when they were last asked."""
        return self._ready

    def metrics(self, own: bytes) -> bytes:
        """Return the metrics of all processes, each sample with the label `process`.

        Args:
            own: Those of this process.
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
                self._closed.wait(LOOK_SECONDS)  # Unless it is closed, no file can be opened.
                continue
            # Each on a thread: one that asks and is then paused must not keep the others waiting.
            answering = threading.Thread(target=self._answer_one, args=(connection,), daemon=True)
            try:
                answering.start()
            except RuntimeError:  # There are too many: it asks again.
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
    """Return the answer of a process, None where it gives none.

    Args:
        directory: Of the sockets.
        index: Of the process.
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

    Also to connect: one that is paused accepts none, and few wait in line for that.

    Raises:
        OSError: It is not there, or does not accept.
    """
    bound = struct.pack("ll", *divmod(round(ANSWER_SECONDS_MAX * 1_000_000), 1_000_000))
    with socket.socket(socket.AF_UNIX) as end:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, bound)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, bound)
        end.connect(str(path))
        return Connection(end.detach())


def merged(texts: dict[int, bytes]) -> bytes:
    """Return the metrics of several processes as one text.

    Args:
        texts: Of each, as Prometheus's text, by its index.

    Returns:
        The families in the order in which they come, each once, its samples with the label
        `process` before their own.
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
