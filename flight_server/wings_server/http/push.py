"""`POST /v1/push`: commits batches independently and in order, in one flush if possible."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from wings_core.errors import WingsError
from wings_core.ingest.pending import Pending, PushStream
from wings_core.ingest.prepare import PreparedBatch, Preparer, PushOptions
from wings_core.json_rows import decode_rows
from wings_core.log import Log
from wings_core.model import Accepted, AssignedRange, CommitResult, Rejected, Topic
from wings_core.names import TopicName
from wings_core.partitions import Partition, partition_of, partition_value
from wings_core.times import format_timestamp
from wings_server.http.bodies import PushedRows
from wings_server.quotas import PushQuotas
from wings_server.served_log import with_topic


@dataclass(frozen=True, slots=True)
class _Prepared:
    batch: PreparedBatch
    rows: int


@dataclass(frozen=True, slots=True)
class Pushed:
    """The result of one batch."""

    result: CommitResult
    rows: int
    """Rows committed."""
    bytes: int
    """Stored bytes of their pages."""


def push(
    log: Log,
    batches: Sequence[PushedRows],
    admit: Callable[[TopicName], None],
    quotas: PushQuotas | None = None,
) -> list[Pushed]:
    """Commit batches independently: a rejected batch does not affect others.

    Blocks until all results are known. Batches are committed in order; all are parsed first, so
    that one flush can take them.

    Args:
        log: The log.
        batches: Batches to commit.
        admit: Raises `PermissionDenied` if the caller may not write to a topic.
        quotas: The caller's quotas; None without quotas.
    """
    prepared = [_prepare(log, batch, admit, quotas) for batch in batches]
    submitted = [
        _submit(log, found) if isinstance(found, _Prepared) else Rejected(found)
        for found in prepared
    ]
    outcomes = [
        pending if isinstance(pending, Rejected) else pending.outcome() for pending in submitted
    ]
    return [
        Pushed(outcome, found.rows, found.batch.bytes)
        if isinstance(found, _Prepared) and not isinstance(outcome, Rejected)
        else Pushed(outcome, 0, 0)
        for found, outcome in zip(prepared, outcomes, strict=True)
    ]


def push_answer(batches: Sequence[PushedRows], results: Sequence[Pushed]) -> bytes:
    """Return the response to a push."""
    answers = [
        _result(batch, pushed.result) for batch, pushed in zip(batches, results, strict=True)
    ]
    return json.dumps({"batches": answers}).encode()


def _prepare(
    log: Log,
    batch: PushedRows,
    admit: Callable[[TopicName], None],
    quotas: PushQuotas | None,
) -> "_Prepared | WingsError":
    """Parse and validate the rows of a batch."""
    try:
        admit(batch.topic)
        return with_topic(log, batch.topic, lambda topic: _prepare_rows(log, topic, batch, quotas))
    except WingsError as error:
        return error


def _prepare_rows(
    log: Log, topic: Topic, batch: PushedRows, quotas: PushQuotas | None
) -> _Prepared:
    partition: Partition | None = None
    fill: dict[str, str] = {}
    if batch.entry.partition_value is not None or topic.partition_key is None:
        partition = partition_of(batch.entry.partition_value, topic.key_type)
    if topic.partition_key is not None and partition is not None:
        fill[topic.partition_key] = partition
    rows = decode_rows(batch.rows, topic.schema, fill)
    options = PushOptions(partition=partition, timestamp=batch.entry.timestamp_us)
    prepared = Preparer(topic, log.limits).prepare(rows, options)
    if quotas is not None:
        quotas.admit_partitions(prepared)  # Its bytes were counted on arrival.
    return _Prepared(prepared, rows.num_rows)


def _submit(log: Log, found: _Prepared) -> Pending | Rejected:
    try:
        # Awaited by the loop over the results, which begins once all are submitted.
        return log.group_commit.submit(PushStream(), found.batch, awaited=True)
    except WingsError as error:
        return Rejected(error)


def _result(batch: PushedRows, result: CommitResult) -> dict[str, Any]:
    topic = {"topic": str(batch.topic)}
    if isinstance(result, Rejected):
        error = {"message": result.error.message, "code": result.error.code}
        return {"_tag": "error", **topic, **error}
    assert isinstance(result, Accepted), "nothing is staged over HTTP"
    committed = [_range(found) for found in result.committed]
    single = committed[0] if len(committed) == 1 else {}
    return {"_tag": "success", **topic, "committed": committed, **single}


def _range(committed: AssignedRange) -> dict[str, Any]:
    return {
        "partition_value": partition_value(committed.partition),
        "start_offset": committed.start_offset,
        "end_offset": committed.end_offset,
        "timestamp": format_timestamp(committed.timestamp),
    }
