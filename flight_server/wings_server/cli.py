"""The commands that the server adds to `wings`: `serve` and `check`.

A command imports its parts when it runs, since `wings --help` imports this module too.
"""

import gc
import os
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wings_core.errors import WingsError
from wings_core.runtime import hidden, hide_numpy, hide_pandas
from wings_server.flags import COMMON, MetadataUrl, takes

if TYPE_CHECKING:
    from wings_core.check import CheckReport

FOLIOS_SHOWN_MAX = 10
"""Most unreferenced files that the report of a check names."""


@takes(
    "data_dir",
    "metadata_url",
    "metadata",
    "hot",
    "hold_replicas",
    "holds",
    "remote",
    "iceberg_catalog",
    "flight",
    "advertise",
    "http",
    "kafka",
    "kafka_advertised",
    "kafka_partitions",
    "processes",
    "cluster_ca",
    "allowed_host",
    *COMMON,
)
def serve(**flags: Any) -> None:
    """Serve a data directory over Arrow Flight and HTTP until SIGTERM or Ctrl-C.

    With --metadata-url and --hot, and without --data-dir, PostgreSQL and the object store hold
    everything, and any number of servers are nodes of one log.

    When ready, it prints one line with the actual ports on standard output; logs go to standard
    error. On a stop, received batches are committed and acknowledged, or rejected.

    Every flag may also be set in the environment (`WINGS_FLIGHT=0.0.0.0:7777`) or in the file
    (`flight = "0.0.0.0:7777"`); limits only there (`WINGS_LIMITS__WIRE_ROWS_MAX`, or a table
    `[limits]`). Flags take precedence over the environment, and that over the file.
    """
    gc.disable()  # Until the server starts: what imports create stays.
    # Before anything loads pyarrow.
    from wings_server.resources import load_bounded

    if not _may_serve_kafka(flags):
        hide_numpy()
    load_bounded()
    from wings_server.settings import load

    settings = load(flags.pop("config"), flags)
    hide_pandas()
    with hidden("rich"):  # It would be loaded for tracebacks, which logs have in plain text.
        import structlog  # noqa: F401 # pyright: ignore[reportUnusedImport]
    if settings.processes == 1:
        from wings_server.process import run

        run(settings)
    from wings_server import lifecycle
    from wings_server.processes.parent import Processes

    lifecycle.run(Processes(settings))


def _may_serve_kafka(flags: dict[str, Any]) -> bool:
    """Return whether the settings may turn on Kafka's protocol, which needs numpy."""
    is_set = any(name.upper() == "WINGS_KAFKA" for name in os.environ)
    return is_set or flags["kafka"] is not None or flags["config"] is not None


def check(
    data_dir: Annotated[
        Path | None,
        typer.Argument(
            metavar="[DATA_DIR]",
            help="Data directory of a server; omit it for nodes without one, with --metadata-url.",
        ),
    ] = None,
    metadata_url: MetadataUrl = None,
    hot: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Without DATA_DIR, the object store of new messages. Default: that of the nodes.",
        ),
    ] = None,
    remote: Annotated[
        str | None,
        typer.Option(metavar="URL", help="And that of old messages. Default: that of the nodes."),
    ] = None,
) -> None:
    """Read every message of a log and report what is damaged or missing.

    The databases of a data directory are checked too: metadata, and the state of share groups.
    Writes nothing. It may run beside the log's servers.

    Exit status: 0 no problems, 1 problems were found, 2 the log could not be checked.
    """
    url = metadata_url or os.environ.get("WINGS_METADATA_URL")
    if data_dir is None and url is None:
        raise typer.BadParameter(
            "name the data directory, or with --metadata-url the PostgreSQL of nodes without one",
            param_hint="DATA_DIR",
        )
    if data_dir is not None and (hot or remote):
        raise typer.BadParameter("a data directory knows its own", param_hint="--hot, --remote")
    try:
        report = _check(data_dir, url, hot, remote)
    except WingsError as error:
        sys.stderr.write(f"wings: {error.message}\n")
        raise typer.Exit(2) from None
    typer.echo("\n".join(_report_lines(str(data_dir or "nodes"), report)))
    raise typer.Exit(0 if report.ok else 1)


def _check(
    data_dir: Path | None, metadata_url: str | None, hot: str | None, remote: str | None
) -> "CheckReport":
    from wings_core.check import check_directory, check_nodes

    with progress("checking {0}: {1}") as shown:
        told = partial(shown, "pages")
        if data_dir is not None:
            return check_directory(data_dir, metadata_url, told)
        assert metadata_url is not None
        return check_nodes(metadata_url, hot, remote, told)


@contextmanager
def progress(text: str) -> Generator[Callable[[str, int], None]]:
    """Show progress on standard error, if it is a terminal.

    Args:
        text: Format of the line; `{0}` is the current item, `{1}` the amount done.
    """
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as shown:
        task = shown.add_task("")
        yield lambda what, done: shown.update(task, description=text.format(what, f"{done:,}"))


def _report_lines(name: str, report: "CheckReport") -> Generator[str]:
    yield (
        f"{name}: {_count(report.topics, 'topic')}, {_count(report.partitions, 'partition')}, "
        f"{_count(report.pages, 'page')}, {_count(report.rows, 'row')}, "
        f"{_count(report.bytes, 'byte')}, {_count(report.stages, 'stage')} not published"
    )
    for problem in report.problems:
        yield f"problem: {problem}"
    hidden = report.problems_total - len(report.problems)
    if hidden:
        yield f"and {_count(hidden, 'further problem')}"
    folios = report.unreferenced_folios
    if folios:
        shown = ", ".join(folios[:FOLIOS_SHOWN_MAX])
        more = ", …" if len(folios) > FOLIOS_SHOWN_MAX else ""
        yield f"{_count(len(folios), 'file')} not in use, for a server to delete: {shown}{more}"
    yield "all right" if report.ok else f"{_count(report.problems_total, 'problem')} found"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
