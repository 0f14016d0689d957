"""Where reads begin: one vocabulary for every call, against a real server."""

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from fix_calls import Calls
from fix_client import Connect, NewTopic
from fix_server import Trim

from wings_client import Client, InvalidTicket, Topic, _admin
from wings_client.gather import Request
from wings_core.partitions import UNPARTITIONED, partition_of

EARLY = datetime(2026, 1, 1, tzinfo=UTC)
LATE = datetime(2026, 1, 2, tzinfo=UTC)


@pytest.fixture(params=[None, "key"])
def topic(request: Any, wings: Client, new_topic: NewTopic) -> Topic:
    """A topic whose partitions have the rows 0 to 3 and, if there is a second, 10 to 13."""
    made = new_topic("key: int64", "n: int64", partition_key=request.param)
    for first, moment in ((0, EARLY), (2, LATE)):
        for key in (0,) if request.param is None else (0, 1):
            rows = [{"key": key, "n": 10 * key + n} for n in (first, first + 1)]
            wings.push(made, rows, timestamp=moment)
    return made


def numbers(rows: Any) -> list[int]:
    return sorted(n for batch in rows for n in batch.column("n").to_pylist())


def expected(topic: Topic, *first: int) -> list[int]:
    keys = (0,) if topic.partition_key is None else (0, 1)
    return [10 * key + n for key in keys for n in first]


BEGINNINGS = {
    "number": (3, [3]),
    "from the end": (-1, [3]),
    "from before the start": (-100, [0, 1, 2, 3]),
    "word": ("latest", []),
    "time": (LATE, [2, 3]),
    "text of a time": ("2026-01-01T12:00:00Z", [2, 3]),
    "text of a time elsewhere": ("2026-01-02T01:00:00.5+01:00", []),
}


@pytest.mark.parametrize("connect", ["sync"], indirect=True)
@pytest.mark.parametrize("name", BEGINNINGS)
def test_every_read_begins_where_it_is_told(wings: Client, topic: Topic, name: str) -> None:
    offset, rows = BEGINNINGS[name]
    wanted = expected(topic, *rows)
    where: Any = {} if topic.partition_key is None else {"partitions": "all"}
    assert numbers(wings.read(topic.name, offset)) == wanted
    assert numbers(wings.scan(topic, offset=offset, parallel=2, system_columns=True)) == wanted
    assert numbers(wings.fetch(topic.name, offset=offset, timeout=0)) == wanted
    follow = wings.follow(topic, offset=offset, timeout=0.3)
    assert numbers(each.batch for each in follow) == wanted
    with wings.consumer(f"from {name}", topic, start=offset, timeout=0.1) as consumer:
        assert numbers(each.batch for each in consumer) == wanted
    request = Request(topic.name, offset=offset, kind="scan", **where)
    assert numbers(each.batch for each in wings.gather([request])) == wanted
    ends = {None: 4} if topic.partition_key is None else {0: 4, 1: 4}
    begins = wings.resolve_offsets(topic, offset)
    assert begins == {each: end - len(rows) for each, end in ends.items()}
    value = next(iter(ends))
    assert wings.resolve_offset(topic, offset, value) == begins[value]
    assert numbers(wings.read(topic, offset, value)) == rows


@pytest.mark.parametrize("connect", ["sync"], indirect=True)
def test_a_read_that_is_told_nothing_begins_at_the_start(wings: Client, topic: Topic) -> None:
    everything = expected(topic, 0, 1, 2, 3)
    assert numbers(wings.read(topic)) == numbers(wings.fetch(topic, timeout=0)) == everything
    if topic.partition_key is not None:
        assert numbers(wings.read(topic, -3, columns=["n"], filter="n <> 2")) == [1, 3, 11, 12, 13]
        assert numbers(wings.scan(topic, offset=-2, partitions=[1])) == [12, 13]


@pytest.mark.parametrize("connect", ["sync"], indirect=True)
def test_a_read_may_begin_a_while_before_now(wings: Client, topic: Topic) -> None:
    wings.push(topic, [{"key": 0, "n": 7}])
    assert numbers(wings.read(topic, "-1h")) == [7]
    assert numbers(wings.read(topic, "-9999d")) == numbers(wings.read(topic))


@pytest.mark.parametrize("connect", ["sync"], indirect=True)
@pytest.mark.parametrize("text", ["newest", "2026-01-01", "2026-01-01T00:00:00", "", "3"])
def test_a_text_that_is_no_beginning_is_refused(wings: Client, topic: Topic, text: str) -> None:
    for read in (wings.read, wings.follow, wings.resolve_offset):
        with pytest.raises(InvalidTicket, match="is not an offset"):
            read(topic, offset=text)


@pytest.mark.parametrize("connect", ["sync"], indirect=True)
@pytest.mark.parametrize("read", ["fetch", "follow", "scan"])
def test_a_read_from_the_end_begins_at_what_retention_leaves_meanwhile(
    wings: Client, trim: Trim, topic: Topic, read: str, calls: Calls
) -> None:
    value = UNPARTITIONED if topic.partition_key is None else partition_of(0, pa.int64())
    wings.push(topic, [{"key": 0, "n": n} for n in (4, 5)])
    ends = iter([None, 2, None, 4])  # The start and the end are looked up, and looked up again.

    def expire(*_: object) -> None:
        if (end := next(ends, None)) is not None:
            trim(topic, end, value)

    calls.after(_admin, "starts", expire)
    options: Any = {"fetch": {"timeout": 0}, "follow": {"timeout": 0.3}, "scan": {}}[read]
    found = getattr(wings, read)(topic, offset=-100, **options)
    batches = [each.batch for each in found] if read == "follow" else found
    kept = [2, 3, 4, 5] if read == "follow" else [4, 5]  # A follow counts once, before it begins.
    others = [] if topic.partition_key is None else [10, 11, 12, 13]
    assert numbers(batches) == kept + others


@pytest.mark.parametrize("connect", ["sync"], indirect=True)
def test_a_topic_without_partitions_yet_has_no_last_rows(
    wings: Client, new_topic: NewTopic, connect: Connect
) -> None:
    topic = new_topic("key: int64", "n: int64", partition_key="key")
    assert numbers(wings.read(topic, -5)) == numbers(wings.fetch(topic, offset=-5, timeout=0)) == []
    wings.push(topic, [{"key": 1, "n": 1}])
    assert numbers(wings.scan(topic, 2, offset=-1)) == []
