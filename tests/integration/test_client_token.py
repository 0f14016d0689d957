"""Tokens as the client and the command line present them."""

import asyncio
import subprocess
import sys
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from token_calls import ROOT, client_of, new_token

import wings_client
from wings_client import Client, Retry
from wings_client._access import Access
from wings_client._transport import Transport
from wings_core.errors import GroupNotFound, InvalidArgument, PermissionDenied, Unauthenticated
from wings_server.testing import RunningServer, running_server

FIELDS = {"n": "int64"}


@pytest.fixture(scope="module")
def server() -> Generator[RunningServer]:
    with running_server(root_token=ROOT) as running:
        with wings_client.connect(running.flight, token=ROOT) as client:
            client.create_topic("orders", FIELDS)
        yield running


@pytest.fixture(scope="module")
def token(server: RunningServer) -> str:
    with client_of(server.flight, ROOT) as root:
        return new_token(root, "team", "read=orders", "write=orders", "share=orders")


def wings(
    server: RunningServer, *arguments: str, stdin: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a command."""
    return subprocess.run(
        [sys.executable, "-m", "wings_client.cli", *arguments],
        env={"PATH": "", "WINGS_ENDPOINT": server.flight, **environment},
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def use(client: Client) -> None:
    """Make calls of every kind."""
    client.push("orders", {"n": [1]})
    assert client.fetch("orders", offset=0).table.num_rows
    assert sum(chunk.num_rows for chunk in client.scan("orders"))
    with client.producer("orders") as producer:
        producer.send({"n": [2]})
    with client.follow("orders", timeout=0.2) as follow:
        assert sum(batch.num_rows for batch, _, _ in follow) >= 2
    assert [topic.name for topic in client.topics()]
    with client.consumer("c", "orders", timeout=0.2) as consumer:
        for _ in consumer:
            pass


def test_a_client_presents_its_token_with_every_call(server: RunningServer, token: str) -> None:
    with wings_client.connect(server.flight, token=token) as client:
        use(client)
        with pytest.raises(PermissionDenied, match="team has no right to admin"):
            client.delete_topic("orders")
        with pytest.raises(PermissionDenied):
            client.push("others", {"n": [1]})


def test_a_share_consumer_presents_the_token(server: RunningServer, token: str) -> None:
    with wings_client.connect(server.flight, token=ROOT) as root:
        root.create_share_group("g", "orders", if_not_exists=True)
    with (
        wings_client.connect(server.flight, token=token) as client,
        client.share_consumer("g", "orders", timeout=1) as consumer,
    ):
        client.push("orders", {"n": [3]})
        accepted = [consumer.accept(delivery) for delivery in consumer]
    assert accepted


def test_dead_letters_of_a_group_that_may_not_be_shared_say_so(server: RunningServer) -> None:
    with wings_client.connect(server.flight, token=ROOT) as root:
        root.create_share_group("g", "orders", if_not_exists=True)
    with client_of(server.flight, ROOT) as admin:
        token = new_token(admin, "reads", "read=orders")
    with wings_client.connect(server.flight, token=token) as client:
        with pytest.raises(GroupNotFound, match="that you have the right to share"):
            client.dead_letters("g")
        with pytest.raises(PermissionDenied, match="no right to share"):
            client.dead_letters("g", "orders")


def test_the_token_of_the_environment_is_presented(
    server: RunningServer, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with wings_client.connect(server.flight) as client, pytest.raises(Unauthenticated):
        client.topics()
    monkeypatch.setenv("WINGS_TOKEN", token)
    with wings_client.connect(server.flight) as client:
        assert client.topics()
    with (
        wings_client.connect(server.flight, token="wings_bad") as client,
        pytest.raises(Unauthenticated, match="not valid"),
    ):
        client.topics()


def test_an_async_client_presents_its_token(server: RunningServer, token: str) -> None:
    async def run() -> None:
        async with wings_client.connect_async(server.flight, token=token) as client:
            await client.push("orders", {"n": [1]})
            assert (await client.fetch("orders", offset=0)).table.num_rows

    asyncio.run(run())


@pytest.mark.parametrize("bad", ["", "a\nb", "ä", "\x7f"])
def test_a_token_that_no_header_can_hold_is_refused(bad: str) -> None:
    with pytest.raises(InvalidArgument, match="token") as refusal:
        wings_client.connect("grpc://127.0.0.1:1", token=bad)
    assert not bad.strip() or bad not in str(refusal.value)


def test_access_shows_nothing() -> None:
    access = Access("wings_planted", b"ca", b"cert", b"planted-key")
    assert "planted" not in repr(access) + str(access)


def test_the_token_is_not_sent_in_the_clear_where_a_server_with_tls_says_so() -> None:
    transport = Transport("grpc+tls://127.0.0.1:1", 5.0, Retry(), Access("wings_x"))
    with (
        closing(transport),
        pytest.raises(InvalidArgument, match="does not use TLS"),
    ):
        transport.get(b"{}", 1.0, "grpc://127.0.0.1:2")


def test_certificates_are_not_left_unused(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_bytes(b"")
    file = tmp_path / "ca.pem"
    kinds: tuple[dict[str, Any], ...] = ({"tls_ca": file}, {"tls_cert": file, "tls_key": file})
    for given in kinds:
        with pytest.raises(InvalidArgument, match=r"does not use TLS.*grpc\+tls"):
            wings_client.connect("grpc://127.0.0.1:1", **given)
        wings_client.connect("grpc+tls://127.0.0.1:1", **given).close()


def test_tokens_on_the_command_line(server: RunningServer, tmp_path: Path) -> None:
    root = {"WINGS_TOKEN": ROOT}
    created = wings(
        server, "token", "create", "alice", "--grant", "read=orders", "--expires", "90d", **root
    )
    secret = created.stdout.strip()
    assert created.returncode == 0, created.stderr
    assert secret.startswith("wings_")
    assert created.stdout == secret + "\n"
    file = tmp_path / "token"
    file.write_text(secret + "\n")
    listed = wings(server, "token", "list", **root)
    assert "alice" in listed.stdout
    assert secret not in listed.stdout + listed.stderr + created.stderr
    arguments = ("fetch", "orders", "--offset", "0", "--format", "json")
    found = wings(server, *arguments, "--token-file", str(file))
    assert found.returncode == 0, found.stderr
    assert '"n"' in found.stdout
    found = wings(server, *arguments, "--endpoint", server.http, "--token-file", str(file))
    assert found.returncode == 0, found.stderr
    refused = wings(server, "topic", "delete", "orders", "--yes", WINGS_TOKEN=secret)
    assert refused.returncode in {1, 2}
    said = wings(server, "token", "revoke", "alice", "--dry-run", **root)
    assert (said.returncode, said.stdout) == (0, "would revoke the token alice\n")
    assert wings(server, "token", "revoke", "alice", "--yes", **root).returncode == 0
    refused = wings(server, *arguments, WINGS_TOKEN=secret)
    assert refused.returncode == 1
    assert "not valid" in refused.stderr
    assert secret not in refused.stderr
    assert "--token-file" in wings(server, "fetch", "--help").stdout


@pytest.mark.parametrize("by", ["--tls-ca", "WINGS_TLS_CA", "WINGS_CLIENT_CERT"])
def test_files_of_tls_are_refused_without_it(
    server: RunningServer, token: str, tmp_path: Path, by: str
) -> None:
    file = tmp_path / "some.pem"
    file.write_text("some")
    arguments = [by, str(file)] if by.startswith("--") else []
    environment = {} if arguments else {by: str(file)}
    if by == "WINGS_CLIENT_CERT":
        environment["WINGS_CLIENT_KEY"] = str(file)
    for url in (server.http, server.flight):
        done = wings(
            server, "fetch", "orders", "--offset", "0", "--endpoint", url, *arguments,
            WINGS_TOKEN=token, **environment,
        )  # fmt: skip
        assert done.returncode == 1
        assert "does not use TLS" in done.stdout + done.stderr


def test_a_server_s_certificate_is_not_presented_by_a_command(
    server: RunningServer, token: str, tmp_path: Path
) -> None:
    nothing = str(tmp_path / "nothing.pem")
    done = wings(
        server, "topic", "list", WINGS_TOKEN=token, WINGS_TLS_CERT=nothing, WINGS_TLS_KEY=nothing
    )
    assert done.returncode == 0, done.stderr
