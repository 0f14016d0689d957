"""The root of the `wings` command."""

from importlib.metadata import version
from typing import Annotated

import typer

from wings_client.cli.plugins import MARKUP, PluginGroup

SERVICES = ("holds", "ingest", "metadata", "serve")
"""Long-running commands, which create their own traces, if any."""

app = typer.Typer(
    cls=PluginGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=MARKUP,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"wings {version('wings-flight')}")
        raise typer.Exit


@app.callback(
    help=(
        "A durable message log served over Arrow Flight.\n\n"
        "Producers push Arrow batches to a topic; consumers fetch them by partition and offset, "
        "and wait for more with a long poll.\n\n"
        "Start a server on ./wings-data: `wings serve`\n\n"
        "Every command explains itself: `wings COMMAND --help`\n\n"
        "Exit status: 0 done, 1 rejected or failed, 2 bad arguments, 130 interrupted."
    ),
    epilog="Any Arrow Flight client can talk to the server; this command is only one of them.",
)
def root(
    context: typer.Context,
    *,
    version_wanted: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Accept the options before a command."""
    if context.invoked_subcommand not in SERVICES:
        # Imported here: it loads pyarrow, and a server has a say in how.
        from wings_core.tracing import client_span
        from wings_core.tracing import setup as traces

        traces.start("wings-cli")
        context.call_on_close(traces.stop)
        context.with_resource(client_span(f"wings {context.invoked_subcommand}"))
