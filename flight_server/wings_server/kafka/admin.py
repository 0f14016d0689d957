"""Requests of administrators: the cluster, more partitions, and ends of leaders' epochs."""

from typing import Any

from kio.schema.errors import ErrorCode
from pydantic import ValidationError

from wings_core.contracts.actions import AlterTopic
from wings_core.errors import WingsError
from wings_core.model import KafkaConfig, TopicConfig
from wings_core.security.principal import Principal, authorize
from wings_core.security.rights import Right
from wings_server.kafka import topics
from wings_server.kafka.errors import KafkaError, code_of
from wings_server.kafka.messages import Request, Values
from wings_server.kafka.service import BROKER_ID, CLUSTER_ID, KafkaService

LEADER_EPOCH = 0
"""Epoch of each partition's leader, which never changes."""

_BROKERS = 1
_FAILURES = (KafkaError, WingsError)


def describe_cluster(service: KafkaService, principal: Principal, request: Request) -> Values:
    """Answer `DescribeCluster`: one broker, which is the controller."""
    del principal
    kind = getattr(request.body, "endpoint_type", _BROKERS)
    if kind != _BROKERS:
        refused = ErrorCode.mismatched_endpoint_type
        return {"error_code": refused, "error_message": "brokers only", "endpoint_type": kind}
    address = service.address
    return {
        "cluster_id": CLUSTER_ID,
        "controller_id": BROKER_ID,
        "brokers": [{"broker_id": BROKER_ID, "host": address.host, "port": address.port}],
    }


def create_partitions(service: KafkaService, principal: Principal, request: Request) -> Values:
    """Answer `CreatePartitions`, which raises the number of a topic's partitions."""
    body = request.body
    results: list[Values] = []
    for each in body.topics:
        result: dict[str, Any] = {"name": each.name}
        try:
            _raise_partitions(service, principal, each, only_checked=body.validate_only)
        except _FAILURES as error:
            result |= {"error_code": code_of(error), "error_message": error.message}
        results.append(result)
    return {"results": results}


def _raise_partitions(
    service: KafkaService, principal: Principal, asked: Any, *, only_checked: bool
) -> None:
    full_name = service.topics.wings_name(asked.name)
    authorize(principal, Right.ADMIN, str(full_name))
    known = topics.partition_count(service.topics.find(asked.name))
    if asked.count <= known:
        raise KafkaError(ErrorCode.invalid_partitions, f"the topic has {known} partitions")
    if asked.assignments is not None and len(asked.assignments) != asked.count - known:
        raise KafkaError(ErrorCode.invalid_replica_assignment)
    try:
        config = TopicConfig(kafka=KafkaConfig(partitions=asked.count))
    except ValidationError:
        raise KafkaError(ErrorCode.invalid_partitions, f"{asked.count} partitions") from None
    if not only_checked:
        service.gate.run(principal, "alter-topic", AlterTopic(topic=str(full_name), config=config))


def leader_epochs(service: KafkaService, principal: Principal, request: Request) -> Values:
    """Answer `OffsetForLeaderEpoch`: the only epoch ends where the log does."""
    return {
        "topics": [
            {
                "topic": each.topic,
                "partitions": [
                    _epoch_end(service, principal, each.topic, part) for part in each.partitions
                ],
            }
            for each in request.body.topics
        ]
    }


def _epoch_end(service: KafkaService, principal: Principal, name: str, asked: Any) -> Values:
    part: dict[str, Any] = {"partition": asked.partition}
    try:
        topic = service.topics.readable(service.gate, principal, name)
        partition = topics.partition_at(topic, asked.partition)
        if asked.current_leader_epoch > LEADER_EPOCH:
            raise KafkaError(ErrorCode.unknown_leader_epoch)
        if asked.leader_epoch == LEADER_EPOCH:
            state = service.log.registry.partition_state(topic.uuid, partition)
            part |= {"leader_epoch": LEADER_EPOCH, "end_offset": state.next_offset}
    except _FAILURES as error:
        part["error_code"] = code_of(error)
    return part
