"""Texts of `wings share` about groups and their members."""

from collections.abc import Iterator

from wings_client import ShareGroup, ShareMembers
from wings_client._messages import wire_time
from wings_client.cli.endpoint import PARTITIONS_SHOWN_MAX, short_name
from wings_client.cli.tables import Column, rendered
from wings_client.cli.values import partition_text

HOLDS_SHOWN_MAX = 50
"""Most held ranges that `members` shows."""


def summary(group: ShareGroup) -> str:
    """Return a group in one line: its lock, limit, dead letters and lag."""
    lag = sum(partition.lag for partition in group.partitions)
    dead = f", dead letters to {dlq_text(group)}" if group.config["dlq_topic"] else ""
    return (
        f"{lock_text(group)} lock, {text_of(group, 'delivery_limit')} deliveries{dead}, "
        f"{lag:,} message{'' if lag == 1 else 's'} behind"
    )


def lock_text(group: ShareGroup) -> str:
    """Return a group's lock duration, in seconds."""
    milliseconds = group.config["lock_duration_ms"]
    assert isinstance(milliseconds, int)
    return f"{milliseconds / 1000:g} s"


def dlq_text(group: ShareGroup) -> str:
    """Return the topic of a group's dead letters; a dash if there is none."""
    name = group.config["dlq_topic"]
    return short_name(name) if isinstance(name, str) else "-"


def text_of(group: ShareGroup, key: str) -> str:
    """Return one value of a group's configuration."""
    value = group.config[key]
    return f"from {value['timestamp']}" if isinstance(value, dict) else f"{value}"


def description(group: ShareGroup, *, all_partitions: bool) -> Iterator[str]:
    """Yield the lines of `describe`."""
    yield f"Group: {group.name}"
    yield f"Topic: {group.topic}"
    for key in group.config:
        yield f"{key}: {text_of(group, key)}"
    yield ""
    if not group.partitions:
        yield "no partitions yet: each comes into being with its first message"
        return
    shown = group.partitions if all_partitions else group.partitions[:PARTITIONS_SHOWN_MAX]
    yield from rendered(
        Column("partition", [partition_text(each.partition) for each in shown]),
        Column("start", [f"{each.start_offset}" for each in shown], is_number=True),
        Column("in flight", [f"{each.in_flight}" for each in shown], is_number=True),
        Column("lag", [f"{each.lag}" for each in shown], is_number=True),
    )
    lag = sum(each.lag for each in group.partitions)
    held = sum(each.in_flight for each in group.partitions)
    count = len(group.partitions)
    hidden = f", {count - len(shown):,} of them not shown" if count > len(shown) else ""
    yield (
        f"{lag:,} messages behind, {held:,} of them in flight, "
        f"{count:,} partition{'' if count == 1 else 's'}{hidden}"
    )


def members_text(found: ShareMembers) -> Iterator[str]:
    """Yield the lines of `members`."""
    shown = found.holds[:HOLDS_SHOWN_MAX]
    if shown:
        yield from rendered(
            Column("member", [each.member for each in shown]),
            Column("partition", [partition_text(each.partition) for each in shown]),
            Column("first", [f"{each.first}" for each in shown], is_number=True),
            Column("last", [f"{each.last}" for each in shown], is_number=True),
            Column("delivery", [f"{each.delivery_count}" for each in shown], is_number=True),
            Column("since", [wire_time(each.since) for each in shown]),
            Column("until", [wire_time(each.until) for each in shown]),
        )
    hidden = len(found.holds) - len(shown) + found.holds_left_out
    rest = f", {hidden:,} more ranges not shown" if hidden else ""
    oldest = "" if found.oldest is None else f", the oldest {found.oldest.age_seconds:,.0f} s old"
    count = len(found.members)
    yield (
        f"{found.lag:,} messages behind{oldest}, {found.in_flight:,} of them held by "
        f"{count:,} member{'' if count == 1 else 's'}{rest}"
    )
