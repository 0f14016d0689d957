"""`wings sql`: runs one SQL statement over topics, or a shell for many."""

import sys
from typing import Annotated

import typer

from wings_client.cli.endpoint import connected
from wings_client.cli.options import DEFAULT, EndpointOption, FormatOption
from wings_client.cli.output import check_output, write_rows
from wings_client.cli.values import duration


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
        float | None,
        typer.Option(
            metavar="DURATION",
            parser=duration("ms", 1),
            help="Timeout of the statement, like 30s; with --follow, of the wait for a row.",
        ),
    ] = None,
    wanted_format: FormatOption = "table",
    follow: Annotated[
        bool,
        typer.Option("--follow", "-f", help="Show rows as they arrive, until Ctrl-C."),
    ] = False,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="WHERE",
            help="With --follow: earliest, latest, an offset, or a time like -1h.",
        ),
    ] = "latest",
    endpoint: EndpointOption = DEFAULT,
) -> None:
    """Run one SQL statement over topics, which are its tables; without one, a shell for many.

        $ wings sql "select origin, count(*) from flights group by 1 order by 2 desc limit 5"

    After the topic's columns, a table has `__partition`, `__offset` and `__timestamp`. Namespaces
    are schemas; unqualified tables belong to the default namespace.

        $ wings sql --format parquet "from flights where delay > 60" > late.parquet

    With --follow it is a live view: columns of one topic with a condition, as rows arrive.

        $ wings sql --follow "select origin, delay from flights where delay > 60"

    In the shell a statement ends with `;` and may span several lines, Tab completes tables and
    columns, Ctrl-C cancels a statement, and `.help` shows more.

        $ wings sql
    """
    check_output(wanted_format, is_endless=follow)
    is_shell = statement is None and sys.stdin.isatty() and sys.stdout.isatty()
    if parameters and (is_shell or follow):
        who = "the shell" if is_shell else "--follow"
        raise typer.BadParameter(f"{who} takes no parameters", param_hint="--parameter")
    if is_shell:
        from wings_client.cli.sql_shell import Shell  # Imports prompt_toolkit, which is slow.

        with connected(endpoint) as client:
            Shell(client, namespace, timeout, wanted_format).run()
        return
    text = sys.stdin.read() if statement is None else statement
    if follow:
        from wings_client.cli.following import show_live  # Its imports are not needed otherwise.

        show_live(text, namespace, start, timeout, wanted_format, endpoint)
        return
    with connected(endpoint) as client:
        values = parameters or ()
        write_rows(
            lambda: client.sql(text, values, namespace=namespace, timeout=timeout), wanted_format
        )
