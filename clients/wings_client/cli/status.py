"""`wings status`: a server's health, and what to do about it."""

import json
from importlib.metadata import version
from typing import Annotated, Any, Literal

import typer

from wings_client.cli.endpoint import act
from wings_client.cli.options import DEFAULT, EndpointOption
from wings_client.cli.values import count_of, printable
from wings_core.contracts.totals import HealthBody

_MIB = 1024 * 1024


def status(
    *,
    wanted_format: Annotated[
        Literal["text", "json"],
        typer.Option("--format", help="text for people; json is the server's own answer."),
    ] = "text",
    endpoint: EndpointOption = DEFAULT,
) -> None:
    """Show a server's version, your rights, its nodes and disk, and what needs you.

    Needs a token like every command, and shows what that may read; nodes, disk, certificate and
    backups only to operators (`admin=*`).

        $ wings status

        $ wings status --format json
    """
    found: dict[str, Any] = act(endpoint, "health", HealthBody())
    if wanted_format == "json":
        typer.echo(json.dumps(found, ensure_ascii=False, indent=2))
        return
    tls = "over TLS" if found["tls"] else "without TLS"
    _line("endpoint", f"{endpoint}, {tls}")
    principal = found["principal"]
    _line("token", f"{principal['name']}: {', '.join(principal['grants']) or 'no rights'}")
    _line("versions", f"client {version('wings-flight')}, server {found['version']}")
    for node in found["nodes"] or ():
        http = f", {node['http']}" if node["http"] else ""
        _line("node", f"{node['flight']}{http}, since {node['since']}")
    if (disk := found["disk"]) is not None:
        free, used, least = (
            f"{disk[key] // _MIB:,} MiB" for key in ("free_bytes", "used_bytes", "watermark_bytes")
        )
        _line("disk", f"{free} free, {used} used; below {least} free, pushes are refused")
    typer.echo()
    needs = found["needs"]
    count = len(needs) + found["needs_left_out"]
    if not needs:
        typer.echo("nothing needs you")
        return
    typer.echo(f"{count_of(count, 'thing')} need{'s' if count == 1 else ''} you:")
    for need in needs:
        typer.echo(f"- {printable(need['message'])}: {printable(need['remedy'])}")
    if found["needs_left_out"]:
        typer.echo(f"- and {found['needs_left_out']:,} more")


def _line(name: str, text: str) -> None:
    typer.echo(f"{name + ':':<10} {printable(text)}")
