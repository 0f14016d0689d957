"""The processes of the cluster: each the real command, started in order, stopped in reverse.

    PostgreSQL ◀── three nodes ──▶ an S3 server: new messages, and old

The nodes have no directory and need no other process. With a shared directory instead of S3 there
is more to run, and the nodes' messages lie in that:

    PostgreSQL ◀── metadata service ◀── three nodes ──▶ three replicas of holds, for share groups

All of them speak TLS: nodes and services know each other by certificates, or by a token that they
have from PostgreSQL; clients present a token.
"""

import os
import secrets
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import wings_client
from wings_client import Client
from wings_server.certificates import make_certificates
from wings_server.testing import (
    MetadataProcess,
    ServerProcess,
    hold_process,
    metadata_process,
    node_process,
    server_process,
)
from wings_server.testing_postgres import postgres_server
from wings_server.testing_s3 import create_bucket, environment, running_s3

NODES = 3
HOLD_REPLICAS = 3
LEASE_SECONDS = 2.0
"""Shorter than the default, so that a dead node falls out soon."""

BUCKET = "wings-cluster"
READY_SECONDS = 180.0
"""A start takes seconds of processor time, on a busy machine far longer by its clock."""


class Cluster:
    """All processes; a context manager that starts them, and ends them in any case.

    Attributes:
        directory: What the processes keep on disk.
        hot: URL of the place in S3 that new messages go to; None: to a directory that all share.
        remote: URL of the place in S3 that old messages move to, merged; None: as `hot`.
        metadata: The metadata service; None: the nodes need none.
        holds: The replicas of what workers of share groups hold; none: the nodes hold it.
        authority: The certificates, in PEM, that all others are checked against.
        token: An operator's.
        nodes: The Flight nodes, the dead ones too.

    Args:
        directory: An empty directory.
        metadata_url: A PostgreSQL that is there; None: one is started.
        objects: Whether messages go to S3.
    """

    metadata: MetadataProcess | None = None

    def __init__(
        self, directory: Path, metadata_url: str | None = None, *, objects: bool = True
    ) -> None:
        self.directory = directory
        self.hot = f"s3://{BUCKET}/hot" if objects else None
        self.remote = f"s3://{BUCKET}/remote" if objects else None
        self.holds: list[MetadataProcess] = []
        self.nodes: list[ServerProcess] = []
        self.authority = directory / "certs" / "ca.pem"
        self.token = f"wings_{secrets.token_urlsafe(32)}"
        self._metadata_url = metadata_url
        self._url = ""
        self._stack = ExitStack()

    def __enter__(self) -> "Cluster":
        """Start all of it."""
        with self._stack:
            make_certificates(self.authority.parent, [])
            if self.hot is not None:
                self._start_s3()
            self._url = self._metadata_url or self._start_postgres()
            if self.hot is None:
                self.metadata = self._start_metadata(self._url)
                self.holds = [self._start_holds(number) for number in range(HOLD_REPLICAS)]
            for _ in range(NODES):
                self.start_node()
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """Drain the nodes, then the service, then stop PostgreSQL and S3."""
        with self._stack:
            for node in self.nodes:
                if node.running:
                    node.terminate()
            for replica in self.holds:
                replica.terminate()
            if self.metadata is not None:
                self.metadata.terminate()

    @property
    def addresses(self) -> list[str]:
        """Where the living nodes are, as a client takes it."""
        return [node.flight for node in self.nodes if node.running]

    def connect(self, endpoint: str | Sequence[str], **options: Any) -> Client:
        """Return a client of a node, or of all of them."""
        return wings_client.connect(endpoint, token=self.token, tls_ca=self.authority, **options)

    def start_node(self) -> ServerProcess:
        """Start one more node, on free ports."""
        flags = [*self._certificate, "--cluster-ca", str(self.authority)]
        common: dict[str, Any] = {
            "environment": {
                "WINGS_NODE_LEASE_SECONDS": str(LEASE_SECONDS),
                "WINGS_ROOT_TOKEN": self.token,
            },
            "ready_seconds": READY_SECONDS,
        }
        if self.metadata is None:
            assert self.hot is not None
            assert self.remote is not None
            flags += ["--remote", self.remote]
            started = node_process(self._url, self.hot, flags=flags, **common)
        else:
            replicas = ",".join(replica.address for replica in self.holds)
            flags += ["--metadata", self.metadata.address, "--hold-replicas", replicas]
            started = server_process(self.directory / "pages", flags=flags, **common)
        node = self._stack.enter_context(started)
        self.nodes.append(node)
        return node

    @property
    def _certificate(self) -> list[str]:
        """Return the flags of what a node and a service present."""
        certs = self.authority.parent
        return ["--tls-cert", f"{certs}/node.pem", "--tls-key", f"{certs}/node-key.pem"]

    @property
    def _for_nodes_alone(self) -> list[str]:
        """Return the flags of a service, which serves who has such a certificate."""
        return [*self._certificate, "--tls-client-ca", str(self.authority)]

    def _start_s3(self) -> None:
        endpoint = self._stack.enter_context(running_s3())
        # Of this process, which looks into the bucket, and so of the nodes.
        os.environ.update(environment(endpoint))
        create_bucket(endpoint, BUCKET)

    def _start_postgres(self) -> str:
        return self._stack.enter_context(postgres_server(sync=True)).url

    def _start_holds(self, number: int) -> MetadataProcess:
        directory = self.directory / f"holds-{number}"
        return self._stack.enter_context(
            hold_process(directory, flags=self._for_nodes_alone, ready_seconds=READY_SECONDS)
        )

    def _start_metadata(self, url: str) -> MetadataProcess:
        # In the environment, where others do not see the password.
        return self._stack.enter_context(
            metadata_process(
                self.directory / "metadata",
                flags=self._for_nodes_alone,
                environment={"WINGS_METADATA_URL": url},
                ready_seconds=READY_SECONDS,
            )
        )
