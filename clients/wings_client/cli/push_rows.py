"""Sending the rows of a file for `wings push`: as they arrive, or whole or not at all.

    as they arrive:  rows ─▶ producer ─▶ each batch is visible once it is committed
    whole:           rows ─▶ stage (durable, not visible) ─▶ … ─▶ publish once ─▶ visible

The stages of a whole push are recorded, so that an interrupted push can be resumed. Each pair of a
topic and a file of rows has a record in `$XDG_STATE_HOME/wings/push`. It names the durable, not yet
visible stages, and the writer under which they are published once.
"""

import hashlib
import os
import platform
import threading
import time
from collections.abc import Callable, Generator, Iterable, Set
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn, Self
from uuid import uuid4

import pyarrow as pa
import typer
from pydantic import BaseModel, ConfigDict
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.table import Column

from wings_client import Client, Producer, Topic
from wings_client._stage import Stage
from wings_client.cli.endpoint import KEPT
from wings_client.cli.environment import state_directory
from wings_client.cli.output import terminal_progress
from wings_client.cli.push_inputs import Input
from wings_client.files import OpenFile
from wings_client.files.parts import PartCheck
from wings_core.errors import (
    BatchTooLarge,
    Internal,
    ResourceExhausted,
    StageNotFound,
    Unauthenticated,
    Unavailable,
    WingsError,
)

LOOK_SECONDS = 0.5
"""Longest delay of noticing a Ctrl-C just before a wait."""

RECORD_DAYS_MAX = 30
"""Age in days at which records are deleted."""

_NO_PLACE = (OSError, RuntimeError)
"""Errors of a missing or unwritable directory for records, or a missing home directory."""

STAGE_BYTES = 64 * 1024 * 1024
"""Bytes of rows in one stage: the most that a resumed push reads again."""

STAGE_SECONDS_MAX = 24 * 3600.0
"""Longest time for a stage: the default age at which servers delete unpublished stages."""

_PASSING = (Internal, ResourceExhausted, Unauthenticated, Unavailable)
"""Errors of the server after which a retry may succeed."""


@contextmanager
def _bar(file: OpenFile, rows: Callable[[], int]) -> Generator[Callable[[], bool]]:
    """Show a bar with rows per second on standard error, if it is a terminal.

    Args:
        file: The file being read.
        rows: Returns the number of rows that the server has so far.

    Yields:
        A function that updates the bar, and returns whether it is shown.
    """
    columns = (
        TextColumn("pushing"),
        BarColumn(bar_width=20),
        # In a narrow terminal, the bar shrinks, not this.
        TextColumn(
            "{task.fields[rows]:,} rows, {task.fields[rate]:,.0f} rows/s",
            table_column=Column(no_wrap=True),
        ),
        TimeRemainingColumn(),
    )
    with terminal_progress(*columns) as progress:
        started = time.monotonic()
        task = progress.add_task("", total=file.total, rows=0, rate=0.0)

        def update() -> bool:
            count, seconds = rows(), max(time.monotonic() - started, 1e-3)
            progress.update(task, completed=file.position, rows=count, rate=count / seconds)
            return not progress.disable

        yield update


class StreamPush:
    """The push of one file through a producer."""

    def __init__(self) -> None:
        self._producer: Producer | None = None

    def run(self, client: Client, topic: Topic, file: OpenFile, exact: Set[str]) -> int:
        """Push all rows; blocks until they are committed.

        Args:
            client: Client of the server.
            topic: The topic.
            file: The open file, of which only the first bytes were read.
            exact: Columns with inferred types; see `Rows.parts`.

        Returns:
            The count of rows.

        Raises:
            WingsError: A row does not fit, or the server failed; the message has the number of
                committed first rows.
        """
        check = PartCheck(topic.schema, topic.partition_key)
        producer = self._producer = client.producer(topic)
        try:
            with _bar(file, lambda: producer.rows_committed) as update:
                for part in file.parts(topic.schema, exact):
                    check.check(part)
                    producer.send(part.batch)
                    update()
                if update():
                    producer.flush()
                    update()
                producer.close()
            file.check_complete(producer.rows_committed)
        except WingsError as error:
            _fail(error, producer)
        return producer.rows_committed

    def stop(self) -> NoReturn:
        """Wait for the batches in flight, and print the number of committed rows.

        Raises:
            typer.Exit: Always, with the status of an interrupt.
        """
        problem = ""
        kept = "nothing was pushed"
        producer = self._producer
        if producer is not None:
            try:
                _close_when_answered(producer)
            except WingsError as error:
                problem = f" ({error.message})"
            kept = _kept(producer)
        typer.echo(f"wings: stopped{problem}; {kept}", err=True)
        raise typer.Exit(130)


def aside(call: Callable[[], str]) -> str:
    """Return a call's result, or raise its error; Ctrl-C ends the wait for it at once.

    The call has a thread of its own: a read of an idle pipe cannot be interrupted. The thread ends
    with the process.
    """
    result: Future[str] = Future()

    def run() -> None:
        try:
            result.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised by the caller.
            result.set_exception(error)

    threading.Thread(target=run, name="wings-push", daemon=True).start()
    while True:
        try:
            return result.result(LOOK_SECONDS)
        except TimeoutError:
            if result.done():
                return result.result()


