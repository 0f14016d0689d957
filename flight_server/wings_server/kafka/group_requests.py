"""Requests of classic groups, and of their offsets: those of the named consumer `kafka:GROUP`."""

import asyncio
import io
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from kio.schema.errors import ErrorCode

from wings_core.consumer_groups.coordinator import RunElsewhere
from wings_core.errors import FencedMember, PermissionDenied, WingsError
from wings_core.model import CommittedOffset, ConsumerCommit, MemberEpoch, Topic
from wings_core.names import TopicName
from wings_core.partitions import Partition
from wings_core.security.principal import Principal, authorize
from wings_core.security.rights import SOMEWHERE, Right
from wings_server.group_actions import group_node, looking_at_members
from wings_server.kafka import topics
from wings_server.kafka.errors import FAILURES, KafkaError, code_of
from wings_server.kafka.groups import Caller, Group, Join, MemberIdRequired, join_error
from wings_server.kafka.messages import ENTRIES_MAX, Request, Values
from wings_server.kafka.service import KafkaService

METADATA_BYTES_MAX = 4_096
"""Longest text that is committed with an offset."""

KEEP_SECONDS = 1.0
"""How often the leases of groups with members are looked at."""

CONSUMER_PROTOCOL = "consumer"
"""Kind of the groups whose members' metadata names the topics that they subscribe to."""

_SUBSCRIPTION = struct.Struct(">hi")
_TEXT = struct.Struct(">H")
_UNKNOWN = {"committed_offset": -1, "committed_leader_epoch": -1, "metadata": ""}


def group_code(error: Exception) -> ErrorCode:
    """Return Kafka's code of an error of a group's request."""
    return code_of(error, retried=ErrorCode.coordinator_not_available)


async def run_here(service: KafkaService, group_id: str) -> int:
    """Return the token of a group's lease, which this node takes where no other has it.

    Raises:
        KafkaError: Another node coordinates the group, or the id is empty.
        Unavailable: Metadata cannot be reached.
    """
    token = group_node(service.log).coordinator.lease(service.consumer_of(group_id))
    if token is None or not group_id:
        try:
            return await service.write(lambda: _lease(service, group_id))
        except KafkaError:
            service.groups.drop(group_id)
            raise
    return token


def _lease(service: KafkaService, group_id: str) -> int:
    """Return what `run_here` does; blocks."""
    if not group_id:
        raise KafkaError(ErrorCode.invalid_group_id)
    try:
        return group_node(service.log).coordinator.hold(service.consumer_of(group_id))
    except RunElsewhere:
        raise KafkaError(ErrorCode.not_coordinator) from None


def coordinator_of(service: KafkaService, group_id: str) -> int | None:
    """Return the number of the broker that coordinates a group, or is to; None: unknown for now."""
    coordinator, consumer = group_node(service.log).coordinator, service.consumer_of(group_id)
    holder = coordinator.holder(consumer)
    if holder is None:
        return service.brokers.named(consumer)
    if holder == coordinator.name:
        return service.brokers.own_id()
    return service.brokers.of_node(holder.rpartition(" ")[2])


async def keep_forever(service: KafkaService) -> None:
    """Renew the leases of groups with members until cancelled; lost ones end their groups."""
    while True:
        await asyncio.sleep(KEEP_SECONDS)
        for each in service.spaces:
            for group in list(each.groups):
                with suppress(*FAILURES):
                    each.groups.drop(group.id, unless=await run_here(each, group.id))


async def join(service: KafkaService, principal: Principal, request: Request) -> Values:
    """Answer `JoinGroup`, once the group's members have joined.

    Who joins may read all that it and the members subscribe to: one of them assigns for all.
    """
    body, version = request.body, request.head.version
    session = body.session_timeout.total_seconds()
    rebalance = session if version < 1 else body.rebalance_timeout.total_seconds()
    reply = asyncio.get_running_loop().create_future()
    try:
        admit(principal)
        lease = await run_here(service, body.group_id)
        subscribed, generation = await service.read(lambda: _looked_up(service, body))
        asked = Join(
            member=body.member_id,
            instance=getattr(body, "group_instance_id", None),
            client=request.client_id,
            session_seconds=session,
            rebalance_seconds=rebalance,
            protocol_type=body.protocol_type,
            protocols={each.name: each.metadata for each in body.protocols},
            needs_id=version >= 4,
            skips=version >= 9,
            topics=subscribed,
        )
        with service.groups.using(body.group_id, lease, generation) as (group, now):
            is_member = asked.member in group.members
            check_read(principal, asked.topics if is_member else asked.topics | group.topics)
            group.join(asked, _once(reply), now)
        joined = await reply
        if "error_code" not in joined:
            await _begin(service, group, joined["generation_id"])
        return joined
    except MemberIdRequired as error:
        return join_error(error.code, error.member)
    except FAILURES as error:
        return join_error(group_code(error), body.member_id)


