"""Queues and buckets of Amazon's, on this machine: moto's server in a process of its own."""

import importlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

_SERVER = """
from moto.server import ThreadedMotoServer
import signal, threading
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
server.start()
host, port = server.get_host_and_port()
print(f"ready http://{host}:{port}", flush=True)
threading.Event().wait()
"""


@dataclass
class Aws:
    """One server of SQS and S3."""

    endpoint: str
    clients: dict[str, Any] = field(default_factory=dict[str, Any])

    def client(self, service: str) -> Any:
        """Return a client of boto3."""
        if service not in self.clients:
            boto3: Any = importlib.import_module("boto3")
            self.clients[service] = boto3.client(
                service, endpoint_url=self.endpoint, region_name="us-east-1"
            )
        return self.clients[service]

    def create_queue(self, name: str) -> str:
        """Create a queue and return its URL."""
        return self.client("sqs").create_queue(QueueName=name)["QueueUrl"]


@pytest.fixture(scope="session")
def aws() -> Iterator[Aws]:
    """A server of SQS and S3, with credentials for it in the environment."""
    environment = pytest.MonkeyPatch()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        environment.setenv(name, "testing")
    environment.setenv("AWS_REGION", "us-east-1")
    environment.setenv("AWS_EC2_METADATA_DISABLED", "true")
    process = subprocess.Popen(
        [sys.executable, "-c", _SERVER],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        lines = (line.strip() for line in process.stdout)
        ready = next((line for line in lines if line.startswith("ready ")), None)
        assert ready is not None, "moto's server does not start"
        endpoint = ready.removeprefix("ready ")
        found = Aws(endpoint)
        yield found
        for client in found.clients.values():
            client.close()
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
        environment.undo()
