"""PgBouncer between Wings and PostgreSQL, which is refused by name."""

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Generator
from pathlib import Path

import psycopg
import pytest
from fix_postgres import PASSWORD, PostgresServer
from pydantic import SecretStr

from wings_core.errors import InvalidArgument
from wings_server.process import Server
from wings_server.settings import Address, Settings

ANY_PORT = Address("127.0.0.1", 0)
START_SECONDS_MAX = 20.0


@pytest.fixture(params=["transaction", "session"])
def pooled_url(request: pytest.FixtureRequest, postgres: PostgresServer) -> Generator[str]:
    """The URL of a new database through a pooler."""
    program = shutil.which("pgbouncer")
    if program is None:
        pytest.skip("PgBouncer is not installed")
    database = postgres.new_database().rpartition("/")[2]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    url = f"postgresql://wings:{PASSWORD}@127.0.0.1:{port}/{database}"
    with tempfile.TemporaryDirectory(prefix="wings-pooler-") as directory:
        users, settings = Path(directory, "users"), Path(directory, "settings")
        users.write_text(f'"wings" "{PASSWORD}"\n')
        settings.write_text(
            f"[databases]\n* = host=127.0.0.1 port={postgres.port}\n[pgbouncer]\n"
            f"listen_addr = 127.0.0.1\nlisten_port = {port}\nauth_type = plain\n"
            f"auth_file = {users}\npool_mode = {request.param}\nunix_socket_dir =\n"
        )
        Path(directory).chmod(0o755)
        run = subprocess.Popen(
            [program, "-q", str(settings)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            user=65534 if os.getuid() == 0 else None,  # It refuses to run as root.
        )
        try:
            _wait_for(url)
            yield url
        finally:
            run.kill()
            run.wait()


def _wait_for(url: str) -> None:
    pause = threading.Event()
    for _ in range(int(START_SECONDS_MAX / 0.05)):
        with contextlib.suppress(psycopg.OperationalError):
            psycopg.connect(url, connect_timeout=2).close()
            return
        pause.wait(0.05)
    pytest.fail("PgBouncer did not start")


def test_a_pooler_is_refused_by_name(pooled_url: str, tmp_path: Path) -> None:
    settings = Settings(
        metadata_url=SecretStr(pooled_url),
        hot=(tmp_path / "objects").as_uri(),
        flight=ANY_PORT,
        http=ANY_PORT,
    )
    with pytest.raises(InvalidArgument, match="PgBouncer"):
        Server(settings).start()
