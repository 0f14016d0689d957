"""TLS and mutual TLS of every listener, the token of a cluster, and what refuses to start."""

import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Generator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, cast

import adbc_driver_flightsql
import adbc_driver_manager
import httpx
import pyarrow.flight as flight
import pytest
from adbc_driver_flightsql import DatabaseOptions
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from flight_calls import act
from structlog.testing import capture_logs
from token_calls import ROOT, bearer, client_of
from typer.testing import CliRunner
from waiting import until

import wings_client
from wings_core.contracts.actions import ListTopics
from wings_core.errors import InvalidArgument, Unavailable
from wings_core.metadata.remote import RemoteMetadata
from wings_core.security.tokens import PeerAccess
from wings_server import certificates
from wings_server.http.app import create_app
from wings_server.http.listener import HttpListener
from wings_server.nodes import GroupNode
from wings_server.settings import Address, MetadataSettings, Settings, load
from wings_server.testing import (
    RunningServer,
    ServerProcess,
    hold_process,
    metadata_process,
    server_process,
)
from wings_server.tls import Tls, check_exposure, is_loopback, service_security

CLUSTER = "cluster-" + "c" * 40


def flags(certs: Path, *, mutual: bool = False) -> list[str]:
    found = ["--tls-cert", f"{certs}/server.pem", "--tls-key", f"{certs}/server-key.pem"]
    return [*found, "--tls-client-ca", f"{certs}/ca.pem"] if mutual else found


def client_context(certs: Path, *, mutual: bool = False) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=certs / "ca.pem")
    if mutual:
        context.load_cert_chain(certs / "client.pem", certs / "client-key.pem")
    return context


@pytest.fixture(scope="module")
def authority(certs: Path) -> bytes:
    return (certs / "ca.pem").read_bytes()


@pytest.fixture(scope="module")
def secured(certs: Path) -> Generator[ServerProcess]:
    """A server with TLS, and tokens."""
    with server_process(flags=flags(certs), environment={"WINGS_ROOT_TOKEN": ROOT}) as server:
        yield server


@pytest.fixture(scope="module")
def mutual(certs: Path) -> Generator[ServerProcess]:
    """A server with mutual TLS."""
    with server_process(flags=flags(certs, mutual=True)) as server:
        yield server


