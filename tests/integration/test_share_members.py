"""Who holds what of a group, and how old its oldest message is, against a real server."""

from datetime import UTC, datetime
from typing import Any

import pytest
from fix_client import NewTopic, async_in_soak

from wings_client import AcknowledgementEntry, Client, GroupNotFound


def ack(
    first: int, last: int, lease: str, kind: Any = "accept", partition: Any = None
) -> AcknowledgementEntry:
    return AcknowledgementEntry(partition=partition, first=first, last=last, lease=lease, type=kind)


@async_in_soak
def test_members_are_told_with_what_they_hold_and_since_when(
    wings: Client, new_topic: NewTopic
) -> None:
    topic = new_topic()
    wings.push(topic, {"n": [0, 1, 2, 3, 4, 5]})
    wings.create_share_group("billing", topic, {"start": "earliest"})
    idle = wings.share_members("billing", topic)
    assert (idle.lag, idle.in_flight, idle.members, idle.holds) == (6, 0, (), ())
    assert idle.oldest is not None
    assert (idle.oldest.partition, idle.oldest.offset) == (None, 0)
    assert 0 <= idle.oldest.age_seconds < 600
    before = datetime.now(UTC)
    (one,) = wings.acquire_messages("billing", topic, "one", max_messages=2)
    (two,) = wings.acquire_messages("billing", topic, "two", max_messages=3)
    entry = ack(one.start_offset, one.start_offset, one.lease)
    assert wings.acknowledge_messages("billing", topic, "one", [entry]) == [None]
    found = wings.share_members("billing", topic)
    assert (found.lag, found.in_flight, found.holds_left_out) == (5, 4, 0)
    assert found.oldest is not None
    assert found.oldest.offset == 1
    assert {(each.name, each.messages) for each in found.members} == {("one", 1), ("two", 3)}
    holds = {(each.member, each.first, each.last): each for each in found.holds}
    assert set(holds) == {("one", 1, 1), ("two", 2, 4)}
    for hold in found.holds:
        assert hold.delivery_count == 1
        assert hold.until > hold.since
        assert (hold.since - before).total_seconds() > -1, "to about a millisecond"
    since = holds["two", 2, 4].since
    renewal = ack(two.start_offset, two.end_offset, two.lease, "renew")
    assert wings.acknowledge_messages("billing", topic, "two", [renewal]) == [None]
    renewed = {each.member: each for each in wings.share_members("billing", topic).holds}["two"]
    assert abs((renewed.since - since).total_seconds()) < 1, "a renewal is no new beginning"
    assert renewed.until >= holds["two", 2, 4].until


@async_in_soak
def test_a_group_that_has_finished_all_has_no_oldest_message(
    wings: Client, new_topic: NewTopic
) -> None:
    topic = new_topic("key: string", "n: int64", partition_key="key")
    wings.create_share_group("billing", topic, {"start": "earliest"})
    assert wings.share_members("billing", topic).oldest is None
    wings.push(topic, {"key": ["a", "b"], "n": [1, 2]})
    for delivery in wings.acquire_messages("billing", topic, "me"):
        assert [each.name for each in wings.share_members("billing", topic).members] == ["me"]
        entry = ack(0, 0, delivery.lease, partition=delivery.partition)
        assert wings.acknowledge_messages("billing", topic, "me", [entry]) == [None]
    found = wings.share_members("billing", topic)
    assert (found.lag, found.oldest, found.members) == (0, None, ())
    with pytest.raises(GroupNotFound):
        wings.share_members("none", topic)
