"""The action `health`: the state of the server, and the list of what needs a person.

It reads what overviews and listings read: sums, offsets and positions, never the messages.
"""

from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import version

from wings_core.contracts.actions import describe_node
from wings_core.contracts.totals import HealthBody
from wings_core.errors import NotFound, WingsError
from wings_core.model import ShareGroup, SharePartitionState
from wings_core.names import DEFAULT_NAMESPACE, TopicName
from wings_core.partitions import UNPARTITIONED
from wings_core.security.principal import CALLER, Principal
from wings_core.security.rights import Right
from wings_core.share.progress import oldest_unfinished
from wings_core.times import now_us, parse_timestamp
from wings_server.action import Actions, Json
from wings_server.log_standing import LogStanding
from wings_server.node_states import Need, disk_of, need, refusal_of, states_of
from wings_server.served_log import ServedLog

HEALTH_ACTIONS = Actions()

NEEDS_MAX = 100
"""Most needs listed."""

PARTITIONS_MAX = 10_000
"""Most partitions of share groups whose oldest message is looked up, largest groups last."""

LAG_MIN = 10_000
"""Messages that a consumer is behind in a topic from which it is listed."""

OLDEST_SECONDS = 3_600
"""Age of a group's oldest unfinished message from which it is listed."""

BACKUP_SECONDS = 7 * 24 * 3_600
"""Age of the last known backup from which it is listed."""

_SPANS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


@HEALTH_ACTIONS.add("health", HealthBody)
def health(log: ServedLog, body: HealthBody) -> Json:
    """Return versions, rights, nodes and disk, and a list of what needs a person.

    Shows what the token may read; nodes, disk, certificate and backups only to operators.
    """
    del body
    caller = CALLER.get()
    needs = list(_needs(log, caller))
    return {
        "version": version("wings-flight"),
        "tls": log.tls is not None,
        "principal": {"name": caller.name, "grants": [str(grant) for grant in caller.grants]},
        "nodes": [describe_node(node) for node in log.live_nodes()] if caller.is_operator else None,
        "disk": disk_of(log) if caller.is_operator else None,
        "needs": needs[:NEEDS_MAX],
        "needs_left_out": max(0, len(needs) - NEEDS_MAX),
    }


def _needs(log: ServedLog, caller: Principal) -> Iterator[Need]:
    """Yield what needs a person and the caller may know of, the most urgent first."""
    refused = refusal_of(log)
    if refused is not None:
        yield refused
    damage = log.shares.coordinator.damage
    if damage is not None:
        yield need(
            "share_groups_closed",
            damage.message,
            "stop the server, run `wings holds rebuild DATA_DIR`, and start it",
        )
    if caller.is_operator:
        yield from _of_nodes(log)
    standing = log.standings.look()
    yield from _dead_letters(log, caller, standing)
    yield from _unfinished(log, caller, standing)
    yield from _lagging(caller, standing)


def _of_nodes(log: ServedLog) -> Iterator[Need]:
    """Yield what the disks and certificates of all processes need, dead processes, and backups."""
    own, *others = states_of(log)
    yield from (each for each in own["needs"] if each["kind"] != "pushes_refused")
    for state in others:
        address = state["flight"]
        if state.get("silent") or state.get("code") == "UNAVAILABLE":
            yield need(
                "node_silent",
                f"the node {address} has stopped answering",
                "start it again, or see what became of its machine; one that is gone for good is "
                "forgotten after a day",
            )
        for each in state.get("needs", ()):
            yield {**each, "message": f"{address}: {each['message']}"}
    found = (each.get("last_backup_at") for each in (own, *others))
    last_at = max((parse_timestamp(each) for each in found if each is not None), default=None)
    if last_at is not None and now_us() - last_at > BACKUP_SECONDS * 1_000_000:
        message = f"the last backup that this log knows of is {_age(last_at)} old"
        yield need("backup_old", message, "`wings backup DEST`")


