"""`ListOffsets`: where a partition begins and ends, and the first record at or after a time."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from kio.schema.errors import ErrorCode

from wings_core.contracts.reads import ReadOptions
from wings_core.errors import WingsError
from wings_core.fetch.cursors import PartitionCursor
from wings_core.fetch.fetcher import Cancel, Read
from wings_core.fetch.selection import Selection
from wings_core.model import Topic
from wings_core.partitions import Partition
from wings_core.security.principal import Principal
from wings_server.kafka import topics
from wings_server.kafka.errors import KafkaError, code_of
from wings_server.kafka.messages import Request, Values
from wings_server.kafka.service import KafkaService

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL = -1, -2, -3, -4
"""Values that stand in the place of a time."""

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
    if asked >= 0:
        return _offset_at(service, topic, partition, asked)
    state = service.log.registry.partition_state(topic.uuid, partition)
    if asked == LATEST:
        return {"offset": state.next_offset, "timestamp": -1, "leader_epoch": 0}
    if asked in {EARLIEST, EARLIEST_LOCAL}:
        return {"offset": state.log_start_offset, "timestamp": -1, "leader_epoch": 0}
    raise KafkaError(ErrorCode.unsupported_version, f"no offset is known for {asked}")


def _offset_at(service: KafkaService, topic: Topic, partition: Partition, time: int) -> Values:
    """Return the first record whose own time is at or after one; of none, nothing.

    Records before the time of commit are passed over: a record is younger than the one that it
    states only where its producer's clock runs ahead.
    """
    fetcher, registry = service.fetcher, service.log.registry
    begin = fetcher.offset_for_timestamp(topic, partition, time * 1_000)
    state = registry.partition_state(topic.uuid, partition)
    cursor = PartitionCursor(partition, begin, state.next_offset, clamps=True)
    selection = Selection.of(topic, ReadOptions(columns=("timestamp",)))
    for chunk in fetcher.scan(Read.of(topic, [cursor], selection), Cancel()):
        times: Any = chunk.batch.column(0).cast(pa.int64()).fill_null(-1).to_numpy()
        late = (times >= time).nonzero()[0]
        if len(late):
            ((_, start_offset, _, _),) = chunk.ranges
            at = int(late[0])
            return {"offset": start_offset + at, "timestamp": int(times[at]), "leader_epoch": 0}
    return _NOTHING
