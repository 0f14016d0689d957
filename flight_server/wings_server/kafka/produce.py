"""`Produce`: the requests of a connection, through the group commit, answered in their order.

    queued ─▶ turn: decode and submit all that is queued ─▶ wait for their flush ─▶ answers
                    └── meanwhile the next turn decodes and submits

A partition's batch is atomic, and judged on its own; one of a transaction is staged. All values of
`acks` are durable alike; with 0 there is no response.
"""

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

import pyarrow.compute as pc
from kio.schema.errors import ErrorCode

from wings_core.errors import InvalidArgument, PublishFenced, StageNotFound, WingsError
from wings_core.ingest.pending import Pending, PushStream
from wings_core.ingest.prepare import Preparer, PushOptions
from wings_core.metadata.stages import stage_entry
from wings_core.model import (
    Accepted,
    PartitionSequence,
    ProducerEpoch,
    Rejected,
    StagedBatch,
    Topic,
)
from wings_core.partitions import Partition
from wings_core.security.principal import Principal
from wings_server.kafka import json_records, topics
from wings_server.kafka.errors import FAILURES, KafkaError, code_of
from wings_server.kafka.messages import BadRequest, Head, Request, Values, parse
from wings_server.kafka.record_types import Head as BatchHead
from wings_server.kafka.record_types import Records
from wings_server.kafka.records import decode, rows_of
from wings_server.kafka.service import KafkaService
from wings_server.kafka.transaction_requests import name_of, refusal_of_batch

TURNS_MAX = 2
"""Most turns of a connection under way: one waits for its flush while the next one decodes."""

GAPS_MAX = 1_000
"""Most partitions of producers whose refused batches a connection remembers."""

RECORD_ERRORS_MAX = 1_000
"""Most records of a batch whose errors are told."""

_ACKS = (-1, 0, 1)
_TRANSACTIONAL = 0x10
_NO_OFFSET = -1


@dataclass(slots=True)
class _Queued:
    head: Head
    frame: memoryview
    throttled_ms: int
    answer: Callable[[bytes | None], None]


@dataclass(slots=True)
class _Submitted:
    """A request whose batches are with the group commit, or were refused."""

    request: Request
    answer: Callable[[bytes | None], None]
    partitions: list[tuple[str, int, "_Written | Exception"]]
    """Topic and number of each partition, and what became of its batch so far."""

    def response(self) -> Values:
        """Return the response; blocks until all outcomes are known."""
        by_topic: dict[str, list[Values]] = {}
        for name, number, written in self.partitions:
            result = _refusal(written) if isinstance(written, Exception) else written.result()
            by_topic.setdefault(name, []).append({"index": number, **result})
        return {
            "responses": [
                {"name": name, "partition_responses": results} for name, results in by_topic.items()
            ]
        }


@dataclass(slots=True)
class _Written:
    """A batch that is with the group commit."""

    pending: Pending
    topic: Topic
    partition: Partition
    rows: int
    size: int
    service: KafkaService
    transaction: tuple[str, ProducerEpoch] | None
    """Name and producer of its transaction."""
    data: bytes | None
    """The batch as it came, if it may be kept."""
    refuse: Callable[[Exception], None]
    """Called with the error if it is rejected."""

    def result(self) -> Values:
        """Return the result of its partition; blocks until it is known."""
        outcome = self.pending.outcome()
        if isinstance(outcome, Rejected):
            error: Exception = outcome.error
            if self.transaction is not None and isinstance(error, StageNotFound):
                error = refusal_of_batch(self.service, *self.transaction, error)
            self.refuse(error)
            self.service.failed(error)
            return _refusal(error)
        if isinstance(outcome, StagedBatch):  # Counted when its transaction is committed.
            return {"base_offset": self._predicted(outcome)}
        assert isinstance(outcome, Accepted)
        self.service.metrics.pushed("kafka", self.topic.name, self.rows, self.size)
        (committed,) = outcome.committed
        if self.data is not None and not outcome.replayed:  # A repeat may have other records.
            place = self.topic.uuid, self.partition, committed.start_offset
            self.service.kept.keep(*place, self.data, self.rows)
        return {"base_offset": committed.start_offset}

    def _predicted(self, staged: StagedBatch) -> int:
        """Return the offset that a staged batch gets if no other producer writes meanwhile.

        That of a repeated batch is not known any more.
        """
        if not staged.rows:
            return _NO_OFFSET
        registry = self.service.log.registry
        state = registry.partition_state(self.topic.uuid, self.partition)
        return state.next_offset + staged.rows_before


