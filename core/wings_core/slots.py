"""Slots: the units in which a consumer group's partitions are assigned to its members.

A partition belongs to one slot for good, so that an assignment also covers partitions born later,
and stays short however many partitions a topic has.
"""

from collections.abc import Iterable

from wings_core.partitions import UNPARTITIONED, Partition

SLOTS = 256
"""Slots of a topic with a key; one without has slot 0 alone."""

EVERY_SLOT = (1 << SLOTS) - 1
"""The mask of all slots."""

Slots = int
"""A set of slots as a bit mask: bit n is slot n."""


def slot_of(partition: Partition) -> int:
    """Return the slot of a partition of a topic, 0 to `SLOTS` - 1.

    It is XXH3 (64 bits, seed 0) of the value's JSON text in UTF-8, modulo `SLOTS`.
    """
    if partition == UNPARTITIONED:
        return 0
    from xxhash import xxh3_64_intdigest  # A client alone has none, and takes slots as given.

    return xxh3_64_intdigest(partition.encode()) % SLOTS


def mask_of(slots: Iterable[int]) -> Slots:
    """Return the mask of slot numbers."""
    mask = 0
    for slot in slots:
        mask |= 1 << slot
    return mask


def slots_in(mask: Slots) -> list[int]:
    """Return the slot numbers of a mask, in ascending order."""
    found: list[int] = []
    while mask:
        lowest = mask & -mask
        found.append(lowest.bit_length() - 1)
        mask ^= lowest
    return found
