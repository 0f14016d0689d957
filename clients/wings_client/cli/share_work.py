"""`wings share work` runs a command for each message of a group; `dlq` shows dead letters."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from importlib import import_module
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, Literal

import pyarrow as pa
import typer

from wings_client import Client, Delivery, Message, Reject, Release, ShareGroup, Worker
from wings_client.cli.app import command_group
from wings_client.cli.endpoint import RETRY, connected, short_name
from wings_client.cli.options import (
    DEFAULT,
    ColumnsOption,
    Confirmation,
    EndpointOption,
    FilterOption,
    FormatOption,
    GroupArgument,
    MemberOptions,
    TopicArgument,
    grouped,
)
from wings_client.cli.output import check_output, write_all, write_list
from wings_client.cli.values import (
    chosen_columns,
    counts_text,
    duration,
    messages_in,
    partition_text,
)
from wings_core.errors import InvalidArgument, TopicNotFound
from wings_core.json_rows import encode_lines
from wings_core.partitions import JsonScalar

REJECT_STATUS = 65
"""Default exit status that rejects: `EX_DATAERR` of sysexits.h, incorrect data."""

TAIL_BYTES = 4_096
"""Bytes of a command's last standard error output kept to find its last line."""

DlqArgument = Annotated[
    str, typer.Argument(metavar="DLQ_TOPIC", help="The topic of dead letters: full name, or id.")
]

LETTERS_MAX = 100
"""Dead letters that `dlq show` shows by default."""

LETTER_COLUMNS = [
    "source_topic",
    "source_partition",
    "source_offset",
    "share_group",
    "delivery_count",
    "reason",
    "error",
    "dead_lettered_at",
]
"""Columns that `dlq show` shows by default."""

dlq = command_group("Show dead letters, and send them back.")


class Commands:
    """The running commands, each in its own process group, unaffected by a terminal's Ctrl-C.

    Args:
        command: Run by the shell.
        reject_status: The exit status that rejects.
        topic: The topic's full name.
    """

    def __init__(self, command: str, reject_status: int, topic: str) -> None:
        self._command = command
        self._reject_status = reject_status
        self._topic = topic
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._killed = False

    def handle(self, taken: Message | Delivery) -> None:
        """Run the command for a message, or for all of a delivery; blocks until it has ended.

        Raises:
            Reject: The command ended with `reject_status`.
            Release: The command ended with another status than 0, or by a signal.
        """
        first, last = _offsets(taken)
        variables = {
            "WINGS_TOPIC": self._topic,
            "WINGS_PARTITION": _variable(taken.partition),
            "WINGS_OFFSET": str(first),
            "WINGS_END_OFFSET": str(last),
            "WINGS_DELIVERY_COUNT": str(taken.delivery_count),
        }
        with tempfile.TemporaryFile() as row:
            row.writelines(encode_lines(taken.batch if isinstance(taken, Message) else taken.rows))
            row.seek(0)
            with self._lock:
                if self._killed:
                    raise Release
                child = subprocess.Popen(
                    self._command,
                    shell=True,
                    env={**os.environ, **variables},
                    stdin=row,
                    stderr=subprocess.PIPE,
                    start_new_session=True,
                )
                self._running.add(child)
        try:
            said = _passed_on(child)
            status = child.wait()
        finally:
            with self._lock:
                self._running.discard(child)
        if status == 0:
            return
        how = f"exit status {status}" if status > 0 else f"killed by {signal.Signals(-status).name}"
        which = f"message {first}" if first == last else f"messages {first} to {last}"
        typer.echo(f"{which}{_of(taken)}: {how}", err=True)
        raise (Reject if status == self._reject_status else Release)(said or how)

    def kill(self) -> None:
        """Kill all commands, with their child processes, and start no more."""
        with self._lock:
            self._killed = True
            for child in self._running:
                with suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandOptions:
    """Options of a worker, named by its keyword arguments."""

    concurrency: Annotated[
        int, typer.Option(metavar="N", min=1, max=1_000, help="Number of concurrent commands.")
    ] = 1
    backoff: Annotated[
        float,
        typer.Option(
            metavar="DURATION",
            parser=duration("s", most=43_200),
            help="Delay before a failed message is delivered again, doubled each time.",
        ),
    ] = 1.0
    backoff_max: Annotated[
        float,
        typer.Option(
            metavar="DURATION", parser=duration("s", most=43_200), help="Greatest such delay."
        ),
    ] = 300.0
    each: Annotated[
        Literal["row", "batch"],
        typer.Option(help="Run a command for each message, or for each delivery."),
    ] = "row"
    max_messages: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            max=10_000,
            help="Most messages of a delivery. Default: 500 for batches, otherwise --concurrency.",
        ),
    ] = None
    prefetch: Annotated[
        bool, typer.Option("--prefetch/--no-prefetch", help="Acquire ahead while commands run.")
    ] = False
    auto_renew: Annotated[
        float | None,
        typer.Option(
            "--renew",
            metavar="DURATION",
            parser=duration("s"),
            help="Time for which locks are renewed, after which a hanging command loses its "
            "messages. Default: until it ends.",
        ),
    ] = None
    limit: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="End after this many messages.")
    ] = None


