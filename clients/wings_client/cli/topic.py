"""`wings topic`: create, list, describe, alter and delete topics."""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, cast

import pyarrow as pa
import typer

from wings_client import Client, Topic
from wings_client._arguments import build
from wings_client.cli.app import command_group
from wings_client.cli.endpoint import connected, connected_transport, short_name
from wings_client.cli.options import (
    DEFAULT,
    AllPartitionsOption,
    Confirmation,
    EndpointOption,
    FormatOption,
    NamespaceOption,
    TopicArgument,
    grouped,
)
from wings_client.cli.output import write_list, write_partitions
from wings_client.cli.values import (
    columns_text,
    comma_names,
    file_options,
    messages_in,
    parse_fields,
    parse_settings,
    partition_text,
    printable,
)
from wings_core.arrow_types import fields_of
from wings_core.contracts.actions import AlterTopic, TopicBody
from wings_core.kafka_topics import BINARY_SCHEMA, PARTITION_COLUMN, topic_id_of
from wings_core.partitions import JsonScalar
from wings_core.type_names import type_name

app = command_group("Create, list, describe, alter and delete topics.")

SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="A configuration key with its value as JSON: retention_on_acceptance=true.",
    ),
]


KafkaPartitionsOption = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Number of partitions of a topic for Kafka's clients."),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaOptions:
    """Options of the columns of a topic."""

    field: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME:TYPE",
            help="A column: its name, Arrow's name of its type, and optionally 'not null'.",
        ),
    ] = None
    like: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            exists=True,
            dir_okay=False,
            help="A file with the columns: Parquet, Arrow, CSV, JSON. --field then sets a type.",
        ),
    ] = None
    columns: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAMES", help="With --like: columns to take, comma-separated; repeatable."
        ),
    ] = None
    exclude: Annotated[
        list[str] | None, typer.Option(metavar="NAMES", help="With --like: columns to leave out.")
    ] = None

    def schema(self) -> pa.Schema:
        """Return the columns.

        Raises:
            typer.BadParameter: Options are missing, malformed or contradictory.
            WingsError: The file cannot be read.
        """
        fields = parse_fields(self.field or [])
        if self.like is None:
            if self.columns or self.exclude:
                raise typer.BadParameter("--columns and --exclude go with --like")
            if not fields:
                raise typer.BadParameter("give --field for each column, or --like FILE")
            return pa.schema(list(fields.values()))
        from wings_client.files import infer_schema
        from wings_client.files.parts import ChosenColumns

        chosen = ChosenColumns(comma_names(self.columns) or None, comma_names(self.exclude))
        with file_options():
            return infer_schema(self.like, fields, chosen)


@app.command()
@grouped
def create(
    name: TopicArgument,
    *,
    columns: SchemaOptions,
    partition_key: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN", help="Column whose value determines the partition of a row."
        ),
    ] = None,
    kafka_partitions: KafkaPartitionsOption = None,
    settings: SetOption = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Accept an identical existing topic.")
    ] = False,
    endpoint: EndpointOption = DEFAULT,
) -> None:
    r"""Create a topic, with columns given individually or taken from a file.

    Individually:

        $ wings topic create readings --partition-key sensor \
            --field sensor:string --field 'celsius:double not null' \
            --field 'at:timestamp[us, tz=UTC]'

    From a file:

        $ wings topic create flights --like flights.parquet --partition-key origin

    For Kafka's clients, with binary values; with columns, a value is a JSON object of them:

        $ wings topic create Orders.Paid --kafka-partitions 6
    """
    config: dict[str, Any] = dict(parse_settings(settings or []))
    if kafka_partitions is None:
        schema = columns.schema()
    else:
        name, schema, config["kafka"] = _kafka_topic(name, columns, kafka_partitions)
        partition_key = partition_key or PARTITION_COLUMN
    with connected(endpoint) as client:
        created = client.create_topic(
            name, schema, partition_key, config, if_not_exists=if_not_exists
        )
    typer.echo(f"{short_name(created.name)}: {columns_text(created)}")


def _kafka_topic(
    name: str, columns: SchemaOptions, partitions: int
) -> tuple[str, pa.Schema, dict[str, Any]]:
    """Return a Kafka topic's name, columns and configuration key."""
    config: dict[str, Any] = {"partitions": partitions, "value": "binary"}
    if "/" not in name and topic_id_of(name) != name:
        name, config["name"] = topic_id_of(name), name
    if not columns.field and columns.like is None:
        return name, BINARY_SCHEMA, config
    schema = columns.schema()
    if PARTITION_COLUMN not in schema.names:
        schema = schema.insert(0, BINARY_SCHEMA.field(PARTITION_COLUMN))
    return name, schema, {**config, "value": "json"}


