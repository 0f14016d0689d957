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
from typing import Annotated, Any, Final

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


def command_group(text: str, cls: type[TyperGroup] | None = None) -> typer.Typer:
    """Return a group of commands with a help, which is shown where none of them is named."""
    return typer.Typer(cls=cls, no_args_is_help=True, rich_markup_mode=MARKUP, help=text)


PANELS = {
    "Data": ("consume", "export", "fetch", "gather", "ingest", "push", "sql", "tail"),
    "Queue": ("share",),
    "Admin": ("consumer", "group", "namespace", "token", "topic"),
    "Operate": (
        "backup", "bench", "cert", "check", "holds", "maintain", "metadata", "node", "profile",
        "repair", "restore", "serve", "status",
    ),
}  # fmt: skip
"""Panels of the help with their commands, in order; those of other packages come after them."""

LISTED = {
    "backup": "Take a backup of a running server: `wings backup DEST`; list, verify and prune "
    "backups.",
    "bench": "Measure a running server from here: throughput, and latency of single messages.",
    "cert": "Certificates for trying TLS.",
    "check": "Read every message of a log and report what is damaged or missing.",
    "consume": "Show the messages of a topic as they arrive, resuming where the last run ended.",
    "consumer": "Look at named consumers, groups included; delete offsets of those gone for good.",
    "export": "Write a topic's messages to a file of Parquet, Arrow, CSV or JSON lines.",
    "fetch": "Fetch messages of one or all partitions, waiting if there are too few.",
    "gather": "Send one request to many partitions, topics or servers, and show replies as they "
    "arrive.",
    "group": "Look at consumer groups, and reset them.",
    "holds": "Replicas of the state of share groups.",
    "ingest": "Turn files that a queue announces into messages, each exactly once, on Spark.",
    "maintain": "Delete expired messages and move old ones now, by the topics' configuration.",
    "metadata": "The metadata of several nodes, as a service.",
    "namespace": "Create, look at and delete namespaces.",
    "node": "Look at nodes.",
    "profile": "Look at the profiles: named connections in `~/.config/wings.toml`.",
    "push": "Push the rows of files to a topic, each file whole or not at all.",
    "repair": "Rebuild a damaged data directory as a new one, as far as possible; list the losses.",
    "restore": "Create a data directory from a backup; `wings serve --data-dir DIR` then "
    "serves it.",
    "serve": "Serve a data directory over Arrow Flight and HTTP until SIGTERM or Ctrl-C.",
    "share": "Share a topic among workers, as a queue.",
    "sql": "Run one SQL statement over topics, which are its tables; without one, a shell "
    "for many.",
    "status": "Show a server's version, your rights, its nodes, disk and memory, and what "
    "needs you.",
    "tail": "Show the messages of all partitions of a topic as they arrive.",
    "token": "Create, alter, list and revoke the tokens that callers present.",
    "topic": "Create, list, describe, alter and delete topics.",
}
"""The first paragraph of the help of each command of Wings."""

PANEL_OF = {name: panel for panel, names in PANELS.items() for name in names}
"""The panel of each command of Wings."""


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
        names = sorted({*super().list_commands(ctx), *_found()})
        if not self._lists:
            return names
        order = list(PANEL_OF)
        return sorted(names, key=lambda name: order.index(name) if name in order else len(order))

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
                panel = PANEL_OF[cmd_name]
                return TyperCommand(cmd_name, help=LISTED[cmd_name], rich_help_panel=panel)
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
