"""Commits to SQLite and by two nodes over PostgreSQL: one made-up history, the same answers.

What the nodes know of the log is out of date whenever the other one committed, so flushes are
judged on what is known, and again on what the function found.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from uuid import uuid4

import pytest
from fix_metadata import DAY, HOUR, NOON, SCHEMA, SECOND, A, B, C, Clock, batch_of
from fix_postgres import PostgresServer, empty_schema
from hypothesis import given, settings
from hypothesis import strategies as st
from property_examples import examples

from wings_core.errors import WingsError
from wings_core.metadata.interfaces import Metadata
from wings_core.metadata.postgres import PostgresMetadata
from wings_core.metadata.sqlite import SqliteMetadata
from wings_core.model import (
    Accepted,
    CommitBatch,
    CommitResult,
    FlushId,
    InlineFolio,
    PageAddress,
    Rejected,
    SeriesResults,
    StageEntry,
    StoredPage,
    Topic,
)
from wings_core.names import DEFAULT_NAMESPACE
from wings_core.partitions import Partition

FOLIO = "common"


@dataclass(frozen=True)
class Push:
    """A batch to be; its sequence and expected offset are relative to what would be right."""

    topic: int
    stream: int
    rows: dict[Partition, int]
    sequence: int | None
    series: tuple[int, ...]
    spread: bool
    """Whether the batches of the series go to partitions in turn."""
    expected: tuple[Partition, int] | None
    timestamp: int | None
    stage: StageEntry | None


@dataclass(frozen=True)
class Flush:
    """Batches that one of two nodes commits; or a repetition of the last flush."""

    stays: bool
    """Whether it is the node that committed last; else the other one."""
    pushes: list[Push]
    inline: bool
    named: bool
    again: bool


KEYS = st.sampled_from([A, A, B, C])
MOSTLY_RIGHT = st.sampled_from([0, 0, 0, 0, 0, -1, -2, 1])
PUSHES = st.builds(
    Push,
    topic=st.sampled_from([0, 0, 0, 1]),
    stream=st.integers(0, 9),
    rows=st.dictionaries(KEYS, st.integers(1, 3), min_size=1),
    sequence=st.none() | MOSTLY_RIGHT,
    series=st.lists(st.integers(1, 2), max_size=3).map(tuple),
    spread=st.booleans(),
    expected=st.sampled_from([None] * 3) | st.tuples(KEYS, MOSTLY_RIGHT),
    timestamp=st.sampled_from([None] * 8 + [-SECOND, 0, SECOND, HOUR + 1]),
    stage=st.sampled_from(
        [None] * 9
        + [StageEntry("s", "x", True), StageEntry("s", "x", False), StageEntry("t", "y", True)]
    ),
)
FLUSHES = st.builds(
    Flush,
    stays=st.sampled_from([False, False, True]),
    pushes=st.lists(PUSHES, min_size=1, max_size=3),
    inline=st.booleans(),
    named=st.booleans(),
    again=st.sampled_from([False] * 4 + [True]),
)
OTHERS = st.sampled_from(["delete", "publish", "publish", "abort", 3 * DAY, 8 * DAY])
STEPS = st.lists(st.one_of(*[FLUSHES] * 8, OTHERS), min_size=6, max_size=15)


@pytest.mark.hypothesis
def test_all_stores_answer_one_history_alike(postgres: PostgresServer, tmp_path: Path) -> None:
    clock, names = Clock(), count()
    with (
        empty_schema(postgres, NOON) as schema,
        SqliteMetadata(tmp_path / "metadata.sqlite", clock=clock) as sqlite,
        PostgresMetadata(postgres.url, schema=schema, clock=clock) as first,
        PostgresMetadata(postgres.url, schema=schema, clock=clock) as second,
    ):

        @settings(max_examples=examples(16, 200))
        @given(steps=STEPS)
        def check(steps: list[Flush | str | int]) -> None:
            clock.time = NOON
            topics = [_topic(f"t{next(names)}", (sqlite, first)) for _ in range(2)]
            History(clock, sqlite, (first, second), topics).take(steps)

        check()


def _topic(name: str, stores: Sequence[Metadata]) -> Topic:
    uuid = str(uuid4())
    topics = [
        store.admin.create_topic(DEFAULT_NAMESPACE.topic(name), SCHEMA, "key", uuid=uuid)
        for store in stores
    ]
    return topics[0]


class History:
    """Steps taken in both kinds of stores, whose answers are compared."""

    def __init__(
        self,
        clock: Clock,
        sqlite: SqliteMetadata,
        nodes: tuple[PostgresMetadata, PostgresMetadata],
        topics: list[Topic],
    ) -> None:
        self._clock = clock
        self._sqlite = sqlite
        self._nodes = nodes
        self._topics = topics
        self._name = uuid4().hex
        self._number = 0
        self._node = 0
        self._next: dict[str, int] = {}
        """The next sequence of a topic's producer."""
        self._last: tuple[list[CommitBatch], FlushId, InlineFolio | None] | None = None

    def take(self, steps: list[Flush | str | int]) -> None:
        for place, step in enumerate(steps):
            nodes = self._nodes
            match step:
                case Flush():
                    self._flush(step)
                case int():
                    self._clock.time += step
                case "delete":
                    for store in (self._sqlite, nodes[place % 2]):
                        with contextlib.suppress(WingsError):
                            store.admin.delete_topic(self._topics[0].name)
                case "abort":
                    stages = self._stages(["s"])
                    aborted = [
                        store.stages.abort("w", stages)
                        for store in (self._sqlite, nodes[place % 2])
                    ]
                    assert aborted[0] == aborted[1]
                case str():
                    stages, writer = self._stages(["s", "t"]), f"{self._name}{place}"
                    for store in (self._sqlite, nodes[place % 2]):
                        with contextlib.suppress(WingsError):
                            store.stages.publish(writer, 0, stages)
            self._compare()

    def _stages(self, names: list[str]) -> list[str]:
        return [f"{self._name}.{name}" for name in names]

    def _flush(self, flush: Flush) -> None:
        if flush.again and self._last is not None:
            batches, flush_id, inline = self._last
        else:
            self._number += 1
            folio = f"{self._name}.{self._number}.inline" if flush.inline else FOLIO
            batches = [self._batch(push, folio) for push in flush.pushes]
            flush_id = FlushId(self._name, self._number) if flush.named else None
            inline = InlineFolio(folio, b"x" * 100) if flush.inline else None
            self._last = None if flush_id is None else (batches, flush_id, inline)
        expected = self._sqlite.registry.commit(batches, flush_id, inline)
        self._node ^= not flush.stays
        found = self._nodes[self._node].registry.commit(batches, flush_id, inline)
        assert list(map(_plain, found)) == list(map(_plain, expected))
        for batch, result in zip(batches, expected, strict=True):
            if batch.sequence is not None and isinstance(result, Accepted) and not result.replayed:
                end = batch.sequence.sequence + (len(batch.series) or 1)
                self._next[batch.topic_uuid] = max(end, self._next.get(batch.topic_uuid, 0))

    def _batch(self, push: Push, folio: str) -> CommitBatch:
        topic, rows, expected, sequence = self._topics[push.topic], push.rows, None, None
        series = ()
        if push.stage is not None:  # Of this example alone.
            stage = replace(push.stage, stage=f"{self._name}.{push.stage.stage}")
            batch = batch_of(topic, rows, stream=push.stream, folio=folio, stage=stage)
            return replace(batch, timestamp=push.timestamp and NOON + push.timestamp)
        if push.sequence is not None:
            sequence = ("p", max(0, self._next.get(topic.uuid, 0) + push.sequence))
            series = push.series if len(push.series) > 1 else ()
        if series:
            rows = {A: sum(series)}
        elif push.expected is not None:
            key, ahead = push.expected
            with contextlib.suppress(WingsError):
                state = self._sqlite.registry.partition_state(topic.uuid, key)
                expected = (key, max(0, state.next_offset + ahead))
        batch = batch_of(
            topic,
            rows,
            stream=push.stream,
            sequence=sequence,
            expected=expected,
            timestamp=None if push.timestamp is None else NOON + push.timestamp,
            folio=folio,
        )
        if series and push.spread:
            pages = tuple(
                StoredPage(key, count, PageAddress(folio, position=100 * place, length=100))
                for place, (key, count) in enumerate(zip((B, A, C), series, strict=False))
            )
            batch = replace(batch, pages=pages)
        return replace(batch, series=series)

    def _compare(self) -> None:
        for topic in self._topics:
            for store in self._nodes[:1]:
                assert _read(store, topic) == _read(self._sqlite, topic)


def _read(store: Metadata, topic: Topic) -> object:
    """Return all that is stored of a topic, or its error."""
    registry = store.registry
    try:
        return (
            registry.partition_states(topic.uuid),
            [registry.locate(topic.uuid, key, 0, 1_000) for key in (A, B, C)],
            store.maintenance.tier_states(topic.uuid),
            store.stages.of_topic(topic.uuid),
            registry.live_folios(),
        )
    except WingsError as error:
        return error.code


def _plain(result: CommitResult) -> object:
    if isinstance(result, SeriesResults):
        return [_plain(each) for each in result.each]
    return result.error.to_json() if isinstance(result, Rejected) else result
