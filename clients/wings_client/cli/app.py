"""The root of the `wings` command, and how commands are found.

They are the client's own, and those of the entry-point group `wings.commands`. A command is a plain
function or a `typer.Typer`. It is imported only when it is called, so `wings fetch` never pays for
the server's imports, nor does `wings --help` for any. A command of Wings whose extra is not
installed is listed with the command that installs it. Any other that cannot be imported is reported
on standard error; all other commands work.
"""

import sys
from functools import cache
from importlib.metadata import EntryPoint, entry_points, version
from typing import Annotated, Any, Final, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from wings_client.cli.access import add_access_options
from wings_client.cli.environment import install_hint, missing_module
from wings_core.errors import suggested

GROUP = "wings.commands"

OWN = {
    name: EntryPoint(name, f"wings_client.cli.{place}", GROUP)
    for name, place in {
        "backup": "backup:app",
        "bench": "bench:bench",
        "consume": "following:consume",
        "consumer": "lists:consumer",
        "export": "export:export",
        "fetch": "fetch:fetch",
        "gather": "gather:gather",
        "group": "group:app",
        "maintain": "maintain:maintain",
        "namespace": "lists:namespace",
        "node": "lists:node",
        "profile": "lists:profile",
        "push": "push:push",
        "share": "share:app",
        "sql": "sql:sql",
        "status": "lists:status",
        "tail": "following:tail",
        "token": "token:app",
        "topic": "topic:app",
    }.items()
}
"""The client's commands."""

WITHOUT_NUMPY = frozenset(OWN) - {"share"}
"""Commands that run no code of users, which may need numpy."""

MARKUP: Final = "markdown"
"""The markup of the help: paragraphs are wrapped, and brackets are literal."""

PANELS = ("Data", "Queue", "Admin", "Operate")
"""Panels of the help, in order; commands of other packages come after them."""


class _Listed(NamedTuple):
    """A line of the help."""

    panel: str
    help: str
    """The first paragraph of the command's own help."""


LISTED = {
    "consume": _Listed(
        "Data",
        "Show the messages of a topic as they arrive, resuming where the last run ended.",
    ),
    "export": _Listed(
        "Data", "Write a topic's messages to a file of Parquet, Arrow, CSV or JSON lines."
    ),
    "fetch": _Listed(
        "Data", "Fetch messages of one or all partitions, waiting if there are too few."
    ),
    "gather": _Listed(
        "Data",
        "Send one request to many partitions, topics or servers, and show replies as they arrive.",
    ),
    "ingest": _Listed(
        "Data",
        "Turn files that a queue announces into messages, each exactly once, on Spark.",
    ),
    "push": _Listed("Data", "Push the rows of files to a topic, each file whole or not at all."),
    "sql": _Listed(
        "Data",
        "Run one SQL statement over topics, which are its tables; without one, a shell for many.",
    ),
    "tail": _Listed("Data", "Show the messages of all partitions of a topic as they arrive."),
    "share": _Listed("Queue", "Share a topic among workers, as a queue."),
    "consumer": _Listed(
        "Admin",
        "Look at named consumers, groups included; delete offsets of those gone for good.",
    ),
    "group": _Listed("Admin", "Look at consumer groups, and reset them."),
    "namespace": _Listed("Admin", "Create, look at and delete namespaces."),
    "token": _Listed("Admin", "Create, alter, list and revoke the tokens that callers present."),
    "topic": _Listed("Admin", "Create, list, describe, alter and delete topics."),
    "backup": _Listed(
        "Operate",
        "Take a backup of a running server: `wings backup DEST`; list, verify and prune backups.",
    ),
    "bench": _Listed(
        "Operate",
        "Measure a running server from here: throughput, and latency of single messages.",
    ),
    "cert": _Listed("Operate", "Certificates for trying TLS."),
    "check": _Listed(
        "Operate", "Read every message of a log and report what is damaged or missing."
    ),
    "holds": _Listed("Operate", "Replicas of the state of share groups."),
    "maintain": _Listed(
        "Operate",
        "Delete expired messages and move old ones now, by the topics' configuration.",
    ),
    "metadata": _Listed("Operate", "The metadata of several nodes, as a service."),
    "node": _Listed("Operate", "Look at nodes."),
    "profile": _Listed(
        "Operate", "Look at the profiles: named connections in `~/.config/wings.toml`."
    ),
    "repair": _Listed(
        "Operate",
        "Rebuild a damaged data directory as a new one, as far as possible; list the losses.",
    ),
    "restore": _Listed(
        "Operate",
        "Create a data directory from a backup; `wings serve --data-dir DIR` then serves it.",
    ),
    "serve": _Listed(
        "Operate",
        "Serve a data directory over Arrow Flight and HTTP until SIGTERM or Ctrl-C.",
    ),
    "status": _Listed(
        "Operate",
        "Show a server's version, your rights, its nodes, disk and memory, and what needs you.",
    ),
}
"""The commands of Wings, by name."""


