"""Requests of transactional and idempotent producers; see `wings_core.metadata.stages`.

The transactions of a namespace are those of names `TENANT/NAMESPACE/TRANSACTIONAL_ID`. An open one
is aborted within the request that ends it, so no request is answered CONCURRENT_TRANSACTIONS.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable
from functools import partial
from typing import Any

from kio.schema.errors import ErrorCode

from wings_core.errors import PermissionDenied, PublishFenced, WingsError
from wings_core.metadata.stages import TIMEOUT_MS_MAX
from wings_core.model import ConsumerCommit, MemberEpoch, ProducerEpoch, Topic
from wings_core.partitions import Partition
from wings_core.security.principal import Principal
from wings_core.security.rights import SOMEWHERE, Right
from wings_server.kafka import topics
from wings_server.kafka.errors import FAILURES, KafkaError, code_of
from wings_server.kafka.group_requests import (
    OffsetsToCommit,
    admit,
    caller_of,
    committing,
    offset_results,
)
from wings_server.kafka.messages import Api, Request, Values
from wings_server.kafka.service import KafkaService

EXPIRE_SECONDS = 1.0
"""How often the server looks for transactions past their deadline."""

EXPIRED_MAX = 100
"""Most transactions that one look aborts."""

_FENCED_FROM = {
    Api.INIT_PRODUCER_ID: 4,
    Api.ADD_PARTITIONS_TO_TXN: 2,
    Api.ADD_OFFSETS_TO_TXN: 2,
    Api.END_TXN: 2,
}
"""First versions whose clients know PRODUCER_FENCED."""

_logger = logging.getLogger(__name__)


def init_producer_id(service: KafkaService, principal: Principal, request: Request) -> Values:
    """Answer `InitProducerId`.

    A transactional producer joins its id; an idempotent one gets an id that nobody had before: ids
    are random numbers of 62 bits, so that no counter has to be durable.
    """
    body = request.body
    if not principal.may(Right.WRITE, SOMEWHERE):
        refused = ErrorCode.cluster_authorization_failed
        if body.transactional_id is not None:
            refused = ErrorCode.transactional_id_authorization_failed
        return {"error_code": refused, "producer_id": -1}
    if body.transactional_id is None:
        return {"producer_id": secrets.randbits(62), "producer_epoch": 0}
    timeout_ms = round(body.transaction_timeout.total_seconds() * 1_000)
    if not 1 <= timeout_ms <= TIMEOUT_MS_MAX:
        return {"error_code": ErrorCode.invalid_transaction_timeout, "producer_id": -1}
    held = None
    if getattr(body, "producer_id", -1) >= 0 and body.producer_epoch >= 0:
        held = ProducerEpoch(body.producer_id, body.producer_epoch)
    name = name_of(service, body.transactional_id)
    try:
        joined = service.log.metadata.transactions.join(name, timeout_ms, held)
    except WingsError as error:
        return {"error_code": _code(request, error), "producer_id": -1}
    return {"producer_id": joined.producer_id, "producer_epoch": joined.epoch}


def add_partitions(service: KafkaService, principal: Principal, request: Request) -> Values:
    """Answer `AddPartitionsToTxn`: all partitions are added, or none."""
    body = request.body
    name = name_of(service, body.v3_and_below_transactional_id)
    producer = ProducerEpoch(body.v3_and_below_producer_id, body.v3_and_below_producer_epoch)
    asked = body.v3_and_below_topics
    codes = _added(service, principal, request, name, producer, asked)
    return {
        "results_by_topic_v3_and_below": [
            {
                "name": each.name,
                "results_by_partition": [
                    {"partition_index": number, "partition_error_code": codes[each.name, number]}
                    for number in each.partitions
                ],
            }
            for each in asked
        ]
    }


def _added(
    service: KafkaService,
    principal: Principal,
    request: Request,
    name: str,
    producer: ProducerEpoch,
    asked: Any,
) -> dict[tuple[str, int], ErrorCode]:
    """Add partitions to a transaction; returns the code of each."""
    found: list[tuple[Topic, Partition]] = []
    codes: dict[tuple[str, int], ErrorCode] = {}
    keys = [(each.name, number) for each in asked for number in each.partitions]
    for topic_name, number in keys:
        try:
            full_name = service.topics.wings_name(topic_name)
            service.gate.allow(principal, "push", str(full_name))
            topic = service.topics.find(topic_name)
            found.append((topic, topics.partition_at(topic, number)))
        except FAILURES as error:
            codes[topic_name, number] = code_of(error)
    code = ErrorCode.operation_not_attempted
    if not codes:
        transactions = service.log.metadata.transactions
        code = _done(request, lambda: transactions.add_partitions(name, producer, found))
    return dict.fromkeys(keys, code) | codes


def add_offsets(service: KafkaService, principal: Principal, request: Request) -> Values:
    """Answer `AddOffsetsToTxn`, which only opens a transaction: `TxnOffsetCommit` has the rest."""
    name, producer = _transaction(service, request)
    transactions = service.log.metadata.transactions
    nothing = ConsumerCommit(service.consumer_of(request.body.group_id), ())
    try:
        admit(principal)
    except KafkaError as error:
        return {"error_code": error.code}
    return {"error_code": _done(request, lambda: transactions.add_offsets(name, producer, nothing))}


def commit_offsets(service: KafkaService, principal: Principal, request: Request) -> Values:
    """Answer `TxnOffsetCommit`: those offsets that can be committed are kept for the commit."""
    body = request.body
    name, producer = _transaction(service, request)
    transactions = service.log.metadata.transactions

    def check_member() -> MemberEpoch | None:
        if getattr(body, "generation_id", -1) < 0 and not getattr(body, "member_id", ""):
            return None
        return committing(service, body.group_id, caller_of(body))

    try:
        admit(principal)
        member = check_member()
        asked = OffsetsToCommit(service, principal, body.topics)
        asked.commit(
            body.group_id,
            member,
            lambda given: transactions.add_offsets(name, producer, given),
            partial(_code, request),
        )
        # Once more: the member that comes after this one asks for stable offsets after this check,
        # and is told that these are pending.
        check_member()
    except FAILURES as error:
        return offset_results(body.topics, {}, _code(request, error))
    return offset_results(body.topics, asked.codes)


def end(service: KafkaService, principal: Principal, request: Request) -> Values:
    """Answer `EndTxn`."""
    del principal
    name, producer = _transaction(service, request)
    transactions, is_commit = service.log.metadata.transactions, request.body.committed

    def change() -> None:
        ended = transactions.end(name, producer, commit=is_commit)
        service.metrics.published("kafka", ended)

    return {"error_code": _done(request, change)}


def _transaction(service: KafkaService, request: Request) -> tuple[str, ProducerEpoch]:
    """Return the name and the producer of the transaction that a request is of."""
    body = request.body
    name = name_of(service, body.transactional_id)
    return name, ProducerEpoch(body.producer_id, body.producer_epoch)


async def expire_forever(service: KafkaService) -> None:
    """Abort transactions past their deadline until cancelled."""
    while True:
        await asyncio.sleep(EXPIRE_SECONDS)
        try:
            await service.write(lambda: service.log.metadata.transactions.expire(EXPIRED_MAX))
        except WingsError as error:
            _logger.warning("could not abort transactions past their deadline: %s", error)


def name_of(service: KafkaService, transactional_id: str) -> str:
    """Return the name of a transactional id's transactions, which is of its namespace."""
    return f"{service.topics.namespace}/{transactional_id}"


def refusal_of_batch(
    service: KafkaService, name: str, producer: ProducerEpoch, error: WingsError
) -> KafkaError:
    """Return why a batch has no stage: its producer was fenced, or no transaction has it."""
    found = service.log.metadata.transactions.find(name)
    if found is None or found.producer_id != producer.producer_id:
        return KafkaError(ErrorCode.invalid_producer_id_mapping, error.message)
    if found.epoch != producer.epoch:
        return KafkaError(ErrorCode.invalid_producer_epoch, error.message)
    return KafkaError(ErrorCode.invalid_txn_state, error.message)


def _done(request: Request, change: Callable[[], object]) -> ErrorCode:
    try:
        change()
    except WingsError as error:
        return _code(request, error)
    return ErrorCode.none


def _code(request: Request, error: Exception) -> ErrorCode:
    if isinstance(error, PublishFenced):
        if error.facts.get("epoch") is None:
            return ErrorCode.invalid_producer_id_mapping
        if request.head.version >= _FENCED_FROM.get(request.head.api, 1 << 15):
            return ErrorCode.producer_fenced
    if isinstance(error, PermissionDenied):
        return ErrorCode.transactional_id_authorization_failed
    return code_of(error, retried=ErrorCode.coordinator_not_available)
