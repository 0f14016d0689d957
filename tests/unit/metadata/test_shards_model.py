"""Shards against a model of them: whatever is done, by whomever, both say the same."""

from dataclasses import replace
from typing import Any, cast
from uuid import uuid4

import pytest
from fix_metadata import NOON, SECOND, MetadataUnderTest, remote_in_soak
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,  # pyright: ignore[reportUnknownVariableType]
)
from property_examples import examples

from wings_core.errors import PublishFenced
from wings_core.model import Shard, ShardClaim, ShardCounts, ShardProgress, ShardState

STALE = 10.0
IDS = st.sampled_from(["a", "b", "c"])
TOKENS = st.sampled_from(["x", "y", "z"])
STATES = st.sampled_from([ShardState.OPEN, ShardState.OPEN, *ShardState])


class Shards(RuleBasedStateMachine):
    """A source of three shards and three owners.

    Args:
        metadata: Shared by all runs; each has a source and writers of its own.
    """

    def __init__(self, metadata: MetadataUnderTest) -> None:
        super().__init__()
        self.metadata = metadata
        self.metadata.clock.time = NOON
        self.source = uuid4().hex
        self.batches = 0
        self.model: dict[str, Shard] = {}
        self.pruned_at: int | None = None

    @property
    def now(self) -> int:
        return self.metadata.clock.time

    @rule(ids=st.lists(IDS, unique=True), token=TOKENS)
    def open(self, ids: list[str], token: str) -> None:
        for shard in ids:
            self.model.setdefault(
                shard,
                Shard(self.source, shard, token, 0, ShardState.OPEN, 0, None, self.now, self.now),
            )
        found = self.metadata.shards.open(self.source, token, ids)
        assert found == [self.model[shard] for shard in ids]

    @rule(shard=IDS, token=TOKENS, owner=st.sampled_from(["x", "y", "z", ""]))
    def acquire(self, shard: str, token: str, owner: str) -> None:
        stored = self.model.get(shard)
        if stored is not None and stored.state is ShardState.OPEN and stored.token == owner:
            stale = stored.updated_at <= self.now - int(STALE * SECOND)
            if owner in (token, "") or stale:
                updated_at = max(stored.updated_at, self.now)
                self.model[shard] = replace(stored, token=token, updated_at=updated_at)
        claims = [ShardClaim(shard, owner)]
        found = self.metadata.shards.acquire(self.source, token, claims, STALE)
        assert found == ([] if stored is None else [self.model[shard]])

    @rule(
        wanted=st.dictionaries(
            IDS, st.tuples(st.integers(0, 1), st.integers(0, 2), STATES, st.booleans()), min_size=1
        ),
        token=TOKENS,
        honest=st.booleans(),
    )
    def publish(
        self, wanted: dict[str, tuple[int, int, ShardState, bool]], token: str, honest: bool
    ) -> None:
        told: list[ShardProgress] = []
        for shard, (off, rows, state, failed) in wanted.items():
            stored = self.model.get(shard)
            position = (stored.position if stored else 0) + (0 if honest else off)
            owner = stored.token if stored and stored.token and honest else token
            next_position = position if failed else position + rows
            error = "bad" if failed else None
            told.append(
                ShardProgress(self.source, shard, owner, position, next_position, state, error)
            )
        self.batches += 1
        expected = self.expected(told)
        try:
            self.metadata.stages.publish(self.source, self.batches, [], told)
        except PublishFenced:
            assert expected is None
        else:
            assert expected is not None
            self.model.update(expected)

    def expected(self, told: list[ShardProgress]) -> dict[str, Shard] | None:
        """Return the shards that a publish changes; None where it is fenced."""
        changed: dict[str, Shard] = {}
        for each in told:
            stored = self.model.get(each.shard)
            if stored is None or stored.state is not ShardState.OPEN:
                return None
            if (stored.token, stored.position) != (each.token, each.position):
                return None
            failures, error = stored.failures, stored.error
            if each.error is not None:
                failures, error = failures + 1, each.error
            elif each.next_position > each.position or each.state is ShardState.FINISHED:
                failures, error = 0, None
            changed[each.shard] = Shard(
                self.source, each.shard, stored.token, each.next_position, each.state, failures,
                error, stored.opened_at, self.now,
            )  # fmt: skip
        return changed

    @rule(ids=st.lists(IDS, unique=True))
    def reset(self, ids: list[str]) -> None:
        dead = [
            shard
            for shard in ids
            if shard in self.model and self.model[shard].state is ShardState.DEAD
        ]
        for shard in dead:
            stored = self.model[shard]
            self.model[shard] = Shard(
                self.source, shard, "", stored.position, ShardState.OPEN, 0, None,
                stored.opened_at, 0,
            )  # fmt: skip
        found = self.metadata.shards.reset(self.source, ids)
        assert found == [self.model[shard] for shard in dead]

    @rule(age=st.sampled_from([0.0, 8.0]), kept=st.none() | st.integers(0, 2))
    def prune(self, age: float, kept: int | None) -> None:
        debounced = self.pruned_at is not None and self.pruned_at > self.now - 5 * SECOND
        pruned: list[Shard] = []
        if not debounced:
            self.pruned_at = self.now
            ended = [each for each in self.model.values() if each.state is not ShardState.OPEN]
            ended.sort(key=lambda each: (each.updated_at, each.shard), reverse=True)
            pruned = [
                each
                for place, each in enumerate(ended)
                if each.updated_at <= self.now - age * SECOND
                or place >= (9 if kept is None else kept)
            ]
        for each in pruned:
            del self.model[each.shard]
        found = self.metadata.shards.prune(self.source, age, kept, 5.0)
        assert (found.shards, found.debounced) == (len(pruned), debounced)

    @rule(seconds=st.sampled_from([1, 4, 11]))
    def time_passes(self, seconds: int) -> None:
        self.metadata.clock.time += seconds * SECOND

    @rule()
    def reopen(self) -> None:
        self.metadata.reopen()

    @invariant()
    def what_is_there_is_what_the_model_has(self) -> None:
        listed = self.metadata.shards.of_source(self.source, None, "", 10)
        assert listed == [self.model[shard] for shard in sorted(self.model)]
        states = [shard.state for shard in listed]
        assert self.metadata.shards.count(self.source) == ShardCounts(
            *(states.count(state) for state in ShardState),
            position=sum(shard.position for shard in listed),
        )


@remote_in_soak
@pytest.mark.hypothesis
def test_shards_agree_with_the_model(metadata: MetadataUnderTest) -> None:
    def machine() -> Shards:
        return Shards(metadata)

    # Over a network only the way there is another, and each step takes longer.
    number = examples(2, 8) if metadata.is_slow else examples(6, 25)
    run_state_machine_as_test(
        cast("Any", machine), settings=settings(max_examples=number, stateful_step_count=30)
    )
