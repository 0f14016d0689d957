"""DoPut: descriptors, the metadata of batches, and their results."""

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self, TypeVar

import pyarrow as pa
from pydantic import JsonValue, model_validator
from pydantic_core import from_json

from wings_core.contracts.messages import (
    Identifier,
    Message,
    OffsetNumber,
    StageId,
    Timestamp,
    problem_of,
    to_bytes,
)
from wings_core.errors import InvalidArgument, WingsError
from wings_core.model import (
    Accepted,
    AssignedRange,
    CommitResult,
    Rejected,
    SeriesResults,
    StagedBatch,
    shares,
)
from wings_core.times import format_timestamp, parse_timestamp

CommandT = TypeVar("CommandT", bound=Message)

TOPIC_HEADER = "topic-uuid"
"""Header of a DoPut with the UUID of its topic, which rejects a later topic of the same name."""


class _BatchValues(Message):
    """Keys for one batch: in a descriptor, for the first; in a batch's metadata, for that batch."""

    sequence: OffsetNumber | None = None
    """The producer's number of the batch."""
    expected_offset: OffsetNumber | None = None
    """Next offset of the partition on which the commit is conditional."""
    timestamp: Timestamp | None = None
    """Timestamp of the rows; None for the time of commit."""

    @property
    def timestamp_us(self) -> int | None:
        """Timestamp in microseconds since the epoch."""
        return None if self.timestamp is None else parse_timestamp(self.timestamp)


class PutCommand(_BatchValues):
    """The JSON command that opens a DoPut stream.

    A `producer_id` needs a sequence as well, here or with every batch; `Put` checks that when it
    combines the two.
    """

    topic: str
    """Full name or bare id of the topic."""
    partition: JsonValue = None
    """Partition of all rows; rows are routed by the key column where it is absent."""
    producer_id: Identifier | None = None
    stage: StageId | None = None
    """Stage of the batches, which are invisible until it is published; None for none."""

    @model_validator(mode="after")
    def _check_producer(self) -> Self:
        if self.stage is not None:
            for key in ("producer_id", *_NOT_STAGED):
                if getattr(self, key) is not None:
                    raise problem_of(f"key {key!r} cannot be combined with key 'stage'")
        if self.sequence is not None and self.producer_id is None:
            raise problem_of("key 'sequence' needs key 'producer_id'")
        return self


class BatchMetadata(_BatchValues):
    """The app_metadata of one pushed batch; its keys override those of the descriptor."""

    def check_staged(self) -> None:
        """Check that a staged batch has no keys that staging excludes.

        Raises:
            InvalidArgument: It has such a key; the message names it.
        """
        for key in _NOT_STAGED:
            if getattr(self, key) is not None:
                raise InvalidArgument(
                    f"key {key!r} cannot be combined with key 'stage' of the descriptor"
                )


_NOT_STAGED = ("sequence", "expected_offset")
"""Keys with conditions on the log, which a staged batch is not part of yet."""


def command_of(
    kind: type[CommandT], path: Sequence[bytes | str] | None, command: bytes | None, what: str
) -> CommandT:
    """Return the command of a descriptor, which is a path `[topic]` or JSON.

    Args:
        kind: The command's model.
        path: The descriptor's path; None where it has none.
        command: The descriptor's JSON; None where it has none.
        what: Name of the command in errors.

    Raises:
        InvalidArgument: It is neither; the path has not exactly one element, or is not UTF-8; or a
            key is unknown or has a bad value, which the message names.
    """
    if path is not None:
        return kind.model_validate({"topic": _topic_of(path)})
    if command is not None:
        return kind.parse(command, InvalidArgument, what)
    raise InvalidArgument("the descriptor is neither a path [topic] nor a JSON command")


def parse_batch_metadata(raw: "bytes | pa.Buffer | None") -> BatchMetadata:
    """Parse the app_metadata of a pushed batch; empty metadata sets no key.

    Raises:
        InvalidArgument: The message names the key and the problem.
    """
    found = to_bytes(raw)
    if not found:
        return _NO_METADATA
    return BatchMetadata.parse(found, InvalidArgument, "batch metadata")


