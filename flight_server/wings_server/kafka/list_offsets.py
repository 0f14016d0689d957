"""`ListOffsets`: where a partition begins and ends, and the first record at or after a time."""

from collections.abc import Sequence
from typing import Any

from kio.schema.errors import ErrorCode

from wings_core.errors import WingsError
from wings_core.model import Topic
from wings_core.partitions import Partition
from wings_core.security.principal import Principal
from wings_server.kafka import topics
from wings_server.kafka.errors import KafkaError, code_of
from wings_server.kafka.messages import Request, Values
from wings_server.kafka.service import KafkaService

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL = -1, -2, -3, -4
"""Values that stand in the place of a time."""

TIME_MAX = 253_402_300_799_999
"""Latest time that is looked for: the last millisecond of the year 9999."""

_NOTHING = {"offset": -1, "timestamp": -1}


async def list_offsets(service: KafkaService, principal: Principal, request: Request) -> bytes:
    """Answer `ListOffsets`."""

    def listed() -> bytes:
        return request.response(
            {
                "topics": [
                    {"name": each.name, "partitions": _of_topic(service, principal, each)}
                    for each in request.body.topics
                ]
            }
        )

    return await service.read(listed)


def _of_topic(service: KafkaService, principal: Principal, asked: Any) -> Sequence[Values]:
    found: list[Values] = []
    for part in asked.partitions:
        values: Values
        try:
            topic = service.topics.readable(service.gate, principal, asked.name)
            partition = topics.partition_at(topic, part.partition_index)
            values = _offset_of(service, topic, partition, part.timestamp)
        except (KafkaError, WingsError) as error:
            values = {**_NOTHING, "error_code": code_of(error)}
        found.append({"partition_index": part.partition_index, **values})
    return found


def _offset_of(service: KafkaService, topic: Topic, partition: Partition, asked: int) -> Values:
    if TIME_MAX >= asked >= 0:
        return _offset_at(service, topic, partition, asked)
    if asked > TIME_MAX:
        return _NOTHING
    state = service.log.registry.partition_state(topic.uuid, partition)
    if asked == LATEST:
        return {"offset": state.next_offset, "timestamp": -1, "leader_epoch": 0}
    if asked in {EARLIEST, EARLIEST_LOCAL}:
        return {"offset": state.log_start_offset, "timestamp": -1, "leader_epoch": 0}
    raise KafkaError(ErrorCode.unsupported_version, f"no offset is known for {asked}")


def _offset_at(service: KafkaService, topic: Topic, partition: Partition, time: int) -> Values:
    """Return the first record whose own time is at or after one; of none, nothing."""
    found = service.fetcher.offset_at_time(topic, partition, time * 1_000)
    if found is None:
        return _NOTHING
    offset, found_time = found
    return {"offset": offset, "timestamp": found_time // 1_000, "leader_epoch": 0}
