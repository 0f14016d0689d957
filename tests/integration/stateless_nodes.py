"""Nodes over PostgreSQL and an object store alone, in this process."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from wings_core.maintain import maintainer
from wings_server.process import Server
from wings_server.settings import Address, Settings
from wings_server.testing import RunningServer

ANY_PORT = Address("127.0.0.1", 0)

# Of nodes in this process none ends in the midst of a drain; on a busy machine it may take a while.
maintainer.DRAIN_SECONDS_MAX = 60.0  # pyright: ignore[reportConstantRedefinition]


class Nodes:
    """Starts nodes of one log, in this process.

    Args:
        url: Of PostgreSQL.
        objects: Their object store: a directory, or a URL.
        stack: Stops them.
    """

    def __init__(self, url: str, objects: Path | str, stack: ExitStack) -> None:
        self.url = url
        self._hot = objects if isinstance(objects, str) else objects.as_uri()
        self._stack = stack

    def settings(self, **others: Any) -> Settings:
        """Return the settings of a node, some of them other than usual."""
        given: dict[str, Any] = {
            "metadata_url": SecretStr(self.url),
            "hot": self._hot,
            "flight": ANY_PORT,
            "http": ANY_PORT,
            "drain_seconds": 0,
            **others,
        }
        return Settings(**given)

    def start(self, **others: Any) -> RunningServer:
        """Start a node, some of whose settings are other than usual."""
        server = Server(self.settings(**others))
        server.start()
        self._stack.callback(server.stop)
        running = RunningServer(server)
        self._stack.callback(running.close_clients)
        return running
