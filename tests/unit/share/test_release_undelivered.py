"""What was leased and never reached its member is given back, and counts as no delivery."""

from fix_share import ShareUnderTest


def test_what_is_given_back_is_delivered_as_if_it_never_was(share: ShareUnderTest) -> None:
    share.metadata.push(share.topic, 4)
    group = share.group(delivery_limit=1)
    (leased,) = share.acquire(group, 4)
    share.coordinator.release_undelivered(group, [leased])
    assert share.coordinator.positions.describe(group)[0].in_flight == 0
    (again,) = share.acquire(group, 4)
    assert (again.start_offset, again.end_offset, again.delivery_count) == (0, 3, 1)
    share.coordinator.release_undelivered(group, [leased])
    assert share.acquire(group, 4) == [], "the lease of before gives nothing back"
    assert share.acknowledge(group, again, "accept") is None