def _fail(error: WingsError, producer: Producer) -> NoReturn:
    """Wait for the batches in flight, and raise the error with the count of committed rows.

    Raises:
        WingsError: Always.
    """
    with suppress(WingsError):  # The first error is the more specific one.
        _close_when_answered(producer)
    facts = {**error.facts, KEPT: _kept(producer)}
    raise type(error)(f"{error.message}; {facts[KEPT]}", **facts) from None


def _close_when_answered(producer: Producer) -> None:
    """Wait until every batch has a result, and close."""
    # A second `close`, after an interrupted one, would not wait.
    producer.flush()
    producer.close()


def _kept(producer: Producer) -> str:
    rows, in_doubt = producer.rows_committed, producer.rows_in_doubt
    if in_doubt:
        before = "" if not rows else f"the first {_counted(rows)} committed, and "
        further = "rows" if not rows else "further rows"
        return f"{before}up to {in_doubt:,} {further} may be committed"
    if not rows:
        return "nothing was pushed"
    return (
        f"the first {_counted(rows)} committed, and nothing after {'it' if rows == 1 else 'them'}"
    )


def _counted(rows: int) -> str:
    return "row is" if rows == 1 else f"{rows:,} rows are"


class PushRecord(BaseModel):
    """Progress of the push of one file to one topic."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    topic: str
    """UUID of the topic, which distinguishes it from a later one of the same name."""
    file: str
    size: int
    mtime_ns: int
    options: tuple[str | None, ...] = ()
    """Options that affect which rows are read."""
    inferred: tuple[str, ...] = ()
    """Columns with types inferred from the file's first rows."""
    writer: str
    batch: int
    """The writer's number for this push: its start, in microseconds since the epoch."""
    stages: tuple[str, ...] = ()
    """Ids of complete stages, in order of their rows."""
    rows: int = 0
    """Rows in these stages, the first ones of the file."""
    is_published: bool = False

    @classmethod
    def begin(
        cls,
        topic: Topic,
        given: Input,
        options: tuple[str | None, ...],
        inferred: Iterable[str],
    ) -> Self:
        """Return the record of a new push; for the options and columns see the fields."""
        assert given.path is not None
        status = given.path.stat()
        # One writer for each file of a machine, as servers remember each writer's last batch.
        return cls(
            topic=topic.uuid,
            # Invalid UTF-8 in a name is kept.
            file=given.identity.encode("utf-8", "backslashreplace").decode(),
            size=status.st_size,
            mtime_ns=status.st_mtime_ns,
            options=options,
            inferred=tuple(sorted(inferred)),
            writer=f"push:{_digest(platform.node(), topic.uuid, given.identity)}",
            batch=time.time_ns() // 1_000,
        )

    @property
    def prefix(self) -> str:
        """Common prefix of the ids of its stages."""
        return f"{self.writer}.{self.batch}."

    def is_of_same(self, other: "PushRecord") -> bool:
        """Return whether another record is for the same unchanged file and options."""
        mine, others = (
            (each.topic, each.file, each.size, each.mtime_ns, each.options)
            for each in (self, other)
        )
        return mine == others

    def stored(self) -> Self | None:
        """Return the stored record of the same topic and file; None without a readable one."""
        try:
            return self.model_validate_json(self._place().read_text())
        except (*_NO_PLACE, ValueError):
            return None

    def save(self) -> None:
        """Write the record, if there is a place for it; a push does not need one."""
        with suppress(*_NO_PLACE):
            place = self._place()
            place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            written = place.with_suffix(f".{os.getpid()}.tmp")
            written.write_text(self.model_dump_json())
            written.replace(place)

    def delete(self) -> None:
        """Delete the record."""
        with suppress(*_NO_PLACE):
            self._place().unlink(missing_ok=True)

    def _place(self) -> Path:
        return _directory() / f"{_digest(self.topic, self.file)}.json"


def delete_old_records() -> None:
    """Delete records older than `RECORD_DAYS_MAX`."""
    oldest = time.time() - RECORD_DAYS_MAX * 86_400
    with suppress(*_NO_PLACE):
        for path in _directory().iterdir():
            if path.stat().st_mtime < oldest:
                path.unlink(missing_ok=True)


def _directory() -> Path:
    return state_directory() / "push"


def _digest(*texts: str) -> str:
    data = "\0".join(texts).encode("utf-8", "surrogateescape")
    return hashlib.sha256(data).hexdigest()[:32]


