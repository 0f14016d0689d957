"""A proxy before PostgreSQL that loses what is said at a commit."""

import contextlib
import socket
import threading
from typing import Literal

from fix_postgres import PASSWORD

LONG = 30.0

SYNC = b"S\x00\x00\x00\x04"
"""A message of PostgreSQL's protocol."""

OUTCOME = b"INSERT INTO outcomes"
"""The statement before a COMMIT."""

Cut = Literal["before", "after", "delayed"]


class CommitProxy:
    """A proxy before PostgreSQL that cuts a connection off at its COMMIT, once when armed.

    Before: the server never sees it. After: the client never sees the answer. Delayed: the client
    is cut off, and the server sees it when the test lets go.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._armed: Cut | None = None
        self.cuts = 0
        self.release = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def arm(self, cut: Cut) -> None:
        self._armed = cut

    def close(self) -> None:
        self.release.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
                _Pair(self, client, server).start()

    @property
    def delays(self) -> bool:
        """Whether the next COMMIT is to come late."""
        return self._armed == "delayed"

    def take(self) -> Cut | None:
        """Return how the connection whose COMMIT was seen is to be cut, if it is."""
        armed, self._armed = self._armed, None
        self.cuts += armed is not None
        return armed


class _Pair:
    """One connection of a client, and the one to the server for it."""

    def __init__(self, proxy: CommitProxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        self._silent = threading.Event()
        self._answered = threading.Event()

    def start(self) -> None:
        for pump in (self._requests, self._answers):
            threading.Thread(target=pump, daemon=True).start()

    def _requests(self) -> None:
        with contextlib.suppress(OSError):
            while data := self._client.recv(1 << 16):
                while self._proxy.delays and OUTCOME in data and b"COMMIT" not in data:
                    # It came in two pieces: what goes before a COMMIT that comes late would already
                    # hold up whoever asks for the outcome.
                    rest = self._client.recv(1 << 16)
                    if not rest:
                        break
                    data += rest
                cut = self._proxy.take() if b"COMMIT" in data else None
                if cut == "before":
                    break
                if cut is not None:
                    self._silent.set()
                if cut == "delayed":
                    # The client alone learns that the connection is gone.
                    self._client.shutdown(socket.SHUT_RDWR)
                    self._proxy.release.wait(LONG)
                # The server answers at a Sync, which may not have come with the rest.
                self._server.sendall(data if cut is None else data + SYNC)
                if cut is not None:
                    self._answered.wait(LONG)
                    break
        self._end()

    def _answers(self) -> None:
        with contextlib.suppress(OSError):
            while data := self._server.recv(1 << 16):
                if self._silent.is_set():
                    self._answered.set()
                else:
                    self._client.sendall(data)
        self._answered.set()
        self._end()

    def _end(self) -> None:
        for each in (self._client, self._server):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


def through(proxy: CommitProxy) -> str:
    return f"postgresql://wings:{PASSWORD}@127.0.0.1:{proxy.port}/postgres"
