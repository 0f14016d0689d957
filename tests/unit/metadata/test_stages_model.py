"""Stages against a plain model: whatever is staged, published, aborted and swept, both agree."""

from dataclasses import dataclass, field
from itertools import count
from typing import Any, cast
from uuid import uuid4

import pytest
from fix_metadata import DAY, HOUR, NOON, SECOND, A, B, MetadataUnderTest, batch_of, remote_in_soak
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from property_examples import examples

from wings_core.errors import WingsError
from wings_core.model import Rejected, StagedBatch, StageEntry, Topic
from wings_core.partitions import Partition

RESULTS_KEPT = 16
STAGE_SECONDS = 10.0

Outcome = tuple[str, object]
"""What was done, or an error's code with its facts."""

Range = tuple[str, Partition, int, int]
"""A topic's UUID, a partition, first and last offset."""

Log = list[tuple[int, str]]
"""A partition's messages: the timestamp of each, and the folio that it is in."""


@dataclass
class ModelStage:
    """A stage: who writes it, its pages, and when the last came."""

    writing: str
    topic: str
    changed_at: int
    pages: list[tuple[Partition, int, int | None, str]] = field(
        default_factory=list[tuple[Partition, int, int | None, str]]
    )


@dataclass
class Model:
    """All that matters, in the plainest form."""

    logs: dict[tuple[str, Partition], Log] = field(default_factory=dict[tuple[str, Partition], Log])
    stages: dict[str, ModelStage] = field(default_factory=dict[str, ModelStage])
    results: dict[str, dict[int, tuple[list[Range], int | None]]] = field(
        default_factory=dict[str, dict[int, tuple[list[Range], int | None]]]
    )
    """Of each writer by batch: what it got, and when it was succeeded."""
    deleted: set[str] = field(default_factory=set[str])

    def append(self, topic: str, partition: Partition, rows: int, stamp: int, folio: str) -> int:
        """Append a page; return its first offset."""
        log = self.logs.setdefault((topic, partition), [])
        stamp = max([stamp, *(timestamp for timestamp, _ in log[-1:])])
        start = len(log)
        log += [(stamp, folio)] * rows
        return start

    def stage(
        self, entry: StageEntry, topic: str, pages: dict[Partition, int], stamp: int | None,
        now: int, folio: str,
    ) -> Outcome:  # fmt: skip
        if topic in self.deleted:
            return "TOPIC_NOT_FOUND", {}
        stage = self.stages.get(entry.stage)
        if stage is None or stage.writing != entry.writing:
            if not entry.first:
                return "STAGE_NOT_FOUND", {"stage": entry.stage}
            if stage is not None:
                return "ALREADY_EXISTS", {"stage": entry.stage}
            stage = ModelStage(entry.writing, topic, now)
        if stamp is not None and stamp > now + HOUR:
            return "INVALID_ARGUMENT", {}
        self.stages[entry.stage] = stage
        stage.changed_at = now
        stage.pages += [(partition, rows, stamp, folio) for partition, rows in pages.items()]
        return "staged", sum(pages.values())

    def publish(self, writer: str, batch: int, names: list[str], now: int) -> Outcome:
        results = self.results.setdefault(writer, {})
        if batch in results:
            found, succeeded_at = results[batch]
            if succeeded_at is None or succeeded_at > now - 7 * DAY:
                return "published", (found, True)
        if results and batch <= max(results):
            return "PUBLISH_FENCED", {"last_batch": max(results)}
        for name in names:
            if name not in self.stages:
                return "STAGE_NOT_FOUND", {"stage": name}
        for name in names:
            if self.stages[name].topic in self.deleted:
                return "TOPIC_NOT_FOUND", {"stage": name}
        found = self.move([self.stages.pop(name) for name in names], now)
        for other, (was, succeeded_at) in results.items():
            results[other] = (was, now if succeeded_at is None else succeeded_at)
        results[batch] = (found, None)
        for old in sorted(results)[:-RESULTS_KEPT]:
            del results[old]
        return "published", (found, False)

    def move(self, stages: list[ModelStage], now: int) -> list[Range]:
        """Make stages visible; return what each partition got."""
        ranges: dict[tuple[str, Partition], tuple[int, int]] = {}
        for stage in stages:
            for partition, rows, stamp, folio in stage.pages:
                stamp = now if stamp is None else stamp
                start = self.append(stage.topic, partition, rows, stamp, folio)
                first, _ = ranges.get((stage.topic, partition), (start, 0))
                ranges[stage.topic, partition] = (first, start + rows - 1)
        return [(*key, *got) for key, got in ranges.items()]

    def folios(self) -> set[str]:
        """Return those that a page refers to."""
        visible = {
            folio
            for (topic, _), log in self.logs.items()
            for _, folio in log
            if topic not in self.deleted
        }
        staged = {
            page[3]
            for stage in self.stages.values()
            for page in stage.pages
            if stage.topic not in self.deleted
        }
        return visible | staged


