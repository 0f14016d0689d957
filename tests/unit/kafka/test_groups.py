"""Classic groups by their rules, without a clock or a connection."""

import random
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from wings_server.kafka.errors import KafkaError
from wings_server.kafka.groups import (
    INITIAL_DELAY_SECONDS,
    SESSION_SECONDS_MIN,
    Caller,
    Group,
    Join,
    MemberIdRequired,
    State,
)

SESSION = 10.0
JOIN = Join("", None, "client", SESSION, 30.0, "consumer", {"range": b"m"}, False, True)


@dataclass(eq=False)
class Client:
    """A member as its client sees it."""

    group: Group
    join: Join = JOIN
    joined: list[Mapping[str, Any]] = field(default_factory=list[Mapping[str, Any]])
    synced: list[Mapping[str, Any]] = field(default_factory=list[Mapping[str, Any]])

    @property
    def caller(self) -> Caller:
        answer = self.joined[-1]
        return Caller(answer["member_id"], answer["generation_id"], self.join.instance)

    @property
    def leads(self) -> bool:
        return self.joined[-1]["leader"] == self.joined[-1]["member_id"]

    def asks(self, now: float) -> None:
        known = self.joined[-1]["member_id"] if self.joined else self.join.member
        self.group.join(replace(self.join, member=known), self.joined.append, now)

    def syncs(self, now: float, *others: "Client") -> None:
        members = [self, *others] if self.leads else []
        given = {each.caller.member: b"part %d" % number for number, each in enumerate(members)}
        self.group.sync(self.caller, given, self.synced.append, now)


def error_of(action: Any, *args: Any) -> ErrorCode:
    with pytest.raises(KafkaError) as refused:
        action(*args)
    return refused.value.code


def stable(clients: int, *joins: Join) -> tuple[Group, list[Client], float]:
    """Return a stable group of some members, and the time."""
    group = Group("g")
    members = [Client(group, join) for join in joins or [JOIN] * clients]
    for each in members:
        each.asks(0.0)
    now = INITIAL_DELAY_SECONDS
    group.tick(now)
    leader = next(each for each in members if each.leads)
    for each in members:
        each.syncs(now, *(other for other in members if other is not leader))
    assert group.state is State.STABLE
    return group, members, now


def test_members_that_start_together_share_one_generation() -> None:
    group, members, _ = stable(3)
    assert group.generation == 1
    assert [each.joined[0]["generation_id"] for each in members] == [1, 1, 1]
    leader, *followers = sorted(members, key=lambda each: not each.leads)
    assert len(leader.joined[0]["members"]) == 3
    assert all(not each.joined[0]["members"] for each in followers)
    assert {each.synced[0]["assignment"] for each in members} == {b"part 0", b"part 1", b"part 2"}


def test_a_new_member_has_the_others_join_again() -> None:
    group, (first, second), now = stable(2)
    third = Client(group)
    third.asks(now)
    assert third.joined == []
    assert error_of(group.beat, first.caller, now) is ErrorCode.rebalance_in_progress
    for each in (first, second):
        each.asks(now)
    assert [each.joined[-1]["generation_id"] for each in (first, second, third)] == [2, 2, 2]
    assert error_of(group.beat, replace(first.caller, generation=1), now) is (
        ErrorCode.illegal_generation
    )


def test_a_member_that_does_not_join_in_time_is_removed() -> None:
    group, (first, second), now = stable(2)
    third = Client(group)
    third.asks(now)
    first.asks(now)
    due = group.next_tick()
    assert due is not None
    while group.state is State.PREPARING:
        due = group.next_tick()
        assert due is not None
        group.tick(due)
    assert len(group.members) == 2
    assert error_of(group.beat, second.caller, due) is ErrorCode.unknown_member_id


def test_a_silent_member_is_removed_after_its_session() -> None:
    group, (first, second), now = stable(2)
    group.beat(first.caller, now + SESSION - 1)
    group.tick(now + SESSION)
    assert set(group.members) == {first.caller.member}
    first.asks(now + SESSION)
    assert first.joined[-1]["generation_id"] == 2
    assert error_of(group.beat, second.caller, now + SESSION) is ErrorCode.unknown_member_id


def test_followers_wait_for_the_leader_and_are_told_of_the_next_rebalance() -> None:
    group = Group("g")
    first, second = Client(group), Client(group)
    for each in (first, second):
        each.asks(0.0)
    group.tick(INITIAL_DELAY_SECONDS)
    follower = second if first.leads else first
    follower.syncs(1.0)
    assert follower.synced == []
    assert error_of(group.check_commit, follower.caller) is ErrorCode.rebalance_in_progress
    Client(group).asks(1.0)
    assert follower.synced == [{"error_code": ErrorCode.rebalance_in_progress}]


def test_a_leader_that_never_assigns_is_removed() -> None:
    group = Group("g")
    first, second = Client(group), Client(group)
    for each in (first, second):
        each.asks(0.0)
    group.tick(INITIAL_DELAY_SECONDS)
    leader, follower = (first, second) if first.leads else (second, first)
    follower.syncs(0.5)
    for now in range(1, 40):
        if leader.caller.member in group.members:
            group.beat(leader.caller, now) if group.state is not State.PREPARING else None
        group.tick(float(now))
    assert leader.caller.member not in group.members
    assert follower.synced[-1] == {"error_code": ErrorCode.rebalance_in_progress}


