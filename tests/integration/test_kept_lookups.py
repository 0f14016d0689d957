"""Look-ups that are kept, while pages are drained, merged and expired: no wrong row."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest
from fix_calls import Calls
from flight_calls import create_topic, push
from many_calls import get_many

from wings_core.fetch import kept
from wings_core.fetch.cursors import Chosen
from wings_core.limits import Limits
from wings_core.log import Log
from wings_core.model import TopicConfig
from wings_core.names import TopicName
from wings_core.partitions import Partition
from wings_server.testing import running_server

LIMITS = Limits(wire_rows_max=1_000, segment_bytes_max=16 * 1024)

KEYS = range(6)

STEPS = 50


class World:
    """A topic whose rows count up in each partition, and all that may be done to it."""

    def __init__(self, log: Log, client: flight.FlightClient, draw: random.Random) -> None:
        assert log.drain is not None
        self.log = log
        self.drain = log.drain
        self.client = client
        self.draw = draw
        self.ends = dict.fromkeys(KEYS, 0)
        self.starts = dict.fromkeys(KEYS, 0)
        create_topic(client, "t", ["n: int64", "key: int64"], "key")
        self.topic = log.admin.get_topic(TopicName.parse("t"))

    def step(self) -> None:
        steps: tuple[Callable[[], None], ...] = (self.push, self.merge, self.expire, self.read)
        self.draw.choices(steps, (1, 1, 1, 4))[0]()

    def some(self) -> list[int]:
        return self.draw.sample(KEYS, self.draw.randint(1, len(KEYS)))

    def push(self) -> None:
        self.drain.flush_bytes_max = self.draw.choice((0, 65_536))
        rows = {key: range(self.ends[key], self.ends[key] + self.draw.randint(1, 300))
                for key in self.some()}  # fmt: skip
        keys = [key for key, values in rows.items() for _ in values]
        numbers = [number for values in rows.values() for number in values]
        push(self.client, "t", pa.record_batch({"n": numbers, "key": keys}))
        self.ends |= {key: values.stop for key, values in rows.items()}

    def merge(self) -> None:
        self.drain.run()
        self.log.admin.alter_topic(self.topic.name, TopicConfig(tier_after_ms=0))
        self.log.maintainer.run()
        self.log.reclaimer.run()

    def expire(self) -> None:
        """Drop all but the last page of a partition."""
        key = self.draw.choice(KEYS)
        partition = Partition(str(key))
        self.log.maintenance.expire(
            self.topic.uuid, partition, age_us=None, bytes_kept=1, pages_max=1_000
        )
        (state,) = self.log.fetcher.states(self.topic, Chosen([partition]))
        self.starts[key] = state.log_start_offset
        self.log.reclaimer.run()

    def read(self) -> None:
        ranges = {key: (self.starts[key], self.ends[key]) for key in KEYS if self.ends[key]}
        wanted: Any = "all"
        if self.draw.random() < 0.5:
            ranges = {key: (self.starts[key], self.ends[key]) for key in self.some()}
            key, (start, end) = next(iter(ranges.items()))
            ranges[key] = start, self.draw.randint(start, end)
            wanted = [
                {"partition": key, "offset": start, "end_offset": end}
                for key, (start, end) in ranges.items()
            ]
        answer = get_many(
            self.client, kind="scan", topic="t", partitions=wanted, system_columns=True
        )
        for key, (start, end) in ranges.items():
            rows = answer.rows.get(key, [])
            assert [row["n"] for row in rows] == list(range(start, end))
            assert [row["__offset"] for row in rows] == list(range(start, end))


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(1, 20))]
)
def test_whatever_moves_pages_a_look_up_that_is_kept_brings_no_wrong_row(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch, calls: Calls
) -> None:
    monkeypatch.setattr(kept, "LOOKUP_SLICES_MIN", 1)
    found = calls.heard(kept.KeptLookups, "find")
    with running_server(tmp_path, limits=LIMITS) as server, server.client() as client:
        log = server.server.log
        looked = calls.heard(log.registry, "locate_many")
        world = World(log, client, random.Random(seed))
        for _ in range(STEPS):
            world.step()
    # Of more than where partitions stand.
    assert 0 < sum(arguments[2] > 1 for arguments in looked) < len(found), "some were kept"