def test_both_faces_speak_tls(secured: ServerProcess, certs: Path, authority: bytes) -> None:
    assert secured.flight.startswith("grpc+tls://")
    assert secured.http.startswith("https://")
    with wings_client.connect(secured.flight, token=ROOT, tls_ca=certs / "ca.pem") as client:
        client.create_topic("topic", {"n": "int64"})
        client.push("topic", {"n": [1, 2]})
        assert client.fetch("topic", offset=0).table.num_rows == 2
    with client_of(secured.flight, ROOT, tls_root_certs=authority) as plain:
        pair = plain.authenticate_basic_token("anyone", ROOT)
        assert pair[1] == f"Bearer {ROOT}".encode()
    answer = httpx.get(
        f"{secured.http}/v1/namespaces", verify=client_context(certs), headers=bearer(ROOT)
    )
    assert answer.status_code == 200
    fetched = subprocess.run(
        [
            *(sys.executable, "-m", "wings_client.cli", "fetch", "topic", "--offset", "0"),
            *("--endpoint", secured.http, "--tls-ca", str(certs / "ca.pem")),
        ],
        env={"WINGS_TOKEN": ROOT, "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert fetched.returncode == 0, fetched.stderr
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{secured.http}/healthz")  # Of an authority that it does not know.
    with (
        flight.FlightClient(secured.flight.replace("grpc+tls", "grpc")) as plaintext,
        pytest.raises(flight.FlightError),
    ):
        act(plaintext, "list-topics")


UNREACHED = """
import json, sys
import wings_client

for endpoint, options in json.loads(sys.argv[1]):
    retry = wings_client.Retry(attempts=1)
    with wings_client.connect(endpoint, retry=retry, timeout=20, **options) as client:
        try:
            client.topics()
        except wings_client.WingsError as error:
            print(error.code, error.facts.get("why"), error.message)
"""


def test_what_keeps_a_connection_from_being_made_is_named(
    secured: ServerProcess,
    mutual: ServerProcess,
    server: RunningServer,
    certs: Path,
    tmp_path: Path,
) -> None:
    assert CliRunner().invoke(certificates.app, ["dev", "--out", str(tmp_path)]).exit_code == 0
    known, stranger = ({"tls_ca": f"{path}/ca.pem"} for path in (certs, tmp_path))
    theirs = {"tls_cert": f"{tmp_path}/client.pem", "tls_key": f"{tmp_path}/client-key.pem"}
    mixed = theirs | {"tls_cert": f"{certs}/client.pem"}
    tls = server.flight.replace("grpc://", "grpc+tls://")
    plain = secured.flight.replace("grpc+tls://", "grpc://")
    name = secured.flight.replace("127.0.0.1", socket.gethostname())
    unknown = "grpc+tls://no-such-host.invalid:7777"
    cases: list[tuple[str, dict[str, str], str]] = [
        (tls, {}, f"INVALID_ARGUMENT None .* does not speak TLS: name it by {server.flight}$"),
        (plain, {}, f"UNAVAILABLE closed .* at {plain} closes .* TLS, name it by grpc.tls://"),
        (secured.flight, stranger, "UNAVAILABLE certificate .* not trusted: unable to get local "),
        (secured.flight, {}, "UNAVAILABLE certificate .* give its authority as tls_ca, --tls-ca "),
        (unknown, {}, "UNAVAILABLE host no address is known of host 'no-such-host.invalid'"),
        (mutual.flight, known, "UNAVAILABLE closed .* wants a client's certificate, give tls_cert"),
        (mutual.flight, known | theirs, "UNAVAILABLE closed .* a client's certificate"),
        (mutual.flight, known | mixed, "INVALID_ARGUMENT None .* a key is that of its certificate"),
        (secured.flight, {"tls_ca": f"{certs}/ca-key"}, "INVALID_ARGUMENT None .* cannot be used"),
        ("grpc+tls://127.0.0.1:1", {}, "UNAVAILABLE None no server answers at .* refused"),
        (secured.flight, known, "UNAUTHENTICATED None a token is needed: by `--token-file` or "),
    ]
    (certs / "ca-key").write_text("no certificate")
    if socket.gethostname() != "localhost":
        cases.append((name, known, "UNAVAILABLE name .* is for other names: call it by one of"))
    asked = json.dumps([(endpoint, options) for endpoint, options, _ in cases])
    done = subprocess.run(
        [sys.executable, "-c", UNREACHED, asked], capture_output=True, text=True, timeout=150
    )
    assert done.stderr == ""  # gRPC says the same there.
    said = done.stdout.splitlines()
    for line, (endpoint, _, expected) in zip(said, cases, strict=True):
        assert re.match(expected, line), (endpoint, line)


def test_a_node_says_how_another_is_to_be_trusted(
    secured: ServerProcess, server: RunningServer
) -> None:
    groups = server.server.log.consumer_groups
    assert groups is not None
    node = GroupNode(server.server.log, groups.node, PeerAccess(), tls=True)
    with closing(node), pytest.raises(Unavailable, match="not trusted here: name its"):
        node.call(secured.flight.partition("//")[2], "list-topics", ListTopics())


def test_commands_say_what_keeps_a_connection_from_being_made(
    secured: ServerProcess, certs: Path
) -> None:
    cases = {
        (secured.flight,): "is not trusted: unable to get local issuer certificate",
        (secured.http,): "is not trusted: unable to get local issuer certificate",
        ("http://no-such-host.invalid:7780",): "no address is known of host 'no-such-host.invalid'",
        (secured.flight, "--tls-ca", f"{certs}/ca.pem"): "--token-file` or WINGS_TOKEN",
        (secured.http, "--tls-ca", f"{certs}/ca.pem"): "--token-file` or WINGS_TOKEN",
    }
    for options, expected in cases.items():
        command = ["fetch", "topic", "--offset", "0", "--endpoint", *options]
        done = subprocess.run(
            [sys.executable, "-m", "wings_client.cli", *command],
            env={"PATH": ""},
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert done.returncode == 1
        assert expected in done.stdout + done.stderr
        assert "wings serve" not in done.stdout + done.stderr


def select(address: str, options: dict[str, str]) -> None:
    with (
        adbc_driver_flightsql.connect(address, db_kwargs=options) as database,
        adbc_driver_manager.AdbcConnection(database) as connection,
        adbc_driver_manager.AdbcStatement(connection) as statement,
    ):
        statement.set_sql_query("select 1")
        statement.execute_query()


LOGINS = {
    "u": {"username": "u", "password": "TOKEN"},
    "us": {"username": "us", "password": "TOKEN"},  # Of each length modulo 3: base64's padding.
    "use": {"username": "use", "password": "TOKEN"},
    "header": {DatabaseOptions.AUTHORIZATION_HEADER.value: "Bearer TOKEN"},
}


def test_drivers_of_flight_sql_log_in_by_their_ordinary_options(
    secured: ServerProcess, certs: Path, subtests: pytest.Subtests
) -> None:
    def log_in(options: dict[str, str], token: str) -> None:
        given = {name: value.replace("TOKEN", token) for name, value in options.items()}
        given[DatabaseOptions.TLS_ROOT_CERTS.value] = (certs / "ca.pem").read_text()
        select(secured.flight, given)

    for name, options in LOGINS.items():
        with subtests.test(name):
            log_in(options, ROOT)
            for token in ("wrong", ROOT[:-1] + ("0" if ROOT[-1] != "0" else "1")):
                with pytest.raises(adbc_driver_manager.Error, match=r"(?i)unauthenticated"):
                    log_in(options, token)


def test_mutual_tls_refuses_clients_without_a_certificate(
    mutual: ServerProcess, certs: Path, authority: bytes
) -> None:
    files = {name: certs / f"{file}.pem" for name, file in
             (("tls_ca", "ca"), ("tls_cert", "client"), ("tls_key", "client-key"))}  # fmt: skip
    with wings_client.connect(mutual.flight, **cast("dict[str, Any]", files)) as client:
        assert client.topics() == []
    httpx.get(
        f"{mutual.http}/healthz", verify=client_context(certs, mutual=True)
    ).raise_for_status()
    with pytest.raises(httpx.TransportError):
        httpx.get(f"{mutual.http}/healthz", verify=client_context(certs))
    with (
        client_of(mutual.flight, None, tls_root_certs=authority) as stranger,
        pytest.raises(flight.FlightError),
    ):
        act(stranger, "list-topics")


def test_a_certificate_serves_what_it_was_made_for(
    mutual: ServerProcess, certs: Path, authority: bytes
) -> None:
    def pair(name: str) -> tuple[Path, Path]:
        return certs / f"{name}.pem", certs / f"{name}-key.pem"

    for name, taken in (("client", True), ("node", True), ("server", False)):
        context = client_context(certs)
        context.load_cert_chain(*pair(name))
        cert, key = (path.read_bytes() for path in pair(name))
        options = {"tls_root_certs": authority, "cert_chain": cert, "private_key": key}
        with client_of(mutual.flight, None, **options) as client:
            if taken:
                assert httpx.get(f"{mutual.http}/healthz", verify=context).status_code == 200
                assert act(client, "list-topics") == []
                continue
            with pytest.raises(httpx.TransportError):
                httpx.get(f"{mutual.http}/healthz", verify=context)
            with pytest.raises(flight.FlightError):
                act(client, "list-topics")
    cert, key = pair("client")
    with (
        server_process(flags=["--tls-cert", str(cert), "--tls-key", str(key)]) as server,
        pytest.raises(httpx.ConnectError, match="unsuitable certificate purpose"),
    ):
        httpx.get(f"{server.http}/healthz", verify=client_context(certs))


def serial_of(address: str, certs: Path) -> int:
    """Return the serial number of the certificate that a server shows to a new connection."""
    from cryptography import x509

    host, _, port = address.rpartition("://")[2].rpartition(":")
    context = client_context(certs)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2", "http/1.1"])
    with (
        socket.create_connection((host, int(port)), 60) as raw,
        context.wrap_socket(raw, server_hostname=host) as secured,
    ):
        shown = secured.getpeercert(binary_form=True)
    assert shown is not None
    return x509.load_der_x509_certificate(shown).serial_number


def test_renewed_certificates_are_read_on_a_hangup(tmp_path: Path) -> None:
    certs = tmp_path / "certs"
    certificates.make_certificates(certs, [])
    with ExitStack() as stack:
        server = stack.enter_context(server_process(flags=flags(certs)))
        metadata = stack.enter_context(metadata_process(tmp_path / "m", flags=flags(certs)))
        before = serial_of(server.http, certs)
        flight_before = serial_of(server.flight, certs)
        assert before == flight_before == serial_of(metadata.address, certs)
        certificates.make_certificates(tmp_path / "renewed", [])
        for file in certs.iterdir():
            (tmp_path / "renewed" / file.name).replace(file)
        for pid in (server.pid, metadata.pid):
            os.kill(pid, signal.SIGHUP)
        for address in (server.http, metadata.address):
            until(lambda address=address: serial_of(address, certs) != before)
        assert serial_of(server.flight, certs) == flight_before, "needs a restart"


def test_health_tells_of_the_certificate_that_ends_first(tmp_path: Path) -> None:
    live, longer = tmp_path / "live", tmp_path / "longer"
    certificates.make_certificates(live, [], days=10)
    certificates.make_certificates(longer, [], days=90)
    with server_process(
        flags=["--tls-cert", f"{live}/server.pem", "--tls-key", f"{live}/server-key.pem"]
    ) as server:
        trusting = ssl.create_default_context(cafile=live / "ca.pem")
        (need,) = httpx.get(f"{server.http}/v1/health", verify=trusting).json()["needs"]
        assert need["kind"] == "certificate_ends"
    tls = Tls(live / "server.pem", live / "server-key.pem", None)
    first = tls.ends_at
    for name in ("server.pem", "server-key.pem"):
        (live / name).write_bytes((longer / name).read_bytes())
    tls.reload()
    assert tls.ends_at == first, "Flight keeps its first one"
    chain = (live / "server.pem").read_text()
    (live / "server.pem").write_text(chain.replace(" CERT", " TRUSTED CERT"))
    tls.reload()
    assert tls.ends_at == first, "an unusable one is not taken"
    (live / "server.pem").write_text(chain)
    renewed = Tls(live / "server.pem", live / "server-key.pem", None).ends_at
    assert (renewed - first).days == 80


def test_a_certificate_that_has_ended_is_warned_of_until_it_is_renewed(tmp_path: Path) -> None:
    live, good = tmp_path / "live", tmp_path / "good"
    certificates.make_certificates(live, [], days=0)
    certificates.make_certificates(good, [])
    with capture_logs() as logged:
        tls = Tls(live / "server.pem", live / "server-key.pem", None)
        assert [each["log_level"] for each in logged] == ["warning"]
        tls.reload()
        assert [each["log_level"] for each in logged] == ["warning", "info", "warning"]
        for name in ("server.pem", "server-key.pem"):
            (live / name).write_bytes((good / name).read_bytes())
        tls.reload()
        assert [each["log_level"] for each in logged[3:]] == ["info"]


def test_an_authority_that_was_removed_is_trusted_no_more(tmp_path: Path) -> None:
    live, other = tmp_path / "live", tmp_path / "other"
    for directory in (live, other):
        certificates.make_certificates(directory, [])
    tls = Tls(live / "server.pem", live / "server-key.pem", live / "ca.pem")
    trusting = ssl.create_default_context(cafile=live / "ca.pem")
    trusting.load_verify_locations(other / "ca.pem")
    trusting.load_cert_chain(live / "client.pem", live / "client-key.pem")
    with ExitStack() as stack:
        listener = HttpListener(create_app(lambda: True), Address("127.0.0.1", 0), tls)
        stack.callback(listener.stop)
        address = f"https://localhost:{listener.address.port}/healthz"
        for newest in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            trusting.maximum_version = newest
            assert httpx.get(address, verify=trusting).status_code == 200
        for file in other.iterdir():
            (live / file.name).write_bytes(file.read_bytes())
        tls.reload()
        for newest in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            trusting.maximum_version = newest
            with pytest.raises(httpx.TransportError):
                httpx.get(address, verify=trusting)
        trusting.load_cert_chain(other / "client.pem", other / "client-key.pem")
        assert httpx.get(address, verify=trusting).status_code == 200


STRANGER_SECONDS = 3.0
"""How long one that is no node tries to reach the service."""


@pytest.mark.parametrize("by", ["token", "mutual TLS"])
def test_a_cluster_keeps_to_its_nodes(tmp_path: Path, certs: Path, by: str) -> None:
    environment = {"WINGS_CLUSTER_TOKEN": CLUSTER} if by == "token" else {}
    service = flags(certs, mutual=by == "mutual TLS")
    own = "node" if by == "mutual TLS" else "server"
    node = ["--tls-cert", f"{certs}/{own}.pem", "--tls-key", f"{certs}/{own}-key.pem"]
    node += ["--cluster-ca", f"{certs}/ca.pem"]
    with ExitStack() as stack:
        metadata = stack.enter_context(
            metadata_process(tmp_path / "m", flags=service, environment=environment)
        )
        holds = stack.enter_context(
            hold_process(tmp_path / "h", flags=service, environment=environment)
        )
        server = stack.enter_context(
            server_process(
                tmp_path / "log",
                flags=["--metadata", metadata.address, "--hold-replicas", holds.address, *node],
                environment=environment,
            )
        )
        with wings_client.connect(server.flight, tls_ca=certs / "ca.pem") as client:
            client.create_topic("topic", {"n": "int64"})
            client.push("topic", {"n": [1]})
            client.create_share_group("g", "topic", {"start": "earliest"})
            with client.share_consumer("g", "topic", timeout=10) as consumer:
                for _ in consumer:
                    break
            assert all(each.startswith("grpc+tls://") for each in client.locations("topic"))
        authority = (certs / "ca.pem").read_bytes()
        stranger = PeerAccess(None, authority if by == "token" else None)
        with (
            closing(RemoteMetadata(metadata.address, access=stranger)) as refused,
            pytest.raises(Unavailable, match=r"token of the cluster|cannot be reached|not answer"),
        ):
            refused.store_id(STRANGER_SECONDS)


EVERYWHERE = Address("0.0.0.0", 0)


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        ({}, "TLS .*and tokens|tokens .*and TLS"),
        ({"root_token": ROOT}, "needs TLS"),
        ({"tls": True}, "needs tokens"),
    ],
)
def test_a_server_beyond_loopback_needs_tokens_and_tls(
    tmp_path: Path, certs: Path, given: dict[str, object], missing: str
) -> None:
    arguments = ["--flight", "0.0.0.0:0"] + (flags(certs) if "tls" in given else [])
    environment = {"WINGS_ROOT_TOKEN": ROOT} if "root_token" in given else {}
    with (
        pytest.raises(RuntimeError, match=missing),
        server_process(tmp_path / "log", flags=arguments, environment=environment),
    ):
        pass


def test_insecure_opens_and_says_so(tmp_path: Path) -> None:
    with server_process(tmp_path / "log", flags=["--flight", "0.0.0.0:0", "--insecure"]) as server:
        assert "open to every machine" in server.stderr
        assert "tokens" in server.stderr
        assert "TLS" in server.stderr


def test_with_both_a_server_listens_everywhere(tmp_path: Path, certs: Path) -> None:
    arguments = ["--flight", "0.0.0.0:0", "--http", "0.0.0.0:0", *flags(certs)]
    environment = {"WINGS_ROOT_TOKEN": ROOT}
    with server_process(tmp_path / "log", flags=arguments, environment=environment) as server:
        assert "open to every machine" not in server.stderr


def test_services_of_a_cluster_need_tls_and_a_way_to_know_nodes(certs: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"TLS .* and mutual TLS"):
        service_security(MetadataSettings(listen=EVERYWHERE))
    files: dict[str, Any] = {
        "tls_cert": certs / "server.pem",
        "tls_key": certs / "server-key.pem",
    }
    with pytest.raises(InvalidArgument, match=r"needs mutual TLS .*WINGS_CLUSTER_TOKEN"):
        service_security(MetadataSettings(listen=EVERYWHERE, **files))
    service_security(MetadataSettings(listen=EVERYWHERE, tls_client_ca=certs / "ca.pem", **files))
    service_security(MetadataSettings(listen=EVERYWHERE, insecure=True))
    service_security(MetadataSettings(listen=Address("127.0.0.1", 0)))


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True),
        ("0.0.0.0", False), ("::", False), ("10.0.0.1", False), ("nosuch.invalid", False),
    ],
)  # fmt: skip
def test_loopback(host: str, loopback: bool) -> None:
    assert is_loopback(Address(host, 1)) == loopback
    listeners = [("HTTP", Address(host, 1))]
    if loopback:
        check_exposure(Settings(), listeners, ["all"])
    else:
        with pytest.raises(InvalidArgument, match=r"HTTP on .* needs all"):
            check_exposure(Settings(), listeners, ["all"])


