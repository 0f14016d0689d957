"""An HTTP proxy before an S3 server that fails as networks and clouds do, by a seed."""

import http.client
import random
import threading
import time
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal, get_args
from urllib.parse import urlsplit

Fault = Literal["lost", "timeout", "error", "error_after", "precondition", "slow", "cut_off"]
"""How a request fails.

- `lost`: it is done, and the connection closed instead of an answer.
- `timeout`: it is done, and never answered.
- `error`: 503, and it is not done.
- `error_after`: it is done, and answered 500.
- `precondition`: of a put: it is done, and answered 412.
- `slow`: it is answered late.
- `cut_off`: half of the answer's body comes; an answer without one is lost.
"""

FAULTS: tuple[Fault, ...] = get_args(Fault)

SLOW_SECONDS = 0.05


class FaultyStore:
    """Forwards requests to an S3 server, and lets some of them fail.

    Args:
        target: The server's address, `http://HOST:PORT`.
        rate: The share of requests that fail.
        seed: Which of them, and how.
        faults: Those that happen.
        timeout_seconds: How long an answer that never comes takes; longer than clients wait.

    Attributes:
        endpoint: Where clients connect.
        happened: How often which fault did.
        down: Whether all requests are answered 503.
        denied: Whether all requests are answered 403, as for unknown credentials.
    """

    def __init__(
        self,
        target: str,
        *,
        rate: float = 0.0,
        seed: int = 0,
        faults: tuple[Fault, ...] = FAULTS,
        timeout_seconds: float = 2.0,
    ) -> None:
        self.rate = rate
        self.down = False
        self.denied = False
        self.happened: Counter[str] = Counter()
        self.requests = 0
        self._target = urlsplit(target).netloc
        self._random = random.Random(seed)
        self._faults = faults
        self._timeout_seconds = timeout_seconds
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        store = self

        class Handler(_Handler):
            proxy = store

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.01,), daemon=True
        )
        self._thread.start()
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        """Stop."""
        self._stopping.set()
        self._server.shutdown()
        self._server.server_close()

    def choose(self, method: str) -> Fault | None:
        """Return what becomes of a request."""
        with self._lock:
            self.requests += 1
            if self.down:
                return "error"
            if self._random.random() >= self.rate:
                return None
            fault = self._random.choice(self._faults)
            if fault == "precondition" and method != "PUT":
                fault = "error"
            self.happened[fault] += 1
            return fault

    def forward(
        self, method: str, path: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, list[tuple[str, str]], bytes]:
        """Ask the server."""
        connection = http.client.HTTPConnection(self._target, timeout=30)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in headers.items():
                connection.putheader(name, value)
            connection.endheaders(body or None)
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            connection.close()

    def never_answer(self) -> None:
        """Block as a server that does not answer does."""
        self._stopping.wait(self._timeout_seconds)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy: FaultyStore

    def do_GET(self) -> None:
        self._serve()

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET  # noqa: N815 - as the library calls them

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        """Say nothing."""

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = self.proxy.choose(self.command)
        if self.proxy.denied:
            self._answer(403, [], b"<Error><Code>InvalidAccessKeyId</Code></Error>")
            return
        if fault == "error":
            self._answer(503, [], b"<Error><Code>SlowDown</Code></Error>")
            return
        if fault == "slow":
            time.sleep(SLOW_SECONDS)
        with suppress(OSError):
            status, headers, answer = self.proxy.forward(
                self.command, self.path, dict(self.headers.items()), body
            )
            if fault == "error_after":
                self._answer(500, [], b"<Error><Code>InternalError</Code></Error>")
            elif fault == "precondition":
                self._answer(412, [], b"<Error><Code>PreconditionFailed</Code></Error>")
            elif fault == "lost" or (fault == "cut_off" and (self.command == "HEAD" or not answer)):
                self._hang_up()
            elif fault == "timeout":
                self.proxy.never_answer()
                self._hang_up()
            elif fault == "cut_off":
                self._answer(status, headers, answer, cut_off=True)
                self._hang_up()
            else:
                self._answer(status, headers, answer)

    def _hang_up(self) -> None:
        self.close_connection = True

    def _answer(
        self, status: int, headers: list[tuple[str, str]], body: bytes, *, cut_off: bool = False
    ) -> None:
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in {"connection", "transfer-encoding", "content-length"}:
                self.send_header(name, value)
        length = next((v for n, v in headers if n.lower() == "content-length"), None)
        if self.command != "HEAD" or length is None:
            length = str(len(body))
        self.send_header("Content-Length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[: len(body) // 2] if cut_off else body)


@contextmanager
def faulty_store(
    target: str,
    *,
    rate: float = 0.0,
    seed: int = 0,
    faults: tuple[Fault, ...] = FAULTS,
) -> Generator[FaultyStore]:
    """Run a proxy before an S3 server for as long as the `with` lasts."""
    proxy = FaultyStore(target, rate=rate, seed=seed, faults=faults)
    try:
        yield proxy
    finally:
        proxy.close()
