"""Actions for overviews: totals, the state of the processes, and what needs a person.

Totals are bounded, however many partitions there are. It reads what overviews and listings read:
sums, offsets and positions, never the messages.

The process that answers asks the others, with the token of the caller, all at once.
"""

import heapq
import json
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from operator import itemgetter
from typing import Any, Protocol

from wings_core.contracts.actions import describe_node
from wings_core.contracts.consumer_groups import ListConsumerGroups
from wings_core.contracts.shards import describe_counts
from wings_core.contracts.totals import (
    ConsumerLag,
    HealthBody,
    HistoryBody,
    ListConsumers,
    NodeStates,
    ShardSources,
    TopicLag,
    TopicTotals,
    TrafficBody,
    describe_consumer,
    describe_lag,
    describe_totals,
    describe_traffic,
)
from wings_core.errors import NotFound, WingsError
from wings_core.log import Log
from wings_core.memory import machine_bytes
from wings_core.model import CommittedOffset, Node, ShareGroup, SharePartitionState, Topic
from wings_core.names import DEFAULT_NAMESPACE, TopicName
from wings_core.partitions import UNPARTITIONED, Partition
from wings_core.security.principal import CALLER, Principal, authorize
from wings_core.security.rights import Right
from wings_core.share.progress import GroupCounts, oldest_unfinished
from wings_core.times import format_timestamp, now_us, parse_timestamp
from wings_server.log_standing import LogStanding, SeriesName, usage
from wings_server.rights import may_write_source
from wings_server.served_log import Actions, Json, ServedLog

OVERVIEW_ACTIONS = Actions()

NEEDS_MAX = 100
"""Most needs listed."""

PARTITIONS_MAX = 10_000
"""Most partitions of share groups whose oldest message is looked up, largest groups last."""

LAG_MIN = 10_000
"""Messages that a consumer is behind in a topic from which it is listed."""

OLDEST_SECONDS = 3_600
"""Age of a group's oldest unfinished message from which it is listed."""

IDLE_SECONDS = 60
"""Time without a worker after which a group that has messages is listed."""

TREND_SECONDS = 600
"""Time over which the trend of a lag is taken."""

TREND_SECONDS_MIN = 30
"""Time over which lags must be known for a trend."""

HOUR_MS = 3_600_000

BACKUP_SECONDS = 7 * 24 * 3_600
"""Age of the last known backup from which it is listed."""

_SPANS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))

ASKED_AT_ONCE = 16
"""Processes asked at the same time."""

ASKED_MAX = 64
"""Most other processes asked; of more, the states are not known."""

ANSWER_SECONDS_MAX = 2.0
"""Longest wait for another process."""

MEMORY_FULL = 0.9
"""Part of the memory for requests that is held, from which it is listed."""

NEARLY_FULL = 0.05
"""Part of the disk that is free above the watermark, below which the disk is listed."""

CERTIFICATE = timedelta(days=30)
"""Time before the end of a certificate from which it is listed."""

_MIB = 1024 * 1024

State = dict[str, Any]

_Need = dict[str, Any]

_NAMES_AT_ONCE = 1_000
"""Names of consumers, groups or sources per request to metadata."""


@OVERVIEW_ACTIONS.add("health", HealthBody)
def health(log: ServedLog, body: HealthBody) -> Json:
    """Return versions, rights, nodes and disk, and a list of what needs a person.

    Shows what the token may read; what is the machine's and the backups only to operators.
    """
    del body
    caller = CALLER.get()
    needs = list(_needs(log, caller))
    return {
        "version": version("wings-flight"),
        "tls": log.tls is not None,
        "principal": {"name": caller.name, "grants": [str(grant) for grant in caller.grants]},
        "nodes": [describe_node(node) for node in log.live_nodes()] if caller.is_operator else None,
        "disk": _disk_of(log) if caller.is_operator else None,
        "memory": _memory_of(log) if caller.is_operator else None,
        "errors_per_second": _errors_per_second(log) if caller.is_operator else None,
        "needs": needs[:NEEDS_MAX],
        "needs_left_out": max(0, len(needs) - NEEDS_MAX),
    }