def test_files_that_are_no_certificate_are_named(tmp_path: Path, certs: Path) -> None:
    (tmp_path / "bad.pem").write_text("nothing")
    trusted = (certs / "server.pem").read_text().replace(" CERT", " TRUSTED CERT")
    (tmp_path / "trusted.pem").write_text(trusted)
    locked = load_pem_private_key((certs / "server-key.pem").read_bytes(), None).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")
    )
    (tmp_path / "locked.pem").write_bytes(locked)
    good = {"tls_cert": certs / "server.pem", "tls_key": certs / "server-key.pem"}
    for given, problem in (
        (good | {"tls_client_ca": tmp_path / "bad.pem"}, r"^\S*bad\.pem has no cert"),
        (good | {"tls_cert": tmp_path / "trusted.pem"}, r"trusted\.pem has no cert"),
        (good | {"tls_key": tmp_path / "locked.pem"}, "and its key"),
        ({"tls_cert": certs / "server.pem"}, "both"),
        ({"tls_cert": certs / "nowhere", "tls_key": certs / "server-key.pem"}, "nowhere"),
        ({"tls_cert": tmp_path / "bad.pem", "tls_key": certs / "server-key.pem"}, r"bad\.pem"),
        ({"tls_cert": certs / "server.pem", "tls_key": certs / "client-key.pem"}, "and its key"),
    ):
        with pytest.raises(InvalidArgument, match=problem):
            service_security(MetadataSettings(**cast("dict[str, Any]", given)))


