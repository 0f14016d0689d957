"""Asks the server of this machine whether it is alive: `python -m wings_server.health`.

For the health check of a container, whose image has no other client. It reads where HTTP is served
from `WINGS_HTTP` alone, and asks by TLS where `WINGS_TLS_CERT` is set: over loopback, without a
look at whose certificate that is.

Exit status: 0 the server answers, 1 it does not; `--ready`: 0 only while it takes requests.
"""

import http.client
import os
import ssl
import sys
from collections.abc import Mapping, Sequence

SECONDS_MAX = 3.0
"""How long the answer may take."""

_HTTP = "127.0.0.1:7780"


def check(arguments: Sequence[str], environment: Mapping[str, str]) -> str | None:
    """Return why the server is not well; None: it is."""
    path = "/readyz" if "--ready" in arguments else "/healthz"
    _, _, port = environment.get("WINGS_HTTP", _HTTP).rpartition(":")
    connection: http.client.HTTPConnection
    if environment.get("WINGS_TLS_CERT"):
        context = ssl.create_default_context()
        context.check_hostname = False  # It is asked for by its port on this machine alone.
        context.verify_mode = ssl.CERT_NONE
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
    """Print why the server is not well, if it is not, and exit."""
    wrong = check(sys.argv[1:], os.environ)
    if wrong is not None:
        sys.stderr.write(f"{wrong}\n")
    sys.exit(wrong is not None)


if __name__ == "__main__":
    main()
