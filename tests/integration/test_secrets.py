"""Planted secrets: used, and shown nowhere that another person than their owner can see."""

import io
import logging
import os
import ssl
import subprocess
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any, cast

import httpx
import pyarrow.flight as flight
import pytest
import structlog
from fix_calls import Calls
from fix_postgres import PASSWORD, PostgresServer
from flight_calls import act, create_topic, get, numbers, push
from token_calls import bearer, client_of, new_token
from typer.testing import CliRunner

import wings_client
from wings_client._access import Access
from wings_client.cli.app import app
from wings_core.errors import InvalidArgument, Unavailable
from wings_core.metadata.postgres import PostgresMetadata
from wings_core.metadata.sqlite import SqliteMetadata
from wings_core.security import principal
from wings_core.security.principal import Authenticator
from wings_core.security.tokens import PeerAccess, Token, digest_of, without_password
from wings_server import logs
from wings_server.settings import Address, HoldSettings, MetadataSettings, Settings
from wings_server.testing import (
    STDERR_CHARACTERS_MAX,
    ServerProcess,
    hold_process,
    metadata_process,
    running_server,
    server_process,
)
from wings_server.tls import Tls, peer_access, service_security

ROOT = "planted-root-" + "r" * 32
CLUSTER = "planted-cluster-" + "c" * 32
WRONG = "wings_planted-wrong-" + "w" * 24
AWS_SECRET = "planted-s3-key-" + "s" * 24


class Planted:
    """The secrets, each in the forms in which a text could hold it.

    Args:
        certs: The directory of certificates and keys.
        more: Tokens, passwords and keys by what they are.
    """

    def __init__(self, certs: Path, more: Mapping[str, str]) -> None:
        self._forms: list[tuple[str, str]] = []
        for name, secret in more.items():
            self.add(name, secret)
        for name in ("server-key", "client-key", "ca-key"):
            path = certs / f"{name}.pem"
            if path.exists():
                lines = path.read_text().splitlines()
                for line in lines[1:-1]:
                    self._forms.append((f"a line of {name}.pem", line))

    def add(self, name: str, secret: str) -> None:
        """Plant another one."""
        digest = digest_of(secret)
        forms = [secret, secret.encode().hex(), digest.hex(), repr(digest)[2:-1]]
        self._forms += [(name, form) for form in forms]

    def check(self, where: str, text: str) -> None:
        """Look for all of them in a text."""
        found = [name for name, form in self._forms if form in text]
        assert not found, f"{found} in {where}"


@pytest.fixture
def planted(certs: Path) -> Planted:
    return Planted(
        certs,
        {"the root token": ROOT, "the token of the cluster": CLUSTER, "a wrong token": WRONG,
         "the password of PostgreSQL": PASSWORD, "the key of S3": AWS_SECRET},
    )  # fmt: skip


def tls_flags(certs: Path) -> list[str]:
    return ["--tls-cert", f"{certs}/server.pem", "--tls-key", f"{certs}/server-key.pem"]


def command_lines() -> str:
    """What every user of the machine sees of its processes."""
    found: list[str] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return "\n".join(found)


def told(call: Callable[[], object]) -> str:
    """All that an error says: to a person, to a program, and with its causes."""
    try:
        call()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is looked at.
        parts = [repr(error), str(error), str(getattr(error, "extra_info", ""))]
        parts += [repr(getattr(error, "facts", "")), repr(error.__cause__), repr(error.__context__)]
        return "\n".join(parts)
    raise AssertionError("it was not refused")


