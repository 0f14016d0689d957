"""The first message at or after a time by a column of its own, against a look at all rows."""

import random
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

from wings_core.data_directory import DataDirectory
from wings_core.deployments import OneDirectory
from wings_core.errors import InvalidArgument
from wings_core.ingest.pending import PushStream
from wings_core.ingest.prepare import Preparer, PushOptions
from wings_core.kafka_topics import BINARY_SCHEMA
from wings_core.limits import Limits
from wings_core.log import Log
from wings_core.model import Accepted, CommitResult, KafkaConfig, Rejected, Topic, TopicConfig
from wings_core.names import TopicName
from wings_core.partitions import Partition

NAME = TopicName.parse("t")
ZERO = Partition("0")
CONFIG = TopicConfig(kafka=KafkaConfig(partitions=1), tier_after_ms=0, segment_bytes=1)


def push(log: Log, topic: Topic, times: Sequence[int | None]) -> CommitResult:
    """Push a row for each time, in milliseconds; what the producer says of the batch is earlier."""
    rows = [{"partition": 0, "timestamp": time} for time in times]
    batch = pa.RecordBatch.from_pylist(rows, schema=BINARY_SCHEMA)
    prepared = Preparer(topic, log.limits).prepare(batch, PushOptions(timestamp=0))
    (result,) = log.group_commit.submit(PushStream(), prepared, awaited=True).outcomes()
    return result


def first_at(times: Sequence[int | None], time: int) -> tuple[int, int] | None:
    late = ((at, each) for at, each in enumerate(times) if each is not None and each >= time)
    return next(((at, each * 1_000) for at, each in late), None)


@pytest.mark.parametrize("seed", range(6))
def test_the_first_message_at_a_time_is_found_whatever_the_order(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    nulls = rng.choice([0.0, 0.3, 1.0])
    with (
        closing(DataDirectory.open(tmp_path)) as directory,
        closing(Log.open(OneDirectory(directory), Limits(maintenance_seconds=100_000))) as log,
    ):
        topic = log.admin.create_topic(NAME, BINARY_SCHEMA, "partition", CONFIG)
        assert log.fetcher.offset_at_time(topic, ZERO, 0) is None
        times: list[int | None] = []
        for number in range(12):
            some = [rng.randrange(1_000) for _ in range(rng.randrange(1, 6))]
            batch = [None if rng.random() < nulls * (number % 3 == 2) else each for each in some]
            assert isinstance(push(log, topic, batch), Accepted)
            times += batch
            if number == 6:
                log.maintainer.run()
                state = log.metadata.maintenance.topic_state(topic.uuid)
                assert state.sums.merged_pages > 0
        for time in range(0, 1_001, 7):
            for early in (0, 1, 999):
                found = log.fetcher.offset_at_time(topic, ZERO, time * 1_000 - early)
                assert found == first_at(times, time)


def test_a_time_far_ahead_is_refused(tmp_path: Path) -> None:
    with (
        closing(DataDirectory.open(tmp_path)) as directory,
        closing(Log.open(OneDirectory(directory), Limits())) as log,
    ):
        topic = log.admin.create_topic(NAME, BINARY_SCHEMA, "partition", CONFIG)
        for time in (1 << 42, (1 << 63) - 1):
            refused = push(log, topic, [0, time])
            assert isinstance(refused, Rejected)
            assert isinstance(refused.error, InvalidArgument)
        assert isinstance(push(log, topic, [-(1 << 62)]), Accepted)
