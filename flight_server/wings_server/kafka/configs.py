"""Configuration of topics by Kafka's keys: read when a topic is made, described and altered."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any, NamedTuple, get_args

from kio.schema.errors import ErrorCode
from pydantic import ValidationError

from wings_core.contracts.actions import AlterTopic
from wings_core.model import KafkaConfig, Topic, TopicConfig
from wings_core.security.principal import Principal, authorize
from wings_core.security.rights import Right
from wings_server.kafka.errors import FAILURES, KafkaError, code_of
from wings_server.kafka.messages import Request, Values
from wings_server.kafka.service import KafkaService

TOPIC, BROKER = 2, 4
"""Kinds of resources that have a configuration."""


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
        CLEANUP_POLICY,  # See `kafka_config_of`.
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


def kafka_config_of(given: Mapping[str, str | None]) -> Mapping[str, Any]:
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


def config_of(given: Mapping[str, str | None]) -> Mapping[str, Any]:
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
            described = _described(service, principal, each)
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


def _described(service: KafkaService, principal: Principal, resource: Any) -> Sequence[Values]:
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
    change |= config_of(given)
    kafka, policy = topic.config.kafka, kafka_config_of(given)
    if policy and kafka is not None:
        change["kafka"] = KafkaConfig(partitions=kafka.partitions, **policy)
    return change
