"""An address at which a test starts servers one after another, and nobody else any."""

import socket
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def held_address() -> Generator[str]:
    """Hold a free port of 127.0.0.1 as long as the `with` lasts; yield it as `HOST:PORT`.

    While a server is down the system may give its port to whoever asks for any, be it to connect:
    not so while a socket is bound to it. One that allows reuse and does not listen is in no
    server's way.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{holder.getsockname()[1]}"