@app.command("list")
def list_topics(
    *,
    namespace: NamespaceOption = None,
    wanted_format: FormatOption = "table",
    endpoint: EndpointOption = DEFAULT,
) -> None:
    """List topics by name.

    $ wings topic list --namespace tenants/default/namespaces/default
    """
    with connected(endpoint) as client:
        topics = client.topics(namespace)
    write_list(
        ("topic", "partition key", "columns", "created"),
        (
            (
                short_name(each.name),
                each.partition_key,
                len(each.schema),
                _time_text(each.created_at),
            )
            for each in topics
        ),
        wanted_format,
        empty="no topics; create one with `wings topic create`",
    )


@app.command()
def describe(
    name: TopicArgument,
    *,
    all_partitions: AllPartitionsOption = False,
    wanted_format: FormatOption = "table",
    endpoint: EndpointOption = DEFAULT,
) -> None:
    """Show a topic's columns, configuration, table, partitions and tiers.

    As JSON, all of that is one object; in the other formats of data, its partitions are written.

    $ wings topic describe flights
    """
    with connected_transport(endpoint, name) as (client, transport):
        body = TopicBody(topic=name)
        described = transport.act("describe-topic", body, repeatable=True)
        topic = Topic.from_json(described)
        if wanted_format == "json":
            for key in ("partitions", "tiers"):
                action = f"{key.removesuffix('s')}-states"
                described[key] = transport.act(action, body, repeatable=True)
            typer.echo(json.dumps(described, indent=2, ensure_ascii=False))
            return
        states = client.partitions(topic)
        tiers = transport.act("tier-states", body, repeatable=True)
    if wanted_format == "table":
        _print_topic(topic, described.get("table"))
    total = sum(state.bytes for state in states)
    write_partitions(
        ("partition", "start", "next", "bytes", "last message"),
        [
            (
                partition_text(each.partition),
                each.log_start_offset,
                each.next_offset,
                each.bytes,
                _time_text(each.last_timestamp),
            )
            for each in states
        ],
        wanted_format,
        f"{messages_in(states):,} messages, {total:,} bytes",
        all_partitions=all_partitions,
    )
    if wanted_format == "table":
        _print_tiers(tiers)


@app.command()
@grouped
def alter(
    name: TopicArgument,
    *,
    add: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME:TYPE", help="A column to add, null in existing rows."),
    ] = None,
    widen: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME:TYPE", help="A column to widen to this type."),
    ] = None,
    nullable: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A column to make nullable."),
    ] = None,
    kafka_partitions: KafkaPartitionsOption = None,
    settings: SetOption = None,
    confirmation: Confirmation,
    endpoint: EndpointOption = DEFAULT,
) -> None:
    """Change a topic's configuration, or extend its schema; existing rows do not change.

    Other configuration keys do not change; null selects a key's default.

    Asks for confirmation on a terminal where another retention deletes messages, or the topic
    loses its table; elsewhere `--yes` is required then.

    Integers and floats widen within their kind, decimals in precision. Producers may continue to
    push with any schema version. Changes already in effect are ignored.

        $ wings topic alter readings --add humidity:double --widen station:int64

        $ wings topic alter jobs --set retention_on_acceptance=true --set retention_ms=null
    """
    config: dict[str, Any] = dict(parse_settings(settings or []))
    if kafka_partitions is not None:
        config["kafka"] = {"partitions": kafka_partitions}
    if not (add or widen or nullable or config):
        raise typer.BadParameter("give --add, --widen, --nullable, --kafka-partitions or --set")
    added, widened = parse_fields(add or []), parse_fields(widen or [])
    for field in (*added.values(), *widened.values()):
        if not field.nullable:
            raise typer.BadParameter(f"column {field.name!r:.80}: leave out 'not null'")
    build(AlterTopic, "alter_topic", topic=name, config=config)  # Refused before it is asked for.
    with connected(endpoint, name) as client:
        gone = "" if confirmation.is_silent else _deleted_by(client, client.topic(name), config)
        if gone or confirmation.dry_run:
            confirmation.ask(f"Change {short_name(name)} and delete {gone or 'no message'}")
        if config:
            configured = client.alter_topic(name, config)
            for key in config:
                typer.echo(f"{key}: {json.dumps(configured.config[key])}")
            if "table" in config and configured.config["table"] is None:
                typer.echo(
                    "its Iceberg table, if it has one, is dropped from the catalog by the next "
                    "maintenance; the rows stay in the log",
                    err=True,
                )
        if not (add or widen or nullable):
            return
        altered = client.alter_schema(
            name,
            add=pa.schema(list(added.values())),
            widen=pa.schema(list(widened.values())),
            nullable=nullable or [],
        )
    typer.echo(
        f"{short_name(altered.name)}: {columns_text(altered)} (version {altered.schema_version})"
    )


