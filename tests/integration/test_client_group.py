"""Consumer groups by the client: members share partitions, and hand them over."""

import threading
import time
from collections import Counter
from collections.abc import Callable
from uuid import uuid4

import pyarrow as pa

from wings_client import Client

KEYS = 30


class Member:
    """A member of a group that reads on a thread of its own until it is stopped."""

    def __init__(
        self, wings: Client, group: str, topic: str, seen: Counter[tuple[int, int]]
    ) -> None:
        self.assigned: list[int] = []
        self.revoked: list[int] = []
        self.rows: Counter[int] = Counter()
        self._seen = seen
        self._consumer = wings.consumer(
            group,
            topic,
            group=True,
            session=6,
            on_assigned=self.assigned.extend,
            on_revoked=self.revoked.extend,
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def slots(self) -> int:
        return len(self.assigned) - len(self.revoked)

    def stop(self) -> None:
        self._consumer.close()
        self._thread.join(60)

    def _run(self) -> None:
        for taken in self._consumer:
            for row in taken.batch.to_pylist():
                self.rows[row["key"]] += 1
                self._seen[row["key"], row["n"]] += 1


def push(wings: Client, topic: str, first: int) -> None:
    rows = [(key, n) for key in range(KEYS) for n in range(first, first + 10)]
    keys, numbers = zip(*rows, strict=True)
    wings.push(
        topic,
        pa.record_batch({"key": pa.array(keys, pa.int64()), "n": pa.array(numbers, pa.int64())}),
    )


def wait_for(what: Callable[[], bool]) -> None:
    ends = time.monotonic() + 90
    while not what():
        assert time.monotonic() < ends
        time.sleep(0.05)


def test_members_share_the_partitions_and_each_row_is_read_once(
    wings: Client, new_topic_id: str
) -> None:
    topic, group = new_topic_id, uuid4().hex
    wings.create_topic(
        topic, pa.schema([("key", pa.int64()), ("n", pa.int64())]), partition_key="key"
    )
    push(wings, topic, 0)
    seen: Counter[tuple[int, int]] = Counter()
    first = Member(wings, group, topic, seen)
    wait_for(lambda: len(seen) == KEYS * 10)
    assert first.slots == 256
    second = Member(wings, group, topic, seen)
    wait_for(lambda: first.slots == second.slots == 128)
    before = first.rows.copy()
    push(wings, topic, 10)
    wait_for(lambda: len(seen) == KEYS * 20)
    assert second.rows.keys().isdisjoint((first.rows - before).keys())
    first.stop()
    wait_for(lambda: second.slots == 256)
    push(wings, topic, 20)
    wait_for(lambda: len(seen) == KEYS * 30)
    second.stop()
    assert set(seen.values()) == {1}
    offsets = {each.partition: each.offset for each in wings.committed_offsets(group)}
    assert offsets == dict.fromkeys(range(KEYS), 30)
