"""What the commands of `wings share` take: arguments, options, and the configuration they make."""

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
    typer.Option(metavar="SECONDS", help="How long a message is held: 1 to 43200. Default: 30."),
]
LimitOption = Annotated[
    int | None,
    typer.Option(metavar="N", help="How often a message is delivered: 1 to 100. Default: 5."),
]
InFlightOption = Annotated[
    int | None,
    typer.Option(metavar="N", help="Most messages of a partition held at once. Default: 2000."),
]
DlqOption = Annotated[
    str | None,
    typer.Option("--dlq", metavar="TOPIC", help="Topic of dead letters, created if not there."),
]
PayloadOption = Annotated[
    bool | None,
    typer.Option("--payload/--no-payload", help="Whether dead letters hold their message."),
]
MemberOption = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="What this member calls itself. Default: a random name."),
]
AnyPartitionOption = Annotated[
    str | None,
    typer.Option(metavar="V", help="One partition, read by the key's type. Default: any."),
]
PartitionOption = Annotated[
    str | None,
    typer.Option(metavar="V", help="One partition, read by the key's type. Default: all."),
]


class Mode(StrEnum):
    """How many messages an acquire delivers."""

    RECORD_LIMIT = "record_limit"
    BATCH_OPTIMIZED = "batch_optimized"


ModeOption = Annotated[
    Mode | None,
    typer.Option(help="Exactly what was asked for, or whole batches. Default: record_limit."),
]


class Ordering(StrEnum):
    """Whether messages of a partition are worked on one after another."""

    NONE = "none"
    PARTITION = "partition"


OrderingOption = Annotated[
    Ordering | None,
    typer.Option(help="Side by side, or a partition's messages in their order. Default: none."),
]


DeliverAtOption = Annotated[
    str | None,
    typer.Option(
        "--deliver-at", metavar="COLUMN", help="A timestamp column: no message before its time."
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
    """Return the configuration that options ask for; what is not given is not in it."""
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
    """Return where a group begins, as its configuration says it.

    Raises:
        typer.BadParameter: It is an offset, or nothing that can be read.
    """
    start = parse_offset(text)
    if isinstance(start, int):
        raise typer.BadParameter("expected earliest, latest, or a time", param_hint="--from")
    if isinstance(start, str):
        return start
    return {"timestamp": wire_time(start)}
