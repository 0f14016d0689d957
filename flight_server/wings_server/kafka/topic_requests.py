"""Requests about the cluster and its topics: brokers, coordinators, topics and partitions."""

import uuid
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from kio.schema.errors import ErrorCode
from pydantic import ValidationError

from wings_core.contracts.actions import AlterTopic, CreateTopic, TopicBody
from wings_core.kafka_topics import BINARY_SCHEMA, PARTITION_COLUMN
from wings_core.model import KafkaConfig, Topic, TopicConfig
from wings_core.schemas import schema_to_ipc
from wings_core.security.principal import Principal, authorize
from wings_core.security.rights import Right
from wings_server.kafka.configs import config_of, kafka_config_of
from wings_server.kafka.errors import FAILURES, KafkaError, code_of
from wings_server.kafka.group_requests import coordinator_of, group_code
from wings_server.kafka.messages import Request, Values
from wings_server.kafka.service import CLUSTER_ID, KafkaService
from wings_server.kafka.topics import partition_count
from wings_server.kafka.transaction_requests import name_of

TOPIC_STATES_FROM = 6
"""Version of `DeleteTopics` from which topics are named by structures, perhaps by their ids."""

COORDINATOR_KEYS_FROM = 4
"""Version of `FindCoordinator` from which several coordinators are asked for."""

_GROUP_KEY, _TRANSACTION_KEY = 0, 1
_BROKERS = 1


def metadata(service: KafkaService, principal: Principal, request: Request) -> Values:
    """Answer `Metadata`, making topics that are named where the client allows it."""
    body = request.body
    if body.topics is None or (request.head.version == 0 and not body.topics):
        described = [_described(service, topic) for topic in service.topics.visible(principal)]
    else:
        makes = getattr(body, "allow_auto_topic_creation", True)
        described = [_named(service, principal, each, makes=makes) for each in body.topics]
    return {
        "brokers": [{"node_id": id_, **at} for id_, at in _addresses(service).items()],
        "cluster_id": CLUSTER_ID,
        "controller_id": service.brokers.own_id(),  # Any node changes topics; this one answers.
        "topics": described,
    }


def _named(service: KafkaService, principal: Principal, asked: Any, *, makes: bool) -> Values:
    """Describe a topic that a request names, by its name or its id."""
    found, topic_id = service.topics, getattr(asked, "topic_id", None)
    try:
        if asked.name is None:
            topic = found.find_id(topic_id)
            if not principal.may_see(str(topic.name)):
                raise KafkaError(ErrorCode.unknown_topic_id)
            return _described(service, topic)
        name = found.wings_name(asked.name)
        if not principal.may_see(str(name)):
            raise KafkaError(ErrorCode.topic_authorization_failed)
        try:
            return _described(service, found.find(asked.name))
        except KafkaError:
            if not makes:
                raise
        made = _create(service, principal, asked.name, service.new_partitions, {})
        return _described(service, made)
    except FAILURES as error:
        return {"error_code": code_of(error), "name": asked.name, "topic_id": topic_id}


def _addresses(service: KafkaService) -> Mapping[int, Values]:
    """Return the fields of the live brokers' addresses by their numbers."""
    live = service.brokers.live()
    return {id_: {"host": each.host, "port": each.port} for id_, each in live.items()}


def _described(service: KafkaService, topic: Topic) -> Values:
    leaders = service.brokers.leaders(topic.uuid, partition_count(topic))
    return {
        "name": topic.kafka_name,
        "topic_id": uuid.UUID(topic.uuid),
        "partitions": [
            {
                "partition_index": number,
                "leader_id": leader,
                "leader_epoch": 0,
                "replica_nodes": [leader],
                "isr_nodes": [leader],
            }
            for number, leader in enumerate(leaders)
        ],
    }


def create_topics(service: KafkaService, principal: Principal, request: Request) -> Values:
    """Answer `CreateTopics`; one that is named twice is not made."""
    body = request.body
    results: list[Values] = []
    times = Counter(each.name for each in body.topics)
    for each in {each.name: each for each in body.topics}.values():
        result: Values
        try:
            if times[each.name] > 1:
                raise KafkaError(ErrorCode.invalid_request, "the topic is named twice")
            result = _created(service, principal, each, only_checked=body.validate_only)
        except FAILURES as error:
            result = {"error_code": code_of(error), "error_message": error.message}
        results.append({"name": each.name, **result})
    return {"topics": results}


def _created(
    service: KafkaService, principal: Principal, asked: Any, *, only_checked: bool
) -> Values:
    count = len(asked.assignments) or asked.num_partitions
    count = service.new_partitions if count == -1 else count
    given = {each.name: each.value for each in asked.configs}
    values: dict[str, Any] = {"num_partitions": count, "replication_factor": 1, "configs": []}
    if only_checked:
        _body(service, asked.name, count, given)
        return values
    topic = _create(service, principal, asked.name, count, given)
    return {**values, "topic_id": uuid.UUID(topic.uuid)}