async def _begin(service: KafkaService, group: Group, generation: int) -> None:
    """Return once a generation is durable, so that a coordinator before this one commits nothing.

    Raises:
        KafkaError: Another node coordinates the group.
        Unavailable: The lease was lost, or metadata cannot be reached.
    """
    coordinator, consumer = group_node(service.log).coordinator, service.consumer_of(group.id)

    def store() -> None:
        try:
            coordinator.begin_generation(consumer, generation, group.lease)
        except RunElsewhere:
            raise KafkaError(ErrorCode.not_coordinator) from None

    await service.groups.begin(group, generation, lambda: service.write(store))


def _looked_up(service: KafkaService, body: Any) -> tuple[frozenset[str], int]:
    """Return the topics that a consumer subscribes to, and the group's last stored generation.

    Topics are those that its first assignor's metadata names.

    These are of Kafka's ConsumerProtocolSubscription, all of whose versions begin alike. Of other
    bytes, or another kind of group, the topics are not known.

    Raises:
        KafkaError: It is a new member, and the group has members of KIP-848.
    """
    stored, consumer = service.log.metadata.consumer_groups, service.consumer_of(body.group_id)
    known = stored.load(consumer)
    if not body.member_id and known.members:
        raise KafkaError(ErrorCode.inconsistent_group_protocol)
    found = set[str]()
    if body.protocol_type == CONSUMER_PROTOCOL and body.protocols:
        data = io.BytesIO(body.protocols[0].metadata)
        with suppress(struct.error, UnicodeDecodeError):
            _, count = _SUBSCRIPTION.unpack(data.read(_SUBSCRIPTION.size))
            for _ in range(min(count, ENTRIES_MAX)):
                (size,) = _TEXT.unpack(data.read(_TEXT.size))
                with suppress(KafkaError):  # There is no topic of such a name.
                    found.add(str(service.topics.wings_name(data.read(size).decode())))
    return frozenset(found), known.epoch


def check_read(principal: Principal, names: Iterable[str]) -> None:
    """Check that a principal may read all topics of some full names.

    Raises:
        KafkaError: It may not.
    """
    if not principal.is_operator and not all(principal.may(Right.READ, name) for name in names):
        raise KafkaError(ErrorCode.group_authorization_failed)


async def sync(service: KafkaService, principal: Principal, request: Request) -> Values:
    """Answer `SyncGroup`, once the leader has assigned."""
    body = request.body
    assignments = {each.member_id: each.assignment for each in body.assignments}
    reply = asyncio.get_running_loop().create_future()
    try:
        admit(principal)
        lease = await run_here(service, body.group_id)
        with service.groups.using(body.group_id, lease) as (group, now):
            group.sync(caller_of(body), assignments, _once(reply), now)
    except FAILURES as error:
        return {"error_code": group_code(error)}
    return await reply


async def heartbeat(service: KafkaService, principal: Principal, request: Request) -> Values:
    """Answer `Heartbeat`."""
    body = request.body
    try:
        admit(principal)
        lease = await run_here(service, body.group_id)
        with service.groups.using(body.group_id, lease) as (group, now):
            group.beat(caller_of(body), now)
    except FAILURES as error:
        return {"error_code": group_code(error)}
    return {}


async def leave(service: KafkaService, principal: Principal, request: Request) -> Values:
    """Answer `LeaveGroup`, of one member or, from version 3 on, of several."""
    body = request.body
    is_list = request.head.version >= 3
    results: list[Values] = []
    for each in body.members if is_list else (body,):
        await asyncio.sleep(0)  # Other connections have their turn.
        instance = getattr(each, "group_instance_id", None)
        code = ErrorCode.none
        try:
            admit(principal)
            lease = await run_here(service, body.group_id)
            with service.groups.using(body.group_id, lease) as (group, now):
                check_read(principal, group.topics_of(each.member_id, instance))
                group.leave(each.member_id, instance, now)
        except FAILURES as error:
            code = group_code(error)
        named = {"member_id": each.member_id, "group_instance_id": instance}
        results.append({**named, "error_code": code})
    return {"members": results} if is_list else {"error_code": results[0]["error_code"]}


