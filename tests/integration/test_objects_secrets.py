"""Credentials of object stores: used, and never written anywhere."""

import os
import urllib.request
from pathlib import Path

import psycopg
import pyarrow.flight as flight
import pytest
from faulty_store import FaultyStore, faulty_store
from fix_postgres import PostgresServer
from flight_calls import act, create_topic, get, numbers, push

from wings_server.testing import STDERR_CHARACTERS_MAX, ServerProcess, server_process

pytestmark = pytest.mark.usefixtures("pushes_to_storage")

SECRET = "a-secret-that-nobody-may-read"
TOKEN = "a-token-that-nobody-may-read"
WAYS = ("environment", "file", "role")
"""How a server finds its credentials."""


def credentials(way: str, directory: Path) -> dict[str, str]:
    """Return the environment by which credentials are found; it may name files."""
    credentials_file, config_file = directory / "credentials", directory / "config"
    keys = f"aws_access_key_id = wings\naws_secret_access_key = {SECRET}\n"
    credentials_file.write_text(f"[default]\n{keys}aws_session_token = {TOKEN}\n[base]\n{keys}")
    config_file.write_text(
        "[profile worker]\nrole_arn = arn:aws:iam::123456789012:role/worker\n"
        "role_session_name = wings\nsource_profile = base\n"
    )
    if way == "environment":
        keys_of = {"AWS_ACCESS_KEY_ID": "wings", "AWS_SECRET_ACCESS_KEY": SECRET}
        return {**keys_of, "AWS_SESSION_TOKEN": TOKEN}
    files = {"AWS_SHARED_CREDENTIALS_FILE": str(credentials_file)}
    files["AWS_CONFIG_FILE"] = str(config_file)
    return {**files, "AWS_PROFILE": "worker"} if way == "role" else files


@pytest.mark.parametrize("way", WAYS)
def test_secrets_are_neither_in_logs_nor_in_metadata_nor_in_answers(
    s3_url: str,
    s3_endpoint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    postgres: PostgresServer,
    way: str,
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    secrets_dir = tmp_path / "secrets"
    secrets_dir.mkdir()
    database = postgres.new_database() if way == "role" else None
    with faulty_store(s3_endpoint, seed=11) as proxy:
        environment = {
            **credentials(way, secrets_dir),
            "AWS_ENDPOINT_URL": proxy.endpoint,
            "AWS_DEFAULT_REGION": "us-east-1",
            "WINGS_LOG_LEVEL": "debug",
            "WINGS_LIMITS__OBJECT_FLUSH_SECONDS": "0.01",
            "WINGS_LIMITS__OBJECT_RETRY_SECONDS_MAX": "0.5",
            "WINGS_LIMITS__PAGE_CACHE_BYTES_MAX": "1",
        } | ({} if database is None else {"WINGS_METADATA_URL": database})
        data = tmp_path / "data"
        flags = ("--hot", f"{s3_url}/hot", "--remote", f"{s3_url}/remote")
        with server_process(data, flags=flags, environment=environment) as server:
            said = _use(server, proxy)
            assert server.terminate() == 0
            logs = server.stderr
            assert len(logs) < STDERR_CHARACTERS_MAX, "the beginning is cut off"
    assert "could not put" in said  # It really was told of failures.
    assert "stopped" in logs
    for text in (said, logs, *_written(data), *([_dump(database)] if database else [])):
        for secret in (SECRET, TOKEN, "SecretAccessKey"):
            assert secret not in text


def _use(server: ServerProcess, proxy: FaultyStore) -> str:
    """Let a server do all that it does with an object store, also fail; return what it says."""
    client = server.client()
    create_topic(client, "events", ["n: int64"])
    push(client, "events", numbers(1, 2))
    act(client, "alter-topic", topic="events", config={"tier_after_ms": 0})
    assert act(client, "maintain")["pages_merged"] == 1
    push(client, "events", numbers(3))
    assert get(client, kind="scan", topic="events").column("n") == [1, 2, 3]
    said: list[str] = []
    for state in ("denied", "down"):
        setattr(proxy, state, True)
        with pytest.raises(flight.FlightError) as caught:
            push(client, "events", numbers(4))
        said += [str(caught.value), str(caught.value.extra_info)]
        assert act(client, "maintain")["failures"] == 1
        setattr(proxy, state, False)
    said.append(urllib.request.urlopen(f"{server.http}/metrics").read().decode())
    return "\n".join(said)


def _written(directory: Path) -> list[str]:
    """Return what is in the files of a data directory."""
    return [
        path.read_bytes().decode("latin-1")
        for root, _, names in os.walk(directory)
        for path in (Path(root, name) for name in names)
    ]


def _dump(database: str) -> str:
    """Return all rows of metadata in PostgreSQL, as text."""
    with psycopg.connect(database) as connection:
        tables = connection.execute(
            "SELECT tablename FROM pg_tables WHERE schemaname = 'wings'"
        ).fetchall()
        assert len(tables) > 10
        return "\n".join(
            str(row)
            for (table,) in tables
            for row in connection.execute(f'SELECT t::text FROM wings."{table}" AS t'.encode())
        )