class PluginGroup(TyperGroup):
    """A command group that adds the commands of the entry-point group to its own."""

    # The types of a context and of a command are private to typer, hence `Any`.

    _lists = False
    """Whether commands are only listed, for which none of Wings is imported."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help."""
        self._lists = True
        _shape(ctx, self)
        super().format_help(ctx, formatter)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Return the completions of a command's name."""
        self._lists = True
        return super().shell_complete(ctx, incomplete)

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands, the plugins' among them, sorted; by panel for help."""
        names = {*super().list_commands(ctx), *_found()}
        return sorted(names, key=_place if self._lists else None)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command; None if there is none or it cannot be loaded."""
        own = super().get_command(ctx, cmd_name)
        if own is not None:
            return own
        # Entry points of all distributions are only read for names other than our own commands.
        entry_point = OWN.get(cmd_name) or _found().get(cmd_name)
        if entry_point is None:
            return None
        # Checked beforehand: most modules are imported when the command runs, not when it loads.
        missing = missing_module(entry_point.value.partition(".")[0])
        try:
            if missing:
                command = _not_installed(cmd_name, missing)
            elif self._lists and cmd_name in LISTED:
                panel, line = LISTED[cmd_name]
                return TyperCommand(cmd_name, help=line, rich_help_panel=panel)
            else:
                command = load_command(entry_point)
                _shape(ctx, command)
        except Exception as error:  # noqa: BLE001 - a plugin may fail in any way
            sys.stderr.write(f"wings: {_explain(entry_point, error)}\n")
            return None
        self.add_command(command, cmd_name)
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command named by the arguments; exits with status 1 if it does not load."""
        name = args[0]
        if name in WITHOUT_NUMPY:
            from wings_core.runtime import hide_numpy  # Not needed by the help.

            hide_numpy()
        if self.get_command(ctx, name) is None:
            if name in _found() and not ctx.resilient_parsing:  # Completion fails quietly.
                raise typer.Exit(1)
            if not name.startswith("-") and not ctx.resilient_parsing:
                hint = suggested(name, self.list_commands(ctx))
                ctx.fail(f"No such command {name!r}{hint}")
        return super().resolve_command(ctx, args)


@cache  # The entry points of all distributions take longer to read than the help to write.
def _found() -> dict[str, EntryPoint]:
    """Return entry points by name; of two with one name, the first found."""
    found = dict(OWN)
    for entry_point in entry_points(group=GROUP):
        found.setdefault(entry_point.name, entry_point)
    return found


def _place(name: str) -> tuple[int, str]:
    """Return what names of commands are sorted by."""
    listed = LISTED.get(name)
    return len(PANELS) if listed is None else PANELS.index(listed.panel), name


@cache  # What runs several commands builds each once: that takes longer than most of them run.
def load_command(entry_point: EntryPoint) -> Any:
    """Return the command of an entry point, with the options of the connection.

    Raises:
        TypeError: It leads to neither a function nor a `typer.Typer`.
    """
    target = entry_point.load()
    if not isinstance(target, typer.Typer):
        if not callable(target):
            raise TypeError("it is neither a function nor a typer.Typer")
        app = typer.Typer(add_completion=False, rich_markup_mode=MARKUP)
        app.command(entry_point.name)(target)
        target = app
    command = typer.main.get_command(target)
    command.name = entry_point.name
    add_access_options(command)
    return command


def _shape(context: Any, command: Any) -> None:
    """Have the help show flags without a type."""
    for child in getattr(command, "commands", {}).values():
        _shape(context, child)
    help_option = None if context is None else command.get_help_option(context)
    for option in (*command.params, *filter(None, [help_option])):
        if getattr(option, "is_flag", False):
            option.metavar = ""


def _not_installed(name: str, module: str) -> Any:
    """Return a command that accepts any arguments, and prints what to install."""
    hint = install_hint(module)
    app = typer.Typer(add_completion=False, rich_markup_mode=MARKUP)

    @app.command(
        name,
        help=f"Not installed; needs: {hint}",
        add_help_option=False,
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    )
    def fail() -> None:  # pyright: ignore[reportUnusedFunction] - typer calls it.
        sys.stderr.write(f"wings: {name!r} needs {module}, of an extra: {hint}\n")
        raise typer.Exit(1)

    command = typer.main.get_command(app)
    command.name = name
    return command


def _explain(entry_point: EntryPoint, error: Exception) -> str:
    cause = " ".join(f"{type(error).__name__}: {error}".split())
    return f"the command {entry_point.name!r} ({entry_point.value}) cannot be loaded: {cause}"


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
        from wings_core import tracing_setup
        from wings_core.tracing import client_span

        tracing_setup.start("wings-cli")
        context.call_on_close(tracing_setup.stop)
        context.with_resource(client_span(f"wings {context.invoked_subcommand}"))