def _needs(log: ServedLog, caller: Principal) -> Iterator[_Need]:
    """Yield what needs a person and the caller may know of, the most urgent first."""
    refused = _refusal_of(log)
    if refused is not None:
        yield refused
    damage = log.shares.coordinator.damage
    if damage is not None:
        yield _need(
            "share_groups_closed",
            damage.message,
            "stop the server, run `wings holds rebuild DATA_DIR`, and start it",
        )
    if caller.is_operator:
        yield from _of_nodes(log)
    standing = log.standings.look()
    yield from _dead_letters(log, caller, standing)
    yield from _unfinished(log, caller, standing)
    yield from _lagging(log, caller, standing)


def _of_nodes(log: ServedLog) -> Iterator[_Need]:
    """Yield what the disks and certificates of all processes need, dead processes, and backups."""
    own, *others = _states_of(log)
    yield from (each for each in own["needs"] if each["kind"] != "pushes_refused")
    for state in others:
        address = state["flight"]
        if state.get("silent") or state.get("code") == "UNAVAILABLE":
            yield _need(
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
        yield _need("backup_old", message, "`wings backup DEST`")


def _dead_letters(log: ServedLog, caller: Principal, standing: LogStanding) -> Iterator[_Need]:
    """Yield the topics of dead letters that hold some, with their groups."""
    groups: dict[TopicName, list[ShareGroup]] = {}
    for group, _ in standing.groups:
        if (dlq := group.config.dlq) is not None and caller.may(Right.READ, str(dlq)):
            groups.setdefault(dlq, []).append(group)
    for name, found in groups.items():
        with suppress(NotFound):
            uuid = log.admin.get_topic(name).uuid
            state = log.registry.partition_state(uuid, UNPARTITIONED)
            count = state.next_offset - state.log_start_offset
            if not count or state.last_timestamp is None:
                continue
            since = now_us() - HOUR_MS * 1_000
            recent = state.next_offset - max(
                state.log_start_offset,
                log.registry.offset_for_timestamp(uuid, UNPARTITIONED, since),
            )
            known = [each for each in found if caller.may(Right.SHARE, str(each.topic.name))]
            of = ", ".join(f"{each.name} of {_short(each.topic.name)}" for each in known)
            only = known[0] if len(known) == 1 else None
            yield _need(
                "dead_letters",
                f"{_messages(count, 'dead letter')}{of and f' of {of}'} in {_short(name)}, "
                f"{recent:,} in the last hour, the last {_age(state.last_timestamp)} ago",
                f"`wings share dlq show {_short(name)}`, then `wings share dlq redrive "
                f"{_short(name)}`; they are kept for the retention of their topic",
                topic=str(name if only is None else only.topic.name),
                group=None if only is None else only.name,
                count=count,
                per_hour=recent,
            )


def _unfinished(log: ServedLog, caller: Principal, standing: LogStanding) -> Iterator[_Need]:
    """Yield the groups without workers, and those whose oldest unfinished message is old.

    Delayed messages do not count.
    """
    left, done = PARTITIONS_MAX, log.shares.coordinator.counts
    groups = [each for each in standing.groups if each[0].config.deliver_at_column is None]
    for group, states in sorted(groups, key=lambda each: len(each[1])):
        lagging: list[SharePartitionState] = [state for state in states if state.lag]
        left -= len(lagging)
        name = group.topic.name
        if not lagging or left < 0 or not caller.may(Right.SHARE, str(name)):
            continue
        with suppress(WingsError):  # The topic was deleted.
            oldest = oldest_unfinished(log.registry, group, lagging)
            if oldest is None:
                continue
            count = sum(state.lag for state in lagging)
            what = f"{_messages(count)} that {group.name} has not finished of {_short(name)}"
            series = SeriesName("group", str(name), group.name)
            is_held = any(state.in_flight for state in lagging)
            counts = done.get((str(name), group.name), GroupCounts())
            if not is_held and _is_idle(log, group, series, counts):
                kind = "no_workers"
                message = f"no worker takes the {what}: the oldest is {_age(oldest.timestamp)} old"
                remedy = "start workers, or delete the group if it is not needed"
            elif now_us() - oldest.timestamp >= OLDEST_SECONDS * 1_000_000:
                kind = "oldest_unfinished"
                message = f"the oldest of {what} is {_age(oldest.timestamp)} old"
                held = f"`wings share members {group.name} {_short(name)}`"
                remedy = f"add workers, or see what holds them: {held}"
            else:
                continue
            trend, per_minute = _trend(log, series, count)
            yield _need(
                kind,
                message + (trend and f"; the lag is {trend}"),
                remedy,
                topic=str(name),
                group=group.name,
                count=count,
                per_minute=per_minute,
            )


def _is_idle(log: ServedLog, group: ShareGroup, series: SeriesName, counts: GroupCounts) -> bool:
    """Return whether nobody held, awaited or finished messages of a group for a while.

    A member that waits at another process for messages that are delayed is not known here.
    """
    begin = now_us() // 1_000 - IDLE_SECONDS * 1_000
    now = [counts.accepted, counts.redelivered, counts.dead_lettered]
    samples = log.history.samples(series, begin)
    return (
        bool(samples)
        and samples[0][0] <= begin
        and all(lag and not held and done == now for _, lag, held, *done in samples)
        and not log.shares.coordinator.is_awaited(group)
    )


def _trend(log: ServedLog, series: SeriesName, lag: int) -> tuple[str, int | None]:
    """Return by how much a lag grew a minute lately, as text and number; None: unknown."""
    now = now_us() // 1_000
    samples = log.history.samples(series, now - TREND_SECONDS * 1_000)
    if not samples or now - samples[0][0] < TREND_SECONDS_MIN * 1_000:
        return "", None
    per_minute = round((lag - samples[0][1]) * 60_000 / (now - samples[0][0]))
    if per_minute == 0:
        return "steady", 0
    verb = "growing" if per_minute > 0 else "shrinking"
    return f"{verb} by {abs(per_minute):,} a minute", per_minute


def _lagging(log: ServedLog, caller: Principal, standing: LogStanding) -> Iterator[_Need]:
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
            trend, per_minute = _trend(log, SeriesName("consumer", str(name), consumer), lag)
            yield _need(
                "consumer_lag",
                f"the consumer {consumer} is {_messages(lag)} behind in {_short(name)}, "
                f"{trend and f'{trend}, '}its last commit {_age(committed_at)} ago",
                "see that it runs, or add members of its group",
                topic=str(name),
                consumer=consumer,
                count=lag,
                per_minute=per_minute,
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


@OVERVIEW_ACTIONS.add("node-states", NodeStates)
def node_states(log: ServedLog, body: NodeStates) -> Json:
    """Return the version, use of the machine and needs of all processes that serve this log.

    One that does not answer has an `error`; one that stopped without leaving is `silent`.
    """
    return _states_of(log) if body.others else [_own(log)]


def _states_of(log: ServedLog) -> list[State]:
    """Return the states of all processes; blocks for up to `ANSWER_SECONDS_MAX` per 16 others."""
    own = None if log.consumer_groups is None else log.consumer_groups.node
    others = [each for each in log.live_nodes() if own is None or each.address != own.address]
    states = [_own(log)]
    with ThreadPoolExecutor(ASKED_AT_ONCE, "wings-nodes") as threads:
        asked = [threads.submit(copy_context().run, _ask, log, each) for each in others[:ASKED_MAX]]
        states += [each.result() for each in asked]
    states += [describe_node(each) for each in others[ASKED_MAX:]]
    return states + [{**describe_node(each), "silent": True} for each in log.silent_nodes()]


def _ask(log: ServedLog, node: Node) -> State:
    assert log.consumer_groups is not None
    body = NodeStates(others=False)
    try:
        answer = log.consumer_groups.call(node.address, "node-states", body, ANSWER_SECONDS_MAX)
        (state,) = json.loads(answer)
    except WingsError as error:
        return {**describe_node(node), "error": error.message, "code": error.code}
    return {**state, **describe_node(node)}


def _own(log: ServedLog) -> State:
    node = None if log.consumer_groups is None else log.consumer_groups.node
    last_backup = log.backups.last_at
    return {
        **({} if node is None else describe_node(node)),
        "version": version("wings-flight"),
        "cores": os.cpu_count(),
        "busy_cores": _busy(log),
        "memory_bytes": round(usage()[1]),
        "memory_limit_bytes": machine_bytes(),
        "disk": _disk_of(log),
        "certificate_ends_at": None if log.tls is None else log.tls.ends_at.isoformat(),
        "last_backup_at": None if last_backup is None else format_timestamp(last_backup),
        "needs": list(_needs_of_machine(log)),
    }


def _busy(log: ServedLog) -> float | None:
    """Return the cores that this process used between its last two samples; None if unknown."""
    samples = log.history.samples(SeriesName("process"))[-2:]
    if len(samples) < 2:
        return None
    (before, cpu_before, *_), (at, cpu, *_) = samples
    return round((cpu - cpu_before) / max(1, at - before), 3)


def _errors_per_second(log: ServedLog) -> float | None:
    """Return the errors a second that this process answered in the last minute; None if unknown."""
    now = now_us() // 1_000
    samples = log.history.samples(SeriesName("process"), now - 60_000)
    if not samples:
        return None
    seconds = max(1.0, (now - samples[0][0]) / 1_000)
    return round((log.traffic.errors()[0] - samples[0][3]) / seconds, 3)


def _memory_of(log: ServedLog) -> dict[str, int]:
    """Return the bytes of this process, and those that requests hold and may hold of them."""
    return {
        "resident_bytes": round(usage()[1]),
        "held_bytes": log.memory.in_use,
        "limit_bytes": log.memory.bytes_max,
    }


def _disk_of(log: ServedLog) -> dict[str, int] | None:
    """Return the free and used bytes of the data directory's disk; None without one."""
    if log.disk is None:
        return None
    return {
        "free_bytes": log.disk.free_bytes,
        "used_bytes": shutil.disk_usage(log.disk.path).used,
        "watermark_bytes": log.disk.free_bytes_min,
    }


def _refusal_of(log: ServedLog) -> _Need | None:
    """Return that pushes are refused for want of disk, which all callers may know; else None."""
    refusal = None if log.disk is None else log.disk.refusal
    if refusal is None:
        return None
    return _need("pushes_refused", refusal, "free space on the disk, or shorten retention")


def _needs_of_machine(log: ServedLog) -> Iterator[_Need]:
    """Yield what this process's disk, memory, object stores, certificate and faults need."""
    if (refused := _refusal_of(log)) is not None:
        yield refused
    elif log.disk is not None:
        free, least = log.disk.free_bytes, log.disk.free_bytes_min
        if free - least < shutil.disk_usage(log.disk.path).total * NEARLY_FULL:
            message = f"the disk has {free // _MIB:,} MiB free; below {least // _MIB:,} MiB pushes"
            yield _need(
                "disk_nearly_full", f"{message} are refused", "free space, or shorten retention"
            )
    if (held := log.memory.in_use) > log.memory.bytes_max * MEMORY_FULL:
        yield _need(
            "memory_nearly_full",
            f"requests hold {held // _MIB:,} of {log.memory.bytes_max // _MIB:,} MiB of "
            "memory, and pushes wait for room",
            "see whether commits are slow; else raise `limits.memory_bytes_max`, or add nodes",
        )
    hour = log.history.samples(SeriesName("process"))
    if faults := log.traffic.errors()[1] - (hour[0][4] if hour else 0):
        yield _need(
            "faults",
            f"the server failed by a fault of its own {_messages(faults, 'time')} in the last hour",
            "look for errors in its log; `wings check` reads a stopped server's directory",
        )
    for role, store in log.storage.objects.items():
        if (outage := store.counts.outage) is not None:
            yield _need(
                "object_store_fails",
                f"the {role} store {store.url} has failed since {format_timestamp(outage.since)}: "
                f"{outage.error.message}",
                "see that it is up, reachable from this machine, and accepts its credentials; "
                "requests are repeated",
            )
    now = datetime.now(UTC)
    if log.tls is not None and (ends_at := log.tls.ends_at) - now < CERTIFICATE:
        yield _need(
            "certificate_ends",
            f"the certificate {'ended' if ends_at <= now else 'ends'} at "
            f"{ends_at:%Y-%m-%d %H:%M} UTC",
            "replace its files, and restart the server: Flight reads them at its start alone",
        )


def _need(kind: str, message: str, remedy: str, **about: str | int | None) -> _Need:
    """Return something that needs a person, with what it is about."""
    known = {key: value for key, value in about.items() if value is not None}
    return {"kind": kind, "message": message, "remedy": remedy, **known}


class _Ask(Protocol):
    def __call__(self, names_max: int, /, *, after: str | None) -> list[str]: ...


@OVERVIEW_ACTIONS.add("topic-totals", TopicTotals)
def topic_totals(log: Log, body: TopicTotals) -> Json:
    """Return the partitions, rows and bytes of topics, without missing topics."""
    caller = CALLER.get()
    totals: list[dict[str, object]] = []
    for name in dict.fromkeys(map(TopicName.parse, body.topics)):
        if not caller.may(Right.READ, str(name)):
            continue
        with suppress(NotFound):
            state = log.maintenance.topic_state(log.admin.get_topic(name).uuid)
            traffic = log.traffic.of(name)
            totals.append(describe_totals(str(name), state, traffic, tiers=body.tiers))
    return totals


@OVERVIEW_ACTIONS.add("traffic", TrafficBody)
def traffic(log: Log, body: TrafficBody) -> Json:
    """Return the traffic of this process since its start, in total and by topic."""
    caller = CALLER.get()
    topics = [
        {"topic": str(name), **describe_traffic(log.traffic.of(name))}
        for name in log.traffic.latest(log.traffic.topics())
        if caller.may(Right.READ, str(name))
    ]
    counts = describe_traffic(log.traffic.all()) if caller.is_operator else _sum(topics)
    return {**counts, "topics_counted": len(topics), "topics": topics[: body.limit]}


@OVERVIEW_ACTIONS.add("history", HistoryBody)
def history(log: ServedLog, body: HistoryBody) -> Json:
    """Return this process's samples of the last hour: traffic, or the lag of a group or consumer.

    Each is a list of numbers with the names in `columns`; `at` is in milliseconds since the epoch.
    """
    caller, found = CALLER.get(), log.history
    topic = None if body.topic is None else str(TopicName.parse(body.topic))
    samples: list[list[int]] = []
    if body.consumer is not None:
        kind, lags = "consumer", dict[int, int]()
        for name in found.topics_of(body.consumer):
            if caller.may(Right.READ, name):
                for at, lag in found.samples(SeriesName(kind, name, body.consumer)):
                    lags[at] = lags.get(at, 0) + lag
        samples = [[at, lags[at]] for at in sorted(lags)]
    elif body.group is not None and topic is not None:
        authorize(caller, Right.SHARE, topic)
        kind = "group"
        samples = found.samples(SeriesName(kind, topic, body.group))
    elif topic is not None:
        kind = "topic"
        samples = found.samples(SeriesName(kind, topic))
    else:
        kind = "traffic"
        if caller.is_operator:  # The others see sums of what they may read.
            samples = found.samples(SeriesName(kind))
    return {"columns": found.columns(kind), "samples": samples}


def _sum(topics: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the total traffic of topics, since the earliest start of their counts."""
    names = ("rows_in", "bytes_in", "rows_out", "bytes_out")
    sums: dict[str, Any] = {name: sum(each[name] for each in topics) for name in names}
    return {**sums, "since": min((each["since"] for each in topics), default=None)}


@OVERVIEW_ACTIONS.add("list-consumers", ListConsumers)
def list_consumers(log: Log, body: ListConsumers) -> Json:
    """Return named consumers by name, each with its lag in the topics it has offsets in."""
    ends = _Ends(log)
    consumers: list[dict[str, object]] = []
    for name in names_asked_for(body, log.registry.list_consumers):
        lags = _lags(ends, log.registry.get_offsets(name))
        if lags:
            consumers.append(describe_consumer(name, lags))
        if len(consumers) == body.limit:
            break
    return consumers


@OVERVIEW_ACTIONS.add("consumer-lag", ConsumerLag)
def consumer_lag(log: Log, body: ConsumerLag) -> Json:
    """Return the lag of a named consumer, with the partitions that have the most."""
    uuid = None
    if body.topic is not None:
        uuid = log.admin.get_topic(TopicName.parse(body.topic)).uuid
    lags = _lags(_Ends(log), log.registry.get_offsets(body.consumer, uuid))
    every = (each for of_topic in lags for each in of_topic.largest)
    return describe_lag(body.consumer, lags, heapq.nlargest(body.limit, every, key=itemgetter(2)))


@OVERVIEW_ACTIONS.add("shard-sources", ShardSources)
def shard_sources(log: Log, body: ShardSources) -> Json:
    """Return sources with shards, by name, each with the number of shards in each state."""
    caller = CALLER.get()
    sources: list[dict[str, object]] = []
    for name in names_asked_for(body, log.shards.sources):
        if may_write_source(caller, name):
            sources.append({"source": name, **describe_counts(log.shards.count(name))})
        if len(sources) == body.limit:
            break
    return sources


class _Ends:
    """Start and end offsets of partitions, looked up once for each topic."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._ends: dict[TopicName, dict[Partition, tuple[int, int]]] = {}

    def of(self, topic: TopicName) -> dict[Partition, tuple[int, int]]:
        """Return the start and end of each partition; empty for a deleted topic."""
        if topic not in self._ends:
            self._ends[topic] = {}
            with suppress(NotFound):
                found: Topic = self._log.admin.get_topic(topic)
                self._ends[topic] = {
                    state.partition: (state.log_start_offset, state.next_offset)
                    for state in self._log.registry.partition_states(found.uuid)
                }
        return self._ends[topic]


def names_asked_for(
    body: ListConsumers | ListConsumerGroups | ShardSources, ask: _Ask
) -> Iterator[str]:
    """Yield the names that a request selects, in order."""
    after = body.after or None
    while names := ask(_NAMES_AT_ONCE, after=after):
        yield from (name for name in names if body.contains in name)
        after = names[-1]


def _lags(ends: _Ends, offsets: list[CommittedOffset]) -> list[TopicLag]:
    """Return the lag in each topic that the caller may read, in the order of the offsets."""
    caller = CALLER.get()
    lags: dict[TopicName, TopicLag] = {}
    for offset in offsets:
        if offset.topic not in lags and not caller.may(Right.READ, str(offset.topic)):
            continue
        lag = lags.setdefault(offset.topic, TopicLag(str(offset.topic)))
        lag.add(offset, *ends.of(offset.topic).get(offset.partition, (0, 0)))
    return list(lags.values())
