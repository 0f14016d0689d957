"""Health check of this machine's server: `python -m wings_server.health`.

For containers, whose image has no other client. It takes the port of HTTP, and whether there is
TLS, as the server does from `WINGS_HTTP` and `WINGS_TLS_CERT`, or the TOML file of `WINGS_CONFIG`.
It asks over loopback, without verifying the certificate. With `WINGS_TLS_CLIENT_CA` it presents the
server's own, which must be valid for clients too.

Exit status: 0 the server responds, 1 it does not; with `--ready`, 0 only while it accepts requests.
"""

import http.client
import os
import ssl
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

SECONDS_MAX = 3.0
"""Timeout of the response."""

_HTTP = "127.0.0.1:7780"


def check(arguments: Sequence[str], environment: Mapping[str, str]) -> str | None:
    """Return why the server is not healthy; None if it is."""
    path = "/readyz" if "--ready" in arguments else "/healthz"
    config = environment.get("WINGS_CONFIG")
    try:
        file = tomllib.loads(Path(config).read_text()) if config else {}
    except (OSError, ValueError) as error:
        return f"{config}: {error}"

    def setting(name: str) -> str | None:
        return environment.get(f"WINGS_{name.upper()}") or file.get(name)

    _, _, port = str(setting("http") or _HTTP).rpartition(":")
    connection: http.client.HTTPConnection
    if cert := setting("tls_cert"):
        context = ssl.create_default_context()
        context.check_hostname = False  # Addressed by its port on loopback.
        context.verify_mode = ssl.CERT_NONE
        if setting("tls_client_ca"):
            context.load_cert_chain(cert, setting("tls_key"))
        connection = http.client.HTTPSConnection(
            "127.0.0.1", int(port), timeout=SECONDS_MAX, context=context
        )
    else:
        connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=SECONDS_MAX)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read(512).decode("utf-8", "replace")
    except (OSError, http.client.HTTPException) as error:
        return f"port {port}: {error}"
    finally:
        connection.close()
    return None if answer.status == http.HTTPStatus.OK else f"{answer.status}: {body}"


def main() -> None:
    """Print why the server is not healthy, if so, and exit."""
    wrong = check(sys.argv[1:], os.environ)
    if wrong is not None:
        sys.stderr.write(f"{wrong}\n")
    sys.exit(wrong is not None)


if __name__ == "__main__":
    main()