class _Gaps:
    """Batches of idempotent producers that were refused: none after them is written before them.

    The log sees to this where it knows the producer; of another it takes any batch as the first.
    """

    def __init__(self) -> None:
        self._first: OrderedDict[tuple[str, int, str, Partition], int] = OrderedDict()

    @contextmanager
    def guarding(
        self, topic: Topic, partition: Partition, sequence: PartitionSequence | None
    ) -> Generator[Callable[[Exception], None]]:
        """Submit a batch within the block; yields what takes the error if it is rejected later.

        Raises:
            KafkaError: A batch before it was refused, and has not come again.
        """
        if sequence is None:
            yield lambda _: None
            return
        key = sequence.producer_id, sequence.epoch, topic.uuid, partition
        first = sequence.first
        if first > self._first.get(key, first):
            raise KafkaError(ErrorCode.out_of_order_sequence_number, "a batch before was refused")
        self._first.pop(key, None)

        def refuse(error: Exception) -> None:
            if not isinstance(error, PublishFenced):  # Nothing of its epoch is written any more.
                self._first[key] = min(first, self._first.get(key, first))
                if len(self._first) > GAPS_MAX:
                    self._first.popitem(last=False)

        try:
            yield refuse
        except FAILURES as error:
            refuse(error)
            raise


class Producer:
    """The requests of one connection to produce.

    Args:
        service: The service.
        principal: The caller.
        failed: Called from any thread with the reason if a request cannot be read, or is to be
            refused without a response.
    """

    def __init__(
        self, service: KafkaService, principal: Principal, failed: Callable[[str], None]
    ) -> None:
        self._service = service
        self._principal = principal
        self._failed = failed
        self._lock = threading.Lock()
        self._queued: deque[_Queued] = deque()
        self._gaps = _Gaps()
        self._turns = 0
        self._is_submitting = False

    def submit(
        self,
        head: Head,
        frame: memoryview,
        throttled_ms: int,
        answer: Callable[[bytes | None], None],
    ) -> None:
        """Queue a request; `answer` is called from another thread, in the order of the requests."""
        with self._lock:
            self._queued.append(_Queued(head, frame, throttled_ms, answer))
        self._begin_turn()

    def _begin_turn(self) -> None:
        with self._lock:
            if self._is_submitting or self._turns >= TURNS_MAX or not self._queued:
                return
            self._is_submitting = True
            self._turns += 1
        self._service.producers.submit(self._turn)

    def _turn(self) -> None:
        """Submit all that is queued, then wait for it; runs on a producer's thread."""
        submitted: list[_Submitted] = []
        with self._service.decoding:
            while (queued := self._next()) is not None:
                with self._refusing(queued.answer):
                    submitted.append(self._submit(queued))
        self._begin_turn()
        for each in submitted:
            with self._refusing(each.answer):
                self._answer(each)
        with self._lock:
            self._turns -= 1
        self._begin_turn()

    @contextmanager
    def _refusing(self, answer: Callable[[bytes | None], None]) -> Generator[None]:
        """Close the connection if a request fails as a whole."""
        try:
            yield
        except BadRequest as error:
            self._failed(str(error))
            answer(None)
        except Exception as error:  # noqa: BLE001 - It is logged.
            self._service.failed(error)
            self._failed("an internal error")
            answer(None)

    def _next(self) -> _Queued | None:
        """Return the next request of a turn; None ends its submitting."""
        with self._lock:
            self._is_submitting = bool(self._queued)
            return self._queued.popleft() if self._queued else None

    def _answer(self, submitted: _Submitted) -> None:
        values = submitted.response()
        if submitted.request.body.acks != 0:
            submitted.answer(submitted.request.response(values))
            return
        results = [result for each in values["responses"] for result in each["partition_responses"]]
        if any("error_code" in result for result in results):
            self._failed("a batch without acknowledgement was refused")  # All that a client sees.
        submitted.answer(None)

    def _submit(self, queued: _Queued) -> _Submitted:
        request = replace(parse(queued.head, queued.frame), throttled_ms=queued.throttled_ms)
        body = request.body
        partitions: list[tuple[str, int, _Written | Exception]] = []
        for asked in body.topic_data:
            writer = _TopicWriter(self._service, self._principal, body, asked.name, self._gaps)
            for part in asked.partition_data:
                written: _Written | Exception
                try:
                    written = writer.write(part.index, part.records)
                except FAILURES as error:
                    self._service.failed(error)
                    written = error
                partitions.append((asked.name, part.index, written))
        return _Submitted(request, queued.answer, partitions)