def _dead_letters(log: ServedLog, caller: Principal, standing: LogStanding) -> Iterator[Need]:
    """Yield the topics of dead letters that hold some, with their groups."""
    groups: dict[TopicName, list[ShareGroup]] = {}
    for group, _ in standing.groups:
        if (dlq := group.config.dlq) is not None and caller.may(Right.READ, str(dlq)):
            groups.setdefault(dlq, []).append(group)
    for name, found in groups.items():
        with suppress(NotFound):
            state = log.registry.partition_state(log.admin.get_topic(name).uuid, UNPARTITIONED)
            count = state.next_offset - state.log_start_offset
            if not count or state.last_timestamp is None:
                continue
            known = [each for each in found if caller.may(Right.SHARE, str(each.topic.name))]
            of = ", ".join(f"{each.name} of {_short(each.topic.name)}" for each in known)
            only = known[0] if len(known) == 1 else None
            yield need(
                "dead_letters",
                f"{_messages(count, 'dead letter')}{of and f' of {of}'} in {_short(name)}, the "
                f"last {_age(state.last_timestamp)} ago",
                f"`wings share dlq show {_short(name)}`, then `wings share dlq redrive "
                f"{_short(name)}`; they are kept for the retention of their topic",
                topic=str(name if only is None else only.topic.name),
                group=None if only is None else only.name,
                count=count,
            )


def _unfinished(log: ServedLog, caller: Principal, standing: LogStanding) -> Iterator[Need]:
    """Yield the groups whose oldest unfinished message is old; delayed messages do not count."""
    left = PARTITIONS_MAX
    groups = [each for each in standing.groups if each[0].config.deliver_at_column is None]
    for group, states in sorted(groups, key=lambda each: len(each[1])):
        lagging: list[SharePartitionState] = [state for state in states if state.lag]
        left -= len(lagging)
        name = group.topic.name
        if not lagging or left < 0 or not caller.may(Right.SHARE, str(name)):
            continue
        with suppress(WingsError):  # The topic was deleted.
            oldest = oldest_unfinished(log.registry, group, lagging)
            if oldest is None or now_us() - oldest.timestamp < OLDEST_SECONDS * 1_000_000:
                continue
            count = sum(state.lag for state in lagging)
            yield need(
                "oldest_unfinished",
                f"the oldest of {_messages(count)} that {group.name} has not finished of "
                f"{_short(name)} is {_age(oldest.timestamp)} old",
                f"add workers, or see what holds them: `wings share members {group.name} "
                f"{_short(name)}`",
                topic=str(name),
                group=group.name,
                count=count,
            )


def _lagging(caller: Principal, standing: LogStanding) -> Iterator[Need]:
    """Yield the consumers that are far behind in a topic, those most behind first."""
    lags: dict[tuple[str, TopicName], tuple[int, int]] = {}
    for consumer, entry, lag in standing.lags:
        behind, committed_at = lags.get((consumer, entry.topic), (0, 0))
        found = (behind + lag, max(committed_at, entry.committed_at))
        lags[consumer, entry.topic] = found
    for (consumer, name), (lag, committed_at) in sorted(lags.items(), key=lambda each: -each[1][0]):
        if lag < LAG_MIN:
            return
        if caller.may(Right.READ, str(name)):
            yield need(
                "consumer_lag",
                f"the consumer {consumer} is {_messages(lag)} behind in {_short(name)}, its last "
                f"commit {_age(committed_at)} ago",
                "see that it runs, or add members of its group",
                topic=str(name),
                consumer=consumer,
                count=lag,
            )


def _messages(count: int, one: str = "message") -> str:
    return f"{count:,} {one}{'' if count == 1 else 's'}"


def _short(name: TopicName) -> str:
    return name.topic if name.namespace == DEFAULT_NAMESPACE else str(name)


def _age(timestamp: int) -> str:
    """Return how long ago a time in microseconds was, in its largest unit."""
    seconds = max(0, (now_us() - timestamp) // 1_000_000)
    size, unit = next((each for each in _SPANS if seconds >= each[0]), _SPANS[-1])
    return f"{seconds // size} {unit}"
