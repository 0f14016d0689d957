"""States of the processes that serve a log: version, use of the machine, and what needs a person.

The process that answers asks the others, with the token of the caller, all at once.
"""

import json
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from typing import Any

from wings_core.contracts.actions import describe_node
from wings_core.contracts.totals import NodeStates
from wings_core.errors import WingsError
from wings_core.memory import machine_bytes
from wings_core.model import Node
from wings_core.times import format_timestamp
from wings_server.action import Actions, Json
from wings_server.history import SeriesName, usage
from wings_server.served_log import ServedLog

NODE_ACTIONS = Actions()

ASKED_AT_ONCE = 16
"""Processes asked at the same time."""

ASKED_MAX = 64
"""Most other processes asked; of more, the states are not known."""

ANSWER_SECONDS_MAX = 2.0
"""Longest wait for another process."""

NEARLY_FULL = 0.05
"""Part of the disk that is free above the watermark, below which the disk is listed."""

CERTIFICATE = timedelta(days=30)
"""Time before the end of a certificate from which it is listed."""

_MIB = 1024 * 1024

State = dict[str, Any]
Need = dict[str, Any]


@NODE_ACTIONS.add("node-states", NodeStates)
def node_states(log: ServedLog, body: NodeStates) -> Json:
    """Return the version, use of the machine and needs of all processes that serve this log.

    One that does not answer has an `error`; one that stopped without leaving is `silent`.
    """
    return states_of(log) if body.others else [_own(log)]


def states_of(log: ServedLog) -> list[State]:
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
        "disk": disk_of(log),
        "certificate_ends_at": None if log.tls is None else log.tls.ends_at.isoformat(),
        "last_backup_at": None if last_backup is None else format_timestamp(last_backup),
        "needs": list(needs_of_machine(log)),
    }


def _busy(log: ServedLog) -> float | None:
    """Return the cores that this process used between its last two samples; None if unknown."""
    samples = log.history.samples(SeriesName("process"))[-2:]
    if len(samples) < 2:
        return None
    (before, cpu_before, _), (at, cpu, _) = samples
    return round((cpu - cpu_before) / max(1, at - before), 3)


def disk_of(log: ServedLog) -> dict[str, int] | None:
    """Return the free and used bytes of the data directory's disk; None without one."""
    if log.disk is None:
        return None
    return {
        "free_bytes": log.disk.free_bytes,
        "used_bytes": shutil.disk_usage(log.disk.path).used,
        "watermark_bytes": log.disk.free_bytes_min,
    }


def refusal_of(log: ServedLog) -> Need | None:
    """Return that pushes are refused for want of disk, which all callers may know; else None."""
    refusal = None if log.disk is None else log.disk.refusal
    if refusal is None:
        return None
    return need("pushes_refused", refusal, "free space on the disk, or shorten retention")


def needs_of_machine(log: ServedLog) -> Iterator[Need]:
    """Yield what this process's disk and certificate need."""
    if (refused := refusal_of(log)) is not None:
        yield refused
    elif log.disk is not None:
        free, least = log.disk.free_bytes, log.disk.free_bytes_min
        if free - least < shutil.disk_usage(log.disk.path).total * NEARLY_FULL:
            message = f"the disk has {free // _MIB:,} MiB free; below {least // _MIB:,} MiB pushes"
            yield need(
                "disk_nearly_full", f"{message} are refused", "free space, or shorten retention"
            )
    if log.tls is not None and (ends_at := log.tls.ends_at) - datetime.now(UTC) < CERTIFICATE:
        yield need(
            "certificate_ends",
            f"the certificate ends at {ends_at:%Y-%m-%d %H:%M} UTC",
            "replace its files, and restart the server: Flight reads them at its start alone",
        )


def need(kind: str, message: str, remedy: str, **about: str | int | None) -> Need:
    """Return something that needs a person, with what it is about."""
    known = {key: value for key, value in about.items() if value is not None}
    return {"kind": kind, "message": message, "remedy": remedy, **known}
