"""Pushing a file as a whole or not at all: its rows are staged, and published in one transaction.

    rows ─▶ stage (durable, not visible) ─▶ … ─▶ publish once ─▶ visible

Stages are recorded (`push_record`), so that an interrupted push can be resumed.
"""

from collections.abc import Generator, Sequence, Set
from contextlib import suppress
from pathlib import Path
from typing import NoReturn
from uuid import uuid4

import pyarrow as pa
import typer

from wings_client import Client, Topic
from wings_client._stage import Stage
from wings_client.cli.endpoint import KEPT
from wings_client.cli.push_progress import shown
from wings_client.cli.push_record import PushRecord, delete_old_records, found_record
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

STAGE_BYTES = 64 * 1024 * 1024
"""Bytes of rows in one stage: the most that a resumed push reads again."""

STAGE_SECONDS_MAX = 24 * 3600.0
"""Longest time for a stage: the default age at which servers delete unpublished stages."""

_PASSING = (Internal, ResourceExhausted, Unauthenticated, Unavailable)
"""Errors of the server after which a retry may succeed."""


class WholePush:
    """The push of one file through stages.

    Args:
        client: Client of the server.
        topic: The topic.
        path: Path of the file, or of its copy.
        file: Absolute path or URI of the file.
        options: Options that affect which rows are read.
        inferred: Columns with inferred types; see `Rows.parts`.
        is_resumed: Whether to continue from the record of an earlier push, if any.
    """

    def __init__(
        self,
        client: Client,
        topic: Topic,
        path: Path,
        file: str,
        options: Sequence[str | None],
        inferred: Set[str],
        *,
        is_resumed: bool,
    ) -> None:
        self._client = client
        self._topic = topic
        self._stage: Stage | None = None
        self._is_publishing = False
        self._is_resumed = False
        self._record = PushRecord.begin(topic, path, file, options, inferred)
        before = found_record(self._record)
        if before is None:
            return
        if is_resumed and before.is_of_same(self._record):
            self._record = before
            self._is_resumed = True
            return
        if is_resumed:
            typer.echo(f"{file} or the options have changed: starting over", err=True)
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
            self._record = self._record.with_stage(staged.stage, staged.rows)
            self._record.save()
        file.check_complete(self._record.rows)

    def _batches(self, file: OpenFile) -> Generator[pa.RecordBatch]:
        """Yield the rows that are not staged yet."""
        check = PartCheck(self._topic.schema, self._topic.partition_key)
        staged = self._record.rows
        with shown(file, lambda: self.rows) as bar:
            for part in file.parts(self._topic.schema, frozenset(self._record.inferred)):
                check.check(part)
                skipped = min(staged, part.batch.num_rows)
                staged -= skipped
                if skipped < part.batch.num_rows:
                    yield part.batch.slice(skipped)
                bar.update()

    def _publish(self) -> None:
        if self._record.stages:
            self._is_publishing = True
            self._client.publish(self._record.writer, self._record.batch, self._record.stages)
        self._record = self._record.published()
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
            kept = f"nothing is visible; {self._how_to_go_on()}"
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
            kept = f"nothing is visible; {self._how_to_go_on()}"
        typer.echo(f"wings: stopped; {kept}", err=True)
        raise typer.Exit(130)

    def _how_to_go_on(self) -> str:
        return f"within a day, --resume continues after the first {self._record.rows:,} rows"

    def _drop(self, record: PushRecord) -> None:
        """Delete the stages of a push, and its record."""
        if record.stages:
            with suppress(WingsError):  # The server would delete them later.
                self._client.abort(record.writer, (), prefix=record.prefix)
        record.delete()
