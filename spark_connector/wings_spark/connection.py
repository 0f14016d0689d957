"""Connections of Spark's processes to servers, with credentials and the time of retries.

Python workers, which run many tasks each, are prepared for it.
"""

import gc
import os
import sys
from dataclasses import dataclass, field
from functools import cache
from math import ceil
from pathlib import Path
from typing import Self

import wings_client
from wings_client import Client, Retry
from wings_core.errors import InvalidArgument
from wings_core.runtime import keep_freed_memory

RETRY_SECONDS = 60.0
"""Default time for which a stream retries while no server can be reached."""

CALL_SECONDS = 30.0
"""The client's own time limit of a call."""

TOKEN_VARIABLE = "WINGS_TOKEN"
"""Environment variable of the driver with the default token."""

FilePath = str | os.PathLike[str]

_DAEMON = "pyspark.daemon"


@dataclass(frozen=True, slots=True)
class ServerAccess:
    """A server, or the nodes of a cluster, with the credentials for it.

    Made on the driver, which reads the files, and pickled to the tasks; its `repr` shows only the
    endpoint.

    Attributes:
        endpoint: URL, like `grpc://host:7777`.
        token: Token sent with each call, or None.
        tls_ca: Certificates in PEM of the authorities to verify servers with; None for gRPC's own.
        tls_cert: The certificate chain in PEM, for mutual TLS.
        tls_key: Private key of the certificate.
    """

    endpoint: str
    token: str | None = field(default=None, repr=False)
    tls_ca: bytes | None = field(default=None, repr=False)
    tls_cert: bytes | None = field(default=None, repr=False)
    tls_key: bytes | None = field(default=None, repr=False)

    @classmethod
    def of(
        cls,
        endpoint: str,
        token: str | None = None,
        token_file: FilePath | None = None,
        tls_ca: FilePath | None = None,
        tls_cert: FilePath | None = None,
        tls_key: FilePath | None = None,
    ) -> Self:
        """Read the files; without a token or token file, `WINGS_TOKEN` is used.

        Raises:
            InvalidArgument: A file cannot be read.
        """
        if token is None and token_file is not None:
            token = _read(token_file).decode("utf-8", "replace").strip()
        token = token or os.environ.get(TOKEN_VARIABLE) or None
        files = (None if path is None else _read(path) for path in (tls_ca, tls_cert, tls_key))
        return cls(endpoint, token, *files)

    def connect(
        self,
        retry_seconds: float | None = None,
        *,
        nodes: tuple[str, ...] = (),
        timeout: float = CALL_SECONDS,
    ) -> Client:
        """Return a client, which connects at the first call.

        Args:
            retry_seconds: Least time to retry each call and scan without progress; the most is
                twice as long. None for a second, as in any client.
            nodes: Endpoints used in addition to the server's own.
            timeout: Most seconds of a call, unless it is retried for longer.

        Raises:
            InvalidArgument: The endpoint, the token, or a certificate is malformed.
        """
        retry = None
        if retry_seconds is not None:
            usual = Retry()
            # Pauses grow to their bound in a few attempts; from then on they last at least half of
            # it.
            attempts = 8 + ceil(retry_seconds / (usual.delay_max / 2)) if retry_seconds else 1
            retry, timeout = Retry(attempts=attempts), max(timeout, 2 * retry_seconds)
        return wings_client.connect(
            [*nodes, self.endpoint] if nodes else self.endpoint,
            timeout=timeout,
            retry=retry,
            token=self.token,
            tls_ca=self.tls_ca,
            tls_cert=self.tls_cert,
            tls_key=self.tls_key,
        )


def _read(path: FilePath) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be read: {error.strerror or error}") from None


@cache
def prepare_worker() -> None:
    """Tune garbage collection and allocation of this process, if it is a worker of Spark.

    Does nothing in the user's own processes, or when called again.

    PySpark's daemon makes a worker run a full collection after each task and each step of planning.
    Traversing the objects of Arrow, pydantic, PySpark and Wings takes 100 ms of a core, while the
    read of a small range takes 5: all that is loaded so far is left out. Objects made later are
    collected as usual.
    """
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    if main is not None and main.name == _DAEMON:
        gc.freeze()
        # gRPC allocates received data in pieces, freed as soon as their rows are delivered.
        keep_freed_memory()
