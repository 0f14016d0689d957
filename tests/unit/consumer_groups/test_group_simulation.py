"""Consumer groups in a world of faults, and planted bugs, each of which must make it fail soon.

See `group_simulation` for what must hold. A seed that fails is run again by `World(seed).run()`.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import pytest
from group_simulation import Member, Metadata, Parts, World

from wings_core.consumer_groups import coordinator
from wings_core.consumer_groups.coordinator import GroupCoordinator
from wings_core.consumer_groups.group import ConsumerGroup, Heartbeat, Session, TopicSlots
from wings_core.errors import FencedMember, Unavailable
from wings_core.metadata.maintenance import MaintenanceLease
from wings_core.model import Assignment, GroupMember

SEEDS_MAX = 150
"""A bug that so many worlds do not show is not found."""

SHOW = (0, 1, 4, 5, 8, 14, 21, 27, 28, 63)
"""Worlds that show one of the bugs, as the code is now: they come first."""

# pyright: reportPrivateUsage=false


def running(kind: type[ConsumerGroup]) -> Parts:
    """Return parts whose coordinators run groups of a kind."""

    class Coordinator(GroupCoordinator):
        def _load(self, consumer: str) -> ConsumerGroup:
            stored = self._store.load(consumer)
            return kind.load(self._slots_of, stored.epoch, stored.members, self._clock())

    return Parts(coordinator=Coordinator)


class TakenBeforeGivenUp(ConsumerGroup):
    def _reconcile(self, member: GroupMember) -> GroupMember:
        if member.assigned != member.target:
            member = replace(
                member,
                epoch=self._next_epoch(),
                previous_epoch=member.epoch,
                assigned=member.target,
                held=member.target,
            )
            self._put(member)
        return member


class JoinsWithNothing(ConsumerGroup):
    def _join(self, beat: Heartbeat) -> None:
        super()._join(beat)
        self._put(replace(self.members[beat.member], held={}))


class AnyEpoch(ConsumerGroup):
    def _listen(self, beat: Heartbeat) -> None:
        member = self.members.get(beat.member)
        super()._listen(beat if member is None else replace(beat, epoch=member.epoch))


class SessionsNeverEnd(ConsumerGroup):
    def expire(self, now: float) -> list[str]:
        del now
        return []


class SessionsEndEarly(ConsumerGroup):
    def expire(self, now: float) -> list[str]:
        return super().expire(now + 4)


class LoadedSessionsHaveEnded(ConsumerGroup):
    @classmethod
    def load(
        cls,
        slots_of: Callable[[Iterable[str]], Mapping[str, TopicSlots]],
        epoch: int,
        members: Iterable[GroupMember],
        now: float,
    ) -> ConsumerGroup:
        made = super().load(slots_of, epoch, members, now)
        made.sessions = {name: Session(now) for name in made.members}
        return made


class EpochsBeginAnew(ConsumerGroup):
    @classmethod
    def load(
        cls,
        slots_of: Callable[[Iterable[str]], Mapping[str, TopicSlots]],
        epoch: int,
        members: Iterable[GroupMember],
        now: float,
    ) -> ConsumerGroup:
        return super().load(slots_of, 0, members, now)


class NothingIsReleased(ConsumerGroup):
    def _release(self, member: GroupMember, owned: Assignment) -> None:
        pass


class ExpiryIsForgotten(ConsumerGroup):
    def _remove(self, members: Iterable[str]) -> None:
        for member in members:
            del self.members[member], self.sessions[member]


class SavedWithoutALease(Metadata):
    def is_held(self, lease: MaintenanceLease) -> bool:
        return True


class CommitsUnderAnyEpoch(Metadata):
    def commit(self, member: str, epoch: int, offsets: Mapping[tuple[str, int], int]) -> None:
        stored = next((each for each in self.group.members if each.member == member), None)
        if stored is None:
            raise FencedMember(member)
        for key, offset in offsets.items():
            assert offset >= self.offsets.get(key, 0)
            self.offsets[key] = offset


class AnsweredThoughNotStored(GroupCoordinator):
    def _save(
        self,
        shard: coordinator._Shard,
        lease: MaintenanceLease,
        consumer: str,
        group: ConsumerGroup,
    ) -> None:
        try:
            super()._save(shard, lease, consumer, group)
        except Unavailable:
            shard.lease, shard.groups[consumer] = lease, group


class NotLoadedAnew(GroupCoordinator):
    def _forget(self, shard: coordinator._Shard) -> None:
        shard.lease = None


class LeaseNeverEnds(GroupCoordinator):
    def _lease_of(self, shard: coordinator._Shard) -> MaintenanceLease:
        return shard.lease or super()._lease_of(shard)


class ReadsOnAfterItsSession(Member):
    def is_reading(self) -> bool:
        return self.alive and self.world.time >= self.paused_until and self.epoch != 0


BUGS: dict[str, Parts] = {
    "slots are taken before they are given up": running(TakenBeforeGivenUp),
    "a member that joins anew is believed to hold nothing": running(JoinsWithNothing),
    "a heartbeat of any epoch is heard": running(AnyEpoch),
    "sessions never end": running(SessionsNeverEnd),
    "sessions end before the member knows": running(SessionsEndEarly),
    "after a takeover sessions have ended": running(LoadedSessionsHaveEnded),
    "after a takeover epochs begin anew": running(EpochsBeginAnew),
    "what a member gave up stays its own": running(NothingIsReleased),
    "slots of an expired member go to nobody": running(ExpiryIsForgotten),
    "a node that lost its lease stores": Parts(metadata=SavedWithoutALease),
    "a commit is accepted of whatever slot": Parts(metadata=CommitsUnderAnyEpoch),
    "what could not be stored is answered": Parts(coordinator=AnsweredThoughNotStored),
    "groups are kept over a lost lease": Parts(coordinator=NotLoadedAnew),
    "a node answers after its lease": Parts(coordinator=LeaseNeverEnds),
    "a member reads on after its session": Parts(member=ReadsOnAfterItsSession),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str) -> None:
    for seed in dict.fromkeys((*SHOW, *range(SEEDS_MAX))):
        try:
            World(seed, BUGS[bug]).run()
        except (AssertionError, StopIteration):
            return
    pytest.fail(f"{SEEDS_MAX} worlds do not show that {bug}")


# Worlds without them. #############################################################################

SEEDS = 30
SOAK_SEEDS = 20_000


@pytest.mark.parametrize("first", range(0, SEEDS, 10))
def test_what_must_hold_holds_whatever_fails(first: int) -> None:
    for seed in range(first, first + 10):
        World(seed).run()


@pytest.mark.soak
@pytest.mark.timeout(3_600)
def test_what_must_hold_holds_over_thousands_of_worlds() -> None:
    for seed in range(SEEDS, SEEDS + SOAK_SEEDS):
        try:
            World(seed).run()
        except AssertionError as broken:
            raise AssertionError(f"seed {seed}: {broken}") from broken


def test_a_seed_runs_the_same_way_again() -> None:
    one, other = World(7), World(7)
    one.run()
    other.run()
    assert one.observer.history == other.observer.history