_NO_METADATA = BatchMetadata()


def result_to_json(batch: int, result: CommitResult | WingsError) -> bytes:
    """Return the PutResult of a batch: offsets, stage, or error."""
    if isinstance(result, Accepted):
        # Formatted by hand for speed: it runs for each batch, and partitions are JSON already.
        ranges = [
            f'{{"partition": {each.partition}, "start_offset": {each.start_offset}, '
            f'"end_offset": {each.end_offset}, '
            f'"timestamp": "{format_timestamp(each.timestamp)}"}}'
            for each in result.committed
        ]
        return f'{{"batch": {batch}, "committed": [{", ".join(ranges)}]}}'.encode()
    if isinstance(result, StagedBatch):
        staged = {"stage": result.stage, "rows": result.rows, "bytes": result.bytes}
        return json.dumps({"batch": batch, "staged": staged}).encode()
    assert not isinstance(result, SeriesResults), "each batch has its own result"
    error = result.error if isinstance(result, Rejected) else result
    answer = {"batch": batch, "error": error.to_json()}
    return json.dumps(answer, ensure_ascii=False).encode("utf-8", "replace")


def results_to_json(
    batch: int, results: Sequence[CommitResult], rows: Sequence[int]
) -> Iterable[bytes]:
    """Return the PutResults of consecutive joined batches.

    Args:
        batch: Number of the first batch.
        results: Result of each batch, or a common one, whose ranges they share if it is accepted.
        rows: Rows of each batch.
    """
    if len(results) == len(rows):
        return list(map(result_to_json, itertools.count(batch), results))
    (result,) = results
    if isinstance(result, Accepted):
        return _shares_of_ranges(batch, result.committed, rows)
    if isinstance(result, StagedBatch):
        return _shares_of_stage(batch, result, rows)
    return [result_to_json(number, result) for number in range(batch, batch + len(rows))]


def _shares_of_ranges(
    batch: int, committed: Sequence[AssignedRange], rows: Sequence[int]
) -> Iterator[bytes]:
    timestamp, text = committed[0].timestamp, format_timestamp(committed[0].timestamp)
    for number, own in enumerate(shares(committed, rows), batch):
        if own.timestamp != timestamp:
            timestamp, text = own.timestamp, format_timestamp(own.timestamp)
        yield (
            f'{{"batch": {number}, "committed": [{{"partition": {own.partition}, '
            f'"start_offset": {own.start_offset}, "end_offset": {own.end_offset}, '
            f'"timestamp": "{text}"}}]}}'
        ).encode()


def _shares_of_stage(batch: int, whole: StagedBatch, rows: Sequence[int]) -> Iterator[bytes]:
    stage = json.dumps(whole.stage)
    before = cut = 0
    for number, count in enumerate(rows, batch):
        before += count
        # From the rounded start and end, so that the shares add up to the whole.
        begin, cut = cut, whole.bytes * before // whole.rows
        yield (
            f'{{"batch": {number}, "staged": {{"stage": {stage}, "rows": {count}, '
            f'"bytes": {cut - begin}}}}}'
        ).encode()
    assert before == whole.rows, "the joined batches have all of its rows"


def put_answer(raw: "bytes | pa.Buffer") -> dict[str, Any]:
    """Parse a PutResult written by `result_to_json`.

    Returns:
        An object with `batch` and one of `committed` (a list of ranges), `staged` and `error`.
    """
    return from_json(to_bytes(raw))


def _topic_of(path: Sequence[bytes | str]) -> str:
    """Return the unparsed topic of a path."""
    if len(path) != 1:
        raise InvalidArgument(f"a path descriptor is [topic]; got {len(path)} elements")
    try:
        return path[0] if isinstance(path[0], str) else path[0].decode("utf-8")
    except UnicodeDecodeError:
        raise InvalidArgument("the path descriptor's topic is not UTF-8") from None
