"""Commit against a plain model: whatever is committed, the registry and the model agree."""

from dataclasses import dataclass, field, replace

import pytest
from fix_metadata import (
    DAY,
    HOUR,
    NOON,
    SECOND,
    A,
    B,
    C,
    MetadataUnderTest,
    batch_of,
    remote_in_soak,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from property_examples import examples

from wings_core.model import (
    Accepted,
    AssignedRange,
    CommitBatch,
    CommitResult,
    PartitionSequence,
    Rejected,
    Topic,
)
from wings_core.partitions import Partition

Outcome = tuple[str, object]
"""`accepted` with the ranges and whether replayed, or an error's code with its facts."""


@dataclass
class Result:
    """What a producer's batch got, and when."""

    committed: tuple[AssignedRange, ...]
    at: int


@dataclass
class Numbers:
    """Numbers that a producer gave to its rows in a partition."""

    epoch: int
    batches: list[tuple[int, AssignedRange]]
    """The first number of each batch of the epoch, and what it got."""
    at: int

    @property
    def following(self) -> int:
        """The number of the next row."""
        first, got = self.batches[-1]
        return (first + got.end_offset - got.start_offset + 1) % NUMBERS


NUMBERS = 1 << 31


@dataclass
class Model:
    """A log of timestamps for each partition, and all results of each producer."""

    logs: dict[tuple[str, Partition], list[int]] = field(
        default_factory=dict[tuple[str, Partition], list[int]]
    )
    results: dict[tuple[str, str], list[Result]] = field(
        default_factory=dict[tuple[str, str], list[Result]]
    )
    numbers: dict[tuple[str, Partition, str], Numbers] = field(
        default_factory=dict[tuple[str, Partition, str], Numbers]
    )
    deleted: set[str] = field(default_factory=set[str])

    def log(self, topic: str, partition: Partition) -> list[int]:
        return self.logs.setdefault((topic, partition), [])

    def produced(self, topic: str, producer: str) -> list[Result]:
        return self.results.setdefault((topic, producer), [])

    def judge(self, batch: CommitBatch, now: int, failed: dict[int, Outcome]) -> Outcome:
        """Say what becomes of a batch, and do it."""
        if batch.stream not in failed:
            outcome = self._judge(batch, now)
            if outcome[0] == "accepted":
                return outcome
            failed[batch.stream] = outcome
        return failed[batch.stream]

    def known_numbers(
        self, topic: str, partition: Partition, producer: str, now: int
    ) -> Numbers | None:
        known = self.numbers.get((topic, partition, producer))
        return None if known is None or known.at <= now - 7 * DAY else known

    def _judge_sequence(self, batch: CommitBatch, now: int) -> Outcome | None:
        """Say what becomes of a batch that is not its producer's next one."""
        if batch.partition_sequence is not None:
            return self._judge_numbered(batch, batch.partition_sequence, now)
        if batch.sequence is None:
            return None
        number = batch.sequence.sequence
        results = self.produced(batch.topic_uuid, batch.sequence.producer_id)
        if number == len(results):
            return None
        known = 0 <= number < len(results) and number >= len(results) - 64
        if known and results[number].at > now - 7 * DAY:
            return "accepted", (results[number].committed, True)
        facts = {"expected_sequence": len(results), "sequence": number}
        return "OUT_OF_ORDER_SEQUENCE", facts

    def _judge_numbered(
        self, batch: CommitBatch, sequence: PartitionSequence, now: int
    ) -> Outcome | None:
        (page,) = batch.pages
        known = self.known_numbers(batch.topic_uuid, page.partition, sequence.producer_id, now)
        if known is None:
            return None
        if sequence.epoch < known.epoch:
            return "PUBLISH_FENCED", {"epoch": known.epoch}
        following = 0
        if sequence.epoch == known.epoch:
            following = known.following
            for first, got in known.batches[-5:]:
                rows = got.end_offset - got.start_offset + 1
                if (first, rows) == (sequence.first, page.rows):
                    return "accepted", ((got,), True)
        if sequence.first != following:
            facts = {"expected_sequence": following, "sequence": sequence.first}
            return "OUT_OF_ORDER_SEQUENCE", facts
        return None

    def _judge(self, batch: CommitBatch, now: int) -> Outcome:
        topic = batch.topic_uuid
        if topic in self.deleted:
            return "TOPIC_NOT_FOUND", {}
        outcome = self._judge_sequence(batch, now)
        if outcome is not None:
            return outcome
        if batch.expected is not None:
            end = len(self.log(topic, batch.expected.partition))
            if end != batch.expected.offset:
                value = batch.expected.partition.strip('"')
                return "OFFSET_MISMATCH", {"next_offset": end, "partition": value}
        if batch.timestamp is not None and batch.timestamp > now + HOUR:
            return "INVALID_ARGUMENT", {}
        ranges: list[AssignedRange] = []
        for page in batch.pages:
            log = self.log(topic, page.partition)
            timestamp = now if batch.timestamp is None else batch.timestamp
            timestamp = max([timestamp, *log])
            start = len(log)
            log += [timestamp] * page.rows
            ranges.append(AssignedRange(page.partition, start, len(log) - 1, timestamp))
        self._note(batch, tuple(ranges), now)
        return "accepted", (tuple(ranges), False)

    def _note(self, batch: CommitBatch, ranges: tuple[AssignedRange, ...], now: int) -> None:
        topic, numbered = batch.topic_uuid, batch.partition_sequence
        if batch.sequence is not None:
            self.produced(topic, batch.sequence.producer_id).append(Result(ranges, now))
        if numbered is not None:
            (got,) = ranges
            key = (topic, got.partition, numbered.producer_id)
            known = self.known_numbers(*key, now)
            if known is None or known.epoch != numbered.epoch:
                known = self.numbers[key] = Numbers(numbered.epoch, [], now)
            known.batches.append((numbered.first, got))
            known.at = now


@dataclass(frozen=True)
class Push:
    """A batch to be; sequence and expected offset are relative to what would be right."""

    topic: int
    stream: int
    rows: dict[Partition, int]
    producer: tuple[str, int] | None
    expected: tuple[Partition, int] | None
    timestamp: int | None
    numbered: tuple[str, int, int] | None = None
    """Producer, epoch and number of the first row, these relative to what would be right."""

    def batch(self, model: Model, topics: list[Topic], now: int) -> CommitBatch:
        topic = topics[self.topic]
        sequence = expected = None
        if self.producer is not None:
            producer_id, ahead = self.producer
            sequence = (producer_id, len(model.produced(topic.uuid, producer_id)) + ahead)
        if self.expected is not None:
            partition, ahead = self.expected
            expected = (partition, len(model.log(topic.uuid, partition)) + ahead)
        timestamp = None if self.timestamp is None else now + self.timestamp
        if self.numbered is not None:
            return self._numbered(model, topic, now, timestamp, *self.numbered)
        return batch_of(
            topic,
            self.rows,
            stream=self.stream,
            sequence=sequence,
            expected=expected,
            timestamp=timestamp,
        )

    def _numbered(
        self,
        model: Model,
        topic: Topic,
        now: int,
        timestamp: int | None,
        producer: str,
        later: int,
        ahead: int,
    ) -> CommitBatch:
        partition, rows = next(iter(self.rows.items()), (A, 2))
        known = model.known_numbers(topic.uuid, partition, producer, now)
        epoch = max(0, (0 if known is None else known.epoch) + later)
        following = NUMBERS - 2  # Of an unknown producer, so that numbers begin anew.
        if known is not None:
            following = 0 if later else known.following
        if known is not None and ahead < 0:  # An earlier batch again.
            following = known.batches[max(ahead, -len(known.batches))][0]
            ahead = 0
        batch = batch_of(topic, {partition: rows}, stream=self.stream, timestamp=timestamp)
        first = (following + ahead) % NUMBERS
        return replace(batch, partition_sequence=PartitionSequence(producer, epoch, first))


PARTITIONS = st.sampled_from([A, B, C])
MOSTLY_RIGHT = st.sampled_from([0, 0, 0, 0, -1, -2, 1])
PUSHES = st.builds(
    Push,
    topic=st.integers(0, 1),
    stream=st.integers(0, 3),
    rows=st.dictionaries(PARTITIONS, st.integers(1, 3)),
    producer=st.none() | st.tuples(st.sampled_from("pq"), MOSTLY_RIGHT),
    expected=st.none() | st.none() | st.tuples(PARTITIONS, MOSTLY_RIGHT),
    timestamp=st.none() | st.sampled_from([-HOUR, 0, HOUR, HOUR + 1]),
    numbered=st.none()
    | st.tuples(
        st.sampled_from("rs"),
        st.sampled_from([0, 0, 0, 0, 1, -1]),
        st.sampled_from([0, 0, 0, 0, -1, -3, -6, 1]),
    ),
)
Step = list[Push] | int | str
STEPS = st.lists(
    st.lists(PUSHES, max_size=8)
    | st.lists(PUSHES, max_size=8)
    | st.sampled_from([SECOND, -SECOND, 3 * DAY, 8 * DAY])
    | st.sampled_from(["reopen", "delete", "purge"]),
    max_size=12,
)


def outcome_of(result: CommitResult) -> Outcome:
    if isinstance(result, Accepted):
        return "accepted", (result.committed, result.replayed)
    assert isinstance(result, Rejected)
    return result.error.code, result.error.facts


@remote_in_soak
@pytest.mark.hypothesis
def test_commits_agree_with_the_model(metadata: MetadataUnderTest) -> None:
    @settings(max_examples=examples(4, 20) if metadata.is_slow else examples(8, 80))
    @given(steps=STEPS)
    def agree(steps: list[Step]) -> None:
        check_steps(metadata, steps)

    agree()


def check_steps(metadata: MetadataUnderTest, steps: list[Step]) -> None:
    """Take the steps, and compare every outcome with the model's."""
    metadata.clock.time = NOON
    topics = [metadata.create_topic("key") for _ in range(2)]
    model = Model()
    for step in steps:
        match step:
            case int():
                metadata.clock.time += step
            case "reopen":
                metadata.reopen()
            case "purge":
                metadata.registry.purge(2)
            case str():
                if topics[0].uuid not in model.deleted:
                    metadata.admin.delete_topic(topics[0].name)
                    model.deleted.add(topics[0].uuid)
            case _:
                now = metadata.clock.time
                failed: dict[int, Outcome] = {}
                batches: list[CommitBatch] = []
                expected: list[Outcome] = []
                for push in step:
                    batches.append(push.batch(model, topics, now))
                    expected.append(model.judge(batches[-1], now, failed))
                results = metadata.registry.commit(batches)
                assert [outcome_of(result) for result in results] == expected
        check_logs(metadata, model, topics)


def check_logs(metadata: MetadataUnderTest, model: Model, topics: list[Topic]) -> None:
    """Compare what can be read with the model, rows by timestamp."""
    for topic in topics:
        if topic.uuid in model.deleted:
            continue
        states = metadata.registry.partition_states(topic.uuid)
        written = {p: log for (uuid, p), log in model.logs.items() if uuid == topic.uuid and log}
        assert [state.partition for state in states] == sorted(written)
        for state in states:
            log = written[state.partition]
            assert (state.next_offset, state.last_timestamp) == (len(log), log[-1])
            located = metadata.registry.locate(topic.uuid, state.partition, 0, 1_000)
            read = [
                location.timestamp for location in located.locations for _ in range(location.rows)
            ]
            assert read == log
