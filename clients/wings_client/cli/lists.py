"""`wings status`, lists of what a server has, and profiles: the servers that are used by name."""

import json
from collections import Counter
from importlib.metadata import version
from typing import Annotated, Any, Literal

import typer

from wings_client._arguments import wire_time
from wings_client.cli.app import command_group
from wings_client.cli.endpoint import (
    act,
    connected,
    connected_transport,
    short_name,
    short_namespace,
)
from wings_client.cli.environment import configuration_file
from wings_client.cli.options import (
    DEFAULT,
    Confirmation,
    ConsumerArgument,
    EndpointOption,
    FormatOption,
    NamespaceArgument,
    grouped,
)
from wings_client.cli.output import PARTITIONS_SHOWN_MAX, write_list
from wings_client.cli.profiles import DEFAULT as DEFAULT_PROFILE
from wings_client.cli.profiles import profile_of, profiles
from wings_client.cli.values import count_of, partition_text, partitions_text, printable
from wings_core.contracts.actions import ListNodes
from wings_core.contracts.totals import TOPICS_MAX, HealthBody, NodeStates, TopicTotals
from wings_core.errors import InvalidArgument, NamespaceNotEmpty

consumer = command_group(
    "Look at named consumers, groups included; delete offsets of those gone for good."
)

namespace = command_group("Create, look at and delete namespaces.")

node = command_group("Look at nodes.")

profile = command_group("Look at the profiles: named connections in `~/.config/wings.toml`.")

_MIB = 1024 * 1024