class WholePush:
    """The push of one file through stages.

    Args:
        client: Client of the server.
        topic: The topic.
        record: The record of the new push.
        is_resumed: Whether to continue from the record of an earlier push, if any.
    """

    def __init__(
        self, client: Client, topic: Topic, record: PushRecord, *, is_resumed: bool
    ) -> None:
        self._client = client
        self._topic = topic
        self._stage: Stage | None = None
        self._is_publishing = False
        self._is_resumed = False
        self._record = record
        before = record.stored()
        if before is None:
            return
        if is_resumed and before.is_of_same(record):
            self._record = before
            self._is_resumed = True
            return
        if is_resumed:
            typer.echo(f"{record.file} or the options have changed: starting over", err=True)
        self._drop(before)

    @property
    def is_published(self) -> bool:
        """Whether the file is known to be in the topic already."""
        return self._record.is_published

    @property
    def is_resumable(self) -> bool:
        """Whether staged rows exist from which a push can continue."""
        return bool(self._record.stages)

    @property
    def rows(self) -> int:
        """Number of the file's first rows that are durable, published or not."""
        return self._record.rows + (0 if self._stage is None else self._stage.rows)

    def run(self, file: OpenFile) -> int:
        """Stage all rows and publish them; blocks until they are committed.

        Args:
            file: The open file, of which only the first bytes were read.

        Returns:
            The count of rows.

        Raises:
            WingsError: A row does not fit, or the server failed. Nothing is visible; the message
                says so, and whether the push can be resumed.
            typer.Exit: The push was interrupted.
        """
        try:
            self._write(file)
            self._publish()
        except WingsError as error:
            self._fail(error)
        except KeyboardInterrupt:
            self._stop()
        return self._record.rows

    def _write(self, file: OpenFile) -> None:
        batches = self._batches(file)
        first = next(batches, None)
        while first is not None:
            # With a random part, as an aborted push may have left a part of this stage.
            stage_id = f"{self._record.prefix}{len(self._record.stages)}.{uuid4().hex[:8]}"
            size = 0
            with self._client.stage(
                self._topic, stage_id, seconds_max=STAGE_SECONDS_MAX
            ) as self._stage:
                while first is not None and size < STAGE_BYTES:
                    self._stage.write(first)
                    size += first.nbytes
                    first = next(batches, None)
                staged = self._stage.close()
            self._stage = None
            stages, rows = (*self._record.stages, staged.stage), self._record.rows + staged.rows
            self._record = self._record.model_copy(update={"stages": stages, "rows": rows})
            self._record.save()
        file.check_complete(self._record.rows)

    def _batches(self, file: OpenFile) -> Generator[pa.RecordBatch]:
        """Yield the rows that are not staged yet."""
        check = PartCheck(self._topic.schema, self._topic.partition_key)
        staged = self._record.rows
        with _bar(file, lambda: self.rows) as update:
            for part in file.parts(self._topic.schema, frozenset(self._record.inferred)):
                check.check(part)
                skipped = min(staged, part.batch.num_rows)
                staged -= skipped
                if skipped < part.batch.num_rows:
                    yield part.batch.slice(skipped)
                update()

    def _publish(self) -> None:
        if self._record.stages:
            self._is_publishing = True
            self._client.publish(self._record.writer, self._record.batch, self._record.stages)
        self._record = self._record.model_copy(update={"is_published": True, "stages": ()})
        self._record.save()
        self._is_publishing = False
        if self._is_resumed:
            with suppress(WingsError):  # An incomplete stage, which the server would delete later.
                self._client.abort(self._record.writer, (), prefix=self._record.prefix)
        delete_old_records()

    def _fail(self, error: WingsError) -> NoReturn:
        """Raise the error of a push, with the state of its rows and whether it can be resumed."""
        if isinstance(error, StageNotFound) and self._is_publishing:
            self._record.delete()
            raise StageNotFound(
                "the staged rows of the interrupted push are gone, as servers keep them for a "
                "day; nothing is visible: push again without --resume",
                **error.facts,
            ) from None
        if isinstance(error, BatchTooLarge) and self._is_publishing:
            error = BatchTooLarge(
                f"{error.message}: push it with --partial, or in several files", **error.facts
            )
        if isinstance(error, _PASSING) and self._is_publishing:
            kept = "it may be pushed already; retry with --resume, which repeats no row"
        elif isinstance(error, _PASSING) and self._record.stages:
            kept = self._how_to_go_on()
        else:
            self._drop(self._record)
            kept = "nothing was pushed"
        facts = {**error.facts, KEPT: kept}
        raise type(error)(f"{error.message}; {kept}", **facts) from None

    def _stop(self) -> NoReturn:
        kept = "nothing was pushed"
        if self._is_publishing:
            kept = "it may be pushed already: --resume repeats no row"
        elif self._record.stages:
            kept = self._how_to_go_on()
        typer.echo(f"wings: stopped; {kept}", err=True)
        raise typer.Exit(130)

    def _how_to_go_on(self) -> str:
        rows = f"the first {self._record.rows:,} rows"
        return f"nothing is visible; within a day, --resume continues after {rows}"

    def _drop(self, record: PushRecord) -> None:
        """Delete the stages of a push, and its record."""
        if record.stages:
            with suppress(WingsError):  # The server would delete them later.
                self._client.abort(record.writer, (), prefix=record.prefix)
        record.delete()
