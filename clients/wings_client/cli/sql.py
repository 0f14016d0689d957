"""`wings sql`: runs one SQL statement over topics, or a shell for many."""

import sys
from typing import Annotated

import typer

from wings_client.cli.endpoint import DEFAULT, EndpointOption, connected
from wings_client.cli.output import Format, check_output
from wings_client.cli.sql_run import SqlFormat, progress, write_rows


def sql(
    statement: Annotated[
        str | None,
        typer.Argument(
            metavar="[STATEMENT]",
            help="One statement; default: standard input, at a terminal a shell.",
        ),
    ] = None,
    *,
    parameters: Annotated[
        list[str] | None,
        typer.Option(
            "--parameter",
            "-p",
            metavar="VALUE",
            help="Value of the next `?`, as text, which SQL casts when comparing.",
        ),
    ] = None,
    namespace: Annotated[
        str | None,
        typer.Option(metavar="tenants/T/namespaces/N", help="Namespace of unqualified tables."),
    ] = None,
    timeout: Annotated[
        int | None,
        typer.Option(
            metavar="MS",
            min=1,
            help="Timeout of the statement; with --follow, of the wait for a row.",
        ),
    ] = None,
    wanted_format: Annotated[
        SqlFormat,
        typer.Option("--format", help="table for people; the others write only data."),
    ] = SqlFormat.TABLE,
    follow: Annotated[
        bool,
        typer.Option("--follow", "-f", help="Show rows as they arrive, until Ctrl-C."),
    ] = False,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="WHERE",
            help="With --follow: earliest, latest, an offset, or a time.",
        ),
    ] = "latest",
    endpoint: EndpointOption = DEFAULT,
) -> None:
    """Run one SQL statement over topics, which are its tables; without one, a shell for many.

        $ wings sql "select origin, count(*) from flights group by 1 order by 2 desc limit 5"

    After the topic's columns, a table has `__partition`, `__offset` and `__timestamp`. Namespaces
    are
    schemas; unqualified tables belong to the default namespace.

        $ wings sql --format parquet "from flights where delay > 60" > late.parquet

    With --follow it is a live view: columns of one topic with a condition, as rows arrive.

        $ wings sql --follow "select origin, delay from flights where delay > 60"

    In the shell a statement ends with `;` and may span several lines, Tab completes tables and
    columns, Ctrl-C cancels a statement, and `.help` shows more.

        $ wings sql
    """
    _check(wanted_format)
    seconds = None if timeout is None else timeout / 1000
    if statement is None and sys.stdin.isatty() and sys.stdout.isatty():
        _shell(endpoint, parameters, namespace, seconds, wanted_format)
        return
    text = sys.stdin.read() if statement is None else statement
    if follow:
        _follow(text, parameters, namespace, seconds, start, wanted_format, endpoint)
        return
    with connected(endpoint) as client, progress() as shown:
        reader = client.sql(text, parameters or (), namespace=namespace, timeout=seconds)
        write_rows(reader, wanted_format, shown)


def _shell(
    endpoint: str,
    parameters: list[str] | None,
    namespace: str | None,
    seconds: float | None,
    wanted: SqlFormat,
) -> None:
    if parameters:
        raise typer.BadParameter("the shell takes no parameters", param_hint="--parameter")
    from wings_client.cli.sql_shell import Shell  # Imports prompt_toolkit, which is slow.

    with connected(endpoint) as client:
        Shell(client, namespace, seconds, wanted).run()


def _follow(
    text: str,
    parameters: list[str] | None,
    namespace: str | None,
    seconds: float | None,
    start: str,
    wanted: SqlFormat,
    endpoint: str,
) -> None:
    if parameters:
        raise typer.BadParameter("--follow takes no parameters", param_hint="--parameter")
    if wanted is SqlFormat.PARQUET:
        raise typer.BadParameter(
            "--follow cannot write Parquet, as it never ends", param_hint="--format"
        )
    from wings_client.cli.tail import show_live  # Its imports are not needed otherwise.

    show_live(text, namespace, start, seconds, Format(wanted.value), endpoint)


def _check(wanted: SqlFormat) -> None:
    if wanted is SqlFormat.PARQUET and sys.stdout.isatty():
        raise typer.BadParameter(
            "parquet is binary: send it to a file or a pipe", param_hint="--format"
        )
    if wanted is not SqlFormat.PARQUET:
        check_output(Format(wanted.value))
