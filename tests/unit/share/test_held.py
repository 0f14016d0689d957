"""Who holds what, as a majority of the replicas knows."""

from fix_share import ShareUnderTest

from wings_core.partitions import UNPARTITIONED


def test_what_is_held_is_known_by_member_at_every_coordinator(share: ShareUnderTest) -> None:
    share.metadata.push(share.topic, 10)
    group = share.group(lock_duration_ms=10_000)
    (one,) = share.acquire(group, 4, member="one")
    (two,) = share.acquire(group, 3, member="two")
    share.wait_for_replicas(group, 7)
    assert share.acknowledge(group, one, "accept", last=0, member="one") is None
    share.wait_for_replicas(group, 6)
    share.clock.time += 2
    assert share.acknowledge(group, two, "renew", member="two") is None
    for coordinator in (share.coordinator, share.open_coordinator()):
        held = coordinator.held(group)[UNPARTITIONED]
        assert [(each.first, each.last, each.member, each.count) for each in held] == [
            (1, 3, "one", 1),
            (4, 6, "two", 1),
        ]
        assert [each.held_ms for each in held] == [2_000, 2_000]
        assert held[0].left_ms == 8_000
    share.clock.time += 9
    held = share.coordinator.held(group)[UNPARTITIONED]
    assert [each.member for each in held] == ["two"]