@grouped
def work(
    group: GroupArgument,
    topic: TopicArgument,
    *,
    command: Annotated[
        str | None,
        typer.Option("--exec", metavar="COMMAND", help="Run by the shell for each message."),
    ] = None,
    function: Annotated[
        str | None,
        typer.Option(
            "--python", metavar="MODULE:FUNCTION", help="Called for each message, in this process."
        ),
    ] = None,
    reject_status: Annotated[
        int, typer.Option(metavar="STATUS", min=1, max=255, help="Exit status that rejects.")
    ] = REJECT_STATUS,
    options: CommandOptions,
    membership: MemberOptions,
    endpoint: EndpointOption = DEFAULT,
) -> None:
    """Run a command for each message of a share group, as one of its workers.

        $ wings share work billing orders --exec './bill' --concurrency 4

    The command receives the row as a line of JSON on standard input (with --each batch, all rows of
    a delivery), and the variables WINGS_TOPIC, WINGS_PARTITION, WINGS_OFFSET, WINGS_END_OFFSET and
    WINGS_DELIVERY_COUNT. Exit status 0 accepts the message, 65 (--reject-status) makes it a dead
    letter, any other delivers it again later; the last line on standard error is stored as the
    reason. A message stays locked while its command runs; bound that with `timeout 60 ./bill` or
    --renew.

    With --python, the handler is a function of a module in this directory or an installed one. It
    takes a Message, or a row as the dataclass or pydantic model of its annotation.

        $ wings share work billing orders --python billing:bill

    Ctrl-C or SIGTERM stops acquiring and waits for running commands; a second one kills them.
    """
    if (command is None) == (function is None):
        raise typer.BadParameter("give one of --exec and --python", param_hint="--exec")
    with connected(endpoint, topic, RETRY) as client:
        described = client.topic(topic)
        commands = Commands(command or "", reject_status, described.name)
        handler = commands.handle if function is None else _function(function)
        arguments = {**asdict(options), **membership.arguments(described)}
        if options.auto_renew is None:
            arguments["auto_renew"] = True
        worker = client.worker(group, described, handler, **arguments)
        with _ended_by_signals(worker, commands) as received:
            stats = worker.run()
    counts = counts_text(
        (stats.accepted, "accepted"),
        (stats.released, "released"),
        (stats.rejected, "rejected"),
        (stats.lost, "lost"),
        (stats.dead, "dead"),
    )
    typer.echo(counts, err=True)
    if signal.SIGINT in received:
        raise typer.Exit(130)


def _function(path: str) -> Callable[[Any], Any]:
    """Return the function that a text like `module:function` names.

    Raises:
        typer.BadParameter: There is none.
    """
    module, _, name = path.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = attrgetter(name)(import_module(module))
    except (ImportError, AttributeError, ValueError) as error:
        raise typer.BadParameter(f"{path:.200}: {error}", param_hint="--python") from None
    if not callable(found):
        raise typer.BadParameter(f"{path:.200} is no function", param_hint="--python")
    return found


@contextmanager
def _ended_by_signals(worker: Worker, commands: Commands) -> Generator[list[int]]:
    """Stop the worker at the first SIGINT or SIGTERM, and kill its commands at the second.

    Yields:
        The signals received so far; the list grows.
    """
    received: list[int] = []

    def handle(number: int, _: FrameType | None) -> None:
        received.append(number)
        if len(received) > 1:
            worker.abort()
            commands.kill()
            return
        worker.stop()
        if count := worker.stats.running:
            what = "the command that runs" if count == 1 else f"the {count} commands that run"
            typer.echo(f"waiting for {what}; a second Ctrl-C kills", err=True)

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _passed_on(child: "subprocess.Popen[bytes]") -> str:
    """Copy a command's standard error as it arrives; returns its last line."""
    assert child.stderr is not None
    tail = b""
    with child.stderr as pipe:
        while said := os.read(pipe.fileno(), TAIL_BYTES):
            tail = (tail + said)[-TAIL_BYTES:]
            with suppress(OSError):
                sys.stderr.buffer.write(said)
                sys.stderr.buffer.flush()
    lines = [line.strip() for line in tail.decode("utf-8", "replace").splitlines()]
    return next((line for line in reversed(lines) if line), "")


def _variable(partition: JsonScalar) -> str:
    """Return a partition value in the form of `--partition`; empty without a key."""
    if isinstance(partition, bool):
        return "true" if partition else "false"
    return "" if partition is None else str(partition)


def _offsets(taken: Message | Delivery) -> tuple[int, int]:
    """Return the first and last offset, which may have gaps between them."""
    if isinstance(taken, Message):
        return taken.offset, taken.offset
    return taken.start_offset, taken.end_offset


def _of(taken: Message | Delivery) -> str:
    return "" if taken.partition is None else f" of {partition_text(taken.partition)}"


