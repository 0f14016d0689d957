"""Assignment: which member of a consumer group should have which slots.

Plain functions of their arguments. The idea of a sticky, even target that the server computes is
Kafka's (KIP-848, "The Next Generation of the Consumer Rebalance Protocol").
"""

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from wings_core.model import Assignment
from wings_core.slots import Slots, mask_of, slots_in


class TopicSlots(NamedTuple):
    """The slots of a topic."""

    every: Slots
    filled: Slots
    """Slots with a partition that has been written to."""


def assign(
    subscriptions: Mapping[str, frozenset[str]],
    current: Mapping[str, Assignment],
    topics: Mapping[str, TopicSlots],
) -> dict[str, dict[str, Slots]]:
    """Assign every slot of every topic to one of the members that subscribe to it.

    Two members of a topic differ by at most one filled slot, and by at most one slot altogether;
    what evenness allows to stay where it is stays there.

    Args:
        subscriptions: The topics of each member.
        current: The members' earlier assignments.
        topics: The slots of each topic; a topic that is not among them is assigned to nobody.

    Returns:
        The assignment of each member, also of those without a slot.
    """
    target: dict[str, dict[str, Slots]] = {member: {} for member in sorted(subscriptions)}
    load = dict.fromkeys(target, 0)
    for topic in sorted(topics):
        before = {
            member: current.get(member, {}).get(topic, 0)
            for member in target
            if topic in subscriptions[member]
        }
        for member, slots in _assign_topic(topics[topic], before, load).items():
            load[member] += slots.bit_count()
            if slots:
                target[member][topic] = slots
    return target


def _assign_topic(
    slots: TopicSlots, before: Mapping[str, Slots], load: Mapping[str, int]
) -> dict[str, Slots]:
    """Assign a topic's slots to the members that had `before`, of whom the less loaded come first.

    A member with an extra filled slot is the first to have an extra slot altogether: its quota of
    empty slots cannot be negative.
    """
    if not before:
        return {}
    every, filled = slots
    empty = every & ~filled

    def order(member: str) -> tuple[int, int, str]:
        return -(before[member] & filled).bit_count(), load[member], member

    filled_quotas = _quotas(filled.bit_count(), sorted(before, key=order))

    def total_order(member: str) -> tuple[int, int, int, str]:
        kept = (before[member] & empty).bit_count()
        return -filled_quotas[member], -kept, load[member], member

    totals = _quotas(every.bit_count(), sorted(before, key=total_order))
    dealt = _deal(filled, filled_quotas, before)
    rest = _deal(empty, {each: totals[each] - filled_quotas[each] for each in before}, before)
    return {member: dealt[member] | rest[member] for member in before}


def _quotas(count: int, members: Sequence[str]) -> dict[str, int]:
    """Divide a number of slots evenly; the first members get one more where it leaves a rest."""
    share, left = divmod(count, len(members))
    return {member: share + (place < left) for place, member in enumerate(members)}


def _deal(slots: Slots, quotas: Mapping[str, int], before: Mapping[str, Slots]) -> dict[str, Slots]:
    """Give each member as many slots as its quota says, of those that it had before first."""
    dealt: dict[str, Slots] = {}
    for member, quota in quotas.items():
        dealt[member] = mask_of(slots_in(before[member] & slots)[:quota])
        slots &= ~dealt[member]
    spare = iter(slots_in(slots))
    for member, quota in quotas.items():
        dealt[member] |= mask_of(islice(spare, quota - dealt[member].bit_count()))
    return dealt
