"""The processes of the cluster: each the real command, started in order, stopped in reverse.

    PostgreSQL ◀── metadata service ◀── three Flight nodes ── one shared directory
                                          └──▶ three replicas of holds, for share groups

Whatever else the cluster gets (an object store) is one more function here, which enters
what it starts into the stack and returns where it is.
"""

from contextlib import ExitStack
from pathlib import Path

from wings_server.testing import (
    MetadataProcess,
    ServerProcess,
    hold_process,
    metadata_process,
    server_process,
)
from wings_server.testing_postgres import postgres_server

NODES = 3
HOLD_REPLICAS = 3
LEASE_SECONDS = 2.0
"""Shorter than the default, so that nobody waits for long to see a dead node fall out."""

READY_SECONDS = 60.0


class Cluster:
    """All processes; a context manager that starts them, and ends them in any case.

    Attributes:
        directory: Holds the messages, for all nodes.
        metadata: The metadata service.
        holds: The replicas of what workers of share groups hold.
        nodes: The Flight nodes, the dead ones too.

    Args:
        directory: An empty directory.
        metadata_url: A PostgreSQL that is there; None: one is started.
    """

    metadata: MetadataProcess

    def __init__(self, directory: Path, metadata_url: str | None = None) -> None:
        self.directory = directory
        self.holds: list[MetadataProcess] = []
        self.nodes: list[ServerProcess] = []
        self._metadata_url = metadata_url
        self._stack = ExitStack()

    def __enter__(self) -> "Cluster":
        """Start all of it."""
        with self._stack:
            url = self._metadata_url or self._start_postgres()
            self.metadata = self._start_metadata(url)
            self.holds = [self._start_holds(number) for number in range(HOLD_REPLICAS)]
            for _ in range(NODES):
                self.start_node()
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """Drain the nodes, then the service, then stop PostgreSQL."""
        with self._stack:
            for node in self.nodes:
                if node.running:
                    node.terminate()
            for replica in self.holds:
                replica.terminate()
            self.metadata.terminate()

    @property
    def addresses(self) -> list[str]:
        """Where the living nodes are, as a client takes it."""
        return [node.flight for node in self.nodes if node.running]

    def start_node(self) -> ServerProcess:
        """Start one more Flight node on the shared directory, on free ports."""
        replicas = ",".join(replica.address for replica in self.holds)
        node = self._stack.enter_context(
            server_process(
                self.directory / "pages",
                flags=("--metadata", self.metadata.address, "--hold-replicas", replicas),
                environment={"WINGS_NODE_LEASE_SECONDS": str(LEASE_SECONDS)},
                ready_seconds=READY_SECONDS,
            )
        )
        self.nodes.append(node)
        return node

    def _start_postgres(self) -> str:
        return self._stack.enter_context(postgres_server(sync=True)).url

    def _start_holds(self, number: int) -> MetadataProcess:
        directory = self.directory / f"holds-{number}"
        return self._stack.enter_context(hold_process(directory, ready_seconds=READY_SECONDS))

    def _start_metadata(self, url: str) -> MetadataProcess:
        # In the environment, where others do not see the password.
        return self._stack.enter_context(
            metadata_process(
                self.directory / "metadata",
                environment={"WINGS_METADATA_URL": url},
                ready_seconds=READY_SECONDS,
            )
        )
