"""Slots: the units in which a consumer group's partitions are assigned to its members.

A partition belongs to one slot for good, so that an assignment also covers partitions born later,
and stays short however many partitions a topic has.
"""

from collections.abc import Iterable
from functools import lru_cache

from wings_core.partitions import UNPARTITIONED, Partition

SLOTS = 256
"""Slots of a topic with a key; one without has slot 0 alone."""

SLOTS_MAX = 10_000
"""Most slots, and numbered partitions, of a topic with numbered partitions."""

HASHED_MAX = 65_536
"""Partitions whose slot is remembered: each chunk of a read of slots names it for each of its
partitions."""

Slots = int
"""A set of slots as a bit mask: bit n is slot n."""


def slot_of(partition: Partition, *, numbered: bool = False) -> int:
    """Return the slot of a partition.

    It is XXH3 (64 bits, seed 0) of the value's JSON text in UTF-8, modulo `SLOTS`; of a topic with
    numbered partitions it is the number.
    """
    if numbered:
        return int(partition)
    return 0 if partition == UNPARTITIONED else _hashed(partition)


@lru_cache(HASHED_MAX)
def _hashed(partition: Partition) -> int:
    from xxhash import xxh3_64_intdigest  # A client alone has none, and takes slots as given.

    return xxh3_64_intdigest(partition.encode()) % SLOTS


def first_slots(count: int) -> Slots:
    """Return the mask of the first slots."""
    return (1 << count) - 1


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