class _TopicWriter:
    """Submits the batches of one topic of a request."""

    def __init__(
        self,
        service: KafkaService,
        principal: Principal,
        request: Any,
        name: str,
        gaps: _Gaps,
    ) -> None:
        self._service = service
        self._principal = principal
        self._request = request
        self._name = name
        self._gaps = gaps
        self._topic: Topic | None = None
        self._preparer: Preparer

    def write(self, number: int, data: bytes | None) -> _Written:
        """Check a batch and submit it.

        Raises:
            KafkaError: It is refused.
            WingsError: It is refused by the log.
        """
        if self._request.acks not in _ACKS:
            raise KafkaError(ErrorCode.invalid_required_acks)
        service = self._service
        topic = self._found()
        partition = topics.partition_at(topic, number)
        # Until its rows count as those that wait to be committed.
        with service.unfolding.taking() as take:
            decoded = decode(data or b"", service.log.limits.batch_bytes_max, take)
            _check_keys(decoded.records, topic)
            sequence, transaction = _sequence(decoded.head), self._transaction(decoded.head)
            with self._gaps.guarding(topic, partition, sequence) as refuse:
                stage = None
                if transaction is not None:
                    stage = stage_entry(*transaction, topic.uuid, partition)
                options = PushOptions(partition, partition_sequence=sequence, stage=stage)
                if topics.is_json(topic):
                    rows = json_records.rows_of(decoded.records, number, topic)
                    try:
                        prepared = self._preparer.prepare(rows, options)
                    except InvalidArgument as error:
                        raise json_records.of_row(error) from None
                else:
                    rows = rows_of(decoded.records, number, topic.schema)
                    prepared = self._preparer.prepare(rows, options)
                # A stream of its own: a batch that is rejected does not reject those after it.
                pending = service.log.group_commit.submit(PushStream(), prepared, awaited=True)
            size, count = prepared.bytes, rows.num_rows
            as_it_came = None if transaction or topics.is_json(topic) else data
            return _Written(
                pending, topic, partition, count, size, service, transaction, as_it_came, refuse
            )

    def _transaction(self, head: BatchHead) -> tuple[str, ProducerEpoch] | None:
        """Return the name and producer of a batch's transaction; None of a batch of none.

        Raises:
            KafkaError: The batch and its request differ in this.
        """
        transactional_id = self._request.transactional_id
        if bool(head.attributes & _TRANSACTIONAL) != (transactional_id is not None):
            raise KafkaError(ErrorCode.invalid_txn_state)
        if transactional_id is None:
            return None
        name = name_of(self._service, transactional_id)
        return name, ProducerEpoch(head.producer_id, head.producer_epoch)

    def _found(self) -> Topic:
        if self._topic is None:
            service = self._service
            name = service.topics.wings_name(self._name)
            service.gate.allow(self._principal, "push", str(name))
            self._topic = service.topics.find(self._name)
            self._preparer = Preparer(self._topic, service.log.limits)
        return self._topic


def _check_keys(records: Records, topic: Topic) -> None:
    """Check that no key is missing, as programs that compact rely on.

    Raises:
        KafkaError: The records without a key, where the topic's policy is to compact.
    """
    kafka = topic.config.kafka
    if kafka is not None and "compact" in kafka.cleanup_policy and records.key.null_count:
        without = cast("Any", pc).indices_nonzero(records.key.is_null())
        refused: list[int] = without.slice(0, RECORD_ERRORS_MAX).to_pylist()
        raise KafkaError(ErrorCode.invalid_record, "a compacted topic takes no null key", refused)


def _sequence(head: BatchHead) -> PartitionSequence | None:
    """Return an idempotent producer's numbers of a batch; None of another producer.

    Raises:
        KafkaError: The producer has no epoch, or the batch no sequence.
    """
    if head.producer_id < 0:
        return None
    if head.producer_epoch < 0 or head.base_sequence < 0:
        raise KafkaError(ErrorCode.invalid_record, "an idempotent producer's batch has no numbers")
    return PartitionSequence(str(head.producer_id), head.producer_epoch, head.base_sequence)


def _refusal(error: Exception) -> Values:
    message = error.message if isinstance(error, KafkaError | WingsError) else str(error)
    code = code_of(error)
    if type(error) is InvalidArgument:  # Of a checked batch, its times alone can be refused so.
        code = ErrorCode.invalid_timestamp
    records = error.records if isinstance(error, KafkaError) else ()
    return {
        "error_code": code,
        "base_offset": _NO_OFFSET,
        "record_errors": [
            {"batch_index": record, "batch_index_error_message": message} for record in records
        ],
        "error_message": message,
    }