@app.command()
@grouped
def delete(
    name: TopicArgument,
    *,
    confirmation: Confirmation,
    endpoint: EndpointOption = DEFAULT,
) -> None:
    """Delete a topic with all its messages.

    Asks for confirmation on a terminal; elsewhere `--yes` is required.

        $ wings topic delete flights --yes
    """
    with connected(endpoint, name) as client:
        topic = client.topic(name)
        rows = 0 if confirmation.is_silent else messages_in(client.partitions(topic))
        question = f"Delete {short_name(topic.name)} with {rows:,} messages"
        confirmation.ask(question)
        client.delete_topic(topic)
    typer.echo(f"{short_name(topic.name)} is deleted")


def _deleted_by(client: Client, topic: Topic, config: Mapping[str, Any]) -> str:
    """Return what a change deletes; empty if nothing."""
    found = [_expired_by(client, topic, config)]
    key = "retention_on_acceptance"
    if config.get(key) and not topic.config[key] and client.share_groups(topic):
        found.append("the messages that all its share groups have finished")
    if "table" in config and config["table"] is None and topic.config["table"]:
        found.append("its Iceberg table")
    return " and ".join(filter(None, found))


def _expired_by(client: Client, topic: Topic, config: Mapping[str, Any]) -> str:
    """Return about how much a shorter retention deletes; empty if nothing."""
    shorter: dict[str, int] = {}
    for key in ("retention_ms", "retention_bytes"):
        new, old = config.get(key), cast("int | None", topic.config[key])
        if isinstance(new, int) and new > 0 and (old is None or new < old):
            shorter[key] = new
    states = client.partitions(topic) if shorter else []
    kept_from: Mapping[JsonScalar, int] = {}
    if states and "retention_ms" in shorter:
        with suppress(OverflowError):  # Before the year 1: nothing is as old.
            until = datetime.now(UTC) - timedelta(milliseconds=shorter["retention_ms"])
            kept_from = client.resolve_offsets(topic, until)
    rows = size = 0
    for state in states:
        count = state.next_offset - state.log_start_offset
        expired = max(0, kept_from.get(state.partition, 0) - state.log_start_offset)
        above = max(0, state.bytes - shorter.get("retention_bytes", state.bytes))
        part = max(expired / max(1, count), above / max(1, state.bytes))
        rows, size = rows + round(part * count), size + round(part * state.bytes)
    return f"about {rows:,} messages of {size:,} bytes" if rows else ""


def _print_topic(topic: Topic, table: Mapping[str, Any] | None) -> None:
    """Print a topic's description, which ends with its columns."""
    typer.echo(f"Topic: {topic.name}")
    typer.echo(f"UUID: {topic.uuid}")
    typer.echo(f"Created: {_time_text(topic.created_at)}")
    typer.echo(f"Partition key: {printable(topic.partition_key or '-')}")
    typer.echo(f"Schema version: {topic.schema_version}")
    for key, value in topic.config.items():
        if value is not None and value is not False:
            typer.echo(f"{key}: {json.dumps(value)}")
    _print_table(table)
    typer.echo()
    write_list(
        ("column", "type", "null"),
        (
            (each.name, type_name(each.type), "yes" if each.nullable else "no")
            for each in fields_of(topic.schema)
        ),
    )
    typer.echo()


def _print_table(table: Mapping[str, Any] | None) -> None:
    """Print the state of a topic's Iceberg table, if it has one."""
    if table is None:
        return
    typer.echo(f"Iceberg table: {table['identifier']}, {table['rows']:,} rows")
    typer.echo(f"  metadata_location: {table['metadata_location'] or '-'}")
    typer.echo(f"  snapshot_id: {table['snapshot_id'] or '-'}")
    behind = "none"
    if table["lag_rows"]:
        behind = f"{table['lag_rows']:,}, the oldest {table['lag_ms'] // 1_000:,} s old"
    typer.echo(f"  rows that are not in it yet: {behind}")


def _print_tiers(tiers: list[dict[str, Any]]) -> None:
    """Print a line for each tier, over all partitions; none if all pages are in the hot tier."""
    if all(state["tier"] == "hot" for state in tiers):
        return
    for tier in ("hot", "remote"):
        found = [state for state in tiers if state["tier"] == tier]
        rows, pages, size = (
            sum(state[key] for state in found) for key in ("rows", "pages", "bytes")
        )
        typer.echo(f"{tier} tier: {rows:,} messages in {pages:,} pages, {size:,} bytes")


def _time_text(time: datetime | None) -> str | None:
    return None if time is None else time.isoformat(sep=" ", timespec="seconds")