@pytest.mark.parametrize("form", ["json", pytest.param("console", marks=pytest.mark.soak)])
def test_a_server_shows_none_of_its_secrets(
    certs: Path, planted: Planted, tmp_path: Path, postgres: PostgresServer, s3_url: str, form: str
) -> None:
    data = tmp_path / "data"
    environment = {
        "WINGS_ROOT_TOKEN": ROOT,
        "WINGS_METADATA_URL": postgres.new_database(),
        "WINGS_LOG_LEVEL": "debug",
        "WINGS_LOG_FORMAT": form,
        "WINGS_LIMITS__OBJECT_FLUSH_SECONDS": "0.01",
        "AWS_SECRET_ACCESS_KEY": AWS_SECRET,
    }
    flags = [*tls_flags(certs), "--tls-client-ca", f"{certs}/ca.pem", "--hot", s3_url]
    with server_process(data, flags=flags, environment=environment) as server:
        for where, text in said_by(server, certs, planted):
            planted.check(where, text)
        planted.check("a command line", command_lines())
        assert server.terminate() == 0
        log = server.stderr
        assert len(log) < STDERR_CHARACTERS_MAX, "the beginning is cut off"
    assert "refused" in log
    planted.check("the log", log)
    for root, _, names in os.walk(data):
        for name in names:
            planted.check(f"the file {name}", Path(root, name).read_bytes().decode("latin-1"))


def said_by(server: ServerProcess, certs: Path, planted: Planted) -> Generator[tuple[str, str]]:
    """Use a server rightly and wrongly; yields what it says of itself, and how it refuses."""
    pems = [(certs / name).read_bytes() for name in ("ca.pem", "client.pem", "client-key.pem")]
    keys = dict(zip(("tls_root_certs", "cert_chain", "private_key"), pems, strict=True))
    files = {name: certs / f"{file}.pem" for name, file in
             (("tls_ca", "ca"), ("tls_cert", "client"), ("tls_key", "client-key"))}  # fmt: skip
    with client_of(server.flight, ROOT, **keys) as root:
        create_topic(root, "events", ["n: int64"])
        act(root, "share-create", topic="events", group="g")
        push(root, "events", numbers(1, 2, 3))
        team = new_token(root, "team", "read=events", quotas={"calls": 5})
        planted.add("a token of a team", team)
        for action, body in (
            ("describe-topic", {"topic": "events"}),
            ("share-describe", {"topic": "events", "group": "g"}),
            ("token-list", {}),
            ("list-namespaces", {}),
            ("tier-states", {"topic": "events"}),
        ):
            yield action, str(act(root, action, **body))
        yield (
            "GetFlightInfo",
            repr(root.get_flight_info(flight.FlightDescriptor.for_path("events"))),
        )
        yield "list_actions", repr(list(root.list_actions()))
        yield (
            "an answer of a handshake's error",
            told(lambda: root.authenticate_basic_token("anyone", WRONG)),
        )
    with client_of(server.flight, team, **keys) as reader:
        assert get(reader, kind="scan", topic="events").table.num_rows == 3
        yield "a refusal", told(lambda: push(reader, "events", numbers(4)))
        yield "a refused action", told(lambda: act(reader, "token-list"))
    for secret in (WRONG, team + "x", None):
        with client_of(server.flight, secret, **keys) as stranger:
            yield "a refusal of a stranger", told(lambda: act(stranger, "list-topics"))
    with wings_client.connect(server.flight, token=team, **cast("Any", files)) as client:
        yield "repr of a client", repr(client) + repr(vars(client))
        yield "an error of the client", told(lambda: client.push("events", {"n": [1]}))
        yield "repr of a fetch", repr(client.fetch("events", offset=0))
    context = ssl.create_default_context(cafile=certs / "ca.pem")
    context.load_cert_chain(certs / "client.pem", certs / "client-key.pem")
    with httpx.Client(base_url=server.http, verify=context) as http:
        for secret in (ROOT, team, WRONG):
            for path in ("/openapi.json", "/metrics", "/healthz", "/readyz", "/v1/namespaces"):
                answer = http.get(path, headers=bearer(secret))
                yield path, answer.text + str(answer.headers)
            answer = http.post("/v1/push", headers=bearer(secret), content=b"{" + b"x" * 10)
            yield "a refusal over HTTP", answer.text