@dlq.command("list")
def list_dead_letters(
    *, wanted_format: FormatOption = "table", endpoint: EndpointOption = DEFAULT
) -> None:
    """List the topics of dead letters of all share groups, with their numbers of letters.

    $ wings share dlq list
    """
    with connected(endpoint) as client:
        groups = [group for group in client.share_groups() if group.config["dlq_topic"]]
        groups.sort(key=dlq_text)
        rows = [
            (name, ", ".join(f"{each.name} of {short_name(each.topic)}" for each in found), count)
            for name, found in groupby(groups, dlq_text)
            if (count := _letters(client, name)) is not None
        ]
    names = ("dead letters", "of", "messages")
    write_list(names, rows, wanted_format, empty="no share group has a topic of dead letters")


@dlq.command("show")
def show_dead_letters(
    dlq_topic: DlqArgument,
    *,
    predicate: FilterOption = None,
    columns: ColumnsOption = None,
    messages: Annotated[
        bool,
        typer.Option("--messages", help="Show the messages instead of the letters."),
    ] = False,
    max_messages: Annotated[
        int, typer.Option(metavar="N", min=1, help="Most letters to show.")
    ] = LETTERS_MAX,
    wanted_format: FormatOption = "table",
    endpoint: EndpointOption = DEFAULT,
) -> None:
    """Show dead letters, the oldest first.

    $ wings share dlq show orders-dead --filter "reason = 'rejected'"

    $ wings share dlq show orders-dead --messages --format json
    """
    check_output(wanted_format)
    with connected(endpoint, dlq_topic) as client:
        topic = client.topic(dlq_topic)
        if not {*LETTER_COLUMNS, "payload"} <= set(topic.schema.names):
            raise InvalidArgument(
                f"{topic.name} is not a topic of dead letters; `wings share dlq list` lists them"
            )
        wanted = chosen_columns(columns, topic.schema) or LETTER_COLUMNS
        if messages:
            wanted = ["source_topic", "payload"]
        reader = client.scan(topic, columns=wanted, filter=predicate)
        found = _first(reader, max_messages)
        if messages:
            for name, table in _messages(client, found):
                typer.echo(f"messages of {short_name(name)}:", err=True)
                write_all(table.to_batches(), table.schema, wanted_format)
            return
    write_all(found.to_batches(), found.schema, wanted_format)


@dlq.command()
@grouped
def redrive(
    dlq_topic: DlqArgument,
    *,
    predicate: FilterOption = None,
    max_messages: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Only examine the first N. Default: all."),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(metavar="TOPIC", help="Topic to send them to. Default: their origin."),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(metavar="N", help="Approximate letters per second. Default: no limit."),
    ] = None,
    confirmation: Confirmation,
    endpoint: EndpointOption = DEFAULT,
) -> None:
    """Send dead letters back to their topics of origin, or to another, each once.

        $ wings share dlq redrive orders-dead --filter "error = 'timeout'" --rate 100

    A letter that was sent to a topic before is not sent there again. Asks for confirmation on a
    terminal; elsewhere `--yes` is required.
    """
    with connected(endpoint, dlq_topic) as client:
        # Only looked up to be shown: to redrive needs no right to read them.
        count = "the"
        if confirmation.dry_run:
            letters = client.scan(dlq_topic, columns=["source_topic"], filter=predicate)
            found = sum(batch.num_rows for batch in letters)
            count = f"at most {min(found, max_messages or found):,}"
        which = "" if predicate is None else f", those with {predicate}"
        question = f"Send back {count} dead letters of {short_name(dlq_topic)}{which}"
        confirmation.ask(question)
        done = client.redrive(
            dlq_topic, filter=predicate, max_messages=max_messages, to=to, rate=rate
        )
    counts = counts_text(
        (done.redriven, "dead letters sent back"),
        (done.already_redriven, "were sent back before"),
        (done.without_payload, "hold no message"),
        (done.failed, "failed"),
    )
    typer.echo(counts)
    for failure in done.failures:
        typer.echo(failure, err=True)
    if done.failed:
        raise typer.Exit(1)


def _letters(client: Client, name: str) -> int | None:
    """Return the number of dead letters in a topic; None if it was deleted."""
    try:
        return messages_in(client.partitions(name))
    except TopicNotFound:
        return None


def _first(reader: pa.RecordBatchReader, rows_max: int) -> pa.Table:
    batches: list[pa.RecordBatch] = []
    left = rows_max
    for batch in reader:
        batches.append(batch.slice(0, left))
        left -= batches[-1].num_rows
        if left == 0:
            break
    return pa.Table.from_batches(batches, reader.schema)


def _messages(client: Client, letters: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """Yield the messages in dead letters, by their topic of origin."""
    payloads: dict[str, list[bytes]] = {}
    for letter in letters.to_pylist():
        if letter["payload"] is not None:
            payloads.setdefault(letter["source_topic"], []).append(letter["payload"])
    for name, found in payloads.items():
        schema = client.topic(name).schema
        batches = [pa.ipc.read_record_batch(pa.py_buffer(each), schema) for each in found]
        yield name, pa.Table.from_batches(batches, schema)


def dlq_text(group: ShareGroup) -> str:
    """Return the topic of a group's dead letters; a dash if there is none."""
    name = group.config["dlq_topic"]
    return short_name(name) if isinstance(name, str) else "-"