def commit(service: KafkaService, principal: Principal, request: Request) -> Values:
    """Answer `OffsetCommit`; the offsets that can be committed are, in one transaction."""
    body = request.body
    asked = OffsetsToCommit(service, principal, body.topics)
    try:
        admit(principal)
        member = committing(service, body.group_id, caller_of(body))
    except FAILURES as error:
        return offset_results(body.topics, {}, group_code(error))
    asked.commit(
        body.group_id,
        member,
        lambda given: service.log.registry.commit_offsets(
            given.consumer, given.offsets, given.member, given.notes
        ),
    )
    return offset_results(body.topics, asked.codes)


def committing(service: KafkaService, group_id: str, who: Caller) -> MemberEpoch | None:
    """Return the member of a group of KIP-848 that commits, or the generation of a classic one.

    For any thread, so that a commit is checked when it is applied.

    Returns:
        None for a consumer that is no member.

    Raises:
        KafkaError: A member of a classic group may not commit, or another node coordinates it.
        Unavailable: Metadata cannot be reached.
    """
    _lease(service, group_id)
    group = service.groups.get(group_id)
    if group is None and who.member and who.generation >= 0:
        return MemberEpoch(who.member, who.generation)
    (group or Group(group_id)).check_commit(who)
    return MemberEpoch("", who.generation) if who.member else None


class OffsetsToCommit:
    """The offsets of a request that can be committed, in one transaction.

    Args:
        service: The service.
        principal: The caller.
        asked: The request's topics.

    Attributes:
        codes: The codes of those that are not, by topic and number of the partition.
    """

    def __init__(self, service: KafkaService, principal: Principal, asked: Sequence[Any]) -> None:
        self.codes: dict[tuple[str, int], ErrorCode] = {}
        self._service = service
        self._offsets: list[tuple[Topic, Partition, int]] = []
        self._notes: list[str] = []
        self._keys: list[tuple[str, int]] = []
        topic_of = service.topics.readable_by(service.gate, principal)
        for named in asked:
            for part in named.partitions:
                key = named.name, part.partition_index
                try:
                    topic = topic_of(named.name)
                    partition = topics.partition_at(topic, part.partition_index)
                    # Python's client of librdkafka sends the NUL that ends its string.
                    note = (part.committed_metadata or "").removesuffix("\0")
                    if len(note.encode()) > METADATA_BYTES_MAX:
                        raise KafkaError(ErrorCode.offset_metadata_too_large)
                    self._offsets.append((topic, partition, part.committed_offset))
                    self._keys.append(key)
                    self._notes.append(note)
                except FAILURES as error:
                    self.codes[key] = group_code(error)

    def commit(
        self,
        group_id: str,
        member: MemberEpoch | None,
        commit: Callable[[ConsumerCommit], None],
        code_of_error: Callable[[WingsError], ErrorCode] = group_code,
    ) -> None:
        """Commit them, if there are any.

        Args:
            group_id: Id of the group.
            member: Its member that commits; see `committing`.
            commit: Commits them.
            code_of_error: Returns the code of its refusal.
        """
        if not self._offsets:
            return
        service = self._service
        consumer = service.consumer_of(group_id)
        given = ConsumerCommit(consumer, tuple(self._offsets), member, tuple(self._notes))
        try:
            with looking_at_members(service.log, consumer, member):
                commit(given)
        except WingsError as error:
            code = code_of_error(error)
            if member is not None and isinstance(error, FencedMember):
                code = _fenced(service, consumer, member)
            self.codes.update(dict.fromkeys(self._keys, code))


def offset_results(
    asked: Sequence[Any],
    codes: Mapping[tuple[str, int], ErrorCode],
    other: ErrorCode = ErrorCode.none,
) -> Values:
    """Return the response to a request that commits offsets.

    Args:
        asked: The request's topics.
        codes: Codes of partitions, by topic and number.
        other: The code of all others.
    """
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    {
                        "partition_index": part.partition_index,
                        "error_code": codes.get((topic.name, part.partition_index), other),
                    }
                    for part in topic.partitions
                ],
            }
            for topic in asked
        ]
    }


