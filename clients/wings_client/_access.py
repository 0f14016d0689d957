"""Access: what a client presents to servers, and how it knows them."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from wings_core.errors import InvalidArgument

TOKEN_VARIABLE = "WINGS_TOKEN"
"""The environment variable of the token that is presented where none is given."""

FilePath = str | os.PathLike[str]

Pem = FilePath | bytes
"""A file in PEM, or what one holds."""


@dataclass(frozen=True, slots=True, repr=False)
class Access:
    """A token and the certificates of TLS; its `repr` shows neither.

    Attributes:
        token: Presented with each call; None: none.
        tls_ca: Certificates in PEM, of the authorities that servers are checked against; None:
            those that gRPC comes with.
        tls_cert: This client's certificate chain in PEM, for mutual TLS.
        tls_key: Its private key.
    """

    token: str | None = None
    tls_ca: bytes | None = None
    tls_cert: bytes | None = None
    tls_key: bytes | None = None

    @classmethod
    def of(
        cls,
        token: str | None = None,
        tls_ca: Pem | None = None,
        tls_cert: Pem | None = None,
        tls_key: Pem | None = None,
    ) -> Self:
        """Read the files; without a token, that of the environment is taken.

        Whitespace around a token is dropped: text read from a file ends in a newline.

        Raises:
            InvalidArgument: A file cannot be read, a certificate is without its key or the reverse,
                or the token is not printable ASCII.
        """
        token = token if token is not None else os.environ.get(TOKEN_VARIABLE) or None
        token = None if token is None else token.strip()
        if token is not None and not (token.isascii() and token.isprintable() and token):
            raise InvalidArgument("the token is empty, or not of printable ASCII characters")
        if (tls_cert is None) != (tls_key is None):
            raise InvalidArgument("tls_cert and tls_key are given together")
        return cls(token, _read(tls_ca), _read(tls_cert), _read(tls_key))

    @property
    def headers(self) -> list[tuple[Any, Any]]:
        """The headers of each call: pairs of bytes, which pyarrow's stubs take for texts."""
        if self.token is None:
            return []
        return [(b"authorization", b"Bearer " + self.token.encode("ascii"))]

    @property
    def connection(self) -> dict[str, Any]:
        """The arguments of `pyarrow.flight.FlightClient` for TLS."""
        given = {
            "tls_root_certs": self.tls_ca,
            "cert_chain": self.tls_cert,
            "private_key": self.tls_key,
        }
        return {name: value for name, value in given.items() if value is not None}


def _read(path: Pem | None) -> bytes | None:
    if path is None or isinstance(path, bytes):
        return path
    try:
        return Path(path).read_bytes()
    except (OSError, ValueError) as error:
        problem = getattr(error, "strerror", None) or error
        raise InvalidArgument(f"{path!s:.400} cannot be read: {problem}") from None