@pytest.fixture(scope="module")
def http() -> Generator[httpx.Client]:
    with (
        server_process(flags=["--allowed-host", "log.example.com"]) as server,
        httpx.Client(base_url=server.http) as client,
    ):
        yield client


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:1", 200), ("127.0.0.1", 200), ("[::1]:7780", 200), ("LOG.example.com", 200),
        ("log.example.com:443", 200), ("evil.example", 403), ("127.0.0.1.evil.example", 403),
        ("localhost.evil.example", 403), ("", 403), ("10.0.0.1", 403), ("[", 403),
    ],
)  # fmt: skip
def test_http_is_asked_by_its_own_names(http: httpx.Client, host: str, status: int) -> None:
    answer = http.get("/v1/namespaces", headers={"host": host})
    assert answer.status_code in ({status} if host else {400, 403})
    assert http.get("/healthz", headers={"host": host or "x"}).status_code == 200


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://localhost:7780", 200), ("http://localhost", 403), ("null", 403),
        ("https://evil.example", 403), ("http://localhost:7780.evil.example", 403), ("", 403),
        ("http://[", 403), ("http://[::1", 403), ("http://[localhost]:7780", 403),
    ],
)  # fmt: skip
def test_pages_of_other_origins_are_refused(http: httpx.Client, origin: str, status: int) -> None:
    headers = {"host": "localhost:7780", "origin": origin}
    body = {"namespace": "tenants/default/namespaces/default", "batches": []}
    assert http.get("/v1/namespaces", headers=headers).status_code == status
    assert (http.post("/v1/push", json=body, headers=headers).status_code == 403) == (status == 403)


@pytest.mark.parametrize("name", ["log.example.com:7780", "https://log.example.com", "a/b", ""])
def test_an_allowed_host_that_no_request_can_have_is_refused(name: str) -> None:
    with pytest.raises(InvalidArgument, match="without a port"):
        load(flags={"allowed_host": (name,)})
    assert load(flags={"allowed_host": ("A.example", "::1")}).allowed_host == ("a.example", "::1")


def test_a_token_of_the_cluster_that_no_header_can_hold_is_refused() -> None:
    for bad in ("é" * 40, "c" * 40 + "\n", "c" * 31):
        with pytest.raises(InvalidArgument, match="cluster-token: it") as refusal:
            load(None, {"cluster_token": bad}, MetadataSettings)
        assert bad not in str(refusal.value)


def test_certificates_are_not_overwritten(tmp_path: Path) -> None:
    files = certificates.make_certificates(tmp_path, ["node-1", "10.0.0.1"])
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    with pytest.raises(InvalidArgument, match="exists already"):
        certificates.make_certificates(tmp_path, [])