def _fenced(service: KafkaService, consumer: str, member: MemberEpoch) -> ErrorCode:
    """Return why a member, or a generation, may not commit."""
    if not member.member:
        return ErrorCode.illegal_generation
    group = service.log.metadata.consumer_groups.load(consumer)
    if any(each.member == member.member for each in group.members):
        return ErrorCode.stale_member_epoch
    return ErrorCode.unknown_member_id


def fetch(service: KafkaService, principal: Principal, request: Request) -> Values:
    """Answer `OffsetFetch`, of one group or, from version 8 on, of several."""
    body = request.body
    is_list = request.head.version >= 8
    is_stable = getattr(body, "require_stable", False)
    found = [
        _fetched(service, principal, each.group_id, each.topics, is_stable=is_stable)
        for each in (body.groups if is_list else (body,))
    ]
    return {"groups": found} if is_list else found[0]


def _fetched(
    service: KafkaService,
    principal: Principal,
    group_id: str,
    asked: Sequence[Any] | None,
    *,
    is_stable: bool,
) -> Values:
    """Return the offsets of a group; of all topics if none are named.

    If they are to be stable, one that an open transaction may change is refused, and asked for
    again: its successor would read on before the transaction's end (KIP-447).
    """
    try:
        admit(principal)
        # Before the offsets: what ends in between is committed then.
        transactions = service.log.metadata.transactions
        pending = transactions.pending(service.consumer_of(group_id)) if is_stable else []
        found = service.log.registry.get_offsets(service.consumer_of(group_id))
    except FAILURES as error:
        return {"group_id": group_id, "topics": [], "error_code": group_code(error)}
    offsets: dict[tuple[TopicName, Partition], CommittedOffset | None]
    offsets = {(each.topic, each.partition): each for each in found}
    offsets |= dict.fromkeys([(each.topic, each.partition) for each in pending])
    if asked is None:
        named = {topic for topic, _ in offsets}
        wanted = [
            (topic.kafka_name, range(topics.partition_count(topic)))
            for topic in service.topics.visible(principal)
            if topic.name in named
        ]
    else:
        wanted = [(each.name, each.partition_indexes) for each in asked]
    listed: list[Values] = []
    topic_of = service.topics.readable_by(service.gate, principal)
    for name, numbers in wanted:
        parts = [_fetched_one(topic_of, name, number, offsets) for number in numbers]
        if asked is None:
            parts = [
                part for part in parts if part["committed_offset"] >= 0 or "error_code" in part
            ]
        listed.append({"name": name, "partitions": parts})
    return {"group_id": group_id, "topics": listed}


def _fetched_one(
    topic_of: Callable[[str], Topic],
    name: str,
    number: int,
    offsets: Mapping[tuple[TopicName, Partition], CommittedOffset | None],
) -> Values:
    """Return the offset of a partition; `offsets` has None for one that is not stable."""
    part: dict[str, Any] = {"partition_index": number, **_UNKNOWN}
    try:
        topic = topic_of(name)
        key = (topic.name, topics.partition_at(topic, number))
        found = offsets.get(key)
        if found is None and key in offsets:
            part["error_code"] = ErrorCode.unstable_offset_commit
        elif found is not None:
            part |= {"committed_offset": found.offset, "metadata": found.note}
    except PermissionDenied as error:
        part["error_code"] = group_code(error)
    except FAILURES:
        pass  # As at Kafka: of what is unknown, no offset is known.
    return part


def admit(principal: Principal) -> None:
    """Check that a principal may take part in groups, as one that may read any topic may.

    Raises:
        KafkaError: It may not.
    """
    try:
        authorize(principal, Right.READ, SOMEWHERE)
    except PermissionDenied as error:
        raise KafkaError(ErrorCode.group_authorization_failed, error.message) from None


def caller_of(body: Any) -> Caller:
    """Return the member that a request is of."""
    generation = getattr(body, "generation_id", None)
    if generation is None:
        generation = body.generation_id_or_member_epoch
    return Caller(
        body.member_id,
        generation,
        getattr(body, "group_instance_id", None),
        getattr(body, "protocol_type", None),
        getattr(body, "protocol_name", None),
    )


def _once(reply: "asyncio.Future[Values]") -> Any:
    """Return a function that gives a reply, unless its request has gone."""

    def give(values: Values) -> None:
        if not reply.done():
            reply.set_result(values)

    return give
