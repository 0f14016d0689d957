"""Where a partition begins and ends, and the first record at or after a time.

`ListOffsets`; `OffsetForLeaderEpoch`, whose only epoch ends where the partition does; and
`DeleteRecords`, which has it begin later.
"""

from collections.abc import Callable, Sequence
from typing import Any

from kio.schema.errors import ErrorCode

from wings_core.model import Topic
from wings_core.partitions import Partition
from wings_core.security.principal import Principal, authorize
from wings_core.security.rights import Right
from wings_server.kafka import topics
from wings_server.kafka.errors import FAILURES, KafkaError, code_of
from wings_server.kafka.messages import Request, Values
from wings_server.kafka.records import TIMESTAMP_MAX
from wings_server.kafka.service import KafkaService

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL = -1, -2, -3, -4
"""Values that stand in the place of a time."""

HIGH_WATERMARK = -1
"""Offset that stands for the end, where records are deleted."""

LEADER_EPOCH = 0
"""Epoch of each partition's leader, which never changes."""

_NOTHING = {"offset": -1, "timestamp": -1}


def list_offsets(service: KafkaService, principal: Principal, request: Request) -> Values:
    """Answer `ListOffsets`."""
    topic_of = service.topics.readable_by(service.gate, principal)
    return {
        "topics": [
            {"name": each.name, "partitions": _of_topic(service, topic_of, each)}
            for each in request.body.topics
        ]
    }


def _of_topic(
    service: KafkaService, topic_of: Callable[[str], Topic], asked: Any
) -> Sequence[Values]:
    found: list[Values] = []
    for part in asked.partitions:
        values: Values
        try:
            topic = topic_of(asked.name)
            partition = topics.partition_at(topic, part.partition_index)
            values = _offset_of(service, topic, partition, part.timestamp)
        except FAILURES as error:
            values = {**_NOTHING, "error_code": code_of(error)}
        found.append({"partition_index": part.partition_index, **values})
    return found


def _offset_of(service: KafkaService, topic: Topic, partition: Partition, asked: int) -> Values:
    if TIMESTAMP_MAX >= asked >= 0:
        return _offset_at(service, topic, partition, asked)
    if asked > TIMESTAMP_MAX:
        return _NOTHING
    state = service.log.registry.partition_state(topic.uuid, partition)
    if asked == LATEST:
        return {"offset": state.next_offset, "timestamp": -1, "leader_epoch": LEADER_EPOCH}
    if asked in {EARLIEST, EARLIEST_LOCAL}:
        return {"offset": state.log_start_offset, "timestamp": -1, "leader_epoch": LEADER_EPOCH}
    raise KafkaError(ErrorCode.unsupported_version, f"no offset is known for {asked}")


def _offset_at(service: KafkaService, topic: Topic, partition: Partition, time: int) -> Values:
    """Return the first record whose own time is at or after one; of none, nothing."""
    found = service.fetcher.offset_at_time(topic, partition, time * 1_000)
    if found is None:
        return _NOTHING
    offset, found_time = found
    return {"offset": offset, "timestamp": found_time // 1_000, "leader_epoch": LEADER_EPOCH}


def leader_epochs(service: KafkaService, principal: Principal, request: Request) -> Values:
    """Answer `OffsetForLeaderEpoch`: the only epoch ends where the log does."""
    topic_of = service.topics.readable_by(service.gate, principal)
    return {
        "topics": [
            {
                "topic": each.topic,
                "partitions": [
                    _epoch_end(service, topic_of, each.topic, part) for part in each.partitions
                ],
            }
            for each in request.body.topics
        ]
    }


def _epoch_end(
    service: KafkaService, topic_of: Callable[[str], Topic], name: str, asked: Any
) -> Values:
    part: dict[str, Any] = {"partition": asked.partition}
    try:
        topic = topic_of(name)
        partition = topics.partition_at(topic, asked.partition)
        if asked.current_leader_epoch > LEADER_EPOCH:
            raise KafkaError(ErrorCode.unknown_leader_epoch)
        if asked.leader_epoch == LEADER_EPOCH:
            state = service.log.registry.partition_state(topic.uuid, partition)
            part |= {"leader_epoch": LEADER_EPOCH, "end_offset": state.next_offset}
    except FAILURES as error:
        part["error_code"] = code_of(error)
    return part


def delete_records(service: KafkaService, principal: Principal, request: Request) -> Values:
    """Answer `DeleteRecords`: a partition begins at the offset asked, or before a table."""
    return {
        "topics": [
            {
                "name": each.name,
                "partitions": [_deleted(service, principal, each.name, p) for p in each.partitions],
            }
            for each in request.body.topics
        ]
    }


def _deleted(service: KafkaService, principal: Principal, name: str, asked: Any) -> Values:
    part = {"partition_index": asked.partition_index}
    try:
        authorize(principal, Right.ADMIN, str(service.topics.wings_name(name)))
        topic = service.topics.find(name)
        partition = topics.partition_at(topic, asked.partition_index)
        end = service.log.registry.partition_state(topic.uuid, partition).next_offset
        offset = end if asked.offset == HIGH_WATERMARK else asked.offset
        if not 0 <= offset <= end:
            raise KafkaError(ErrorCode.offset_out_of_range)
        return {
            **part,
            "low_watermark": service.log.maintainer.delete_before(topic, partition, offset),
        }
    except FAILURES as error:
        return {**part, "low_watermark": -1, "error_code": code_of(error)}
