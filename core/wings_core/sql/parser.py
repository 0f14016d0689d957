"""The parser: statements become syntax trees in a process beside the server.

DuckDB's parser takes hours for some short texts, and heeds no interrupt. A process is killed when
its query is cancelled, or its time is over, and ends by itself after some seconds of processor time
(`sql_process.parsing`). Starting it takes a fifth of a second; it is kept from the first statement
on.
"""

import contextlib
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass

from wings_core.errors import ResourceExhausted
from wings_core.sql.engines import INTERRUPT_SECONDS
from wings_core.sql.processes import Process
from wings_core.sql_process.channel import Channel, readable
from wings_core.sql_process.engine import EngineFailed


@dataclass(frozen=True, slots=True)
class Parsed:
    """What DuckDB's parser makes of a text."""

    tree: str
    """The statements as JSON, or an error."""
    kinds: tuple[str, ...]
    """Of the statements that are none of those that it tells as JSON."""
    seconds: float
    """Processor time that it took."""


Parse = Callable[[str], Parsed]
"""Parses a text.

Raises:
    ResourceExhausted: It takes more time or memory than a text may.
    EngineFailed: The query is to end.
"""


class Parser:
    """Parses texts, one after another; from any thread."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._process: _Process | None = None

    def parse(self, text: str, ends: Callable[[], bool]) -> Parsed:
        """Return what DuckDB makes of a text; blocks for seconds at most, or until `ends`.

        Args:
            text: Statements.
            ends: Returns whether the query is to end now.

        Raises: as `Parse`.
        """
        while not self._turn.acquire(timeout=INTERRUPT_SECONDS):
            if ends():
                raise EngineFailed.stopped()
        try:
            if self._process is None or not self._process.alive:
                self.close()
                self._process = _Process()
            try:
                return self._process.parse(text, ends)
            except BaseException:
                self.close()
                raise
        finally:
            self._turn.release()

    def close(self) -> None:
        """End the process; nothing may be parsed meanwhile."""
        if self._process is not None:
            self._process.close()
            self._process = None


class _Process:
    """One process."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self._channel = Channel(ours)
        with contextlib.closing(theirs):
            number = theirs.fileno()
            self._started = Process("wings_core.sql_process.parsing", [str(number)], [number])

    @property
    def alive(self) -> bool:
        return self._started.alive

    def parse(self, text: str, ends: Callable[[], bool]) -> Parsed:
        with contextlib.suppress(OSError):  # That it ended comes as its answer.
            self._channel.send({"parse": True}, text.encode())
        while not readable([self._channel.fileno()], INTERRUPT_SECONDS):
            if ends():
                raise EngineFailed.stopped()
        answer = self._channel.receive()
        if answer is None:
            raise ResourceExhausted("the statement takes more time or memory to parse than it may")
        return Parsed(answer.body.decode(), tuple(answer.head["kinds"]), answer.head["seconds"])

    def close(self) -> None:
        self._started.close()
        self._channel.close()