STAGES = st.sampled_from(["s", "t", "u", "v"])
PAGES = st.dictionaries(st.sampled_from([A, B]), st.integers(1, 3))
NAMED = st.lists(STAGES, unique=True, max_size=4)
TOPICS = st.integers(0, 1)
OFTEN = st.sampled_from([True, True, True, False])


class Stages(RuleBasedStateMachine):
    """One log on which anything is done, and the model that knows what becomes of it.

    Args:
        metadata: Shared by all runs; each has topics, writers and folios of its own.
    """

    def __init__(self, metadata: MetadataUnderTest) -> None:
        super().__init__()
        self.metadata = metadata
        self.metadata.clock.time = NOON
        # Of the runs before, no stage may be left.
        self.metadata.stages.sweep(-365 * DAY / SECOND, 1_000)
        self.topics = [metadata.create_topic("key") for _ in range(2)]
        self.model = Model()
        self.own = uuid4().hex
        self.streams: list[tuple[StageEntry, Topic]] = []
        self.batches = count()

    @rule(
        stage_id=STAGES,
        topic=TOPICS,
        pages=PAGES,
        ahead=st.none() | st.sampled_from([-HOUR, 0, HOUR, HOUR + 1]),
    )
    def begin(
        self, stage_id: str, topic: int, pages: dict[Partition, int], ahead: int | None
    ) -> None:
        entry = StageEntry(stage_id, uuid4().hex, first=True)
        stamp = None if ahead is None else self.metadata.clock.time + ahead
        self.stage(self.topics[topic], entry, pages, stamp)
        later = StageEntry(stage_id, entry.writing, first=False)
        self.streams.append((later, self.topics[topic]))

    @precondition(lambda self: self.streams)
    @rule(stream=st.integers(0, 2), pages=PAGES)
    def go_on(self, stream: int, pages: dict[Partition, int]) -> None:
        entry, topic = self.streams[-1 - min(stream, len(self.streams) - 1)]
        self.stage(topic, entry, pages, None)

    @rule(
        writer=st.sampled_from("wwx"),
        ahead=st.sampled_from([1, 1, 1, 2, 2, 0, -1, -17]),
        named=NAMED,
        known=OFTEN,
    )
    def publish(self, writer: str, ahead: int, named: list[str], known: bool) -> None:
        batch = max(0, max(self.model.results.get(writer, {}), default=-1) + ahead)
        now = self.metadata.clock.time
        names = [name for name in named if name in self.model.stages or not known]
        expected = self.model.publish(writer, batch, names, now)
        assert self.published(self.own + writer, batch, names) == expected

    @rule(named=NAMED, batch=st.none() | st.integers(0, 3))
    def abort(self, named: list[str], batch: int | None) -> None:
        deleted = [name for name in named if self.model.stages.pop(name, None)]
        aborted = self.metadata.stages.abort(f"{self.own}w", named, batch)
        assert list(aborted.stages) == deleted
        results = self.model.results.get("w", {})
        if batch is None:
            assert aborted.published is None
        elif batch in results:
            # Until it is purged, one that is out of date is still known.
            assert aborted.published is not False
        else:
            unknown = batch < max(results, default=-1)
            assert aborted.published is (None if unknown else False)

    @rule(topic=TOPICS, pages=PAGES)
    def push(self, topic: int, pages: dict[Partition, int]) -> None:
        pushed = self.topics[topic]
        if pushed.uuid in self.model.deleted:
            return
        folio = self.new_folio()
        self.metadata.registry.commit([batch_of(pushed, pages, folio=folio)])
        for partition, rows in pages.items():
            self.model.append(pushed.uuid, partition, rows, self.metadata.clock.time, folio)

    @rule(change=st.sampled_from([SECOND, 6 * SECOND, -SECOND, 3 * DAY, 8 * DAY]))
    def time_passes(self, change: int) -> None:
        self.metadata.clock.time += change

    @rule()
    def sweep(self) -> None:
        before = self.metadata.clock.time - int(STAGE_SECONDS * SECOND)
        old = [name for name, stage in self.model.stages.items() if stage.changed_at <= before]
        for name in old:
            del self.model.stages[name]
        assert self.metadata.stages.sweep(STAGE_SECONDS, 100) == len(old)

    @rule()
    def reopen(self) -> None:
        self.metadata.reopen()

    @rule()
    def purge_a_little(self) -> None:
        self.metadata.registry.purge(2)

    @rule()
    def purge_all(self) -> None:
        while self.metadata.registry.purge(3):
            pass
        assert self.live_folios() == self.model.folios()

    @rule(really=st.sampled_from([False, False, False, True]))
    def delete_topic(self, really: bool) -> None:
        if really and self.topics[0].uuid not in self.model.deleted:
            self.metadata.admin.delete_topic(self.topics[0].name)
            self.model.deleted.add(self.topics[0].uuid)

    @invariant()
    def what_can_be_seen_is_what_the_model_has(self) -> None:
        assert self.live_folios() >= self.model.folios()
        for topic in self.topics:
            if topic.uuid in self.model.deleted:
                assert self.metadata.stages.of_topic(topic.uuid) == []
            else:
                self.check_stages(topic)
                self.check_logs(topic)

    def check_stages(self, topic: Topic) -> None:
        listed = self.metadata.stages.of_topic(topic.uuid)
        expected = {n: s for n, s in self.model.stages.items() if s.topic == topic.uuid}
        assert [stage.stage for stage in listed] == sorted(expected)
        for stage in listed:
            pages = self.metadata.stages.pages(stage.stage, 0, 100)
            found = [(page.partition, page.rows, page.address.folio) for page in pages]
            model = expected[stage.stage]
            assert found == [(page[0], page[1], page[3]) for page in model.pages]
            assert (stage.pages, stage.rows) == (len(pages), sum(p.rows for p in pages))
            assert stage.changed_at == model.changed_at

    def check_logs(self, topic: Topic) -> None:
        states = self.metadata.registry.partition_states(topic.uuid)
        written = {p: log for (uuid, p), log in self.model.logs.items() if uuid == topic.uuid}
        assert [state.partition for state in states] == sorted(written)
        for state in states:
            located = self.metadata.registry.locate(topic.uuid, state.partition, 0, 1_000)
            read = [
                (location.timestamp, location.address.folio)
                for location in located.locations
                for _ in range(location.rows)
            ]
            assert read == written[state.partition]
            assert state.next_offset == len(read)
            assert state.bytes == 100 * len(located.locations)

    def stage(
        self, topic: Topic, entry: StageEntry, pages: dict[Partition, int], stamp: int | None
    ) -> None:
        folio = self.new_folio()
        batch = batch_of(topic, pages, timestamp=stamp, folio=folio, stage=entry)
        now = self.metadata.clock.time
        expected = self.model.stage(entry, topic.uuid, pages, stamp, now, folio)
        (result,) = self.metadata.registry.commit([batch])
        if isinstance(result, Rejected):
            assert (result.error.code, result.error.facts) == expected
        else:
            assert isinstance(result, StagedBatch)
            assert ("staged", result.rows) == expected

    def published(self, writer: str, batch: int, names: list[str]) -> Outcome:
        try:
            got = self.metadata.stages.publish(writer, batch, names)
        except WingsError as error:
            return error.code, error.facts
        uuids = {topic.name: topic.uuid for topic in self.topics}
        ranges = [
            (uuids[each.topic], each.partition, each.start_offset, each.end_offset)
            for each in got.committed
        ]
        return "published", (ranges, got.replayed)

    def new_folio(self) -> str:
        return f"{self.own}-{next(self.batches)}"

    def live_folios(self) -> set[str]:
        live = self.metadata.registry.live_folios()
        return {folio for folio in live if folio.startswith(self.own)}


@remote_in_soak
@pytest.mark.hypothesis
def test_stages_agree_with_the_model(metadata: MetadataUnderTest) -> None:
    def machine() -> Stages:
        return Stages(metadata)

    # Over a network only the way there is another, and each step takes longer.
    number = examples(2, 10) if metadata.is_slow else examples(6, 40)
    run_state_machine_as_test(
        cast("Any", machine), settings=settings(max_examples=number, stateful_step_count=50)
    )
