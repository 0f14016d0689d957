"""A classic group: members that agree on an assignment, which one of them makes, by generations.

    empty ─▶ preparing (all join) ─▶ completing (the leader assigns) ─▶ stable ─▶ preparing ─▶ …

Nothing here waits or looks at a clock: requests come with the time, replies that are due later are
called when they are. The rules are those of Kafka's GroupCoordinator, with its error codes.
"""

import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from kio.schema.errors import ErrorCode

from wings_server.kafka.errors import KafkaError

INITIAL_DELAY_SECONDS = 0.3
"""Time that an empty group waits for more members after the first, so that those that start
together need one generation."""

SESSION_SECONDS_MIN, SESSION_SECONDS_MAX = 6.0, 1_800.0
MEMBERS_MAX = 10_000

Reply = Callable[[Mapping[str, Any]], None]
"""Takes the fields of a response."""


class State(Enum):
    """State of a group."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"


@dataclass(frozen=True, slots=True)
class Join:
    """A request to join.

    Attributes:
        member: Id of the member; empty for a new one.
        instance: Name of a static member, or None.
        client: Name of the client.
        session_seconds: Time without a heartbeat after which it is removed.
        rebalance_seconds: Time that it has to join again.
        protocol_type: Kind of the group, like `consumer`.
        protocols: Metadata by the names of assignors, the preferred first.
        topics: Full names of the topics that it subscribes to, if they are known.
        needs_id: Whether a new member is given its id first, and joins with it.
        skips: Whether a leader understands that it need not assign.
    """

    member: str
    instance: str | None
    client: str
    session_seconds: float
    rebalance_seconds: float
    protocol_type: str
    protocols: Mapping[str, bytes]
    needs_id: bool
    skips: bool
    topics: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Caller:
    """A member as its request names it.

    Attributes:
        member: Its id; empty for a consumer without a group.
        generation: The generation that it knows; -1 for none.
        instance: Its name, if it is a static member.
        protocol_type: The kind of group that it expects, or None.
        protocol: The assignor that it expects, or None.
    """

    member: str
    generation: int
    instance: str | None = None
    protocol_type: str | None = None
    protocol: str | None = None


@dataclass(slots=True, eq=False)
class Member:
    """A member of a group."""

    id: str
    instance: str | None
    client: str
    session_seconds: float
    rebalance_seconds: float
    protocols: Mapping[str, bytes]
    deadline: float
    """When its session ends, while it waits for no reply."""
    assignment: bytes = b""
    topics: frozenset[str] = frozenset()
    joining: Reply | None = None
    syncing: Reply | None = None

    @property
    def waits(self) -> bool:
        """Whether a reply is due to it."""
        return self.joining is not None or self.syncing is not None

    def fail(self, code: ErrorCode) -> None:
        """Give the replies that are due to it an error."""
        joining, self.joining = self.joining, None
        syncing, self.syncing = self.syncing, None
        if joining is not None:
            joining(join_error(code, self.id))
        if syncing is not None:
            syncing({"error_code": code})


@dataclass(slots=True, eq=False)
class Group:
    """A group."""

    id: str
    state: State = State.EMPTY
    generation: int = 0
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str | None = None
    members: dict[str, Member] = field(default_factory=dict[str, Member])
    pending: dict[str, float] = field(default_factory=dict[str, float])
    """Ids that were given out to new members, and when they expire."""
    rebalance_deadline: float = 0.0
    """When those that joined go on without the rest, while preparing; or without those that have
    not asked for their assignment, while completing."""
    lease: int = 0
    """Token of the lease under which this node coordinates it."""
    began_empty: bool = False
    """Whether the joining lasts until its deadline in any case, for more members to come."""

    @property
    def is_forgettable(self) -> bool:
        """Whether nothing is known of it but its generation."""
        return not self.members and not self.pending

    @property
    def topics(self) -> set[str]:
        """Full names of the topics that its members subscribe to. For any thread."""
        return {topic for member in list(self.members.values()) for topic in member.topics}

    def topics_of(self, member_id: str, instance: str | None) -> frozenset[str]:
        """Return the topics of a member, named by its id or its instance; none if it is unknown."""
        member = self._of_instance(instance) or self.members.get(member_id)
        return frozenset() if member is None else member.topics

    def join(self, join: Join, reply: Reply, now: float) -> None:
        """Let a member join; `reply` is called at once or at the end of the rebalance.

        Raises:
            KafkaError: The member may not join.
        """
        self._check_join(join)
        member = self._joining_member(join, reply, now)
        if member is None:
            return
        unchanged = member.protocols == join.protocols
        member.session_seconds = join.session_seconds
        member.rebalance_seconds = join.rebalance_seconds
        member.protocols, member.topics = join.protocols, join.topics
        self.protocol_type = join.protocol_type
        answers_now = self.state is State.COMPLETING or (
            self.state is State.STABLE and member.id != self.leader
        )
        if unchanged and member.joining is None and answers_now:
            member.deadline = now + member.session_seconds  # Its client lost the last response.
            reply(self._joined(member))
            return
        if member.joining is not None:
            member.joining(join_error(ErrorCode.unknown_member_id, member.id))
        member.joining = reply
        self._prepare(now)
        self._complete_if_due(now)

    def _check_join(self, join: Join) -> None:
        if not SESSION_SECONDS_MIN <= join.session_seconds <= SESSION_SECONDS_MAX:
            raise KafkaError(ErrorCode.invalid_session_timeout)
        if not join.protocols or not join.protocol_type:
            raise KafkaError(ErrorCode.inconsistent_group_protocol)
        others = [each for each in self.members.values() if each.id != join.member]
        others = [each for each in others if not join.instance or each.instance != join.instance]
        if others:
            common = set(join.protocols).intersection(*(each.protocols for each in others))
            if not common or join.protocol_type != self.protocol_type:
                raise KafkaError(ErrorCode.inconsistent_group_protocol)

    def _joining_member(self, join: Join, reply: Reply, now: float) -> Member | None:
        """Return the member that joins; None if it has its reply already."""
        static = self._of_instance(join.instance)
        if join.member:
            if static is not None and static.id != join.member:
                raise KafkaError(ErrorCode.fenced_instance_id)
            if self.pending.pop(join.member, None) is not None:
                return self._add(join, join.member, now)
            return self._known(join.member)
        if static is not None:
            return self._replace(static, join, reply, now)
        fresh = f"{join.client or 'member'}-{uuid.uuid4()}"
        if join.needs_id and join.instance is None:
            self._check_room()
            self.pending[fresh] = now + join.session_seconds
            raise MemberIdRequired(fresh)
        return self._add(join, fresh, now)

    def _check_room(self) -> None:
        if len(self.members) + len(self.pending) >= MEMBERS_MAX:
            raise KafkaError(ErrorCode.group_max_size_reached)

    def _add(self, join: Join, member_id: str, now: float) -> Member:
        self._check_room()
        sessions = join.session_seconds, join.rebalance_seconds
        # Without protocols yet, so that what it brings counts as a change.
        named = member_id, join.instance, join.client
        member = Member(*named, *sessions, {}, now + join.session_seconds)
        self.members[member_id] = member
        return member

    def _replace(self, old: Member, join: Join, reply: Reply, now: float) -> Member | None:
        """Let a static member that was started anew take its predecessor's place.

        In a stable group it keeps the assignment, and no other member is disturbed.
        """
        fresh = f"{join.instance}-{uuid.uuid4()}"
        self.members = {
            (fresh if key == old.id else key): each for key, each in self.members.items()
        }
        old.fail(ErrorCode.fenced_instance_id)
        earlier, old.id, old.client = old.id, fresh, join.client
        leads = self.leader == earlier
        if leads:
            self.leader = fresh
        if self.state is not State.STABLE or old.protocols != join.protocols:
            old.protocols = {}  # So that it counts as changed.
            return old
        old.deadline = now + old.session_seconds
        if leads and not join.skips:
            # It is told that its predecessor leads, as it must not assign.
            reply({**self._joined(old), "leader": earlier, "members": []})
        else:
            reply({**self._joined(old), "skip_assignment": leads})
        return None

    def sync(self, who: Caller, assignments: Mapping[str, bytes], reply: Reply, now: float) -> None:
        """Take the leader's assignment; `reply` is called with the member's once it is there.

        Args:
            who: The member.
            assignments: Bytes by the ids of members; ignored unless the leader sends them.
            reply: Takes the response.
            now: The time.

        Raises:
            KafkaError: The member is not of this generation, or it is to join again.
        """
        member = self._checked(who)
        if self.state is State.PREPARING:
            raise KafkaError(ErrorCode.rebalance_in_progress)
        member.deadline = now + member.session_seconds
        if self.state is State.STABLE:
            reply(self._synced(member))
            return
        if member.syncing is not None:  # Its client asks again.
            member.syncing({"error_code": ErrorCode.rebalance_in_progress})
        member.syncing = reply
        if member.id == self.leader:
            for each in self.members.values():
                each.assignment = assignments.get(each.id, b"")
            self.state = State.STABLE
            for each in self.members.values():
                each.deadline = now + each.session_seconds
                if each.syncing is not None:
                    syncing, each.syncing = each.syncing, None
                    syncing(self._synced(each))

    def beat(self, who: Caller, now: float) -> None:
        """Prolong a member's session.

        Raises:
            KafkaError: The member is not of this generation, or it is to join again.
        """
        member = self._checked(who)
        member.deadline = now + member.session_seconds
        if self.state is State.PREPARING:
            raise KafkaError(ErrorCode.rebalance_in_progress)

    def leave(self, member_id: str, instance: str | None, now: float) -> None:
        """Remove a member, named by its id or its instance.

        Raises:
            KafkaError: There is no such member.
        """
        static = self._of_instance(instance)
        if static is not None:
            if member_id and member_id != static.id:
                raise KafkaError(ErrorCode.fenced_instance_id)
            member_id = static.id
        if self.pending.pop(member_id, None) is None:
            self._remove([self._known(member_id)], now)
        else:
            self._complete_if_due(now)

    def check_commit(self, who: Caller) -> None:
        """Check that offsets may be committed by a member, or by a consumer without a group.

        For any thread, unlike the rest: it changes nothing.

        Raises:
            KafkaError: They may not.
        """
        if who.generation < 0 and not who.member:
            if self.members:
                raise KafkaError(ErrorCode.unknown_member_id)
            return
        if not self.members and who.generation >= 0:
            raise KafkaError(ErrorCode.illegal_generation)
        self._checked(who)
        if self.state is State.COMPLETING:
            raise KafkaError(ErrorCode.rebalance_in_progress)

    def end(self, code: ErrorCode) -> None:
        """Give all replies that are due an error, as the group is coordinated here no more."""
        for member in self.members.values():
            member.fail(code)
        self.members, self.pending, self.state = {}, {}, State.EMPTY

    def tick(self, now: float) -> None:
        """End the sessions and rebalances whose time has come."""
        self.pending = {each: end for each, end in self.pending.items() if end > now}
        self._remove(
            [each for each in self.members.values() if each.deadline <= now and not each.waits],
            now,
        )
        if self.state is State.COMPLETING and self.rebalance_deadline <= now:
            self._remove([each for each in self.members.values() if each.syncing is None], now)
        self._complete_if_due(now)

    def next_tick(self) -> float | None:
        """Return when `tick` is due; None for never."""
        times = [*self.pending.values()]
        times += [each.deadline for each in self.members.values() if not each.waits]
        if self.state in {State.PREPARING, State.COMPLETING}:
            times.append(self.rebalance_deadline)
        return min(times, default=None)

    def _prepare(self, now: float) -> None:
        """Begin a rebalance, unless one has begun: all members are to join again."""
        if self.state is State.PREPARING:
            return
        for member in self.members.values():
            if self.state is State.COMPLETING and member.syncing is not None:
                syncing, member.syncing = member.syncing, None
                member.deadline = now + member.session_seconds
                syncing({"error_code": ErrorCode.rebalance_in_progress})
        delay = max(each.rebalance_seconds for each in self.members.values())
        if self.state is State.EMPTY:
            delay = min(delay, INITIAL_DELAY_SECONDS)
        self.rebalance_deadline = now + delay
        self.began_empty = self.state is State.EMPTY
        self.state = State.PREPARING

    def _complete_if_due(self, now: float) -> None:
        """End the joining once all members have joined, or at its deadline."""
        if self.state is not State.PREPARING:
            return
        all_joined = not self.pending and all(each.joining for each in self.members.values())
        if self.rebalance_deadline > now and (self.began_empty or not all_joined):
            return
        late = [each for each in self.members.values() if each.joining is None]
        for member in late:
            if member.instance is None:  # A static member keeps its place for its session.
                del self.members[member.id]
        self.generation += 1
        joined = [each for each in self.members.values() if each.joining is not None]
        if not joined:
            self.state = State.PREPARING if self.members else State.EMPTY
            self.rebalance_deadline = now + SESSION_SECONDS_MIN
            self.leader = self.protocol = None
            return
        if self.leader not in {each.id for each in joined}:
            self.leader = joined[0].id
        self.protocol = self._elected()
        self.state = State.COMPLETING
        self.rebalance_deadline = now + max(each.rebalance_seconds for each in joined)
        for member in joined:
            member.assignment = b""
            member.deadline = now + member.session_seconds
            reply, member.joining = member.joining, None
            assert reply is not None
            reply(self._joined(member))

    def _elected(self) -> str:
        """Return the assignor that most members prefer, among those that all have."""
        members = self.members.values()
        common = set.intersection(*(set(each.protocols) for each in members))
        votes = [next(name for name in each.protocols if name in common) for each in members]
        return max(dict.fromkeys(votes), key=votes.count)

    def _remove(self, gone: Iterable[Member], now: float) -> None:
        """Remove members; those that stay are to join again."""
        gone = list(gone)
        for member in gone:
            del self.members[member.id]
            member.fail(ErrorCode.unknown_member_id)
        if not gone:
            return
        if self.members:
            self._prepare(now)
            self._complete_if_due(now)
        elif self.state is not State.PREPARING or not self.pending:
            self.state, self.leader, self.protocol = State.EMPTY, None, None
            self.generation += 1

    def _known(self, member_id: str) -> Member:
        member = self.members.get(member_id)
        if member is None:
            raise KafkaError(ErrorCode.unknown_member_id)
        return member

    def _of_instance(self, instance: str | None) -> Member | None:
        if instance is None:
            return None
        # A copy, made at once: `check_commit` may run while members change.
        found = (each for each in list(self.members.values()) if each.instance == instance)
        return next(found, None)

    def _checked(self, who: Caller) -> Member:
        static = self._of_instance(who.instance)
        if static is not None and static.id != who.member:
            raise KafkaError(ErrorCode.fenced_instance_id)
        member = self._known(who.member)
        if who.generation != self.generation:
            raise KafkaError(ErrorCode.illegal_generation)
        kind, assignor = who.protocol_type, who.protocol
        if kind not in (None, self.protocol_type) or assignor not in (None, self.protocol):
            raise KafkaError(ErrorCode.inconsistent_group_protocol)
        return member

    def _joined(self, member: Member) -> Mapping[str, Any]:
        """Return a member's response to its join; the leader's lists all members."""
        assert self.protocol is not None
        listed = self.members.values() if member.id == self.leader else ()
        return {
            "generation_id": self.generation,
            "protocol_type": self.protocol_type,
            "protocol_name": self.protocol,
            "leader": self.leader,
            "member_id": member.id,
            "members": [
                {
                    "member_id": each.id,
                    "group_instance_id": each.instance,
                    "metadata": each.protocols[self.protocol],
                }
                for each in listed
            ],
        }

    def _synced(self, member: Member) -> Mapping[str, Any]:
        return {
            "protocol_type": self.protocol_type,
            "protocol_name": self.protocol,
            "assignment": member.assignment,
        }


class MemberIdRequired(KafkaError):  # noqa: N818 - as Kafka names it
    """A new member is to join with the id that it is given."""

    def __init__(self, member: str) -> None:
        super().__init__(ErrorCode.member_id_required)
        self.member = member


def join_error(code: ErrorCode, member: str) -> Mapping[str, Any]:
    """Return the fields of a response that refuses a join."""
    return {
        "error_code": code,
        "generation_id": -1,
        "protocol_name": "",
        "leader": "",
        "member_id": member,
        "members": [],
    }
