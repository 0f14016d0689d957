"""What a token and TLS cost: a push and a small fetch with and without, and a scan over TLS."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow.flight as flight

from benchmarks.harness import (
    Row,
    bare_server,
    compare,
    compare_in_turn,
    create_topic,
    drain,
    median_seconds,
    narrow,
    open_put,
    push,
    ticket,
)
from wings_server.testing import ServerProcess, server_process

TOKEN = "wings_" + "0" * 43
CALLS = 50
"""Of a measurement."""
BATCHES = 256
"""Of 1 MiB each, in the log that is scanned."""


def run() -> Iterator[Row]:
    """Measure calls against the same calls of a server that is open, over plain TCP."""
    with ExitStack() as stack:
        certs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        _make_certificates(certs)
        authority = (certs / "ca.pem").read_text()
        tls = ["--tls-cert", str(certs / "server.pem"), "--tls-key", str(certs / "server-key.pem")]
        environment = {"WINGS_ROOT_TOKEN": TOKEN}
        plain = _client(stack, stack.enter_context(server_process()))
        token = _client(stack, stack.enter_context(server_process(environment=environment)), TOKEN)
        server = stack.enter_context(server_process(flags=tls, environment=environment))
        both = _client(stack, server, TOKEN, authority)
        for client in (plain, token, both):
            create_topic(client, "small", narrow(1).schema)
            push(client, "small", narrow(10), 1)
        for name, client, bound in (("a token", token, 1.05), ("TLS and a token", both, 1.3)):
            yield _calls(f"push of 10 rows with {name}", bound, client, plain, _push)
            yield _calls(f"fetch of 10 rows with {name}", bound, client, plain, _fetch)
        yield _scan(stack, both, certs)


def _make_certificates(directory: Path) -> None:
    command = [sys.executable, "-m", "wings_client.cli", "cert", "dev", "--out", str(directory)]
    subprocess.run(command, check=True, capture_output=True)


class _Bearer(flight.ClientMiddleware):
    def __init__(self, token: str) -> None:
        self._token = token

    def sending_headers(self) -> dict[str, str]:  # pyright: ignore[reportIncompatibleMethodOverride] - the stubs want lists
        return {"authorization": f"Bearer {self._token}"}


class _Bearers(flight.ClientMiddlewareFactory):
    def __init__(self, token: str) -> None:
        self._token = token

    def start_call(self, info: flight.CallInfo) -> flight.ClientMiddleware:
        return _Bearer(self._token)


def _client(
    stack: ExitStack, server: ServerProcess, token: str | None = None, authority: str | None = None
) -> flight.FlightClient:
    middleware: list[flight.ClientMiddlewareFactory] = []
    if token is not None:
        middleware.append(_Bearers(token))
    return stack.enter_context(
        flight.FlightClient(server.flight, tls_root_certs=authority, middleware=middleware)
    )


def _calls(
    name: str,
    bound: float,
    ours: flight.FlightClient,
    theirs: flight.FlightClient,
    call: Callable[[flight.FlightClient], None],
) -> Row:
    return compare_in_turn(
        name,
        "ms",
        bound,
        lambda: median_seconds(lambda: call(ours), CALLS) * 1e3,
        lambda: median_seconds(lambda: call(theirs), CALLS) * 1e3,
        times=4,
        more_is_better=False,
    )


def _push(client: flight.FlightClient) -> None:
    push(client, "small", narrow(10), 1)


def _fetch(client: flight.FlightClient) -> None:
    wanted = ticket(kind="fetch", topic="small", offset=0, max_messages=10)
    assert drain(client, wanted) == 10


def _scan(stack: ExitStack, ours: flight.FlightClient, certs: Path) -> Row:
    bare = stack.enter_context(bare_server(certs))
    batch = narrow(32_768)
    create_topic(ours, "large", batch.schema)
    push(ours, "large", batch, BATCHES)
    keep = flight.FlightDescriptor.for_command(f'{{"keep": "large", "times": {BATCHES}}}'.encode())
    writer, answers = open_put(bare, keep, batch.schema)
    writer.write_batch(batch)
    answers.read()
    writer.close()
    rows = BATCHES * batch.num_rows

    def rate(client: flight.FlightClient, wanted: flight.Ticket) -> float:
        started = time.perf_counter()
        assert drain(client, wanted) == rows
        return rows / (time.perf_counter() - started)

    return compare(
        "scan over TLS, against a bare server over TLS",
        "rows/s",
        0.9,
        lambda: rate(ours, ticket(kind="scan", topic="large", offset=0)),
        lambda: rate(bare, flight.Ticket(b"large")),
    )
