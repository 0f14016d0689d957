"""Connections to servers: what is presented to them, and how long they are tried again."""

import os
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import Self

import wings_client
from wings_client import Client, Retry
from wings_core.errors import InvalidArgument

RETRY_SECONDS = 60.0
"""How long a stream rides out that no server can be reached, unless its user says otherwise."""

CALL_SECONDS = 30.0
"""The client's own bound on a call."""

TOKEN_VARIABLE = "WINGS_TOKEN"
"""The environment variable of the driver with the token, where none is given."""

FilePath = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class Server:
    """A server, or the nodes of a cluster, and what is presented to it.

    Made on the driver, where its files are read, and taken to the tasks pickled; its `repr` shows
    the endpoint alone.

    Attributes:
        endpoint: Like `grpc://host:7777`.
        token: Presented with each call; None: none.
        tls_ca: Certificates in PEM, of the authorities that servers are checked against; None:
            those that gRPC comes with.
        tls_cert: The certificate chain in PEM, for mutual TLS.
        tls_key: Its private key.
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
        """Read the files; without a token, and a file of one, `WINGS_TOKEN` is taken.

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
        """Connect; the connection is made by the first call.

        Args:
            retry_seconds: How long each call and scan is tried again without progress, at least;
                at most twice as long. None: a second, as any client does.
            nodes: Endpoints that are used as well as the server's own.
            timeout: Seconds that a call may take, if it is not tried again for longer.

        Raises:
            InvalidArgument: The endpoint, the token, or a certificate cannot be one.
        """
        retry = None
        if retry_seconds is not None:
            usual = Retry()
            # Pauses grow to their bound in a few attempts, and last half of it at least from then.
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
