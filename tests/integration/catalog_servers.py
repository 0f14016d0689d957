"""Servers whose tables are in a REST catalog, and Iceberg's own such catalog."""

import os
import shutil
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from wings_core.limits import Limits
from wings_server import testing_s3
from wings_server.process import Server
from wings_server.settings import Address, Settings
from wings_server.testing import RunningServer

ANY_PORT = Address("127.0.0.1", 0)

PROGRAM = Path(__file__).parent / "iceberg_rest" / "RestCatalog.java"

MADE = Path(sys.prefix) / "iceberg-rest"
"""What `make iceberg-rest` has downloaded."""


@contextmanager
def server_with_catalog(directory: Path, catalog: str, **others: Any) -> Generator[RunningServer]:
    """Run a server in this process whose tables are in a REST catalog.

    Args:
        directory: Its data.
        catalog: The URL.
        others: Further settings.
    """
    settings = Settings(
        data_dir=directory,
        flight=ANY_PORT,
        http=ANY_PORT,
        drain_seconds=0,
        iceberg_catalog=catalog,
        limits=Limits(maintenance_seconds=100_000),
        **others,
    )
    server = Server(settings)
    server.start()
    running = RunningServer(server)
    try:
        yield running
    finally:
        running.close_clients()
        server.stop()


@contextmanager
def iceberg_rest(database: Path, warehouse: str, s3_endpoint: str) -> Generator[str]:
    """Run Iceberg's REST catalog, and yield its URL; skips the test where that cannot be.

    Args:
        database: A SQLite file for the catalog, new or of before.
        warehouse: The URL that tables lie below, in S3.
        s3_endpoint: Where that is.
    """
    jars = Path(os.environ.get("WINGS_ICEBERG_REST", MADE))
    java = shutil.which("java")
    if java is None or not jars.is_dir():
        pytest.skip("there is no java, or no Iceberg REST catalog: `make iceberg-rest`")
    properties = {
        "uri": f"jdbc:sqlite:{database}",
        "warehouse": warehouse,
        "client.region": "us-east-1",
        "s3.endpoint": s3_endpoint,
        "s3.path-style-access": "true",
        "s3.access-key-id": testing_s3.ACCESS_KEY_ID,
        "s3.secret-access-key": testing_s3.SECRET_ACCESS_KEY,
    }
    command = [java, "-cp", f"{jars}/*", str(PROGRAM)]
    with subprocess.Popen(
        [*command, *(f"{key}={value}" for key, value in properties.items())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            ready = process.stdout.readline()
            assert ready.startswith("ready "), "the catalog did not start"
            yield ready.removeprefix("ready ").strip()
        finally:
            process.kill()
