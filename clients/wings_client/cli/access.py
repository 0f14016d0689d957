"""Options of all commands that call a server: the token to present, and the files of TLS.

The variables of a client's certificate are not those of a server's, `WINGS_TLS_CERT` and
`WINGS_TLS_KEY`: where both run in one environment, each presents its own.

They are added to each command that has an `--endpoint`, and kept beside its own parameters.
"""

import ssl
from pathlib import Path
from typing import Annotated, Any

import typer

from wings_client._access import Access
from wings_core.errors import InvalidArgument

_given: dict[str, str] = {}
"""The options of the command that runs: a process runs one at a time."""


def _keep(parameter: typer.CallbackParam, value: str | None) -> None:
    assert parameter.name is not None
    _given.pop(parameter.name, None)
    if value is not None:
        _given[parameter.name] = value


def _file(name: str, variable: str, text: str) -> Any:
    return typer.Option(
        f"--{name}",
        metavar="FILE",
        help=text,
        envvar=variable,
        expose_value=False,
        callback=_keep,
    )


def _template(
    *,
    endpoint: Annotated[str, typer.Option("--endpoint")] = "",
    token_file: Annotated[
        str | None,
        _file(
            "token-file", "WINGS_TOKEN_FILE", "Holds the token to present. Default: WINGS_TOKEN."
        ),
    ] = None,
    tls_ca: Annotated[
        str | None,
        _file("tls-ca", "WINGS_TLS_CA", "Authorities, in PEM, that servers are checked against."),
    ] = None,
    tls_cert: Annotated[
        str | None,
        _file(
            "tls-cert", "WINGS_CLIENT_CERT", "This client's certificate, in PEM, for mutual TLS."
        ),
    ] = None,
    tls_key: Annotated[str | None, _file("tls-key", "WINGS_CLIENT_KEY", "Its private key.")] = None,
) -> None:
    """Have the options that other commands get."""
    del endpoint, token_file, tls_ca, tls_cert, tls_key


def add_access_options(command: Any) -> None:
    """Add the options to a command that has an `--endpoint`, or to those of a group."""
    for child in getattr(command, "commands", {}).values():
        add_access_options(child)
    if any("--endpoint" in option.opts for option in command.params):
        app = typer.Typer(add_completion=False)
        app.command()(_template)
        template: Any = typer.main.get_command(app)
        command.params += [each for each in template.params if "--endpoint" not in each.opts]


def current_access() -> Access:
    """Return what the options of the command that runs say.

    Raises:
        InvalidArgument: A file cannot be read, or a certificate is without its key.
    """
    token_file = _given.get("token_file")
    token = None
    if token_file is not None:
        try:
            token = Path(token_file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidArgument(f"{token_file} cannot be read: {error}") from None
    return Access.of(token, *map(_given.get, ("tls_ca", "tls_cert", "tls_key")))


def refuse_files_of_tls(url: str) -> None:
    """Make sure that no file of TLS is given for a server that is called without it.

    Raises:
        InvalidArgument: One is: the caller expects a connection that others cannot read.
    """
    given = [f"--{name.replace('_', '-')}" for name in _given if name.startswith("tls_")]
    if given:
        raise InvalidArgument(
            f"{url:.200} is without TLS, and {given[0]} is given: name the server by https://"
        )


def tls_context() -> ssl.SSLContext:
    """Return the context of HTTPS by the options of the command that runs.

    Raises:
        InvalidArgument: A file is no certificate, or no key.
    """
    try:
        context = ssl.create_default_context(cafile=_given.get("tls_ca"))
        if "tls_cert" in _given:
            context.load_cert_chain(_given["tls_cert"], _given.get("tls_key"))
    except (OSError, ssl.SSLError) as error:
        raise InvalidArgument(f"the files of TLS cannot be used: {error}") from None
    return context
