"""The coordinator of groups beside its metadata: half-made changes, and leases that it lets go."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

from wings_core.consumer_groups.coordinator import LEASE_SECONDS, GroupCoordinator, RunElsewhere
from wings_core.consumer_groups.group import JOIN, LEAVE, Heartbeat, TopicSlots
from wings_core.errors import InvalidArgument, Unavailable
from wings_core.metadata.sqlite import SqliteMetadata

TOPIC = "t" * 32


class World:
    """A clock, and slots that can be out of reach."""

    def __init__(self) -> None:
        self.time = 1_000.0
        self.is_reachable = True
        self.slots = 0b1111

    def slots_of(self, topics: Iterable[str]) -> Mapping[str, TopicSlots]:
        if not self.is_reachable:
            raise Unavailable("metadata cannot be reached")
        return dict.fromkeys(topics, TopicSlots(self.slots, self.slots))

    def coordinator(self, metadata: SqliteMetadata, holder: str) -> GroupCoordinator:
        return GroupCoordinator(
            metadata.consumer_groups,
            metadata.maintenance,
            holder,
            self.slots_of,
            lambda: self.time,
        )


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def metadata(tmp_path: Path, world: World) -> Iterator[SqliteMetadata]:
    with SqliteMetadata(
        tmp_path / "metadata.sqlite", clock=lambda: int(world.time * 1_000_000)
    ) as opened:
        yield opened


def join(coordinator: GroupCoordinator, member: str) -> int:
    topics = frozenset({TOPIC})
    return coordinator.heartbeat("g", Heartbeat(member, JOIN, topics, session_ms=6_000)).beat.epoch


def test_a_change_that_is_half_made_as_metadata_is_away_leaves_nothing(
    metadata: SqliteMetadata, world: World
) -> None:
    coordinator = world.coordinator(metadata, "one")
    join(coordinator, "a")
    join(coordinator, "b")
    world.is_reachable = False
    with pytest.raises(Unavailable):
        join(coordinator, "c")
    with pytest.raises(Unavailable):
        coordinator.heartbeat("g", Heartbeat("a", LEAVE))
    assert [member.member for member in metadata.consumer_groups.load("g").members] == ["a", "b"]
    world.is_reachable = True
    assert [member.member for member in coordinator.members("g")] == ["a", "b"]
    world.time += 7
    assert coordinator.members("g") == [], "each has a session that ends"


def test_a_member_may_join_before_there_is_a_topic_for_it(
    metadata: SqliteMetadata, world: World
) -> None:
    coordinator = world.coordinator(metadata, "one")
    with pytest.raises(InvalidArgument):
        coordinator.heartbeat("g", Heartbeat("a", JOIN))
    beat = coordinator.heartbeat("g", Heartbeat("a", JOIN, frozenset())).beat
    assert not beat.assignment
    beat = coordinator.heartbeat("g", Heartbeat("a", beat.epoch, frozenset({TOPIC}))).beat
    assert beat.assignment == {TOPIC: 0b1111}


def test_the_lease_of_groups_without_members_is_let_go(
    metadata: SqliteMetadata, world: World
) -> None:
    first, second = (world.coordinator(metadata, name) for name in ("one", "two"))
    join(first, "a")
    for _ in range(3):
        world.time += LEASE_SECONDS / 2
        first.tick()
        with pytest.raises(RunElsewhere):
            second.members("g")
        first.heartbeat("g", Heartbeat("a", metadata.consumer_groups.load("g").members[0].epoch))
    first.heartbeat("g", Heartbeat("a", LEAVE))
    for _ in range(3):
        world.time += LEASE_SECONDS / 2
        first.tick()
    assert second.members("g") == []


def test_a_generation_is_stored_under_the_lease_that_it_began_under(
    metadata: SqliteMetadata, world: World
) -> None:
    first, second = (world.coordinator(metadata, name) for name in ("one", "two"))
    assert (first.holder("g"), first.lease("g")) == (None, None)
    token = first.hold("g")
    world.time += 1
    assert (first.holder("g"), first.lease("g")) == ("one", token)
    assert (second.holder("g"), second.lease("g")) == ("one", None)
    first.begin_generation("g", 5, token)
    with pytest.raises(RunElsewhere):
        second.hold("g")
    world.time += LEASE_SECONDS
    later = second.hold("g")
    with pytest.raises(RunElsewhere):
        first.begin_generation("g", 6, token)
    with pytest.raises(Unavailable):
        second.begin_generation("g", 6, token)
    assert metadata.consumer_groups.load("g").epoch == 5
    second.begin_generation("g", 6, later)
    assert metadata.consumer_groups.load("g").epoch == 6
    assert join(second, "a") > 6


def test_a_node_that_stops_takes_no_lease_for_a_heartbeat_that_comes_late(
    metadata: SqliteMetadata, world: World
) -> None:
    first, second = (world.coordinator(metadata, name) for name in ("one", "two"))
    join(first, "a")
    first.close()
    with pytest.raises(Unavailable, match="stopping"):
        join(first, "b")
    assert [member.member for member in second.members("g")] == ["a"]


def test_slots_that_a_topic_gains_are_assigned_also_by_the_next_node(
    metadata: SqliteMetadata, world: World
) -> None:
    first, second = (world.coordinator(metadata, name) for name in ("one", "two"))

    def read_by(coordinator: GroupCoordinator, epoch: int) -> tuple[int, Mapping[str, int] | None]:
        beat = coordinator.heartbeat("g", Heartbeat("a", epoch)).beat
        return beat.epoch, beat.assignment

    epoch = join(first, "a")
    assert read_by(first, epoch) == (epoch, {TOPIC: 0b1111})
    world.slots = 0b1_1111
    first.cover_slots("another topic")
    assert read_by(first, epoch) == (epoch, {TOPIC: 0b1111})
    first.cover_slots(TOPIC)
    epoch, assignment = read_by(first, epoch)
    assert assignment == {TOPIC: 0b1_1111}
    first.close()
    world.slots = 0b11_1111
    assert read_by(second, epoch)[1] == {TOPIC: 0b11_1111}
