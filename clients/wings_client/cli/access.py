"""Options of all commands that call a server: the profile, the token, and the files of TLS.

The variables for a client's certificate differ from those for a server's, `WINGS_TLS_CERT` and
`WINGS_TLS_KEY`, so that both can run in one environment.

The options are added to each command with an `--endpoint`, and stored beside its parameters.
"""

import os
import stat
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wings_client._access import Access
from wings_core.errors import InvalidArgument

if TYPE_CHECKING:
    import ssl

PANEL = "Connection"
"""The panel of these options, and of `--endpoint`, in the help."""

_given: dict[str, str] = {}
"""Options of the running command; a process runs one at a time."""


def _keep(context: typer.Context, parameter: typer.CallbackParam, value: str | None) -> None:
    assert parameter.name is not None
    _given.pop(parameter.name, None)
    if value is not None and not _is_for_another(context, parameter.name):
        _given[parameter.name] = value


def _is_for_another(context: typer.Context, name: str) -> bool:
    """Return whether a profile's file would be used at an endpoint that was given otherwise."""
    file, endpoint = map(context.get_parameter_source, (name, "endpoint"))
    assert file is not None
    if file.name != "DEFAULT_MAP":  # Given, and so perhaps before the endpoint is known.
        return False
    assert endpoint is not None
    return endpoint.name in {"COMMANDLINE", "ENVIRONMENT"}


def _use_profile(context: typer.Context, name: str | None) -> None:
    """Make a profile's keys the defaults of the command's options, before these are read."""
    from wings_client.cli.profiles import profile_of  # Imported by a command, not by the help.

    values: dict[str, Any] = dict(profile_of(name))
    if os.environ.get("WINGS_TOKEN"):
        values.pop("token_file", None)  # The environment takes precedence.
    options = {option.name: option for option in context.command.params}
    if "endpoint" in values and getattr(options.get("endpoint"), "multiple", False):
        values["endpoint"] = [values["endpoint"]]
    context.default_map = values


def _file(name: str, variable: str, text: str) -> Any:
    return typer.Option(
        f"--{name}",
        metavar="FILE",
        help=text,
        rich_help_panel=PANEL,
        envvar=variable,
        expose_value=False,
        callback=_keep,
    )


def _template(
    *,
    endpoint: Annotated[str, typer.Option("--endpoint")] = "",
    profile: Annotated[
        str | None,
        typer.Option(
            "--profile",
            metavar="NAME",
            help="Named connection of ~/.config/wings.toml. Default: the one named default.",
            rich_help_panel=PANEL,
            envvar="WINGS_PROFILE",
            expose_value=False,
            is_eager=True,  # Its keys are the defaults of the other options.
            callback=_use_profile,
        ),
    ] = None,
    token_file: Annotated[
        str | None,
        _file("token-file", "WINGS_TOKEN_FILE", "File with the token. Default: WINGS_TOKEN."),
    ] = None,
    tls_ca: Annotated[
        str | None,
        _file("tls-ca", "WINGS_TLS_CA", "Certificate authorities of servers, in PEM."),
    ] = None,
    tls_cert: Annotated[
        str | None,
        _file(
            "tls-cert", "WINGS_CLIENT_CERT", "This client's certificate, in PEM, for mutual TLS."
        ),
    ] = None,
    tls_key: Annotated[str | None, _file("tls-key", "WINGS_CLIENT_KEY", "Its private key.")] = None,
) -> None:
    """Declare the options that are added to other commands."""
    del endpoint, profile, token_file, tls_ca, tls_cert, tls_key


def add_access_options(command: Any) -> None:
    """Add the options to a command with an `--endpoint`, or to those of a group."""
    for child in getattr(command, "commands", {}).values():
        add_access_options(child)
    endpoints = [option for option in command.params if "--endpoint" in option.opts]
    for option in endpoints:
        option.rich_help_panel = PANEL
    if endpoints:
        command.params += _access_options()


@cache
def _access_options() -> list[Any]:
    """Return the options, which all commands have in common, as each takes a while to build."""
    app = typer.Typer(add_completion=False)
    app.command()(_template)
    template: Any = typer.main.get_command(app)
    return [each for each in template.params if "--endpoint" not in each.opts]


@cache  # Once for each file.
def _warn_of_readers(path: str) -> None:
    if Path(path).stat().st_mode & stat.S_IROTH:
        sys.stderr.write(f"wings: other users can read the token in {path}: chmod 600 it\n")


def current_access() -> Access:
    """Return the credentials given by the running command's options.

    Raises:
        InvalidArgument: A file cannot be read, or a certificate is without its key.
    """
    token_file = _given.get("token_file")
    token = None
    if token_file is not None:
        try:
            token = Path(token_file).read_text(encoding="utf-8").strip()
            _warn_of_readers(token_file)
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidArgument(f"{token_file} cannot be read: {error}") from None
    return Access.of(token, *map(_given.get, ("tls_ca", "tls_cert", "tls_key")))


def refuse_files_of_tls(url: str) -> None:
    """Check that no TLS file is given for a server that is called without TLS.

    Raises:
        InvalidArgument: A file is given, so the caller expects an encrypted connection.
    """
    given = [f"--{name.replace('_', '-')}" for name in _given if name.startswith("tls_")]
    if given:
        raise InvalidArgument(f"{url:.200} does not use TLS, but {given[0]} is given: use https://")


def tls_context() -> "ssl.SSLContext":
    """Return the HTTPS context given by the running command's options.

    Raises:
        InvalidArgument: A file is not a certificate or key.
    """
    import ssl  # Flight does not need it.

    try:
        context = ssl.create_default_context(cafile=_given.get("tls_ca"))
        if "tls_cert" in _given:
            context.load_cert_chain(_given["tls_cert"], _given.get("tls_key"))
    except (OSError, ssl.SSLError) as error:
        raise InvalidArgument(f"the files of TLS cannot be used: {error}") from None
    return context
