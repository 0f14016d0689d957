"""A TCP proxy before a server whose connections a test breaks, as a network does."""

import contextlib
import socket
import struct
import threading
from collections.abc import Generator
from contextlib import ExitStack, contextmanager

from held_address import held_address

BUFFER_BYTES = 64 * 1024


class BreakableProxy:
    """Forwards connections to a server until it is told to break them.

    Args:
        target: The server, like `grpc://127.0.0.1:7777`.

    Attributes:
        endpoint: Where clients connect.
        listening: Whether they can.
    """

    def __init__(self, target: str) -> None:
        host, _, port = target.removeprefix("grpc://").rpartition(":")
        self._target = (host, int(port))
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._requests_flow = threading.Event()
        self._answers_flow = threading.Event()
        self.go_on()
        self.listening = True
        self._held = ExitStack()
        self._address = self._held.enter_context(held_address())
        self._listener = self._listen()
        self.endpoint = f"grpc://{self._address}"

    def retarget(self, target: str) -> None:
        """Forward later connections to another server."""
        host, _, port = target.removeprefix("grpc://").rpartition(":")
        self._target = (host, int(port))

    def cut(self) -> None:
        """Break all connections at once; new ones are forwarded again."""
        with self._lock:
            sockets, self._sockets = self._sockets, set()
        for each in sockets:
            with contextlib.suppress(OSError):
                # A reset, as of a machine that is gone, instead of a clean end.
                each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def stop_listening(self) -> None:
        """Break all connections and refuse new ones: nobody is there."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.listening = False
        self.cut()

    def listen_again(self) -> None:
        """Take connections again."""
        self._listener = self._listen()
        self.listening = True

    def stall(self) -> None:
        """Forward nothing any more, and tell nobody: a server that went silent."""
        self._requests_flow.clear()
        self._answers_flow.clear()

    def stall_answers(self) -> None:
        """Forward requests alone, and no answers."""
        self._answers_flow.clear()

    def go_on(self) -> None:
        """Forward again, also what was held back."""
        self._requests_flow.set()
        self._answers_flow.set()

    def close(self) -> None:
        """End all of it."""
        self.go_on()
        self.stop_listening()
        self._held.close()

    def _listen(self) -> socket.socket:
        host, _, port = self._address.rpartition(":")
        listener = socket.create_server((host, int(port)))
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        return listener

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self._target)
            except OSError:
                client.close()
                continue
            with self._lock:
                self._sockets |= {client, server}
            for source, sink, flow in (
                (client, server, self._requests_flow),
                (server, client, self._answers_flow),
            ):
                threading.Thread(target=self._pump, args=(source, sink, flow), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, flow: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(BUFFER_BYTES):
                flow.wait()
                sink.sendall(data)
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        with self._lock:
            self._sockets -= {source, sink}


@contextmanager
def breakable(target: str) -> Generator[BreakableProxy]:
    """Run a proxy before a server for as long as the `with` lasts."""
    proxy = BreakableProxy(target)
    try:
        yield proxy
    finally:
        proxy.close()