def status(
    *,
    wanted_format: Annotated[
        Literal["text", "json"],
        typer.Option("--format", help="text for people; json is the server's own answer."),
    ] = "text",
    endpoint: EndpointOption = DEFAULT,
) -> None:
    """Show a server's version, your rights, its nodes, disk and memory, and what needs you.

    Needs a token like every command, and shows what that may read; nodes, disk, memory, errors,
    certificate and backups only to operators (`admin=*`).

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
    if (memory := found.get("memory")) is not None:
        keys = ("resident_bytes", "held_bytes", "limit_bytes")
        resident, held, limit = (f"{memory[key] // _MIB:,} MiB" for key in keys)
        _line("memory", f"{resident}; requests hold {held} of {limit}")
    if (rate := found.get("errors_per_second")) is not None:
        _line("errors", f"{rate:g} a second in the last minute")
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


@consumer.command("list")
def list_consumers(
    *, wanted_format: FormatOption = "table", endpoint: EndpointOption = DEFAULT
) -> None:
    """List named consumers by name, with their lag in each topic.

    $ wings consumer list
    """
    with connected(endpoint) as client:
        rows = [
            (each.consumer, short_name(topic.topic), topic.lag, wire_time(topic.committed_at))
            for each in client.consumers()
            for topic in each.topics
        ]
    names = ("consumer", "topic", "lag", "last commit")
    write_list(names, rows, wanted_format, empty="no consumers have committed offsets")


@consumer.command()
def describe(
    name: ConsumerArgument,
    *,
    wanted_format: FormatOption = "table",
    endpoint: EndpointOption = DEFAULT,
) -> None:
    """Show a consumer's offset and lag, of the partitions with the most lag.

    $ wings consumer describe alerts
    """
    with connected(endpoint) as client:
        found = client.consumer_lag(name, limit=PARTITIONS_SHOWN_MAX)
    if not found.topics:
        raise InvalidArgument(f"no consumer {name:.80} has committed offsets")
    write_list(
        ("topic", "partition", "offset", "end", "lag", "last commit"),
        (
            (
                short_name(each.topic),
                partition_text(each.partition),
                each.offset,
                each.next_offset,
                each.lag,
                wire_time(each.committed_at),
            )
            for each in found.partitions
        ),
        wanted_format,
    )
    if wanted_format != "table":
        return
    partitions = sum(each.partitions for each in found.topics)
    where = partitions_text(partitions, len(found.partitions))
    typer.echo(f"{count_of(found.lag, 'message')} behind in {where}")


@consumer.command()
@grouped
def delete(
    name: ConsumerArgument,
    topic: Annotated[
        str | None, typer.Option(metavar="TOPIC", help="Its offsets in this topic alone.")
    ] = None,
    *,
    confirmation: Confirmation,
    endpoint: EndpointOption = DEFAULT,
) -> None:
    """Delete the offsets of a consumer that is gone for good, so that nothing lists its lag.

    Asks for confirmation on a terminal; elsewhere `--yes` is required.

        $ wings consumer delete nightly --yes
    """
    with connected(endpoint, topic or "") as client:
        found = client.committed_offsets(name, topic)
        if not found:
            raise InvalidArgument(f"no consumer {name:.80} has committed offsets")
        question = f"Delete the offsets of {name} in {count_of(len(found), 'partition')}"
        confirmation.ask(question)
        deleted = client.delete_offsets(name, topic)
    typer.echo(f"{name} has no offsets in {count_of(len(deleted), 'partition')} any more")


@namespace.command("list")
def list_namespaces(
    *, wanted_format: FormatOption = "table", endpoint: EndpointOption = DEFAULT
) -> None:
    """List namespaces by name.

    $ wings namespace list
    """
    with connected(endpoint) as client:
        found = client.namespaces()
    write_list(
        ("namespace", "created"),
        ((short_namespace(each.name), wire_time(each.created_at)) for each in found),
        wanted_format,
    )


@namespace.command("describe")
def describe_namespace(
    name: NamespaceArgument,
    *,
    wanted_format: FormatOption = "table",
    endpoint: EndpointOption = DEFAULT,
) -> None:
    """Show how many topics a namespace has, and their messages and bytes.

    $ wings namespace describe default
    """
    sums = Counter[str]()
    with connected_transport(endpoint) as (client, transport):
        topics = [each.name for each in client.topics(name)]
        for some in range(0, len(topics), TOPICS_MAX):
            body = TopicTotals(topics=tuple(topics[some : some + TOPICS_MAX]))
            for each in transport.act("topic-totals", body, repeatable=True):
                sums.update({key: each[key] for key in ("partitions", "rows", "bytes")})
    names = ("namespace", "topics", "partitions", "messages", "bytes")
    row = (short_namespace(name), len(topics), sums["partitions"], sums["rows"], sums["bytes"])
    write_list(names, [row], wanted_format)


@namespace.command("create")
def create_namespace(name: NamespaceArgument, *, endpoint: EndpointOption = DEFAULT) -> None:
    """Create a namespace; topics are created in it by their full names.

    $ wings namespace create shop
    """
    with connected(endpoint) as client:
        created = client.create_namespace(name)
    typer.echo(f"created {short_namespace(created.name)}: {created.name}")


@namespace.command("delete")
@grouped
def delete_namespace(
    name: NamespaceArgument,
    *,
    confirmation: Confirmation,
    endpoint: EndpointOption = DEFAULT,
) -> None:
    """Delete a namespace that has no topics.

    Asks for confirmation on a terminal; elsewhere `--yes` is required.

        $ wings namespace delete shop --yes
    """
    with connected(endpoint) as client:
        topics = client.topics(name)
        if topics:
            raise NamespaceNotEmpty(f"{name} has {count_of(len(topics), 'topic')}: delete these")
        confirmation.ask(f"Delete the namespace {short_namespace(name)}")
        client.delete_namespace(name)
    typer.echo(f"deleted {short_namespace(name)}")


@node.command("list")
def list_nodes(
    *, wanted_format: FormatOption = "table", endpoint: EndpointOption = DEFAULT
) -> None:
    """List the processes that serve the log, with their addresses.

    $ wings node list
    """
    names = ("flight", "http", "kafka", "since")
    write_list(
        names,
        ([each[name] for name in names] for each in act(endpoint, "list-nodes", ListNodes())),
        wanted_format,
    )


@node.command("describe")
def describe_node(
    address: Annotated[
        str | None,
        typer.Argument(metavar="[ADDRESS]", help="Flight address of one node. Default: all."),
    ] = None,
    *,
    wanted_format: FormatOption = "table",
    endpoint: EndpointOption = DEFAULT,
) -> None:
    """Show the version, processor, memory, disk and certificate of nodes, those gone too.

    Memory and disk are in MiB, the processor in cores that the node uses and has.

        $ wings node describe
    """
    found = act(endpoint, "node-states", NodeStates())
    chosen = [each for each in found if address in (None, each.get("flight"))]
    if not chosen:
        raise InvalidArgument(f"no node {address:.80}: `wings node list` has their addresses")
    names = (
        "flight", "state", "version", "since", "busy cores", "cores", "memory MiB",
        "memory limit MiB", "disk free MiB", "certificate ends",
    )  # fmt: skip
    write_list(names, map(_node_row, chosen), wanted_format)


def _node_row(state: dict[str, Any]) -> tuple[str | int | None, ...]:
    disk: dict[str, int] = state.get("disk") or {}
    busy = state.get("busy_cores")
    is_up = "version" in state
    return (
        state.get("flight"),
        "answers" if is_up else "silent" if state.get("silent") else state.get("error"),
        state.get("version"),
        state.get("since"),
        None if busy is None else f"{busy:.2f}",
        state.get("cores"),
        _mib(state.get("memory_bytes")),
        _mib(state.get("memory_limit_bytes")),
        _mib(disk.get("free_bytes")),
        state.get("certificate_ends_at"),
    )


def _mib(size: int | None) -> int | None:
    return None if size is None else size // _MIB


@profile.command("list")
def list_profiles(*, wanted_format: FormatOption = "table") -> None:
    """List the profiles by name, with their endpoints.

    $ wings profile list
    """
    write_list(
        ("profile", "endpoint"),
        ((name, keys.get("endpoint")) for name, keys in sorted(profiles().items())),
        wanted_format,
        empty=f"no profiles; write {configuration_file()}",
    )


@profile.command()
def show(
    name: Annotated[
        str, typer.Argument(metavar="[NAME]", help="Name of the profile.")
    ] = DEFAULT_PROFILE,
    *,
    wanted_format: FormatOption = "table",
) -> None:
    """Show a profile's keys.

    $ wings profile show prod
    """
    write_list(("key", "value"), profile_of(name).items(), wanted_format)
