"""Arguments and options of several commands, and the question before a deletion.

Options that travel together are fields of a frozen dataclass, which `grouped` makes options of the
command that takes it.
"""

import functools
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from typing import Annotated, Any

import pyarrow as pa
import typer

from wings_client import Topic
from wings_client.cli import completion
from wings_client.cli.output import PARTITIONS_SHOWN_MAX, Format
from wings_client.cli.values import chosen_columns, duration, one_partition
from wings_core.names import DEFAULT_NAMESPACE

DEFAULT = "grpc://127.0.0.1:7777"
"""Default address of `wings serve`."""

TopicArgument = Annotated[
    str,
    typer.Argument(
        metavar="TOPIC",
        help="Full name, or id in the default namespace.",
        autocompletion=completion.topics,
    ),
]
EndpointOption = Annotated[
    str,
    typer.Option(
        "--endpoint",
        envvar="WINGS_ENDPOINT",
        metavar="grpc://HOST:PORT",
        help="Address of the server, or of several nodes, separated by commas.",
    ),
]


def _full_namespace(name: str | None) -> str | None:
    if name is None or "/" in name:
        return name
    return f"tenants/{DEFAULT_NAMESPACE.tenant}/namespaces/{name}"


NamespaceOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAMESPACE",
        callback=_full_namespace,
        help="Full name, or id in the default tenant. Default: all namespaces.",
    ),
]
NamespaceArgument = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        callback=_full_namespace,
        help="Full name, or id in the default tenant.",
    ),
]
AllPartitionsOption = Annotated[
    bool,
    typer.Option("--all-partitions", help=f"Show all, not the first {PARTITIONS_SHOWN_MAX} alone."),
]
PartitionOption = Annotated[
    str | None,
    typer.Option(
        metavar="V",
        help="Partition value, by the key's type: 7, JFK, true; base64 for binary. Default: all.",
    ),
]
ColumnsOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAMES",
        help="Columns to show, comma-separated; repeatable.",
        autocompletion=completion.columns,
    ),
]
FilterOption = Annotated[
    str | None, typer.Option("--filter", metavar="SQL", help="Show only matching messages.")
]
SystemColumnsOption = Annotated[
    bool,
    typer.Option(
        "--system-columns",
        help="Show __offset and __timestamp in every format, and __partition for all partitions.",
    ),
]
FormatOption = Annotated[
    Format,
    typer.Option("--format", help="table for people; the others write only data."),
]
IdleOption = Annotated[
    float | None,
    typer.Option(
        metavar="DURATION",
        parser=duration("ms", 1),
        help="End after this long without a message: 500ms, 30s, 2h. Default: never.",
    ),
]
ConsumerArgument = Annotated[
    str,
    typer.Argument(
        metavar="NAME", help="Name of the consumer.", autocompletion=completion.consumers
    ),
]
GroupArgument = Annotated[
    str,
    typer.Argument(
        metavar="GROUP",
        help="Name of the share group.",
        autocompletion=completion.share_groups,
    ),
]


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command with an option for each field of its dataclass parameters."""
    signature = inspect.signature(command, eval_str=True)
    groups: dict[str, Any] = {}
    parameters: list[inspect.Parameter] = []
    for name, parameter in signature.parameters.items():
        group: Any = parameter.annotation
        if is_dataclass(group):
            groups[name] = group
            found = inspect.signature(groups[name], eval_str=True).parameters
            # Those of the class itself come first in the help.
            parameters += [found[each] for each in {**groups[name].__annotations__, **found}]
        else:
            parameters.append(parameter)

    @functools.wraps(command)
    def called(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{each.name: given.pop(each.name) for each in fields(group)})
        command(**given)

    typed: Any = called
    typed.__signature__ = signature.replace(parameters=parameters)
    return called


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingOptions:
    """Options of the columns and rows to read."""

    columns: ColumnsOption = None
    predicate: FilterOption = None
    system_columns: SystemColumnsOption = False

    def arguments(self, schema: pa.Schema) -> dict[str, Any]:
        """Return the keyword arguments of a read of a topic of a schema."""
        return {
            "columns": chosen_columns(self.columns, schema),
            "filter": self.predicate,
            "system_columns": self.system_columns,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowingOptions(ReadingOptions):
    """Options of a display of messages as they arrive."""

    wanted_format: FormatOption = "table"
    timeout: IdleOption = None

    def arguments(self, schema: pa.Schema) -> dict[str, Any]:
        """Return the keyword arguments, always with system columns, which `Display` selects."""
        return {**ReadingOptions.arguments(self, schema), "system_columns": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberOptions:
    """Options of a member of a share group."""

    member: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Name of this member. Default: a random name."),
    ] = None
    partition: PartitionOption = None
    timeout: IdleOption = None

    def arguments(self, topic: Topic) -> dict[str, Any]:
        """Return the keyword arguments of a share consumer or worker."""
        return {
            "member": self.member,
            "partition": one_partition(self.partition, topic),
            "timeout": self.timeout,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmation:
    """Options of a command that deletes or moves something, and its question."""

    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be done, and change nothing.")
    ] = False

    @property
    def is_silent(self) -> bool:
        """Whether the question is not shown."""
        return self.yes and not self.dry_run

    def ask(self, question: str) -> None:
        """Ask at a terminal, on standard error, whether to go on; elsewhere `--yes` is required.

        With `--dry-run`, only says what would be done.

        Args:
            question: Sentence without its mark, such as `Delete t with 3 messages`.

        Raises:
            typer.Exit: `--dry-run` is given, with status 0.
            typer.Abort: The answer was no.
            typer.BadParameter: There is no terminal to ask at, and no `--yes`.
        """
        done = f"{question[0].lower()}{question[1:]}"
        if self.dry_run:
            typer.echo(f"would {done}")
            raise typer.Exit
        if not self.yes and not sys.stdin.isatty():
            raise typer.BadParameter(
                f"no terminal to ask for confirmation: give --yes to {done}", param_hint="--yes"
            )
        if not self.yes:
            typer.confirm(f"{question}?", abort=True, err=True)
