"""The moment of a query of SQL: whatever is written, moved or dropped after its start."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from itertools import count

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from property_examples import examples

from wings_core.data_directory import DataDirectory
from wings_core.deployments import OneDirectory
from wings_core.ingest.pending import PushStream
from wings_core.ingest.prepare import Preparer, PushOptions
from wings_core.limits import Limits
from wings_core.log import Log
from wings_core.model import Rejected, StageEntry, Topic, TopicConfig
from wings_core.names import TopicName
from wings_core.partitions import Partition
from wings_core.sql import Query, Sql

NEVER = 1e6
PARTITIONS = 4
SCHEMA = pa.schema([("k", pa.int64()), ("n", pa.int64())])

STATEMENTS = {
    "here": "select k, __offset from {}",
    "here, by time": "select k, __offset from {} where __timestamp > timestamptz '2020-01-01'",
    "in a worker": "select k, __offset, __offset from {}",
    "twice": "select a.k, a.__offset from {0} a join {0} b on a.k = b.k and a.n = b.n",
}

_numbers = count()


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Log]:
    """A log that is drained and maintained when a test says so."""
    root = tmp_path_factory.mktemp("moment")
    with DataDirectory.open(root / "data") as directory:
        limits = Limits(maintenance_seconds=NEVER, inline_seconds=NEVER, sql_queries_max=64)
        with closing(Log.open(OneDirectory(directory, remote=str(root / "remote")), limits)) as log:
            yield log


@pytest.fixture(scope="module")
def sql(log: Log) -> Iterator[Sql]:
    with closing(Sql(log)) as sql:
        yield sql


@dataclass
class Asked:
    """A query, and what it was when it was asked."""

    query: Query
    end: int
    """Of each partition."""
    start: int


class Story:
    """A topic whose partitions grow together: row `n` of each is its offset."""

    def __init__(self, log: Log, sql: Sql) -> None:
        self.log = log
        self.sql = sql
        config = TopicConfig(tier_after_ms=0, segment_bytes=1_000)
        name = TopicName.parse(f"t{next(_numbers)}")
        self.topic: Topic = log.admin.create_topic(name, SCHEMA, "k", config)
        self.end = self.start = 0
        self.asked: list[Asked] = []

    def _rows(self, rows: int) -> pa.RecordBatch:
        numbers = range(self.end, self.end + rows)
        pairs = [(k, n) for n in numbers for k in range(PARTITIONS)]
        columns = [pa.array(column, pa.int64()) for column in zip(*pairs, strict=True)]
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)

    def _submit(self, options: PushOptions, rows: int) -> None:
        prepared = Preparer(self.topic, self.log.limits).prepare(self._rows(rows), options)
        outcome = self.log.group_commit.submit(PushStream(), prepared, awaited=True).outcome()
        assert not isinstance(outcome, Rejected), outcome

    def push(self) -> None:
        self._submit(PushOptions(), 2)
        self.end += 2

    def publish(self) -> None:
        """Publish two batches of a stage, as one."""
        stage, writer = f"{self.topic.uuid}-{self.end}", self.topic.uuid
        for first in (True, False):
            self._submit(PushOptions(stage=StageEntry(stage, writer, first=first)), 1)
            self.end += 1
        self.log.stages.publish(writer, self.end, [stage])

    def drain(self) -> None:
        assert self.log.drain is not None
        self.log.drain.run()

    def merge(self) -> None:
        self.drain()
        self.log.maintainer.run(self.topic)

    def expire(self) -> None:
        """Drop a page of each partition, as retention does."""
        starts = {
            self.log.maintenance.expire(
                self.topic.uuid, Partition(str(k)), age_us=-1_000_000, bytes_kept=None, pages_max=1
            ).log_start_offset
            for k in range(PARTITIONS)
        }
        self.start = max(starts)

    def ask(self, text: str) -> None:
        table = f'"{self.topic.name.topic}"'
        query = self.sql.open(text.format(table), lambda _: None)
        self.asked.append(Asked(query, self.end, self.start))

    def answer(self) -> None:
        """Read the query that was asked first: all rows up to its ends, but for dropped ones."""
        if not self.asked:
            return
        asked = self.asked.pop(0)
        rows = [
            (k, offset)
            for batch in asked.query.batches()
            for k, offset in zip(*(column.to_pylist() for column in batch.columns[:2]), strict=True)
        ]
        assert len(rows) == len(set(rows))
        seen = {(k, n) for k in range(PARTITIONS) for n in range(asked.start, asked.end)}
        dropped = {(k, n) for k, n in seen if n < self.start}
        assert (
            seen - dropped
            <= set(rows)
            <= {(k, n) for k in range(PARTITIONS) for n in range(asked.end)}
        )

    def assert_answers(self) -> None:
        while self.asked:
            self.answer()


@settings(max_examples=examples(4, 200))
@given(
    st.lists(
        st.sampled_from(["push", "publish", "drain", "merge", "expire", "answer"])
        | st.sampled_from(sorted(STATEMENTS)),
        min_size=4,
        max_size=16,
    )
)
def test_a_query_sees_each_partition_up_to_where_it_ended_at_its_start(
    log: Log, sql: Sql, steps: list[str]
) -> None:
    story = Story(log, sql)
    story.push()
    for step in steps:
        if step in STATEMENTS:
            story.ask(STATEMENTS[step])
        else:
            getattr(story, step)()
    story.push()
    story.assert_answers()


@pytest.mark.parametrize("turns", [4, pytest.param(40, marks=pytest.mark.soak)])
def test_pushes_and_stages_are_whole_in_a_query_that_runs_meanwhile(
    log: Log, sql: Sql, turns: int
) -> None:
    """All partitions of a topic are looked at as one."""
    story = Story(log, sql)
    story.push()
    text = "select k, count(*), max(n) from {} group by 1".format(f'"{story.topic.name.topic}"')
    with ThreadPoolExecutor(1) as threads:
        for _ in range(turns):
            written = threads.submit(write, story)
            while not written.done():
                query = sql.open(text, lambda _: None)
                ends = {
                    (row["count_star()"], row["max(n)"] + 1)
                    for batch in query.batches()
                    for row in batch.to_pylist()
                }
                assert len(ends) == 1, ends
                ((rows, end),) = ends
                assert rows == end
                assert rows % 2 == 0
            written.result()


def write(story: Story) -> None:
    story.publish()
    story.push()
    story.merge()