def test_new_members_are_given_an_id_first_where_their_client_knows_that() -> None:
    group = Group("g")
    client = Client(group, replace(JOIN, needs_id=True))
    with pytest.raises(MemberIdRequired) as required:
        client.asks(0.0)
    assert error_of(Client(group, replace(JOIN, member="made up")).asks, 0.0) is (
        ErrorCode.unknown_member_id
    )
    client.join = replace(client.join, member=required.value.member)
    client.asks(0.0)
    group.tick(INITIAL_DELAY_SECONDS)
    assert client.caller == Caller(required.value.member, 1)
    # One that is given an id and never uses it holds nothing up for longer than its session.
    with pytest.raises(MemberIdRequired):
        Client(group, replace(JOIN, needs_id=True)).asks(1.0)
    group.tick(1.0 + SESSION)
    assert group.pending == {}


def test_a_static_member_restarts_without_a_rebalance() -> None:
    group, members, now = stable(0, replace(JOIN, instance="a"), replace(JOIN, instance="b"))
    before = {each.join.instance: each.synced[-1]["assignment"] for each in members}
    for old in members:
        again = Client(group, old.join)
        again.asks(now)
        assert again.joined[-1]["generation_id"] == group.generation == 1
        assert again.joined[-1].get("skip_assignment", False) == old.leads
        group.sync(again.caller, {}, again.synced.append, now)
        assert again.synced[-1]["assignment"] == before[old.join.instance]
        assert error_of(group.beat, old.caller, now) is ErrorCode.fenced_instance_id
    changed = Client(group, replace(members[0].join, protocols={"range": b"other"}))
    changed.asks(now)
    assert group.state is State.PREPARING


def test_members_leave_by_id_or_by_instance() -> None:
    group, members, now = stable(0, JOIN, replace(JOIN, instance="b"))
    assert error_of(group.leave, "nobody", None, now) is ErrorCode.unknown_member_id
    assert error_of(group.leave, "other", "b", now) is ErrorCode.fenced_instance_id
    group.leave("", "b", now)
    assert group.state is State.PREPARING
    group.leave(members[0].caller.member, None, now)
    assert (group.state, group.members, group.next_tick()) == (State.EMPTY, {}, None)
    assert group.is_forgettable


def test_the_assignor_is_one_that_all_have_and_most_prefer() -> None:
    kinds = [{"a": b"", "b": b""}, {"b": b"", "a": b""}, {"b": b"", "c": b"", "a": b""}]
    group, _, now = stable(0, *(replace(JOIN, protocols=kind) for kind in kinds))
    assert group.protocol == "b"
    for join in (replace(JOIN, protocols={"c": b""}), replace(JOIN, protocol_type="connect")):
        assert error_of(Client(group, join).asks, now) is ErrorCode.inconsistent_group_protocol
    for seconds in (SESSION_SECONDS_MIN - 1, 1e6):
        join = replace(JOIN, session_seconds=seconds)
        assert error_of(Client(group, join).asks, now) is ErrorCode.invalid_session_timeout


def test_offsets_are_committed_by_members_of_the_generation_alone() -> None:
    group, (first, _), now = stable(2)
    group.check_commit(first.caller)
    outsiders = {
        Caller("", -1): ErrorCode.unknown_member_id,
        Caller("nobody", 1): ErrorCode.unknown_member_id,
        replace(first.caller, generation=0): ErrorCode.illegal_generation,
    }
    for caller, code in outsiders.items():
        assert error_of(group.check_commit, caller) is code
    for each in list(group.members):
        group.leave(each, None, now)
    group.check_commit(Caller("", -1))
    assert error_of(group.check_commit, first.caller) is ErrorCode.illegal_generation


def act(each: Client, members: list[Client], now: float) -> None:
    """Do what a client does next."""
    group = each.group
    if not each.joined:
        if group.state is not State.PREPARING:
            each.asks(now)
        return
    if each.joined[-1].get("error_code", ErrorCode.none):
        each.joined.clear()
        return
    try:
        if group.state is State.COMPLETING:
            each.syncs(now, *(other for other in members if other.joined))
        else:
            group.beat(each.caller, now)
    except KafkaError as error:
        if error.code is not ErrorCode.rebalance_in_progress:
            each.joined.clear()
            each.asks(now)
        elif not group.members[each.caller.member].joining:
            each.asks(now)


def come_or_go(source: random.Random, group: Group, members: list[Client], now: float) -> None:
    """Have a member come, leave or die, or none."""
    choice = source.random()
    if choice < 0.15 and len(members) < 5:
        instance = f"i{now}" if source.random() < 0.3 else None
        members.append(Client(group, replace(JOIN, instance=instance)))
        members[-1].asks(now)
    elif choice < 0.2 and members:
        gone = members.pop(source.randrange(len(members)))
        if source.random() < 0.5 and gone.joined:
            with suppress(KafkaError):
                group.leave(gone.caller.member, gone.join.instance, now)


@pytest.mark.parametrize("seed", range(20))
def test_members_that_stay_settle_in_one_generation_whatever_others_do(seed: int) -> None:
    source = random.Random(seed)
    group, now = Group("g"), 0.0
    members: list[Client] = []
    for turn in range(120):
        now += source.random()
        if turn < 80:
            come_or_go(source, group, members, now)
        for each in source.sample(members, len(members)):
            act(each, members, now)
        due = group.next_tick()
        if due is not None and due <= now:
            group.tick(now)
    assert len(group.members) == len(members)
    if members:
        assert group.state is State.STABLE
        assert {each.joined[-1]["generation_id"] for each in members} == {group.generation}
