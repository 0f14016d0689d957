"""Assignments: every slot once, evenly, and moving no more than evenness asks for."""

from hypothesis import given
from hypothesis import strategies as st

from wings_core.consumer_groups.group import TopicSlots, assign
from wings_core.partitions import SLOTS, UNPARTITIONED, Partition, mask_of, slot_of, slots_in

EVERY = (1 << SLOTS) - 1
MEMBERS = [f"m{number}" for number in range(6)]

topics = st.dictionaries(
    st.sampled_from(["a", "b", "c"]),
    st.integers(1, EVERY).flatmap(
        lambda every: st.integers(0, EVERY).map(lambda some: TopicSlots(every, every & some))
    ),
    min_size=1,
)
subscriptions = st.dictionaries(
    st.sampled_from(MEMBERS), st.frozensets(st.sampled_from(["a", "b", "c"])), min_size=1
)


@given(subscriptions, subscriptions, topics, topics)
def test_every_slot_has_one_member_of_those_that_subscribe_and_shares_are_even(
    before: dict[str, frozenset[str]],
    after: dict[str, frozenset[str]],
    topics_before: dict[str, TopicSlots],
    topics_after: dict[str, TopicSlots],
) -> None:
    current = assign(before, {}, topics_before)
    target = assign(after, current, topics_after)
    assert set(target) == set(after)
    for topic, (every, filled) in topics_after.items():
        members = [member for member in after if topic in after[member]]
        masks = [target[member].get(topic, 0) for member in members]
        assert all(target[each].get(topic, 0) == 0 for each in after if each not in members)
        if members:
            assert sum(masks) == every  # All of them, and none twice.
            for part in (every, filled):
                counts = [(mask & part).bit_count() for mask in masks]
                assert max(counts) - min(counts) <= 1


@given(subscriptions, topics)
def test_what_is_even_stays_where_it_is(
    members: dict[str, frozenset[str]], slots: dict[str, TopicSlots]
) -> None:
    target = assign(members, {}, slots)
    assert assign(members, target, slots) == target


def test_a_member_that_joins_takes_only_its_share() -> None:
    slots = {"t": TopicSlots(EVERY, mask_of(range(0, SLOTS, 3)))}
    subscribed = frozenset("t")
    current = assign(dict.fromkeys(["a", "b", "c"], subscribed), {}, slots)
    target = assign(dict.fromkeys(["a", "b", "c", "d"], subscribed), current, slots)
    moved = sum((current[each]["t"] & ~target[each]["t"]).bit_count() for each in current)
    assert moved == target["d"]["t"].bit_count() == SLOTS // 4


def test_of_many_topics_with_one_slot_no_member_gets_all() -> None:
    slots = {f"t{number}": TopicSlots(1, 1) for number in range(9)}
    target = assign(dict.fromkeys(["a", "b", "c"], frozenset(slots)), {}, slots)
    assert [len(target[member]) for member in "abc"] == [3, 3, 3]


def test_slots_are_those_that_other_programs_compute() -> None:
    assert slot_of(UNPARTITIONED) == 0
    # As xxhsum -H3 prints, modulo 256.
    assert [slot_of(Partition(text)) for text in ('"JFK"', "7", "true")] == [194, 250, 41]
    assert slots_in(mask_of([5, 0, 255])) == [0, 5, 255]