def _create(
    service: KafkaService,
    principal: Principal,
    name: str,
    partitions: int,
    config: Mapping[str, str | None],
) -> Topic:
    """Create a topic as the action does, with its right and its quotas."""
    service.gate.run(principal, "create-topic", _body(service, name, partitions, config))
    return service.topics.find(name)


def _body(
    service: KafkaService, name: str, partitions: int, config: Mapping[str, str | None]
) -> CreateTopic:
    """Return the action that creates a topic of Kafka's configuration."""
    full_name = service.topics.wings_name(name)
    try:
        kafka = KafkaConfig(
            partitions=partitions,
            name=None if name == full_name.topic else name,
            value="binary",
            **kafka_config_of(config),
        )
    except ValidationError:
        raise KafkaError(ErrorCode.invalid_partitions, f"{partitions} partitions") from None
    try:
        topic_config = TopicConfig(kafka=kafka, **config_of(config))
    except ValidationError as error:
        raise KafkaError(ErrorCode.invalid_config, str(error)[:400]) from None
    return CreateTopic(
        topic=str(full_name),
        schema_ipc=schema_to_ipc(BINARY_SCHEMA),
        partition_key=PARTITION_COLUMN,
        config=topic_config,
    )


def create_partitions(service: KafkaService, principal: Principal, request: Request) -> Values:
    """Answer `CreatePartitions`, which raises the number of a topic's partitions."""
    body = request.body
    results: list[Values] = []
    for each in body.topics:
        result: dict[str, Any] = {"name": each.name}
        try:
            _raise_partitions(service, principal, each, only_checked=body.validate_only)
        except FAILURES as error:
            result |= {"error_code": code_of(error), "error_message": error.message}
        results.append(result)
    return {"results": results}


def _raise_partitions(
    service: KafkaService, principal: Principal, asked: Any, *, only_checked: bool
) -> None:
    full_name = service.topics.wings_name(asked.name)
    authorize(principal, Right.ADMIN, str(full_name))
    known = partition_count(service.topics.find(asked.name))
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


def delete_topics(service: KafkaService, principal: Principal, request: Request) -> Values:
    """Answer `DeleteTopics`, of topics by their names or, from version 6 on, by their ids."""
    body = request.body
    named: Iterable[tuple[str | None, uuid.UUID | None]]
    if request.head.version < TOPIC_STATES_FROM:
        named = [(name, None) for name in body.topic_names]
    else:
        named = [(each.name, each.topic_id) for each in body.topics]
    return {"responses": [_deleted(service, principal, *each) for each in named]}


def _deleted(
    service: KafkaService, principal: Principal, name: str | None, topic_id: uuid.UUID | None
) -> Values:
    result: dict[str, Any] = {"name": name, "topic_id": topic_id}
    try:
        if name is None:
            topic = service.topics.find_id(topic_id)
            full_name = topic.name
            result["name"] = topic.kafka_name
        else:
            full_name = service.topics.wings_name(name)
            if principal.may_see(str(full_name)):  # Else the action is refused.
                service.topics.find(name)
        service.gate.run(principal, "delete-topic", TopicBody(topic=str(full_name)))
    except FAILURES as error:
        result |= {"error_code": code_of(error), "error_message": error.message}
    return result


def find_coordinator(service: KafkaService, principal: Principal, request: Request) -> Values:
    """Answer `FindCoordinator`, of groups or of transactional ids."""
    del principal
    body = request.body
    kind = getattr(body, "key_type", _GROUP_KEY)
    if request.head.version < COORDINATOR_KEYS_FROM:
        return _coordinator(service, kind, body.key)
    return {
        "coordinators": [
            {"key": key, **_coordinator(service, kind, key)} for key in body.coordinator_keys
        ]
    }


def _coordinator(service: KafkaService, kind: int, key: str) -> Values:
    """Return where the coordinator of a key is.

    A transaction is in metadata, so any node is right; all name the same one.
    """
    try:
        if kind == _GROUP_KEY:
            broker = coordinator_of(service, key)
        elif kind == _TRANSACTION_KEY:
            broker = service.brokers.named(name_of(service, key))
        else:
            raise KafkaError(ErrorCode.invalid_request, "share groups are not served")
        addresses = _addresses(service)
        if broker is None or broker not in addresses:
            refused = "the group is changing nodes"
            raise KafkaError(ErrorCode.coordinator_not_available, refused)
        return {"node_id": broker, **addresses[broker]}
    except FAILURES as error:
        refused = {"error_code": group_code(error), "error_message": error.message}
        return {"node_id": -1, "host": "", "port": -1, **refused}


def describe_cluster(service: KafkaService, principal: Principal, request: Request) -> Values:
    """Answer `DescribeCluster`: the live nodes, of which this one is named as the controller."""
    del principal
    kind = getattr(request.body, "endpoint_type", _BROKERS)
    if kind != _BROKERS:
        refused = ErrorCode.mismatched_endpoint_type
        return {"error_code": refused, "error_message": "brokers only", "endpoint_type": kind}
    return {
        "cluster_id": CLUSTER_ID,
        "controller_id": service.brokers.own_id(),
        "brokers": [{"broker_id": id_, **at} for id_, at in _addresses(service).items()],
    }