@pytest.mark.parametrize("form", ["json", "console"])
def test_a_traceback_in_the_log_shows_no_variables(
    planted: Planted, calls: Calls, form: Any
) -> None:
    stream = io.StringIO()
    root = logging.getLogger()
    handlers, level, config = root.handlers[:], root.level, structlog.get_config()
    logs.configure("debug", form, stream)
    try:
        with running_server(root_token=ROOT) as server:
            calls.fail(principal, "digest_of", RuntimeError("a fault of ours"))
            with client_of(server.flight, WRONG) as client:
                said = told(lambda: act(client, "list-topics"))
            answer = httpx.get(f"{server.http}/v1/namespaces", headers=bearer(WRONG))
            calls.stop()
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        structlog.configure(**config)
    assert "a fault of ours" in stream.getvalue()
    assert "Traceback" in stream.getvalue()
    planted.check("the log", stream.getvalue())
    planted.check("the error", said)
    assert "Traceback" not in said
    planted.check("the answer", answer.text)


def test_what_cannot_start_says_why_without_secrets(
    certs: Path, planted: Planted, tmp_path: Path
) -> None:
    unreachable = f"postgresql://wings:{PASSWORD}@127.0.0.1:1/none?connect_timeout=1"
    with pytest.raises(Unavailable) as refused:  # A server tries for longer.
        PostgresMetadata(unreachable, retry_seconds=0)
    planted.check("the error", repr(refused.value) + str(refused.value.to_json()))
    key = str(certs / "server-key.pem")
    for flags, environment in (
        ([], {"WINGS_METADATA_URL": unreachable.replace("postgresql", "mysql")}),
        ([], {"WINGS_METADATA_URL": f"postgresql://wings:{PASSWORD}@[bad/none"}),
        (["--tls-cert", key, "--tls-key", key], {}),
        (["--tls-cert", f"{certs}/server.pem", "--tls-key", f"{certs}/client-key.pem"], {}),
        (["--tls-cert", f"{certs}/server.pem", "--tls-key", f"{certs}/server.pem"], {}),
        ([], {"WINGS_ROOT_TOKEN": ROOT[:20]}),
        ([], {"WINGS_ROOT_TOKEN": f"{ROOT}\n"}),
        (["--metadata", "127.0.0.1:1", "--flight", "0.0.0.0:0"], {"WINGS_CLUSTER_TOKEN": CLUSTER}),
        (["--config", key], {}),
    ):
        command = [sys.executable, "-m", "wings_client.cli", "serve"]
        command += ["--data-dir", str(tmp_path / "data"), "--log-level", "debug"]
        done = subprocess.run(
            [*command, "--flight", "127.0.0.1:0", "--http", "127.0.0.1:0", *flags],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode != 0, flags
        planted.check(f"{flags} {list(environment)}", done.stdout + done.stderr)
        assert ROOT[:20] not in done.stdout + done.stderr


def test_a_password_on_a_command_line_is_refused(planted: Planted) -> None:
    url = f"postgresql://wings:{PASSWORD}@127.0.0.1:1/none"
    for command in (
        ("serve", "--metadata-url", url),
        ("metadata", "serve", "--metadata-url", url),
        ("holds", "serve", "--holds-url", url),
        ("holds", "rebuild", "data", "--metadata-url", url),
        ("check", "data", "--metadata-url", url),
        ("maintain", "--data-dir", "data", "--metadata-url", url),
    ):
        done = CliRunner().invoke(app, command)
        assert isinstance(done.exception, InvalidArgument), command
        assert "a password on a command line can be read" in done.exception.message
        planted.check(" ".join(command[:2]), done.output + done.exception.message)
    for url in ("postgresql://h/db?password=x", "postgresql://[bad"):
        with pytest.raises(InvalidArgument):
            without_password(url)
    for url in (None, "postgresql://wings@h/db", "postgresql:///db?host=/run"):
        assert without_password(url) == url


def test_services_of_a_cluster_show_no_secrets(
    certs: Path, planted: Planted, tmp_path: Path, postgres: PostgresServer
) -> None:
    environment = {
        "WINGS_CLUSTER_TOKEN": CLUSTER,
        "WINGS_ROOT_TOKEN": ROOT,
        "WINGS_LOG_LEVEL": "debug",
    }
    stored = {"WINGS_METADATA_URL": postgres.new_database()}
    tls = tls_flags(certs)
    with ExitStack() as stack:
        metadata = stack.enter_context(
            metadata_process(tmp_path / "metadata", flags=tls, environment=environment | stored)
        )
        replicas = [
            stack.enter_context(
                hold_process(tmp_path / "holds", flags=tls, environment=environment)
            )
        ]
        flags = ["--metadata", metadata.address, "--cluster-ca", f"{certs}/ca.pem", *tls]
        flags += ["--hold-replicas", ",".join(each.address for each in replicas)]
        node = stack.enter_context(
            server_process(tmp_path / "node", flags=flags, environment=environment)
        )
        authority = {"tls_root_certs": (certs / "ca.pem").read_bytes()}
        with client_of(node.flight, ROOT, **authority) as root:
            create_topic(root, "events", ["n: int64"])
            push(root, "events", numbers(1))
            planted.check("an answer", str(act(root, "describe-topic", topic="events")))
            planted.check("a command line", command_lines())
            metadata.kill()
            with suppress(flight.FlightError):
                planted.check("an error", told(lambda: create_topic(root, "more", ["n: int64"])))
        with suppress(TimeoutError):
            node.terminate()
        planted.check("the log of a node", node.stderr)
        for each in (metadata, *replicas):
            planted.check("the log of a service", each.stderr)


def test_objects_that_hold_secrets_do_not_show_them(
    certs: Path, planted: Planted, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {
        "data_dir": tmp_path,
        "root_token": ROOT,
        "cluster_token": CLUSTER,
        "cluster_ca": certs / "ca.pem",
        "tls_cert": certs / "server.pem",
        "tls_key": certs / "server-key.pem",
        "tls_client_ca": certs / "ca.pem",
        "metadata_url": f"postgresql://wings:{PASSWORD}@127.0.0.1/db",
    }
    server = Settings(**settings)
    tls = Tls.of(server)
    assert tls is not None
    keys = [(certs / name).read_bytes() for name in ("ca.pem", "client.pem", "client-key.pem")]
    with closing(SqliteMetadata(tmp_path / "metadata.db")) as metadata:
        token = Token("id", "team", digest_of(WRONG), (), 0, None)
        with closing(Authenticator(metadata.tokens, ROOT)) as authenticator:
            found: list[object] = [
                server,
                MetadataSettings(**settings, listen=Address("127.0.0.1", 0)),
                HoldSettings(**settings, holds_url=settings["metadata_url"]),
                server.model_dump(),
                server.model_dump_json(),
                tls,
                service_security(MetadataSettings(**settings)),
                peer_access(server),
                PeerAccess(CLUSTER, *keys),
                Access(ROOT, *keys),
                Access.of(ROOT, *keys),
                wings_client.connect("grpc+tls://127.0.0.1:1", token=ROOT, tls_ca=keys[0]),
                token,
                authenticator,
                authenticator.principal(ROOT),
            ]
    for each in found:
        planted.check(f"repr of {type(each).__name__}", f"{each!r} {each}")


def test_the_command_line_shows_no_token(certs: Path, planted: Planted, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{WRONG}\n")
    (tmp_path / "lines").write_text(f"{WRONG}\n{ROOT}\n")
    (tmp_path / "binary").write_bytes(WRONG.encode() + b"\xff")
    with running_server(root_token=ROOT) as server:
        for arguments in (
            ("topic", "list", "--token-file", str(file), "--endpoint", server.flight),
            ("fetch", "t", "--offset", "0", "--token-file", str(file), "--endpoint", server.http),
            ("topic", "list", "--token-file", f"{tmp_path}/lines", "--endpoint", server.flight),
            ("topic", "list", "--token-file", f"{tmp_path}/binary", "--endpoint", server.flight),
            ("topic", "list", "--token-file", str(file), "--tls-ca", f"{certs}/client-key.pem",
             "--endpoint", server.flight.replace("grpc", "grpc+tls")),
        ):  # fmt: skip
            done = subprocess.run(
                [sys.executable, "-m", "wings_client.cli", *arguments],
                env={"PATH": ""},
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
            assert done.returncode != 0
            planted.check(" ".join(arguments[:4]), done.stdout + done.stderr)
