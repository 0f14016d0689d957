"""Redrive: send dead letters back to the topics that they came from, or to another, each once.

A letter's payload is pushed as a batch of its own whose producer is the letter's id, so that a
letter that was sent back before, by any call, is not sent again.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from wings_core.contracts.messages import shortened
from wings_core.contracts.reads import ReadOptions
from wings_core.errors import (
    BatchTooLarge,
    InvalidArgument,
    NotFound,
    OutOfOrderSequence,
    PermissionDenied,
    WingsError,
)
from wings_core.fetch.cursors import PartitionCursor
from wings_core.fetch.fetcher import Cancel, Fetcher, Read
from wings_core.fetch.selection import Selection
from wings_core.ingest.group_commit import GroupCommit
from wings_core.ingest.pending import Pending, PushStream
from wings_core.ingest.prepare import Preparer, PushOptions
from wings_core.limits import Limits
from wings_core.metadata.interfaces import Admin, OffsetRegistry
from wings_core.model import Accepted, Rejected, Topic
from wings_core.model import Sequence as ProducerSequence
from wings_core.names import TopicName
from wings_core.partitions import UNPARTITIONED
from wings_core.share.dead_letters.writer import read_payload, require_dead_letters

FAILURES_MAX = 10
"""How many letters that cannot be sent back are told of one by one."""

_COLUMNS = ("dead_letter_id", "source_topic", "dead_lettered_at", "payload")


@dataclass(slots=True)
class RedriveResult:
    """The outcome of a redrive."""

    redriven: int = 0
    """Letters sent back."""
    already: int = 0
    """Letters that had been sent back before."""
    without_payload: int = 0
    failed: int = 0
    """Letters that cannot be sent back: their topic is gone, has other columns now, takes no
    batches as large, or may not be written to by the caller."""
    failures: list[str] = field(default_factory=list[str])
    """Why, for the first few."""
    next_offset: int = 0
    """Offset in the topic of dead letters at which to go on."""
    log_end_offset: int = 0

    def fail(self, dead_letter_id: str, error: WingsError) -> None:
        """Count a letter that cannot be sent back."""
        self.failed += 1
        if len(self.failures) < FAILURES_MAX:
            self.failures.append(shortened(f"{dead_letter_id}: {error.message}", 200))


@dataclass(frozen=True, slots=True, eq=False)
class Redriver:
    """Sends dead letters back; all methods may be called from any thread.

    Args:
        admin: Where topics are.
        registry: Where their ends are.
        fetcher: Reads the letters.
        group_commit: Writes what they hold.
        limits: The bounds in force.
    """

    _admin: Admin
    _registry: OffsetRegistry
    _fetcher: Fetcher
    _group_commit: GroupCommit
    _limits: Limits

    def redrive(
        self,
        name: TopicName,
        expression: str | None,
        offset: int,
        messages_max: int,
        admit: Callable[[TopicName], None] = lambda _: None,
        to: TopicName | None = None,
    ) -> RedriveResult:
        """Send dead letters back that pass a filter; durable on return, which it blocks for.

        Args:
            name: Name of the topic of dead letters.
            expression: A SQL predicate over its columns; None for all.
            offset: Where in it to begin; below its start: there.
            messages_max: The most letters looked at, whether or not they pass.
            admit: Raises `PermissionDenied` for a topic that the caller may not write to.
            to: Send them to this topic, which has the same columns; None: to those they came from.

        Raises:
            TopicNotFound: No such topic.
            PermissionDenied: The caller may not write to the one that they are sent to.
            SchemaMismatch: It is no topic of dead letters.
            InvalidFilter: The filter is none, or fails on the data.
            WingsError: A push failed for a reason that may pass; what was sent before is not sent
                again when this is called again.
        """
        topic = self._admin.get_topic(name)
        require_dead_letters(topic)
        state = self._registry.partition_state(topic.uuid, UNPARTITIONED)
        begin = min(max(offset, state.log_start_offset), state.next_offset)
        cursor = PartitionCursor(UNPARTITIONED, begin, min(state.next_offset, begin + messages_max))
        selection = Selection.of(topic, ReadOptions(columns=_COLUMNS, filter=expression))
        done = RedriveResult(log_end_offset=state.next_offset)
        if to is not None:
            admit(to)
            self._admin.get_topic(to)
        sender = _Sender(self._admin, self._group_commit, self._limits, done, admit, to)
        for chunk in self._fetcher.scan(Read.of(topic, [cursor], selection), Cancel()):
            sender.send(_letters(chunk.batch))
        done.next_offset = cursor.offset
        return done


@dataclass(frozen=True, slots=True)
class _Letter:
    """One dead letter."""

    dead_letter_id: str
    topic: str
    written_at: int
    payload: pa.Buffer | None


def _letters(batch: pa.RecordBatch) -> Iterator[_Letter]:
    columns: Any = batch.columns
    ids, topics, times, payloads = columns
    return (
        _Letter(id, topic, time, payload.as_buffer())
        for id, topic, time, payload in zip(  # noqa: A001 - of the letter.
            ids.to_pylist(),
            topics.to_pylist(),
            times.cast(pa.int64()).to_pylist(),
            payloads,
            strict=True,
        )
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Sender:
    """Pushes what letters hold, to one topic or another."""

    _admin: Admin
    _group_commit: GroupCommit
    _limits: Limits
    _done: RedriveResult
    _admit: Callable[[TopicName], None]
    _to: TopicName | None
    _targets: dict[str, Topic | NotFound | PermissionDenied] = field(default_factory=dict)
    _preparers: dict[tuple[str, int], Preparer] = field(default_factory=dict)
    """Preparers by topic and version of its schema."""

    def send(self, letters: Iterator[_Letter]) -> None:
        """Send back what a chunk of letters holds, in flushes that they share."""
        pending: list[tuple[str, Pending]] = []
        for letter in letters:
            if letter.payload is None:
                self._done.without_payload += 1
                continue
            try:
                submitted = self._submit(letter, letter.payload)
            except (NotFound, InvalidArgument, BatchTooLarge, PermissionDenied) as error:
                self._done.fail(letter.dead_letter_id, error)
            else:
                pending.append((letter.dead_letter_id, submitted))
        for dead_letter_id, submitted in pending:
            self._count_outcome(dead_letter_id, submitted)

    def _submit(self, letter: _Letter, payload: pa.Buffer) -> Pending:
        to = letter.topic if self._to is None else str(self._to)
        topic = self._target(to)
        # A letter of an older server tells nothing of its columns, which are of version 1.
        is_sure = to == letter.topic and topic.created_at <= letter.written_at
        rows, version = read_payload(payload, topic.schemas, unmarked=is_sure)
        preparer = self._preparer(topic.at(version))
        options = PushOptions(sequence=ProducerSequence(f"redrive-{letter.dead_letter_id}", 0))
        prepared = preparer.prepare(rows, options)
        # Awaited: by `send`, as soon as all are submitted.
        return self._group_commit.submit(PushStream(), prepared, awaited=True)

    def _preparer(self, topic: Topic) -> Preparer:
        key = topic.uuid, topic.schema_version
        if key not in self._preparers:
            self._preparers[key] = Preparer(topic, self._limits)
        return self._preparers[key]

    def _target(self, name: str) -> Topic:
        if name not in self._targets:
            try:
                parsed = TopicName.parse(name)
                self._admit(parsed)
                self._targets[name] = self._admin.get_topic(parsed, fresh=True)
            except (NotFound, PermissionDenied) as error:
                self._targets[name] = error
        found = self._targets[name]
        if isinstance(found, NotFound | PermissionDenied):
            raise found
        return found

    def _count_outcome(self, dead_letter_id: str, submitted: Pending) -> None:
        result = submitted.outcome()
        if isinstance(result, Rejected):
            if isinstance(result.error, OutOfOrderSequence):
                # So long ago that its result is not remembered.
                self._done.already += 1
            elif isinstance(result.error, NotFound | BatchTooLarge):
                self._done.fail(dead_letter_id, result.error)
            else:
                raise result.error
        elif isinstance(result, Accepted) and result.replayed:
            self._done.already += 1
        else:
            self._done.redriven += 1
