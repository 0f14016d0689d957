"""Requests about the cluster and its topics: brokers, coordinators, topics and configuration."""

import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any, NamedTuple, get_args

from kio.schema.errors import ErrorCode
from pydantic import ValidationError

from wings_core.contracts.actions import AlterTopic, CreateTopic, TopicBody
from wings_core.kafka_topics import BINARY_SCHEMA, PARTITION_COLUMN
from wings_core.model import KafkaConfig, Topic, TopicConfig
from wings_core.schemas import schema_to_ipc
from wings_core.security.principal import Principal, authorize
from wings_core.security.rights import Right
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

TOPIC, BROKER = 2, 4
"""Kinds of resources that have a configuration."""


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
            **_kafka_config_of(config),
        )
    except ValidationError:
        raise KafkaError(ErrorCode.invalid_partitions, f"{partitions} partitions") from None
    try:
        topic_config = TopicConfig(kafka=kafka, **_config_of(config))
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


class _Source(IntEnum):
    """Where a value comes from."""

    TOPIC = 1
    DEFAULT = 5


class _Type(IntEnum):
    """Type of a value, for programs that edit it."""

    STRING = 2
    INT = 3
    LONG = 5
    LIST = 7


class _Operation(IntEnum):
    """Treatment of a key."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


def _limit(value: str) -> int | None:
    return None if int(value) < 0 else int(value)


class _Key(NamedTuple):
    """A key of Kafka's that Wings has.

    Attributes:
        field: Its name in `TopicConfig`.
        read: Returns the field's value from Kafka's text.
        type: Its type at Kafka.
    """

    field: str
    read: Callable[[str], int | None]
    type: _Type


_KEYS: Mapping[str, _Key] = {
    "retention.ms": _Key("retention_ms", _limit, _Type.LONG),
    "retention.bytes": _Key("retention_bytes", _limit, _Type.LONG),
    "max.message.bytes": _Key("batch_bytes_max", int, _Type.INT),
    "segment.bytes": _Key("segment_bytes", int, _Type.INT),
}


CLEANUP_POLICY = "cleanup.policy"


_ROWS_KEPT = "Rows are kept until retention.ms or retention.bytes, never compacted."


_FIXED: Mapping[str, tuple[str, _Type, str]] = {
    "compression.type": ("producer", _Type.STRING, "Without effect: rows are stored as Arrow."),
    "message.timestamp.type": ("CreateTime", _Type.STRING, "Records keep the time they state."),
    "min.insync.replicas": ("1", _Type.INT, "Without effect: what is acknowledged is synced."),
}
"""Keys that are described though they change nothing: value, type, documentation."""


_WITHOUT_EFFECT = frozenset(
    [
        *_FIXED,
        CLEANUP_POLICY,  # See `_kafka_config_of`.
        "delete.retention.ms",
        "file.delete.delay.ms",
        "flush.messages",
        "flush.ms",
        "index.interval.bytes",
        "max.compaction.lag.ms",
        "min.cleanable.dirty.ratio",
        "min.compaction.lag.ms",
        "preallocate",
        "segment.index.bytes",
        "segment.jitter.ms",
        "segment.ms",
        "unclean.leader.election.enable",
    ]
)
"""Keys that programs set as a matter of course, and that change nothing here."""


def _kafka_config_of(given: Mapping[str, str | None]) -> Mapping[str, Any]:
    """Return the keys of a topic's `kafka` from Kafka's configuration.

    Raises:
        KafkaError: A value is bad.
    """
    policy = given.get(CLEANUP_POLICY)
    if policy is None:
        return {}
    ordered = ",".join(sorted({each.strip() for each in policy.split(",")}))
    if ordered not in get_args(KafkaConfig.model_fields["cleanup_policy"].annotation):
        raise KafkaError(ErrorCode.invalid_config, f"{CLEANUP_POLICY}: {policy!r:.80}")
    return {"cleanup_policy": ordered}


def _config_of(given: Mapping[str, str | None]) -> Mapping[str, Any]:
    """Return the other keys of a topic's configuration; a key without a value is left out.

    Raises:
        KafkaError: A key is unknown, or a value is bad.
    """
    config: dict[str, Any] = {}
    for name, value in given.items():
        if name in _WITHOUT_EFFECT or value is None:
            continue
        key = _key(name)
        try:
            config[key.field] = key.read(value)
        except ValueError:
            raise KafkaError(ErrorCode.invalid_config, f"{name}: {value!r:.80}") from None
    return config


def _key(name: str) -> _Key:
    if name not in _KEYS:
        raise KafkaError(ErrorCode.invalid_config, f"unknown topic config {name!r:.80}")
    return _KEYS[name]


def describe_configs(service: KafkaService, principal: Principal, request: Request) -> Values:
    """Answer `DescribeConfigs`, of topics and of this broker."""
    body = request.body
    results: list[Values] = []
    for each in body.resources:
        result: dict[str, Any] = {
            "resource_type": each.resource_type,
            "resource_name": each.resource_name,
        }
        try:
            described = _described_config(service, principal, each)
            wanted = each.configuration_keys
            result["configs"] = [
                entry if getattr(body, "include_documentation", False) else _undocumented(entry)
                for entry in described
                if not wanted or entry["name"] in wanted
            ]
        except FAILURES as error:
            result |= {"error_code": code_of(error), "error_message": error.message}
        results.append(result)
    return {"results": results}


def _undocumented(entry: Values) -> Values:
    return {**entry, "documentation": None}


def _described_config(
    service: KafkaService, principal: Principal, resource: Any
) -> Sequence[Values]:
    limits = service.log.limits
    if resource.resource_type == BROKER:
        return [_entry("message.max.bytes", limits.batch_bytes_max, _Type.INT, read_only=True)]
    if resource.resource_type != TOPIC:
        raise KafkaError(ErrorCode.invalid_request, f"no configuration of {resource.resource_type}")
    name = resource.resource_name
    if not principal.may_see(str(service.topics.wings_name(name))):
        raise KafkaError(ErrorCode.topic_authorization_failed)
    topic = service.topics.find(name)
    unset = {"max.message.bytes": limits.batch_bytes_max}
    own = [
        _entry(name, _value(topic, key.field, unset.get(name, -1)), key.type, source)
        for name, key in _KEYS.items()
        for source in [_source(topic, key.field)]
    ]
    fixed = [
        {**_entry(name, value, kind, read_only=True), "documentation": text}
        for name, (value, kind, text) in _FIXED.items()
    ]
    policy = _policy(topic)
    source = _Source.DEFAULT if policy == "delete" else _Source.TOPIC
    kept = {**_entry(CLEANUP_POLICY, policy, _Type.LIST, source), "documentation": _ROWS_KEPT}
    return [*own, kept, *fixed]


def _policy(topic: Topic) -> str:
    return "delete" if topic.config.kafka is None else topic.config.kafka.cleanup_policy


def _value(topic: Topic, field: str, unset: int) -> int:
    value = getattr(topic.config, field)
    return unset if value is None else value


def _source(topic: Topic, field: str) -> _Source:
    default = TopicConfig.model_fields[field].default
    return _Source.DEFAULT if getattr(topic.config, field) == default else _Source.TOPIC


def _entry(
    name: str,
    value: object,
    kind: _Type,
    source: _Source = _Source.DEFAULT,
    *,
    read_only: bool = False,
) -> Values:
    return {
        "name": name,
        "value": str(value),
        "read_only": read_only,
        "config_source": source,
        "config_type": kind,
    }


def alter_configs(service: KafkaService, principal: Principal, request: Request) -> Values:
    """Answer `IncrementalAlterConfigs`, of topics; each is altered as a whole or not at all."""
    body = request.body
    responses: list[Values] = []
    for each in body.resources:
        response: dict[str, Any] = {
            "resource_type": each.resource_type,
            "resource_name": each.resource_name,
        }
        try:
            _alter(service, principal, each, only_checked=body.validate_only)
        except FAILURES as error:
            response |= {"error_code": code_of(error), "error_message": error.message}
        responses.append(response)
    return {"responses": responses}


def _alter(
    service: KafkaService, principal: Principal, resource: Any, *, only_checked: bool
) -> None:
    if resource.resource_type != TOPIC:
        raise KafkaError(ErrorCode.invalid_request, "only configuration of topics can be altered")
    full_name = service.topics.wings_name(resource.resource_name)
    authorize(principal, Right.ADMIN, str(full_name))
    topic = service.topics.find(resource.resource_name)
    change = _change(topic, resource.configs)
    try:
        config = TopicConfig(**change)
    except ValidationError as error:
        raise KafkaError(ErrorCode.invalid_config, str(error)[:400]) from None
    if change and not only_checked:
        service.gate.run(principal, "alter-topic", AlterTopic(topic=str(full_name), config=config))


def _change(topic: Topic, entries: Iterable[Any]) -> Mapping[str, Any]:
    """Return the fields of a topic's configuration that entries of a request set or delete.

    Raises:
        KafkaError: A key is unknown, or a value is bad.
    """
    given: dict[str, str] = {}
    change: dict[str, Any] = {}
    for each in entries:
        if each.config_operation == _Operation.SET and each.value is not None:
            given[each.name] = each.value
        elif each.config_operation == _Operation.DELETE:
            if each.name == CLEANUP_POLICY:
                given[each.name] = "delete"
            elif each.name in _KEYS:  # Others have no value, as at Kafka.
                change[_KEYS[each.name].field] = None
        elif each.name == CLEANUP_POLICY:
            named = [part.strip() for part in (each.value or "").split(",")]
            before = given.get(CLEANUP_POLICY, _policy(topic)).split(",")
            left = [part for part in before if part not in named]
            is_more = each.config_operation == _Operation.APPEND
            given[CLEANUP_POLICY] = ",".join([*left, *named] if is_more else left)
        elif each.name not in _WITHOUT_EFFECT:
            raise KafkaError(ErrorCode.invalid_config, f"{each.name:.80} is no list")
    change |= _config_of(given)
    kafka, policy = topic.config.kafka, _kafka_config_of(given)
    if policy and kafka is not None:
        change["kafka"] = KafkaConfig(partitions=kafka.partitions, **policy)
    return change
