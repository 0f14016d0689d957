"""Arguments and options of `wings share`, and their conversion to a group's configuration."""

from enum import StrEnum
from typing import Annotated, Any

import typer

from wings_client._messages import wire_time
from wings_client.cli.values import parse_offset

GroupArgument = Annotated[str, typer.Argument(metavar="GROUP", help="Name of the share group.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
DlqArgument = Annotated[
    str, typer.Argument(metavar="DLQ_TOPIC", help="The topic of dead letters: full name, or id.")
]
LockOption = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", help="Lock duration: 1 to 43200. Default: 30."),
]
LimitOption = Annotated[
    int | None,
    typer.Option(metavar="N", help="Most deliveries of a message: 1 to 100. Default: 5."),
]
InFlightOption = Annotated[
    int | None,
    typer.Option(metavar="N", help="Most messages of a partition held at once. Default: 2000."),
]
DlqOption = Annotated[
    str | None,
    typer.Option("--dlq", metavar="TOPIC", help="Topic of dead letters, created if missing."),
]
PayloadOption = Annotated[
    bool | None,
    typer.Option("--payload/--no-payload", help="Whether dead letters contain the message."),
]
MemberOption = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Name of this member. Default: a random name."),
]
AnyPartitionOption = Annotated[
    str | None,
    typer.Option(metavar="V", help="Partition value, by the key's type. Default: any."),
]
PartitionOption = Annotated[
    str | None,
    typer.Option(metavar="V", help="Partition value, by the key's type. Default: all."),
]


class Mode(StrEnum):
    """Size of an acquire's deliveries."""

    RECORD_LIMIT = "record_limit"
    BATCH_OPTIMIZED = "batch_optimized"


ModeOption = Annotated[
    Mode | None,
    typer.Option(help="The requested number, or whole batches. Default: record_limit."),
]


class Ordering(StrEnum):
    """Order of processing within a partition."""

    NONE = "none"
    PARTITION = "partition"


OrderingOption = Annotated[
    Ordering | None,
    typer.Option(help="Concurrently, or in order within a partition. Default: none."),
]


DeliverAtOption = Annotated[
    str | None,
    typer.Option(
        "--deliver-at", metavar="COLUMN", help="Timestamp column with the earliest delivery time."
    ),
]


def config_of(
    lock: float | None,
    limit: int | None,
    in_flight: int | None,
    dlq_topic: str | None,
    payload: bool | None,
    mode: Mode | None,
    ordering: Ordering | None,
    deliver_at: str | None,
) -> dict[str, Any]:
    """Return the configuration keys of the given options."""
    given = {
        "lock_duration_ms": None if lock is None else round(lock * 1000),
        "delivery_limit": limit,
        "in_flight_max": in_flight,
        "dlq_topic": dlq_topic,
        "dlq_copy_payload": payload,
        "acquire_mode": None if mode is None else mode.value,
        "ordering": None if ordering is None else ordering.value,
        "deliver_at_column": deliver_at,
    }
    return {key: value for key, value in given.items() if value is not None}


def start_of(text: str) -> object:
    """Parse the start of a group, as in its configuration.

    Raises:
        typer.BadParameter: The text is an offset, or malformed.
    """
    start = parse_offset(text)
    if isinstance(start, int):
        raise typer.BadParameter("expected earliest, latest, or a time", param_hint="--from")
    if isinstance(start, str):
        return start
    return {"timestamp": wire_time(start)}
